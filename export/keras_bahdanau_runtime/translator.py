"""Translate texts with an artifact: onnxruntime, numpy and tokenizers, without Keras."""

import functools
import math
import os
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from keras_bahdanau_runtime.batch_sizes import BATCH_SIZE, BATCH_TOKENS
from keras_bahdanau_runtime.calibration import (
    Calibration,
    load_calibration,
    why_uncalibrated,
)
from keras_bahdanau_runtime.checks import (
    check_limits,
    check_positive,
    check_range,
    check_text,
    checked_ids,
    checked_stream,
    checked_texts,
)
from keras_bahdanau_runtime.cuda.graphs import CudaGraphSearch, open_search
from keras_bahdanau_runtime.errors import (
    CorruptArtifactError,
    UnsupportedArtifactError,
    argument_error,
)
from keras_bahdanau_runtime.hub import download
from keras_bahdanau_runtime.ids import EOS, PAD
from keras_bahdanau_runtime.manifest import Manifest, expect_unreplaced, read_unreplaced
from keras_bahdanau_runtime.scoring import Scorer, TargetScore, score_texts
from keras_bahdanau_runtime.search import GraphSearch, checked_noise
from keras_bahdanau_runtime.search_options import (
    SearchOptions,
    check_constraints,
    check_count,
    check_prefix,
    constraint_inputs,
    encode_constraints,
    forced_ids,
    require_options,
    shortlist_room,
    spelled_ids,
    text_constraints,
)
from keras_bahdanau_runtime.search_settings import JSON_KEYS
from keras_bahdanau_runtime.session import (
    Providers,
    available_cores,
    device_of,
    release_memory,
    with_tf32,
)
from keras_bahdanau_runtime.signature import (
    MODEL_FILE,
    NOISE,
    TOKENIZER_FILE,
    TRANSLATE,
    weights_file,
)
from keras_bahdanau_runtime.stepper import Stepper
from keras_bahdanau_runtime.text.alignment import Link, text_links
from keras_bahdanau_runtime.text.batches import read_windows
from keras_bahdanau_runtime.text.tokenizer import Tokenizer
from keras_bahdanau_runtime.translation import (
    Alternative,
    Outputs,
    Translation,
    encode_texts,
    load_tokenizer,
    translate_texts,
)

WINDOW_SIZE = 2048  # texts: enough for batches of similar length


class Translator:
    """Translate texts with an artifact, using onnxruntime.

    Many threads may use one translator at the same time. A translator is pickled and copied as its
    folder and settings: the copy opens the artifact that the folder then contains.

    Args:
        path: Folder of the artifact. Every file in it is first compared with its hash.
        providers: `"auto"` uses CUDA if onnxruntime has it and the CPU otherwise, and logs which. A
            name, or a list of names or `(name, options)` pairs, is used exactly. Operators that run
            on the CPU although another provider was requested are logged, too.
        threads: int, threads of one operator. `None` lets onnxruntime use one for each physical
            core, which is fastest for one batch after another; if this process may not use all
            cores, it means one for each that it may use. If it is set, waiting threads sleep
            after 50 microseconds, so that several batches at once disturb each other less.
        timeout: float, seconds that one run of the graph may take. It limits what an untrusted
            artifact, or a batch that is too large, can block. `None` for no limit.
        megabytes: float, memory for the tensors of all runs of one graph on the CPU, without its
            weights. On CUDA, use the provider option `gpu_mem_limit`. `None` for no limit. Needs
            onnxruntime 1.27 or later.
        parallel_batches: int, batches of one call that run at the same time; with `threads=None`
            they share the cores. One for each core is fastest for many texts on a CPU, and needs
            the memory of as many batches.
        cuda_graphs: bool, whether to run each step of a search as a CUDA graph, one search at a
            time. The artifact must be exported with `cuda_graphs=True`. `None` for yes if the
            artifact has the graphs and runs on CUDA.
        tf32: bool, whether CUDA may multiply with 10 bits of precision, which is faster. Otherwise
            it multiplies in float32.

    Raises:
        ValueError: `path` is not a folder, a provider is not available or does not open the graph,
            `cuda_graphs` or `tf32` is not a bool, or `threads`, `timeout`, `megabytes` or
            `parallel_batches` is not positive.
        CorruptArtifactError: The artifact is incomplete, damaged or tampered with.
        UnsupportedArtifactError: The artifact has a newer format, has no `model.onnx`, or one with
            operators that are not on the list in `operators`.
        MissingDependencyError: onnxruntime is not installed, or tokenizers is not and the artifact
            needs it.

    Example:

    >>> translator = Translator("artifact")
    >>> translator.translate(["a man on a bike"])[0].text
    'ein Mann auf einem Fahrrad'
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        providers: Providers = "auto",
        threads: int | None = None,
        timeout: float | None = None,
        megabytes: float | None = None,
        parallel_batches: int = 1,
        cuda_graphs: bool | None = None,
        tf32: bool = False,
    ) -> None:
        check_positive(parallel_batches=parallel_batches)
        check_limits(threads, timeout, megabytes)
        self._providers, self._threads = with_tf32(providers, tf32), threads
        self._timeout, self._megabytes = timeout, megabytes
        self._parallel_batches, self._cuda_graphs = parallel_batches, cuda_graphs
        self._stepper: Stepper | None = None
        self._stepper_lock = threading.Lock()
        self._scorer: Scorer | None = None
        self._scorer_lock = threading.Lock()
        read_unreplaced(path, self._open)

    @classmethod
    def from_hub(cls, repository: str, revision: str | None = None, **options: Any) -> "Translator":
        """Open an artifact of the Hugging Face Hub, downloading what its cache does not have.

        Only the files that `manifest.json` lists are downloaded, and each is compared with its
        hash. A copy of this translator on another machine needs the same cache.

        Args:
            repository: `USER/NAME`.
            revision: A branch, tag or commit; `None` for the branch "main". Only a commit can never
                change.
            **options: The arguments of `Translator` after `path`.

        Raises:
            ValueError: There is no such repository or revision, it contains no artifact, or as
                `Translator`.
            ConnectionError: The Hub cannot be reached, and the cache has no copy.
            CorruptArtifactError: A file was changed or is missing.

        Other errors are those of `Translator`.

        Example:

        ```python
        translator = Translator.from_hub("user/en-de", revision="v1")
        translator.translate(["a man on a bike"])[0].text
        ```
        """
        return cls(download(repository, revision), **options)

    def __reduce__(self) -> tuple[Any, ...]:
        limits = self._threads, self._timeout, self._megabytes, self._parallel_batches
        return type(self), (str(self.manifest.folder), self._providers, *limits, self._cuda_graphs)

    def _open(self, manifest: Manifest) -> None:
        """Verify every file once, and open the graphs and the tokenizer from the same bytes."""
        self.manifest, folder = manifest, manifest.folder
        if not manifest.has_search():
            raise UnsupportedArtifactError(
                f"{folder}: {MODEL_FILE} contains no search, only the forward pass of a model. "
                "Run it with onnxruntime.InferenceSession."
            )
        if "source" not in manifest.vocabulary:
            raise CorruptArtifactError(
                f"{folder}: the manifest has no vocabulary size for 'source'."
            )
        self._is_sampling = manifest.is_sampling()
        if self._is_sampling and not {"n", "max_length", "seed"} <= set(manifest.search.document):
            raise CorruptArtifactError(
                f"{folder}: the manifest does not say how many random numbers the search needs."
            )
        self._graph = self._open_search()
        verified = {*self._graph.files, *map(weights_file, self._graph.files), TOKENIZER_FILE}
        for name in set(manifest.files) - verified:
            manifest.check(name)
        self.tokenizer: Tokenizer | None = None
        if TOKENIZER_FILE in manifest.files:
            self.tokenizer = load_tokenizer(manifest)
        self.calibration = load_calibration(manifest)

    def _open_search(self) -> GraphSearch | CudaGraphSearch:
        return open_search(self.manifest, self._cuda_graphs, self._providers, *self._limits())

    def _limits(self) -> tuple[int | None, float | None, float | None]:
        """Return the threads of one batch, `timeout` and `megabytes`."""
        threads = self._threads
        if threads is None and self._parallel_batches > 1:
            threads = max(1, available_cores() // self._parallel_batches)
        return threads, self._timeout, self._megabytes

    @property
    def session(self) -> Any:
        """The onnxruntime session of the search: of the whole graph, or of a step."""
        return self._graph.session

    def with_threads(self, threads: int) -> "Translator":
        """Return a translator of the same artifact with another number of threads.

        Its weights are in memory a second time.

        Raises:
            ValueError: `threads` is not positive.
            CorruptArtifactError: The artifact was replaced since it was opened.
        """
        check_positive(threads=threads)
        other = object.__new__(type(self))
        vars(other).update(vars(self), _threads=threads)
        other._stepper, other._stepper_lock = None, threading.Lock()
        other._scorer, other._scorer_lock = None, threading.Lock()
        with expect_unreplaced(self.manifest):
            other._graph = other._open_search()
        return other

    @property
    def providers(self) -> list[str]:
        """Names of the execution providers in use, in order of preference."""
        return list(self.session.get_providers())

    @overload
    def translate(
        self,
        texts: Iterable[str],
        batch_size: int = ...,
        batch_tokens: int | None = ...,
        *,
        truncate: bool = ...,
        progress: Callable[[int], object] | None = ...,
        alignments: bool = ...,
        on_error: str = ...,
    ) -> list[Translation]: ...
    @overload
    def translate(
        self,
        texts: Iterable[str],
        batch_size: int = ...,
        batch_tokens: int | None = ...,
        n_best: int = ...,
        *args: Any,
        **options: Any,
    ) -> list[Any]: ...
    def translate(
        self,
        texts: Iterable[str],
        batch_size: int = BATCH_SIZE,
        batch_tokens: int | None = BATCH_TOKENS,
        n_best: int = 1,
        truncate: bool = False,
        progress: Callable[[int], object] | None = None,
        alignments: bool = True,
        on_error: str = "raise",
        *,
        prefixes: Sequence[str | None] | None = None,
        suppressed: Sequence[str | int] = (),
        disable_unknown: bool = False,
        required: Sequence[Sequence[str] | None] | None = None,
        **options: Any,
    ) -> list[Any]:
        """Translate texts in batches of similar length, and return the results in input order.

        A blank text (empty or only white space) gives an empty `Translation` without a score;
        the model is not run for it.

        Args:
            texts: list of str, one sentence each.
            batch_size: int. Largest number of sentences in one run of the model.
            batch_tokens: int. Largest number of source ids in one run, including padding, which
                determines its memory and time; a longer sentence runs alone. `None` for no limit.
            n_best: int. Number of hypotheses for each text, best first; at most as many as the
                search returns. A text has fewer if the search found fewer.
            truncate: bool. Whether to cut a text that is longer than the artifact's limit, and log
                the number of such texts, instead of raising an error.
            progress: Called after each batch with the number of finished texts.
            alignments: bool. Whether to fetch the attention weights, by far the largest output,
                from the device.
            on_error: "raise"; or "keep" to return a `Translation` with an `error` for a text that
                is too long, is not Unicode, or whose run fails. After a failed run, the texts of
                the batch run one by one.
            prefixes: list of str or `None`, the beginning of each translation, which may end within
                a word; see `encode_constraints`. `None` for no prefixes.
            suppressed: list of str or int. Tokens, as text or ids, that no translation contains
                after its prefix.
            disable_unknown: bool. Whether to suppress the unknown token.
            required: list of lists of str or `None`, phrases that each translation contains; see
                `encode_constraints`. Needs a beam of at least 2; one of twice as many hypotheses as
                the phrases have tokens finds good translations. `None` for no phrases.
            **options: The fields of `SearchOptions`, such as `beam_size` and `length_penalty`, in
                place of the settings of the export.

        Returns:
            A list of `Translation`; with `n_best` above 1, a list of such lists. A blank text, and
            one with an error, has one hypothesis.

        Raises:
            ValueError: `texts` is a single str, an item is not a str or is too long, a number is
                out of range, there are not as many prefixes as texts, a prefix is too long, a
                suppressed text is not one token, the tokenizer cannot spell a prefix or a required
                phrase exactly, a required phrase contains a suppressed token, the options and
                constraints leave no output, or the artifact has no tokenizer.
            UnsupportedArtifactError: The artifact has no such option.
            RunError: onnxruntime could not run the graph, for example without enough memory.
            LimitError: A run exceeded `timeout` or `megabytes`.

        Example:

        >>> Translator("artifact").translate(["two dogs"], beam_size=2, prefixes=["Zwei H"])[0].text
        'Zwei Hunde'
        """
        settings = SearchOptions.from_values(options)
        settings.check(self.manifest)
        tokenizer = self.require_tokenizer()
        if prefixes is not None or required is not None:
            texts = checked_texts("texts", texts)
        constraints = text_constraints(
            tokenizer, texts, prefixes, suppressed, disable_unknown, required, on_error
        )
        require_options(self.manifest, constraint_inputs([constraints(None)]))

        calibration = self.calibration_for(settings)

        def search(source: NDArray[np.int32], indices: list[int]) -> Outputs:
            rows = [constraints(index) for index in indices]
            inputs = constraint_inputs(rows)
            require_options(self.manifest, inputs)
            for row, length in zip(rows, (source != PAD).sum(axis=1).tolist(), strict=True):
                limit = settings.output_limit(self.manifest, length)
                check_constraints(row, self.manifest, limit, settings.beam_size)
            outputs = self.search(source, alignments, inputs=settings.inputs() | inputs)
            if isinstance(calibration, Calibration):
                outputs |= calibration.judge(outputs)
            return outputs

        return translate_texts(
            texts,
            tokenizer,
            search,
            batch_size=batch_size,
            batch_tokens=batch_tokens,
            n_best=n_best,
            max_source_length=self.manifest.max_source_length,
            truncate=truncate,
            progress=progress,
            alignments=alignments,
            on_error=on_error,
            parallel_batches=self._parallel_batches,
            uncalibrated=lambda index: why_uncalibrated(calibration, constraints(index)),
        )

    def calibration_for(self, options: SearchOptions) -> Calibration | str | None:
        """Return the calibration, or why it does not hold for a search with these options.

        Returns:
            A `Calibration`, a `str`, or `None` if the artifact has no calibration.
        """
        if self.calibration is None:
            return None
        values = {JSON_KEYS.get(name, name): value for name, value in options.values().items()}
        document = {**self.manifest.search.document, **values}
        return self.calibration.mismatch(document) or self.calibration

    def translate_stream(
        self,
        texts: Iterable[str],
        window: int = WINDOW_SIZE,
        batch_size: int = BATCH_SIZE,
        batch_tokens: int | None = BATCH_TOKENS,
        truncate: bool = False,
        alignments: bool = False,
        on_error: str = "keep",
        n_best: int = 1,
        *,
        prefixes: Sequence[str | None] | None = None,
        required: Sequence[Sequence[str] | None] | None = None,
        **options: Any,
    ) -> Iterator[Any]:
        """Translate a stream of texts in order, in memory that does not grow with their number.

        The texts that arrive while one window is translated form the next window.

        Args:
            texts: Any iterable of str, which may block; a thread reads it.
            window: int. Largest number of texts that are read ahead and sorted into batches.
            batch_size: As for `translate`.
            batch_tokens: As for `translate`.
            truncate: As for `translate`.
            alignments: As for `translate`.
            on_error: As for `translate`.
            n_best: As for `translate`.
            prefixes: As for `translate`.
            required: As for `translate`.
            **options: As for `translate`, with `suppressed` and `disable_unknown`.

        Returns:
            An iterator of one `Translation` for each text; with `n_best` above 1, of lists.

        Raises:
            ValueError: As `translate`. The iterator raises the exceptions of `texts` after the
                translations of the texts before, and, at the latest after the last text, an error
                if there are not as many prefixes, or lists of required phrases, as texts.

        Example:

        >>> for translation in Translator("artifact").translate_stream(iterate_lines("source.txt")):
        ...     print(translation.text, flush=True)
        """
        check_positive(window=window)

        def translate(texts: Sequence[str], first: int = 0) -> list[Any]:
            window = slice(first, first + len(texts))
            return self.translate(
                texts,
                batch_size,
                batch_tokens,
                n_best,
                truncate,
                None,
                alignments,
                on_error,
                prefixes=None if prefixes is None else prefixes[window],
                required=None if required is None else required[window],
                **options,
            )

        translate(())  # raises errors in the other arguments now
        windows = read_windows(checked_stream("texts", texts, on_error == "keep"), window)

        def results() -> Iterator[Any]:
            first = 0
            for texts in windows:
                yield from translate(texts, first)
                first += len(texts)
            check_count("prefixes", prefixes, first)
            check_count("required", required, first)

        return results()

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """Return the token ids of texts, without blank texts.

        Args:
            texts: list of str, one sentence each.

        Returns:
            list of lists of int, each with 3 (end of sentence) as its last id.

        Raises:
            ValueError: As `translate`.
        """
        return [ids for ids in self._encode(checked_texts("texts", texts)) if ids]

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of checked texts, an empty list for a blank text."""
        return encode_texts(texts, self.require_tokenizer(), self.manifest.max_source_length)

    def translate_ids(
        self, source: ArrayLike, noise: ArrayLike | None = None
    ) -> dict[str, NDArray[Any]]:
        """Run the search on token ids.

        Args:
            source: Integer array of shape `(B, Tx)`. Each row ends with 3 (end of sentence), as in
                training, and is padded with 0 at the right.
            noise: For an artifact that samples: uniform random numbers in [0, 1), float32 of shape
                `(B, n, max_length)`; `None` to draw them from the artifact's seed.

        Returns:
            Dict of `"tokens"` int32 `(B, K, T)`, `"scores"` float32 `(B, K)`, `"lengths"` int32
            `(B, K)`, `"alignments"` float32 `(B, K, T, Tx)` and `"log_probs"` float32 `(B, K, T)`,
            hypotheses best first; `T` is the longest output. Artifacts of earlier versions have no
            `"log_probs"`.

        Raises:
            ValueError: Wrong rank or dtype, no rows, a row with only padding or with padding
                between ids, an id outside the vocabulary, or a row longer than the artifact's
                limit; `noise` has another shape, or the artifact does not sample.
            RunError, LimitError: As `translate`.
        """
        vocabulary = self.manifest.vocabulary
        array = checked_ids("source", source, vocabulary["source"], self.manifest.max_source_length)
        max_rows = self.manifest.search.max_batch_size(vocabulary.get("target", 1))
        if len(array) > max_rows:
            raise argument_error(
                "source", f"have at most {max_rows} rows", received=str(len(array))
            )
        outputs = self.search(array, noise=noise)
        longest = int(outputs["lengths"].max())
        with_steps = {"tokens", "alignments", "log_probs"} & outputs.keys()
        return {**outputs, **{name: outputs[name][:, :, :longest] for name in with_steps}}

    def score(
        self,
        sources: Iterable[str],
        targets: Iterable[str],
        batch_size: int = BATCH_SIZE,
        batch_tokens: int | None = BATCH_TOKENS,
        progress: Callable[[int], object] | None = None,
        alignments: bool = True,
        on_error: str = "raise",
    ) -> list[TargetScore]:
        """Return the log-probabilities and the attention weights of given targets.

        The decoder reads each target; nothing is searched. No option of the search applies, such as
        a length penalty, and a shortlist does not limit the vocabulary. Needs `score.onnx`, which
        is opened by the first call. The order of the results is that of the pairs.

        Args:
            sources: list of str, one sentence each.
            targets: list of str, the target of each source.
            batch_size: int. Largest number of pairs in one run of the model.
            batch_tokens: int. Largest number of ids of one side in one run, including padding; a
                longer pair runs alone. `None` for no limit.
            progress: Called after each batch with the number of finished pairs.
            alignments: bool. Whether to fetch the attention weights and what was copied from the
                device.
            on_error: "raise"; or "keep" to return a `TargetScore` with an `error` for a pair with a
                text that is blank, too long or not Unicode, or whose run fails.

        Returns:
            A list of `TargetScore`.

        Raises:
            ValueError: `sources` or `targets` is a single str, their numbers differ, an item is not
                a str, is blank, or is longer than the artifact's limit (`max_source_length`, and
                `max_length` for targets), a number is out of range, or the artifact has no
                tokenizer.
            UnsupportedArtifactError: The artifact has no `score.onnx`: export it again.
            CorruptArtifactError: The graph is damaged, or the artifact was replaced.
            RunError, LimitError: As `translate`.

        Example:

        >>> [score] = Translator("artifact").score(["a man"], ["ein Mann"])
        >>> score.total, score.tokens
        (-0.27, ['ein', ' Mann', '</s>'])
        """
        tokenizer, scorer = self.require_tokenizer(), self.open_scorer()
        return score_texts(
            sources,
            targets,
            tokenizer,
            lambda source, target: scorer.score(source, target, alignments),
            batch_size=batch_size,
            batch_tokens=batch_tokens,
            max_source_length=self.manifest.max_source_length,
            max_target_length=scorer.max_target_length,
            progress=progress,
            on_error=on_error,
            parallel_batches=self._parallel_batches,
        )

    def align(
        self,
        sources: Iterable[str],
        targets: Iterable[str],
        batch_size: int = BATCH_SIZE,
        batch_tokens: int | None = BATCH_TOKENS,
        progress: Callable[[int], object] | None = None,
        threshold: float | None = None,
        pieces: bool = False,
    ) -> list[list[Link]]:
        """Return the links between the words of given sources and targets.

        Args:
            sources: As for `score`.
            targets: As for `score`.
            batch_size: As for `score`.
            batch_tokens: As for `score`.
            progress: As for `score`.
            threshold: float. Link all words with at least this weight; `None` to link each target
                word to the source word with the largest weight.
            pieces: bool. Whether to link the tokenizer's pieces instead of words.

        Returns:
            For each pair a list of `(source position, target position)`, counted from 0; see
            `text_links`. `to_pharaoh` formats it.

        Raises:
            ValueError: As `score`, or `threshold` is not above 0 and at most 1.
            UnsupportedArtifactError, CorruptArtifactError, RunError, LimitError: As `score`.

        Example:

        >>> Translator("artifact").align(["a red cat"], ["eine rote Katze"])
        [[(0, 0), (1, 1), (2, 2)]]
        """
        if threshold is not None:
            check_range("threshold", threshold, float, 0, 1, open_low=True)
        scores = self.score(sources, targets, batch_size, batch_tokens, progress)
        return [
            text_links(score.alignment, score.source_tokens, score.tokens, threshold, pieces)
            for score in scores
            if score.alignment is not None  # always
        ]

    def score_ids(self, source: ArrayLike, target: ArrayLike) -> dict[str, NDArray[Any]]:
        """Score targets that are token ids; see `Scorer.score`.

        Raises:
            UnsupportedArtifactError, CorruptArtifactError, RunError, LimitError: As `score`.
            ValueError: As `Scorer.score`.
        """
        return self.open_scorer().score(source, target)

    def stream(
        self, text: str, max_length: int | None = None, prefix: str | None = None
    ) -> Iterator[str]:
        """Translate one text greedily and yield the translation piece by piece.

        `forbidden`, `min_length` and `no_repeat_ngram` of the artifact's search apply. Needs
        `encoder.onnx` and `step.onnx`, which are opened by the first call.

        Args:
            text: str, one sentence.
            max_length: int. Largest number of tokens; `None` for that of the artifact's search.
            prefix: str. The beginning of the translation, which may end within a word; see
                `encode_constraints`. `None` for none.

        Yields:
            str, the text that a step adds. A step that completes no character yields nothing. The
            texts join to the translation, with its prefix.

        Raises:
            ValueError: As `translate`.
            UnsupportedArtifactError: The artifact has no steps; export with `stepwise=True`.
            CorruptArtifactError: The steps are damaged, or the artifact was replaced.
            RunError, LimitError: As `translate`; raised by the iterator.

        Example:

        >>> for piece in Translator("artifact").stream("a man on a bike"):
        ...     print(piece, end="", flush=True)
        """
        check_text("text", text)
        [ids] = self._encode([text])
        if max_length is None:
            max_length = self.manifest.search.output_limit(len(ids))
        check_positive(max_length=max_length)
        tokenizer = self.require_tokenizer().for_source(text)
        start = encode_constraints(tokenizer, prefix)
        check_prefix(start, max_length)
        stepper = self.open_stepper()
        source = np.array([ids], np.int32)
        tokens = stepper.greedy(
            source, self.manifest.search, max_length, start.prefix, start.completions
        )
        return tokenizer.target_decoder().stream(tokens if ids else ())

    def alternatives(self, text: str, prefix: str = "", count: int = 5) -> list[Alternative]:
        """Return the most probable words after the beginning of a translation.

        A word begins with one of the `count` most probable tokens and is continued greedily until
        it ends, by at most 8 tokens. Punctuation and the end of the sentence are words, too. After
        a prefix that ends with a space, only words with a space in front are possible.
        `forbidden`, `min_length` and `no_repeat_ngram` of the artifact's search apply.

        Args:
            text: str, one sentence.
            prefix: str. The beginning of the translation, whose last word is complete.
            count: int. Largest number of words.

        Returns:
            A list of `Alternative`, the most probable first. Several spellings of a word in tokens
            are one, with the sum of their probabilities.

        Raises:
            ValueError: `text` is blank, or as `translate`; the tokenizer cannot spell the prefix;
                the prefix has as many tokens as an output may have; or `count` is not a positive
                int.
            UnsupportedArtifactError, CorruptArtifactError: As `stream`.
            RunError, LimitError: As `translate`.

        Example:

        >>> Translator("artifact").alternatives("a man on a bike", "ein Mann auf ", count=2)
        [Alternative(text='einem', probability=0.86), Alternative(text='dem', probability=0.05)]
        """
        check_text("text", text)
        check_text("prefix", prefix)
        check_positive(count=count)
        [ids] = self._encode([text])
        if not ids:
            raise argument_error("text", "not be blank", text)
        tokenizer, allowed = self.require_tokenizer().for_source(text), None
        has_space = prefix.endswith(" ") and bool(prefix.strip())
        if has_space and not tokenizer.spellings[1].ends_words:
            # The space belongs to the token of the next word.
            allowed, prefix = tokenizer.target_ids_starting_with(b" "), prefix[:-1]
        start = spelled_ids(tokenizer, "prefix", prefix)
        limit = self.manifest.search.output_limit(len(ids))
        if len(start) >= limit:
            raise argument_error(
                "prefix",
                f"have less than {limit} tokens, the largest number of output tokens",
                received=str(len(start)),
            )
        words = self.open_stepper().likeliest_words(
            np.array([ids], np.int32),
            self.manifest.search,
            start,
            allowed,
            count,
            functools.partial(_ends_word, tokenizer),
        )

        def decode(ids: Sequence[int]) -> str:
            return "".join(tokenizer.target_decoder().tokens(ids))

        length = len(decode(start)) + has_space
        probabilities = dict[str, float]()
        for ids, log_prob in words:
            added = "" if ids == [EOS] else decode([*start, *ids])[length:]
            probabilities[added] = probabilities.get(added, 0.0) + math.exp(log_prob)
        ranked = sorted(probabilities.items(), key=lambda item: -item[1])
        return [Alternative(*item) for item in ranked]

    def require_tokenizer(self) -> Tokenizer:
        """Return the tokenizer, or raise a `ValueError` if the artifact has none."""
        if self.tokenizer is None:
            raise ValueError(
                f"Argument `texts` needs a tokenizer, and the artifact {self.manifest.folder} was "
                "exported without one. Export it with tokenizer=..., or call translate_ids."
            )
        return self.tokenizer

    def open_stepper(self) -> Stepper:
        """Return the `Stepper` of this artifact, opened by the first call; raises as `stream`."""
        with self._stepper_lock:
            if self._stepper is None:
                with expect_unreplaced(self.manifest):
                    self._stepper = Stepper(
                        self.manifest,
                        self._providers,
                        self._threads,
                        timeout=self._timeout,
                        megabytes=self._megabytes,
                    )
            return self._stepper

    def open_scorer(self) -> Scorer:
        """Return the `Scorer` of this artifact, opened by the first call; raises as `score`."""
        with self._scorer_lock:
            if self._scorer is None:
                with expect_unreplaced(self.manifest):
                    self._scorer = Scorer(self.manifest, self._providers, *self._limits())
            return self._scorer

    def release_memory(self) -> None:
        """Return the memory of earlier calls to the system, on a CPU.

        onnxruntime keeps the largest memory that a call has needed for the next one. A process that
        waits for work for a long time can return it. The next call then takes a few milliseconds
        longer. On a GPU this method does nothing.

        Raises:
            RunError, LimitError: As `translate`.

        Example:

        >>> translator = Translator("artifact")                       # doctest: +SKIP
        >>> translator.translate(["a man on a bike"] * 1000)          # doctest: +SKIP
        >>> translator.release_memory()                               # doctest: +SKIP
        """
        if device_of(self.session)[0] != "cpu":
            return
        # onnxruntime returns memory only at the end of a run, so this is a small one. It has no
        # options, for which an artifact with CUDA graphs would open a second graph.
        self.search(np.full((1, 1), EOS, np.int32), alignments=False, shrink=True)
        if self._scorer is not None:
            self._scorer.release_memory()
        release_memory()

    def search(
        self,
        source: NDArray[np.int32],
        alignments: bool = True,
        noise: ArrayLike | None = None,
        inputs: Mapping[str, NDArray[Any]] | None = None,
        shrink: bool = False,
    ) -> dict[str, NDArray[Any]]:
        """Return the outputs of `translate_ids` without checking the ids.

        `T` is the `max_length` of the export. "alignments" are left out if not requested. `inputs`
        are options of the graph by name; see `search_options`. `shrink` is that of `session.run`.
        """
        if not source.size:  # onnxruntime's GRU would end the process
            raise argument_error("source", "hold ids", received=f"shape {source.shape}")
        options, inputs = dict(inputs or {}), {TRANSLATE.inputs[0].name: source}
        if self._is_sampling:
            inputs[NOISE.name] = checked_noise(
                noise, self.manifest.search, len(source), self._megabytes
            )
        elif noise is not None:
            raise argument_error("noise", "be None for an artifact that does not sample", noise)
        room = shortlist_room(self.manifest)
        if room is not None and len(source) > 1 and len(forced_ids(options)) > room:
            # All rows of a run share the shortlist, which has no room for the tokens of so many.
            parts = slice(None, len(source) // 2), slice(len(source) // 2, None)
            halves = [
                self.search(
                    source[part],
                    alignments,
                    inputs[NOISE.name][part] if self._is_sampling else None,
                    {name: each[part] if each.ndim else each for name, each in options.items()},
                )
                for part in parts
            ]
            return {name: np.concatenate([half[name] for half in halves]) for name in halves[0]}
        shrink = shrink or source.size > BATCH_TOKENS  # rare: the next run needs less memory
        return self._graph.run(inputs | options, alignments, shrink=shrink)


def _ends_word(tokenizer: Tokenizer, word: Sequence[int], following: int) -> bool:
    """Return whether the word of these ids ends before the id `following`.

    Bytes that are a part of a character continue a word.
    """
    piece = tokenizer.target_piece(following).decode("utf-8", "ignore")
    try:
        text = b"".join(map(tokenizer.target_piece, word)).decode("utf-8")
    except UnicodeDecodeError:
        return False
    if not text.strip() or not piece:
        return False
    return not (_is_word_character(text[-1]) and _is_word_character(piece[0]))


def _is_word_character(character: str) -> bool:
    return unicodedata.category(character)[0] in "LMN"
