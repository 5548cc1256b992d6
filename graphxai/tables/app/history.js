/* The history of molecules, contrasts of two, and models and methods side by side. */

/* How desirable a molecule of the history is, if a goal was named and it was shown since. */
const wished = (node) => (state.goal && node.overviewKey === overviewKey() && node.overview.desirability !== null
  ? ` · desirability ${hundredths(node.overview.desirability)}` : "");

/* What a molecule of the history is called: the name that it was given, or the change that led to it. */
const labelOf = (node) => node.name || node.change || "start";

function drawTree() {
  const branch = (parent) => state.nodes.flatMap((node, i) => {
    if (node.parent !== parent) return [];
    const before = state.nodes[parent];
    const delta = before && node.text && before.text ? direction(node.value - before.value) : "";
    const button = element("button", { onclick: () => go(i), "aria-current": i === state.at, title: node.smiles },
      labelOf(node), element("span", { class: "soft" }, `${node.text || ""} `, delta, wished(node)));
    const other = i === state.at ? "" : element("button", {
      "aria-pressed": String(i === state.other), "aria-label": `Contrast with ${labelOf(node)}`, title: "Contrast with the molecule shown",
      onclick: () => { state.other = state.other === i ? -1 : i; drawTree(); drawContrast(); remember(); },
    }, "⇄");
    return [element("li", {}, element("div", { class: "node" }, button, other), element("ul", {}, ...branch(i)))];
  });
  byId("tree").replaceChildren(...branch(-1));
}

function drawContrast() {
  byId("contrast").hidden = true;
  running.contrast?.abort();
  const other = state.nodes[state.other];
  if (!other || state.other === state.at) return;
  trying(async () => {
    const contrast = await ask("contrast", { ...choice(), a: current().smiles, b: other.smiles }, "contrast");
    byId("contrasted").src = contrast.picture;
    byId("contrasted").alt = contrast.headline;
    byId("difference").textContent = `a: shown; b: ${labelOf(other)}. ${contrast.caption}`;
    byId("contrast").hidden = false;
  });
}

/* ---- side by side ---- */

const mini = (card) => {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "molecule");
  drawMolecule(svg, card.draw, card.shown || null, card.limit, card.shown && armsFor(card), card.shown && card.bonds, card.pale);
  return svg;
};

async function drawSides() {
  if (!byId("beside").open || !current()) return;
  if (!byId("sides").firstChild) {
    const boxes = (name, pairs) => element("fieldset", {}, element("legend", {}, name), ...pairs.map(([value, text]) =>
      element("label", {}, element("input", {
        type: "checkbox", checked: state[name].includes(value),
        onchange: (event) => {
          state[name] = event.target.checked ? [...state[name], value] : state[name].filter((other) => other !== value);
          drawSides();
          remember();
        },
      }), text)));
    byId("sides").append(boxes("models", about.models.map((name) => [name, name])), boxes("methods", Object.entries(about.methods)));
  }
  const models = state.models.length ? state.models : [state.model];
  const methods = state.methods.length ? state.methods : [state.method];
  const list = byId("panels");
  list.replaceChildren();
  const node = current();
  const pairs = models.flatMap((model) => methods.map((method) => [model, method])).slice(0, 24);
  for (const [model, method] of pairs) {
    const done = await trying(async () => {
      const [task, label] = targetIn(await aboutModel(model), [state.task, state.label]);
      const like = likeOf(node, node.card.draw.x.map((_, i) => i));
      let card;
      try {
        card = await ask("card", { model, method, task, label, smiles: node.smiles, like }, "sides");
      } catch (error) {
        if (error.name === "AbortError") throw error;
        list.append(element("li", {}, element("b", {}, `${model} · ${about.methods[method] || method}`), element("p", {}, error.message)));
        return;
      }
      list.append(element("li", {}, mini(card), element("b", {}, `${model} · ${card.method}`), element("p", {}, `${task}: ${card.now.text} ${card.now.range}`),
        element("p", { class: "soft" }, `${card.legend[0]} to ${card.legend[1]}: ±${signed(card.limit, card.limit).slice(1)}`)));
    });
    if (!done) return; // another molecule is shown by now
  }
}

