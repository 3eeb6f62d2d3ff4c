"""The search of an artifact with nothing but onnxruntime, as a pattern for other languages.

    python examples/translate_with_onnxruntime.py artifact/model.onnx 5 6 7 3

Ids: 0 pads at the right, 3 ends a sentence. `Translator` adds to this the tokenizer, batches of
similar length and checks of the artifact.
"""

import sys

import numpy as np
import onnxruntime


def translate(model, sentences):
    """Ids of the best output for each of `sentences`, lists of ids that end with 3."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    width = max(map(len, sentences))
    source = np.array([[*ids, *[0] * (width - len(ids))] for ids in sentences], np.int32)
    tokens, lengths = session.run(["tokens", "lengths"], {"source": source})
    return [best[0, : count[0]].tolist() for best, count in zip(tokens, lengths, strict=True)]


if __name__ == "__main__":
    print(translate(sys.argv[1], [[int(token) for token in sys.argv[2:]]])[0])
