/* The view: what is asked of a host, and what is done with the answers. Text is always set as text,
   never as markup. What comes before defines `root`, the document or shadow root that holds the view,
   and `host`: page.js for the page of a server, widget.js for a notebook.
     frame              the element that takes keys and dropped files
     ask(name, body, signal)    the answer of the library, as a promise
     steps(name, body, signal)  the answers of a search, as they come
     begin(restore)     shows what a link names, now and whenever another one comes
     remember(link)     keeps what is shown
     address(link)      what a colleague needs to see the same */

const byId = (id) => root.getElementById(id);
const state = {
  model: "", method: "lrp", task: "", label: "", wish: "",
  nodes: [], // {parent, smiles, change, locked, text, value, card, key, like}
  at: -1, other: -1, models: [], methods: [],
  basket: [], // {smiles, name, changes}
};
const MOST_NODES = 200;
const STEP = 32; // rows of a table predicted together
const LEVELS = { good: "✓ no objection", caution: "! use with care", warning: "✕ do not rely", unknown: "? not checked", known: "= training compound" };
let about = null; // what the host offers for the model
let place = []; // the atom, or the two of a bond, that was chosen
let table = { rows: [], shown: 0 };
let searches = 0; // begun so far

const current = () => state.nodes[state.at];
const choice = () => ({ model: state.model, method: state.method, task: state.task, label: state.label });
const key = () => JSON.stringify(choice());

function element(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const name in attributes) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), attributes[name]);
    else if (attributes[name] !== false) node.setAttribute(name, attributes[name] === true ? "" : attributes[name]);
  }
  node.append(...children);
  return node;
}

function say(text) {
  byId("notice").hidden = !text;
  byId("notice").textContent = text || "";
}

/* ---- requests ---- */

const running = {}; // by kind of request: a newer one of a kind cancels the older

function newest(kind) {
  running[kind]?.abort();
  return kind && (running[kind] = new AbortController()).signal;
}

const ask = (name, body, kind) => host.ask(name, body, newest(kind));

/* Run something that asks, and say what goes wrong. */
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
  const found = new URLSearchParams();
  for (const name of ["model", "method", "task", "label", "wish"]) if (state[name]) found.set(name, state[name]);
  for (const node of state.nodes) found.append("n", JSON.stringify([node.parent, node.smiles, node.change, node.locked]));
  if (state.nodes.length) found.set("at", state.at);
  if (state.other >= 0) found.set("with", state.other);
  for (const name of ["models", "methods"]) for (const one of state[name]) found.append(name, one);
  for (const one of state.basket) found.append("b", JSON.stringify([one.smiles, one.name, one.changes]));
  return String(found);
}

const remember = () => host.remember(link());

/* The state that a link names; what is not well formed is left out. */
function recalled(hash) {
  const found = new URLSearchParams(hash.replace(/^#/, ""));
  const lists = (name, fits) => found.getAll(name).flatMap((text) => {
    try {
      const value = JSON.parse(text);
      return Array.isArray(value) && fits(value) ? [value] : [];
    } catch {
      return [];
    }
  });
  const text = (value) => typeof value === "string";
  const nodes = lists("n", ([parent, smiles, change, locked]) =>
    Number.isInteger(parent) && text(smiles) && text(change) && Array.isArray(locked) && locked.every(Number.isInteger),
  ).slice(0, MOST_NODES).map(([parent, smiles, change, locked], k) => ({ parent: parent < k ? parent : -1, smiles, change, locked }));
  const index = (name) => {
    const value = Number(found.get(name) ?? -1);
    return Number.isInteger(value) && value < nodes.length ? value : -1;
  };
  const basket = lists("b", (values) => values.length === 3 && values.every(text)).map(([smiles, name, changes]) => ({ smiles, name, changes }));
  const named = Object.fromEntries(["model", "method", "task", "label", "wish"].map((name) => [name, found.get(name) || ""]));
  return { ...named, method: named.method || "lrp", nodes, at: nodes.length ? Math.max(0, index("at")) : -1, other: index("with"),
    models: found.getAll("models"), methods: found.getAll("methods"), basket };
}

async function restore(hash) {
  Object.assign(state, recalled(hash));
  const wanted = state.model;
  if (!(await choose(wanted)) && !(await choose(""))) return;
  byId("sides").replaceChildren();
  drawBasket();
  await predictNodes();
  if (state.nodes.length) await go(state.at);
  if (state.models.length + state.methods.length) byId("beside").open = true;
  if (wanted && wanted !== state.model) say(`This link was made with the model ${wanted}, which is not offered here; this is ${state.model}.`);
}

/* ---- model, target, method ---- */

const known = {}; // by model: what the host offers, as a promise

async function aboutModel(name) {
  const found = known[name] ||= ask("about", { model: name });
  found.then(({ model }) => { known[model] ||= found; }, () => { delete known[name]; });
  return found;
}

/* The targets of a model, as [task, class or ""]. */
const targetsOf = (found) => found.tasks.flatMap(([task, classes]) =>
  classes.length ? [...classes.map((name) => [task, name]), ...(classes.length > 2 ? [[task, ""]] : [])] : [[task, ""]]);

function targetIn(found, [task, label]) {
  const same = targetsOf(found).find((one) => one[0] === task && one[1] === label);
  const [first, classes] = found.tasks[0];
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
  fill("target", targetsOf(about).map((one) => [JSON.stringify(one), one[1] ? one.join(": ") : one[0]]), JSON.stringify([state.task, state.label]));
  return true;
}

/* Predict all molecules of the history again, for another model or target. */
async function predictNodes() {
  await trying(async () => {
    for (let k = 0; k < state.nodes.length; k += STEP) {
      const part = state.nodes.slice(k, k + STEP);
      const found = await ask("predict", { ...choice(), smiles: part.map((node) => node.smiles) });
      part.forEach((node, i) => Object.assign(node, found[i] || { text: "not readable", value: 0 }));
    }
  });
}

async function chosen() {
  const again = state.at;
  say("");
  byId("suggestions").replaceChildren();
  byId("progress").textContent = "";
  running.suggest?.abort();
  state.wish = "";
  await predictNodes();
  if (again >= 0) await go(again);
  else remember();
  predictRows(0);
}

const unit = () => about.tasks.find(([task]) => task === state.task)[2];
const isClass = () => about.tasks.find(([task]) => task === state.task)[1].length > 0;
const difference = (delta) => isClass() ? `${signed(100 * delta, 100)} points` : `${signed(delta, 1)} ${unit()}`.trim();
const direction = (delta) => element("b", { class: delta > 0 ? "up" : delta < 0 ? "down" : "" }, `${delta > 0 ? "▲" : delta < 0 ? "▼" : ""} ${difference(delta)}`);

/* ---- the molecule shown ---- */

/* How a molecule was drawn, so that one made of it is drawn alike. */
const likeOf = (node, origin) => ({ smiles: node.smiles, x: node.card?.draw.x, y: node.card?.draw.y, origin });

function add(smiles, change, parent, origin) {
  const known = state.nodes.findIndex((node) => node.parent === parent && node.smiles === smiles);
  if (known >= 0) return go(known);
  if (state.nodes.length >= MOST_NODES) return say(`The history holds ${MOST_NODES} molecules; open a new page for more.`);
  const before = state.nodes[parent];
  const locked = before && origin ? origin.flatMap((was, i) => (before.locked.includes(was) ? [i] : [])) : [];
  const like = before && likeOf(before, origin);
  state.nodes.push({ parent, smiles, change, locked, like, inherits: Boolean(before && !origin) });
  return go(state.nodes.length - 1);
}

async function go(index) {
  const node = state.nodes[index];
  const before = state.at;
  const done = await trying(async () => {
    if (node.key !== key()) {
      const wanted = key();
      const parent = state.nodes[node.parent];
      const like = node.card ? likeOf(node, node.card.draw.x.map((_, i) => i)) : node.like || (parent && likeOf(parent));
      const card = await ask("card", { ...choice(), smiles: node.smiles, like }, "card");
      Object.assign(node, { card, key: wanted }, card.now);
      if (node.inherits) node.locked = card.origin.flatMap((was, i) => (parent.locked.includes(was) ? [i] : []));
      node.inherits = false;
    }
    state.at = index;
    say("");
    show();
  });
  if (!done && !node.card && index === state.nodes.length - 1 && before !== index) state.nodes.pop(); // it cannot be shown
  return done;
}

function show() {
  const { card, smiles } = current();
  for (const id of ["shown", "edit", "why", "steps", "compare"]) byId(id).hidden = false;
  byId("prediction").textContent = `${state.task}: ${card.now.text}`;
  byId("range").textContent = card.now.range;
  byId("level").textContent = LEVELS[card.trust.level];
  byId("level").className = `badge ${card.trust.level}`;
  byId("written").textContent = smiles;
  byId("undo").disabled = current().parent < 0;
  byId("redo").disabled = !state.nodes.some((node) => node.parent === state.at);
  place = [];
  drawPicture();
  drawWhy(card);
  byId("wish").value = state.wish || wishFor(card);
  pick([]);
  drawTree();
  drawContrast();
  drawSides();
  remember();
}

function wishFor(card) {
  const classes = about.tasks.find(([task]) => task === state.task)[1];
  return classes.find((name) => name !== card.label) || `>${(card.now.value + 1).toFixed(1)}`;
}

const armsFor = (card) => (card.unsigned ? about.unsigned_colours : about.colours);
const figure = (card, value) => (card.unsigned ? signed(value, card.limit).replace("+", "") : signed(value, card.limit));
const atomName = (card, i) => `${card.draw.e[i]}${i}`;
const placeName = (card, atoms) => atoms.map((i) => atomName(card, i)).join("–");

function drawPicture() {
  const { card, locked } = current();
  const svg = byId("picture");
  const { x, y, b } = card.draw;
  drawMolecule(svg, card.draw, card.shown, card.limit, armsFor(card));
  for (const i of locked) if (i < x.length) shape(svg, "circle", { class: "locked", cx: x[i], cy: y[i], r: DISC + 9 });
  const hit = (atoms, tag, attributes) => {
    const values = atoms.map((i) => figure(card, card.shown[i])).join(" and ");
    const label = `${placeName(card, atoms)}: ${values}${atoms.every((i) => locked.includes(i)) ? ", locked" : ""}`;
    const node = shape(svg, tag, { class: "hit", role: "button", tabindex: -1, "aria-label": label, "data-place": atoms.join(" "), ...attributes });
    shape(node, "title", {}, label);
    node.addEventListener("click", () => pick(atoms));
  };
  for (const [i, j] of b) hit([i, j], "line", { x1: x[i], y1: y[i], x2: x[j], y2: y[j] });
  x.forEach((_, i) => hit([i], "circle", { cx: x[i], cy: y[i], r: DISC + 4 }));
  svg.querySelector(`[data-place="${place.join(" ")}"]`)?.setAttribute("tabindex", 0);
  if (!svg.querySelector('[tabindex="0"]')) svg.querySelector("circle.hit").setAttribute("tabindex", 0);
  const arms = armsFor(card);
  const colours = element("div", { class: "colours" });
  colours.style.background = `linear-gradient(to right, ${arms.slice(card.unsigned ? (arms.length - 1) / 2 : 0).join(",")})`;
  const low = card.unsigned ? "0" : `${card.legend[0]} ${figure(card, -card.limit)}`;
  byId("bar").replaceChildren(low, colours, `${figure(card, card.limit)} ${card.legend[1]}`);
}

function drawWhy(card) {
  byId("caption").textContent = [card.caption, card.score && `Note: ${card.score}.`].filter(Boolean).join(" ");
  const rows = Object.entries(card.ledger).filter(() => card.additive).map(([name, value]) =>
    element("tr", {}, element("th", {}, name.replaceAll("_", " ")), element("td", { class: "number" }, signed(value, 0.1))));
  const words = Object.entries(card.words[1]).map(([name, meaning]) => element("p", { class: "soft" }, element("b", {}, name), `: ${meaning}.`));
  byId("ledger").replaceChildren(element("table", {}, element("tbody", {}, ...rows)), element("p", {}, card.words[0]), ...words);
  byId("verdict").textContent = card.trust.sentence;
  byId("verdict").className = `verdict ${card.trust.level}`;
  byId("signs").replaceChildren(...card.trust.signs.map(([name, level, sentence]) =>
    element("li", {}, element("span", { class: `badge ${level}` }, name), sentence)));
}

/* ---- an atom or a bond ---- */

function pick(atoms) {
  const { card, locked, smiles } = current();
  place = atoms;
  markAtoms(byId("picture"), card.draw, atoms);
  byId("options").replaceChildren();
  byId("locks").hidden = !atoms.length;
  byId("unlock").hidden = !locked.length;
  if (!atoms.length) {
    running.changes?.abort();
    byId("place").textContent = "Click an atom or a bond to see possible changes there.";
    return;
  }
  byId("lock").textContent = atoms.every((i) => locked.includes(i)) ? "Unlock" : "Lock";
  byId("place").textContent = `Changes at ${placeName(card, atoms)}: predicting …`;
  trying(async () => {
    const found = await ask("changes", { ...choice(), smiles, place: atoms, locked }, "changes");
    const count = found.options.length + found.more;
    byId("place").textContent = count
      ? `Changes at ${placeName(card, atoms)}: ${count}${found.more ? `, the largest ${found.options.length} shown` : ""}.`
      : `No change in the table fits at ${placeName(card, atoms)}${locked.length ? " with what is locked" : ""}.`;
    byId("options").replaceChildren(...found.options.map((option) => element("li", {}, optionButton(option, card))));
  });
}

function optionButton(option, card) {
  const mark = (atoms) => () => current().card === card && markAtoms(byId("picture"), card.draw, atoms);
  return element("button", {
    title: `${option.smiles} (${option.source})`, onclick: () => add(option.smiles, option.name, state.at, option.origin.length ? option.origin : undefined),
    onmouseenter: mark(option.atoms), onfocus: mark(option.atoms), onmouseleave: mark(place), onblur: mark(place),
  }, option.name, element("span", {}, `${option.text} `, direction(option.delta)));
}

function lock(atoms) {
  const node = current();
  const all = atoms.every((i) => node.locked.includes(i));
  node.locked = all ? node.locked.filter((i) => !atoms.includes(i)) : [...new Set([...node.locked, ...atoms])].sort((a, b) => a - b);
  const focused = root.activeElement?.closest("#picture");
  drawPicture();
  if (focused) byId("picture").querySelector('[tabindex="0"]').focus(); // where it was
  pick(place);
  remember();
}

const partOf = (card, atoms) => card.fragments.map(([, , members]) => members).find((members) => members.includes(atoms[0])) || atoms;

/* Move the focus to the nearest atom or bond in the direction of an arrow. */
function arrow(event) {
  const ways = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
  const here = event.target.closest(".hit");
  if (here && (event.key === "Enter" || event.key === " ")) {
    event.preventDefault();
    return pick(here.dataset.place.split(" ").map(Number));
  }
  if (!here || !ways[event.key]) return;
  event.preventDefault();
  const [dx, dy] = ways[event.key];
  const { x, y } = current().card.draw;
  const middle = (node) => {
    const atoms = node.dataset.place.split(" ");
    return [x, y].map((axis) => atoms.reduce((sum, i) => sum + axis[i], 0) / atoms.length);
  };
  const [hx, hy] = middle(here);
  let best = null;
  for (const node of byId("picture").querySelectorAll(".hit")) {
    const [nx, ny] = middle(node);
    const [ahead, aside] = [(nx - hx) * dx + (ny - hy) * dy, Math.abs((nx - hx) * dy) + Math.abs((ny - hy) * dx)];
    if (node !== here && ahead > 5 && (!best || ahead + 2 * aside < best[0])) best = [ahead + 2 * aside, node];
  }
  if (!best) return;
  here.setAttribute("tabindex", -1);
  best[1].setAttribute("tabindex", 0);
  best[1].focus();
}

/* ---- history ---- */

function drawTree() {
  const branch = (parent) => state.nodes.flatMap((node, i) => {
    if (node.parent !== parent) return [];
    const before = state.nodes[parent];
    const delta = before && node.text && before.text ? direction(node.value - before.value) : "";
    const button = element("button", { onclick: () => go(i), "aria-current": i === state.at, title: node.smiles },
      node.change || "start", element("span", { class: "soft" }, `${node.text || ""} `, delta));
    const other = i === state.at ? "" : element("button", {
      "aria-pressed": String(i === state.other), "aria-label": `Contrast with ${node.change || "start"}`, title: "Contrast with the molecule shown",
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
    const found = await ask("contrast", { ...choice(), a: current().smiles, b: other.smiles }, "contrast");
    byId("contrasted").src = found.picture;
    byId("contrasted").alt = found.headline;
    byId("difference").textContent = `a: shown; b: ${other.change || "start"}. ${found.caption}`;
    byId("contrast").hidden = false;
  });
}

/* ---- side by side ---- */

const mini = (card) => {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "molecule");
  drawMolecule(svg, card.draw, card.shown || null, card.limit, card.shown && armsFor(card));
  return svg;
};

async function drawSides() {
  if (!byId("beside").open || !current()) return;
  if (!byId("sides").firstChild) {
    const boxes = (name, pairs) => element("fieldset", {}, element("legend", {}, name), ...pairs.map(([value, text]) =>
      element("label", {}, element("input", {
        type: "checkbox", checked: state[name].includes(value),
        onchange: (event) => {
          state[name] = event.target.checked ? [...state[name], value] : state[name].filter((one) => one !== value);
          drawSides();
          remember();
        },
      }), text)));
    byId("sides").append(boxes("models", about.models.map((one) => [one, one])), boxes("methods", Object.entries(about.methods)));
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

/* ---- tables ---- */

async function open(name, text, column) {
  if (text.length > 3_500_000) return say(`${name} is larger than 3.5 MB: open a part of it, or use graphxai report.`);
  await trying(async () => {
    const found = await ask("read", { name, text, column: column || "" }, "read");
    say("");
    table = { rows: found.rows, shown: 0, file: { name, text, column: column || "" } };
    byId("table").hidden = false;
    byId("table-name").textContent = `${name}: ${found.rows.length} molecules${found.more ? `, ${found.more} more not read` : ""}`;
    byId("column-label").hidden = !found.columns.length;
    byId("column").replaceChildren(element("option", { value: "" }, "choose"), ...found.columns.map((one) => element("option", { value: one }, one)));
    byId("rows").replaceChildren();
    moreRows();
  });
}

function moreRows() {
  const first = table.shown;
  const part = table.rows.slice(first, first + 100);
  table.shown += part.length;
  byId("rows").append(...part.map(([name, smiles], k) => element("tr", {},
    element("td", {}, element("button", { onclick: () => add(smiles, name || `row ${first + k + 1}`, -1) }, name || smiles.slice(0, 80) || "empty")),
    element("td", { class: "number" }))));
  byId("more").hidden = table.shown >= table.rows.length;
  predictRows(first);
}

async function predictRows(first) {
  const mine = table;
  await trying(async () => {
    for (let k = first; k < mine.shown && mine === table; k += STEP) {
      const part = mine.rows.slice(k, Math.min(k + STEP, mine.shown));
      const found = await ask("predict", { ...choice(), smiles: part.map(([, smiles]) => smiles) }, "rows");
      if (mine !== table) return;
      found.forEach((one, i) => {
        byId("rows").children[k + i].lastChild.textContent = one ? one.text : "not readable";
        byId("rows").children[k + i].querySelector("button").disabled = !one;
      });
    }
  });
}

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

/* ---- mouse, keys, files ---- */

function enter(text) {
  const named = text.match(/^\s*(?:https?:\/\/[^#]*)?#(.*)$/);
  if (named) return restore(named[1]);
  const [smiles, ...name] = text.trim().split(/\s+/);
  return smiles && add(smiles, name.join(" "), -1);
}

const undo = () => current() && current().parent >= 0 && go(current().parent);
const redo = () => {
  const children = state.nodes.map((node, i) => (node.parent === state.at ? i : -1)).filter((i) => i >= 0);
  return children.length && go(children.at(-1));
};
const cancel = () => running.suggest?.abort();

byId("enter").addEventListener("submit", (event) => {
  event.preventDefault();
  enter(byId("smiles").value);
});
byId("file").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  if (file) open(file.name, await file.slice(0, 4_000_000).text());
  event.target.value = "";
});
host.frame.addEventListener("dragover", (event) => { event.preventDefault(); host.frame.classList.add("dropping"); });
host.frame.addEventListener("dragleave", (event) => host.frame.contains(event.relatedTarget) || host.frame.classList.remove("dropping"));
host.frame.addEventListener("drop", async (event) => {
  event.preventDefault();
  host.frame.classList.remove("dropping");
  const [file] = event.dataTransfer.files;
  if (file) open(file.name, await file.slice(0, 4_000_000).text());
  else enter(event.dataTransfer.getData("text/plain"));
});
byId("model").addEventListener("change", async (event) => (await choose(event.target.value)) && chosen());
byId("method").addEventListener("change", (event) => { state.method = event.target.value; chosen(); });
byId("target").addEventListener("change", (event) => { [state.task, state.label] = JSON.parse(event.target.value); chosen(); });
byId("picture").addEventListener("keydown", arrow);
byId("suggest").addEventListener("submit", suggest);
byId("wish").addEventListener("input", (event) => { state.wish = event.target.value; });
byId("beside").addEventListener("toggle", drawSides);
byId("column").addEventListener("change", (event) => event.target.value && open(table.file.name, table.file.text, event.target.value));
for (const button of root.querySelectorAll("[data-kind]")) button.addEventListener("click", () => download(button.dataset.kind, button));
const CLICKS = {
  undo, redo, cancel, more: moreRows, keep: keepCurrent,
  lock: () => lock(place),
  "lock-part": () => lock(partOf(current().card, place)),
  unlock: () => { current().locked = []; drawPicture(); pick(place); remember(); },
  link: () => trying(async () => {
    await navigator.clipboard.writeText(host.address(link()));
    byId("link").textContent = "Copied";
    setTimeout(() => { byId("link").textContent = "Copy link"; }, 2000);
  }),
};
for (const id in CLICKS) byId(id).addEventListener("click", CLICKS[id]);
const KEYS = {
  "/": () => byId("smiles").focus(),
  p: () => byId("picture").querySelector('[tabindex="0"]')?.focus(),
  l: () => place.length && lock(place),
  u: undo, r: redo, s: suggest, b: keepCurrent, Escape: cancel,
};
host.frame.addEventListener("keydown", (event) => {
  const writing = event.target.matches("input, select, textarea") && event.key !== "Escape";
  const pressed = event.ctrlKey || event.metaKey ? (event.key === "z" ? "u" : "") : event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (writing || event.altKey || !KEYS[pressed]) return;
  event.preventDefault();
  KEYS[pressed]();
});
host.begin(restore);
