/* The search for changes that the page suggests. */

async function suggest(event) {
  event?.preventDefault();
  if (!current()) return;
  state.wish = byId("wish").value;
  remember();
  byId("cancel").hidden = false;
  byId("suggestions").replaceChildren();
  byId("progress").textContent = "Looking for changes …";
  const [number, parent] = [++searches, state.at];
  let summary = "Looking for changes";
  const done = await trying(async () => {
    const { smiles, locked } = current();
    const body = { ...choice(), smiles, locked, towards: `${state.task}: ${state.wish}`, sure: byId("sure").checked, table: table.file };
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
  byId("suggestions").replaceChildren(...step.found.map((change) => {
    const facts = [`similarity ${change.similarity}`, change.near, change.accessibility && `accessibility ${change.accessibility} of 10`, ...change.alerts.map((name) => `alert: ${name}`), change.isomers && `worst of its isomers: ${change.isomers}`, change.measured];
    const delta = change.value - state.nodes[parent].value;
    return element("li", {}, mini(change), element("b", {}, change.name), element("p", {}, `${change.text} `, direction(delta), change.within && ` (${change.within})`, change.reached ? (change.sure ? " · sure" : "") : " not there yet"),
      element("p", { class: "soft" }, facts.filter(Boolean).join(" · ")),
      element("button", { onclick: () => add(change.smiles, change.name, parent) }, "Try"), " ",
      element("button", { onclick: () => keep({ smiles: change.smiles, name: "", changes: change.name }) }, "To basket"));
  }));
}

