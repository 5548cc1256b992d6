/* The tab with matched pairs and R-groups. */

function showStructureActivity() {
  byId("tab-sar").hidden = !data.sar;
  if (!data.sar) return;
  byId("sar").append(
    element("p", { class: "note" }, "What each change did among the compounds of this table, as measured and as predicted for the same compounds. In a matched pair, two compounds differ in one part at one bond (Hussain 2010). The cores of the tables of R-groups are the ring systems that most compounds share, with what links them (Bemis 1996). Click a heading to sort."),
    ...structureActivity(data.sar, {
      name: (place) => nameOf(data.molecules[place]),
      show: openMolecule,
      drawn: (content, words) => picture({ picture: content, relevance: null, limit: 1 }, { "aria-label": words }, true),
      leave: (node) => { for (const svg of node.querySelectorAll("svg.molecule")) forget(svg); },
    }));
}
