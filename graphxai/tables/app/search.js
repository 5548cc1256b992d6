/* ---- suggestions ---- */

async function suggest(event) {
  event?.preventDefault();
  if (!current()) return;
  state.wish = byId("wish").value;
  remember();
  byId("cancel").hidden = false;
  byId("suggestions").replaceChildren();
  byId("progress").textContent = "Looking for changes …";
  const [number, parent] = [++searches, state.at];
  let said = "Looking for changes";
  const done = await trying(async () => {
    const { smiles, locked } = current();
    const body = { ...choice(), smiles, locked, towards: `${state.task}: ${state.wish}`, sure: byId("sure").checked, table: table.file };
    for await (const found of host.steps("suggest", body, newest("suggest"))) {
      say("");
      said = found.summary;
      drawSuggestions(found, parent);
    }
  });
  if (number !== searches) return; // another search runs by now
  byId("progress").textContent = done ? `${said}.` : `${said}. Ended before all were tried.`;
  byId("cancel").hidden = true;
}

function drawSuggestions(found, parent) {
  byId("progress").textContent = `${found.summary} (of at most ${found.most}) …`;
  byId("suggestions").replaceChildren(...found.found.map((one) => {
    const facts = [`similarity ${one.similarity}`, one.near, one.accessibility && `accessibility ${one.accessibility} of 10`, ...one.alerts.map((name) => `alert: ${name}`), one.measured];
    const delta = one.value - state.nodes[parent].value;
    return element("li", {}, mini(one), element("b", {}, one.name), element("p", {}, `${one.text} `, direction(delta), one.within && ` (${one.within})`, one.reached ? (one.sure ? " · sure" : "") : " not there yet"),
      element("p", { class: "soft" }, facts.filter(Boolean).join(" · ")),
      element("button", { onclick: () => add(one.smiles, one.name, parent) }, "Try"), " ",
      element("button", { onclick: () => keep({ smiles: one.smiles, name: "", changes: one.name }) }, "To basket"));
  }));
}

