/* Draw a molecule in the editor of OpenChemLib, which is loaded when it is first opened. */

let sketching = null; // a promise of the editor and of its library
let sketchedFrom = { index: -1, code: "" }; // what the editor began with: its place in the history, its ID code

async function loadSketcher() {
  const library = await host.editor();
  return { library, editor: new library.CanvasEditor(byId("sketcher")) };
}

/* Wait until the editor has the size of its place, which it gets after the next frame. */
const sized = () => new Promise((resolve) => { requestAnimationFrame(() => requestAnimationFrame(resolve)); });

/* Open the editor, with the molecule that is shown. */
async function sketch() {
  byId("sketch").hidden = false;
  await trying(async () => {
    sketching ||= loadSketcher();
    sketching.catch(() => { sketching = null; }); // so that it can be tried again
    const { library, editor } = await sketching;
    await sized(); // what it draws before is lost
    if (current()) {
      const { block } = await ask("block", { smiles: current().smiles }, "block");
      editor.setMolecule(library.Molecule.fromMolfile(block));
    }
    sketchedFrom = { index: state.at, code: editor.getMolecule().getIDCode() };
  });
}

const putAway = () => { byId("sketch").hidden = true; };

/* Show the molecule that was drawn. OpenChemLib does not say what is aromatic: RDKit finds it. Its
   SMILES have no racemates, but its mol blocks do. */
async function showSketched() {
  await trying(async () => {
    const { editor } = await sketching;
    const molecule = editor.getMolecule();
    if (!molecule.getAllAtoms()) throw new Error("Nothing is drawn yet.");
    if (molecule.getIDCode() === sketchedFrom.code) return putAway();
    const { smiles } = await ask("canonical", { block: molecule.toMolfileV3() }, "canonical");
    await add(smiles, "drawn", sketchedFrom.index);
  });
}

byId("sketcher").addEventListener("keydown", (event) => event.stopPropagation()); // they draw atoms
