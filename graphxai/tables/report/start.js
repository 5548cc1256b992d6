/* Fill the page. */

byId("about").textContent = `${data.source}: ${number(data.molecules.length)} explained by ${data.titles[data.method]}; model ${data.model.name}${data.model.heading ? `, ${data.model.heading} on test data` : ""}. ${data.model.score}`;
const beside = (data.several?.models || []).slice(1);
if (beside.length) byId("about").append(` Colours, trust and fragments come from this model. ${new Intl.ListFormat("en").format(beside)} also predict${beside.length > 1 ? "" : "s"}; the test scores are under Model.`);
byId("notes").textContent = data.words.notes.join(" ");
byId("notes").hidden = !data.words.notes.length;
byId("intro").textContent = data.words.intro;
byId("full").textContent = data.words.full;
prepareTools();
showBar();
arrange();
showMeasured();
prepareMap();
prepareBasket();
showFragments();
showStructureActivity();
showModel();
showRejected();
