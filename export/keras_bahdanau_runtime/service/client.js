// The client of the service's page: requests to the HTTP server. Addresses are relative, so that a
// proxy may serve the page under any path.

// Kinds of errors by status, for responses of a proxy.
const KINDS = { 401: "unauthenticated", 403: "unauthenticated", 404: "not_found", 409: "conflict", 413: "too_large",
  429: "overloaded", 500: "internal", 502: "unavailable", 503: "unavailable", 504: "timeout" };

const client = {
  /** Sentences for the user by kind of error. */
  sentences: {
    unreachable: "The server cannot be reached. Is it running, and are you online?",
    interrupted: "The connection was lost before the translation was complete.",
    unauthenticated: "This server requires an API key.",
    not_found: "This model is no longer on the server. Reload the page to see the available models.",
    too_large: "The text is too long for this model. Shorten or split it.",
    overloaded: "The server is busy.",
    unavailable: "The server is starting or shutting down and takes no requests.",
    timeout: "The translation took too long and was cancelled. Try a shorter text.",
    internal: "Something went wrong on the server.",
  },

  /** The sentence for other kinds, before the message of the error. */
  refusal: "The server refused the request",

  /** Kinds of errors after which the user may try again. */
  temporary: ["unreachable", "interrupted", "overloaded", "unavailable", "timeout", "internal"],

  /** Milliseconds without a key before a text is translated; null to wait for the button. */
  typingPause: null,

  /** Texts that the page offers to translate. */
  examples: [],

  /** Returns the models. */
  async models(signal) {
    return (await readJson(await send("models", signal))).models;
  },

  /** Returns the hypotheses for a text, best first. */
  async translate(body, signal) {
    const [hypotheses] = (await readJson(await send("translate", signal, body))).translations;
    return [].concat(hypotheses); // with n_best 1 it is not a list
  },

  /** Returns the probable words after the beginning of a translation. */
  async alternatives(body, signal) {
    return (await readJson(await send("alternatives", signal, body))).alternatives;
  },

  /** Yields the events of a translation that is streamed. */
  async* stream(body, signal) {
    const response = await send("translate/stream", signal, body);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await withNetworkErrors("interrupted", reader.read());
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) yield JSON.parse(line.slice("data:".length));
      }
    }
  },
};

/** Sends a POST request with a body, otherwise a GET request, and returns the response. */
async function send(path, signal, body) {
  const headers = body ? { "Content-Type": "application/json" } : {};
  const key = readStorage("sessionStorage", "api-key");
  if (key) headers.Authorization = `Bearer ${key}`;
  const response = await withNetworkErrors("unreachable", fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal }));
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  const kind = problem.code ?? KINDS[response.status] ?? "refused";
  throw new RequestError(kind, problem.error ?? `status ${response.status}`, Number(response.headers.get("Retry-After")));
}

const readJson = (response) => withNetworkErrors("interrupted", response.json());

/** Returns the promise's value. A network error becomes a `RequestError` of this kind. */
async function withNetworkErrors(kind, promise) {
  try {
    return await promise;
  } catch (error) {
    throw error.name === "AbortError" ? error : new RequestError(kind);
  }
}
