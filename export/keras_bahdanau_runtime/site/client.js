// The client of the site's page: translations of a worker that runs the model in the browser.

const SITE = /* site */ null; // the models and files of the site
const isEmbedded = window !== window.top;
// A module with one SIMD operation: a function that splats 0 to a vector.
const SIMD_MODULE = [0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 8, 1, 6, 0, 65, 0, 253, 15, 11];
const STORING_TIME = 5000; // milliseconds in which a browser stores compiled code

const client = {
  sentences: {
    no_worker: "This page may not start a worker, which runs the model, because it is in a sandbox. Open it in a tab of its own.",
    no_simd: "This browser cannot run the model, because it has no WebAssembly with SIMD. Use Chrome or Edge 123, Firefox 120, Safari 17.5, or a later version.",
    unreachable: "The model could not be downloaded. Are you online?",
    missing: "A file of the model is missing on this web server.",
    changed: "A downloaded file of the model is damaged: its hash is not the expected one.",
    unsupported: "This browser cannot run the search of this model.",
    too_large: "The text is too long for this model. Shorten or split it.",
    internal: "The model stopped with an error.",
  },
  refusal: "The text cannot be translated",
  temporary: ["unreachable", "missing", "changed", "internal"],
  typingPause: 150,
  examples: SITE.examples,

  async models() {
    return SITE.models;
  },

  /** Downloads the first model, and translates the first example. */
  started() {
    byId("source").value ||= SITE.examples[0] ?? "";
    count();
    const open = () => byId("source").value ? translate() : call(SITE.models[0]).catch(() => {}); // shown with the first text
    if (!isEmbedded) {
      open();
      return;
    }
    // Not every reader of the page around the frame wants the download.
    const used = new AbortController();
    used.signal.addEventListener("abort", open);
    for (const event of ["focusin", "pointerdown"]) addEventListener(event, () => used.abort(), { signal: used.signal });
  },

  async translate({ model: name, ...body }, signal) {
    const model = SITE.models.find((each) => each.name === name);
    const hypotheses = await call(model, body, signal);
    if (serviceWorkers && !serviceWorkers.controller) keepSite(model, body);
    return hypotheses;
  },
};

// Features that a sandbox refuses: some of them are absent there, others throw an error.

const serviceWorkers = tryTo(() => navigator.serviceWorker);
const hasSimd = () => tryTo(() => WebAssembly.validate(Uint8Array.from(SIMD_MODULE))) ?? false;

/** Returns the function's result, or null if it throws an error. */
function tryTo(use) {
  try { return use(); } catch { return null; }
}

// The worker.

let worker = isEmbedded ? null : tryTo(startWorker); // while the page is built
let reply = null; // the functions that settle the current call
let turn = Promise.resolve(); // when the current call has ended

/** Calls the worker, one call after another, and returns its result. */
async function call(model, body, signal) {
  const before = turn;
  let end;
  turn = new Promise((resolve) => { end = resolve; });
  const aborted = signal && new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
  const result = before.then(() => {
    signal?.throwIfAborted();
    return post(model, body);
  });
  result.then(end, end);
  return aborted ? Promise.race([result, aborted]) : result;
}

function post(model, body) {
  if (!hasSimd()) throw new RequestError("no_simd");
  worker ??= tryTo(startWorker);
  if (!worker) throw new RequestError("no_worker");
  return new Promise((resolve, reject) => {
    reply = { resolve, reject };
    worker.postMessage(createMessage(model, body));
  });
}

function createMessage(model, body) {
  const isOffline = Boolean(serviceWorkers?.controller);
  return { model: { ...model, wasm: SITE.wasm, isOffline }, body };
}

function startWorker() {
  const started = new Worker(SITE.worker, { type: "module" });
  started.addEventListener("message", ({ data: { loaded, total, error, result } }) => {
    if (total !== undefined) showProgress(loaded, total);
    else if (error) reply.reject(new RequestError(error.kind, error.message));
    else reply.resolve(result);
  });
  started.addEventListener("error", (event) => {
    event.preventDefault(); // it is shown on the page
    started.terminate();
    worker = null;
    reply?.reject(new RequestError("internal", event.message)); // there is no call yet if it could not start
  });
  return started;
}

let isKept = false;

/** Keeps the site for offline use, and its compiled code for the next visit. */
function keepSite(model, body) {
  if (isKept) return;
  isKept = true;
  // A browser stores the compiled code of onnxruntime only for a file of the service worker. When
  // that has all files, another worker translates the text once more, and ends when the code is stored.
  serviceWorkers.addEventListener("controllerchange", () => {
    const compiler = new Worker(SITE.worker, { type: "module" });
    compiler.addEventListener("message", ({ data: { total } }) => {
      if (total === undefined) setTimeout(() => compiler.terminate(), STORING_TIME);
    });
    compiler.postMessage(createMessage(model, body));
  }, { once: true });
  serviceWorkers.register("offline.js").catch(() => {}); // without one, the page works online only
}

function showProgress(loaded, total) {
  if (running) byId("status").textContent = `Loading the model: ${Math.round(100 * loaded / total)}% of ${(total / 1e6).toFixed(1)} MB`;
}

// Another page shows this one in a frame. Only a frame of the same site can be resized.
if (isEmbedded) {
  document.documentElement.classList.add("embedded");
  if (window.frameElement) {
    new ResizeObserver(() => { window.frameElement.style.height = `${document.body.scrollHeight}px`; }).observe(document.body);
  }
}
