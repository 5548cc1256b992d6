/* The basket: chosen molecules and counterfactuals, their table as a CSV file. It is kept in the
   page's address, so that it comes back with a link or after a reload. */

const basket = new Map(); // key -> {place, change}, where change is the number of a counterfactual
const FORMULA = /^[=+\-@\t\r]/; // what a spreadsheet may read as a formula
const keyOf = (place, change) => [data.molecules[place].row, ...(change === undefined ? [] : [change])].join(".");

function keep(place, change, inBasket) {
  const key = keyOf(place, change);
  if (inBasket ?? !basket.has(key)) basket.set(key, { place, change });
  else basket.delete(key);
}

/* A button that puts a molecule, or one of its counterfactuals, into the basket and takes it out. */
function keeper([place, change], words) {
  const what = change === undefined ? nameOf(data.molecules[place]) : data.molecules[place].changes.found[change].name;
  return element("button", { type: "button", class: words ? "plain keep" : "keep", "data-key": keyOf(place, change),
    tabindex: words ? 0 : -1, "data-name": what, "aria-label": labelOf(what, basket.has(keyOf(place, change)), words),
    "aria-pressed": String(basket.has(keyOf(place, change))), onclick: (event) => {
      event.stopPropagation();
      keep(place, change);
      basketChanged();
    } }, keptWords(basket.has(keyOf(place, change)), words));
}
const wordsOf = (kept, words) => (words ? (kept ? "In the basket" : "Add to basket") : "Basket");
const keptWords = (kept, words) => `${kept ? "\u2713" : "+"} ${wordsOf(kept, words)}`;
const labelOf = (name, kept, words) => `${name}: ${wordsOf(kept, words)}`;

/* Say everywhere what is in the basket. */
function basketChanged() {
  for (const button of [...cards.flatMap((card) => card.lastChild), ...document.querySelectorAll("button.plain.keep")]) {
    const kept = basket.has(button.dataset.key);
    if (String(kept) === button.getAttribute("aria-pressed")) continue;
    button.setAttribute("aria-pressed", kept);
    const words = button.classList.contains("plain");
    button.textContent = keptWords(kept, words);
    button.setAttribute("aria-label", labelOf(button.dataset.name, kept, words));
  }
  byId("tab-basket").textContent = basket.size ? `Basket (${number(basket.size)})` : "Basket";
  byId("basket").classList.toggle("empty", !basket.size);
  byId("basket-about").textContent = basket.size
    ? `${counted(basket.size, "molecule")}. The basket is kept in the address of this page: a copy of the address, or a bookmark, brings it back.`
    : "The basket is empty. Click + Basket on a molecule, or press B while a molecule has the focus.";
  byId("exports").hidden = !basket.size;
  byId("chosen").replaceChildren(...[...basket.values()].map(entry));
  drawMapBasket();
  try {
    history.replaceState(null, "", `#${basket.size ? `basket=${[...basket.keys()].join(",")}` : ""}`);
  } catch {
    // a viewer of files may forbid it. Then the basket lasts as long as the page
  }
}

function entry({ place, change }) {
  const molecule = data.molecules[place];
  const counterfactual = change === undefined ? null : molecule.changes.found[change];
  return element("li", {},
    element("button", { type: "button", class: "link", onclick: () => openMolecule(place) },
      counterfactual ? `${nameOf(molecule)}: ${counterfactual.name}` : nameOf(molecule)),
    element("span", {}, counterfactual ? counterfactual.prediction : predicted(molecule, 0)), badge((counterfactual || molecule).trust.level),
    element("span", { class: "smiles" }, (counterfactual || molecule).smiles),
    element("button", { type: "button", class: "plain", "aria-label": `Remove ${counterfactual ? counterfactual.name : nameOf(molecule)}`, onclick: () => {
      keep(place, change, false);
      basketChanged();
    } }, "\u2715"));
}

/* ---- CSV ---- */

/* A row of the table, with its columns as keys. */
function record({ place, change }) {
  const m = data.molecules[place];
  const counterfactual = change === undefined ? null : m.changes.found[change];
  const named = (names, values) => Object.fromEntries(names.map((name, k) => [name, values[k] ?? ""]));
  return {
    name: m.name, row: m.row, smiles: (counterfactual || m).smiles, changes: counterfactual ? counterfactual.name : "",
    ...(counterfactual ? {} : named(data.inputs, m.input)),
    ...named(data.columns, counterfactual ? data.columns.map((name) => counterfactual.cells[name]) : m.cells),
    ...(data.measured && { [`measured ${data.measured.task}`]: counterfactual ? "" : measuredCell(m) }),
    trust: (counterfactual || m).trust.level, "why this trust": (counterfactual || m).trust.sentence, "training set": (counterfactual || m).near ?? "",
    "predicted change": counterfactual?.delta ?? "", "predicted change in words": counterfactual ? counterfactual.change : "", "similarity to the molecule": counterfactual ? counterfactual.similarity : "",
    "sum over atoms": counterfactual ? "" : m.sum,
  };
}

/* What was measured, as a number unless it is a class or a bound such as "> 10". */
const measuredCell = (m) => (m.bound ? `${m.bound[2] > 0 ? ">" : "<"}${m.bound[0]}` : data.measured.classes.length ? m.measured?.[1] ?? "" : m.measured?.[0] ?? "");

/* A cell as CSV. Text that a spreadsheet would read as a formula gets an apostrophe. */
function cell(value) {
  const plain = String(value).replaceAll("\u2212", "-");
  const isNumber = plain.trim() !== "" && plain.trim().split(/\s+/).every((part) => Number.isFinite(Number(part)));
  const [separator, decimal] = data.dialect;
  const text = FORMULA.test(plain) && !isNumber ? `'${plain}` : isNumber ? plain.replaceAll(".", decimal) : plain;
  return /["\n\r]/.test(text) || text.includes(separator) ? `"${text.replaceAll('"', '""')}"` : text;
}

function csv() {
  const rows = [...basket.values()].map(record);
  const columns = [...new Set(rows.flatMap(Object.keys))];
  const lines = [columns, ...rows.map((row) => columns.map((name) => row[name] ?? ""))];
  const [separator, , forExcel] = data.dialect;
  return (forExcel ? "\ufeff" : "") + lines.map((cells) => cells.map(cell).join(separator)).join("\n") + "\n";
}

function saveBasket() {
  const url = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
  element("a", { href: url, download: "basket.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/* ---- buttons, keys, address ---- */

function recallBasket() {
  const places = new Map(data.molecules.map(({ row }, place) => [String(row), place]));
  basket.clear();
  for (const key of (location.hash.match(/^#basket=([\d.,]+)$/)?.[1] ?? "").split(",")) {
    const [row, change] = key.split(".");
    const place = places.get(row);
    const fits = change === undefined || data.molecules[place]?.changes?.found[change];
    if (place !== undefined && fits) keep(place, change === undefined ? undefined : Number(change), true);
  }
}

function prepareBasket() {
  byId("csv").addEventListener("click", saveBasket);
  byId("empty").addEventListener("click", () => {
    basket.clear();
    basketChanged();
    byId("tab-basket").focus();
  });
  byId("all").addEventListener("click", () => {
    for (const place of shown) keep(place, undefined, true);
    basketChanged();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key.toLowerCase() !== "b" || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select")) return;
    const card = event.target.closest(".card");
    const place = dialog.open ? opened : event.target.id === "plot" ? mapAt : card ? Number(card.dataset.place) : -1;
    if (place < 0) return;
    keep(place);
    basketChanged();
  });
  window.addEventListener("hashchange", () => {
    recallBasket();
    basketChanged();
  });
  recallBasket();
  basketChanged();
}
