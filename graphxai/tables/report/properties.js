/* Several properties: what each model predicts and sees, and how desirable that is. */

const isWished = () => Boolean(data.several?.goals.length);

/* How good it is to be as near the training set, by the errors of that model. */
const levelOfDistance = (property) => (property[2] && property[9]) || "";

/* What was measured of a property of a molecule, or a bound of it, or null. */
const measuredOf = (property) => (property && (property[7] || property[8])) || null;

/* The properties on a card of the grid: a line for each, in the colour of the goal. A word warns of a distant training set. */
function propertyLines(molecule) {
  if (!data.several) return "";
  const lines = molecule.properties.map((property, k) => {
    const [text, , near, sentence] = property || ["not readable", "", "", ""];
    const isDistant = ["caution", "warning"].includes(levelOfDistance(property || []));
    return element("li", { title: sentence }, scored(`${data.several.names[k]} ${text}`, property?.[10]), isDistant ? ` ${WHERE[near]}` : "",
      measuredOf(property) ? element("span", { class: "soft" }, `, measured ${inWords(measuredOf(property))}`) : "");
  });
  if (isWished()) lines.unshift(element("li", {}, element("strong", {}, `desirability ${hundredths(molecule.desirability)}`)));
  return element("ul", { class: "properties" }, ...lines);
}

/* The table of all properties in the dialog. */
function propertyTable(molecule) {
  if (!data.several) return "";
  const isMeasured = molecule.properties.some(measuredOf);
  const heads = ["Property", ...(isMeasured ? ["Measured"] : []), "Predicted", "Training set", ...(isWished() ? ["Desirability"] : [])];
  const rows = molecule.properties.map((property, k) => {
    const name = element("th", { scope: "row" }, data.several.names[k]);
    if (!property) return element("tr", {}, name, element("td", { colspan: heads.length - 1 }, "not readable for this model"));
    const [text, range, near, sentence, desirability] = property;
    return element("tr", {}, name, ...(isMeasured ? [element("td", {}, inWords(measuredOf(property)))] : []), element("td", {}, scored(text, property[10]), range ? ` (${range})` : ""),
      element("td", { title: sentence }, near ? badge(levelOfDistance(property), WHERE[near]) : ""),
      ...(isWished() ? [element("td", { class: "number" }, desirability === null ? "" : hundredths(desirability))] : []));
  });
  const joined = isWished() ? [element("tr", { class: "sum" }, element("th", { scope: "row", colspan: heads.length - 1 }, "together"), element("td", { class: "number" }, hundredths(molecule.desirability)))] : [];
  return element("div", { class: "block" }, element("h3", {}, "All properties"), element("div", { class: "scroll" }, element("table", {},
    element("thead", {}, element("tr", {}, ...heads.map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...rows, ...joined))), isWished() ? goalKey() : "",
  ...(isWished() ? [element("details", { class: "note" }, element("summary", {}, "How desirability is counted"), element("ul", {}, ...data.several.goals.map((line) => element("li", {}, line))))] : []));
}

/* The molecule as every model sees it, each in its own colour scale. */
function viewsOf(molecule) {
  if (!data.several || !molecule.views.length) return "";
  const first = { model: data.several.models[0], target: molecule.target, legend: molecule.legend, r: molecule.r, pale: molecule.pale, equivalent: molecule.equivalent, bonds: molecule.bonds };
  const figures = [first, ...molecule.views].map((view) => {
    const limit = Math.max(...view.r.map(Math.abs)) || 1;
    const words = `${view.model}: ${view.target}`;
    return element("figure", {}, dialogPicture({ picture: view.draw || molecule.draw, relevance: averaged(view, view.r), bonds: view.bonds, limit }, { "aria-label": `Atoms coloured by relevance for ${words}` }),
      element("figcaption", {}, element("strong", {}, words), ` \u00b7 full colour at ${written(limit, limit, data.method)}, ${view.legend[1]}`));
  });
  return element("div", { class: "block" }, element("h3", {}, "What each model sees"),
    element("p", { class: "note" }, "Models differ in their units, so each has its own colour scale."), element("div", { class: "methods" }, ...figures));
}

