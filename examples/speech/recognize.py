"""Speech recognition: log-mel frames, an encoder, and a decoder that spells the words.

The data is the Free Spoken Digit Dataset: recordings of the words zero to nine. Download it from
https://github.com/Jakobovski/free-spoken-digit-dataset and pass its folder `recordings`. Training
joins one to three recordings of a speaker. The attention is location-sensitive (arXiv 1506.07503).
The baseline is the same model with a fixed context: the last state of its encoder.

    python -m examples.speech.recognize free-spoken-digit-dataset/recordings
"""

import sys

import keras
import numpy as np

from examples.common import export_and_compare, parse_options, require_margin
from examples.speech import spoken_digits
from examples.speech.log_mel import LogMel
from examples.speech.spoken_digits import SAMPLE_RATE
from keras_bahdanau import (
    AttentiveDecoder,
    BeamSearch,
    BidirectionalEncoder,
    DeepOutput,
    FixedContext,
    TokenCrossentropy,
)
from keras_bahdanau.layers import LocationSensitiveAttention
from keras_bahdanau.search import Decode
from keras_bahdanau_runtime.ids import BOS
from keras_bahdanau_runtime.pictures.style import saved_figure
from keras_bahdanau_runtime.text.error_rates import compare, error_rates

LETTERS = sorted(set("".join(spoken_digits.WORDS)))
TOKENS = ["<pad>", "<unk>", "<s>", "</s>", " ", *LETTERS]
MAX_WORDS = 3  # of an utterance in training
TRAINING_SAMPLES = 3 * SAMPLE_RATE
DIGITS = 3  # of the spoken numbers for evaluation
DATA = f"folder of the recordings, from {spoken_digits.ADDRESS}"
MAX_LENGTH = DIGITS * 6  # letters, spaces and the end token
SILENCE = 2 * SAMPLE_RATE // 5  # after an utterance
ANNOTATION = 0.05  # seconds from one annotation to the next: the hop of LogMel and two strides of 2


def build(units, attention):
    """Return the training model and the recognizer, which share their layers.

    The training model is `(audio, previous letters) -> logits`, the recognizer
    `audio -> letters, weights`.
    """
    audio = keras.Input((None,), name="audio")
    features = front_end(units)(audio)
    annotations = keras.layers.Dropout(0.2)(BidirectionalEncoder(units)(features))
    embedding = keras.layers.Embedding(len(TOKENS), units)
    decoder = AttentiveDecoder(keras.layers.GRUCell(units), attention, DeepOutput(units))
    head = keras.layers.Dense(len(TOKENS))
    previous = keras.Input((None,), dtype="int32", name="before")
    logits = head(decoder(embedding(previous), annotations))
    training_model = keras.Model({"audio": audio, "before": previous}, logits)
    search = Decode(decoder, embedding, head, BeamSearch(3, n_best=1), MAX_LENGTH)
    return training_model, keras.Model(audio, search(annotations))


def front_end(units):
    """Return the layers from audio to features: each 0.05 s a vector that reads 0.125 s."""
    layers = [LogMel(), keras.layers.BatchNormalization(momentum=0.9)]
    for kernel_size in (5, 3):
        layers.append(keras.layers.Conv1D(units, kernel_size, strides=2, activation="relu"))
        layers.append(keras.layers.BatchNormalization(momentum=0.9))
    return keras.Sequential(layers)


def train(models, recordings, epochs, steps, seed):
    """Train with teacher forcing and return the recognizer."""
    training_model, recognizer = models
    rate = keras.optimizers.schedules.CosineDecay(5e-3, epochs * steps)
    training_model.compile(keras.optimizers.Adam(rate, global_clipnorm=1.0), TokenCrossentropy())
    batches = draw_batches(recordings, np.random.default_rng(seed))
    training_model.fit(batches, steps_per_epoch=steps, epochs=epochs, shuffle=False, verbose=2)
    return recognizer


def draw_batches(recordings, rng, size=50):
    """Yield batches without end: inputs of the training model, and the ids of the letters."""
    by_speaker = {}
    for recording in recordings:
        by_speaker.setdefault(recording.speaker, []).append(recording)
    speakers = list(by_speaker.values())
    while True:
        audio = np.zeros((size, TRAINING_SAMPLES), "float32")
        texts = []
        for row in audio:
            spoken = speakers[rng.integers(len(speakers))]
            count = rng.integers(1, MAX_WORDS + 1)
            words = [spoken[i] for i in rng.integers(len(spoken), size=count)]
            joined, ends = spoken_digits.join([_change_speed(w.audio, rng) for w in words], rng)
            count = max(sum(end <= TRAINING_SAMPLES for end in ends), 1)  # those that fit
            joined = joined[: min(ends[count - 1], TRAINING_SAMPLES)]
            row[: len(joined)] = joined * 10 ** rng.uniform(-0.5, 0.5)
            texts.append(" ".join(word.word for word in words[:count]))
        audio += rng.normal(0, 1, audio.shape) * 10 ** rng.uniform(-4, -2, (size, 1))
        ids = encode(texts, MAX_WORDS * 6)
        previous = np.concatenate([np.full((size, 1), BOS, "int32"), ids[:, :-1]], axis=1)
        yield {"audio": audio, "before": previous}, ids


def _change_speed(audio, rng):
    """Return audio up to a tenth faster and higher, or slower and lower."""
    positions = np.arange(0, len(audio) - 1, rng.uniform(0.9, 1.1))
    return np.interp(positions, np.arange(len(audio)), audio).astype("float32")


def encode(texts, length):
    """Return texts as ids `(B, length)`, each with an end token and padded with 0."""
    ids = np.zeros((len(texts), length), "int32")
    for row, text in zip(ids, texts, strict=True):
        row[: len(text) + 1] = [TOKENS.index(token) for token in [*text, "</s>"]]
    return ids


def decode(ids):
    """Return the text of a row of ids."""
    return "".join(TOKENS[i] for i in ids if i > 3)


def pad(utterances):
    """Return utterances as one array, with silence after each, as long as in training or longer."""
    longest = max(TRAINING_SAMPLES, *(len(audio) + SILENCE for audio in utterances))
    return np.stack([np.pad(audio, (0, longest - len(audio))) for audio in utterances])


def transcribe(recognizer, utterances):
    """Return the recognized texts and the weights `(B, T, Tx)`."""
    ids, weights = recognizer.predict(pad(utterances), batch_size=100, verbose=0)
    return [decode(row) for row in ids], weights


def word_error_rate(texts, numbers):
    """Return the word error rate in percent: edits per word of the numbers."""
    expected = [[text_of(recordings)] for recordings, _, _ in numbers]
    return error_rates(compare(texts, expected, "symbols"))["ser"]


def text_of(recordings):
    return " ".join(recording.word for recording in recordings)


def draw_picture(audio, text, weights, path):
    """Draw the log-mel frames of an utterance, and below them the weights of each letter."""
    seconds = len(audio) / SAMPLE_RATE
    with saved_figure(path, 7, 7) as figure:
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[1, 3])
        draw_frames(audio, top)
        size = len(text) + 1
        weights = weights[:size, : int(seconds / ANNOTATION)]
        end = weights.shape[1] * ANNOTATION
        bottom.imshow(weights, vmin=0, vmax=1, aspect="auto", extent=(0, end, size - 0.5, -0.5))
        bottom.set_yticks(range(size), [*text, "</s>"])
        bottom.set(xlabel="seconds", ylabel="letter", xlim=(0, seconds))
        bottom.grid(False)


def draw_frames(audio, axes):
    """Draw the log-mel frames of an utterance, `(S,)` samples."""
    frames = keras.ops.convert_to_numpy(LogMel()(audio[None]))[0]
    extent = (0, len(audio) / SAMPLE_RATE, 0, frames.shape[1])
    axes.imshow(frames.T, cmap="Blues", origin="lower", aspect="auto", extent=extent)
    axes.set(ylabel="mel band")
    axes.grid(False)


def main(arguments=None):
    """Train both models, transcribe unseen audio, draw a number and return the error rates."""
    args = parse_options("speech", __doc__, arguments, data=DATA)
    epochs, steps, units = (1, 2, 8) if args.quick else (8, 60, 64)
    recordings = spoken_digits.read(args.data)
    training, unseen = spoken_digits.split(recordings, args.validation)
    rng = np.random.default_rng(args.unseen)
    words = spoken_digits.numbers(unseen, 1, rng)
    numbers = spoken_digits.numbers(unseen, DIGITS, rng)
    location_sensitive = LocationSensitiveAttention(units, filters=8, kernel_size=7)
    recognizers, rates = {}, {}
    for name, attention in [("attention", location_sensitive), ("fixed context", FixedContext())]:
        recognizers[name] = train(build(units, attention), training, epochs, steps, args.training)
        for kind, spoken in [("words", words), ("numbers", numbers)]:
            texts, weights = transcribe(recognizers[name], [audio for _, audio, _ in spoken])
            rates[f"{kind}, {name}"] = word_error_rate(texts, spoken)
            if name == "attention" and kind == "numbers":
                picture = pad([spoken[0][1]])[0], texts[0], weights[0]
    print({name: round(rate, 2) for name, rate in rates.items()})
    draw_picture(*picture, args.output / "speech.png")
    recognizer = recognizers["attention"]
    recognizer.save(args.output / "model.keras")
    if args.export:
        audio = pad([audio for _, audio, _ in numbers[:20]])
        export_and_compare(recognizer, [audio], args.output / "artifact", ["letters", "weights"])
    require_margin(
        "word error rate of numbers in percent",
        rates["numbers, attention"],
        rates["numbers, fixed context"],
        margin=-30,
        quick=args.quick,
    )
    return rates


if __name__ == "__main__":
    main(sys.argv[1:])
