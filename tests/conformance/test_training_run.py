"""A whole run of `train`: compiled steps, running mean, checkpoints and held-out loss."""

import csv

import keras
import numpy as np
import reference
from keras import ops

from keras_bahdanau import TrainingOptions, train
from keras_bahdanau_runtime.ids import BOS
from keras_bahdanau_runtime.text.batches import pad

PAIRS = [(f"say {word} {n}", f"{n} {word[::-1]}") for word in ("abc", "bcd") for n in range(9)]


def held_out_loss(path, smoothing):
    """The mean loss over the tokens of the held-out pairs, from the logits of a saved model."""
    model = keras.saving.load_model(path)
    sources = [model.tokenizer.encode_source(source) for source, _ in PAIRS[:3]]
    targets = [model.tokenizer.encode_target(target) for _, target in PAIRS[:3]]
    labels = pad(targets)
    inputs = {"source": pad(sources), "target": pad([[BOS, *ids[:-1]] for ids in targets])}
    logits = ops.convert_to_numpy(model(inputs, training=False))
    return reference.token_losses(labels, logits, smoothing).sum() / (labels != 0).sum()


def test_the_best_file_is_the_running_mean_with_the_held_out_loss_of_the_history(tmp_path):
    paths = {}
    for side, k in (("source", 0), ("target", 1)):
        paths[side], paths[f"validation_{side}"] = tmp_path / side, tmp_path / f"validation_{side}"
        paths[side].write_text("".join(f"{pair[k]}\n" for pair in PAIRS))
        paths[f"validation_{side}"].write_text("".join(f"{pair[k]}\n" for pair in PAIRS[:3]))
    options = TrainingOptions(
        **paths, tokenizer="bpe", label_smoothing=0.1,
        vocabulary_size=270, units=5, embedding_dim=4, attention_units=3, epochs=2,
        batch_size=6, max_length=16, ema=0.5, accumulate=2, best_by="loss", bpe_dropout=0.1,
        validation_beam_size=1, copy=True, conditional=False, join_embeddings=False,
        dtype_policy="mixed_bfloat16",  # of the training steps, not of the held-out loss
    )  # fmt: skip
    best = train(options, tmp_path / "run", verbose=False)
    with (best.parent / "history.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    losses = [float(row["val_loss"]) for row in rows]
    assert len(losses) == 2 and losses[1] < losses[0]
    np.testing.assert_allclose(losses[1], held_out_loss(best, options.label_smoothing), rtol=1e-4)
    # The last file has the weights themselves, and not their running mean.
    last, mean = (
        keras.saving.load_model(best.parent / name).get_weights()
        for name in ("last.keras", "best.keras")
    )
    assert any(np.abs(a - b).max() > 1e-5 for a, b in zip(last, mean, strict=True))
