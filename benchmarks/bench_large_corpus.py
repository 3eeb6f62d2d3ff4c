"""Large corpora: the cost of `prepare`, and the start-up, memory and speed of the loader.

The script generates synthetic text, 25 words per sentence, of 200,000, one million and two million
pairs, and prepares each. Then it reads the corpus of one million, and one of 12 million pairs whose
shards are links to those of the million. FOLDER needs 3 GB of space and receives `memory.png`.

Seconds are processor time of all processes together, which other work on the machine disturbs
little. Memory is the peak of the sum over all processes, with shared pages counted once.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
from timing import run_as_case, run_case

WORDS, TYPES = 25, 100_000
SIZES = (200_000, 1_000_000, 2_000_000)
COPIES = 12
BATCHES = 20_000
# MB of `train` before its first batch when it still read whole files; 12 million is extrapolated.
BEFORE = {1_000_000: 4_300, 12_000_000: 46_000}
BACKEND = os.environ.get("KERAS_BACKEND", "tensorflow")  # reading a corpus uses none
ROOT = Path(__file__).resolve().parent.parent


def write_text(folder, pairs):
    """Write source and target files with word frequencies by Zipf's law; return their paths."""
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwygpbvk"))
    paths = [folder / f"{pairs}.{side}" for side in ("source", "target")]
    lengths = np.clip(rng.lognormal(np.log(WORDS) - 0.125, 0.5, pairs).round(), 1, 120).astype(int)
    frequencies = 1 / np.arange(1, TYPES + 1)
    cumulative = np.cumsum(frequencies / frequencies.sum())
    for path in paths:
        if path.exists():
            continue
        vocabulary = np.array(
            ["".join(rng.choice(letters, size)) for size in rng.integers(1, 10, TYPES)]
        )
        with path.open("w", encoding="utf-8") as file:
            for begin in range(0, pairs, 50_000):
                sizes = np.maximum(
                    1, (lengths[begin : begin + 50_000] * rng.normal(1, 0.15)).round()
                )
                sizes = sizes.astype(int)
                words = vocabulary[np.searchsorted(cumulative, rng.random(sizes.sum()))]
                sentences = np.split(words, np.cumsum(sizes)[:-1])
                file.write("".join(" ".join(sentence) + "\n" for sentence in sentences))
    return paths


class PeakMemory(threading.Thread):
    """Sample the memory of a process and its descendants until the process ends.

    Attributes:
        peak: Largest sum in MB.
    """

    def __init__(self, process):
        super().__init__(daemon=True)
        self.process, self.peak = process, 0.0

    def run(self):
        while self.process.poll() is None:
            self.peak = max(self.peak, sum(map(megabytes, descendants(self.process.pid))))
            time.sleep(0.2)


def descendants(pid):
    """Return the ids of a process and all its descendants."""
    pids = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = path.read_text().split()
        except OSError:  # the process has ended
            continue
        for child in children:
            pids += descendants(int(child))
    return pids


def megabytes(pid):
    """Return the memory of a process in MB, with its share of shared pages (Pss)."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # the process has ended
        return 0.0
    return int(text.split("\nPss:")[1].split()[0]) / 1024


def prepare(source, target, output):
    """Run `keras-bahdanau prepare`; return its processor seconds and peak memory in MB."""
    shutil.rmtree(output, ignore_errors=True)
    code = (
        "import resource, json, sys; from keras_bahdanau_cli.app import app; "
        "app(standalone_mode=False); "
        "usages = [resource.getrusage(who) for who in "
        "(resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]; "
        "print(json.dumps(sum(usage.ru_utime + usage.ru_stime for usage in usages)))"
    )
    script = output.with_suffix(".py")
    script.write_text(f"if __name__ == '__main__':\n    {code}\n")
    command = [sys.executable, script, "prepare", source, target, "-o", output, "--processes", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    memory = PeakMemory(process)
    memory.start()
    seconds = json.loads(process.communicate()[0])
    memory.join()
    return seconds, memory.peak


def replicate(corpus, output, copies):
    """Write a corpus whose shards are links to those of `corpus`, repeated `copies` times."""
    manifest = json.loads((corpus / "manifest.json").read_text())
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    count = len(manifest["shards"])
    files = {"tokenizer.json": manifest["files"].pop("tokenizer.json")}
    os.link(corpus / "tokenizer.json", output / "tokenizer.json")
    for copy in range(copies):
        for name, record in manifest["files"].items():
            number = int(name[6:11]) + copy * count
            files[f"shard-{number:05d}{name[11:]}"] = record
            os.link(corpus / name, output / f"shard-{number:05d}{name[11:]}")
    manifest["shards"] *= copies
    manifest["files"] = files
    manifest["tokens"] = [count * copies for count in manifest["tokens"]]
    (output / "manifest.json").write_text(json.dumps(manifest))


def measure(path):
    """Figures of reading a prepared corpus in this process."""
    from keras_bahdanau import PreparedDataset

    memory_before = megabytes(os.getpid())
    processor_began, wall_began = time.process_time(), time.perf_counter()
    dataset = PreparedDataset(path)
    dataset.batch(0)
    figures = {
        "start": time.process_time() - processor_began,
        "start_wall": time.perf_counter() - wall_began,
        "pairs": sum(corpus.pairs for corpus in dataset.corpora),
        "shapes": len(dataset.shapes),
    }
    tokens = positions = 0
    processor_began = time.process_time()
    for update in range(BATCHES):
        inputs, labels = dataset.batch(update)
        positions += inputs["source"].size + labels.size
        if update % 16 == 0:  # a sample: counting every batch would cost more than reading it
            tokens += 16 * (np.count_nonzero(inputs["source"]) + np.count_nonzero(labels))
    figures["rate"] = BATCHES / (time.process_time() - processor_began)
    figures["share"] = tokens / positions
    figures["memory"] = megabytes(os.getpid()) - memory_before
    processor_began = time.process_time()
    dataset.batch(10**9 + 1)
    figures["seek"] = time.process_time() - processor_began
    return figures


def draw(prepare_memory, loader_memory, path):
    """Plot the MB of `prepare` and of the loader by pairs, with the earlier use of `train`."""
    from keras_bahdanau_runtime.pictures.style import saved_figure

    with saved_figure(path, 7, 4.5) as figure:
        axes = figure.add_subplot()
        for label, memory, style in (
            ("whole files in memory, before\n(12 million: extrapolated)", BEFORE, "s--"),
            ("prepare, all processes", prepare_memory, "o-"),
            ("PreparedDataset, beyond imports", loader_memory, "^-"),
        ):
            axes.loglog(list(memory), list(memory.values()), style, label=label)
        axes.set(xlabel="sentence pairs", ylabel="memory, MB", ylim=(50, 200_000))
        axes.legend()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="for the texts, the corpora and the plot")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    prepare_memory, loader_memory = {}, {}
    print("pairs      CPU s  CPU s / million     MB")
    for pairs in SIZES:
        seconds, peak = prepare(*write_text(folder, pairs), folder / f"corpus-{pairs}")
        prepare_memory[pairs] = peak
        per_million = seconds / pairs * 1e6
        print(f"{pairs:9,} {seconds:7.1f} {per_million:16.1f} {peak:6.0f}", flush=True)
    replicate(folder / "corpus-1000000", folder / "corpus-large", COPIES)
    print("\npairs       start s (CPU)  seek ms  loader MB  batches / CPU s  tokens  shapes")
    for name in ("1000000", "large"):
        figures = run_case(__file__, BACKEND, str(folder / f"corpus-{name}"))
        loader_memory[figures["pairs"]] = figures["memory"]
        print(
            f"{figures['pairs']:10,} {figures['start_wall']:7.2f} ({figures['start']:.2f}) "
            f"{1e3 * figures['seek']:8.0f} {figures['memory']:9.0f} {figures['rate']:15.0f} "
            f"{figures['share']:9.1%} {figures['shapes']:6}",
            flush=True,
        )
    draw(prepare_memory, loader_memory, folder / "memory.png")


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "export")]
    run_as_case(measure) or main()
