/* A table opened on the page, with predictions for its molecules. */

const LARGEST_FILE = 64_000_000; // in bytes

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
    table = { rows: content.rows, shown: 0, opened: file, file: { key: content.key, column: column || "" } };
    byId("table").hidden = false;
    const unreadable = content.rows.filter(([, , problem]) => problem).length;
    const counted = [`${content.rows.length.toLocaleString("en")} molecules`, unreadable && `${unreadable} not readable`,
      content.more && `${content.more.toLocaleString("en")} more not read`].filter(Boolean).join(", ");
    byId("table-name").textContent = `${name}: ${counted}`;
    byId("choice").textContent = content.choice;
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
  byId("rows").append(...part.map(([name, smiles, problem], k) => element("tr", {},
    element("td", {}, element("button", { onclick: () => add(smiles, name || `row ${first + k + 1}`, -1) }, name || smiles.slice(0, 80) || `row ${first + k + 1}`)),
    element("td", { class: problem ? "" : "number" }, problem))));
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
        byId("rows").children[k + i].lastChild.textContent = prediction ? prediction.text : part[i][2] || "not readable";
        byId("rows").children[k + i].querySelector("button").disabled = !prediction;
      });
    }
  });
}

