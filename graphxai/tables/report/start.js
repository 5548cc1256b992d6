/* Fill the page. */

byId("about").textContent = `${data.source}: ${number(data.molecules.length)} explained by ${data.titles[data.method]}; model ${data.model.name}${data.model.heading ? `, ${data.model.heading} on test data` : ""}. ${data.model.score}`;
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
