/* A map of the set: similar molecules lie side by side, coloured by what is chosen. */

const [WIDEST, MARGIN] = [760, 34];
const NEAR = 24; // how far, in pixels, a click may be from its point
/* Colours that differ in any colour vision (Okabe and Ito 2008), each with its own shape. */
const KINDS = {
  circle: "#0072b2", triangle: "#e69f00", diamond: "#d55e00", square: "#666e78", ring: "#009e73", faint: "#9aa3ad",
};
const SHAPE_OF = { good: "ring", caution: "triangle", warning: "diamond", unknown: "square", known: "circle" };
const SCALES = {
  low_high: ["#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838"], // cividis (Nunez 2018)
  low_zero_high: ["#0072b2", "#f4f4f4", "#d55e00"],
};
let mapPlaces = []; // x and y of each molecule in the picture
let mapAt = -1; // the molecule pointed at
let mapDrawn = false;

const isRight = (molecule) => molecule.label === molecule.measured[1];
/* Ways to colour the map: by a value (null if unknown), or by a kind with words for the key. */
function colourings() {
  const ways = { prediction: { words: data.value, value: (m) => m.value, colours: SCALES.low_high,
    ends: data.molecules.some(({ label }) => label) && [0, 1] } }; // the ends of a probability
  if (data.measured && !data.measured.classes.length)
    ways.error = { words: "error: predicted \u2212 measured", value: (m) => (m.measured ? m.value - m.measured[0] : null),
      colours: SCALES.low_zero_high };
  else if (data.measured)
    ways.error = { words: "error: predicted class against measured",
      kind: (m) => (m.measured ? (isRight(m) ? ["circle", "right"] : ["diamond", "wrong"]) : ["faint", "not measured"]) };
  ways.trust = { words: "trust", kind: (m) => [SHAPE_OF[levelOf(m)], LEVELS[levelOf(m)].join(" ")] };
  return ways;
}
const holds = (among, name) => ({ words: `contains ${name}`,
  kind: (m) => (among.has(m.place) ? ["circle", `contains ${name}`] : ["faint", "does not"]) });

function prepareMap() {
  byId("tab-map").hidden = !data.map;
  if (!data.map) return;
  const select = byId("colour-by");
  options(select, Object.entries(colourings()).map(([id, { words }]) => [id, id === "prediction" ? `prediction: ${words}` : words]));
  const rows = [...(data.fragments ? data.fragments.rows : [])].sort((a, b) => b.molecules - a.molecules);
  const group = element("optgroup", { label: "a fragment" });
  const shared = (row) => rows.filter(({ name }) => name === row.name).length > 1;
  options(group, rows.map((row) => [`*${row.smiles}`, `contains ${row.name}${shared(row) ? ` (${row.smiles})` : ""}`]));
  if (rows.length) select.append(group);
  select.addEventListener("change", drawMap);
  byId("map-about").textContent = `Each point is a molecule, and similar molecules lie side by side (t-SNE of the Tanimoto distances of ECFP4). On average, ${Math.round(100 * data.map.kept)} % of the ten molecules that are most similar to a molecule are among its ten nearest here. The axes have no unit, and distances between far groups mean little. Click a point to see the molecule. Keys: arrows move, Enter opens, B puts it into the basket.`;
  const svg = byId("plot");
  svg.addEventListener("click", (event) => {
    pointAt(nearestTo(event));
    if (mapAt >= 0) openMolecule(mapAt);
  });
  svg.addEventListener("pointermove", (event) => {
    const place = nearestTo(event);
    if (place >= 0 && place !== mapAt) pointAt(place);
  });
  svg.addEventListener("keydown", (event) => {
    const direction = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
    if (event.key === "Enter" && mapAt >= 0) openMolecule(mapAt);
    if (!direction) return;
    event.preventDefault();
    pointAt(mapAt < 0 ? 0 : onwards(...direction));
  });
}

/* Colour the map by a fragment. */
function colourMap(smiles) {
  byId("colour-by").value = `*${smiles}`;
  drawMap();
}

function drawMap() {
  const chosen = byId("colour-by").value;
  const row = chosen.startsWith("*") && data.fragments.rows.find(({ smiles }) => smiles === chosen.slice(1));
  const colouring = row ? holds(holders(row.smiles), row.name) : colourings()[chosen];
  const { x, y } = data.map;
  const [largestX, largestY] = [Math.max(...x) || 1, Math.max(...y) || 1];
  const svg = byId("plot");
  const wide = Math.min(WIDEST, svg.clientWidth || WIDEST);
  const high = Math.round(Math.max(0.68 * wide, 300));
  mapPlaces = x.map((across, k) => [
    MARGIN + 8 + ((wide - MARGIN - 24) * across) / largestX, 16 + ((high - MARGIN - 24) * y[k]) / largestY]);
  svg.setAttribute("viewBox", `0 0 ${wide} ${high}`);
  svg.replaceChildren();
  shape(svg, "path", { d: `M${MARGIN} 4V${high - MARGIN}H${wide - 4}`, class: "axis" });
  shape(svg, "text", { x: wide / 2, y: high - 10, "text-anchor": "middle" }, "similarity, axis 1 (no unit)");
  shape(svg, "text", { x: 18, y: high / 2, "text-anchor": "middle", transform: `rotate(-90 18 ${high / 2})` }, "similarity, axis 2 (no unit)");
  const points = shape(svg, "g", { class: "points" });
  const values = colouring.value && data.molecules.map(colouring.value);
  const measured = values && values.filter((value) => value !== null);
  const ends = values && (colouring.ends || (colouring.colours === SCALES.low_zero_high
    ? [-1, 1].map((side) => side * (Math.max(...measured.map(Math.abs)) || 1))
    : [Math.min(...measured), Math.max(...measured)]));
  const among = new Set(shown);
  const kinds = new Map(); // the shape and number of each kind, by its words
  const drawn = data.molecules.map((molecule, place) => {
    const kind = values ? [values[place] === null ? "faint" : "circle", ""] : colouring.kind(molecule);
    kinds.set(kind[1], [kind[0], (kinds.get(kind[1])?.[1] || 0) + 1]);
    const fill = values && values[place] !== null
      ? colourOf(2 * (values[place] - ends[0]) - (ends[1] - ends[0]), ends[1] - ends[0] || 1, colouring.colours) : undefined;
    return { place, kind, fill, left: !among.has(place) };
  });
  const behind = ({ kind: [kind, words], left }) => (left ? 2e6 : 0) + (kind === "faint" ? 1e6 : 0) + kinds.get(words)[1];
  for (const { place, kind, fill, left } of drawn.sort((a, b) => behind(b) - behind(a))) // the rare ones in front
    marker(points, kind[0], ...mapPlaces[place], fill).setAttribute("class", left ? "point left" : "point");
  shape(svg, "g", { class: "here" });
  byId("map-key").replaceChildren(...(values ? scaleKey(colouring, ends, values.length - measured.length)
    : [...kinds].sort(([, a], [, b]) => b[1] - a[1]).map(([words, [kind, n]]) => kindKey(kind, `${words}: ${number(n)}`))));
  byId("map-shown").textContent = shown.length === data.molecules.length ? ""
    : `${number(data.molecules.length - shown.length)} molecules that the filters under Molecules leave out are faint.`;
  mapDrawn = true;
  drawMapBasket();
  if (mapAt >= 0) pointAt(mapAt);
}

function marker(parent, kind, x, y, fill) {
  const colour = fill || KINDS[kind];
  const look = kind === "ring" || kind === "faint" ? { fill: "none", stroke: colour, "stroke-width": kind === "ring" ? 2.5 : 1.2 }
    : { fill: colour, stroke: "#5559", "stroke-width": 0.8 };
  const outline = { triangle: `M${x} ${y - 6}L${x + 6} ${y + 4.5}H${x - 6}Z`, square: `M${x - 4.5} ${y - 4.5}h9v9h-9Z`,
    diamond: `M${x} ${y - 6.5}L${x + 6.5} ${y}L${x} ${y + 6.5}L${x - 6.5} ${y}Z` }[kind];
  return outline ? shape(parent, "path", { d: outline, ...look })
    : shape(parent, "circle", { cx: x, cy: y, r: kind === "faint" ? 3.5 : 5, ...look });
}

function kindKey(kind, words) {
  const svg = document.createElementNS(SVG, "svg");
  for (const [name, value] of Object.entries({ viewBox: "0 0 16 16", class: "sample", "aria-hidden": "true" })) svg.setAttribute(name, value);
  marker(svg, kind, 8, 8);
  return element("span", { class: "kind" }, svg, words);
}

/* A colour bar with numbers. */
function scaleKey({ words, colours }, [low, high], unknown) {
  const strip = element("div", { class: "strip" }, element("div", { class: "colours" }));
  strip.firstChild.style.background = `linear-gradient(to right, ${colours.join(",")})`;
  for (const at of [0, 0.5, 1]) {
    const value = low + (high - low) * at;
    const text = colours === SCALES.low_zero_high ? signed(value, high) : String(Number(value.toPrecision(2)));
    const mark = element("span", { class: "tick" }, text.replace("-", "\u2212"));
    mark.style.left = `${100 * at}%`;
    strip.append(mark);
  }
  return [element("div", { class: "bar" }, strip, element("span", {}, words)),
    ...(unknown ? [kindKey("faint", `not measured: ${number(unknown)}`)] : [])];
}

/* The place of the molecule next to the pointer, or -1. */
function nearestTo(event) {
  const box = byId("plot").getBoundingClientRect();
  const size = byId("plot").viewBox.baseVal.width / box.width;
  const [x, y] = [(event.clientX - box.left) * size, (event.clientY - box.top) * size];
  return closest(([px, py]) => (Math.hypot(px - x, py - y) < NEAR * size ? Math.hypot(px - x, py - y) : Infinity));
}

/* The place of the next molecule in a direction, or the same one if there is none. */
function onwards(dx, dy) {
  const [x, y] = mapPlaces[mapAt];
  const next = closest(([px, py]) => {
    const [along, across] = [(px - x) * dx + (py - y) * dy, Math.abs((px - x) * dy) + Math.abs((py - y) * dx)];
    return along > 0 && across <= along ? along + across : Infinity;
  });
  return next < 0 ? mapAt : next;
}

/* The molecule shown with the least distance of its point, or -1 if all are infinite. */
function closest(distance) {
  let [best, least] = [-1, Infinity];
  for (const place of shown) {
    const length = distance(mapPlaces[place]);
    if (length < least) [best, least] = [place, length];
  }
  return best;
}

function pointAt(place) {
  mapAt = place;
  const here = byId("plot").querySelector(".here");
  here.replaceChildren();
  if (place < 0) return;
  const molecule = data.molecules[place];
  const [x, y] = mapPlaces[place];
  shape(here, "circle", { cx: x, cy: y, r: 11 });
  for (const svg of byId("map-molecule").querySelectorAll("svg")) forget(svg);
  byId("map-molecule").replaceChildren(
    element("p", { class: "mean" }, nameOf(molecule)),
    picture({ picture: molecule.draw, relevance: averaged(molecule, molecule.r), limit: data.limit, molecule },
      { "aria-label": `Atoms of ${nameOf(molecule)} coloured by relevance` }, false),
    element("p", {}, predicted(molecule, 0), " ", badge(levelOf(molecule))),
    element("p", { class: "soft" }, dataOf(molecule)),
    keeper([place], true));
}

/* A square around every molecule in the basket. */
function drawMapBasket() {
  if (!mapDrawn) return;
  byId("plot").querySelector(".kept")?.remove();
  const kept = shape(byId("plot"), "g", { class: "kept" });
  for (const { place, change } of basket.values())
    if (change === undefined) shape(kept, "rect", { x: mapPlaces[place][0] - 9, y: mapPlaces[place][1] - 9, width: 18, height: 18 });
}
