/* All properties that the models predict, and how desirable they are for the goal. */

let properties = []; // [name, model, task, class of the goal] of each, from the last answer

const overviewKey = () => state.goal;

/* A change of a value, or of a probability in points. Empty if it is too small to be seen. It has a
   colour if a goal says whether that is better or worse. */
function changeOf(cell, before) {
  if (!cell || !before || cell.class !== before.class) return "";
  const delta = cell.value - before.value;
  const text = cell.class ? `${signed(100 * delta, 100)} points for ${cell.class}` : signed(delta, 1);
  if (!/[1-9]/.test(text.split(" ")[0])) return "";
  const better = (cell.desirability ?? 0) - (before.desirability ?? 0);
  return element("b", { class: better > 0 ? "up" : better < 0 ? "down" : "" }, `${delta > 0 ? "▲" : "▼"} ${text}`);
}

/* The overviews of molecules by SMILES, in as many requests as it takes. */
async function overviewsOf(smiles, kind) {
  const found = new Map();
  for (let k = 0; k < smiles.length; k += STEP) {
    const part = smiles.slice(k, k + STEP);
    const answer = await ask("overview", { smiles: part, goal: state.goal }, kind);
    properties = answer.properties;
    part.forEach((text, i) => found.set(text, answer.molecules[i]));
    byId("goals").replaceChildren(...answer.goals.map((line) => element("li", {}, line)));
  }
  return found;
}

async function drawProperties() {
  const node = current();
  const box = byId("outlook");
  if (!node) { box.hidden = true; return; }
  const parent = state.nodes[node.parent];
  const wanted = [node, parent].filter((each) => each && each.overviewKey !== overviewKey());
  const done = await trying(async () => {
    const found = await overviewsOf([...new Set(wanted.map((each) => each.smiles))], "overview");
    for (const each of wanted) if (found.get(each.smiles)) Object.assign(each, { overview: found.get(each.smiles), overviewKey: overviewKey() });
  });
  if (!done || node !== current()) return;
  const isMeasured = properties.some(([name]) => measuredOf(node.smiles, name));
  box.hidden = !node.overview || (properties.length < 2 && !state.goal && !isMeasured);
  if (box.hidden) return;
  byId("desirability").textContent = state.goal ? `desirability ${hundredths(node.overview.desirability)}` : "";
  byId("wished").hidden = !state.goal;
  byId("properties").replaceChildren(...properties.map((property, k) => propertyRow(property, node.overview.cells[k], parent?.overview?.cells[k])));
  drawTree();
}

/* Where a molecule is, in the colour of how well this model predicted unseen molecules there. */
const distanceBadge = (cell) => element("span", { class: `badge ${cell.level || "unknown"}`, title: cell.near }, WHERE[cell.word] || WHERE.unknown);

function propertyRow([name, model, task, label], cell, before) {
  const shown = model === state.model && task === state.task;
  const see = element("button", { class: "plain", "aria-current": shown, title: `Show what ${model} sees`, onclick: () => explainBy(model, task, label) }, name);
  if (!cell) return element("tr", {}, element("th", { scope: "row" }, see), element("td", { colspan: 3 }, "not readable for this model"));
  const measured = measuredOf(current().smiles, name);
  const wish = cell.goal === undefined ? "" : element("span", { class: "wish", title: cell.goal },
    element("meter", { min: 0, max: 1, value: cell.desirability, "aria-label": `desirability for ${cell.goal}` }), ` ${hundredths(cell.desirability)}`);
  return element("tr", {}, element("th", { scope: "row" }, see),
    element("td", {}, element("b", {}, scored(cell.text, cell.outcome)), " ", changeOf(cell, before), element("span", { class: "soft block" }, [cell.range, measured && `measured ${measured}`].filter(Boolean).join("; "))),
    element("td", {}, distanceBadge(cell)),
    element("td", { class: "number" }, wish));
}

/* Explain the molecule by another model or for another task. */
async function explainBy(model, task, label) {
  const before = [state.task, state.label];
  [state.task, state.label] = [task, label];
  if (await choose(model)) chosen();
  else [state.task, state.label] = before;
}

/* What a change does to the other properties, and to the desirability of all, as short lines. */
function effects(overview, before) {
  const lines = overview.cells.flatMap((cell, k) => {
    const [name, model, task] = properties[k];
    if (!cell || (model === state.model && task === state.task)) return [];
    return [element("span", {}, `${name} ${cell.text} `, changeOf(cell, before?.cells[k]))];
  });
  if (overview.desirability !== null) {
    const delta = overview.desirability - (before?.desirability ?? overview.desirability);
    const text = signed(delta, 1);
    lines.unshift(element("span", { class: "joint" }, `desirability ${hundredths(overview.desirability)} `,
      /[1-9]/.test(text) ? element("b", { class: delta > 0 ? "up" : "down" }, `${delta > 0 ? "▲" : "▼"} ${text}`) : ""));
  }
  return lines;
}

/* Add to each button of a change its picture, and what it does to all properties. */
async function fillOptions(options, buttons, card) {
  const before = current();
  await trying(async () => {
    const found = await overviewsOf(options.map((option) => option.smiles), "effects");
    if (before !== current() || card !== before.card) return;
    options.forEach((option, k) => {
      const overview = found.get(option.smiles);
      if (!overview) return;
      buttons[k].prepend(mini({ draw: overview.draw }));
      buttons[k].append(...effects(overview, before.overview));
    });
  });
}

byId("goal").addEventListener("change", (event) => {
  state.goal = event.target.value.trim();
  state.wish = "";
  say("");
  remember();
  if (table.rows.length) arrangeRows();
  if (!current()) return;
  byId("wish").value = wishFor(current().card);
  drawProperties().then(() => place.length && pick(place));
});
