/* Show the view as the page of a server. Requests are sent by POST, with the token of the page's
   address, and a search answers line by line. After the #, the address names what is shown. */

const root = document;
const token = new URLSearchParams(location.search).get("token") || "";
const GONE = "The server does not answer. Start graphxai app again, copy the link of this page, and paste it into the first field of the new page.";

async function request(name, body, signal) {
  let response;
  try {
    response = await fetch(`api/${name}`, { // beside the page, which a proxy may serve in a folder
      method: "POST", signal, body: JSON.stringify(body),
      headers: { "Content-Type": "application/json", "X-Graphxai-Token": token },
    });
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error(GONE);
  }
  if (response.status === 403) throw new Error(GONE);
  if (!response.ok) throw new Error(await reasonOf(response));
  return response;
}

/* Why a request failed. A proxy answers in its own words, which are left out. */
async function reasonOf(response) {
  const { error } = await response.json().catch(() => ({}));
  const size = response.status === 413 ? ": the request is too large for it" : "";
  return error || `Status ${response.status} of a proxy on the way${size}.`;
}

const host = {
  frame: document.documentElement,
  ask: async (name, body, signal) => (await request(name, body, signal)).json(),
  async* steps(name, body, signal) {
    const response = await request(name, body, signal);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const step = JSON.parse(line);
        if (step.error) throw new Error(step.error);
        yield step;
      }
    }
  },
  editor: () => import(new URL(`openchemlib.js${location.search}`, location.href)), // with the token
  begin(restore) {
    window.addEventListener("hashchange", () => restore(location.hash));
    restore(location.hash);
  },
  remember: (link) => history.replaceState(null, "", `${location.pathname}${location.search}#${link}`),
  address: (link) => `${location.origin}${location.pathname}#${link}`, // without the token
};
