/* Measured against predicted values. */

function showMeasured() {
  const compared = [...(data.measured ? [data.measured] : []), ...data.measured_others];
  byId("tab-measured").hidden = !compared.length;
  for (const measured of compared) {
    const points = pointsOf(measured);
    const rows = measured.groups.map(([part, words, count, scores]) => element("tr", {},
      element("th", { scope: "row" }, element("span", { class: `dot ${part || "other"}` }), words),
      element("td", { class: "number" }, number(count)), element("td", {}, scores)));
    const hasBounds = points.some(({ bound }) => bound);
    byId("measured").append(element("section", {},
      element("h2", {}, measured.task),
      element("p", { class: "note" }, `Measured (column ${measured.column}) against predicted. Click a point to see the molecule.${hasBounds ? " A triangle stands for a bound, such as >10, and points to the side where the value lies." : ""}`),
      element("div", { class: "scroll" }, element("table", {}, element("tbody", {}, ...rows))),
      !measured.classes.length || measured.target ? measuredPlot(measured, points) : ""));
  }
}

/* The molecules of which a property is known: their place, what was measured or a bound of it, and what was predicted. */
function pointsOf({ property, of_first: ofFirst }) {
  const points = data.molecules.map((m, place) => {
    if (property === undefined) return { place, measured: m.measured, bound: m.bound, value: m.value, part: m.part, text: m.predictions[0][1] };
    const [text, , near, , , value, , measured, bound] = m.properties[property] || [];
    return { place, measured, bound, value, text, part: (ofFirst && m.part) || (near === "training compound" ? "training" : "") };
  });
  return points.filter(({ measured, bound }) => measured || bound);
}

/* Round numbers between two values: multiples of 1, 2 or 5 times a power of ten, at most six of them. */
function roundTicks(low, high) {
  if (!(high > low)) return [Number(low.toPrecision(3))];
  const power = 10 ** Math.floor(Math.log10((high - low) / 5));
  const step = [1, 2, 5, 10].map((m) => m * power).find((size) => (high - low) / size <= 5);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, k) => Number(((first + k) * step).toPrecision(10)) + 0);
}

/* What is known of a molecule: a number, a text, and for a bound the side where the value lies. */
const knownOf = (m) => m.measured || m.bound;

/* A scatter plot, where each measured class has a column. A bound is a triangle that points to where the value lies. */
function measuredPlot(measured, points) {
  const valueName = measured.property === undefined ? data.value : measured.classes.length ? `Probability of ${measured.target}` : measured.task;
  const classes = measured.classes;
  const [size, edge] = [460, 56];
  const values = points.flatMap((m) => (classes.length ? [] : [knownOf(m)[0], m.value]));
  const [low, high] = classes.length ? [0, 1] : [Math.min(...values), Math.max(...values)];
  const at = (value) => edge + (size - 2 * edge) * ((value - low) / (high - low || 1));
  const across = (m, k) => (classes.length
    ? edge + (size - 2 * edge) * ((m.measured[0] + 0.5 + 0.6 * (((k * 0.618) % 1) - 0.5)) / classes.length)
    : at(knownOf(m)[0]));
  const svg = document.createElementNS(SVG, "svg");
  const label = classes.length ? `${valueName} by measured class` : `Measured against predicted ${measured.task}`;
  for (const [name, value] of Object.entries({ viewBox: `0 0 ${size} ${size}`, class: "measured", role: "img", "aria-label": label }))
    svg.setAttribute(name, value);
  const end = size - edge;
  shape(svg, "path", { d: `M${edge} ${edge}V${end}H${end}`, class: "axis" });
  if (!classes.length) shape(svg, "path", { d: `M${edge} ${end}L${end} ${edge}`, class: "axis same" });
  const text = (x, y, words, more) => shape(svg, "text", { x, y, "text-anchor": "middle", ...more }, words);
  text(size / 2, size - 8, classes.length ? "measured" : `measured ${measured.task}`);
  text(14, size / 2, classes.length ? valueName : `predicted ${valueName}`, { transform: `rotate(-90 14 ${size / 2})` });
  for (const value of classes.length ? [0, 0.5, 1] : roundTicks(low, high)) {
    const words = String(value).replace("-", "\u2212");
    text(edge - 8, size - at(value) + 4, words, { "text-anchor": "end" });
    if (!classes.length) text(at(value), end + 18, words);
  }
  classes.forEach((name, k) => text(edge + ((size - 2 * edge) * (k + 0.5)) / classes.length, end + 18, name));
  for (const [k, m] of points.entries()) {
    const [x, y, className] = [across(m, k), size - at(m.value), `point ${m.part || "other"}`];
    const side = m.measured ? 0 : m.bound[2];
    const dot = side ? shape(svg, "path", { d: `M${x} ${y - 5}l${8 * side} 5l${-8 * side} 5Z`, class: className })
      : shape(svg, "circle", { cx: x, cy: y, r: 4.5, class: className });
    shape(dot, "title", {}, `${nameOf(data.molecules[m.place])}: measured ${knownOf(m)[1]}, predicted ${m.text}`);
    dot.addEventListener("click", () => openMolecule(m.place));
  }
  return svg;
}

