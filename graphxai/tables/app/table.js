/* A table opened on the page, whose molecules are predicted. */

async function open(name, text, column) {
  if (text.length > 3_500_000) return say(`${name} is larger than 3.5 MB: open a part of it, or use graphxai report.`);
  await trying(async () => {
    const content = await ask("read", { name, text, column: column || "" }, "read");
    say("");
    table = { rows: content.rows, shown: 0, file: { name, text, column: column || "" } };
    byId("table").hidden = false;
    byId("table-name").textContent = `${name}: ${content.rows.length} molecules${content.more ? `, ${content.more} more not read` : ""}`;
    byId("column-label").hidden = !content.columns.length;
    byId("column").replaceChildren(element("option", { value: "" }, "choose"), ...content.columns.map((name) => element("option", { value: name }, name)));
    byId("rows").replaceChildren();
    moreRows();
  });
}

function moreRows() {
  const first = table.shown;
  const part = table.rows.slice(first, first + 100);
  table.shown += part.length;
  byId("rows").append(...part.map(([name, smiles], k) => element("tr", {},
    element("td", {}, element("button", { onclick: () => add(smiles, name || `row ${first + k + 1}`, -1) }, name || smiles.slice(0, 80) || "empty")),
    element("td", { class: "number" }))));
  byId("more").hidden = table.shown >= table.rows.length;
  predictRows(first);
}

async function predictRows(first) {
  const thisTable = table;
  await trying(async () => {
    for (let k = first; k < thisTable.shown && thisTable === table; k += STEP) {
      const part = thisTable.rows.slice(k, Math.min(k + STEP, thisTable.shown));
      const predictions = await ask("predict", { ...choice(), smiles: part.map(([, smiles]) => smiles) }, "rows");
      if (thisTable !== table) return;
      predictions.forEach((prediction, i) => {
        byId("rows").children[k + i].lastChild.textContent = prediction ? prediction.text : "not readable";
        byId("rows").children[k + i].querySelector("button").disabled = !prediction;
      });
    }
  });
}

