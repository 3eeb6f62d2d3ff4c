"""Large corpora: what `prepare` costs, and how soon, small and fast the loader is.

`python benchmarks/bench_scale.py FOLDER` makes synthetic text, 25 words a sentence, of 200,000
pairs, a million and two million, and prepares each; then it reads the million, and 12 million pairs
whose shards are those of the million over and over. FOLDER takes 3 GB, and gets `memory.png`.

Seconds are of processor time, all processes together, so that other work on the machine spoils
little; memory is the sum of what all processes held at their fullest moment, shared pages once.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

WORDS, TYPES = 25, 100_000
SIZES = (200_000, 1_000_000, 2_000_000)
COPIES = 12
BATCHES = 20_000
# What `train` took before its first batch when it read whole files: measured, and extrapolated.
BEFORE = {1_000_000: 4_300, 12_000_000: 46_000}
ROOT = Path(__file__).resolve().parent.parent


def write_text(folder, pairs):
    """Two files of sentences whose words are as frequent as those of a language (Zipf's law)."""
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwygpbvk"))
    paths = [folder / f"{pairs}.{side}" for side in ("source", "target")]
    lengths = np.clip(rng.lognormal(np.log(WORDS) - 0.125, 0.5, pairs).round(), 1, 120).astype(int)
    chance = 1 / np.arange(1, TYPES + 1)
    sums = np.cumsum(chance / chance.sum())
    for path in paths:
        if path.exists():
            continue
        words = np.array(
            ["".join(rng.choice(letters, size)) for size in rng.integers(1, 10, TYPES)]
        )
        with path.open("w", encoding="utf-8") as file:
            for begin in range(0, pairs, 50_000):
                some = np.maximum(
                    1, (lengths[begin : begin + 50_000] * rng.normal(1, 0.15)).round()
                )
                some = some.astype(int)
                drawn = words[np.searchsorted(sums, rng.random(some.sum()))]
                parts = np.split(drawn, np.cumsum(some)[:-1])
                file.write("".join(" ".join(part) + "\n" for part in parts))
    return paths


class Peak(threading.Thread):
    """The most memory that a process and its children have held together, in MB."""

    def __init__(self, process):
        super().__init__(daemon=True)
        self.process, self.most = process, 0.0

    def run(self):
        while self.process.poll() is None:
            self.most = max(self.most, sum(map(proportional, family(self.process.pid))))
            time.sleep(0.2)


def family(pid):
    """A process and all that descend from it."""
    found = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [each for child in path.read_text().split() for each in family(int(child))]
        except OSError:  # gone
            continue
    return found


def proportional(pid):
    """Memory of a process in MB, of shared pages its share."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # gone
        return 0.0
    return int(text.split("\nPss:")[1].split()[0]) / 1024


def prepare(source, target, output):
    """CPU seconds and megabytes of `keras-bahdanau prepare`."""
    shutil.rmtree(output, ignore_errors=True)
    code = (
        "import resource, json, sys; from keras_bahdanau_export.commands.app import app; "
        "app(standalone_mode=False); "
        "used = [resource.getrusage(who) for who in "
        "(resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]; "
        "print(json.dumps(sum(each.ru_utime + each.ru_stime for each in used)))"
    )
    script = output.with_suffix(".py")
    script.write_text(f"if __name__ == '__main__':\n    {code}\n")
    command = [sys.executable, script, "prepare", source, target, "-o", output, "--processes", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    peak = Peak(process)
    peak.start()
    seconds = json.loads(process.communicate()[0])
    peak.join()
    return seconds, peak.most


def replicate(corpus, output, copies):
    """A corpus whose shards are those of another, again and again, as links to them."""
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


def load(path, batches):
    """Figures of reading a corpus in this process, printed as JSON."""
    from keras_bahdanau import PreparedDataset

    before = proportional(os.getpid())
    began, clock = time.process_time(), time.perf_counter()
    dataset = PreparedDataset(path)
    dataset.batch(0)
    found = {
        "start": time.process_time() - began,
        "start_wall": time.perf_counter() - clock,
        "pairs": sum(corpus.pairs for corpus in dataset.corpora),
        "shapes": len(dataset.shapes),
    }
    tokens = places = 0
    began = time.process_time()
    for update in range(int(batches)):
        inputs, labels = dataset.batch(update)
        places += inputs["source"].size + labels.size
        if update % 16 == 0:  # counted now and then, which costs less than the batches
            tokens += 16 * (np.count_nonzero(inputs["source"]) + np.count_nonzero(labels))
    found["rate"] = int(batches) / (time.process_time() - began)
    found["share"] = tokens / places
    found["memory"] = proportional(os.getpid()) - before
    began = time.process_time()
    dataset.batch(10**9 + 1)
    found["seek"] = time.process_time() - began
    print(json.dumps(found))


def measured(path):
    """The figures of `load`, from a process of its own."""
    command = [sys.executable, __file__, "load", path, str(BATCHES)]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(run.stdout.splitlines()[-1])


def draw(preparing, loading, path):
    """Megabytes by pairs, of `prepare` and of the loader, beside what `train` once took."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for label, found, style in (
        ("whole files in memory, before\n(12 million: extrapolated)", BEFORE, "s--"),
        ("prepare, all processes", preparing, "o-"),
        ("PreparedDataset, beyond imports", loading, "^-"),
    ):
        axes.loglog(list(found), list(found.values()), style, label=label)
    axes.set(xlabel="pairs of sentences", ylabel="memory, MB", ylim=(50, 200_000))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=100)


def main(folder):
    """Measures everything, prints the tables and draws the memory."""
    folder.mkdir(parents=True, exist_ok=True)
    preparing, loading = {}, {}
    print("pairs      CPU s  CPU s / million     MB")
    for pairs in SIZES:
        seconds, most = prepare(*write_text(folder, pairs), folder / f"corpus-{pairs}")
        preparing[pairs] = most
        per_million = seconds / pairs * 1e6
        print(f"{pairs:9,} {seconds:7.1f} {per_million:16.1f} {most:6.0f}", flush=True)
    replicate(folder / "corpus-1000000", folder / "corpus-large", COPIES)
    print("\npairs       start s (CPU)  seek ms  loader MB  batches / CPU s  tokens  shapes")
    for name in ("1000000", "large"):
        found = measured(folder / f"corpus-{name}")
        loading[found["pairs"]] = found["memory"]
        print(
            f"{found['pairs']:10,} {found['start_wall']:7.2f} ({found['start']:.2f}) "
            f"{1e3 * found['seek']:8.0f} {found['memory']:9.0f} {found['rate']:15.0f} "
            f"{found['share']:9.1%} {found['shapes']:6}",
            flush=True,
        )
    draw(preparing, loading, folder / "memory.png")


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "export")]
    if sys.argv[1] == "load":
        load(*sys.argv[2:])
    else:
        main(Path(sys.argv[1]))
