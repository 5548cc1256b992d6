"use strict";
/* What the report and the app share: elements, the order of cells, and molecules as SVG, from
   coordinates, labels and bonds. Lengths are in hundredths of a bond. Text is always set as text,
   never as markup. */

const SVG = "http://www.w3.org/2000/svg";
const DISC = 34;
const BAND = 42;
const FONT = 44;
const LINE = 5;
const HATCH = 14; // from one line of a hatching to the next
const LEAST_HATCHED = 0.05; // the least |relevance| that is hatched, as a part of the limit
const INK = "#000";
// how near a molecule is to a training set, in the words of tables
const WHERE = { "training compound": "training compound", near: "near training", edge: "edge of training", far: "far from training", unknown: "training unknown" };
const hundredths = (share) => (share === null || share === undefined ? "?" : share.toFixed(2));
/* A predicted value in the colour of its goal, with a sign that a grey print keeps. Without a goal, it is plain text. */
const GOALS = { met: "\u2713", near: "~", missed: "\u2717" };
const scored = (text, outcome) => (outcome ? element("span", { class: `goal ${outcome}`, title: `goal ${outcome}` }, `${GOALS[outcome]} ${text}`) : text);
const goalKey = () => element("p", { class: "key" }, ...Object.keys(GOALS).map((outcome) => scored(`goal ${outcome}`, outcome)),
  "The words beside a value say how near its model's training set is.");
let drawings = 0; // keeps the ids of gradients unique across pictures

/* An element with attributes and children (elements or text). */
function element(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const name in attributes || {}) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), attributes[name]);
    else if (attributes[name] === true) node.setAttribute(name, "");
    else if (attributes[name] !== false) node.setAttribute(name, attributes[name]);
  }
  node.append(...children);
  return node;
}

function shape(parent, tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const name in attributes) node.setAttribute(name, attributes[name]);
  if (text !== undefined) node.textContent = text;
  parent.appendChild(node);
  return node;
}

/* The colour for a relevance; `arms` are colours at equal steps from -limit to +limit. */
function colourOf(value, limit, arms) {
  const relative = Math.max(-1, Math.min(1, value / limit));
  const at = ((relative + 1) / 2) * (arms.length - 1);
  const low = Math.min(Math.floor(at), arms.length - 2);
  const channel = (colour, k) => parseInt(colour.slice(1 + 2 * k, 3 + 2 * k), 16);
  let text = "#";
  for (let k = 0; k < 3; k++) {
    const [from, to] = [channel(arms[low], k), channel(arms[low + 1], k)];
    text += Math.round(from + (to - from) * (at - low)).toString(16).padStart(2, "0");
  }
  return text;
}

/* A relevance with a sign, and with the decimals that give `limit` three digits, so that numbers on
   one scale line up. Values below the last decimal are 0, without a sign. */
function signed(value, limit) {
  const decimals = Math.min(12, Math.max(0, 2 - Math.floor(Math.log10(limit))));
  const text = Math.abs(value).toFixed(decimals);
  if (Number(text) === 0) return text;
  return (value > 0 ? "+" : "\u2212") + text;
}

/* Draw `picture` into an empty <svg>. A picture that is a `part` is enlarged more than a molecule. relevance: a number per atom, or null for a plain drawing.
   bonds: a number per bond, or nothing if the bonds have no relevance of their own. pale: the atoms of doubtful sign. */
function drawMolecule(svg, picture, relevance, limit, arms, bonds, pale = relevance && relevance.pale) {
  svg.replaceChildren();
  const key = `d${drawings++}`;
  const width = Math.max(...picture.x) || 0;
  const height = Math.max(...picture.y) || 0;
  const [w, h] = [Math.max(width + 180, picture.part ? 300 : 560), Math.max(height + 160, picture.part ? 200 : 420)];
  svg.setAttribute("viewBox", `${(width - w) / 2} ${(height - h) / 2} ${w} ${h}`);
  if (relevance) {
    const isPale = new Set(pale);
    const shades = relevance.map((value, i) => (isPale.has(i) ? value / 3 : value));
    const colours = shades.map((value) => colourOf(value, limit, arms));
    drawBands(svg, picture, shades, colours, key, (value) => colourOf(value, limit, arms), bonds && { values: bonds, limit });
    picture.x.forEach((x, i) =>
      shape(svg, "circle", { cx: x, cy: picture.y[i], r: DISC, fill: colours[i], "data-atom": i, ...(isPale.has(i) && { stroke: "#777", "stroke-width": 3, "stroke-dasharray": "9 7" }) }));
    hatch(svg, picture, shades.map((value) => value < -LEAST_HATCHED * limit));
  }
  const structure = shape(svg, "g", {
    class: "structure", stroke: INK, "stroke-width": LINE, "stroke-linecap": "round", fill: "none",
  });
  for (const bond of picture.b) drawBond(structure, picture, bond);
  for (const i in picture.a) drawLabel(structure, picture, Number(i));
  for (const i in picture.g || {}) // the group of a stereocentre, such as and1
    shape(structure, "text", { x: picture.x[i] + 12, y: picture.y[i] - 12, "font-size": 0.7 * FONT, fill: INK, stroke: "none" }, picture.g[i]);
  if (relevance) shape(svg, "g", { class: "marks structure", fill: "none", stroke: "#111" });
}

/* White lines across the discs of negative atoms, which tell them from positive ones without colours. They lie on one
   lattice, so that those of neighbours meet. */
function hatch(svg, picture, negative) {
  let path = "";
  picture.x.forEach((x, i) => {
    if (!negative[i]) return;
    const [along, across] = [(x - picture.y[i]) * Math.SQRT1_2, (x + picture.y[i]) * Math.SQRT1_2];
    for (let line = Math.ceil((across - DISC) / HATCH) * HATCH; line < across + DISC; line += HATCH) {
      const half = Math.sqrt(DISC ** 2 - (line - across) ** 2);
      const at = (end) => `${((end + line) * Math.SQRT1_2).toFixed(1)} ${((line - end) * Math.SQRT1_2).toFixed(1)}`;
      path += `M${at(along - half)}L${at(along + half)}`;
    }
  });
  if (path) shape(svg, "path", { d: path, stroke: "#fff", "stroke-width": HATCH / 4, class: "against structure" });
}

/* The middle of a bond has the colour of its relevance, or else of the mean of its atoms. */
function drawBands(svg, picture, relevance, colours, key, colour, bonds) {
  const defs = shape(svg, "defs", {});
  picture.b.forEach(([i, j], k) => {
    const [x1, y1, x2, y2] = [picture.x[i], picture.y[i], picture.x[j], picture.y[j]];
    const length = Math.hypot(x2 - x1, y2 - y1) || 1;
    const edge = Math.min(40, (100 * DISC) / length);
    const gradient = shape(defs, "linearGradient", {
      id: `${key}-${k}`, gradientUnits: "userSpaceOnUse", x1, y1, x2, y2,
    });
    const middle = colour(bonds ? bonds.values[k] : (relevance[i] + relevance[j]) / 2);
    for (const [offset, stop] of [[edge, colours[i]], [50, middle], [100 - edge, colours[j]]])
      shape(gradient, "stop", { offset: `${offset}%`, "stop-color": stop });
    const [dx, dy] = [((y1 - y2) / length) * (BAND / 2), ((x2 - x1) / length) * (BAND / 2)];
    const band = shape(svg, "path", {
      d: `M${x1 + dx} ${y1 + dy}L${x2 + dx} ${y2 + dy}L${x2 - dx} ${y2 - dy}L${x1 - dx} ${y1 - dy}Z`,
      fill: `url(#${key}-${k})`,
    });
    if (bonds) shape(band, "title", {}, `bond ${picture.e[i]}${i}–${picture.e[j]}${j}: ${signed(bonds.values[k], bonds.limit)}`);
  });
}

function textWidth(text) {
  let width = 0;
  for (const c of text) width += c === "I" ? 0.28 : c >= "A" && c <= "Z" ? 0.7 : c >= "a" ? 0.5 : 0.4;
  return width * FONT;
}

/* The distance from an atom's centre at which bonds begin: the edge of its symbol, if any. */
function clearance(picture, i, dx, dy) {
  const label = picture.a[i];
  if (!label) return 0;
  const [half, tall] = [textWidth(label[0]) / 2 + 7, FONT * 0.36 + 7];
  return Math.min(half / Math.max(Math.abs(dx), 1e-6), tall / Math.max(Math.abs(dy), 1e-6));
}

function drawBond(group, picture, [i, j, kind, side]) {
  const [xi, yi, xj, yj] = [picture.x[i], picture.y[i], picture.x[j], picture.y[j]];
  const length = Math.hypot(xj - xi, yj - yi);
  if (!length) return;
  const [ux, uy] = [(xj - xi) / length, (yj - yi) / length];
  const [from, to] = [clearance(picture, i, ux, uy), length - clearance(picture, j, ux, uy)];
  // A point `along` the bond from i, and `across` to its right.
  const at = (along, across) => `${xi + ux * along - uy * across} ${yi + uy * along + ux * across}`;
  const line = (a, b, across, extra) =>
    shape(group, "path", { d: `M${at(a, across)}L${at(b, across)}`, ...extra });
  if (kind === 2 && side === 0) {
    line(from, to, 8);
    line(from, to, -8);
  } else if (kind === 2 || kind === "a") {
    line(from, to, 0);
    const inner = [Math.max(from, picture.a[i] ? 0 : 14), Math.min(to, length - (picture.a[j] ? 0 : 14))];
    line(...inner, -16 * side, kind === "a" ? { "stroke-dasharray": "9 9" } : {});
  } else if (kind === 3) {
    for (const across of [-14, 0, 14]) line(from, to, across);
  } else if (kind === "w") {
    shape(group, "path", { d: `M${at(from, 0)}L${at(to, 11)}L${at(to, -11)}Z`, fill: INK, "stroke-width": 1 });
  } else if (kind === "h") {
    for (let k = 1; k <= 7; k++) {
      const along = from + ((to - from) * k) / 7;
      shape(group, "path", { d: `M${at(along, (11 * k) / 7)}L${at(along, (-11 * k) / 7)}`, "stroke-width": 4 });
    }
  } else if (kind === "u") {
    let path = `M${at(from, 0)}`;
    for (let k = 1; k <= 8; k++) path += `L${at(from + ((to - from) * k) / 8, k === 8 ? 0 : k % 2 ? 8 : -8)}`;
    shape(group, "path", { d: path, "stroke-linejoin": "round" });
  } else if (kind === "d") {
    line(from, to - 12, 0);
    shape(group, "path", { d: `M${at(to, 0)}L${at(to - 20, 10)}L${at(to - 20, -10)}Z`, fill: INK, "stroke-width": 1 });
  } else {
    line(from, to, 0, kind === "0" ? { "stroke-dasharray": "2 12" } : {});
  }
}

const SUB = "\u2080\u2081\u2082\u2083\u2084\u2085\u2086\u2087\u2088\u2089";
const SUPER = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079";
const digits = (number, set) => String(number).replace(/\d/g, (d) => set[Number(d)]);

function drawLabel(group, picture, i) {
  const [symbol, hydrogens, charge, isotope, radicals, side] = picture.a[i];
  const [x, y] = [picture.x[i], picture.y[i]];
  const half = textWidth(symbol) / 2;
  const base = y + FONT * 0.36;
  const write = (text, dx, dy, anchor) =>
    text && shape(group, "text", {
      x: x + dx, y: base + dy, "text-anchor": anchor, "font-size": FONT, fill: INK, stroke: "none",
    }, text);
  const h = hydrogens ? "H" + (hydrogens > 1 ? digits(hydrogens, SUB) : "") : "";
  const size = Math.abs(charge) > 1 ? digits(Math.abs(charge), SUPER) : "";
  const more = (charge ? size + (charge > 0 ? "\u207a" : "\u207b") : "") + "\u2022".repeat(radicals);
  const mass = isotope ? digits(isotope, SUPER) : "";
  write(symbol, 0, 0, "middle");
  write(side === "E" ? h + more : more, half, 0, "start");
  write(side === "W" ? h + mass : mass, -half, 0, "end");
  if (side === "N" || side === "S") write(h, 0, (side === "N" ? -1 : 1) * FONT * 0.92, "middle");
}

/* Ring the given atoms of a drawn molecule, and no others. */
function markAtoms(svg, picture, atoms) {
  const marks = svg.querySelector(".marks");
  if (!marks) return;
  marks.replaceChildren();
  for (const i of atoms)
    shape(marks, "circle", { cx: picture.x[i], cy: picture.y[i], r: DISC + 4, "stroke-width": 5 });
}

/* Smaller first; what has no value comes last, whichever way the column is sorted. */
function compared(a, b, down) {
  const missing = (value) => value === undefined || value === null || Number.isNaN(value);
  if (missing(a) || missing(b)) return missing(a) - missing(b);
  const order = typeof a === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
  return down ? -order : order;
}
