"""Audio to letters: log-mel frames, and a decoder that knows where it last listened.

Synthetic speech, two tones a letter, of varying length and under noise, goes through a log-mel
layer and an encoder; location-sensitive attention (arXiv 1506.07503) walks along it. The baseline
is the same model with a fixed context: the encoder's last state has to hold all that was said.

    python -m examples.speech.recognise
"""

import sys

import keras
import numpy as np

from examples.common import export_and_compare, options, require_margin
from examples.speech import audio
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

TOKENS = ["<pad>", "<unk>", "<s>", "</s>", *audio.LETTERS]
MAX_LENGTH = audio.LONGEST + 1  # with the end


def build(units, attention):
    """To train, `(audio, letters so far) -> logits`; to use, `audio -> letters, weights`."""
    heard = keras.Input((audio.SAMPLES,), name="audio")
    frames = keras.layers.BatchNormalization()(LogMel(rate=audio.RATE)(heard))
    frames = keras.layers.Conv1D(units, 3, strides=2, padding="same", activation="relu")(frames)
    annotations = BidirectionalEncoder(units)(frames)
    embedding = keras.layers.Embedding(len(TOKENS), units)
    decoder = AttentiveDecoder(keras.layers.GRUCell(units), attention, DeepOutput(units))
    head = keras.layers.Dense(len(TOKENS))
    before = keras.Input((None,), dtype="int32", name="before")
    trained = keras.Model([heard, before], head(decoder(embedding(before), annotations)))
    decode = Decode(decoder, embedding, head, BeamSearch(3, n_best=1), MAX_LENGTH)
    return trained, keras.Model(heard, decode(annotations))


def train(models, sounds, said, epochs):
    """Trains with the right letters before each; returns the model that finds its own."""
    trained, recogniser = models
    ids = np.zeros((len(said), MAX_LENGTH), "int32")
    for row, text in enumerate(said):
        ids[row, : len(text) + 1] = [TOKENS.index(token) for token in [*text, "</s>"]]
    before = np.concatenate([np.full((len(ids), 1), BOS), ids[:, :-1]], axis=1)
    rate = keras.optimizers.schedules.CosineDecay(5e-3, epochs * len(ids) // 50)
    trained.compile(keras.optimizers.Adam(rate, global_clipnorm=1.0), TokenCrossentropy())
    trained.fit([sounds, before], ids, batch_size=50, epochs=epochs, verbose=2)
    return recogniser


def transcribe(recogniser, sounds):
    """Strings found, and the weights `(B, T, Tx)`."""
    found, weights = map(keras.ops.convert_to_numpy, recogniser(sounds))
    texts = ["".join(TOKENS[i] for i in row if i > 3) for row in found]
    return texts, weights


def error_rate(texts, said):
    """Edits for each letter that was said."""
    return sum(map(audio.edits, texts, said)) / sum(map(len, said))


def draw_picture(sound, text, weights, path):
    """The log-mel frames of one utterance, and below them where each letter was heard."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), dpi=80, layout="constrained")
    top, bottom = figure.subplots(2, 1)
    frames = keras.ops.convert_to_numpy(LogMel(rate=audio.RATE)(sound[None]))[0]
    top.imshow(frames.T, origin="lower", aspect="auto")
    top.set(ylabel="mel band", xlabel="frame")
    bottom.imshow(weights[: len(text) + 1], cmap="Greys", vmin=0, vmax=1, aspect="auto")
    bottom.set_yticks(range(len(text) + 1), [*text, "</s>"])
    bottom.set(xlabel="annotation (two frames)")
    figure.savefig(path)


def main(arguments=None):
    """Trains both, listens to unseen audio, draws one; returns the character error rates."""
    args = options("speech", __doc__, arguments)
    count, epochs, units = (100, 1, 8) if args.quick else (4000, 8, 64)
    sounds, said = audio.draw(count, args.training)
    unseen, expected = audio.draw(max(count // 8, 8), args.unseen)
    attention = LocationSensitiveAttention(units, filters=8, kernel_size=7)
    attends = train(build(units, attention), sounds, said, epochs)
    fixed = train(build(units, FixedContext()), sounds, said, epochs)
    texts, weights = transcribe(attends, unseen)
    rates = {
        "location-sensitive": error_rate(texts, expected),
        "fixed context": error_rate(transcribe(fixed, unseen)[0], expected),
    }
    print(rates)
    shown = int(np.argmax([len(text) for text in texts]))
    draw_picture(unseen[shown], texts[shown], weights[shown], args.output / "speech.png")
    attends.save(args.output / "model.keras")
    if args.export:
        names = ["letters", "weights"]
        export_and_compare(attends, [unseen[:100]], args.output / "artifact", names)
    require_margin("character error rate", *rates.values(), margin=-0.2, quick=args.quick)
    return rates


if __name__ == "__main__":
    main(sys.argv[1:])
