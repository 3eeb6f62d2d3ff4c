"""Speech recognition: log-mel frames, an encoder, and a decoder with location-sensitive attention.

The audio is synthetic: two tones per letter, of varying length, with noise. The attention (arXiv
1506.07503) moves forward along the audio. The baseline is the same model with a fixed context, so
the last state of its encoder must contain the whole utterance.

    python -m examples.speech.recognize
"""

import sys

import keras
import numpy as np

from examples.common import export_and_compare, parse_options, require_margin
from examples.speech import synthetic_speech
from examples.speech.log_mel import LogMel
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

TOKENS = ["<pad>", "<unk>", "<s>", "</s>", *synthetic_speech.LETTERS]
MAX_LENGTH = synthetic_speech.MAX_LETTERS + 1  # letters and the end token


def build(units, attention):
    """Return the training model and the recognizer, which share their layers.

    The training model is `(audio, previous letters) -> logits`, the recognizer
    `audio -> letters, weights`.
    """
    audio = keras.Input((synthetic_speech.SAMPLES,), name="audio")
    frames = LogMel(rate=synthetic_speech.SAMPLE_RATE)(audio)
    frames = keras.layers.BatchNormalization()(frames)
    frames = keras.layers.Conv1D(units, 3, strides=2, padding="same", activation="relu")(frames)
    annotations = BidirectionalEncoder(units)(frames)
    embedding = keras.layers.Embedding(len(TOKENS), units)
    decoder = AttentiveDecoder(keras.layers.GRUCell(units), attention, DeepOutput(units))
    head = keras.layers.Dense(len(TOKENS))
    previous = keras.Input((None,), dtype="int32", name="before")
    training_model = keras.Model([audio, previous], head(decoder(embedding(previous), annotations)))
    decode = Decode(decoder, embedding, head, BeamSearch(3, n_best=1), MAX_LENGTH)
    return training_model, keras.Model(audio, decode(annotations))


def train(models, audio, transcripts, epochs):
    """Train with teacher forcing and return the recognizer."""
    training_model, recognizer = models
    ids = np.zeros((len(transcripts), MAX_LENGTH), "int32")
    for row, transcript in enumerate(transcripts):
        ids[row, : len(transcript) + 1] = [TOKENS.index(token) for token in [*transcript, "</s>"]]
    previous = np.concatenate([np.full((len(ids), 1), BOS), ids[:, :-1]], axis=1)
    rate = keras.optimizers.schedules.CosineDecay(5e-3, epochs * len(ids) // 50)
    training_model.compile(keras.optimizers.Adam(rate, global_clipnorm=1.0), TokenCrossentropy())
    training_model.fit([audio, previous], ids, batch_size=50, epochs=epochs, verbose=2)
    return recognizer


def transcribe(recognizer, audio):
    """Return the recognized strings and the weights `(B, T, Tx)`."""
    ids, weights = map(keras.ops.convert_to_numpy, recognizer(audio))
    texts = ["".join(TOKENS[i] for i in row if i > 3) for row in ids]
    return texts, weights


def error_rate(texts, transcripts):
    """Return the character error rate: edits per letter of the transcripts."""
    edits = sum(map(synthetic_speech.edit_distance, texts, transcripts))
    return edits / sum(map(len, transcripts))


def draw_picture(audio, text, weights, path):
    """Draw the log-mel frames of one utterance, and below them the weights of each letter."""
    log_mel = LogMel(rate=synthetic_speech.SAMPLE_RATE)
    frames = keras.ops.convert_to_numpy(log_mel(audio[None]))[0]
    with saved_figure(path, 7, 4.5) as figure:
        top, bottom = figure.subplots(2, 1)
        top.imshow(frames.T, cmap="Blues", origin="lower", aspect="auto")
        top.set(ylabel="mel band", xlabel="frame")
        bottom.imshow(weights[: len(text) + 1], vmin=0, vmax=1, aspect="auto")
        bottom.set_yticks(range(len(text) + 1), [*text, "</s>"])
        bottom.set(xlabel="annotation (two frames)", ylabel="letter")
        for axes in (top, bottom):
            axes.grid(False)


def main(arguments=None):
    """Train both models, transcribe unseen audio, draw one utterance and return the error rates."""
    args = parse_options("speech", __doc__, arguments)
    count, epochs, units = (100, 1, 8) if args.quick else (4000, 8, 64)
    audio, transcripts = synthetic_speech.generate(count, args.training)
    unseen, expected = synthetic_speech.generate(max(count // 8, 8), args.unseen)
    attention = LocationSensitiveAttention(units, filters=8, kernel_size=7)
    attentive = train(build(units, attention), audio, transcripts, epochs)
    fixed = train(build(units, FixedContext()), audio, transcripts, epochs)
    texts, weights = transcribe(attentive, unseen)
    rates = {
        "location-sensitive": error_rate(texts, expected),
        "fixed context": error_rate(transcribe(fixed, unseen)[0], expected),
    }
    print(rates)
    longest = int(np.argmax([len(text) for text in texts]))
    draw_picture(unseen[longest], texts[longest], weights[longest], args.output / "speech.png")
    attentive.save(args.output / "model.keras")
    if args.export:
        names = ["letters", "weights"]
        export_and_compare(attentive, [unseen[:100]], args.output / "artifact", names)
    require_margin("character error rate", *rates.values(), margin=-0.2, quick=args.quick)
    return rates


if __name__ == "__main__":
    main(sys.argv[1:])
