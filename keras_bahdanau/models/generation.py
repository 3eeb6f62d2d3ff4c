"""Generation and scoring for every model that defines a decoding step."""

import dataclasses
from pathlib import Path

import keras
import numpy as np
from keras import ops, tree

from keras_bahdanau.layers.sequences import check_dense
from keras_bahdanau.models.saved_models import check_finite_weights
from keras_bahdanau.models.shortlist import check_shortlist
from keras_bahdanau.search.base import (
    SearchInputs,
    check_accepts_required,
    check_search,
    search_document,
)
from keras_bahdanau.search.beam import BeamSearch
from keras_bahdanau.search.candidates import row_starts
from keras_bahdanau.search.forced import Scores, score_targets
from keras_bahdanau.shapes import check_shape
from keras_bahdanau_runtime.batch_sizes import BATCH_TOKENS
from keras_bahdanau_runtime.calibration import Calibration, why_uncalibrated
from keras_bahdanau_runtime.checks import checked_texts
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.ids import BOS, EOS, PAD, SPECIAL
from keras_bahdanau_runtime.search_options import (
    SearchOptions,
    check_beam_for_phrases,
    check_room,
    constraint_inputs,
    count_missing,
    text_constraints,
)
from keras_bahdanau_runtime.search_settings import check_setting
from keras_bahdanau_runtime.signature import TOKENIZER_FILE
from keras_bahdanau_runtime.text.batches import pad, round_up
from keras_bahdanau_runtime.text.tokenizer import Tokenizer
from keras_bahdanau_runtime.translation import translate_texts

# Arguments of `keras.Model.export` that `export` does not accept, with the reason.
_UNSUPPORTED_EXPORT_ARGUMENTS = {
    "input_signature": "it is always `source` (batch, source_length) int32 of any size. "
    "`max_source_length` limits the sources, `search` and `stepwise` choose the graphs; for "
    "a graph with other inputs use keras.export.ExportArchive",
    "opset_version": "it is always one that onnxruntime runs on CPUs and GPUs",
    "is_static": "TensorFlow traces the model, not JAX",
    "jax2tf_kwargs": "TensorFlow traces the model, not JAX",
}


class GenerationMixin:
    """Mixin for a `keras.Model` that adds generation, translation, scoring and export.

    The model must define `source_vocabulary_size`, `target_vocabulary_size`, `start` and `step`.
    """

    _tokenizer = None

    @property
    def tokenizer(self):
        """The `Tokenizer` of the model, or `None`. It is saved in the `.keras` file.

        Setting it raises a `ValueError` if it is not a `Tokenizer` or has more ids than the model.
        """
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer):
        if tokenizer is not None:
            self.check_tokenizer(tokenizer)
        self._tokenizer = tokenizer

    def check_tokenizer(self, tokenizer):
        """Raise a `ValueError` unless this is a `Tokenizer` with at most the ids of the model."""
        if not isinstance(tokenizer, Tokenizer):
            raise argument_error(
                "tokenizer", "be a Tokenizer or None", received=str(type(tokenizer).__name__)
            )
        for side in ("source", "target"):
            limit = getattr(self, f"{side}_vocabulary_size")
            size = getattr(tokenizer, f"{side}_vocabulary_size")
            if size > limit:
                raise argument_error(
                    "tokenizer", f"have at most the model's {limit} {side} ids", received=str(size)
                )

    def save_assets(self, folder):
        """Write the tokenizer to the assets of the `.keras` file."""
        if self.tokenizer is not None:
            self.tokenizer.save(Path(folder, TOKENIZER_FILE))

    def load_assets(self, folder):
        """Read the tokenizer; `folder` is `None` if the model wrote no assets."""
        if folder is not None and Path(folder, TOKENIZER_FILE).exists():
            self.tokenizer = Tokenizer.load(Path(folder, TOKENIZER_FILE))

    def load_weights(self, filepath, *args, **kwargs):
        """Load weights like `keras.Model.load_weights`.

        Raises:
            ValueError: If a weight in the file has NaN or infinity. The model then has the weights
                of the file.
        """
        super().load_weights(filepath, *args, **kwargs)
        check_finite_weights(self, "filepath", filepath)

    def start(self, source):
        """Encode the sources and return the initial state of the decoder.

        Args:
            source: `(B, Tx)` int32 tensor, padded at the right only.

        Returns:
            `(memory, state, mask)`: the encoded source, a nest of tensors; the initial state, a
            nest of `(B, ...)` tensors; and a `(B, Tx)` bool tensor, False at padding.
        """
        raise NotImplementedError

    def step(self, tokens, state, memory, candidates=None):
        """Run one step of the decoder.

        Args:
            tokens: `(R,)` int32 tensor, the previous tokens. `R` may be a multiple of the `B` rows
                of the memory, each of which then belongs to `R / B` consecutive hypotheses.
            state: Nest of `(R, ...)` tensors.
            memory: The memory from `start`.
            candidates: `(n,)` int32 tensor of candidate ids, with `PAD` for all others; all ids if
                `None`.

        Returns:
            `(logits, state, weights)`: `(R, V)` or `(R, n)` unnormalized log-probabilities of the
            next token, the next state, and the attention weights `(R, Tx)`.
        """
        raise NotImplementedError

    @property
    def copies_source(self):
        """Whether the model can copy source tokens."""
        return False

    @property
    def scores_copies(self):
        """Whether `score` returns what was copied: not for an ensemble."""
        return False

    def copied_ids(self, source):
        """Return the target ids `(B, n)` that can be copied, or `None` if the model copies none."""
        return None

    def search(self, source, search, max_length, shortlist=None, completions=None, **inputs):
        """Run encoder, search and decoder steps as one function of tensors.

        `generate` compiles this function and the exporters trace it.

        Args:
            source: `(B, Tx)` int32 tensor, padded at the right only.
            search: A search, such as `BeamSearch`.
            max_length: int, largest number of tokens of a hypothesis.
            shortlist: A `Shortlist` that selects the candidate ids, or `None`.
            completions: `(B, n, 2)` or `(1, n, 2)` int32 tensor as in `generate`, or `None`.
            **inputs: `limits`, `prefix`, `suppressed`, `required` and `noise`, see
                `keras_bahdanau.search.Search`.

        Returns:
            A `Generation` of tensors.
        """
        memory, state, mask = self.start(source)
        inputs = SearchInputs(**inputs, memory_mask=mask)
        if search.max_length_ratio is not None:
            # The mask may not count the end token, which the checks of prefixes and phrases count.
            lengths = ops.sum(ops.cast(ops.not_equal(source, PAD), "int32"), axis=1)
            limits = max_length if inputs.limits is None else inputs.limits
            inputs = inputs._replace(limits=search.limit_lengths(limits, lengths))
            search = search.with_settings(max_length_ratio=None)
        candidates = None
        if completions is not None:
            table = tabulate_completions(completions, self.target_vocabulary_size)
            inputs = inputs._replace(completion_table=table)
        if shortlist is not None:
            # The ids in the search are indices of candidates. All other ids are `PAD`, which is
            # forbidden.
            excluded = set(search.forbidden) - set(SPECIAL)
            forced = [
                ops.reshape(ids, (1, -1))
                for ids in (inputs.prefix, inputs.required)
                if ids is not None
            ]
            forced = ops.concatenate(forced, axis=1) if forced else None
            candidates = shortlist.candidates(source, forced, excluded, self.copied_ids(source))
            # The index of each id among the candidates; `PAD` for ids that are none.
            indices = ops.scatter(
                ops.expand_dims(candidates, 1),
                ops.arange(shortlist.size, dtype="float32"),
                (shortlist.target_vocabulary_size,),
            )
            indices = ops.cast(indices, "int32")
            if completions is not None:
                table = ops.take(inputs.completion_table, candidates, axis=1)
                inputs = inputs._replace(completion_table=table)
            for name in ("prefix", "suppressed", "required"):
                ids = getattr(inputs, name)
                if ids is not None:
                    inputs = inputs._replace(**{name: ops.take(indices, ids)})
            forbidden = tuple({PAD, *search.forbidden} & set(SPECIAL))
            search = search.with_settings(forbidden=forbidden)

        def step(tokens, state):
            if candidates is not None:
                tokens = ops.take(candidates, tokens, axis=0)
            return self.step(tokens, state, memory, candidates)

        batch, length = ops.shape(source)[0], ops.shape(source)[1]
        first_tokens = ops.full((batch,), BOS, dtype="int32")
        generation = search(
            step,
            state,
            first_tokens,
            max_length=max_length,
            memory_length=length,
            **inputs._asdict(),
        )
        if candidates is not None:
            tokens = ops.take(candidates, generation.tokens, axis=0)
            generation = generation._replace(tokens=tokens)
        return generation

    def forced_scores(self, source, target):
        """Run encoder and decoder steps on given targets as one function of tensors.

        `score` compiles this function and the exporters trace it.

        Args:
            source: `(B, Tx)` int32 tensor, padded at the right only.
            target: `(B, Ty)` int32 tensor, padded at the right only.

        Returns:
            `Scores` of tensors.
        """
        memory, state, _ = self.start(source)
        return self._score_with_steps(
            lambda tokens, state: self.step(tokens, state, memory), state, source, target
        )

    def _score_with_steps(self, step, state, source, target, num_weights=1):
        """Return the `Scores` of targets by a step function.

        Args:
            step: As for `score_targets`, with weights `(B, num_weights * Tx)`.
            state: The initial state.
            source: As for `forced_scores`.
            target: As for `forced_scores`.
            num_weights: Number of weights that a step returns for each source token.
        """
        batch, length = ops.shape(source)
        first_tokens = ops.full((batch,), BOS, dtype="int32")
        return score_targets(step, state, first_tokens, target, num_weights * length)

    def generate(
        self,
        source,
        search=None,
        max_length=100,
        prefix=None,
        shortlist=None,
        suppressed=None,
        required=None,
        completions=None,
    ):
        """Generate outputs for a batch of sources.

        Args:
            source: `(B, Tx)` int array padded at the right with 0, or a list of lists of ids.
            search: A `BeamSearch`, `GreedySearch` or `Sampling`; `BeamSearch()` if `None`.
            max_length: Largest number of tokens of a hypothesis: an int, `B` ints, or a function of
                the source lengths, `(B,)` int array -> `(B,)`, such as
                `lambda lengths: 2 * lengths + 10`.
            prefix: The first ids of each output: `(B, P)` int array padded at the right with 0, or
                a list of `B` lists of ids; or `None`.
            shortlist: A `Shortlist` that selects the candidate ids, or `None`.
            suppressed: Ids that an output must not contain after its prefix, in addition to the
                search's `forbidden`: `(B, n)` int array, or `(1, n)` for all outputs, padded at the
                right with 0; or a list of lists of ids; or `None`.
            required: Phrases that an output must contain, for a beam of at least 2: `(B, P, L)` int
                array, or `(1, P, L)` for all outputs, padded at the right with 0; or a list of `B`
                lists of phrases, which are lists of ids; or `None`. A good output needs a beam of
                about twice as many hypotheses as the phrases have ids. `no_repeat_ngram` does not
                apply to the ids of a phrase.
            completions: Positions and ids: an id that may end the prefix at its position, instead
                of the ids of the prefix from there on. `(B, n, 2)` int array padded at the right
                with 0; or `None`. An id occurs at most once in a row.

        Returns:
            A `Generation` of NumPy arrays: tokens `(B, K, T)`, scores `(B, K)`, lengths `(B, K)`,
            alignments `(B, K, T, Tx)`, totals `(B, K)`, log_probs `(B, K, T)`, where `T` is the
            largest of the lengths.

        Raises:
            ValueError: If there is no sentence, an id is outside the vocabulary, a source is empty
                or not padded at the right, `search` is not a `Search`, `max_length < 1`, a prefix
                is too long or continues after `EOS`, there are completions without a prefix, or of
                another shape, there are neither `B` nor one lists of suppressed ids or of phrases,
                a phrase contains a special, forbidden or suppressed id, the phrases do not fit
                after the prefix, `search` is not a beam search with at least two hypotheses
                although there are phrases, or the shortlist has other vocabulary sizes, is smaller
                than the beam, or has no room for the ids of the prefixes and phrases.
        """
        search = BeamSearch() if search is None else search
        source = checked_sources(source, self.source_vocabulary_size)
        check_search(search, self.target_vocabulary_size)
        lengths = (source != PAD).sum(axis=1)
        limits, steps = checked_limits(max_length, lengths)
        extra = {}
        output_limits = ops.convert_to_numpy(search.limit_lengths(limits, lengths))
        if prefix is not None:
            extra["prefix"] = checked_prefix(prefix, self.target_vocabulary_size, output_limits)
        if suppressed is not None:
            extra["suppressed"] = checked_suppressed(
                suppressed, self.target_vocabulary_size, len(source)
            )
        if required is not None:
            check_accepts_required(search)
            required = checked_required(required, self.target_vocabulary_size, len(source))
            check_required(required, search.forbidden, output_limits, **extra)
            extra["required"] = required
        if completions is not None:
            extra["completions"] = checked_completions(
                completions, self.target_vocabulary_size, extra.get("prefix")
            )
        if shortlist is not None:
            check_shortlist(shortlist, self, search, extra.get("prefix"), required)
        noise = search.noise(len(source), steps)
        if noise is not None:
            extra["noise"] = noise
            # The random numbers are an input, so all seeds share one compiled search.
            if getattr(search, "seed", None) is not None:
                search = dataclasses.replace(search, seed=None)
        if not self.built:
            self.build()
        generation = self._compiled_search(search, steps, shortlist, tuple(extra))(
            pad(source.tolist(), bucket=LENGTH_BUCKET), limits, *extra.values()
        )
        generation = tree.map_structure(ops.convert_to_numpy, generation)
        longest = int(generation.lengths.max())
        return generation._replace(
            tokens=generation.tokens[:, :, :longest],
            alignments=generation.alignments[:, :, :longest, : source.shape[1]],
            log_probs=generation.log_probs[:, :, :longest],
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
        *,
        prefixes=None,
        suppressed=(),
        disable_unknown=False,
        required=None,
        **options,
    ):
        """Translate texts in batches of similar length.

        `Translator.translate` returns the same for the exported model. The translation of a blank
        text is empty and has no score. Translations have a confidence if `self.calibration` is
        a `Calibration`, which `load_best` loads from a run that was exported.

        Args:
            texts: List of `str`, one sentence each.
            search: As in `generate`.
            max_length: As in `generate`; an int or a function of the sources' lengths.
            n_best: Number of hypotheses for each text, at most the number that the search returns.
                There are fewer where the search finds fewer.
            batch_size: Largest number of sentences in a batch.
            progress: Function that is called after each batch with the number of finished texts.
            alignments: Whether the translations contain the attention weights.
            batch_tokens: Largest number of source positions in a batch, including padding. A longer
                sentence is a batch with one row. `None` for no limit.
            on_error: "raise", or "keep" to return a `Translation` with an `error` for each text for
                which the search fails.
            prefixes: List of `str` or `None`, the beginning of each translation, which may end
                within a word; `None` for no prefixes.
            suppressed: List of `str` or ids, tokens that no translation contains after its prefix.
            disable_unknown: Whether to suppress the unknown token.
            required: List of lists of `str` or `None`, phrases that each translation contains, for
                a beam of at least 2; `None` for no phrases.
            **options: Settings in place of those of `search`: the fields of
                `keras_bahdanau_runtime.SearchOptions`, such as `beam_size` and `length_penalty`.

        Returns:
            A list of `Translation` in the order of `texts`; with `n_best` above 1, a list of lists
            with the best translation first.

        Raises:
            ValueError: If the model has no tokenizer, `texts` is one `str`, an item is not a `str`,
                `search` is not a `Search` or has no such option, a number is out of range, there
                are not as many prefixes, or lists of required phrases, as texts, a suppressed text
                is not one token, the tokenizer cannot spell a prefix or a required phrase exactly,
                a required phrase contains a suppressed token or does not fit, or the options and
                constraints leave no output.

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
            check_setting("max_length", max_length)
        search = apply_options(search, SearchOptions.from_values(options), max_length)
        if prefixes is not None or required is not None:
            texts = checked_texts("texts", texts)
        constraints = text_constraints(
            self.tokenizer, texts, prefixes, suppressed, disable_unknown, required, on_error
        )
        if any(required or ()):
            check_beam_for_phrases(options.get("beam_size"))
            check_accepts_required(search)
        calibration = getattr(self, "calibration", None)
        if calibration is not None:
            document = search_document(search, None if callable(max_length) else max_length)
            calibration = calibration.mismatch(document) or calibration
        most_rows = 0

        def search_rows(source, indices):
            # JAX compiles for each shape. A batch with fewer rows than an earlier one, such as the
            # last, is filled up with repeated rows.
            nonlocal most_rows
            on_jax = keras.config.backend() == "jax"
            rows = max(most_rows, len(source)) if on_jax else len(source)
            constraints_of_rows = [constraints(index) for index in indices]
            lengths = (source != PAD).sum(axis=1)
            limits, _ = checked_limits(max_length, lengths)
            limits = ops.convert_to_numpy(search.limit_lengths(limits, lengths))
            for row, limit in zip(constraints_of_rows, limits.tolist(), strict=True):
                check_room(row, limit, search.forbidden)
            inputs = constraint_inputs(constraints_of_rows)
            filled = {
                name: np.resize(array, (rows, *array.shape[1:]))
                for name, array in {"source": source, **inputs}.items()
            }
            generation = self.generate(filled.pop("source"), search, max_length, **filled)._asdict()
            most_rows = rows  # only if the search did not fail
            names = ["tokens", "scores", "lengths", "log_probs"]
            names += ["alignments"] if alignments else []
            outputs = {name: generation[name][: len(source)] for name in names}
            if isinstance(calibration, Calibration):
                outputs |= calibration.judge(outputs)
            return outputs

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
            uncalibrated=lambda index: why_uncalibrated(calibration, constraints(index)),
        )

    def checked_pairs(self, source, target):
        """Return the arguments of `score` as int32 arrays, after checking them."""
        source = checked_sources(source, self.source_vocabulary_size)
        target = checked_output_ids("target", target, self.target_vocabulary_size)
        if len(target) != len(source):
            raise argument_error(
                "target",
                f"hold one output for each of {len(source)} sources",
                received=str(len(target)),
            )
        lengths = (target != PAD).sum(axis=1)
        if not lengths.all():
            raise argument_error(
                "target", "hold no output of only padding", received=f"row {np.argmin(lengths)}"
            )
        return source, target

    def score(self, source, target):
        """Return the log-probabilities and the alignments of given targets (forced decoding).

        Args:
            source: `(B, Tx)` int array padded at the right with 0, or a list of lists of ids.
            target: `(B, Ty)` int array or list of `B` lists. `EOS` is scored where it is present.

        Returns:
            `Scores` of NumPy arrays, where `T` is the largest of the lengths.

        Raises:
            ValueError: For the errors of `generate`, or if a target is empty or continues after
                `EOS`, or the number of targets differs from that of sources.

        Example:

        ```python
        outputs = model.generate(source, search=BeamSearch(5))
        scores = model.score(source, outputs.tokens[:, 0])  # scores.totals == outputs.totals[:, 0]
        links = hard_alignment(scores.alignments[0])
        ```
        """
        source, target = self.checked_pairs(source, target)
        if not self.built:
            self.build()
        if "score" not in self._compiled_searches:
            self._compiled_searches["score"] = compile_inference(self, self.forced_scores)
        padded = (pad(ids.tolist(), bucket=LENGTH_BUCKET) for ids in (source, target))
        scores = self._compiled_searches["score"](*padded)
        scores = {
            name: ops.convert_to_numpy(values)
            for name, values in scores._asdict().items()
            if values is not None
        }
        longest = int(scores["lengths"].max())
        scores["log_probs"] = scores["log_probs"][:, :longest]
        for name in {"alignments", "copied"} & scores.keys():
            scores[name] = scores[name][:, :longest, : source.shape[1]]
        return Scores(**scores)

    def export(self, filepath, format="onnx", verbose=None, input_signature=None, **kwargs):
        """Write an artifact folder that runs without Keras, and return `None`, as in Keras.

        This overrides `keras.Model.export`, which exports only the call of a model, without a
        search. It accepts the same arguments. `keras_bahdanau.export` does the same, and returns
        the measured `Parity` of the graphs and the model.

        Args:
            filepath: The folder to create.
            format: "onnx" or "tf_saved_model", or a list of both.
            verbose: Whether to print the path of the artifact and, for ONNX graphs, their
                difference from the model. `None` prints nothing.
            input_signature: Must be `None`, like Keras's `opset_version`, `is_static` and
                `jax2tf_kwargs`, because the runtime determines the graphs and their inputs.
            **kwargs: `search`, `max_length`, `stepwise` and the other options of
                `keras_bahdanau_export.export`.

        Raises:
            ValueError: If an argument is wrong, or is one of Keras's that is not supported. See
                `keras_bahdanau_export.export` for other errors.
        """
        # The library's only import of the export package, because `export` is a method in Keras.
        from keras_bahdanau_export import export

        kwargs["input_signature"] = input_signature
        for name, reason in _UNSUPPORTED_EXPORT_ARGUMENTS.items():
            value = kwargs.pop(name, None)
            if value is not None:
                raise argument_error(name, f"be None: {reason}", value)
        parity = export(self, filepath, format=format, **kwargs)
        if verbose:
            print(f"Saved artifact at {str(filepath)!r}. {parity or ''}".rstrip())

    def _compiled_search(self, search, steps, shortlist, names):
        key = (search, steps, shortlist, names)
        if key not in self._compiled_searches:

            def run(source, limits, *extra):
                extra = dict(zip(names, extra, strict=True))
                return self.search(source, search, steps, shortlist, limits=limits, **extra)

            self._compiled_searches[key] = compile_inference(self, run)
        return self._compiled_searches[key]


def apply_options(search, options, max_length=None):
    """Return a search with the settings of `SearchOptions` that are not `None`.

    Args:
        search: A `Search`.
        options: `SearchOptions`.
        max_length: As for `generate`, or `None`.

    Raises:
        ValueError: If the search has no such setting, or a number is out of range.

    Example:

    >>> apply_options(BeamSearch(5), SearchOptions(beam_size=2)).beam_size
    2
    """
    settings = options.values()
    for name in settings.keys() - search.options().keys():
        raise argument_error(name, f"be left out for a {type(search).__name__}", settings[name])
    limit = max_length if isinstance(max_length, int) else None
    options.check_values(limit, search.min_length)
    if settings.get("top_k") == 0:
        settings["top_k"] = None
    if "beam_size" in settings and search.n_best is not None:
        settings["n_best"] = min(search.n_best, settings["beam_size"])
    return dataclasses.replace(search, **settings)


def check_tokenizer(model):
    """Raise a `ValueError` unless a model has a tokenizer."""
    if getattr(model, "tokenizer", None) is None:
        raise ValueError(
            "Argument `texts` needs a model with a tokenizer. Received: a model without one; "
            "attach it with model.tokenizer = Tokenizer.load(...), or call generate with ids."
        )


# Source lengths are padded to multiples of this, so that few shapes are compiled.
LENGTH_BUCKET = 8
COMPLETIONS_BUCKET = 64


def checked_id_rows(name, ids, size):
    """Return ids as a `(B, T)` int32 array, after checking them.

    Args:
        name: Name of the caller's argument, for error messages.
        ids: `(B, T)` int array padded at the right with 0, or a list of lists of ids.
        size: Vocabulary size.

    Raises:
        ValueError: If the ids are not integers, are outside the vocabulary, or are not padded at
            the right.

    Example:

    >>> checked_id_rows("source", [[5, 6], [7]], size=10).tolist()
    [[5, 6], [7, 0]]
    """
    check_dense("a search", **{name: ids})
    if isinstance(ids, (list, tuple)):
        if all(np.ndim(row) == 1 for row in ids):
            width = max(map(len, ids), default=0)
            ids = [[*row, *[PAD] * (width - len(row))] for row in ids]
        ids = np.asarray(ids)  # not yet int32, for the checks below
    ids = ops.convert_to_numpy(ids)
    if ids.ndim != 2 or 0 in ids.shape:
        raise argument_error(
            name,
            "be (batch, time) with at least one sentence of at least one id",
            received=f"shape {ids.shape}",
        )
    if not np.issubdtype(ids.dtype, np.integer):
        raise argument_error(name, "hold integers", received=str(ids.dtype))
    outside = ids[(ids < 0) | (ids >= size)]
    if outside.size:
        raise argument_error(name, f"hold ids in [0, {size})", received=str(int(outside[0])))
    gaps = np.argwhere((ids[:, :-1] == PAD) & (ids[:, 1:] != PAD))
    if gaps.size:
        raise argument_error(
            name,
            f"be padded ({PAD}) at the right only",
            received=f"row {gaps[0, 0]}, {ids[gaps[0, 0]]}",
        )
    return ids.astype("int32")


def checked_sources(source, size):
    """As `checked_id_rows`, for sources, which must not be empty.

    Raises:
        ValueError: For the errors of `checked_id_rows`, or if a row is only padding.
    """
    source = checked_id_rows("source", source, size)
    empty = np.flatnonzero((source == PAD).all(axis=1))
    if empty.size:
        raise argument_error(
            "source", "hold no sentence of only padding", received=f"row {empty[0]}"
        )
    return source


def checked_output_ids(name, ids, size):
    """As `checked_id_rows`, for outputs, whose last id may be `EOS`.

    Raises:
        ValueError: For the errors of `checked_id_rows`, or if an output continues after `EOS`.
    """
    ids = checked_id_rows(name, ids, size)
    continued = np.argwhere((ids[:, :-1] == EOS) & (ids[:, 1:] != PAD))
    if continued.size:
        row = continued[0, 0]
        raise argument_error(
            name,
            f"hold nothing after the end of an output, {EOS}",
            received=f"row {row}, {ids[row]}",
        )
    return ids


def checked_prefix(prefix, size, limits):
    """Return prefixes as a `(B, P)` int32 array padded to a bucket, after checking them.

    Args:
        prefix: `B` prefixes in a form that `checked_output_ids` accepts.
        size: Vocabulary size.
        limits: `(B,)` int array, the largest length of each prefix.

    Raises:
        ValueError: For the errors of `checked_output_ids`, or if a prefix is too long, or there are
            not `B` prefixes.
    """
    prefix = checked_output_ids("prefix", prefix, size)
    if len(prefix) != len(limits):
        raise argument_error(
            "prefix",
            f"hold one prefix for each of {len(limits)} sources",
            received=str(len(prefix)),
        )
    lengths = (prefix != PAD).sum(axis=1)
    too_long = np.flatnonzero(lengths > limits)
    if too_long.size:
        row = too_long[0]
        raise argument_error(
            "prefix",
            f"be no longer than outputs may be, {limits[row]} by `max_length` and the search",
            received=f"{lengths[row]} ids in row {row}",
        )
    return pad(prefix.tolist(), bucket=LENGTH_BUCKET)


def tabulate_completions(completions, size):
    """Return the completion table that a search needs.

    Args:
        completions: `(B, n, 2)` or `(1, n, 2)` int32 positions and ids, each id at most once in a
            row, padded with `PAD`.
        size: Vocabulary size `V`.

    Returns:
        `(B, V)` or `(1, V)` int32, one more than the position of an id, 0 for other ids.
    """
    rows = ops.shape(completions)[0]
    positions, ids = completions[:, :, 0], completions[:, :, 1]
    values = ops.where(ops.equal(ids, PAD), 0, positions + 1)
    indices = ops.reshape(row_starts(rows, size) + ids, (-1, 1))
    values = ops.cast(ops.reshape(values, (-1,)), "float32")
    table = ops.scatter_update(ops.zeros((rows * size,), dtype="float32"), indices, values)
    return ops.cast(ops.reshape(table, (-1, size)), "int32")


def checked_completions(completions, size, prefix):
    """Return completions of prefixes as an int32 array padded to a bucket, after checking them.

    Args:
        completions: `(B, n, 2)` int array.
        size: Vocabulary size.
        prefix: `(B, P)` int array, or `None`.

    Raises:
        ValueError: If `completions` has another shape, an id is outside the vocabulary or repeated,
            a position is outside the prefix, or there is no prefix.
    """
    completions = np.asarray(completions)
    rows = 0 if prefix is None else len(prefix)
    pattern, note = "batch completions 2", f" for {rows} prefixes"
    check_shape("completions", completions, pattern, "ints", note, batch=rows)
    for row, ids in enumerate(completions[:, :, 1]):
        values, counts = np.unique(ids[ids != PAD], return_counts=True)
        if (counts > 1).any():
            raise argument_error(
                "completions",
                "hold each id at most once in a row",
                received=f"{values[counts > 1][0]} in row {row}",
            )
    for name, limit, values in (
        ("positions", prefix.shape[1], completions[:, :, 0]),
        ("ids", size, completions[:, :, 1]),
    ):
        if ((values < 0) | (values >= limit)).any():
            raise argument_error(
                "completions",
                f"hold {name} from 0 to {limit - 1}",
                received=f"{values.min()} to {values.max()}",
            )
    missing = round_up(completions.shape[1], COMPLETIONS_BUCKET) - completions.shape[1]
    return np.pad(completions.astype("int32"), ((0, 0), (0, missing), (0, 0)))


def checked_suppressed(suppressed, size, rows):
    """Return suppressed ids as an int32 array padded to a bucket, after checking them.

    Args:
        suppressed: Lists of ids in a form that `checked_id_rows` accepts.
        size: Vocabulary size.
        rows: Number of sources `B`.

    Raises:
        ValueError: For the errors of `checked_id_rows`, or if there are neither `B` lists nor one.
    """
    suppressed = checked_id_rows("suppressed", suppressed, size)
    if len(suppressed) not in (1, rows):
        raise argument_error(
            "suppressed",
            f"hold one list of ids, or one for each of {rows} sources",
            received=str(len(suppressed)),
        )
    return pad(suppressed.tolist(), bucket=LENGTH_BUCKET)


def checked_required(required, size, rows):
    """Return required phrases as a `(B, P, L)` or `(1, P, L)` int32 array, after checking them.

    Equal phrases of a row become one. `P` and `L` are powers of 2, so that few shapes are compiled.

    Args:
        required: Int array `(B, P, L)`, or a list of lists of lists of ids.
        size: Vocabulary size.
        rows: Number of sources `B`.

    Raises:
        ValueError: If the ids are not integers or are outside the vocabulary, the phrases are not
            padded at the right, there are neither `B` rows nor one, or a phrase contains `BOS` or
            `EOS`, or, in a list, is empty or contains `PAD`.

    Example:

    >>> checked_required([[[5, 6]], [[7], [8], [8]]], size=10, rows=2).tolist()
    [[[5, 6], [0, 0]], [[7, 0], [8, 0]]]
    """
    if hasattr(required, "shape"):
        array = ops.convert_to_numpy(required)
        if array.ndim != 3 or 0 in array.shape:
            raise argument_error(
                "required",
                "be (batch, phrases, length) with at least one of each",
                received=f"shape {array.shape}",
            )
        flat = checked_id_rows("required", array.reshape(-1, array.shape[-1]), size)
        lengths = (flat != PAD).sum(axis=1)
        flat = [row[:length].tolist() for row, length in zip(flat, lengths, strict=True)]
        count = array.shape[1]
        phrases = [flat[start : start + count] for start in range(0, len(flat), count)]
        phrases = [[phrase for phrase in row if phrase] for row in phrases]
    else:
        rows_of_phrases = required if isinstance(required, (list, tuple)) else [required]
        is_nested = all(isinstance(row, (list, tuple)) for row in rows_of_phrases)
        if not is_nested or any(np.ndim(phrase) != 1 for row in required for phrase in row):
            raise argument_error(
                "required",
                "be a list of phrases for each source, and a phrase a list of ids",
                required,
            )
        phrases = [[list(phrase) for phrase in row] for row in required]
        flat = [phrase for row in phrases for phrase in row]
        if not all(flat):
            raise argument_error("required", "have no empty phrase", received="[]")
        if flat:
            checked_id_rows("required", flat, size)
    if len(phrases) not in (1, rows):
        raise argument_error(
            "required",
            f"hold one list of phrases, or one for each of {rows} sources",
            received=str(len(phrases)),
        )
    for phrase in (phrase for row in phrases for phrase in row):
        special = {PAD, BOS, EOS} & set(phrase)
        if special:
            raise argument_error(
                "required",
                "have no phrase with an id of padding, begin or end",
                received=str(phrase),
            )
    phrases = [list(map(list, dict.fromkeys(map(tuple, row)))) for row in phrases]
    count = _power_of_two(max(map(len, phrases)))
    width = _power_of_two(max((len(phrase) for row in phrases for phrase in row), default=1))
    result = np.full((len(phrases), count, width), PAD, "int32")
    for b, row in enumerate(phrases):
        for p, phrase in enumerate(row):
            result[b, p, : len(phrase)] = phrase
    return result


def _power_of_two(number):
    """Return the smallest power of 2 that is at least `number`."""
    return 1 << max(number - 1, 0).bit_length()


def check_required(required, forbidden, limits, prefix=None, suppressed=None):
    """Raise a `ValueError` unless every output can contain its required phrases.

    Args:
        required: `(B, P, L)` or `(1, P, L)` int32 array.
        forbidden: Ids that the search never chooses.
        limits: `(B,)` int array, the largest number of ids of an output.
        prefix: `(B, n)` int array, or `None`.
        suppressed: `(B, n)` or `(1, n)` int array, or `None`.
    """
    none = np.full((1, 1), PAD)
    arrays = (
        required,
        none if prefix is None else prefix,
        none if suppressed is None else suppressed,
    )
    rows = zip(*(np.broadcast_to(a, (len(limits), *a.shape[1:])) for a in arrays), strict=True)
    for row, (phrases, start, excluded) in enumerate(rows):
        phrases = [[token for token in phrase if token != PAD] for phrase in phrases.tolist()]
        start = [token for token in start.tolist() if token != PAD]
        for name, ids in (("forbidden", forbidden), ("suppressed", excluded.tolist())):
            contradicting = {token for phrase in phrases for token in phrase} & {*ids}
            if contradicting:
                raise argument_error(
                    "required",
                    f"have no phrase with an id that is also in `{name}`",
                    received=f"{min(contradicting)} in row {row}",
                )
        room = 0 if start[-1:] == [EOS] else limits[row] - len(start)
        missing = count_missing(phrases, start)
        if missing > room:
            raise argument_error(
                "required",
                f"fit in the rest of the output, {room} ids by `max_length`, the search and "
                "`prefix`",
                received=f"{missing} ids in row {row}",
            )


def checked_limits(max_length, lengths):
    """Return the `(B,)` int32 limits of the outputs, and the static length of the search."""
    value = max_length(lengths) if callable(max_length) else max_length
    limits = np.asarray(value)
    is_wrong = limits.dtype.kind not in "iu" or limits.ndim > 1 or (limits < 1).any()
    if is_wrong or limits.shape not in ((), lengths.shape):
        raise argument_error(
            "max_length",
            "be a positive integer, one for each source, or a function that gives them",
            value,
        )
    steps = int(limits.max())
    check_setting("max_length", steps)
    if limits.ndim:  # limits that vary from batch to batch share the compiled search of a bucket
        steps = int(round_up(steps, LENGTH_BUCKET))
    return np.broadcast_to(limits, lengths.shape).astype("int32"), steps


def compile_inference(model, function):
    """Compile a function of arrays that reads the weights of a model.

    TensorFlow traces it once for all shapes with the same ranks and dtypes. JAX compiles it for
    each shape, with the weights as arguments. Torch runs it eagerly without gradients.

    Args:
        model: The `keras.Model` whose variables `function` reads.
        function: Takes tensors, returns a structure of tensors.

    Returns:
        A function of NumPy arrays.
    """
    backend = keras.config.backend()
    if backend == "tensorflow":
        return _compile_for_tensorflow(model, function)
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


def _compile_for_tensorflow(model, function):
    import tensorflow as tf

    traced, traced_variables = {}, []

    def run(*arrays):
        variables = model.variables
        # Quantization, for example, replaces variables.
        if list(map(id, variables)) != list(map(id, traced_variables)):
            traced.clear()
            traced_variables[:] = variables
        kinds = tuple((array.ndim, array.dtype.name) for array in arrays)
        if kinds not in traced:
            specs = [tf.TensorSpec([None] * rank, dtype) for rank, dtype in kinds]
            # `keras.ops` needs no autograph, which reads and converts source files.
            traced[kinds] = tf.function(function, input_signature=specs, autograph=False)
        return traced[kinds](*arrays)

    return run
