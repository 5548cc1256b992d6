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
  const spread = (mean, k, count) => (!mean ? "" : `${change(mean[0], k)}${mean[1] === null || count < 3 ? "" : ` \u00b1 ${properties[k]?.[2] ? Math.round(100 * mean[1]) : mean[1].toFixed(2)}`}`);
  const compound = (place) => element("button", { type: "button", class: "link plain", onclick: () => around.show(place) }, around.name(place));

  const exchangeTable = ([name, { rows, count, compounds, bounded }]) => {
    if (!rows.length) return [];
    const k = properties.findIndex(([property]) => property === name);
    const columns = [
      ["From", (row) => parts[row[0]][0], (row) => part(row[0])],
      ["To", (row) => parts[row[1]][0], (row) => part(row[1])],
      ["On", (row) => row[2], (row) => (row[2] === row[2].toLowerCase() ? `aromatic ${row[2].toUpperCase()}` : row[2])],
      ["Pairs", (row) => row[3], (row) => String(row[3])],
      [`Measured ${name}`, (row) => row[4][0], (row) => spread(row[4], k, row[3])],
      ...properties.map(([property], p) => [`Predicted ${property}`, (row) => row[5][p]?.[0], (row) => spread(row[5][p], p, row[3])]),
      ["Compounds", null, (row) => element("span", {}, ...row[6].flatMap(([before, after, delta]) =>
        [element("span", { class: "pair" }, compound(before), " \u2192 ", compound(after), ` ${change(delta, k)}`), " "]))],
    ];
    const more = count > rows.length ? ` The ${rows.length} most frequent are shown.` : "";
    return [element("h3", {}, `Matched pairs: ${name}`),
      element("p", { class: "note soft" }, `${count.toLocaleString("en")} ${count === 1 ? "exchange of one part occurs" : "exchanges of one part occur"} at least twice among ${compounds.toLocaleString("en")} measured compounds.${bounded ? ` Those of which only a bound is known (${bounded.toLocaleString("en")}) are not compared.` : ""}${more} Numbers are mean changes from the left part to the right one, with standard deviations over the pairs where there are at least three.`),
      sortedTable(columns, rows, around)];
  };

  /* What each R-group adds (Free-Wilson), and two of them against each other with the empty cells filled. */
  const fitted = ({ name, q2, compounds, parts: contributions, groups, matrix }) => {
    const interval = (low, high) => `90 %: ${low} to ${high}`;
    const columns = [
      ["Group", (row) => row[0], (row) => row[0]], ["Part", (row) => parts[row[1]]?.[0], (row) => part(row[1])],
      ["Compounds", (row) => row[2], (row) => String(row[2])],
      [`Adds to ${name}`, (row) => row[3], (row) => `${signed(row[3], 1)} (${signed(row[4], 1)} to ${signed(row[5], 1)})`]];
    return element("details", {}, element("summary", {}, `Free-Wilson: what each R-group adds to ${name}`),
      element("p", { class: "note soft" }, `The core's value and a contribution of each R-group, fitted to ${compounds.toLocaleString("en")} compounds. Left out in turn, they are predicted with R\u00b2 ${q2.toFixed(2)}${q2 < 0.3 ? ": hardly better than the mean" : ""}.`),
      sortedTable(columns, contributions, around),
      matrix.length ? element("div", { class: "scroll" }, element("table", { class: "sar matrix" },
        element("caption", {}, `${name} of ${groups[0]} (rows) and ${groups[1]}: measured, or in italics as fitted`),
        element("thead", {}, element("tr", {}, element("th", {}), ...matrix[0][1].map(([other]) => element("th", { scope: "col" }, part(other))))),
        element("tbody", {}, ...matrix.map(([own, cells, empty]) => element("tr", {}, element("th", { scope: "row" }, part(own)),
          ...cells.map(([, value, low, high], k) => element("td", { class: "number", title: interval(low, high) }, empty[k] ? element("i", {}, String(value)) : String(value)))))))) : "");
  };

  const groupTable = ({ draw, smiles, groups, rows, compounds, fits }, first) => {
    const columns = [
      ["Compound", (row) => around.name(row[0]), (row) => compound(row[0])],
      ...groups.map((name, g) => [name, (row) => parts[row[1][g]]?.[0] ?? "", (row) => part(row[1][g])]),
      ...sar.measured.map((name, m) => [`Measured ${name}`, (row) => (typeof row[2][m] === "string" ? Number(row[2][m].slice(1)) : row[2][m]), (row) => String(row[2][m] ?? "")]),
      ...properties.map(([property], p) => [`Predicted ${property}`, (row) => row[3][p]?.[0], (row) => row[3][p]?.[1] ?? ""]),
    ];
    const table = element("div", {}); // it is filled once it is seen
    const box = element("details", { ontoggle: () => {
      if (box.open && !table.firstChild) table.append(sortedTable(columns, rows, around));
    } }, element("summary", {}, `${rows.length.toLocaleString("en")} compounds${rows.length < compounds ? ` of ${compounds.toLocaleString("en")}` : ""} with this core `, element("span", { class: "smiles" }, smiles)),
    draw ? around.drawn(draw, `core ${smiles}`) : "", table, ...fits.map(fitted));
    box.open = first;
    return box;
  };

  return [...sar.notes.map((words) => element("p", { class: "note soft" }, words)), ...Object.entries(sar.exchanges).flatMap(exchangeTable),
    ...(sar.cores.length ? [element("h3", {}, "R-groups")] : []),
    ...sar.cores.map((core, place) => groupTable(core, place === 0))];
}
