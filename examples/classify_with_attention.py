"""One layer in a model of your own: attention pools a sequence before a classifier.

The toy task: does the sequence hold the token 7? The attention weights show where it stands.
"""

import keras
import numpy as np

from keras_bahdanau import AttentionPooling


def build(vocabulary_size=20, units=16):
    """A functional model: ids `(B, Tx)` to a probability `(B, 1)` and weights `(B, Tx)`."""
    ids = keras.Input((None,), dtype="int32")
    embedded = keras.layers.Embedding(vocabulary_size, units, mask_zero=True)(ids)
    # Over a recurrent layer the weights would point beside the token; see `AttentionPooling`.
    pooled, weights = AttentionPooling(units)(embedded, return_attention_scores=True)
    answer = keras.layers.Dense(1, activation="sigmoid", name="answer")(pooled)
    return keras.Model(ids, answer), keras.Model(ids, weights)


def main(examples=2000, epochs=8):
    """Trains the model and shows one sequence with its weights; returns the accuracy."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    ids = rng.integers(1, 20, (examples, 12)).astype("int32")
    ids[:, 9:] *= rng.integers(0, 2, (examples, 1)).astype("int32")  # some are shorter
    labels = (ids == 7).any(axis=1).astype("float32")[:, None]
    model, attention = build()
    model.compile(
        optimizer=keras.optimizers.Adam(1e-2), loss="binary_crossentropy", metrics=["accuracy"]
    )
    model.fit(ids, labels, epochs=epochs, batch_size=50, verbose=0)
    _, accuracy = model.evaluate(ids, labels, verbose=0)
    shown = ids[np.flatnonzero(labels[:, 0])[:1]]
    weights = keras.ops.convert_to_numpy(attention(shown))[0]
    for token, weight in zip(shown[0], weights, strict=True):
        print(f"{token:3d} {'#' * round(40 * float(weight))}")
    print(f"accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
