/* The search for changes that the page suggests. */

async function suggest(event) {
  event?.preventDefault();
  if (!current()) return;
  state.wish = byId("wish").value;
  remember();
  byId("cancel").hidden = false;
  byId("suggestions").replaceChildren();
  byId("found").hidden = true;
  byId("progress").textContent = "Looking for changes …";
  const [number, parent] = [++searches, state.at];
  let summary = "Looking for changes";
  const done = await trying(async () => {
    const { smiles, locked } = current();
    const body = { ...choice(), smiles, locked, towards: `${state.task}: ${state.wish}`, wish: state.wish, sure: byId("sure").checked, table: table.file };
    for await (const step of host.steps("suggest", body, newest("suggest"))) {
      say("");
      summary = step.summary;
      drawSuggestions(step, parent);
    }
  });
  if (number !== searches) return; // another search runs by now
  byId("progress").textContent = done ? `${summary}.` : `${summary}. Ended before all were tried.`;
  byId("cancel").hidden = true;
}

function drawSuggestions(step, parent) {
  byId("progress").textContent = `${step.summary} (of at most ${step.most}) …`;
  byId("found").hidden = !step.found.length;
  byId("suggestions").replaceChildren(...step.found.map((change) => {
    if (change.properties) return jointSuggestion(change, parent);
    const facts = [`similarity ${change.similarity}`, change.near, change.accessibility && `accessibility ${change.accessibility} of 10`, ...change.alerts.map((name) => `alert: ${name}`), change.isomers && `worst of its isomers: ${change.isomers}`, change.measured];
    const delta = change.value - state.nodes[parent].value;
    return element("li", {}, mini(change), element("b", {}, change.name), element("p", {}, `${change.text} `, direction(delta), change.within && ` (${change.within})`, change.reached ? (change.sure ? " · sure" : "") : " not there yet"),
      element("p", { class: "soft" }, facts.filter(Boolean).join(" · ")),
      ...suggestionButtons(change, parent));
  }));
}

/* A change that was found for several goals, with what it does to every property. */
function jointSuggestion(change, parent) {
  const facts = [`similarity ${change.similarity}`, change.accessibility && `accessibility ${change.accessibility} of 10`, ...change.alerts.map((name) => `alert: ${name}`), change.measured];
  const effect = ([name, cell, before]) => element("p", { title: cell.near }, `${name} ${cell.text} `, changeOf(cell, before));
  return element("li", {}, mini(change), element("b", {}, change.name),
    element("p", { class: "joint" }, `desirability ${hundredths(change.desirability)}`, change.reached ? (change.sure ? " · all goals met, surely" : " · all goals met") : "", change.front ? "" : " · on the Pareto front"),
    ...change.properties.map(effect), element("p", { class: "soft" }, facts.filter(Boolean).join(" · ")), ...suggestionButtons(change, parent));
}

const suggestionButtons = (change, parent) => [
  element("button", { onclick: () => add(change.smiles, change.name, parent) }, "Try"), " ",
  element("button", { onclick: () => keep({ smiles: change.smiles, name: "", changes: change.name }) }, "To basket"),
];
