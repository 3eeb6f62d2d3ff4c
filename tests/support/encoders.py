"""Encoders by name, and their results by the NumPy reference."""

from functools import partial

import numpy as np
import reference
from layer_checks import randomize, right_mask

from keras_bahdanau import BidirectionalEncoder

B, TX, M, UNITS = 4, 5, 3, 4
LENGTHS = [5, 3, 1, 0]
MASK = right_mask(LENGTHS, TX)
# Padding at the left, a hole, both, and padding only.
ANY_MASK = np.array([[0, 0, 1, 1, 1], [1, 0, 1, 1, 1], [0, 1, 0, 1, 0], [0, 0, 0, 0, 0]], bool)
FORMS = {
    "gru": {},
    "gru_reset_before": {"reset_after": False},
    "lstm": {"cell": "lstm"},
    "stacked": {"num_layers": 2},
    "residual": {"num_layers": 3, "residual": True},
    "residual_lstm": {"cell": "lstm", "num_layers": 2, "residual": True},
}


def random_encoder(form, rng, **arguments):
    """A built encoder with random weights."""
    encoder = BidirectionalEncoder(UNITS, **FORMS[form], **arguments)
    encoder.build((B, TX, M))
    return randomize(encoder, rng)


def reference_encoder(encoder, inputs, lengths, weights=None):
    """Annotations `(B, Tx, 2 * UNITS)` in float64, with the encoder's weights or with others."""
    variables = encoder.trainable_variables
    values = reference.float64(variables if weights is None else weights)
    by_variable = {id(variable): value for variable, value in zip(variables, values, strict=True)}

    def step(layer):
        of_layer = [by_variable[id(variable)] for variable in layer.trainable_variables]
        if encoder.cell == "lstm":
            return partial(reference.lstm_step, weights=of_layer)
        return partial(reference.gru_step, weights=of_layer, reset_after=encoder.reset_after)

    layers = [
        (step(ahead), step(back))
        for ahead, back in zip(encoder.forward_layers, encoder.backward_layers, strict=True)
    ]
    zero_state = [np.zeros(UNITS)] * (2 if encoder.cell == "lstm" else 1)
    return reference.encoder(inputs, lengths, layers, zero_state, encoder.residual)


def reference_of_kept(encoder, inputs, mask, weights=None):
    """The annotations under any mask: from the unmasked steps alone, and zeros elsewhere."""
    expected = np.zeros((*mask.shape, 2 * UNITS))
    for row, (sequence, keep) in enumerate(zip(inputs, mask, strict=True)):
        annotations = reference_encoder(encoder, sequence[keep][None], [keep.sum()], weights)
        expected[row, keep] = annotations[0]
    return expected
