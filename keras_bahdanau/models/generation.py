"""Generation and scoring for every model that defines a decoding step."""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops, tree

from keras_bahdanau.layers.sequences import check_dense
from keras_bahdanau.models.shortlist import check_shortlist
from keras_bahdanau.search import BeamSearch, GreedySearch
from keras_bahdanau.search.base import check_search
from keras_bahdanau_runtime.checks import check_positive
from keras_bahdanau_runtime.ids import BOS, EOS, PAD, SPECIAL
from keras_bahdanau_runtime.signature import TOKENIZER_FILE
from keras_bahdanau_runtime.text.batches import pad
from keras_bahdanau_runtime.text.tokenizer import Tokenizer
from keras_bahdanau_runtime.translation import BATCH_TOKENS, translate_texts

# Arguments of `keras.Model.export` that `export` refuses, and why.
_FIXED_BY_THE_ARTIFACT = {
    "input_signature": "the artifact fixes it, `source` (batch, source_length) int32, both of any "
    "size. `max_source_length` limits the sources, `search` and `stepwise` choose the graphs; for "
    "a graph with inputs of your own use keras.export.ExportArchive",
    "opset_version": "the artifact fixes it, at one that onnxruntime runs on CPUs and GPUs alike",
    "is_static": "TensorFlow traces the model, not JAX",
    "jax2tf_kwargs": "TensorFlow traces the model, not JAX",
}


class Scores(NamedTuple):
    """How likely given targets are, as NumPy arrays.

    Attributes:
        totals: `(B,)` float32 log-probability of each target, in nats.
        log_probs: `(B, T)` float32 log-probability of each of its tokens; zero after its length.
        lengths: `(B,)` int32 number of tokens.
        alignments: `(B, T, Tx)` float32 attention weights; zero after the length.
    """

    totals: Any
    log_probs: Any
    lengths: Any
    alignments: Any


class GenerationMixin:
    """What models that generate have in common; a mixin for a `keras.Model`.

    The model gives `source_vocabulary_size`, `target_vocabulary_size`, `start` and `step`.
    """

    _tokenizer = None

    @property
    def tokenizer(self):
        """The `Tokenizer` of the model's texts, or `None`; saved inside its `.keras` file.

        Setting it raises a `ValueError` for anything else, or more ids than the model has.
        """
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer):
        if tokenizer is not None:
            self.check_tokenizer(tokenizer)
        self._tokenizer = tokenizer

    def check_tokenizer(self, tokenizer):
        """Raises a `ValueError` unless this is a `Tokenizer` with at most the model's ids."""
        if not isinstance(tokenizer, Tokenizer):
            raise ValueError(
                "Argument `tokenizer` must be a Tokenizer or None. "
                f"Received: {type(tokenizer).__name__}"
            )
        for side in ("source", "target"):
            known = getattr(self, f"{side}_vocabulary_size")
            size = getattr(tokenizer, f"{side}_vocabulary_size")
            if size > known:
                raise ValueError(
                    f"Argument `tokenizer` must have at most the model's {known} {side} ids. "
                    f"Received: {size}"
                )

    def save_assets(self, folder):
        """Writes the tokenizer where Keras collects what a `.keras` file holds besides weights."""
        if self.tokenizer is not None:
            self.tokenizer.save(Path(folder, TOKENIZER_FILE))

    def load_assets(self, folder):
        """Reads what `save_assets` wrote; `folder` is `None` for a part that wrote nothing."""
        if folder is not None and Path(folder, TOKENIZER_FILE).exists():
            self.tokenizer = Tokenizer.load(Path(folder, TOKENIZER_FILE))

    def start(self, source):
        """What generation begins with.

        Args:
            source: `(B, Tx)` int32 tensor, padded at the right only.

        Returns:
            `(memory, state, mask)`: the encoded source, a nest of tensors that steps read; the
            state before the first step, a nest of `(B, ...)` tensors; and `(B, Tx)` bool, the
            places that are not padding.
        """
        raise NotImplementedError

    def step(self, tokens, state, memory, candidates=None):
        """One step of the decoder.

        Args:
            tokens: `(R,)` int32 tensor, the tokens before. `R` may be a multiple of the memory's
                `B` rows, of which each then serves as many hypotheses.
            state: Nest of `(R, ...)` tensors.
            memory: As `start` returns it.
            candidates: `(n,)` int32 tensor, the ids asked for, `PAD` for the others; all if `None`.

        Returns:
            `(logits, state, weights)`: `(R, V)` or `(R, n)` unnormalised log-probabilities of the
            next token, the state after it, and the attention `(R, Tx)`.
        """
        raise NotImplementedError

    def search(self, source, search, max_length, shortlist=None, **kwargs):
        """The whole of generation as one function of tensors: encoder, search and decoder steps.

        `generate` compiles it and the exporters trace it.

        Args:
            source: `(B, Tx)` int32 tensor, padded at the right only.
            search: A search, such as `BeamSearch`.
            max_length: Number of tokens after which hypotheses are cut, an int.
            shortlist: A `Shortlist` of the ids that it may choose from, or `None`.
            **kwargs: `limits`, `prefix` and `noise`, see `keras_bahdanau.search.Search`.

        Returns:
            A `Generation` of tensors.
        """
        memory, state, mask = self.start(source)
        candidates = None
        if shortlist is not None:
            # In the search an id is its place among them. `PAD`, for all others, is never chosen.
            prefix, without = kwargs.pop("prefix", None), set(search.forbidden) - set(SPECIAL)
            candidates = shortlist.candidates(source, prefix, without)
            if prefix is not None:
                places = ops.searchsorted(candidates, ops.reshape(prefix, (-1,)))
                kwargs["prefix"] = ops.reshape(ops.cast(places, "int32"), ops.shape(prefix))
            forbidden = tuple({PAD, *search.forbidden} & set(SPECIAL))
            search = search.from_config({**search.get_config(), "forbidden": forbidden})

        def step(tokens, state):
            if candidates is not None:
                tokens = ops.take(candidates, tokens, axis=0)
            return self.step(tokens, state, memory, candidates)

        batch, length = ops.shape(source)[0], ops.shape(source)[1]
        first = ops.full((batch,), BOS, dtype="int32")
        found = search(
            step,
            state,
            first,
            max_length=max_length,
            memory_length=length,
            memory_mask=mask,
            **kwargs,
        )
        if candidates is not None:
            found = found._replace(tokens=ops.take(candidates, found.tokens, axis=0))
        return found

    def generate(self, source, search=None, max_length=100, prefix=None, shortlist=None):
        """Finds outputs for a batch of sources.

        Args:
            source: `(B, Tx)` int array padded at the right with 0, or a list of lists of ids.
            search: A `BeamSearch`, `GreedySearch` or `Sampling`; `BeamSearch()` if `None`.
            max_length: Number of tokens after which a hypothesis is cut: an int, `B` of them, or a
                function of the sources' lengths, `(B,)` int array -> `(B,)`, such as
                `lambda lengths: 2 * lengths + 10`.
            prefix: What each output must start with: `(B, P)` int array padded at the right with
                0, or a list of `B` lists of ids; or `None`.
            shortlist: A `Shortlist` of the ids that it may choose from, or `None`.

        Returns:
            A `Generation` of NumPy arrays: tokens `(B, K, T)`, scores `(B, K)`, lengths `(B, K)`,
            alignments `(B, K, T, Tx)`, totals `(B, K)`, log_probs `(B, K, T)`, where `T` is the
            longest length found.

        Raises:
            ValueError: If there is no sentence, an id is outside the vocabulary, a source is
                only padding or padded elsewhere than at the right, `search` is none,
                `max_length < 1`, a prefix is longer than its limit or goes on after `EOS`,
                or the shortlist is of other vocabularies, shorter than the beam, or has
                no room for the ids of the prefixes.
        """
        search = BeamSearch() if search is None else search
        source = checked_ids("source", source, self.source_vocabulary_size)
        empty = np.flatnonzero((source == PAD).all(axis=1))
        if empty.size:
            raise ValueError(
                f"Argument `source` must hold no sentence of only padding. Received: row {empty[0]}"
            )
        check_search(search, self.target_vocabulary_size)
        lengths = (source != PAD).sum(axis=1)
        limits, steps = checked_limits(max_length, lengths)
        extra = {}
        if prefix is not None:
            most = ops.convert_to_numpy(search.limit_lengths(limits, lengths))
            extra["prefix"] = checked_prefix(prefix, self.target_vocabulary_size, most)
        if shortlist is not None:
            check_shortlist(shortlist, self, search, extra.get("prefix"))
        noise = search.noise(len(source), steps)
        if noise is not None:
            extra["noise"] = noise
            if getattr(search, "seed", None) is not None:  # one program for all: numbers are given
                search = dataclasses.replace(search, seed=None)
        if not self.built:
            self.build()
        found = self._compiled_search(search, steps, shortlist, tuple(extra))(
            pad(source.tolist(), bucket=LENGTH_BUCKET), limits, *extra.values()
        )
        found = tree.map_structure(ops.convert_to_numpy, found)
        longest = int(found.lengths.max())
        return found._replace(
            tokens=found.tokens[:, :, :longest],
            alignments=found.alignments[:, :, :longest, : source.shape[1]],
            log_probs=found.log_probs[:, :, :longest],
        )

    def translate(
        self,
        texts,
        search=None,
        max_length=100,
        n_best=1,
        batch_size=32,
        progress=None,
        alignments=True,
        batch_tokens=BATCH_TOKENS,
        on_error="raise",
    ):
        """Translates texts, in batches of similar length, and returns them in the order given.

        `Translator.translate` returns the same for the exported model. A blank text gives an empty
        `Translation` with score 0.

        Args:
            texts: List of `str`, one sentence each.
            search: As in `generate`.
            max_length: As in `generate`; an int or a function of the sources' lengths.
            n_best: Number of hypotheses for each text, best first; at most as many as the search
                returns. A text gets fewer where the search found fewer.
            batch_size: Most sentences searched at once.
            progress: Called after each batch with the number of texts done so far.
            alignments: Whether translations hold the attention weights.
            batch_tokens: Most source ids searched at once, padding included; a longer sentence is
                searched for alone. `None` for no limit.
            on_error: "raise", or "keep" for a `Translation` with an `error` in the place of each
                text that the search fails for.

        Returns:
            A list of `Translation`; with `n_best` above 1, a list of such lists.

        Raises:
            ValueError: If the model has no tokenizer, `texts` is one `str`, an item is not a `str`,
                `search` is none, or a number is out of range.

        Example:

        ```python
        model.tokenizer = Tokenizer.load("tokenizer.json")
        model.translate(["a man on a bike"])[0].text
        ```
        """
        check_tokenizer(self)
        search = BeamSearch() if search is None else search
        check_search(search, self.target_vocabulary_size)
        if not callable(max_length):
            check_positive(max_length=max_length)
        size = 0

        def search_rows(source):
            # JAX compiles for each shape. No batch but the last has fewer rows than one before it:
            # it repeats its rows, to the number of those that were searched.
            nonlocal size
            rows = max(size, len(source)) if keras.config.backend() == "jax" else len(source)
            filled = np.resize(source, (rows, source.shape[1]))
            found = self.generate(filled, search, max_length)._asdict()
            size = rows
            names = ["tokens", "scores", "lengths", *(["alignments"] if alignments else [])]
            return {name: found[name][: len(source)] for name in names}

        return translate_texts(
            texts,
            self.tokenizer,
            search_rows,
            batch_size=batch_size,
            batch_tokens=batch_tokens,
            n_best=n_best,
            progress=progress,
            alignments=alignments,
            on_error=on_error,
        )

    def score(self, source, target):
        """How likely given targets are, and what they attend to (forced decoding).

        Args:
            source: `(B, Tx)` int array padded at the right with 0, or a list of lists of ids.
            target: As many outputs, likewise; `EOS` counts where it is given.

        Returns:
            `Scores`.

        Raises:
            ValueError: As `generate`; also if a target is empty or goes on after `EOS`, or there
                is not one for each source.

        Example:

        ```python
        found = model.generate(source, search=BeamSearch(5))
        again = model.score(source, found.tokens[:, 0])      # again.totals == found.totals[:, 0]
        links = hard_alignment(again.alignments[0])
        ```
        """
        source = checked_ids("source", source, self.source_vocabulary_size)
        target = checked_outputs("target", target, self.target_vocabulary_size)
        if len(target) != len(source):
            raise ValueError(
                f"Argument `target` must hold one output for each of {len(source)} sources. "
                f"Received: {len(target)}"
            )
        lengths = (target != PAD).sum(axis=1)
        if not lengths.all():
            raise ValueError(
                "Argument `target` must hold no output of only padding. "
                f"Received: row {np.argmin(lengths)}"
            )
        # The one path there is: a search that has no choice.
        found = self.generate(source, GreedySearch(), max_length=lengths, prefix=target)
        return Scores(
            found.totals[:, 0], found.log_probs[:, 0], found.lengths[:, 0], found.alignments[:, 0]
        )

    def export(self, filepath, format="onnx", verbose=None, input_signature=None, **kwargs):
        """Writes an artifact folder that runs without Keras; see `keras_bahdanau_export.export`.

        It takes the place, and the arguments, of `keras.Model.export`, which writes the call of a
        model but knows nothing of a search.

        Args:
            filepath: The folder to make.
            format: "onnx" or "tf_saved_model", or a list of both.
            verbose: Whether to print where the artifact is and how far it is from the model, if it
                holds ONNX graphs. `None` prints nothing.
            input_signature: Must be `None`, as must Keras's `opset_version`, `is_static` and
                `jax2tf_kwargs`: graphs and their inputs are those that the runtime reads.
            **kwargs: `search`, `max_length`, `stepwise` and the rest of
                `keras_bahdanau_export.export`.

        Returns:
            The `Parity` of the artifact and this model, or `None` without an ONNX graph. Keras's
            method returns `None`, as it compares nothing; here the figures are for tests and logs.

        Raises:
            ValueError: If an argument is wrong, or one of Keras's that has no place here is given;
                what else `keras_bahdanau_export.export` raises.
        """
        # The library's only import of the export package, because Keras exports by this method.
        from keras_bahdanau_export import export

        kwargs["input_signature"] = input_signature
        for name, reason in _FIXED_BY_THE_ARTIFACT.items():
            given = kwargs.pop(name, None)
            if given is not None:
                raise ValueError(f"Argument `{name}` must be None: {reason}. Received: {given!r}")
        parity = export(self, filepath, format=format, **kwargs)
        if verbose:
            print(f"Saved artifact at {str(filepath)!r}. {parity or ''}".rstrip())
        return parity

    def _compiled_search(self, search, steps, shortlist, names):
        key = (search, steps, shortlist, names)
        if key not in self._compiled_searches:

            def run(source, limits, *extra):
                extra = dict(zip(names, extra, strict=True))
                return self.search(source, search, steps, shortlist, limits=limits, **extra)

            self._compiled_searches[key] = compile_inference(self, run)
        return self._compiled_searches[key]


def check_tokenizer(model):
    """Raises a `ValueError` unless a model has a tokenizer."""
    if getattr(model, "tokenizer", None) is None:
        raise ValueError(
            "Argument `texts` needs a model with a tokenizer. Received: a model without one; "
            "attach it with model.tokenizer = Tokenizer.load(...), or call generate with ids."
        )


# Lengths are padded to multiples of this before generation, so that few shapes are compiled.
LENGTH_BUCKET = 8


def checked_ids(name, ids, size):
    """Ids `(B, T)` int32 out of an array or a list of lists, padded at the right.

    Args:
        name: What the caller calls them, for the message.
        ids: `(B, T)` int array padded at the right with 0, or a list of lists of ids.
        size: Number of ids that there are.

    Raises:
        ValueError: If they are not integers, are outside the vocabulary, or hold padding
            elsewhere than at the right.

    Example:

    >>> checked_ids("source", [[5, 6], [7]], size=10).tolist()
    [[5, 6], [7, 0]]
    """
    check_dense("a search", **{name: ids})
    if isinstance(ids, (list, tuple)):
        if all(np.ndim(row) == 1 for row in ids):
            width = max(map(len, ids), default=0)
            ids = [[*row, *[PAD] * (width - len(row))] for row in ids]
        ids = np.asarray(ids)  # which keeps what is no int32 for the checks below
    ids = ops.convert_to_numpy(ids)
    if ids.ndim != 2 or 0 in ids.shape:
        raise ValueError(
            f"Argument `{name}` must be (batch, time) with at least one sentence of at least "
            f"one id. Received: shape {ids.shape}"
        )
    if not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"Argument `{name}` must hold integers. Received: {ids.dtype}")
    outside = ids[(ids < 0) | (ids >= size)]
    if outside.size:
        raise ValueError(
            f"Argument `{name}` must hold ids in [0, {size}). Received: {int(outside[0])}"
        )
    gaps = np.argwhere((ids[:, :-1] == PAD) & (ids[:, 1:] != PAD))
    if gaps.size:
        raise ValueError(
            f"Argument `{name}` must be padded ({PAD}) at the right only. "
            f"Received: row {gaps[0, 0]}, {ids[gaps[0, 0]]}"
        )
    return ids.astype("int32")


def checked_outputs(name, ids, size):
    """As `checked_ids`, of outputs: `EOS` comes last, or not at all.

    Raises:
        ValueError: As `checked_ids`; or if an output goes on after `EOS`.
    """
    ids = checked_ids(name, ids, size)
    on = np.argwhere((ids[:, :-1] == EOS) & (ids[:, 1:] != PAD))
    if on.size:
        raise ValueError(
            f"Argument `{name}` must hold nothing after the end of an output, {EOS}. "
            f"Received: row {on[0, 0]}, {ids[on[0, 0]]}"
        )
    return ids


def checked_prefix(prefix, size, limits):
    """Prefixes `(B, P)` int32, padded to a bucket.

    Args:
        prefix: As for `checked_outputs`, one for each of `limits`.
        size: Number of ids that there are.
        limits: `(B,)` int array, the longest that each prefix may be.

    Raises:
        ValueError: As `checked_outputs`; or if a prefix is too long, or there is not one for each.
    """
    prefix = checked_outputs("prefix", prefix, size)
    if len(prefix) != len(limits):
        raise ValueError(
            f"Argument `prefix` must hold one prefix for each of {len(limits)} sources. "
            f"Received: {len(prefix)}"
        )
    lengths = (prefix != PAD).sum(axis=1)
    over = np.flatnonzero(lengths > limits)
    if over.size:
        raise ValueError(
            f"Argument `prefix` must be no longer than outputs may be, {limits[over[0]]} by "
            f"`max_length` and the search. Received: {lengths[over[0]]} ids in row {over[0]}"
        )
    return pad(prefix.tolist(), bucket=LENGTH_BUCKET)


def checked_limits(max_length, lengths):
    """`(B,)` int32 limits of the outputs, and the number of steps that a search makes room for."""
    given = max_length(lengths) if callable(max_length) else max_length
    limits = np.asarray(given)
    wrong = limits.dtype.kind not in "iu" or limits.ndim > 1 or (limits < 1).any()
    if wrong or limits.shape not in ((), lengths.shape):
        raise ValueError(
            "Argument `max_length` must be a positive integer, one for each source, or a function "
            f"that gives them. Received: {given!r}"
        )
    # A number is the room itself; others share the room of their bucket.
    room = int(limits) if not limits.ndim else -(-int(limits.max()) // LENGTH_BUCKET)
    room = room * LENGTH_BUCKET if limits.ndim else room
    return np.broadcast_to(limits, lengths.shape).astype("int32"), room


def compile_inference(model, function):
    """Compiles a function of arrays that reads the weights of `model`.

    TensorFlow traces it once for every shape that arrays of these ranks and dtypes can have; JAX
    compiles it once for each shape and gets the weights as arguments; torch runs it as it is,
    without gradients.

    Args:
        model: The `keras.Model` whose variables `function` reads.
        function: Takes tensors, returns a structure of tensors.

    Returns:
        A function of NumPy arrays.
    """
    backend = keras.config.backend()
    if backend == "tensorflow":
        return _for_tensorflow(model, function)
    if backend == "jax":
        import jax

        def stateless(values, *arrays):
            with keras.StatelessScope(state_mapping=zip(model.variables, values, strict=True)):
                return function(*arrays)

        compiled = jax.jit(stateless)
        return lambda *arrays: compiled([v.value for v in model.variables], *arrays)
    if backend == "torch":
        import torch

        def without_gradients(*arrays):
            with torch.no_grad():
                return function(*[keras.ops.convert_to_tensor(array) for array in arrays])

        return without_gradients
    raise ValueError(f"Backend {backend!r} is not supported: use tensorflow, jax or torch.")


def _for_tensorflow(model, function):
    import tensorflow as tf

    traced, held = {}, []

    def run(*arrays):
        variables = model.variables
        if list(map(id, variables)) != list(map(id, held)):  # since then quantized, for example
            traced.clear()
            held[:] = variables
        kinds = tuple((array.ndim, array.dtype.name) for array in arrays)
        if kinds not in traced:
            specs = [tf.TensorSpec([None] * rank, dtype) for rank, dtype in kinds]
            # Without autograph, which reads source files again while it traces: `keras.ops` needs
            # none.
            traced[kinds] = tf.function(function, input_signature=specs, autograph=False)
        return traced[kinds](*arrays)

    return run
