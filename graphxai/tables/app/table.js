/* A table opened on the page: rows with structures, measured and predicted values, sorted and filtered. */

const LARGEST_FILE = 64_000_000; // in bytes
const TRUST_STEP = 8; // how many rows are explained together, so that an edit in between waits a moment at most
const ROWS_AT_ONCE = 100; // how many rows are drawn before "Show more"

/* The content of a file in base64, as JSON holds no bytes. */
const base64 = (file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
  reader.onerror = () => reject(new Error(`${file.name} cannot be read.`));
  reader.readAsDataURL(file);
});

async function open(file, column) {
  const { name } = file;
  if (file.size > LARGEST_FILE) return say(`${name} is larger than ${LARGEST_FILE / 1e6} MB: open a part of it, or use graphxai predict.`);
  await trying(async () => {
    say(`Reading ${name} ...`);
    const content = await ask("read", { name, content: file.size ? await base64(file) : "", column: column || "" }, "read");
    say("");
    const rows = content.rows.map(([title, smiles, problem], place) => ({ place, name: title, smiles, problem }));
    table = { rows, chosen: rows, shown: 0, order: null, matched: null, opened: file, measured: {}, file: { key: content.key, column: column || "" } };
    byId("table").hidden = false;
    putAway();
    byId("welcome").hidden = true;
    const unreadable = rows.filter((row) => row.problem).length;
    const counted = [`${rows.length.toLocaleString("en")} molecules`, unreadable && `${unreadable} not readable`,
      content.more && `${content.more.toLocaleString("en")} more not read`].filter(Boolean).join(", ");
    byId("table-name").textContent = `${name}: ${counted}`;
    byId("choice").textContent = content.choice;
    byId("column-label").hidden = !content.columns.length;
    byId("column").replaceChildren(element("option", { value: "" }, "choose"), ...content.columns.map((name) => element("option", { value: name }, name)));
    for (const id of ["row-search", "row-smarts", "row-low", "row-high", "row-trust"]) byId(id).value = "";
    byId("matched").textContent = "";
    byId("core").value = "";
    byId("series").hidden = true;
    byId("series").open = false;
    const thisTable = table;
    arrangeRows();
    if (!rows.length) return;
    const { measured } = await ask("measured", { table: table.file }, "measured");
    thisTable.measured = measured;
    if (thisTable === table) byId("series").hidden = !Object.keys(measured).length;
    if (thisTable === table) drawRows();
  });
}

/* ---- what a row says ---- */

const labelOfRow = (row) => row.name || row.smiles.slice(0, 80) || `row ${row.place + 1}`;
const isShown = ([, model, task]) => model === state.model && task === state.task;
const TRUST_ORDER = ["good", "known", "unknown", "caution", "warning"];
const trustOf = (row) => (row.trust?.key === key() ? row.trust.verdict : undefined); // undefined: not asked yet; null: no answer
/* The columns of values: a key, a heading, the value of a row to sort by, and what it has to wait for, if anything. */
function rowColumns() {
  const cellOf = (k) => (row) => row.overview?.cells[k]?.value;
  const measured = properties.filter(([name]) => table.measured[name]).map(([name]) =>
    [`measured ${name}`, `measured ${name}`, (row) => table.measured[name][row.place]?.[0] ?? undefined, ""]);
  const predicted = properties.map(([name], k) => [`predicted ${name}`, name, cellOf(k), "predictions"]);
  return [["name", "molecule", labelOfRow, ""], ...measured, ...predicted,
    ...(state.goal ? [["desirability", "desirability", (row) => row.overview?.desirability ?? undefined, "predictions"]] : []),
    ["trust", "trust", (row) => (trustOf(row) ? TRUST_ORDER.indexOf(trustOf(row)[0]) : undefined), "trust"]];
}

function rowCell(row, key) {
  if (key.startsWith("measured ")) return table.measured[key.slice(9)][row.place]?.[1] ?? "";
  if (key === "trust") {
    const [level, sentence] = trustOf(row) || [];
    return level ? element("span", { class: `badge ${level}`, title: sentence }, LEVELS[level]) : "";
  }
  if (!row.overview) return row.problem || (row.overview === null ? "not readable" : "");
  if (key === "desirability") return hundredths(row.overview.desirability);
  const cell = row.overview.cells[properties.findIndex(([name]) => `predicted ${name}` === key)];
  if (!cell) return "";
  return element("span", {}, scored(cell.text, cell.outcome), " ", element("span", { class: "soft block" }, cell.range), distanceBadge(cell));
}

/* What was measured of a molecule, if the open table has it. */
function measuredOf(smiles, name) {
  const values = table.measured?.[name];
  const row = values && table.rows.find((each) => each.smiles === smiles);
  return row ? values[row.place]?.[1] ?? "" : "";
}

/* ---- choose and sort ---- */

const SHOWN_PROPERTY = () => properties.findIndex(isShown);
const bound = (id, open) => (byId(id).value === "" ? open : Number(byId(id).value));

function isChosen(row) {
  const words = byId("row-search").value.trim();
  const [low, high] = [bound("row-low", -Infinity), bound("row-high", Infinity)];
  const value = row.overview?.cells[SHOWN_PROPERTY()]?.value;
  const level = byId("row-trust").value;
  return (!level || trustOf(row)?.[0] === level) && (!words || labelOfRow(row).toLowerCase().includes(words.toLowerCase()) || row.smiles.includes(words)) &&
    (!table.matched || table.matched.has(row.place)) && ((low === -Infinity && high === Infinity) || (value >= low && value <= high));
}

/* Choose and sort the rows anew. What needs predictions of all rows waits for them. */
async function arrangeRows() {
  const thisTable = table;
  const column = table.order && rowColumns().find(([key]) => key === table.order.key);
  const isBounded = byId("row-low").value !== "" || byId("row-high").value !== "";
  if ((column?.[3] === "predictions" || isBounded) && !(await predictAll())) return;
  if ((column?.[3] === "trust" || byId("row-trust").value) && !(await trustAll())) return;
  if (thisTable !== table) return;
  table.chosen = table.rows.filter(isChosen);
  if (column) table.chosen.sort((a, b) => compared(column[2](a), column[2](b), table.order.down) || a.place - b.place);
  table.shown = Math.min(ROWS_AT_ONCE, table.chosen.length);
  drawRows();
  predictRows();
}

function sortRows(key) {
  const down = table.order?.key === key ? !table.order.down : key !== "name";
  table.order = { key, down };
  arrangeRows();
}

function moreRows() {
  table.shown = Math.min(table.shown + ROWS_AT_ONCE, table.chosen.length);
  drawRows();
  predictRows();
}

/* The line of a row, which is made once and filled again, so that a click on it is never lost. */
function lineOf(row, keys) {
  row.button ||= element("button", { onclick: () => add(row.smiles, row.name || `row ${row.place + 1}`, -1) }, labelOfRow(row));
  row.line ||= element("tr", {}, element("td", { class: "structure-cell" }), element("td", {}, row.button));
  row.button.disabled = Boolean(row.problem); // a click on one that is not readable says why
  const [picture, , ...old] = row.line.children;
  if (row.overview?.draw && !picture.firstChild) picture.append(mini({ draw: row.overview.draw }));
  old.forEach((cell) => cell.remove());
  row.line.append(...keys.map((key) => element("td", {}, rowCell(row, key))));
  return row.line;
}

function drawRows() {
  const columns = rowColumns();
  byId("row-heads").replaceChildren(element("th", {}, "structure"), ...columns.map(([key, words]) => {
    const sorted = table.order?.key === key ? (table.order.down ? "descending" : "ascending") : false;
    return element("th", { scope: "col", "aria-sort": sorted }, element("button", { class: "plain", onclick: () => sortRows(key) }, words, sorted ? (table.order.down ? " ▾" : " ▴") : ""));
  }));
  const lines = table.chosen.slice(0, table.shown).map((row) => lineOf(row, columns.slice(1).map(([key]) => key)));
  const body = byId("rows");
  if (lines.length !== body.children.length || lines.some((line, k) => line !== body.children[k])) body.replaceChildren(...lines);
  byId("row-count").textContent = table.chosen.length === table.rows.length ? "" : `${table.chosen.length.toLocaleString("en")} of ${table.rows.length.toLocaleString("en")} rows`;
  byId("more").hidden = table.shown >= table.chosen.length;
}

/* ---- predictions and substructures ---- */

/* Predict some rows that are not predicted yet. Rows of an earlier goal are predicted again. */
async function predictThese(rows, drawn, kind) {
  const wanted = rows.filter((row) => !row.problem && row.overview !== null && (row.goal !== state.goal || (drawn && row.overview.draw === undefined)));
  const thisTable = table;
  for (let k = 0; k < wanted.length && thisTable === table; k += STEP) {
    const part = wanted.slice(k, k + STEP);
    const answer = await ask("overview", { smiles: part.map((row) => row.smiles), goal: state.goal, plain: !drawn }, kind);
    if (thisTable !== table) return;
    properties = answer.properties;
    part.forEach((row, i) => Object.assign(row, { overview: answer.molecules[i], goal: state.goal }));
    if (!drawn) byId("row-count").textContent = `Predicting ${Math.min(k + STEP, wanted.length).toLocaleString("en")} of ${wanted.length.toLocaleString("en")} ...`;
    else drawRows();
  }
}

const predictAll = () => trying(() => predictThese(table.rows, false, "all rows"));
/* Ask how far to trust the explanations of some rows by the model and method that are chosen. */
async function trustThese(rows, kind, words) {
  const wanted = rows.filter((row) => !row.problem && row.overview !== null && trustOf(row) === undefined);
  const thisTable = table;
  const asked = key();
  for (let k = 0; k < wanted.length && thisTable === table && asked === key(); k += TRUST_STEP) {
    const part = wanted.slice(k, k + TRUST_STEP);
    const verdicts = await ask("trust", { ...choice(), smiles: part.map((row) => row.smiles) }, kind);
    part.forEach((row, i) => { row.trust = { key: asked, verdict: verdicts[i] }; });
    if (thisTable !== table) return;
    if (words) byId("row-count").textContent = `Explaining ${Math.min(k + TRUST_STEP, wanted.length).toLocaleString("en")} of ${wanted.length.toLocaleString("en")} ...`;
    else drawRows();
  }
}

const trustAll = () => trying(() => trustThese(table.rows, "all trust", true));
const predictRows = () => trying(async () => {
  const rows = table.chosen.slice(0, table.shown);
  await predictThese(rows, true, "rows");
  await trustThese(rows, "trust", false);
});

/* Find the rows with a substructure, a part of the table in each request. */
async function matchRows() {
  const smarts = byId("row-smarts").value.trim();
  const thisTable = table;
  await trying(async () => {
    say("");
    const found = new Set();
    let slow = 0;
    for (let first = 0; smarts && first < thisTable.rows.length && thisTable === table;) {
      const answer = await ask("match", { table: table.file, smarts, first }, "match");
      answer.matches.forEach((place) => found.add(place));
      slow += answer.slow;
      first = answer.next;
      byId("matched").textContent = `Searched ${Math.min(first, thisTable.rows.length).toLocaleString("en")} ...`;
    }
    if (thisTable !== table) return;
    table.matched = smarts ? found : null;
    byId("matched").textContent = smarts ? `${found.size.toLocaleString("en")} with this substructure${slow ? `; ${slow} could not be searched in time` : ""}` : "";
    arrangeRows();
  });
}

byId("row-tools").addEventListener("submit", (event) => event.preventDefault());
byId("row-search").addEventListener("input", () => { clearTimeout(table.waiting); table.waiting = setTimeout(arrangeRows, 150); });
for (const id of ["row-low", "row-high", "row-trust"]) byId(id).addEventListener("change", arrangeRows);
byId("row-smarts").addEventListener("change", matchRows);

