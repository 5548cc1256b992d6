/* The molecule shown: its picture, and what can be changed at an atom or a bond. */

/* How a molecule was drawn, so that molecules made from it are drawn in the same way. */
const likeOf = (node, origin) => ({ smiles: node.smiles, x: node.card?.draw.x, y: node.card?.draw.y, origin });

function add(smiles, change, parent, origin) {
  const existing = state.nodes.findIndex((node) => node.parent === parent && node.smiles === smiles);
  if (existing >= 0) return go(existing);
  if (state.nodes.length >= MOST_NODES) return say(`The history holds ${MOST_NODES} molecules; open a new page for more.`);
  const before = state.nodes[parent];
  const locked = before && origin ? origin.flatMap((was, i) => (before.locked.includes(was) ? [i] : [])) : [];
  const like = before && likeOf(before, origin);
  state.nodes.push({ parent, smiles, change, locked, name: "", like, inherits: Boolean(before && !origin) });
  return go(state.nodes.length - 1);
}

async function go(index) {
  const node = state.nodes[index];
  const before = state.at;
  const done = await trying(async () => {
    if (node.key !== key()) {
      const chosenKey = key();
      const parent = state.nodes[node.parent];
      const like = node.card ? likeOf(node, node.card.draw.x.map((_, i) => i)) : node.like || (parent && likeOf(parent));
      const card = await ask("card", { ...choice(), smiles: node.smiles, like }, "card");
      Object.assign(node, { card, key: chosenKey }, card.now);
      if (node.inherits) node.locked = card.origin.flatMap((was, i) => (parent.locked.includes(was) ? [i] : []));
      node.inherits = false;
    }
    state.at = index;
    say("");
    show();
  });
  const passed = state.nodes.filter((each) => each !== node && !each.text); // another was asked for before they were shown
  if (done && passed.length) predictNodes(passed).then(drawTree);
  if (!done && !node.card && index === state.nodes.length - 1 && before !== index) {
    state.nodes.pop(); // it cannot be shown
    drawTree();
  }
  return done;
}

function show() {
  const { card, smiles } = current();
  for (const id of ["shown", "edit", "why", "steps", "compare"]) byId(id).hidden = false;
  byId("prediction").textContent = `${state.task}: ${card.now.text}`;
  byId("range").textContent = card.now.range;
  byId("level").textContent = LEVELS[card.trust.level];
  byId("level").className = `badge ${card.trust.level}`;
  byId("welcome").hidden = true;
  putAway();
  byId("written").textContent = smiles;
  byId("smiles").value = smiles; // the field follows what is shown
  byId("name").value = current().name;
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
  drawProperties();
  remember();
}

function wishFor(card) {
  if (state.goal) return state.goal;
  const classes = about.tasks.find(([task]) => task === state.task)[1];
  return classes.find((name) => name !== card.label) || `>${(card.now.value + 1).toFixed(1)}`;
}

const armsFor = (card) => (card.unsigned ? about.unsigned_colours : about.colours);
const figure = (card, value) => (card.unsigned ? signed(value, card.limit).replace("+", "") : signed(value, card.limit));
const atomName = (card, i) => `${card.draw.e[i]}${card.numbers ? card.numbers[i] : i}`; // as in the molecule given
const placeName = (card, atoms) => atoms.map((i) => atomName(card, i)).join("–");

function drawPicture() {
  const { card, locked } = current();
  const svg = byId("picture");
  const { x, y, b } = card.draw;
  drawMolecule(svg, card.draw, card.shown, card.limit, armsFor(card), card.bonds, card.pale);
  for (const i of locked) if (i < x.length) shape(svg, "circle", { class: "locked", cx: x[i], cy: y[i], r: DISC + 9 });
  const addTarget = (atoms, tag, attributes) => {
    const values = atoms.map((i) => figure(card, card.shown[i])).join(" and ");
    const label = `${placeName(card, atoms)}: ${values}${atoms.every((i) => locked.includes(i)) ? ", locked" : ""}`;
    const node = shape(svg, tag, { class: "hit", role: "button", tabindex: -1, "aria-label": label, "data-place": atoms.join(" "), ...attributes });
    shape(node, "title", {}, label);
    node.addEventListener("click", () => pick(atoms));
  };
  for (const [i, j] of b) addTarget([i, j], "line", { x1: x[i], y1: y[i], x2: x[j], y2: y[j] });
  x.forEach((_, i) => addTarget([i], "circle", { cx: x[i], cy: y[i], r: DISC + 4 }));
  svg.querySelector(`[data-place="${place.join(" ")}"]`)?.setAttribute("tabindex", 0);
  if (!svg.querySelector('[tabindex="0"]')) svg.querySelector("circle.hit").setAttribute("tabindex", 0);
  const arms = armsFor(card);
  const colours = element("div", { class: card.unsigned ? "colours" : "colours signed" });
  colours.style.background = `linear-gradient(to right, ${arms.slice(card.unsigned ? (arms.length - 1) / 2 : 0).join(",")})`;
  const low = card.unsigned ? "0" : `${card.legend[0]} ${figure(card, -card.limit)}`;
  byId("bar").replaceChildren(low, colours, `${figure(card, card.limit)} ${card.legend[1]}`);
}

function drawWhy(card) {
  byId("caption").textContent = [card.note && `Molecule: ${card.note}.`, card.caption, `Acid or base: ${card.ionisation}.`, card.score && `Note: ${card.score}.`].filter(Boolean).join("\n");
  const rows = Object.entries(card.ledger || {}).map(([name, value]) =>
    element("tr", {}, element("th", {}, name.replaceAll("_", " ")), element("td", { class: "number" }, signed(value, 0.1))));
  const words = Object.entries(card.words[1]).map(([name, meaning]) => element("p", { class: "soft" }, element("b", {}, name), `: ${meaning}.`));
  const parts = card.fragments.filter((part) => part.length > 4).map(([name, , , , said, measured]) =>
    element("p", {}, `Without ${name}: ${signed(said, 0.1)}, measured ${signed(measured, 0.1)}.`));
  byId("ledger").replaceChildren(element("table", {}, element("tbody", {}, ...rows)), ...parts, element("p", {}, card.words[0]), ...words);
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
    running.effects?.abort();
    byId("place").textContent = "Click an atom or a bond to see possible changes there.";
    return;
  }
  byId("lock").textContent = atoms.every((i) => locked.includes(i)) ? "Unlock" : "Lock";
  byId("place").textContent = `Changes at ${placeName(card, atoms)}: predicting …`;
  trying(async () => {
    const changes = await ask("changes", { ...choice(), smiles, place: atoms, locked }, "changes");
    const count = changes.options.length + changes.more;
    byId("place").textContent = count
      ? `Changes at ${placeName(card, atoms)}: ${count}${changes.more ? `, the largest ${changes.options.length} shown` : ""}.`
      : `No change in the table fits at ${placeName(card, atoms)}${locked.length ? " with what is locked" : ""}.`;
    const buttons = changes.options.map((option) => optionButton(option, card));
    byId("options").replaceChildren(...buttons.map((button) => element("li", {}, button)));
    fillOptions(changes.options, buttons, card);
  });
}

function optionButton(option, card) {
  const mark = (atoms) => () => current().card === card && markAtoms(byId("picture"), card.draw, atoms);
  return element("button", {
    title: `${option.smiles} (${option.source})${option.isomers && `. Isomers: ${option.isomers}`}`, onclick: () => add(option.smiles, option.name, state.at, option.origin.length ? option.origin : undefined),
    onmouseenter: mark(option.atoms), onfocus: mark(option.atoms), onmouseleave: mark(place), onblur: mark(place),
  }, option.name, element("span", {}, `${option.text} `, direction(option.delta), option.isomers && " (the isomer that changes least)"));
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

