/* The choice of a model, a target and a method. */

const offers = {}; // for each model, a promise of what the host offers

async function aboutModel(name) {
  const offer = offers[name] ||= ask("about", { model: name });
  offer.then(({ model }) => { offers[model] ||= offer; }, () => { delete offers[name]; });
  return offer;
}

/* The targets of a model, as [task, class or ""]. */
const targetsOf = (offer) => offer.tasks.flatMap(([task, classes]) =>
  classes.length ? [...classes.map((name) => [task, name]), ...(classes.length > 2 ? [[task, ""]] : [])] : [[task, ""]]);

function targetIn(offer, [task, label]) {
  const same = targetsOf(offer).find((target) => target[0] === task && target[1] === label);
  const [first, classes] = offer.tasks[0];
  return same || [first, classes.length === 2 ? classes[1] : ""];
}

async function choose(model) {
  try {
    about = await aboutModel(model);
  } catch (error) {
    say(error.message);
    return false;
  }
  state.model = about.model;
  if (!about.methods[state.method]) state.method = "lrp";
  [state.task, state.label] = targetIn(about, [state.task, state.label]);
  const fill = (id, pairs, chosen) => {
    byId(id).replaceChildren(...pairs.map(([value, text]) => element("option", { value }, text)));
    byId(id).value = chosen;
  };
  fill("model", about.models.map((name) => [name, name]), state.model);
  fill("method", Object.entries(about.methods), state.method);
  fill("target", targetsOf(about).map((target) => [JSON.stringify(target), target[1] ? target.join(": ") : target[0]]), JSON.stringify([state.task, state.label]));
  return true;
}

/* Predict molecules of the history, by default all again, for another model or target. */
async function predictNodes(nodes = state.nodes) {
  await trying(async () => {
    for (let k = 0; k < nodes.length; k += STEP) {
      const part = nodes.slice(k, k + STEP);
      const predictions = await ask("predict", { ...choice(), smiles: part.map((node) => node.smiles) });
      part.forEach((node, i) => Object.assign(node, predictions[i] || { text: "not readable", value: 0 }));
    }
  });
}

async function chosen() {
  const again = state.at;
  say("");
  byId("suggestions").replaceChildren();
  byId("found").hidden = true;
  byId("progress").textContent = "";
  running.suggest?.abort();
  state.wish = "";
  await predictNodes();
  if (again >= 0) await go(again);
  else remember();
  if (table.rows.length) arrangeRows();
}

const unit = () => about.tasks.find(([task]) => task === state.task)[2];
const isClass = () => about.tasks.find(([task]) => task === state.task)[1].length > 0;
const difference = (delta) => isClass() ? `${signed(100 * delta, 100)} points` : `${signed(delta, 1)} ${unit()}`.trim();
const direction = (delta) => element("b", { class: delta > 0 ? "up" : delta < 0 ? "down" : "" }, `${delta > 0 ? "▲" : delta < 0 ? "▼" : ""} ${difference(delta)}`);

