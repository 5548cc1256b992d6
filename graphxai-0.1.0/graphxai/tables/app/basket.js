/* The basket of molecules, and the files that it becomes. */

function keep(molecule) {
  if (!state.basket.some((other) => other.smiles === molecule.smiles)) state.basket.push(molecule);
  drawBasket();
  remember();
}

function keepCurrent() {
  if (!current()) return;
  const changes = [];
  let node = current();
  for (; node.parent >= 0; node = state.nodes[node.parent]) changes.unshift(node.change);
  keep({ smiles: current().smiles, name: current().name || node.name || node.change, changes: changes.join(", then ") });
}

function drawBasket() {
  byId("count").textContent = state.basket.length ? `${state.basket.length}` : "is empty";
  byId("exports").hidden = !state.basket.length;
  byId("basket").replaceChildren(...state.basket.map((molecule, k) => element("li", {},
    element("span", { title: molecule.smiles }, [molecule.name, molecule.changes].filter(Boolean).join(": ") || "start", " ", element("span", { class: "smiles" }, molecule.smiles)),
    element("button", { onclick: () => add(molecule.smiles, molecule.changes || molecule.name, -1) }, "Show"),
    element("button", { "aria-label": "Remove", onclick: () => { state.basket.splice(k, 1); drawBasket(); remember(); } }, "✕"))));
}

function download(kind, button) {
  button.disabled = true;
  trying(async () => {
    const { text, type } = await ask("export", { ...choice(), kind, basket: state.basket, table: table.file }, "export");
    const anchor = element("a", { href: URL.createObjectURL(new Blob([text], { type })), download: `basket.${kind}` });
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(anchor.href), 10_000);
    say("");
  }).finally(() => { button.disabled = false; });
}

