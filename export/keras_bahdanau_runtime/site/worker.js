// The worker of the site: it downloads a model, runs its search with onnxruntime-web, and decodes
// the translations. The page posts {model, body}, without a body to open the model only. The worker
// posts {loaded, total} during a download, and then {result} or {error}.

import * as ort from "./ort.js";
import { EOS, Tokenizer } from "./tokenizer.js";

const UNFAMILIAR = .5; // share of the characters of a text that are split into bytes or unknown

/** An error for the user, of a kind of `client.sentences`. */
class SiteError extends Error {
  constructor(kind, message = "") {
    super(message);
    this.kind = kind;
  }
}

// Downloads.

let loaded = 0, total = 0;
const subtle = self.crypto?.subtle; // only for pages of https and of this machine

/** Downloads a file {path, sha256, bytes}, and compares it with its hash. */
async function download({ path, sha256, bytes }) {
  total += bytes;
  const contents = new Uint8Array(bytes);
  let length = 0;
  try {
    // The browser compares hashes, too, but without progress and with the message of a lost
    // connection.
    const integrity = subtle ? undefined : `sha256-${btoa(String.fromCharCode(...fromHex(sha256)))}`;
    const response = await fetch(path, { integrity });
    if (!response.ok) throw new SiteError("missing", `${path}: status ${response.status}`);
    const reader = response.body.getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      if (length + part.value.length > bytes) throw new SiteError("changed", path);
      contents.set(part.value, length);
      length += part.value.length;
      loaded += part.value.length;
      postMessage({ loaded, total });
    }
    if (length !== bytes || (subtle && !await hasHash(contents, sha256))) throw new SiteError("changed", path);
  } catch (error) {
    loaded -= length;
    total -= bytes;
    throw error instanceof SiteError ? error : new SiteError("unreachable", `${path}: ${error.message}`);
  }
  return contents;
}

const fromHex = (digits) => digits.match(/../g).map((byte) => parseInt(byte, 16));

async function hasHash(contents, sha256) {
  const digest = new Uint8Array(await subtle.digest("SHA-256", contents));
  return fromHex(sha256).every((byte, index) => byte === digest[index]);
}

// Models.

const opened = new Map(); // promises of models by name, and of onnxruntime by RUNTIME
const RUNTIME = Symbol("onnxruntime");

/** Returns the promise that `create` returned for this name. After a failure it is called again. */
function openOnce(name, create) {
  if (!opened.has(name)) {
    const promise = create();
    opened.set(name, promise);
    promise.catch(() => opened.delete(name));
  }
  return opened.get(name);
}

async function loadRuntime(wasm, isOffline) {
  ort.env.wasm.numThreads = 1; // more threads need headers that not every server can send
  // A browser keeps the compiled code only of a file that it compiles during the download. The
  // service worker has compared its files with their hashes.
  if (isOffline) ort.env.wasm.wasmPaths = { wasm: new URL(wasm.path, import.meta.url).href };
  else ort.env.wasm.wasmBinary = await download(wasm);
}

async function openModel({ wasm, isOffline, files, ...model }) {
  const [, graph, tokenizer] = await Promise.all([openOnce(RUNTIME, () => loadRuntime(wasm, isOffline)), download(files.model), download(files.tokenizer)]);
  let session;
  try {
    // The export has optimized the graph. "all" needs 25 ms more to open a small model.
    const settings = { executionProviders: ["wasm"], graphOptimizationLevel: "basic", logSeverityLevel: 3 };
    session = await ort.InferenceSession.create(graph, settings);
  } catch (error) {
    throw new SiteError("unsupported", error.message);
  }
  return { ...model, session, tokenizer: new Tokenizer(JSON.parse(new TextDecoder().decode(tokenizer))) };
}

/** Returns the best hypotheses for a text, best first, like `POST /translate` of the service. */
async function translate({ session, tokenizer, dtypes, options, calibration, max_tokens, max_length, max_length_ratio }, { text, prefix, n_best, alignments, ...settings }) {
  if (!text.isWellFormed()) throw new SiteError("refused", "It contains half of a character.");
  const { ids: source, words } = tokenizer.encodeSource(text);
  if (source.length > max_tokens) throw new SiteError("too_large");
  const inputs = { source: new ort.Tensor("int32", Int32Array.from(source), [1, source.length]) };
  for (const [name, dtype] of Object.entries(dtypes)) {
    const value = settings[name] ?? options[name];
    inputs[name] = new ort.Tensor(dtype, dtype === "int32" ? Int32Array.of(value) : Float32Array.of(value), []);
  }
  if ("prefix" in options) {
    const encoded = prefix ? tokenizer.target.encodePrefix(prefix, words) : { ids: [], completions: [] };
    if (encoded === null) throw new SiteError("refused", "Its given beginning has words or characters that the model cannot write.");
    const { ids, completions } = encoded;
    const ratio = Math.fround(max_length_ratio ?? Infinity); // float32 like the graph
    const limit = Math.min(max_length, Math.max(1, Math.trunc(Math.fround(ratio * source.length))));
    if (ids.length > limit) throw new SiteError("refused", "Its given beginning is longer than a translation may be.");
    inputs.prefix = new ort.Tensor("int32", Int32Array.from([...ids, 0]), [1, ids.length + 1]);
    inputs.completions = new ort.Tensor("int32", Int32Array.from([...completions.flat(), 0, 0]), [1, completions.length + 1, 2]);
  }
  const fetched = ["tokens", "scores", "lengths", ...alignments ? ["alignments"] : [], ...calibration ? ["log_probs"] : []];
  const outputs = await session.run(inputs, fetched);
  const sourceTokens = tokenizer.source.tokens(source, words);
  const [, beam, steps] = outputs.tokens.dims;
  const hypotheses = [];
  for (let k = 0; k < Math.min(beam, n_best); k++) {
    const score = outputs.scores.data[k];
    if (score === -Infinity) continue; // the search found fewer hypotheses
    const output = Array.from(outputs.tokens.data.subarray(k * steps, k * steps + outputs.lengths.data[k]));
    const end = output.includes(EOS) ? output.indexOf(EOS) : output.length;
    const ids = output.slice(0, end + 1);
    const tokens = tokenizer.target.tokens(ids, words);
    const row = (step) => Array.from(outputs.alignments.data.subarray((k * steps + step) * source.length, (k * steps + step + 1) * source.length));
    hypotheses.push({ text: tokens.slice(0, end).join(""), score, tokens, source_tokens: sourceTokens, alignment: alignments ? ids.map((_, step) => row(step)) : null });
  }
  if (calibration && hypotheses.length) {
    const name = Object.keys(dtypes).find((each) => Math.fround(settings[each] ?? options[each]) !== Math.fround(options[each]));
    const reason = name ? `The confidence holds for ${name}=${options[name]}. Received: ${settings[name]}.` : prefix ? "The confidence holds for translations without a given beginning." : null;
    const judged = reason ? { confidence: null, expected_errors: null, token_confidences: null } : judge(calibration, outputs, hypotheses[0].tokens.length);
    Object.assign(hypotheses[0], judged, { uncalibrated: reason });
  }
  for (const output of Object.values(outputs)) output.dispose();
  if (hypotheses.some(({ score }) => !Number.isFinite(score))) throw new SiteError("internal", "The model returned a score that is not finite.");
  if (!hypotheses.length) throw new SiteError("refused", "The options of the search leave no translation.");
  if (unfamiliarShare(text, sourceTokens) > UNFAMILIAR) hypotheses[0].note = "The model knows few characters of this text, so the translation is probably wrong";
  return hypotheses;
}

const LARGEST = 20; // of the absolute logits and margins, in nats
const limited = (value) => Math.max(-LARGEST, Math.min(LARGEST, value));
const logistic = (logit) => 1 / (1 + Math.exp(-limited(logit)));

/** Returns the logit of a probability, from its logarithm. */
function logitOf(logProbability) {
  const value = Math.min(logProbability, -1e-12);
  return limited(value - Math.log(-Math.expm1(value)));
}

const weighted = ({ bias, weights }, features) => Object.entries(weights).reduce((sum, [name, weight]) => sum + weight * features[name], bias);

/** Returns the confidence in the best hypothesis, like `Calibration.judge` of the runtime. */
function judge(calibration, { log_probs: { data, dims: [, beam, steps] }, scores }, length) {
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const totals = [...Array(beam).keys()].filter((k) => scores.data[k] !== -Infinity).map((k) => sum(Array.from(data.subarray(k * steps, (k + 1) * steps))));
  const tokens = Array.from(data.subarray(0, length));
  const others = Math.log(sum(totals.slice(1).map((total) => Math.exp(total - totals[0]))));
  const features = {
    total: logitOf(totals[0]),
    mean: sum(tokens) / length,
    smallest: logitOf(Math.min(...tokens)),
    margin: totals.length > 1 ? limited(totals[0] - totals[1]) : LARGEST,
    share: limited(-others),
    length: Math.log(length),
  };
  const output = weighted(calibration.confidence, features);
  return {
    confidence: logistic(output),
    expected_errors: logistic(weighted(calibration.expected_errors, features)),
    token_confidences: tokens.map((value) => logistic(weighted(calibration.tokens, { token: logitOf(value), output }))),
  };
}

/** Returns the share of the characters of a text that have no token of their own or of a longer one. */
function unfamiliarShare(text, tokens) {
  const count = [...text].filter((character) => character.trim()).length;
  const isUnknown = (token) => token === "<unk>";
  // The tokens before the last one of a character have no text.
  const isSplit = (index) => tokens[index].trim() && tokens[index - 1] === "";
  return tokens.filter((token, index) => isUnknown(token) || isSplit(index)).length / count;
}

self.addEventListener("message", async ({ data: { model, body } }) => {
  try {
    const translator = await openOnce(model.name, () => openModel(model));
    postMessage({ result: body && await translate(translator, body) });
  } catch (error) {
    postMessage({ error: { kind: error.kind ?? "internal", message: error.message } });
  }
});
