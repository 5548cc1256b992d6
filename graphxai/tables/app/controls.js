/* Answer the mouse, keys and files. The last line shows what the link names. */

function enter(text) {
  const named = text.match(/^\s*(?:https?:\/\/[^#]*)?#(.*)$/);
  if (named) return restore(named[1]);
  // groups of centres such as |&1:1|, which make a racemate, belong to the SMILES
  const [, smiles, groups, name] = text.trim().match(/^(\S*)(?:\s+(\|[^|]*\|))?\s*(.*)$/s);
  return smiles && add(groups ? `${smiles} ${groups}` : smiles, name, -1);
}

const undo = () => current() && current().parent >= 0 && go(current().parent);
const redo = () => {
  const children = state.nodes.map((node, i) => (node.parent === state.at ? i : -1)).filter((i) => i >= 0);
  return children.length && go(children.at(-1));
};
const cancel = () => running.suggest?.abort();

byId("enter").addEventListener("submit", (event) => {
  event.preventDefault();
  enter(byId("smiles").value);
});
/* The field holds the molecule shown: a first click or the key / selects it, so that typing replaces it. */
let justFocused = false;
byId("smiles").addEventListener("focus", (event) => { justFocused = true; event.target.select(); });
byId("smiles").addEventListener("click", (event) => { if (justFocused) event.target.select(); justFocused = false; });
byId("file").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  if (file) await open(file);
  event.target.value = "";
});
host.frame.addEventListener("dragover", (event) => { event.preventDefault(); host.frame.classList.add("dropping"); });
host.frame.addEventListener("dragleave", (event) => host.frame.contains(event.relatedTarget) || host.frame.classList.remove("dropping"));
host.frame.addEventListener("drop", async (event) => {
  event.preventDefault();
  host.frame.classList.remove("dropping");
  const [file] = event.dataTransfer.files;
  if (file) await open(file);
  else enter(event.dataTransfer.getData("text/plain"));
});
byId("model").addEventListener("change", async (event) => (await choose(event.target.value)) && chosen());
byId("method").addEventListener("change", (event) => { state.method = event.target.value; chosen(); });
byId("target").addEventListener("change", (event) => { [state.task, state.label] = JSON.parse(event.target.value); chosen(); });
byId("name").addEventListener("change", (event) => { current().name = event.target.value.trim(); drawTree(); remember(); });
for (const button of root.querySelectorAll("[data-example]")) button.addEventListener("click", () => enter(button.dataset.example));
byId("picture").addEventListener("keydown", arrow);
byId("suggest").addEventListener("submit", suggest);
byId("wish").addEventListener("input", (event) => { state.wish = event.target.value; });
byId("beside").addEventListener("toggle", drawSides);
byId("column").addEventListener("change", (event) => event.target.value && open(table.opened, event.target.value));
for (const button of root.querySelectorAll("[data-kind]")) button.addEventListener("click", () => download(button.dataset.kind, button));
const CLICKS = {
  draw: sketch, "put-away": putAway, sketched: showSketched,
  undo, redo, cancel, more: moreRows, keep: keepCurrent,
  lock: () => lock(place),
  "lock-part": () => lock(partOf(current().card, place)),
  unlock: () => { current().locked = []; drawPicture(); pick(place); remember(); },
  "see-all": () => {
    Object.assign(state, { models: [...about.models], methods: [] });
    byId("sides").replaceChildren();
    if (byId("beside").open) drawSides();
    byId("beside").open = true; // which draws, too
    byId("compare").scrollIntoView({ block: "nearest" });
  },
  link: () => trying(async () => {
    await navigator.clipboard.writeText(host.address(link()));
    byId("link").textContent = "Copied";
    setTimeout(() => { byId("link").textContent = "Copy link"; }, 2000);
  }),
};
for (const id in CLICKS) byId(id).addEventListener("click", CLICKS[id]);
const KEYS = {
  "/": () => byId("smiles").focus(),
  p: () => byId("picture").querySelector('[tabindex="0"]')?.focus(),
  l: () => place.length && lock(place),
  u: undo, r: redo, s: suggest, b: keepCurrent, Escape: cancel,
};
host.frame.addEventListener("keydown", (event) => {
  const writing = event.target.matches("input, select, textarea") && event.key !== "Escape";
  const pressed = event.ctrlKey || event.metaKey ? (event.key === "z" ? "u" : "") : event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (writing || event.altKey || !KEYS[pressed]) return;
  event.preventDefault();
  KEYS[pressed]();
});
host.begin(restore, say);
