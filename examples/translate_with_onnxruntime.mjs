// Run the search of an artifact in JavaScript with onnxruntime-web. onnxruntime-node has the same API.
//
//     npm install onnxruntime-web
//     node examples/translate_with_onnxruntime.mjs artifact/model.onnx 5,6,7,3 8,3
//
// Each argument after the model is one sentence of token ids, ending with 3 (end of sentence). Id 0
// is padding. Prints the ids of the best hypothesis of each sentence, one sentence per line.

import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";

// Resolve the package from the current folder (or NODE_PATH), where `npm install` put it.
const ort = createRequire(join(process.cwd(), "index.js"))("onnxruntime-web");

async function translate(model, sentences) {
  const graph = new Uint8Array(await readFile(model));
  const session = await ort.InferenceSession.create(graph, { logSeverityLevel: 3 });
  const width = Math.max(...sentences.map((ids) => ids.length));
  const source = new Int32Array(sentences.length * width);
  sentences.forEach((ids, row) => source.set(ids, row * width));
  const { tokens, lengths } = await session.run({
    source: new ort.Tensor("int32", source, [sentences.length, width]),
  });
  const [, beam, maxLength] = tokens.dims;
  return sentences.map((_, row) => {
    const start = row * beam * maxLength; // the best hypothesis comes first
    return Array.from(tokens.data.slice(start, start + lengths.data[row * beam]));
  });
}

const [model, ...sentences] = process.argv.slice(2);
for (const ids of await translate(model, sentences.map((text) => text.split(",").map(Number)))) {
  console.log(ids.join(","));
}
