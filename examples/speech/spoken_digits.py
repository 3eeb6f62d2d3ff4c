"""The Free Spoken Digit Dataset: the words zero to nine, 50 times each by six speakers."""

import wave
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_bahdanau_runtime.errors import argument_error

ADDRESS = "https://github.com/Jakobovski/free-spoken-digit-dataset"
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SAMPLE_RATE = 8000  # Hz


class Recording(NamedTuple):
    """A recorded word.

    Attributes:
        word: One of `WORDS`.
        speaker: Name of the speaker.
        number: Number of the recording among those of the same word and speaker, from 0.
        audio: `(S,)` float32 samples in [-1, 1).
    """

    word: str
    speaker: str
    number: int
    audio: np.ndarray


def read(folder):
    """Return the recordings of a folder with files such as `7_jackson_32.wav`.

    Raises:
        ValueError: The folder has no such files, or a file has another format or name.
    """
    paths = sorted(Path(folder).glob("[0-9]_*_*.wav"))
    if not paths:
        raise argument_error(
            "data", f"be a folder with files such as 7_jackson_32.wav, from {ADDRESS}", str(folder)
        )
    return [_read_recording(path) for path in paths]


def split(recordings, is_validation=False):
    """Return the recordings for training and those to evaluate on.

    As the authors of the data recommend, recordings 0 to 4 of each word and speaker are the test
    set. With `is_validation` recordings 5 to 9 are the validation set, and 0 to 4 are not used.
    """
    first = 5 if is_validation else 0
    training = [each for each in recordings if each.number >= first + 5]
    return training, [each for each in recordings if first <= each.number < first + 5]


def join(words, rng):
    """Return words with a pause of 0.05 to 0.3 s before each, and the end of each in samples.

    Args:
        words: List of `(S,)` float32 arrays.
        rng: NumPy generator.
    """
    pieces, ends, length = [], [], 0
    for word in words:
        pause = rng.integers(SAMPLE_RATE // 20, 3 * SAMPLE_RATE // 10)
        pieces += [np.zeros(pause, "float32"), word]
        length += pause + len(word)
        ends.append(length)
    return np.concatenate(pieces), ends


def numbers(recordings, digits, rng):
    """Return spoken numbers: each joins the recordings of `digits` words by one speaker.

    Each recording occurs at most once.

    Returns:
        A list of `(recordings, audio, ends)`: the list of the number's recordings, and the results
        of `join`.
    """
    by_speaker = {}
    for index in rng.permutation(len(recordings)):
        by_speaker.setdefault(recordings[index].speaker, []).append(recordings[index])
    return [
        (number, *join([each.audio for each in number], rng))
        for speaker in sorted(by_speaker)
        for number in _groups(by_speaker[speaker], digits)
    ]


def _groups(values, size):
    return [values[i : i + size] for i in range(0, len(values) - size + 1, size)]


def _read_recording(path):
    digit, speaker, number = path.stem.split("_")
    with wave.open(str(path)) as file:
        if (file.getnchannels(), file.getsampwidth(), file.getframerate()) != (1, 2, SAMPLE_RATE):
            raise argument_error(
                "data",
                f"have files with one channel of 16 bits and {SAMPLE_RATE} samples per second",
                str(path),
            )
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    audio = samples.astype("float32") / 32768
    return Recording(WORDS[int(digit)], speaker, int(number), audio)
