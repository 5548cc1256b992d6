/* Measured against predicted values. */

function showMeasured() {
  const measured = data.measured;
  byId("tab-measured").hidden = !measured;
  if (!measured) return;
  const rows = measured.groups.map(([part, words, count, scores]) => element("tr", {},
    element("th", { scope: "row" }, element("span", { class: `dot ${part || "other"}` }), words),
    element("td", { class: "number" }, number(count)), element("td", {}, scores)));
  byId("measured").append(
    element("p", { class: "note" }, `${measured.task}: measured (column ${measured.column}) against predicted. Click a point to see the molecule.${data.molecules.some((m) => m.bound) ? " A triangle stands for a bound, such as >10, and points to the side where the value lies." : ""}`),
    element("div", { class: "scroll" }, element("table", {}, element("tbody", {}, ...rows))));
  if (!measured.classes.length || measured.target) byId("measured").append(measuredPlot(measured));
}

/* What is known of a molecule: a number, a text, and for a bound the side where the value lies. */
const knownOf = (m) => m.measured || m.bound;

/* A scatter plot, where each measured class has a column. A bound is a triangle that points to where the value lies. */
function measuredPlot(measured) {
  const points = data.molecules.map((m, place) => ({ m, place })).filter(({ m }) => knownOf(m));
  const classes = measured.classes;
  const [size, edge] = [460, 56];
  const values = points.flatMap(({ m }) => (classes.length ? [] : [knownOf(m)[0], m.value]));
  const [low, high] = classes.length ? [0, 1] : [Math.min(...values), Math.max(...values)];
  const at = (value) => edge + (size - 2 * edge) * ((value - low) / (high - low || 1));
  const across = (m, k) => (classes.length
    ? edge + (size - 2 * edge) * ((m.measured[0] + 0.5 + 0.6 * (((k * 0.618) % 1) - 0.5)) / classes.length)
    : at(knownOf(m)[0]));
  const svg = document.createElementNS(SVG, "svg");
  const label = classes.length ? `${data.value} by measured class` : `Measured against predicted ${measured.task}`;
  for (const [name, value] of Object.entries({ viewBox: `0 0 ${size} ${size}`, class: "measured", role: "img", "aria-label": label }))
    svg.setAttribute(name, value);
  const end = size - edge;
  shape(svg, "path", { d: `M${edge} ${edge}V${end}H${end}`, class: "axis" });
  if (!classes.length) shape(svg, "path", { d: `M${edge} ${end}L${end} ${edge}`, class: "axis same" });
  const text = (x, y, words, more) => shape(svg, "text", { x, y, "text-anchor": "middle", ...more }, words);
  text(size / 2, size - 8, classes.length ? "measured" : `measured ${measured.task}`);
  text(14, size / 2, classes.length ? data.value : `predicted ${data.value}`, { transform: `rotate(-90 14 ${size / 2})` });
  for (const value of classes.length ? [0, 0.5, 1] : [low, (low + high) / 2, high]) {
    const words = String(Number(value.toPrecision(3)));
    text(edge - 8, size - at(value) + 4, words, { "text-anchor": "end" });
    if (!classes.length) text(at(value), end + 18, words);
  }
  classes.forEach((name, k) => text(edge + ((size - 2 * edge) * (k + 0.5)) / classes.length, end + 18, name));
  for (const [k, { m, place }] of points.entries()) {
    const [x, y, className] = [across(m, k), size - at(m.value), `point ${m.part || "other"}`];
    const side = m.measured ? 0 : m.bound[2];
    const dot = side ? shape(svg, "path", { d: `M${x} ${y - 5}l${8 * side} 5l${-8 * side} 5Z`, class: className })
      : shape(svg, "circle", { cx: x, cy: y, r: 4.5, class: className });
    shape(dot, "title", {}, `${nameOf(m)}: measured ${knownOf(m)[1]}, predicted ${m.predictions[0][1]}`);
    dot.addEventListener("click", () => openMolecule(place));
  }
  return svg;
}

