/* Show the view in a notebook, for widget.js. Requests are messages to the kernel, and the widget's
   `link` names what is shown. The view is in a shadow root, so that several views on one page stay
   apart. */

function view(root, host) {
{{SCRIPT}}
}

const STYLE = {{STYLE}};
const VIEW = {{VIEW}};
const AGAIN = {{RESTARTED}};

/* Tell whether the notebook is dark here, by the first background behind an element that is not
   transparent. A canvas reads colours in every notation. */
function isDark(node) {
  const canvas = document.createElement("canvas").getContext("2d");
  for (; node; node = node.parentNode || node.host) {
    if (!(node instanceof Element)) continue;
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = getComputedStyle(node).backgroundColor || "transparent";
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, opacity] = canvas.getImageData(0, 0, 1, 1).data;
    if (opacity > 127) return r + g + b < 384;
  }
  return false;
}

/* Keep a view as dark or light as the notebook around it. A view may be made before it is in the
   page, where it has no background yet, and the theme may change later. */
function followTheme(place) {
  const follow = () => {
    if (place.isConnected) place.style.colorScheme = isDark(place.parentNode) ? "dark" : "light";
  };
  const later = () => { follow(); setTimeout(follow, 300); }; // style sheets come after attributes
  const appearance = new ResizeObserver(follow); // also when the view comes into the page
  appearance.observe(place);
  const theme = new MutationObserver(later);
  for (const node of [document.documentElement, document.body]) {
    theme.observe(node, { attributes: true });
  }
  const system = matchMedia("(prefers-color-scheme: dark)");
  system.addEventListener("change", later);
  follow();
  return () => {
    appearance.disconnect();
    theme.disconnect();
    system.removeEventListener("change", later);
  };
}

function hostOf(model, frame) {
  const viewId = `${Math.random()}`; // the widget may be shown several times, also in other windows
  const waiting = new Map(); // for the id of each request, the function that takes its replies
  let requests = 0;
  let gone = false;
  let inform = () => {};
  let shown = null;
  let restored = () => {};
  const take = (reply) => waiting.get(reply.id)?.(reply);
  const linked = () => model.get("link") !== shown && restored(shown = model.get("link"));
  const lost = () => { // the kernel was restarted, and answers no request of this view any more
    gone = true;
    for (const answer of [...waiting.values()]) answer({ error: AGAIN });
    if (!waiting.size) inform(AGAIN);
  };
  model.on("msg:custom", take);
  model.on("change:link", linked);
  model.on("comm_live_update", lost);

  async function* steps(name, body, signal) {
    if (gone) throw new Error(AGAIN);
    const id = `${viewId}-${requests++}`;
    const replies = [];
    let wake = () => {};
    const cancel = () => { model.send({ id, cancel: true }); wake(); };
    waiting.set(id, (reply) => { replies.push(reply); wake(); });
    signal?.addEventListener("abort", cancel);
    model.send({ id, name, body });
    try {
      for (;;) {
        while (!replies.length && !signal?.aborted) await new Promise((resolve) => { wake = resolve; });
        signal?.throwIfAborted();
        const reply = replies.shift();
        if (reply.error) throw new Error(reply.error);
        if (reply.over) return;
        yield reply.value;
      }
    } finally {
      waiting.delete(id);
      signal?.removeEventListener("abort", cancel);
    }
  }

  const host = {
    frame,
    steps,
    async ask(...request) {
      for await (const value of steps(...request)) return value;
    },
    async editor() {
      const { text } = await host.ask("editor");
      const address = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
      return import(address).finally(() => URL.revokeObjectURL(address));
    },
    begin(restore, say) {
      restored = restore;
      inform = say;
      linked();
    },
    remember(link) {
      if (link === shown) return;
      model.set("link", shown = link);
      model.save_changes();
    },
    address: (link) => `#${link}`,
    end() {
      model.off("msg:custom", take);
      model.off("change:link", linked);
      model.off("comm_live_update", lost);
    },
  };
  return host;
}

/* Show the view in an element, and return a function that ends it. */
export function show(model, el) {
  const place = document.createElement("div");
  place.dataset.lmSuppressShortcuts = "true"; // JupyterLab leaves the keys to the view
  place.className = "graphxai-view";
  el.append(place);
  const endOfTheme = followTheme(place);
  const root = place.attachShadow({ mode: "open" });
  const style = document.createElement("style");
  style.textContent = STYLE;
  const frame = document.createElement("div");
  frame.className = "frame";
  frame.tabIndex = -1; // a click anywhere in the view gives it the keys
  frame.innerHTML = VIEW;
  frame.addEventListener("keydown", (event) => event.stopPropagation());
  root.append(style, frame);
  const host = hostOf(model, frame);
  view(root, host);
  return () => { host.end(); endOfTheme(); };
}
