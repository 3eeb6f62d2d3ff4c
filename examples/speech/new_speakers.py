"""Speech recognition of speakers that were not in training.

For each speaker of the recordings, the model of `recognize.py` is trained briefly on those of the
others, and recognizes all words of this speaker.

    python -m examples.speech.new_speakers free-spoken-digit-dataset/recordings
"""

import sys

import keras
import numpy as np

from examples.common import parse_options
from examples.speech import recognize, spoken_digits
from keras_bahdanau.layers import LocationSensitiveAttention


def main(arguments=None):
    """Train a model without each speaker, and return the word error rates by speaker."""
    args = parse_options("new_speakers", __doc__, arguments, exports=False, data=recognize.DATA)
    epochs, steps, units = (1, 2, 8) if args.quick else (3, 60, 64)
    recordings = spoken_digits.read(args.data)
    rates = {}
    for speaker in sorted({recording.speaker for recording in recordings}):
        training = [each for each in recordings if each.speaker != speaker]
        words = [each for each in recordings if each.speaker == speaker]
        keras.utils.set_random_seed(args.seed)
        attention = LocationSensitiveAttention(units, filters=8, kernel_size=7)
        models = recognize.build(units, attention)
        recognizer = recognize.train(models, training, epochs, steps, args.training)
        spoken = spoken_digits.numbers(words, 1, np.random.default_rng(args.unseen))
        texts, _ = recognize.transcribe(recognizer, [audio for _, audio, _ in spoken])
        rates[speaker] = recognize.word_error_rate(texts, spoken)
        print(f"{speaker}: {rates[speaker]:.1f} % of the words wrong", flush=True)
    print(f"mean: {np.mean([*rates.values()]):.1f} %")
    return rates


if __name__ == "__main__":
    main(sys.argv[1:])
