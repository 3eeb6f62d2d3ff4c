r"""Compare a model with a small transformer of OpenNMT-py that CTranslate2 runs.

The transformer learns the same pairs of Multi30k, split into the same pieces. OpenNMT-py and
CTranslate2 have environments of their own: `ctranslate2` imports torch where it is installed, which
would count as time of its start.

    python -m venv onmt
    onmt/bin/pip install "torch==2.2.*" "numpy<2" OpenNMT-py==3.5.1 "ctranslate2>=4.8"
    python -m venv ct2
    ct2/bin/pip install "ctranslate2>=4.8" tokenizers

    python benchmarks/compare_transformer.py prepare RUN OUT --data DIR
    onmt/bin/python benchmarks/compare_transformer.py train OUT
    onmt/bin/python benchmarks/compare_transformer.py anneal OUT --rate RATE  # optional
    onmt/bin/python benchmarks/compare_transformer.py convert OUT
    python benchmarks/compare_transformer.py select OUT --python ct2/bin/python
    python benchmarks/compare_transformer.py measure OUT --python ct2/bin/python \
        float32=ARTIFACT int8=ARTIFACT transformer=OUT/best greedy=OUT/best:1

`prepare` writes the files of OpenNMT-py with the tokenizer of RUN, a folder of `keras-bahdanau
train`. `train` may be interrupted when the loss is low enough, and `anneal` then lowers the rate.
`convert` converts the last checkpoints and means of them, and `select` chooses one by BLEU on the
validation set. `measure` translates in rounds, each time in a new process. The number after a
transformer is its beam size, 5 if there is none. With `--length 16`, all outputs have 16 tokens, so
the speed of a transformer that is not trained can be measured. DIR has the files of
https://github.com/multi30k/dataset, data/task1/raw, decompressed, or translations by a teacher in
their place. Linux only.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("train", "val", "test_2016_flickr", "test_2017_flickr")
BEAM, BATCH, MAX_LENGTH = 5, 32, 100
SPECIAL = 4  # ids before those of the pieces
TOKENIZER = "tokenizer.json"
SINGLE = 100  # sentences whose latency is measured


def read_lines(path):
    return path.read_text("utf-8").removesuffix("\n").split("\n")


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


# Training, with the environment of OpenNMT-py.


def settings(folder, options):
    """Return the options of `onmt_train`, with the sizes in the parsed `options`."""
    return {
        "data": {
            "corpus": {
                "path_src": f"{folder}/train.pieces.en",
                "path_tgt": f"{folder}/train.pieces.de",
            }
        },
        "src_vocab": f"{folder}/vocabulary.txt",
        "share_vocab": True,
        "src_vocab_size": 8000,
        "save_model": f"{folder}/checkpoint",
        "save_checkpoint_steps": options.every,
        "keep_checkpoint": 100,
        "train_steps": options.updates,
        "valid_steps": 10**6,  # `select` validates by BLEU
        "report_every": 50,
        "seed": 1,
        "num_workers": 0,
        "bucket_size": 30000,
        "batch_type": "tokens",
        "batch_size": options.batch_tokens,
        "normalization": "tokens",
        "optim": "adam",
        "adam_beta2": 0.998,
        "decay_method": "noam",
        "learning_rate": options.rate,
        "warmup_steps": options.warmup,
        "max_grad_norm": 0,
        "label_smoothing": 0.1,
        "param_init": 0,
        "param_init_glorot": True,
        "encoder_type": "transformer",
        "decoder_type": "transformer",
        "position_encoding": True,
        "share_embeddings": True,
        "share_decoder_embeddings": True,
        "enc_layers": options.layers,
        "dec_layers": options.layers,
        "heads": options.heads,
        "self_attn_type": "scaled-dot",  # the only kind that CTranslate2 converts
        "hidden_size": options.units,
        "word_vec_size": options.units,
        "transformer_ff": options.feed_forward,
        "dropout": [options.dropout],
        "attention_dropout": [options.attention_dropout],
    }


def prepare(options):
    """Write the texts as pieces, the vocabulary and the options of `onmt_train`."""
    sys.path[:0] = [str(ROOT / "export")]
    from keras_bahdanau_runtime.text.tokenizer import Tokenizer

    folder = options.output.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.load(options.run / "corpus" / TOKENIZER)
    assert tokenizer.joint, "the transformer shares its embeddings"
    # The format of the library `tokenizers`, which the process with CTranslate2 reads.
    library = tokenizer.source
    (folder / TOKENIZER).write_text(library.to_str(), "utf-8")
    pieces = [library.id_to_token(index) for index in range(SPECIAL, library.get_vocab_size())]
    write_lines(folder / "vocabulary.txt", pieces)
    for part in PARTS:
        for language in ("en", "de"):
            lines = read_lines(options.data / f"{part}.{language}")
            write_lines(folder / f"{part}.{language}", lines)
            if part == "train":
                encodings = library.encode_batch(lines)
                split = [" ".join(encoding.tokens[:-1]) for encoding in encodings]  # without </s>
                write_lines(folder / f"{part}.pieces.{language}", split)
    # JSON is YAML, too.
    text = json.dumps(settings(folder, options), indent=1)
    (folder / "transformer.yaml").write_text(text + "\n", "utf-8")


def train(options, settings_file="transformer.yaml"):
    """Train, and print the CPU seconds."""
    # Torch 2.6 and later otherwise refuse checkpoints of OpenNMT-py, which contain its options.
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
    import torch
    from onmt.bin.train import main as onmt_train

    torch.set_num_threads(options.threads)
    sys.argv = ["onmt_train", "-config", str(options.output / settings_file)]
    onmt_train()
    print(f"{time.process_time():.0f} CPU seconds")


def anneal(options):
    """Continue after the last checkpoint with a rate that falls to 8 % in six steps."""
    last = max(options.output.glob("checkpoint_step_*.pt"), key=updates)
    parts, decay = 6, 0.6
    part = options.updates // parts
    changes = {
        "train_from": str(last),
        "reset_optim": "keep_states",
        "train_steps": updates(last) + options.updates,
        "save_checkpoint_steps": part,
        "decay_method": "none",
        "learning_rate": options.rate,
        "start_decay_steps": updates(last) + part,
        "decay_steps": part,
        "learning_rate_decay": decay,
    }
    settings = json.loads((options.output / "transformer.yaml").read_text("utf-8")) | changes
    (options.output / "anneal.yaml").write_text(json.dumps(settings, indent=1) + "\n", "utf-8")
    train(options, "anneal.yaml")


def convert(options):
    """Convert the last checkpoints to CTranslate2, and the mean of each one and those before it."""
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
    import torch
    from ctranslate2.converters import OpenNMTPyConverter
    from onmt.bin.average_models import average_models

    checkpoints = sorted(options.output.glob("checkpoint_step_*.pt"), key=updates)
    mean = options.output / "mean.pt"
    for end in range(max(1, len(checkpoints) - options.last + 1), len(checkpoints) + 1):
        models = {"last": checkpoints[end - 1]}
        if end >= options.mean:
            models["mean"] = mean
            torch.save(average_models(checkpoints[end - options.mean : end]), mean)
        for kind, path in models.items():
            target = options.output / "int8" / f"{kind}-{updates(checkpoints[end - 1])}"
            if not target.exists():
                OpenNMTPyConverter(str(path), unsafe_deserialization=True).convert(
                    str(target), quantization="int8"
                )
                shutil.copy(options.output / TOKENIZER, target)


def updates(checkpoint):
    """Return the number of updates of a checkpoint of OpenNMT-py."""
    return int(checkpoint.stem.rpartition("_")[2])


# Translation with CTranslate2, in an environment with `ctranslate2` and `tokenizers` alone.


class Transformer:
    """A model of CTranslate2 and its tokenizer.

    Args:
        folder: Folder of the converted model, with `tokenizer.json`.
        beam: Number of hypotheses.
        threads: Number of threads.
        is_bulk: Whether each thread translates one batch. Otherwise all threads share a sentence.
        length: Number of tokens of each output; `None` for outputs that end themselves.
    """

    def __init__(self, folder, beam, threads, is_bulk, length=None):
        import ctranslate2
        from tokenizers import Tokenizer

        counts = (threads, 1) if is_bulk else (1, threads)
        self.tokenizer = Tokenizer.from_file(str(Path(folder, TOKENIZER)))
        self.translator = ctranslate2.Translator(
            str(folder), inter_threads=counts[0], intra_threads=counts[1]
        )
        self.limits = {"beam_size": beam, "max_decoding_length": length or MAX_LENGTH}
        if length:
            self.limits["min_decoding_length"] = length

    def translate(self, texts):
        """Return the best translation of each text."""
        sources = [encoding.tokens[:-1] for encoding in self.tokenizer.encode_batch(texts)]
        results = self.translator.translate_batch(sources, max_batch_size=BATCH, **self.limits)
        ids = [
            [self.tokenizer.token_to_id(token) for token in result.hypotheses[0]]
            for result in results
        ]
        return self.tokenizer.decode_batch(ids)


# Both kinds of models.


def folder_and_beam(model):
    """Return the folder and the beam size of an argument such as `OUT/best:1`."""
    folder, colon, beam = model.rpartition(":")
    return (Path(folder), int(beam)) if colon else (Path(beam), BEAM)


def is_transformer(folder):
    return Path(folder, "model.bin").exists()


def translation(options, is_bulk):
    """Open a model; return a function from texts to translations."""
    if is_transformer(options.folder):
        transformer = Transformer(
            options.folder, options.beam, options.threads, is_bulk, options.length
        )
        return transformer.translate
    from keras_bahdanau_runtime import Translator

    counts = {"threads": 1, "parallel_batches": options.threads}
    if not is_bulk:
        counts = {"threads": options.threads}
    translator = Translator(options.folder, **counts)
    limits = {"min_length": options.length, "max_length": options.length}
    return lambda texts: [best.text for best in translator.translate(texts, **limits)]


def translate(options):
    """Translate a file."""
    texts = read_lines(options.source)
    write_lines(options.target, translation(options, is_bulk=True)(texts))


def latency(options):
    """Translate single sentences, and print milliseconds of the clock and of the processor."""
    translate_texts = translation(options, is_bulk=False)
    texts = read_lines(options.source)[:SINGLE]
    translate_texts(texts[:5])
    wall, cpu = [], []
    for text in texts:
        began = time.perf_counter(), time.process_time()
        translate_texts([text])
        wall.append(1000 * (time.perf_counter() - began[0]))
        cpu.append(1000 * (time.process_time() - began[1]))
    print(json.dumps({"wall": statistics.median(wall), "cpu": statistics.median(cpu)}))


# Measurement.


def run_process(command, cores):
    """Run a command on the first `cores` cores.

    Returns:
        A dict of its `cpu` and `wall` seconds, its peak memory in `mb`, and its `output`.
    """
    allowed = sorted(os.sched_getaffinity(0))[:cores]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "export")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": str(cores)}
    began = time.perf_counter()
    process = subprocess.Popen(
        [*map(str, command)],
        env=environment,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: os.sched_setaffinity(0, allowed),
    )
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}")
    return {
        "cpu": usage.ru_utime + usage.ru_stime,
        "wall": time.perf_counter() - began,
        "mb": usage.ru_maxrss / 1024,
        "output": output.decode(),
    }


def run_model(options, name, model, files, cores):
    """Run `translate` or `latency` with a folder and its beam; return what `run_process` does."""
    folder, beam = model
    python = options.python if is_transformer(folder) else sys.executable
    command = [python, __file__, name, folder, *files, "--threads", cores, "--beam", beam]
    length = getattr(options, "length", None)
    return run_process([*command, *(["--length", length] if length else [])], cores)


def scores(folder, part, hypotheses):
    """Return BLEU and chrF of a translation of a set."""
    sys.path[:0] = [str(ROOT / "export")]
    from keras_bahdanau_runtime.text.scores import corpus_scores

    result = corpus_scores(read_lines(hypotheses), read_lines(folder / f"{part}.de"))
    return result["bleu"], result["chrf"]


def select(options):
    """Copy the checkpoint with the highest BLEU on the validation set to OUT/best."""
    folder, results = options.output, {}
    for model in sorted((folder / "int8").iterdir()):
        target = folder / "val.hypotheses"
        run_model(options, "translate", (model, BEAM), [folder / "val.en", target], 1)
        results[model] = scores(folder, "val", target)[0]
        print(f"{model.name:>12}: {results[model]:.2f} BLEU on the validation set", flush=True)
    shutil.rmtree(folder / "best", ignore_errors=True)
    shutil.copytree(max(results, key=results.get), folder / "best")


def measure_quality(options, models):
    """Return the scores of each model on both test sets, a dict from set to dicts by model."""
    quality = {}
    for part in PARTS[2:]:
        quality[part] = {}
        for name, model in models.items():
            target = options.output / f"{part}.{name}.hypotheses"
            files = options.output / f"{part}.en", target
            run_model(options, "translate", model, files, 1)
            quality[part][name] = scores(options.output, part, target)
    return quality


def measure(options):
    """Measure all models in rounds, print a table and draw BLEU over speed."""
    arguments = dict(argument.split("=", 1) for argument in options.models)
    models = {name: folder_and_beam(argument) for name, argument in arguments.items()}
    source = options.output / f"{PARTS[2]}.en"
    # Outputs of a given length are for models that are not trained.
    quality = None if options.length else measure_quality(options, models)
    megabytes = {
        name: sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
        for name, (folder, _) in models.items()
    }
    rows = {f"{name}, {cores}": [] for cores in options.cores for name in models}
    document = {"quality": quality, "megabytes": megabytes, "rounds": rows}
    for _ in range(options.rounds):
        for row, rounds in rows.items():
            name, cores = row.rsplit(", ", 1)
            model, cores = models[name], int(cores)
            files = source, options.output / "speed.hypotheses"
            result = run_model(options, "translate", model, files, cores)
            del result["output"]
            single = json.loads(run_model(options, "latency", model, [source], cores)["output"])
            rounds.append({**result, **{f"single_{key}": ms for key, ms in single.items()}})
        # A finished round is kept if the command is interrupted.
        text = json.dumps(document, indent=1) + "\n"
        (options.output / "results.json").write_text(text, "utf-8")
    print_tables(document)
    if options.picture and quality:
        draw(speeds_and_scores(document), options.picture)


def summary(rounds, key):
    """Return the median of a figure over the rounds, and its minimum."""
    values = [figures[key] for figures in rounds]
    return statistics.median(values), min(values)


def print_tables(document):
    print("| model | MB on disk | 2016: BLEU, chrF | 2017: BLEU, chrF |\n|---|---|---|---|")
    for name, size in document["megabytes"].items():
        cells = ["", ""]
        if document["quality"]:
            scores = [document["quality"][part][name] for part in PARTS[2:]]
            cells = [f"{bleu:.2f}, {chrf:.2f}" for bleu, chrf in scores]
        print(f"| {name} | {size:.1f} | {' | '.join(cells)} |")
    print("\n| model, threads | CPU s | seconds | MB | single: CPU ms | ms |")
    print("|---|---|---|---|---|---|")
    for row, rounds in document["rounds"].items():
        keys = {"cpu": 2, "wall": 2, "mb": 0, "single_cpu": 1, "single_wall": 1}
        cells = []
        for key, places in keys.items():
            median, best = summary(rounds, key)
            cells.append(f"{median:.{places}f} ({best:.{places}f})")
        print(f"| {row} | {' | '.join(cells)} |")


def speeds_and_scores(document):
    """Return a dict from model to its sentences per CPU second on one thread, and its BLEU."""
    return {
        name: (1000 / summary(document["rounds"][f"{name}, 1"], "cpu")[0], bleu)
        for name, (bleu, _) in document["quality"][PARTS[2]].items()
    }


def draw(models, path):
    """Draw BLEU over speed; `models` is a dict from name to both, as of `speeds_and_scores`."""
    sys.path[:0] = [str(ROOT / "export")]
    from keras_bahdanau_runtime.pictures.style import COLORS, saved_figure

    with saved_figure(path, 8, 3.5) as figure:
        axes = figure.subplots()
        counts = {"s": 0, "o": 0}
        for name, point in sorted(models.items(), key=lambda item: item[1]):
            marker = "s" if "transformer" in name else "o"
            color = COLORS[counts[marker]]
            counts[marker] += 1
            axes.plot(*point, marker, color=color, markersize=8, label=name)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
        axes.set(
            xlabel="sentences per CPU second on one thread, start of the process included",
            ylabel="BLEU on test_2016_flickr",
        )
        axes.margins(0.1)
        axes.set_xlim(left=0)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)

    def command(function, *names):
        added = commands.add_parser(function.__name__, help=function.__doc__.splitlines()[0])
        added.set_defaults(function=function)
        for name in names:
            added.add_argument(name, type=Path)
        return added

    added = command(prepare, "run", "output")
    added.add_argument("--data", type=Path, required=True)
    for name, default in (
        ("layers", 3),
        ("units", 256),
        ("feed-forward", 512),
        ("heads", 4),
        ("batch-tokens", 1024),
        ("warmup", 300),
        ("every", 200),
        ("updates", 100_000),
    ):
        added.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("dropout", 0.1), ("attention-dropout", 0.1), ("rate", 0.6)):
        added.add_argument(f"--{name}", type=float, default=default)
    command(train, "output")
    added = command(anneal, "output")
    added.add_argument("--updates", type=int, default=1200)
    added.add_argument("--rate", type=float, required=True, help="that of the last update")
    for function in (train, anneal):
        commands.choices[function.__name__].add_argument("--threads", type=int, default=1)
    added = command(convert, "output")
    added.add_argument("--last", type=int, default=6, help="number of checkpoints to convert")
    added.add_argument("--mean", type=int, default=5, help="number of checkpoints in a mean")
    command(select, "output").add_argument("--python", required=True)
    for function in (translate, latency):
        names = ("folder", "source", "target") if function is translate else ("folder", "source")
        command(function, *names).add_argument("--threads", type=int, default=1)
        commands.choices[function.__name__].add_argument("--length", type=int)
        commands.choices[function.__name__].add_argument("--beam", type=int, default=BEAM)
    added = command(measure, "output")
    added.add_argument("models", nargs="+", metavar="NAME=FOLDER[:BEAM]")
    added.add_argument("--python", required=True, help="that of the environment with CTranslate2")
    added.add_argument("--rounds", type=int, default=7)
    added.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    added.add_argument("--length", type=int, help="tokens of each output, without BLEU")
    added.add_argument("--picture", type=Path)
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
