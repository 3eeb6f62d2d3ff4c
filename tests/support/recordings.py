"""Recordings in the format of the Free Spoken Digit Dataset: one tone per word and speaker."""

import wave

import numpy as np


def write_wav(path, samples, rate=8000, channels=1):
    """Write int16 samples as a WAV file."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.asarray(samples, "<i2").tobytes())


def write_recordings(folder):
    """Write recordings 0 and 5 of each word by two speakers, 0.2 s each, and return the folder."""
    folder.mkdir()
    time = np.arange(1600) / 8000
    for number, speaker in enumerate(("anna", "bela")):
        for digit in range(10):
            tone = 8000 * np.sin(2 * np.pi * (300 + 200 * digit + 50 * number) * time)
            for take in (0, 5):
                write_wav(folder / f"{digit}_{speaker}_{take}.wav", tone)
    return folder
