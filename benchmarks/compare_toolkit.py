r"""Count the translations of an imported run that equal those of the toolkit's own decoder.

    keras-bahdanau import joeynmt joeynmt-run -o run
    python -m joeynmt test config.yaml --output-path joeynmt-output
    python benchmarks/compare_toolkit.py run test.bpe.en joeynmt-output.test --beam-size 5

Sources are split as for the toolkit. Pieces of subword-nmt in the toolkit's output are joined. For
OpenNMT-py, which counts the start token in the length and stops when its best candidate ends:

    onmt_translate -model model.pt -src test.bpe.en -output onmt-output -batch_size 1 \
        -max_length_ratio 0 -max_length 50
    python benchmarks/compare_toolkit.py run test.bpe.en onmt-output --beam-size 5 \
        --normalization plain --length-offset 1 --early-stopping best

For fairseq, whose score is divided by the length and whose outputs have at least one token:

    fairseq-generate data --path checkpoint_best.pt --beam 5 --max-len-b 49 > log
    grep ^H- log | cut -c3- | sort -n | cut -f3 > fairseq-output
    python benchmarks/compare_toolkit.py run test.bpe.en fairseq-output --beam-size 5 \
        --normalization plain --min-length 2
"""

import argparse
from pathlib import Path

from keras_bahdanau import BeamSearch, GreedySearch
from keras_bahdanau.training.run import load_best
from keras_bahdanau_runtime.text.corpus import read_lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("output", type=Path, help="The toolkit's translations of the source.")
    parser.add_argument("--beam-size", type=int, default=1)
    parser.add_argument("--length-penalty", type=float, default=1.0)
    parser.add_argument("--normalization", choices=("gnmt", "plain"), default="gnmt")
    parser.add_argument("--length-offset", type=int, default=0)
    parser.add_argument("--early-stopping", choices=("best", "never"), default=False)
    parser.add_argument("--min-length", type=int, default=0, help="With the end token.")
    parser.add_argument("--max-length", type=int, default=50)
    options = parser.parse_args()
    search = GreedySearch(min_length=options.min_length)
    if options.beam_size > 1:
        search = BeamSearch(
            options.beam_size,
            options.length_penalty,
            n_best=1 if options.early_stopping else None,
            early_stopping=options.early_stopping,
            normalization=options.normalization,
            length_offset=options.length_offset,
            min_length=options.min_length,
        )
    theirs = [f"{line} ".replace("@@ ", "").strip() for line in read_lines(options.output)]
    model, sources = load_best(options.run), read_lines(options.source)
    ours = model.translate(sources, search=search, max_length=options.max_length)
    rows = enumerate(zip(ours, theirs, strict=True), start=1)
    different = [(row, our.text, other) for row, (our, other) in rows if our.text.strip() != other]
    for row, our, other in different:
        print(f"line {row}\n  imported: {our}\n  toolkit:  {other}")
    print(f"{len(theirs) - len(different)} of {len(theirs)} translations are equal.")


if __name__ == "__main__":
    main()
