"""The paper's two models: RNNsearch and, with a fixed context, RNNencdec."""

import keras

from keras_bahdanau.attention import BahdanauAttention, FixedContext
from keras_bahdanau.bridge import Bridge
from keras_bahdanau.decoder import AttentiveDecoder
from keras_bahdanau.encoder import BidirectionalEncoder
from keras_bahdanau.readout import DeepOutput
from keras_bahdanau.seq2seq import Seq2Seq


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class RNNSearch(Seq2Seq):
    """RNNsearch, the paper's model (arXiv 1409.0473, appendix A), with its sizes as defaults.

    Args:
        source_vocabulary_size: Number of source ids.
        target_vocabulary_size: Number of target ids.
        units: Width `n` of each recurrence.
        embedding_dim: Width `m` of both embeddings.
        attention_units: Width `n'` of the alignment model.
        maxout_units: Width `l` of the maxout layer.
        reset_after: Whether GRUs reset after the recurrent product, the form fast kernels want.
            The paper resets before.
        readout_state: "previous" reads s_{i-1} (appendix A.2.2), "current" s_i (section 3.1).
        initializer: "paper" for appendix B's (normal, sd 0.01; alignment kernels sd 0.001, v_a
            zero), or `None` for Keras's own. Recurrences are orthogonal either way.
        dropout: As in `Seq2Seq`.
        tie_embeddings: As in `Seq2Seq`.
        **kwargs: Passed to `keras.Model`.

    Raises:
        ValueError: If a size is not a positive integer or `initializer` is unknown.

    Example:

    >>> model = RNNSearch(100, 120, units=8, embedding_dim=6, attention_units=7, maxout_units=5)
    >>> found = model.generate([[5, 6, 3]], search=BeamSearch(size=2), max_length=4)
    >>> found.tokens.shape[:2]
    (1, 2)
    """

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
        dropout: float = 0.0,
        tie_embeddings: bool = False,
        **kwargs,
    ):
        if initializer not in ("paper", None):
            raise ValueError(
                f'Argument `initializer` must be "paper" or None. Received: {initializer!r}'
            )
        paper = initializer == "paper"
        dtype = kwargs.get("dtype")

        def kernel():
            return keras.initializers.RandomNormal(stddev=0.01) if paper else "glorot_uniform"

        super().__init__(
            source_vocabulary_size,
            target_vocabulary_size,
            embedding_dim,
            encoder=BidirectionalEncoder(
                units,
                reset_after=reset_after,
                kernel_initializer=kernel(),
                dtype=dtype,
                name="encoder",
            ),
            decoder=AttentiveDecoder(
                keras.layers.GRUCell(
                    units, reset_after=reset_after, kernel_initializer=kernel(), dtype=dtype
                ),
                self._attention(units, attention_units, paper, dtype),
                DeepOutput(maxout_units, kernel_initializer=kernel(), dtype=dtype, name="readout"),
                query="previous",
                readout_state=readout_state,
                dtype=dtype,
                name="decoder",
            ),
            bridge=Bridge([units], kernel_initializer=kernel(), dtype=dtype, name="bridge"),
            dropout=dropout,
            tie_embeddings=tie_embeddings,
            kernel_initializer=keras.initializers.RandomNormal(stddev=0.01) if paper else None,
            **kwargs,
        )
        self.units = units
        self.attention_units = attention_units
        self.maxout_units = maxout_units
        self.reset_after = reset_after
        self.readout_state = readout_state
        self.initializer = initializer

    @staticmethod
    def _attention(units, attention_units, paper, dtype):
        arguments = {}
        if paper:
            arguments = {
                "kernel_initializer": keras.initializers.RandomNormal(stddev=0.001),
                "score_initializer": "zeros",
            }
        return BahdanauAttention(attention_units, dtype=dtype, name="attention", **arguments)

    def get_config(self):
        config = keras.Model.get_config(self)
        names = (
            "source_vocabulary_size target_vocabulary_size units embedding_dim attention_units "
            "maxout_units reset_after readout_state initializer dropout tie_embeddings"
        )
        return {**config, **{name: getattr(self, name) for name in names.split()}}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class RNNEncoderDecoder(RNNSearch):
    """RNNencdec, the paper's baseline: RNNsearch with the context fixed to the last forward state.

    Takes the arguments of `RNNSearch`; `attention_units` has no effect.

    Example:

    >>> model = RNNEncoderDecoder(100, 120, units=8, embedding_dim=6, maxout_units=5)
    >>> model.decoder.attention.width
    8
    """

    @staticmethod
    def _attention(units, attention_units, paper, dtype):
        return FixedContext(width=units, dtype=dtype, name="attention")
