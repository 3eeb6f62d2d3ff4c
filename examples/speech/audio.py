"""Synthetic speech: a letter is two tones at once, for as long as it takes, and there is noise."""

import numpy as np

RATE = 4000
LETTERS = "abcdefghijklmnop"
LOW, HIGH = (300, 420, 560, 720), (950, 1150, 1400, 1700)  # hertz; one of each for a letter
LONGEST = 6
SAMPLES = LONGEST * 640  # a letter lasts 50 to 120 ms, the pause after it 20 to 40


def draw(count, seed, noise=0.5):
    """Audio `(B, SAMPLES)` and what is said in it, `B` strings of 2 to `LONGEST` letters."""
    rng = np.random.default_rng(seed)
    audio = rng.normal(0, noise, (count, SAMPLES)).astype("float32")
    said = ["".join(rng.choice(list(LETTERS), rng.integers(2, LONGEST + 1))) for _ in range(count)]
    for wave, text in zip(audio, said, strict=True):
        at = 0
        for letter in text:
            length = rng.integers(200, 481)
            wave[at : at + length] += _tones(letter, length, rng)
            at += length + rng.integers(80, 161)
    return audio, said


def edits(found, said):
    """How many letters are to be put in, taken out or changed to turn one string into the other."""
    row = list(range(len(said) + 1))
    for i, a in enumerate(found, 1):
        above, row = row, [i]
        for j, b in enumerate(said, 1):
            row.append(min(row[-1] + 1, above[j] + 1, above[j - 1] + (a != b)))
    return row[-1]


def _tones(letter, length, rng):
    place = LETTERS.index(letter)
    time = np.arange(length) / RATE
    return sum(
        rng.uniform(0.5, 1.0) * np.sin(2 * np.pi * (hertz * time + rng.uniform()))
        for hertz in (LOW[place // 4], HIGH[place % 4])
    )
