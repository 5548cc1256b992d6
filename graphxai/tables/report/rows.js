/* The molecules as rows of a table with structures, sorted by a click on a heading. The search and
   the filters of the cards choose its rows. */

const ROWS_AT_ONCE = 200;
let rowOrder = null; // {column, down}, or null for the order of the cards
let rowsShown = ROWS_AT_ONCE;
const rowPictures = []; // to be forgotten when the rows are drawn again

/* What the record of a molecule knows of a property: its value, and what was measured. */
const knownValue = (m, k) => m.known[k]?.[0];
const knownMeasured = (m, k) => (m.known[k] && (m.known[k][2] || m.known[k][3])) || null;
const isMeasured = (k) => data.molecules.some((m) => knownMeasured(m, k));

/* The columns: a heading, the value to sort by, and what a cell shows. */
const COLUMNS = [
  ["Structure", null, (m) => rowPicture(m)],
  ["Name", nameOf, (m, place) => element("button", { type: "button", class: "link", onclick: () => openMolecule(place) }, nameOf(m))],
  ...(data.measured && !data.several ? [["Measured", (m) => (m.measured || m.bound)?.[0], measuredWords]] : []),
  ...(data.several ? data.several.names.flatMap((name, k) => [
    ...(isMeasured(k) ? [[`Measured ${name}`, (m) => knownMeasured(m, k)?.[0], (m) => inWords(measuredOf(m.properties[k]))]] : []),
    [name, (m) => knownValue(m, k), (m) => propertyCell(m.properties[k])]])
    : [["Predicted", (m) => m.value, (m) => withRange(m.predictions[0][1], m.ranges[0])],
      ...data.molecules[0].predictions.slice(1, 4).map(([task], k) => [task, (m) => m.also[k], (m) => withRange(m.predictions[k + 1][1], m.ranges[k + 1])])]),
  ...(data.measured && !data.measured.classes.length ? [["Error", (m) => (m.measured ? Math.abs(m.value - m.measured[0]) : undefined), (m) => (m.measured ? signed(m.value - m.measured[0], 1) : "")]] : []),
  ...(isWished() ? [["Desirability", (m) => m.desirability ?? undefined, (m) => hundredths(m.desirability)]] : []),
  ["Trust", (m) => rank(m), (m) => badge(levelOf(m))],
  ["Training set", (m) => m.near, (m) => m.near ?? ""],
  ["Basket", null, (m, place) => keeper([place], true)],
];

const withRange = (text, range) => element("span", {}, text, element("small", {}, range || ""));
const propertyCell = (property) => (property ? element("span", { title: property[3] }, scored(property[0], property[10]), element("small", {}, property[1]), element("small", {}, WHERE[property[2]] || "")) : "");

function rowPicture(molecule) {
  const svg = picture({ picture: molecule.draw, relevance: averaged(molecule, molecule.r), bonds: molecule.bonds, limit: data.limit, molecule },
    { "aria-label": `Atoms of ${nameOf(molecule)} coloured by relevance` }, true);
  rowPictures.push(svg);
  return svg;
}

function drawRows() {
  for (const svg of rowPictures.splice(0)) forget(svg);
  const order = [...shown];
  if (rowOrder) {
    const valueOf = COLUMNS[rowOrder.column][1];
    order.sort((a, b) => compared(valueOf(data.molecules[a]), valueOf(data.molecules[b]), rowOrder.down) || a - b);
  }
  const heads = COLUMNS.map(([name, valueOf], column) => {
    const sorted = rowOrder?.column === column ? (rowOrder.down ? "descending" : "ascending") : false;
    return element("th", { scope: "col", "aria-sort": sorted }, valueOf ? element("button", { type: "button", class: "link", onclick: () => sortRows(column) },
      name, sorted ? (rowOrder.down ? " \u25be" : " \u25b4") : "") : name);
  });
  const rows = order.slice(0, rowsShown).map((place) => element("tr", {}, ...COLUMNS.map(([, , show]) => element("td", {}, show(data.molecules[place], place)))));
  const more = order.length > rowsShown ? [element("button", { type: "button", class: "plain", onclick: () => { rowsShown += ROWS_AT_ONCE; drawRows(); } },
    `Show ${number(Math.min(ROWS_AT_ONCE, order.length - rowsShown))} more of ${number(order.length)}`)] : [];
  byId("rows").replaceChildren(element("table", { class: "rows" }, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows)), ...more);
}

function sortRows(column) {
  rowOrder = { column, down: rowOrder?.column === column ? !rowOrder.down : typeof COLUMNS[column][1](data.molecules[shown[0]]) === "number" };
  drawRows();
  byId("rows").querySelectorAll("th")[column].querySelector("button").focus();
}

function showRows(asTable) {
  byId("rows").hidden = !asTable;
  grid.hidden = asTable;
  byId("as-table").setAttribute("aria-pressed", asTable);
  rowsShown = ROWS_AT_ONCE;
  arrange();
}

