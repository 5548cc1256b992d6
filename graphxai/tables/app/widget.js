/* Show the view in a notebook. Requests are messages to the kernel, and the widget's `link` names
   what is shown. The view is in a shadow root, so that several views on one page stay apart. */

function view(root, host) {
{{SCRIPT}}
}

const STYLE = {{STYLE}};
const VIEW = {{VIEW}};

/* Tell whether the notebook is dark here, by the first background behind an element that is not
   transparent. A canvas reads colours in every notation. */
function isDark(node) {
  const canvas = document.createElement("canvas").getContext("2d");
  for (; node; node = node.parentElement || node.getRootNode().host) {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = getComputedStyle(node).backgroundColor || "transparent";
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, opacity] = canvas.getImageData(0, 0, 1, 1).data;
    if (opacity > 127) return r + g + b < 384;
  }
  return false;
}

function hostOf(model, frame) {
  const viewId = `${Math.random()}`; // the widget may be shown several times, also in other windows
  const waiting = new Map(); // for the id of each request, the function that takes its replies
  let requests = 0;
  let shown = null;
  let restored = () => {};
  const take = (reply) => waiting.get(reply.id)?.(reply);
  const linked = () => model.get("link") !== shown && restored(shown = model.get("link"));
  model.on("msg:custom", take);
  model.on("change:link", linked);

  async function* steps(name, body, signal) {
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

  return {
    frame,
    steps,
    async ask(...request) {
      for await (const value of steps(...request)) return value;
    },
    begin(restore) {
      restored = restore;
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
    },
  };
}

export default {
  render({ model, el }) {
    const place = document.createElement("div");
    place.dataset.lmSuppressShortcuts = "true"; // JupyterLab leaves the keys to the view
    place.className = "graphxai-view";
    el.append(place);
    place.style.colorScheme = isDark(el) ? "dark" : "light";
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
    return () => host.end();
  },
};
