/* One molecule in detail: a dialog, and a tip for the atom under the pointer. */

const dialog = byId("detail");
const tip = byId("tip");
const LEDGER = { without_nodes: "without nodes", nodes: "atoms", graph_token: "graph token", biases: "biases", unexplained: "unexplained" };

const fragmentOf = (molecule, atom) => molecule.fragments.find((part) => part[2].includes(atom));

/* An atom with its number in the molecule given, as in explanations.csv. */
const atomName = (molecule, i) => `${molecule.draw.e[i]} ${molecule.numbers ? molecule.numbers[i] : i}`;

/* The relevance of each feature of an atom. */
function featuresOf(molecule, atom) {
  const width = data.features.length;
  return molecule.features && molecule.features.slice(atom * width, (atom + 1) * width).map((value) => value / 10 ** data.feature_decimals);
}

/* What to say about one atom, as paragraphs. */
function aboutAtom(molecule, atom) {
  const meaning = word ? `(${word})` : molecule.legend[molecule.r[atom] < 0 ? 0 : 1];
  const lines = [element("strong", {}, `${atomName(molecule, atom)}: ${figure(molecule.r[atom])} ${meaning}`)];
  const values = featuresOf(molecule, atom);
  if (values) {
    const parts = data.features.map((name, k) => [name, values[k]]).filter((part) => part[1]);
    parts.sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
    const rest = parts.slice(4).reduce((sum, part) => sum + part[1], 0);
    const listed = parts.slice(0, 4).map(([name, value]) => `${name} ${figure(value)}`);
    if (parts.length > 4) listed.push(`other features ${figure(rest)}`);
    lines.push(element("div", {}, listed.join(", ")));
  }
  if (molecule.pale && molecule.pale.includes(atom)) lines.push(element("div", {}, "pale: models disagree on its sign"));
  const part = fragmentOf(molecule, atom);
  const same = molecule.equivalent.find((atoms) => atoms.includes(atom));
  if (same) lines.push(element("div", {}, `drawn in the mean colour of ${same.map((i) => atomName(molecule, i)).join(", ")}, which are equivalent by resonance: ${figure(averaged(molecule, molecule.r)[atom])}`));
  if (part) lines.push(element("div", {}, `in ${part[0]}, ${part[2].length} atom${part[2].length === 1 ? "" : "s"}: ${figure(part[3])}`));
  return lines;
}

function showTip(svg, molecule, atom, x, y) {
  tip.replaceChildren(...aboutAtom(molecule, atom));
  (svg.closest("dialog") || document.body).append(tip); // only a child of an open dialog is shown above it
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 4))}px`;
  tip.style.top = `${y + 18 + height > innerHeight ? Math.max(4, y - height - 12) : y + 18}px`;
}

document.addEventListener("pointermove", (event) => {
  const atom = event.target.dataset?.atom;
  const svg = atom === undefined ? null : event.target.closest("svg");
  const content = pictures.get(svg);
  if (!content?.molecule) {
    if (!tip.hidden) hideTip();
    return;
  }
  if (marked && marked !== svg) hideTip();
  marked = svg;
  const part = fragmentOf(content.molecule, Number(atom));
  markAtoms(svg, content.picture, part ? part[2] : [Number(atom)]);
  showTip(svg, content.molecule, Number(atom), event.clientX, event.clientY);
});

let marked = null;
function hideTip() {
  tip.hidden = true;
  if (marked) markAtoms(marked, pictures.get(marked).picture, []);
  marked = null;
}
document.addEventListener("scroll", hideTip, { capture: true, passive: true });

/* ---- the dialog ---- */

let opener = null; // the element that had the focus
let opened = null; // the position of the molecule shown
const inDialog = []; // pictures to drop when the dialog closes

function dialogPicture(content, attributes) {
  const svg = picture(content, attributes, false);
  inDialog.push(svg);
  return svg;
}

function openMolecule(place) {
  hideTip();
  if (!dialog.open) opener = document.activeElement;
  opened = place;
  for (const svg of inDialog.splice(0)) forget(svg);
  const molecule = data.molecules[place];
  const at = shown.indexOf(place);
  const turn = (step, words) => {
    const next = at < 0 ? undefined : shown[at + step];
    return element("button", { type: "button", class: "plain", disabled: next === undefined,
      onclick: () => openMolecule(next) }, words);
  };
  dialog.replaceChildren(
    element("div", { class: "top" }, element("h2", { id: "detail-title" }, nameOf(molecule)),
      ...(data.map ? [element("button", { type: "button", class: "plain", onclick: () => {
        byId("search").value = `~${nameOf(molecule)}`;
        dialog.close();
        selectTab("molecules");
        arrange();
      } }, "Similar molecules")] : []),
      keeper([place], true), turn(-1, "\u2190 Previous"), turn(1, "Next \u2192"),
      element("button", { type: "button", class: "plain", onclick: () => dialog.close() }, "Close")),
    element("div", { class: "body" },
      element("div", {}, ...largePicture(molecule), fragmentTable(molecule)),
      element("div", {}, predictions(molecule), propertyTable(molecule), trustPanel(molecule), ledger(molecule)),
      element("div", { class: "wide" }, viewsOf(molecule), account(molecule), changes(molecule, place), methods(molecule))));
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  dialog.querySelector("svg.large").focus({ preventScroll: true });
}

dialog.addEventListener("close", () => {
  hideTip();
  document.body.append(tip);
  dialog.replaceChildren();
  for (const svg of inDialog.splice(0)) forget(svg);
  const fromGrid = opener === document.body || opener?.closest("#grid");
  if (fromGrid && shown.includes(opened)) rove(opened, true);
  else opener?.focus();
});
dialog.addEventListener("click", (event) => {
  if (event.target === dialog) dialog.close(); // the backdrop
});

function largePicture(molecule) {
  const caption = element("div", { class: "atom", role: "status" },
    "Point at an atom, or step through the atoms with the arrow keys.");
  const svg = dialogPicture(
    { picture: molecule.draw, relevance: averaged(molecule, molecule.r), bonds: molecule.bonds, limit: data.limit, molecule },
    { class: "molecule large", tabindex: 0, role: "img",
      "aria-label": `Atoms of ${nameOf(molecule)} coloured by relevance; arrow keys step through them` });
  let atom = -1;
  const say = (next) => {
    atom = next;
    markAtoms(svg, molecule.draw, [atom]);
    caption.replaceChildren(...aboutAtom(molecule, atom));
  };
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    say((Math.max(atom, step > 0 ? -1 : 0) + step + molecule.r.length) % molecule.r.length);
  });
  svg.addEventListener("pointerover", (event) => {
    if (event.target.dataset.atom !== undefined) {
      atom = Number(event.target.dataset.atom);
      caption.replaceChildren(...aboutAtom(molecule, atom));
    }
  });
  return [svg, colourBar(data.limit, data.ticks), caption, element("p", { class: "smiles" }, molecule.smiles)];
}

function predictions(molecule) {
  const more = [["Measured", measuredWords(molecule)], ["Model's data", PARTS[molecule.part]], ["Molecule", molecule.note], ["Acid or base", molecule.ionisation], ["Training set", molecule.near], ["Full card for", molecule.full]];
  const stated = molecule.predictions.map(([task, text], k) => [task, molecule.ranges[k] ? `${text} (${molecule.ranges[k]})` : text]);
  return element("div", { class: "block" }, facts([...(data.several ? [] : stated), ...more.filter((fact) => fact[1])]));
}

function trustPanel(molecule) {
  const block = element("div", { class: "block" }, element("h3", {}, "Can this be trusted?"));
  const { level, sentence, signs } = molecule.trust;
  block.append(element("p", { class: `verdict ${level}` }, sentence),
    element("ul", { class: "signs" }, ...signs.map(([name, sign, text, structures]) => element("li", {},
      badge(sign, { good: "good", caution: "caution", warning: "warning", unknown: "unknown", known: "known" }[sign]),
      element("span", {}, element("strong", {}, `${name}: `), text, drawnSmall(structures || []))))),
    isFull(molecule) ? "" : element("p", { class: "note" }, "Not tested here: whether the relevance depends on how the structure is written."),
    element("p", { class: "note" }, data.rule));
  return block;
}

/* The structures that a sign is about, as small pictures without colours. */
const drawnSmall = (structures) => element("div", { class: "structures" }, ...structures.filter((smiles) => data.neighbours[smiles]).map((smiles) =>
  dialogPicture({ picture: data.neighbours[smiles], relevance: null, limit: 1 }, { "aria-label": smiles })));

function ledger(molecule) {
  if (!molecule.ledger) return element("p", { class: "block note" }, `The scores of this method are not shares of the output (${figure(molecule.output)}), so they have no ledger.`);
  const first = ["without_nodes", "change", "output"]; // what the atoms changed, before the method's shares
  const ofGroups = (name) => name.startsWith("curve: ") || name === "group_error"; // no shares of the output
  const entries = Object.entries(molecule.ledger).filter(([name]) => name !== "total" && !first.includes(name) && !ofGroups(name));
  const row = (name, value, kind) => element("tr", { class: kind },
    element("th", { scope: "row" }, LEDGER[name] || name), element("td", { class: "number" }, figure(value)));
  const groups = Object.entries(molecule.ledger).filter(([name]) => ofGroups(name)).map(([name, value]) => row(name.replaceAll("_", " "), value, "within"));
  const changed = first.slice(0, 2).filter((name) => name in molecule.ledger).map((name) => row(name, molecule.ledger[name], ""));
  const rows = entries.map(([name, value]) => {
    const part = name.split(/^(?:unexplained|nodes): /)[1]; // a part of the row above
    return part ? row(part, value, "within") : row(name, value, "");
  });
  return element("div", { class: "block" }, element("h3", {}, "Ledger"),
    element("table", {}, element("tbody", {}, ...changed,
      row(`output for ${molecule.target}`, molecule.ledger.output, "sum"),
      element("tr", {}, element("th", { scope: "row", colspan: 2 }, "divided into shares")), ...rows,
      ...(groups.length ? [element("tr", {}, element("th", { scope: "row", colspan: 2 }, "a group is without nodes + shares + curve")), ...groups] : []))),
    glossary());
}

/* The words of the ledger, explained on demand. */
function glossary() {
  const terms = Object.entries(data.words.terms);
  if (!terms.length) return "";
  return element("details", { class: "note" }, element("summary", {}, "What do these words mean?"),
    element("dl", {}, ...terms.flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)])));
}

function fragmentTable(molecule) {
  const svg = () => dialog.querySelector("svg.large");
  const without = molecule.fragments.some((part) => part.length > 4); // the output without each, said and measured
  const rows = molecule.fragments.map(([name, , atoms, relevance, ...outputs]) => {
    const mark = () => markAtoms(svg(), molecule.draw, atoms);
    const clear = () => svg() && markAtoms(svg(), molecule.draw, []);
    return element("tr", { class: "pick", tabindex: 0, onpointerenter: mark, onpointerleave: clear, onfocus: mark, onblur: clear },
      element("td", {}, name), ...[String(atoms.length), figure(relevance), figure(relevance / atoms.length), ...outputs.map(figure)].map((text) =>
        element("td", { class: "number" }, text)));
  });
  const heads = [["Fragment", ""], ["Atoms", "number"], ["Relevance", "number"], ["per atom", "number"], ...(without ? [["Output without it", "number"], ["measured", "number"]] : [])];
  return element("div", { class: "block" }, element("h3", {}, "Fragments"), element("p", { class: "note" }, `Divided into ${molecule.divided}.`), element("div", { class: "scroll" },
    element("table", {}, element("thead", {}, element("tr", {},
      ...heads.map(([name, kind]) => element("th", { scope: "col", class: kind }, name)))),
    element("tbody", {}, ...rows))));
}

/* Counterfactuals: what would change the prediction, if the report was built with them. */
function changes(molecule, place) {
  if (!molecule.changes) return "";
  const drawn = molecule.changes.found.map((counterfactual, k) => {
    const facts = [`similarity ${counterfactual.similarity}`, counterfactual.near, counterfactual.accessibility && `accessibility ${counterfactual.accessibility} of 10`,
      ...counterfactual.alerts.map((name) => `alert: ${name}`), counterfactual.measured];
    return element("figure", {},
      dialogPicture({ picture: counterfactual.draw, relevance: averaged(counterfactual, counterfactual.r), bonds: counterfactual.bonds, limit: data.limit }, { "aria-label": `${counterfactual.name}, atoms coloured by relevance` }),
      element("figcaption", {}, element("strong", {}, counterfactual.name), element("p", {}, counterfactual.prediction),
        element("p", {}, counterfactual.change, counterfactual.reached ? (counterfactual.sure ? " · sure" : "") : " (not what was asked for)"),
        element("p", {}, badge(counterfactual.trust.level), ` ${counterfactual.trust.sentence}`),
        element("p", { class: "soft" }, facts.filter(Boolean).join(" \u00b7 ")),
        element("p", { class: "smiles" }, counterfactual.smiles), keeper([place, k], true)));
  });
  return element("div", { class: "block" }, element("h3", {}, "What would change the prediction?"),
    element("p", { class: "note" }, molecule.changes.summary, drawn.length
      ? " The colours are those of the large picture. These are answers of the model, not measurements." : ""),
    element("div", { class: "methods" }, ...drawn));
}

/* The measured molecules that a process's value comes from. */
function account(molecule) {
  if (!molecule.account?.speaking.length) return "";
  const { sentence, limit, speaking } = molecule.account;
  return element("div", { class: "block" }, element("h3", {}, "Which measurements speak for it, and against it?"),
    element("p", { class: "note" }, `${sentence}. Training molecules are coloured where they resemble this one; the colours of each sum to its share.`),
    element("div", { class: "methods" }, ...speaking.map((other) => element("figure", {},
      dialogPicture({ picture: other.draw, relevance: other.r, limit }, { "aria-label": other.smiles }),
      element("figcaption", {}, element("strong", {}, `measured ${other.measured || "–"}`), ` \u00b7 share ${other.share} \u00b7 similarity ${other.similarity}`,
        element("p", { class: "smiles" }, other.smiles))))));
}

function methods(molecule) {
  const drawn = (words, content, note) => element("figure", {},
    dialogPicture(content, { "aria-label": words }), element("figcaption", {}, element("strong", {}, words), note));
  const largest = (relevance) => Math.max(...relevance.map(Math.abs)) || 1;
  const shownMethods = [[data.method, molecule], ...Object.entries(molecule.others)];
  const figures = shownMethods.map(([name, { r: relevance, pale }]) => drawn(data.titles[name] || name,
    { picture: molecule.draw, relevance: averaged(molecule, relevance, pale), limit: largest(relevance), method: name },
    ` \u00b7 ${data.unsigned[name] ? `${data.unsigned[name]}, ` : ""}full colour at ${written(largest(relevance), largest(relevance), name)}`));
  if (molecule.nearest && data.neighbours[molecule.nearest])
    figures.push(drawn("Nearest training compound",
      { picture: data.neighbours[molecule.nearest], relevance: null, limit: 1 }, ""));
  return element("div", { class: "block" }, element("h3", {}, "Side by side"),
    element("p", { class: "note" }, "Methods differ in their units, so each has its own colour scale."),
    isFull(molecule) ? "" : element("p", { class: "note" }, `Other methods were not run for this molecule. ${data.words.full} Build the report with a larger --detailed for more.`),
    element("div", { class: "methods" }, ...figures));
}
