/* The view: what it asks of a host, and what it does with the answers. Text is always set as text,
   never as markup. What comes before defines `root`, the document or shadow root that holds the view,
   and `host`: page.js for the page of a server, widget.js for a notebook.
     frame              the element that takes keys and dropped files
     ask(name, body, signal)    the answer of the library, as a promise
     steps(name, body, signal)  the answers of a search, as they come
     editor()           the editor of molecules, as a promise of its module
     begin(restore, say) shows what a link names, now and whenever another one comes, and says what happens
     remember(link)     keeps what is shown
     address(link)      what a colleague needs to see the same */

const byId = (id) => root.getElementById(id);
const state = {
  model: "", method: "lrp", task: "", label: "", wish: "", goal: "",
  nodes: [], // {parent, smiles, change, locked, name, text, value, card, key, like, overview, overviewKey}
  at: -1, other: -1, models: [], methods: [],
  basket: [], // {smiles, name, changes}
};
const MOST_NODES = 200;
const STEP = 32; // how many rows of a table are predicted together
const LEVELS = { good: "✓ no objection", caution: "! use with care", warning: "✕ do not rely", unknown: "? not checked", known: "= training compound" };
let about = null; // what the host offers for the model
let place = []; // the atom, or the two of a bond, that was chosen
let table = { rows: [], chosen: [], shown: 0, measured: {} }; // the one that is open, see table.js
let searches = 0; // how many have begun so far

const current = () => state.nodes[state.at];
const choice = () => ({ model: state.model, method: state.method, task: state.task, label: state.label });
const key = () => JSON.stringify(choice());

function say(text) {
  byId("notice").hidden = !text;
  byId("notice").textContent = text || "";
}

/* ---- requests ---- */

const running = {}; // requests by kind. A new request cancels the earlier one of its kind

function newest(kind) {
  running[kind]?.abort();
  return kind && (running[kind] = new AbortController()).signal;
}

const ask = (name, body, kind) => host.ask(name, body, newest(kind));

/* Run a function that makes requests, and say what goes wrong. */
async function trying(work) {
  try {
    await work();
    return true;
  } catch (error) {
    if (error.name !== "AbortError") say(error.message);
    return false;
  }
}

/* ---- links ---- */

function link() {
  const fields = new URLSearchParams();
  for (const name of ["model", "method", "task", "label", "wish", "goal"]) if (state[name]) fields.set(name, state[name]);
  for (const node of state.nodes) fields.append("n", JSON.stringify([node.parent, node.smiles, node.change, node.locked, ...(node.name ? [node.name] : [])]));
  if (state.nodes.length) fields.set("at", state.at);
  if (state.other >= 0) fields.set("with", state.other);
  for (const name of ["models", "methods"]) for (const value of state[name]) fields.append(name, value);
  for (const molecule of state.basket) fields.append("b", JSON.stringify([molecule.smiles, molecule.name, molecule.changes]));
  return String(fields);
}

const remember = () => host.remember(link());

/* The state that a link names, without what is not well formed. */
function recalled(hash) {
  const fields = new URLSearchParams(hash.replace(/^#/, ""));
  const lists = (name, fits) => fields.getAll(name).flatMap((text) => {
    try {
      const value = JSON.parse(text);
      return Array.isArray(value) && fits(value) ? [value] : [];
    } catch {
      return [];
    }
  });
  const text = (value) => typeof value === "string";
  const nodes = lists("n", ([parent, smiles, change, locked, name = ""]) =>
    Number.isInteger(parent) && text(smiles) && text(change) && Array.isArray(locked) && locked.every(Number.isInteger) && text(name),
  ).slice(0, MOST_NODES).map(([parent, smiles, change, locked, name = ""], k) => ({ parent: parent < k ? parent : -1, smiles, change, locked, name }));
  const index = (name) => {
    const value = Number(fields.get(name) ?? -1);
    return Number.isInteger(value) && value < nodes.length ? value : -1;
  };
  const basket = lists("b", (values) => values.length === 3 && values.every(text)).map(([smiles, name, changes]) => ({ smiles, name, changes }));
  const named = Object.fromEntries(["model", "method", "task", "label", "wish", "goal"].map((name) => [name, fields.get(name) || ""]));
  return { ...named, method: named.method || "lrp", nodes, at: nodes.length ? Math.max(0, index("at")) : -1, other: index("with"),
    models: fields.getAll("models"), methods: fields.getAll("methods"), basket };
}

async function restore(hash) {
  Object.assign(state, recalled(hash));
  const asked = state.model;
  if (!(await choose(asked)) && !(await choose(""))) return;
  byId("sides").replaceChildren();
  byId("goal").value = state.goal;
  byId("welcome").hidden = state.nodes.length > 0;
  drawBasket();
  await predictNodes();
  if (state.nodes.length) await go(state.at);
  else sketch();
  if (state.models.length + state.methods.length) byId("beside").open = true;
  if (asked && asked !== state.model) say(`This link was made with the model ${asked}, which is not offered here. The model shown is ${state.model}.`);
}

