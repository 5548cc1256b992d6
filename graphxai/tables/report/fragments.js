/* Fragments over the set: what each contributes as a whole, and per atom. */

const RANKINGS = { per_atom: "per atom", mean: "of the whole fragment" };
const [ACROSS, EDGE] = [300, 22]; // width of an axis, and the room for half a number at its ends

/* Round numbers from -limit to +limit, at most two on either side of zero. */
function ticksUpTo(limit) {
  const power = 10 ** Math.floor(Math.log10(limit / 2));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= limit / 2.5);
  const side = Math.floor(limit / step + 1e-9);
  return Array.from({ length: 2 * side + 1 }, (_, k) => (k - side) * step);
}

/* Draw mean and interval on an axis with numbers. An arrow shows that the interval goes on. */
function range([mean, low, high], limit) {
  const svg = document.createElementNS(SVG, "svg");
  for (const [name, value] of Object.entries({ viewBox: `0 0 ${ACROSS} 36`, class: "range", "aria-hidden": "true" }))
    svg.setAttribute(name, value);
  const at = (value) => ACROSS / 2 + ((ACROSS / 2 - EDGE) * Math.max(-1, Math.min(1, value / limit)));
  shape(svg, "path", { d: `M${at(-limit)} 20H${at(limit)}`, class: "axis" });
  for (const tick of ticksUpTo(limit)) {
    shape(svg, "path", { d: `M${at(tick)} ${tick ? 17 : 1}V23`, class: "axis" });
    shape(svg, "text", { x: at(tick), y: 34, "text-anchor": "middle" }, shortened(tick));
  }
  if (low !== undefined) {
    shape(svg, "path", { d: `M${at(low)} 9H${at(high)}`, class: "interval" });
    for (const [end, side] of [[low, -1], [high, 1]])
      if (end * side > limit) shape(svg, "path", { d: `M${at(end) - 5 * side} 4L${at(end)} 9L${at(end) - 5 * side} 14`, class: "interval" });
  }
  shape(svg, "rect", { x: at(mean) - 2, y: 2, width: 4, height: 14, class: "middle" });
  return svg;
}

const bounded = ([mean, low, high]) => figure(mean) + (low === undefined ? "" : ` [${figure(low)}, ${figure(high)}]`);
const counted = (n, what) => `${number(n)} ${what}${n === 1 ? "" : "s"}`;

function fragmentEntry(row, limits) {
  const examples = row.examples.flatMap((place) => [
    element("button", { type: "button", class: "link", onclick: () => openMolecule(place) },
      nameOf(data.molecules[place])), " "]);
  const svg = row.draw
    ? picture({ picture: row.draw, relevance: row.draw.x.map(() => row.per_atom[0]), limit: data.limit },
      { "aria-label": `Fragment ${row.name}` }, true)
    : element("span");
  const leading = (id, show, words) => element("button", { type: "button", class: "link more", onclick: () => {
    selectTab(id, true);
    show(row.smiles, row.name);
  } }, words);
  return element("div", { class: "part" }, svg, element("div", {},
    element("p", { class: "mean" }, row.name),
    element("p", { class: "soft" }, `${counted(row.atoms, "atom")}, in ${counted(row.molecules, "molecule")}`),
    ...Object.entries(RANKINGS).flatMap(([column, words]) => [
      element("p", {}, `${words}: ${bounded(row[column])}`), range(row[column], limits[column])]),
    element("p", { class: "smiles" }, row.smiles),
    element("p", { class: "soft" }, "Examples: ", ...examples),
    leading("molecules", chooseFragment, row.molecules === 1 ? "Show the molecule" : `Show all ${number(row.molecules)}`),
    ...(data.map ? [" ", leading("map", colourMap, "on the map")] : [])));
}

function rankFragments() {
  const { rows, shown: most } = data.fragments;
  const column = byId("ranking").value;
  const value = (row) => row[column][0];
  const sorted = [...rows].sort((a, b) => value(b) - value(a));
  const limits = Object.fromEntries(Object.keys(RANKINGS).map((name) =>
    [name, 1.5 * Math.max(...rows.map((row) => Math.abs(row[name][0])), 1e-9)]));
  const side = (title, chosen) => element("div", {}, element("h2", {}, title),
    ...(chosen.length ? chosen.map((row) => fragmentEntry(row, limits)) : [element("p", {}, "None.")]));
  const first = sorted.filter((row) => value(row) > 0).slice(0, most);
  const last = sorted.reverse().filter((row) => value(row) < 0).slice(0, most);
  for (const svg of byId("parts").querySelectorAll("svg.molecule")) forget(svg);
  byId("parts").replaceChildren(...(word
    ? [side(`Most ${word} ${RANKINGS[column]}`, first)]
    : [side(`Most positive relevance ${RANKINGS[column]}`, first), side(`Most negative relevance ${RANKINGS[column]}`, last)]));
}

function showFragments() {
  const fragments = data.fragments;
  if (!fragments) {
    byId("fragments").append(element("p", {}, "The molecules are explained for different classes, so their relevance cannot be averaged. Choose one target to compare fragments."));
    return;
  }
  const few = fragments.rows.some((row) => row.mean.length === 1);
  const about = few
    ? `No fragment occurs in ${fragments.enough} or more molecules, so all are ranked, without intervals.`
    : `${number(fragments.ranked)} of ${number(fragments.distinct)} fragments occur in ${fragments.enough} or more molecules and are ranked. Brackets hold the 95 % interval of the mean over molecules; an arrow says that it goes on beyond the axis.`;
  const select = element("select", { id: "ranking", onchange: rankFragments });
  options(select, Object.entries(RANKINGS));
  byId("fragments").append(
    element("p", { class: "note" }, `The molecules are divided into ${fragments.divided}. The relevance of a whole fragment is the sum over its atoms, so it grows with the fragment. Relevance per atom is this sum divided by the number of atoms. Both are averaged over the molecules that contain it. Pictures have the colour of the relevance per atom. ${about} This is an association within these molecules, not proof of a cause.`),
    element("div", { class: "tools" }, element("label", {}, "Rank by relevance ", select)),
    element("div", { class: "parts", id: "parts" }));
  rankFragments();
}
