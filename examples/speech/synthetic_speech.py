"""Synthetic speech: each letter is a mix of two tones of random length, with background noise."""

import numpy as np

SAMPLE_RATE = 4000  # Hz
LETTERS = "abcdefghijklmnop"
LOW, HIGH = (300, 420, 560, 720), (950, 1150, 1400, 1700)  # Hz; a letter has one of each
MAX_LETTERS = 6
SAMPLES = MAX_LETTERS * 640  # a letter lasts 50 to 120 ms, the pause after it 20 to 40 ms


def generate(count, seed, noise=0.5):
    """Return audio `(B, SAMPLES)` and `B` transcripts of 2 to `MAX_LETTERS` letters."""
    rng = np.random.default_rng(seed)
    audio = rng.normal(0, noise, (count, SAMPLES)).astype("float32")
    transcripts = [
        "".join(rng.choice(list(LETTERS), rng.integers(2, MAX_LETTERS + 1))) for _ in range(count)
    ]
    for wave, transcript in zip(audio, transcripts, strict=True):
        start = 0
        for letter in transcript:
            length = rng.integers(200, 481)
            wave[start : start + length] += _tones(letter, length, rng)
            start += length + rng.integers(80, 161)
    return audio, transcripts


def edit_distance(hypothesis, reference):
    """Return the Levenshtein distance: insertions, deletions and substitutions of letters."""
    row = list(range(len(reference) + 1))
    for i, a in enumerate(hypothesis, 1):
        above, row = row, [i]
        for j, b in enumerate(reference, 1):
            row.append(min(row[-1] + 1, above[j] + 1, above[j - 1] + (a != b)))
    return row[-1]


def _tones(letter, length, rng):
    index = LETTERS.index(letter)
    time = np.arange(length) / SAMPLE_RATE
    return sum(
        rng.uniform(0.5, 1.0) * np.sin(2 * np.pi * (hertz * time + rng.uniform()))
        for hertz in (LOW[index // 4], HIGH[index % 4])
    )
