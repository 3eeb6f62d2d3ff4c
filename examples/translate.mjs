// The search of an artifact in JavaScript, with onnxruntime-web (or onnxruntime-node, the same way).
//
//     npm install onnxruntime-web
//     node examples/translate.mjs artifact/model.onnx 5,6,7,3 8,3
//
// Each argument after the model is a sentence of ids that ends with 3; 0 pads at the right. Prints
// the ids of the best output for each sentence, one a line.

import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";

// Found from where the command runs (or by NODE_PATH), as this file may lie elsewhere.
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
  const [, beam, longest] = tokens.dims;
  return sentences.map((_, row) => {
    const start = row * beam * longest; // the best hypothesis stands first
    return Array.from(tokens.data.slice(start, start + lengths.data[row * beam]));
  });
}

const [model, ...sentences] = process.argv.slice(2);
for (const ids of await translate(model, sentences.map((text) => text.split(",").map(Number)))) {
  console.log(ids.join(","));
}
