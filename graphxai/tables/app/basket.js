/* ---- basket ---- */

function keep(one) {
  if (!state.basket.some((other) => other.smiles === one.smiles)) state.basket.push(one);
  drawBasket();
  remember();
}

function keepCurrent() {
  if (!current()) return;
  const way = [];
  let node = current();
  for (; node.parent >= 0; node = state.nodes[node.parent]) way.unshift(node.change);
  keep({ smiles: current().smiles, name: node.change, changes: way.join(", then ") });
}

function drawBasket() {
  byId("count").textContent = state.basket.length ? `${state.basket.length}` : "is empty";
  byId("exports").hidden = !state.basket.length;
  byId("basket").replaceChildren(...state.basket.map((one, k) => element("li", {},
    element("span", { title: one.smiles }, [one.name, one.changes].filter(Boolean).join(": ") || "start", " ", element("span", { class: "smiles" }, one.smiles)),
    element("button", { onclick: () => add(one.smiles, one.changes || one.name, -1) }, "Show"),
    element("button", { "aria-label": "Remove", onclick: () => { state.basket.splice(k, 1); drawBasket(); remember(); } }, "✕"))));
}

function download(kind, button) {
  button.disabled = true;
  trying(async () => {
    const { text, type } = await ask("export", { ...choice(), kind, basket: state.basket }, "export");
    const anchor = element("a", { href: URL.createObjectURL(new Blob([text], { type })), download: `basket.${kind}` });
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(anchor.href), 10_000);
    say("");
  }).finally(() => { button.disabled = false; });
}

