"""Add pieces with a part of the vocabulary to `expected.json`, with the library `sentencepiece`."""

import json
from pathlib import Path

import sentencepiece

FOLDER = Path(__file__).resolve().parent
expected = json.loads((FOLDER / "expected.json").read_text("utf-8"))
for name in ("unigram", "bpe"):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(FOLDER / f"{name}.model"))
    # Every second piece may be used, as by JoeyNMT, whose vocabulary may lack pieces.
    size = processor.get_piece_size()
    vocabulary = [processor.id_to_piece(index) for index in range(4, size, 2)]
    processor.SetVocabulary(vocabulary)
    texts = [text for text, *_ in expected[name]["texts"]]
    restricted = [[text, processor.encode(text, out_type=str)] for text in texts]
    expected[name] |= {"vocabulary": vocabulary, "restricted": restricted}
text = json.dumps(expected, ensure_ascii=False, indent=None)
(FOLDER / "expected.json").write_text(text.replace('"texts"', '\n"texts"') + "\n", "utf-8")
