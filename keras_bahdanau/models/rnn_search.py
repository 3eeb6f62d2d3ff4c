"""The two models of the paper, RNNsearch and RNNencdec, and the settings of their training."""

from collections.abc import Sequence

import keras

from keras_bahdanau.initializers import PerGate
from keras_bahdanau.layers.attention.bahdanau import BahdanauAttention
from keras_bahdanau.layers.attention.fixed import FixedContext
from keras_bahdanau.layers.bridge import Bridge
from keras_bahdanau.layers.cells import LayerNormGRUCell
from keras_bahdanau.layers.copying import PointerGenerator
from keras_bahdanau.layers.decoder import AttentiveDecoder
from keras_bahdanau.layers.encoder import BidirectionalEncoder
from keras_bahdanau.layers.readout import DeepOutput
from keras_bahdanau.layers.sublayers import record_settings, serialized
from keras_bahdanau.model_defaults import ARCHITECTURE, DROPOUTS
from keras_bahdanau.models.seq2seq import Seq2Seq
from keras_bahdanau_runtime.checks import check_positive, check_range
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.text.tokenizer import Tokenizer


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class RNNSearch(Seq2Seq):
    """RNNsearch, the model of the paper (arXiv 1409.0473, appendix A).

    The defaults are the architecture and the sizes of the paper. `from_tokenizer` and `train` build
    a smaller model by default, which learns faster.

    Args:
        source_vocabulary_size: Number of source ids.
        target_vocabulary_size: Number of target ids.
        units: Width `n` of each recurrent layer.
        embedding_dim: Width `m` of the embeddings; see `Seq2Seq`.
        attention_units: Width `n'` of the alignment model.
        maxout_units: Width `l` of the maxout layer.
        reset_after: Whether GRUs apply the reset gate after the recurrent product, as fast kernels
            require. The paper applies it before.
        readout_state: "previous" reads s_{i-1} (appendix A.2.2), "current" s_i (section 3.1).
        initializer: "paper" for that of appendix B (recurrent matrices orthogonal, separately for
            each gate; W_a and U_a normal with standard deviation 0.001, other weights with 0.01;
            v_a and biases zero), or `None` for Keras's defaults.
        dropout: As in `Seq2Seq`.
        tie_embeddings: As in `Seq2Seq`.
        join_embeddings: As in `Seq2Seq`.
        encoder_layers: Number of bidirectional layers of the encoder. All but the first have a
            residual connection.
        encoder_dropout: Dropout rate of the inputs of all these layers but the first, in [0, 1). It
            has no effect with one layer, which is logged.
        conditional: Whether a second cell reads the context after the first cell has read the
            embedding: the conditional GRU of Nematus (arXiv 1703.04357, section 4.1). The query is
            the state between the two cells instead of the paper's s_{i-1}.
        layer_normalization: Whether the decoder's cells are `LayerNormGRUCell`s.
        attention: An `Attention` for the decoder, such as one of your own; `None` for the
            `BahdanauAttention` of the paper, which has `attention_units`.
        **kwargs: `read_source_end`, `source_embedding_dim`, `scheduled_sampling`,
            `guided_alignment`, `copy` and `tokenizer` of `Seq2Seq`, and the arguments of
            `keras.Model`.

    Raises:
        ValueError: If a size is not a positive integer, `encoder_dropout` is out of range,
            `initializer` is unknown, or `attention` is not an `Attention`.

    Example:

    >>> model = RNNSearch(100, 120, units=8, embedding_dim=6, attention_units=7, maxout_units=5)
    >>> outputs = model.generate([[5, 6, 3]], search=BeamSearch(beam_size=2), max_length=4)
    >>> outputs.tokens.shape[:2]
    (1, 2)
    """

    _config_layers = ("scheduled_sampling", "copy", "attention")
    _has_fixed_context = False

    def __init__(
        self,
        source_vocabulary_size: int,
        target_vocabulary_size: int,
        units: int = 1000,
        embedding_dim: int = 620,
        attention_units: int = 1000,
        maxout_units: int = 500,
        reset_after: bool = False,
        readout_state: str = "previous",
        initializer: str | None = "paper",
        dropout: float | Sequence[float] = 0.0,
        tie_embeddings: bool = False,
        join_embeddings: bool = False,
        encoder_layers: int = 1,
        encoder_dropout: float = 0.0,
        conditional: bool = False,
        layer_normalization: bool = False,
        attention=None,
        **kwargs,
    ):
        if attention is not None and self._has_fixed_context:
            raise argument_error(
                "attention",
                f"be None for a {type(self).__name__}, which has a fixed context; use RNNSearch",
                attention,
            )
        if initializer not in ("paper", None):
            raise argument_error("initializer", 'be "paper" or None', initializer)
        check_positive(
            units=units,
            attention_units=attention_units,
            maxout_units=maxout_units,
            encoder_layers=encoder_layers,
        )
        check_range("encoder_dropout", encoder_dropout, float, 0, 1, open_high=True)
        is_paper = initializer == "paper"
        dtype = kwargs.get("dtype")
        has_default_attention = attention is None

        def kernel():
            return keras.initializers.RandomNormal(stddev=0.01) if is_paper else "glorot_uniform"

        def recurrent():
            return PerGate("orthogonal", gates=3) if is_paper else "orthogonal"

        def cell():
            cell_class = LayerNormGRUCell if layer_normalization else keras.layers.GRUCell
            return cell_class(
                units,
                reset_after=reset_after,
                kernel_initializer=kernel(),
                recurrent_initializer=recurrent(),
                dtype=dtype,
            )

        super().__init__(
            source_vocabulary_size,
            target_vocabulary_size,
            embedding_dim,
            encoder=BidirectionalEncoder(
                units,
                num_layers=encoder_layers,
                dropout=encoder_dropout,
                residual=True,
                reset_after=reset_after,
                kernel_initializer=kernel(),
                recurrent_initializer=recurrent(),
                dtype=dtype,
                name="encoder",
            ),
            decoder=AttentiveDecoder(
                cell(),
                self._default_attention(units, attention_units, is_paper, dtype)
                if has_default_attention
                else attention,
                DeepOutput(maxout_units, kernel_initializer=kernel(), dtype=dtype, name="readout"),
                query_state="current" if conditional else "previous",
                readout_state=readout_state,
                context_cell=cell() if conditional else None,
                dtype=dtype,
                name="decoder",
            ),
            bridge=Bridge([units], kernel_initializer=kernel(), dtype=dtype, name="bridge"),
            dropout=dropout,
            tie_embeddings=tie_embeddings,
            join_embeddings=join_embeddings,
            kernel_initializer=keras.initializers.RandomNormal(stddev=0.01) if is_paper else None,
            **kwargs,
        )
        self.units = units
        self.attention_units = attention_units
        self.maxout_units = maxout_units
        self.reset_after = reset_after
        self.readout_state = readout_state
        self.initializer = initializer
        self.encoder_layers = encoder_layers
        self.encoder_dropout = encoder_dropout
        self.conditional = conditional
        self.layer_normalization = layer_normalization
        self._has_default_attention = has_default_attention

    @property
    def attention(self):
        """The `Attention` that was passed as `attention`, or `None`."""
        return None if self._has_default_attention else self.decoder.attention

    @classmethod
    def from_tokenizer(cls, tokenizer, **arguments):
        """Return a model for the ids of a tokenizer, with the defaults of `train`.

        These are 256 units for each layer, `reset_after=True`, `readout_state="current"`,
        `initializer=None`, dropout rates of 0.2, 0.3 and 0.4, tied and joined embeddings, and
        `conditional=True`.

        Args:
            tokenizer: A `Tokenizer`. It determines the sizes of the vocabularies, and `translate`
                uses it.
            **arguments: Other arguments of the class. `maxout_units` is `embedding_dim` by default.
                With `copy=True` a source piece is copied as the same target piece, and a word of
                the tokenizer's `copied_words` as itself.

        Raises:
            ValueError: If `tokenizer` is not a `Tokenizer`, and for the errors of the class.

        Example:

        >>> tokenizer = Tokenizer.train(["two dogs"], ["zwei Hunde"], vocabulary_size=280)
        >>> model = RNNSearch.from_tokenizer(tokenizer, units=64)
        >>> model.units, model.embedding_dim, model.conditional
        (64, 256, True)
        """
        if not isinstance(tokenizer, Tokenizer):
            raise argument_error("tokenizer", "be a Tokenizer", tokenizer)
        arguments = {
            "source_vocabulary_size": tokenizer.source_vocabulary_size,
            "target_vocabulary_size": tokenizer.target_vocabulary_size,
            "reset_after": True,
            "readout_state": "current",
            "initializer": None,
            "dropout": DROPOUTS,
            **ARCHITECTURE,
            **arguments,
        }
        arguments.setdefault("maxout_units", arguments["embedding_dim"])
        if arguments["copy"] is True:
            arguments["copy"] = PointerGenerator(
                tokenizer.copied_ids(),
                tokenizer.copied_words,
                dtype=arguments.get("dtype"),
                name="copy",
            )
        return cls(tokenizer=tokenizer, **arguments)

    @staticmethod
    def _default_attention(units, attention_units, is_paper, dtype):
        arguments = {}
        if is_paper:
            arguments = {
                "kernel_initializer": keras.initializers.RandomNormal(stddev=0.001),
                "score_initializer": "zeros",
            }
        # The equations of the paper omit all biases, including this one.
        return BahdanauAttention(
            attention_units, use_bias=True, dtype=dtype, name="attention", **arguments
        )

    def get_config(self):
        config = keras.Model.get_config(self)
        names = (
            "source_vocabulary_size target_vocabulary_size units embedding_dim attention_units "
            "maxout_units reset_after readout_state initializer dropout tie_embeddings "
            "join_embeddings encoder_layers encoder_dropout conditional layer_normalization "
            "guided_alignment read_source_end source_embedding_dim"
        )
        config |= {name: getattr(self, name) for name in names.split()}
        config |= serialized(self, *self._config_layers)
        return {**config, "layer_settings": record_settings(self._own_layers())}

    def _own_layers(self):
        decoder = self.decoder
        layers = [
            *super()._own_layers(),
            self.bridge,
            self.encoder,
            *self.encoder.recurrent_layers(),
            decoder,
            decoder.cell,
            decoder.attention,
            decoder.readout,
            decoder.context_cell,
        ]
        return [layer for layer in layers if layer is not None]


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class RNNEncoderDecoder(RNNSearch):
    """RNNencdec, the baseline of the paper: RNNsearch with the last forward state as its context.

    It has the arguments of `RNNSearch` except `attention`. `attention_units` and `guided_alignment`
    have no effect.

    Example:

    >>> model = RNNEncoderDecoder(100, 120, units=8, embedding_dim=6, maxout_units=5)
    >>> model.decoder.attention.width
    8
    """

    _has_fixed_context = True

    @staticmethod
    def _default_attention(units, attention_units, is_paper, dtype):
        return FixedContext(width=units, dtype=dtype, name="attention")
