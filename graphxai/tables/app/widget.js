/* Ask the kernel for the program of the view (notebook_view.js), and show it. A notebook stores this
   short script with every widget. Where no kernel answers, the picture beside the view remains. */

const SILENT = {{SILENT}};
const PATIENCE = 3000; // milliseconds

/* Hide the pictures that are stored for this widget, and return a function that shows them again. */
function hideStill(name) {
  const rule = document.createElement("style");
  rule.textContent = `.${name}, .jp-OutputArea-child:has(.${name}) { display: none }`;
  document.head.append(rule);
  return () => rule.remove();
}

export default {
  render({ model, el }) {
    const id = `program-${Math.random()}`; // of this view, because all take the kernel's messages
    const ends = [];
    let gone = false;
    const note = document.createElement("p");
    const late = setTimeout(() => { note.textContent = SILENT; el.append(note); }, PATIENCE);
    const take = async (reply) => {
      if (reply.id !== id || !reply.value) return;
      model.off("msg:custom", take);
      clearTimeout(late);
      note.remove();
      const address = URL.createObjectURL(new Blob([reply.value], { type: "text/javascript" }));
      const { show } = await import(address);
      URL.revokeObjectURL(address);
      if (!gone) ends.push(show(model, el), hideStill(model.get("still")));
    };
    model.on("msg:custom", take);
    model.send({ id, name: "program" });
    return () => {
      gone = true;
      clearTimeout(late);
      model.off("msg:custom", take);
      for (const end of ends) end();
    };
  },
};
