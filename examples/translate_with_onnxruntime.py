"""Run the search of an artifact with onnxruntime alone, as a template for other languages.

    python examples/translate_with_onnxruntime.py artifact/model.onnx 5 6 7 3

Id 0 is padding, at the right, and 3 ends a sentence. `Translator` adds the tokenizer, batches of
similar length and checks of the artifact.
"""

import sys

import numpy as np
import onnxruntime


def translate(model, sentences):
    """Return the ids of the best hypothesis for each sentence.

    Args:
        model: Path of `model.onnx`.
        sentences: Lists of token ids that end with 3.
    """
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3  # without a warning for each optional input
    session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    width = max(map(len, sentences))
    source = np.array([[*ids, *[0] * (width - len(ids))] for ids in sentences], np.int32)
    tokens, lengths = session.run(["tokens", "lengths"], {"source": source})
    return [
        hypotheses[0, : length[0]].tolist()
        for hypotheses, length in zip(tokens, lengths, strict=True)
    ]


if __name__ == "__main__":
    print(translate(sys.argv[1], [[int(token) for token in sys.argv[2:]]])[0])
