"""A `Seq2Seq` with the weights of a recurrent model of PyTorch."""

from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from keras_bahdanau.layers.attention.bahdanau import BahdanauAttention
from keras_bahdanau.layers.attention.luong import LuongAttention
from keras_bahdanau.layers.bridge import Bridge, StateBridge
from keras_bahdanau.layers.copying import PointerGenerator
from keras_bahdanau.layers.decoder import AttentiveDecoder
from keras_bahdanau.layers.encoder import BidirectionalEncoder
from keras_bahdanau.layers.readout import DeepOutput
from keras_bahdanau.models.saved_models import check_finite_weights
from keras_bahdanau.models.seq2seq import Seq2Seq
from keras_bahdanau.toolkits.weights import MAX_LAYERS

_CELLS = {"gru": keras.layers.GRUCell, "lstm": keras.layers.LSTMCell}
_LAYERS = {"gru": keras.layers.GRU, "lstm": keras.layers.LSTM}


@dataclass
class CopyWeights:
    """Weights of a `PointerGenerator`.

    Attributes:
        gate: Kernel `(R, 1)` and bias `(1,)` of the gate, whose logit is that of not copying.
        attention: Kind of the attention of the layer, as in `RecurrentModel`; `None` if the layer
            copies by the weights of the decoder.
        attention_weights: List of the weights of this attention.
    """

    gate: list
    attention: str | None = None
    attention_weights: list = field(default_factory=list)


@dataclass
class RecurrentModel:
    """Weights of a model, in the layout of Keras, and the options that they do not imply.

    All supported toolkits run the cell before the attention, and compute the output from the new
    state and the context: `query_state="current"` of `AttentiveDecoder` with a `DeepOutput`.

    Attributes:
        source_embedding: `(Vs, Ms)` array in the order of our ids, as are all vocabularies here.
        target_embedding: `(V, M)` array.
        encoder_cell: "gru" or "lstm".
        encoder: For each layer a list with the weights of each direction, as `cell_weights` returns
            them.
        decoder_cell: "gru" or "lstm".
        decoder: The weights of each layer.
        attention: "bahdanau", "general" or "dot".
        attention_weights: List of the weights of the attention layer.
        readout: Kernel `(N + D, R)` for state and context, and bias `(R,)`.
        output: Kernel `(R, V)` and bias `(V,)`; `None` for the transposed target embedding.
        bridge: Name of the summary of a `Bridge`; "states" for a `StateBridge`.
        bridge_weights: Kernel and bias of the bridge, or an empty list.
        bridge_activation: Activation of the bridge.
        readout_activation: Activation of the readout.
        normalizer: Normalizer of the attention, "softmax" or "sparsemax".
        input_feeding: Whether the cell reads the last output.
        read_source_end: See `Seq2Seq`.
        copy: The `CopyWeights`; `None` for a model that does not copy.
    """

    source_embedding: Any
    target_embedding: Any
    encoder_cell: str
    encoder: list
    decoder_cell: str
    decoder: list
    attention: str
    attention_weights: list
    readout: list
    output: list | None
    bridge: str
    bridge_weights: list = field(default_factory=list)
    bridge_activation: str = "linear"
    readout_activation: str = "tanh"
    normalizer: str = "softmax"
    input_feeding: bool = True
    read_source_end: bool = True
    copy: CopyWeights | None = None

    def to_seq2seq(self, weights, tokenizer):
        """Return the `Seq2Seq` with these weights and a tokenizer.

        Args:
            weights: `Weights` of the checkpoint, all of which must have been taken.
            tokenizer: The `Tokenizer`.

        Raises:
            ValueError: If a weight was not taken, or the widths of weights do not fit.
        """
        weights.check_used()
        decoder_units = _units(self.decoder[0])
        cells = [_CELLS[self.decoder_cell](decoder_units) for _ in self.decoder]
        readout_units = self.readout[0].shape[1]
        words = tokenizer.copied_words
        model = Seq2Seq(
            len(self.source_embedding) + words,
            len(self.target_embedding) + words,
            self.target_embedding.shape[1],
            encoder=self._make_encoder(),
            decoder=AttentiveDecoder(
                cells[0] if len(cells) == 1 else cells,
                self._make_attention(self.attention, self.attention_weights),
                DeepOutput(readout_units, self.readout_activation, reads_inputs=False),
                query_state="current",
                input_feeding=self.input_feeding,
                name="decoder",
            ),
            bridge=self._make_bridge(decoder_units),
            tie_embeddings=self.output is None,
            copy=False if self.copy is None else self._make_copy(tokenizer),
            tokenizer=tokenizer,
            read_source_end=self.read_source_end,
            source_embedding_dim=self.source_embedding.shape[1],
        )
        model.build()
        model.source_embedding.set_weights([self.source_embedding])
        model.target_embedding.set_weights([self.target_embedding])
        for number, encoder_cells in enumerate(_directions(model.encoder)):
            _set_weights(encoder_cells, [layer[number] for layer in self.encoder])
        _set_weights(cells, self.decoder)
        model.decoder.attention.set_weights(self.attention_weights)
        model.decoder.readout.set_weights(self.readout)
        model.bridge.set_weights(self.bridge_weights)
        if self.output is not None:
            model.output_layer.set_weights(self.output)
        if self.copy is not None:
            model.copy.gate_layer.set_weights(self.copy.gate)
            if model.copy.attention is not None:
                model.copy.attention.set_weights(self.copy.attention_weights)
        # Sums and products of finite weights may be too large for float32.
        check_finite_weights(model, "path", weights.path)
        return model

    def _make_encoder(self):
        units, count = _units(self.encoder[0][0]), len(self.encoder)
        with_states = self.bridge == "states"
        if len(self.encoder[0]) == 2:
            return BidirectionalEncoder(
                units, self.encoder_cell, count, return_state=with_states, name="encoder"
            )
        options = {"return_sequences": True, "return_state": with_states, "name": "encoder"}
        if count == 1:
            return _LAYERS[self.encoder_cell](units, **options)
        return keras.layers.RNN([_CELLS[self.encoder_cell](units) for _ in range(count)], **options)

    def _make_copy(self, tokenizer):
        attention = None
        if self.copy.attention is not None:
            attention = self._make_attention(self.copy.attention, self.copy.attention_weights)
        return PointerGenerator(
            tokenizer.copied_ids(), tokenizer.copied_words, attention, name="copy"
        )

    def _make_attention(self, kind, weights):
        if kind == "bahdanau":
            query_kernel, _, _, *bias = weights
            return BahdanauAttention(
                query_kernel.shape[1],
                use_bias=bool(bias),
                normalizer=self.normalizer,
                name="attention",
            )
        return LuongAttention(kind, normalizer=self.normalizer, name="attention")

    def _make_bridge(self, units):
        sizes = [units] * len(self.decoder) * (2 if self.decoder_cell == "lstm" else 1)
        if self.bridge == "states":
            return StateBridge(
                sizes if self.bridge_weights else None,
                activation=self.bridge_activation,
                name="bridge",
            )
        return Bridge(sizes, self.bridge, activation=self.bridge_activation, name="bridge")


def _units(cell_weights):
    """Return the width of the state from the recurrent kernel."""
    return cell_weights[1].shape[0]


def _set_weights(cells, weights):
    for cell, of_cell in zip(cells, weights, strict=True):
        cell.set_weights(of_cell)


def _directions(encoder):
    """Return the cells of each direction of an encoder, from the bottom to the top."""
    if isinstance(encoder, BidirectionalEncoder):
        layers = encoder.forward_layers, encoder.backward_layers
        return [[layer.cell for layer in direction] for direction in layers]
    return [getattr(encoder.cell, "cells", [encoder.cell])]


# --- Weights of PyTorch ---------------------------------------------------------------------------


def transposed(weight):
    """Return the weight `(out, in)` of a `torch.nn.Linear` as a kernel `(in, out)`."""
    return np.ascontiguousarray(weight.T)


def kernel_and_bias(weights, name, inputs=None, units=None):
    """Return kernel and bias of a `torch.nn.Linear`, with zeros for a bias that it lacks.

    Args:
        weights: `Weights` of the checkpoint.
        name: Name of the module.
        inputs: Expected width of its inputs; `None` for any width.
        units: Expected width of its outputs; `None` for any width.
    """
    kernel = transposed(weights.take(f"{name}.weight", units, inputs))
    bias = weights.get(f"{name}.bias", kernel.shape[1])
    return [kernel, np.zeros(kernel.shape[1], "float32") if bias is None else bias]


def cell_weights(weights, name, suffix, cell, inputs, units=None):
    """Return the weights of a Keras cell from those of a PyTorch cell or layer.

    PyTorch has two biases, and its gates of a GRU are in the order r, z, n instead of z, r, h. A
    GRU of PyTorch applies the reset gate after the recurrent product.

    Args:
        weights: `Weights` of the checkpoint.
        name: Name of the PyTorch module.
        suffix: End of the names of weights, such as "_l0_reverse"; empty for a cell.
        cell: "gru" or "lstm".
        inputs: Width of the inputs.
        units: Width of the state; `None` for any width.

    Returns:
        List of kernel, recurrent kernel and bias.
    """
    recurrent = transposed(weights.take(f"{name}.weight_hh{suffix}", None, units))
    units, width = recurrent.shape
    if width != {"gru": 3, "lstm": 4}[cell] * units:
        raise weights.error(f"weights of {name} that are not those of a {cell}")
    kernel = transposed(weights.take(f"{name}.weight_ih{suffix}", width, inputs))
    biases = [weights.take(f"{name}.{part}{suffix}", width) for part in ("bias_ih", "bias_hh")]
    if cell == "lstm":
        return [kernel, recurrent, sum(biases)]

    def reorder(array):
        reset, update, new = np.split(array, 3, axis=-1)
        return np.concatenate([update, reset, new], axis=-1)

    return [reorder(kernel), reorder(recurrent), np.stack([reorder(bias) for bias in biases])]


def layer_weights(weights, name, cell, inputs, directions=("",), units=None):
    """Return the weights of the stacked layers of a `torch.nn.GRU` or `torch.nn.LSTM`.

    Args:
        weights: `Weights` of the checkpoint.
        name: Name of the module.
        cell: "gru" or "lstm".
        inputs: Width of the inputs.
        directions: Ends of the names of weights of the directions, such as `("", "_reverse")`.
        units: Width of the state; `None` for any width.

    Returns:
        For each layer a list with `cell_weights` of each direction.
    """
    layers = []
    for layer in count_layers(weights, f"{name}.weight_ih_l{{}}"):
        cells = []
        for direction in directions:
            suffix = f"_l{layer}{direction}"
            cells.append(cell_weights(weights, name, suffix, cell, inputs, units))
            units = _units(cells[0])  # equal in all layers
        layers.append(cells)
        inputs = units * len(directions)
    return layers


def stacked_cell_weights(weights, name, cell, inputs, units):
    """Return `cell_weights` of a list of PyTorch cells, each of which reads the one below.

    Args:
        weights: `Weights` of the checkpoint.
        name: Name of the list.
        cell: "gru" or "lstm".
        inputs: Width of the inputs of the first cell.
        units: Width of the state.
    """
    layers = []
    for layer in count_layers(weights, f"{name}.{{}}.weight_ih"):
        layers.append(cell_weights(weights, f"{name}.{layer}", "", cell, inputs, units))
        inputs = units
    return layers


def count_layers(weights, name):
    """Return the range of the layers for which a weight exists, at least one of them.

    Args:
        weights: `Weights` of the checkpoint.
        name: Name of the weight, with `{}` for the number of the layer.

    Raises:
        ValueError: If there are more than `MAX_LAYERS`.
    """
    count = 1
    while name.format(count) in weights:
        count += 1
        if count > MAX_LAYERS:
            raise weights.error(f"more than {MAX_LAYERS} layers with weights {name.format('N')}")
    return range(count)


def state_widths(layers):
    """Return the width of the state of each layer of an encoder, of all directions together."""
    return [sum(_units(cell) for cell in cells) for cells in layers]


def directions_of(weights, name):
    """Return the `directions` of `layer_weights` of a module."""
    return ("", "_reverse") if f"{name}.weight_ih_l0_reverse" in weights else ("",)


def block_matrix(weights, blocks, rows, columns):
    """Return a matrix of blocks, which is zero elsewhere.

    Args:
        weights: `Weights` of the checkpoint, whose size limits that of the matrix.
        blocks: Dict of arrays by the index of their block row and block column.
        rows: Heights of the block rows.
        columns: Widths of the block columns.
    """
    tops, lefts = np.cumsum([0, *rows]), np.cumsum([0, *columns])
    weights.check_growth(int(tops[-1]) * int(lefts[-1]), "the matrix of its bridge")
    matrix = np.zeros((tops[-1], lefts[-1]), "float32")
    for (i, j), block in blocks.items():
        matrix[tops[i] : tops[i + 1], lefts[j] : lefts[j + 1]] = block
    return matrix
