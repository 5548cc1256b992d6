/* What changes did among measured compounds: tables of matched pairs and of R-groups. `around` says how the page
   calls a compound, name(place), shows it, show(place), draws a part, drawn(picture, words), and drops the pictures
   of an element that is drawn anew, leave(element). `compared` is the page's order of values. */

/* A table that a click on a heading sorts. Each column has a heading, the value to sort by or null, and its cell. */
function sortedTable(columns, rows, around) {
  const place = element("div", { class: "scroll" });
  let order = null;
  const draw = (focused) => {
    const sorted = order ? [...rows].sort((a, b) => compared(columns[order.column][1](a), columns[order.column][1](b), order.down)) : rows;
    const heads = columns.map(([words, valueOf], column) => {
      const chosen = order?.column === column;
      const button = () => element("button", { type: "button", class: "link plain", onclick: () => {
        order = { column, down: chosen ? !order.down : typeof valueOf(rows[0]) === "number" };
        draw(column);
      } }, words, chosen ? (order.down ? " \u25be" : " \u25b4") : "");
      return element("th", { scope: "col", "aria-sort": chosen ? (order.down ? "descending" : "ascending") : false }, valueOf ? button() : words);
    });
    around.leave(place);
    place.replaceChildren(element("table", { class: "sar" }, element("thead", {}, element("tr", {}, ...heads)),
      element("tbody", {}, ...sorted.map((row) => element("tr", {}, ...columns.map(([, , cell]) => element("td", {}, cell(row))))))));
    if (focused !== undefined) place.querySelectorAll("th")[focused].querySelector("button").focus();
  };
  draw();
  return place;
}

function structureActivity(sar, around) {
  const { properties, parts } = sar;
  const part = (smiles) => {
    const [name, picture] = parts[smiles] || ["", null];
    return element("span", { class: "cut", title: smiles }, picture ? around.drawn(picture, name) : "", name || "\u2013");
  };
  const change = (value, k) => (properties[k]?.[2] ? `${signed(100 * value, 100)} points` : signed(value, 1));
  const spread = (mean, k) => (!mean ? "" : `${change(mean[0], k)}${mean[1] === null ? "" : ` \u00b1 ${properties[k]?.[2] ? Math.round(100 * mean[1]) : mean[1].toFixed(2)}`}`);
  const compound = (place) => element("button", { type: "button", class: "link plain", onclick: () => around.show(place) }, around.name(place));

  const exchangeTable = ([name, { rows, count, compounds }]) => {
    if (!rows.length) return [];
    const k = properties.findIndex(([property]) => property === name);
    const columns = [
      ["From", (row) => parts[row[0]][0], (row) => part(row[0])],
      ["To", (row) => parts[row[1]][0], (row) => part(row[1])],
      ["On", (row) => row[2], (row) => (row[2] === row[2].toLowerCase() ? `aromatic ${row[2].toUpperCase()}` : row[2])],
      ["Pairs", (row) => row[3], (row) => String(row[3])],
      [`Measured ${name}`, (row) => row[4][0], (row) => spread(row[4], k)],
      ...properties.map(([property], p) => [`Predicted ${property}`, (row) => row[5][p]?.[0], (row) => spread(row[5][p], p)]),
      ["Compounds", null, (row) => element("span", {}, ...row[6].flatMap(([before, after, delta]) =>
        [element("span", { class: "pair" }, compound(before), " \u2192 ", compound(after), ` ${change(delta, k)}`), " "]))],
    ];
    const more = count > rows.length ? ` The ${rows.length} most frequent are shown.` : "";
    return [element("h3", {}, `Matched pairs: ${name}`),
      element("p", { class: "note soft" }, `${count.toLocaleString("en")} ${count === 1 ? "exchange of one part occurs" : "exchanges of one part occur"} at least twice among ${compounds.toLocaleString("en")} measured compounds.${more} Numbers are mean changes from the left part to the right one, with standard deviations over the pairs.`),
      sortedTable(columns, rows, around)];
  };

  const groupTable = ({ draw, smiles, groups, rows, compounds }, first) => {
    const columns = [
      ["Compound", (row) => around.name(row[0]), (row) => compound(row[0])],
      ...groups.map((name, g) => [name, (row) => parts[row[1][g]]?.[0] ?? "", (row) => part(row[1][g])]),
      ...sar.measured.map((name, m) => [`Measured ${name}`, (row) => row[2][m], (row) => (row[2][m] === null ? "" : String(row[2][m]))]),
      ...properties.map(([property], p) => [`Predicted ${property}`, (row) => row[3][p]?.[0], (row) => row[3][p]?.[1] ?? ""]),
    ];
    const box = element("details", { ontoggle: (event) => {
      if (event.target.open && !box.querySelector("table")) box.append(sortedTable(columns, rows, around));
    } }, element("summary", {}, `${rows.length.toLocaleString("en")} compounds${rows.length < compounds ? ` of ${compounds.toLocaleString("en")}` : ""} with this core `, element("span", { class: "smiles" }, smiles)),
    draw ? around.drawn(draw, `core ${smiles}`) : "");
    box.open = first;
    return box;
  };

  return [...sar.notes.map((words) => element("p", { class: "note soft" }, words)), ...Object.entries(sar.exchanges).flatMap(exchangeTable),
    ...(sar.cores.length ? [element("h3", {}, "R-groups")] : []),
    ...sar.cores.map((core, place) => groupTable(core, place === 0))];
}
