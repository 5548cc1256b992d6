/* The page: grid, search, filters, tabs, fragments. All data come from the JSON block, and what single cards show from
   the packed blocks before it. */

const data = JSON.parse(document.getElementById("data").textContent);
const packedBlocks = document.getElementsByClassName("details");
const openBlocks = []; // those of which a molecule was shown
const detailsOf = (place) => (openBlocks[Math.floor(place / data.block)] ??=
  JSON.parse(unpacked(packedBlocks[Math.floor(place / data.block)].textContent)))[place % data.block];

/* A molecule has its record, by which it is found and sorted. Its details are read when they are asked for. */
class Molecule {
  constructor(place) {
    this.place = place;
    for (const name in data.records) this[name] = data.records[name][place];
  }
}
for (const name of data.details)
  Object.defineProperty(Molecule.prototype, name, { get() { return detailsOf(this.place)[name]; } });
data.molecules = data.records.row.map((_, place) => new Molecule(place));
const byId = (id) => document.getElementById(id);
const LEVELS = {
  good: ["\u2713", "no objection"],
  caution: ["!", "use with care"],
  warning: ["\u2715", "do not rely"],
  unknown: ["?", "not checked"],
  known: ["=", "training compound"],
};
const PARTS = { training: "in training", validation: "in validation", test: "in test" };
let arms = Object.values(data.palettes)[0];

const nameOf = (molecule) => molecule.name || `row ${molecule.row}`;
const levelOf = (molecule) => molecule.level;
const isFull = (molecule) => molecule.full !== null;
const number = (value) => value.toLocaleString("en-US");
const shortened = (tick) => signed(tick, Math.abs(tick) || 1).replace(/\.0+$|(\.\d*?[1-9])0+$/, "$1"); // +0.6, +200, 0
const word = data.unsigned[data.method]; // what scores without a sign measure
const written = (relevance, limit, method) => {
  const text = signed(relevance, limit);
  return data.unsigned[method] ? text.replace("+", "") : text;
};
const figure = (relevance) => written(relevance, data.limit, data.method); // one format for the whole page
/* Atoms that are equivalent by resonance are drawn in the colour of their mean. `pale` are those of doubtful sign. */
function averaged(molecule, relevance, pale = relevance === molecule.r ? molecule.pale : []) {
  const shown = Object.assign([...relevance], { pale });
  for (const atoms of molecule.equivalent)
    for (const i of atoms) shown[i] = atoms.reduce((sum, k) => sum + relevance[k], 0) / atoms.length;
  return shown;
}
const armsOf = (method) => (data.unsigned[method] ? data.unsigned_colours : arms);
const predicted = (molecule, k) => molecule.predictions.length > 1 ? molecule.predictions[k].join(": ") : molecule.predictions[k][1];

function badge(level, words) {
  const [sign, meaning] = LEVELS[level];
  return element("span", { class: `badge ${level}` }, `${sign} ${words || meaning}`);
}

/* ---- pictures: drawn when they come near the window, removed when they are far from it ---- */

const pictures = new Map(); // svg -> {picture, relevance, limit, molecule, method}

function picture(content, attributes, lazy) {
  const svg = document.createElementNS(SVG, "svg");
  for (const name in { class: "molecule", role: "img", ...attributes })
    svg.setAttribute(name, { class: "molecule", role: "img", ...attributes }[name]);
  pictures.set(svg, content);
  if (lazy) near.observe(svg);
  else paint(svg);
  return svg;
}

/* Stop drawing a picture, because it is about to leave the page. */
function forget(svg) {
  pictures.delete(svg);
  near.unobserve(svg);
  waiting.delete(svg);
}

function paint(svg) {
  const content = pictures.get(svg);
  drawMolecule(svg, content.picture, content.relevance, content.limit, armsOf(content.method || data.method), content.bonds);
}

/* The first screen is drawn at once. After that, each frame draws for a limited time, starting
   nearest to the middle of the window, so that fast scrolling skips most pictures. */
const BUDGET = 3; // milliseconds of drawing per frame. Layout and painting take several times as long
let budget = Infinity;
const waiting = new Set(); // svgs near the window that are not drawn yet

const near = new IntersectionObserver((entries) => {
  const idle = !waiting.size;
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting && !target.firstChild) waiting.add(target);
    if (!isIntersecting) {
      waiting.delete(target);
      target.replaceChildren();
    }
  }
  if (idle && waiting.size) budget === Infinity ? paintSome() : requestAnimationFrame(paintSome);
}, { rootMargin: "900px 0px" });

function paintSome() {
  const end = performance.now() + budget;
  const far = (svg) => Math.abs(svg.getBoundingClientRect().top - innerHeight / 2);
  const nearest = [...waiting].map((svg) => [far(svg), svg]).sort((a, b) => a[0] - b[0]);
  for (const [, svg] of nearest) {
    waiting.delete(svg);
    paint(svg);
    if (performance.now() > end) break;
  }
  budget = BUDGET;
  if (waiting.size) requestAnimationFrame(paintSome);
}

function repaint() {
  for (const svg of pictures.keys()) if (svg.firstChild) paint(svg);
}

window.addEventListener("beforeprint", () => {
  layOut(shown.length);
  byId("detail").scrollTop = 0;
  for (const svg of pictures.keys()) if (!svg.firstChild) paint(svg);
  if (data.map) drawMap();
});

/* ---- colour bar ---- */

function colourBar(limit, ticks) {
  const colours = element("div", { class: word ? "colours" : "colours signed" });
  const zero = ticks.indexOf(0);
  const used = armsOf(data.method);
  colours.style.background = `linear-gradient(to right, ${used.slice(word ? (used.length - 1) / 2 : 0).join(",")})`;
  const strip = element("div", { class: "strip" }, colours);
  const side = ticks.length - 1 - zero;
  const place = (tick) => (word ? (100 * tick) / limit : 50 + (50 * tick) / limit);
  const labels = ticks.map((tick) => (word ? shortened(tick).replace("+", "") : shortened(tick)));
  // 0 and the ends alone where numbers would touch: a sign is 8 of at most 260 pixels wide
  const crowded = 2.6 * (place(ticks[1]) - place(ticks[0])) < 8 * Math.max(...labels.map((label) => label.length)) + 5;
  for (const [k, tick] of ticks.entries()) {
    if (crowded && (k - zero) % side) continue;
    const mark = element("span", { class: (k - zero) % side ? "tick minor" : "tick" }, labels[k]);
    mark.style.left = `${place(tick)}%`;
    strip.append(mark);
  }
  const [low, high] = word || data.targets.length === 1 ? data.molecules[0].legend : ["against", "for"];
  return element("div", { class: "bar", role: "img",
    "aria-label": `Colour scale of relevance from ${word ? 0 : `${signed(-limit, limit)}, ${low},`} to ${figure(limit)}, ${high}` },
  element("span", {}, low), strip, element("span", {}, high, data.molecules.length > 1 ? element("div", { class: "soft" }, `one scale for all ${number(data.molecules.length)} molecules`) : "",
    data.details.includes("pale") ? element("div", { class: "soft" }, "pale: models disagree on the sign") : ""));
}

const showBar = () => byId("bar").replaceChildren(colourBar(data.limit, data.ticks), isWished() ? goalKey() : "");

/* ---- grid ---- */

/* What was measured, or its bound, with the words that say so if it lies outside the prediction's range. */
const inWords = (cell) => (cell ? [cell[1], cell.at(-1)].filter(Boolean).join(", ") : "");
const measuredWords = (molecule) => inWords(molecule.measured || molecule.bound);

/* What was measured, in which part of the model's data the molecule was, and what was removed from it. */
const dataOf = (molecule) => [measuredWords(molecule) && `measured ${measuredWords(molecule)}`, PARTS[molecule.part], molecule.note]
  .filter(Boolean).join(" \u00b7 ");

/* The card of a molecule. A long page makes it when the window comes near its place in the grid. */
const cards = [];
const cardOf = (place) => (cards[place] ??= makeCard(data.molecules[place], place));

function makeCard(molecule, place) {
  const level = levelOf(molecule);
  const opener = element("button", { type: "button", tabindex: -1,
    "aria-label": `${nameOf(molecule)}, ${molecule.predictions[0].join(": ")}, trust: ${LEVELS[level][1]}` },
  nameOf(molecule));
  const card = element("li", { class: "card", "data-place": place }, opener,
    element("div", { class: "line" }, element("span", {}, predicted(molecule, 0), " ", element("small", {}, molecule.ranges[0])), badge(level)),
    picture({ picture: molecule.draw, relevance: averaged(molecule, molecule.r), bonds: molecule.bonds, limit: data.limit, molecule },
      { "aria-label": `Atoms of ${nameOf(molecule)} coloured by relevance` }, true),
    element("div", { class: "line soft" },
      element("span", {}, dataOf(molecule) || (molecule.predictions.length > 1 && !data.several ? predicted(molecule, 1) : "")),
      element("span", {}, `sum of atoms${molecule.bonds ? " and bonds" : ""} ${figure(molecule.sum)}`)),
    propertyLines(molecule),
    keeper([place]));
  return card;
}
const grid = byId("grid");
let shown = []; // positions of the molecules shown, in order
let laid = 0; // how many of them are in the grid
const FIRST = 60; // cards that fill a large window and what is near it
const AT_ONCE = 300;

/* Lay the next cards out while the last one is near the window or above it. */
const lastCard = new IntersectionObserver((entries) => {
  if (entries.some(({ isIntersecting }) => isIntersecting)) layOut(laid + AT_ONCE);
}, { rootMargin: "100000000px 0px 2000px 0px" });

function layOut(count) {
  lastCard.disconnect();
  const upTo = Math.min(shown.length, Math.max(count, laid));
  grid.append(...shown.slice(laid, upTo).map(cardOf));
  laid = upTo;
  if (laid < shown.length) lastCard.observe(grid.lastChild);
  else grid.style.minHeight = "";
}

/* Give the grid the height of all its cards, so that the scroll bar knows those to come. */
function reserve() {
  const { gridTemplateColumns, rowGap } = getComputedStyle(grid);
  const [columns, gap] = [gridTemplateColumns.split(" ").length, parseFloat(rowGap)];
  const lines = Math.ceil(shown.length / columns);
  grid.style.minHeight = laid < shown.length ? `${lines * (grid.firstChild.offsetHeight + gap) - gap}px` : "";
}
window.addEventListener("resize", () => { if (!grid.hidden) reserve(); });
let fragment = null; // SMILES that every molecule shown must contain
const holders = (smiles) => new Set(data.fragments.rows.find((row) => row.smiles === smiles).places);

const SORTS = {
  "order of the table": () => 0,
  name: (a, b) => nameOf(a).localeCompare(nameOf(b), undefined, { numeric: true }),
  "prediction, high to low": (a, b) => b.value - a.value,
  "prediction, low to high": (a, b) => a.value - b.value,
  ...(isWished() && { "desirability, high to low": (a, b) => (b.desirability ?? -1) - (a.desirability ?? -1) }),
  "sum over atoms, high to low": (a, b) => b.sum - a.sum,
  "sum over atoms, low to high": (a, b) => a.sum - b.sum,
  ...(data.measured && !data.measured.classes.length && { "error, largest first": (a, b) => error(b) - error(a) }),
  "strongest atom": (a, b) => b.strongest - a.strongest,
  ...(data.words.full && { "full cards first": (a, b) => isFull(b) - isFull(a) }),
  "trust, worst first": (a, b) => rank(b) - rank(a),
  "trust, best first": (a, b) => rank(a) - rank(b),
};
const error = (molecule) => (molecule.measured ? Math.abs(molecule.value - molecule.measured[0]) : -1);
const rank = (molecule) => ["good", "known", "unknown", "caution", "warning"].indexOf(levelOf(molecule));

function arrange() {
  const words = byId("search").value.trim();
  const small = words.toLowerCase();
  const [label, level] = [byId("class").value, byId("trust").value];
  const bound = (id, open) => (byId(id).value === "" ? open : Number(byId(id).value));
  const [low, high] = [bound("low", -Infinity), bound("high", Infinity)];
  const base = data.map && words.startsWith("~") ? data.molecules.findIndex((m) => [nameOf(m), m.smiles].includes(words.slice(1).trim())) : -1;
  const alike = base < 0 ? null : new Map(data.map.similar[base]); // similarity in percent, by place
  const among = fragment && holders(fragment);
  const matches = (m, place) =>
    (alike ? alike.has(place) : !words || nameOf(m).toLowerCase().includes(small) || m.smiles.includes(words)) &&
    (!label || m.label === label) && m.value >= low && m.value <= high && (!level || levelOf(m) === level) &&
    (!among || among.has(place));
  shown = data.molecules.map((_, place) => place).filter((place) => matches(data.molecules[place], place));
  const order = SORTS[byId("sort").value];
  shown.sort((a, b) => (alike ? alike.get(b) - alike.get(a) : order(data.molecules[a], data.molecules[b])) || a - b);
  if (!byId("rows").hidden) drawRows();
  else {
    grid.replaceChildren();
    laid = 0;
    layOut(FIRST);
    reserve();
    setTimeout(() => layOut(AT_ONCE)); // once the first are on the screen
  }
  const total = data.molecules.length;
  byId("count").textContent = shown.length === total
    ? `${number(total)} molecule${total === 1 ? "" : "s"}`
    : `${number(shown.length)} of ${number(total)} molecules`;
  if (shown.length && byId("rows").hidden) rove(shown[0]);
}

/* Only one card is in the tab order; arrow keys move to the others. */
let current = null;
function rove(place, focus) {
  layOut(shown.indexOf(place) + 1);
  const card = cardOf(place);
  if (current) current.firstChild.tabIndex = -1;
  current = card;
  card.firstChild.tabIndex = 0;
  if (focus) {
    card.firstChild.focus({ preventScroll: true });
    card.scrollIntoView({ block: "nearest" });
  }
}

grid.addEventListener("focusin", (event) => {
  const card = event.target.closest(".card");
  if (card && card !== current) rove(Number(card.dataset.place));
});
grid.addEventListener("keydown", (event) => {
  const columns = getComputedStyle(grid).gridTemplateColumns.split(" ").length;
  const at = shown.indexOf(Number(event.target.closest(".card")?.dataset.place));
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns,
    Home: -at, End: shown.length - 1 - at }[event.key];
  if (step === undefined || at < 0) return;
  event.preventDefault();
  rove(shown[Math.max(0, Math.min(shown.length - 1, at + step))], true);
});
grid.addEventListener("click", (event) => {
  const card = event.target.closest(".card");
  if (!card) return;
  const place = Number(card.dataset.place);
  rove(place);
  openMolecule(place);
});

function options(select, entries) {
  for (const [value, words] of entries) select.append(element("option", { value }, words));
}

function chooseFragment(smiles, name) {
  fragment = smiles;
  const chip = byId("fragment");
  chip.hidden = !smiles;
  chip.className = "chip";
  chip.textContent = smiles ? `contains ${name} \u2715` : "";
  chip.setAttribute("aria-label", `Stop showing only molecules that contain ${name}`);
  arrange();
}

function prepareTools() {
  options(byId("sort"), Object.keys(SORTS).map((name) => [name, name]));
  const labels = [...new Set(data.molecules.map((m) => m.label).filter(Boolean))].sort();
  options(byId("class"), [["", "all"], ...labels.map((label) => [label, label])]);
  byId("class").parentNode.hidden = labels.length < 2;
  const levels = Object.keys(LEVELS).filter((level) => data.molecules.some((m) => levelOf(m) === level));
  options(byId("trust"), [["", "all"], ...levels.map((level) => [level, LEVELS[level][1]])]);
  options(byId("palette"), Object.keys(data.palettes).map((name) =>
    [name, name.replace("-", " / ") + (name === "orange-purple" ? " (colour-blind safe)" : "")]));
  let waiting = 0;
  for (const id of ["search", "low", "high"])
    byId(id).addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(arrange, 120);
    });
  byId("value-name").textContent = data.value;
  for (const id of ["sort", "class", "trust"]) byId(id).addEventListener("change", arrange);
  byId("as-table").addEventListener("click", () => showRows(byId("rows").hidden));
  byId("palette").addEventListener("change", (event) => {
    arms = data.palettes[event.target.value];
    showBar();
    repaint();
  });
  byId("fragment").addEventListener("click", () => {
    chooseFragment(null, "");
    byId("search").focus();
  });
  byId("tools").addEventListener("submit", (event) => event.preventDefault());
  const narrow = matchMedia("(max-width: 720px)"); // narrow windows have their controls folded
  const fold = () => { for (const part of document.querySelectorAll("details.fold")) part.open = !narrow.matches; };
  narrow.addEventListener("change", fold);
  fold();
}

/* ---- tabs ---- */

const tabs = [...document.querySelectorAll('[role="tab"]')];

function selectTab(id, focus) {
  for (const tab of tabs) {
    const chosen = tab.getAttribute("aria-controls") === id;
    tab.setAttribute("aria-selected", chosen);
    tab.tabIndex = chosen ? 0 : -1;
    byId(tab.getAttribute("aria-controls")).hidden = !chosen;
    if (chosen && focus) tab.focus();
  }
  if (id === "map") drawMap();
}

byId("tabs").addEventListener("click", (event) => {
  const tab = event.target.closest('[role="tab"]');
  if (tab) selectTab(tab.getAttribute("aria-controls"));
});
byId("tabs").addEventListener("keydown", (event) => {
  const usable = tabs.filter((tab) => !tab.hidden);
  const at = usable.indexOf(document.activeElement);
  const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: usable.length - 1 }[event.key];
  if (next === undefined || at < 0) return;
  event.preventDefault();
  selectTab(usable[(next + usable.length) % usable.length].getAttribute("aria-controls"), true);
});

/* ---- model and rows left out ---- */

function facts(pairs) {
  return element("div", { class: "scroll" }, element("table", {}, element("tbody", {},
    ...pairs.map(([name, value]) => element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, value))))));
}

function showModel() {
  const { model, versions } = data;
  const models = [[model.name, model.summary, model.sha256], ...(data.several?.others || [])];
  byId("provenance").append(facts([
    ...models.flatMap(([name, summary, sha256]) => [
      ["Model", name],
      ...(summary ? [["Test score", summary]] : []),
      ["Weights (SHA-256)", sha256 || "unknown"],
    ]),
    ["Explained by", `${data.titles[data.method]} (${data.method})`],
    ...Object.entries(data.refused).map(([name, why]) => [`Without ${name}`, why]),
    ["Molecules", `${data.source}: ${number(data.molecules.length)} explained, ${number(data.rejected.length)} left out`],
    ["Colours", `white is zero; full colour is ${figure(data.limit)}, the ${data.quantile * 100} % quantile of |relevance| over all atoms`],
    ["Trust", data.rule],
    ["Versions", Object.entries(versions).map((pair) => pair.join(" ")).join(", ")],
  ]));
  if (!byId("card").firstChild) byId("card").append(element("p", {}, "The checkpoint has no model card."));
}

function showRejected() {
  const rows = data.rejected;
  const tab = byId("tab-rejected");
  tab.textContent = `Left out (${number(rows.length)})`;
  tab.hidden = !rows.length;
  byId("rejected").classList.toggle("empty", !rows.length);
  byId("rejected").append(element("h2", {}, "Rows left out"), element("div", { class: "scroll" },
    element("table", {}, element("thead", {}, element("tr", {},
      ...["Row", "SMILES", "Reason"].map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...rows.map(([row, smiles, reason]) => element("tr", {},
      element("td", { class: "number" }, String(row)), element("td", { class: "smiles" }, smiles),
      element("td", {}, reason)))))));
}
