"""Translates with an artifact: onnxruntime, numpy and tokenizers, and no Keras."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from keras_bahdanau_runtime.checks import (
    check_positive,
    check_resources,
    check_text,
    checked_ids,
    checked_stream,
)
from keras_bahdanau_runtime.errors import CorruptArtifactError, UnsupportedArtifactError
from keras_bahdanau_runtime.manifest import Manifest, reading, unreplaced
from keras_bahdanau_runtime.search import Search, checked_noise, open_search, search_arrays
from keras_bahdanau_runtime.session import Providers, cores, with_tf32
from keras_bahdanau_runtime.signature import (
    MODEL_FILE,
    NOISE,
    TOKENIZER_FILE,
    TRANSLATE,
    most_rows,
    weights_file,
)
from keras_bahdanau_runtime.stepper import Stepper, most_tokens
from keras_bahdanau_runtime.text.batches import windows
from keras_bahdanau_runtime.text.tokenizer import Tokenizer
from keras_bahdanau_runtime.translation import (
    BATCH_SIZE,
    BATCH_TOKENS,
    Translation,
    encode_texts,
    load_tokenizer,
    translate_texts,
)

WINDOW = 2048  # texts: enough for batches of like length


class Translator:
    """Runs an artifact with onnxruntime. One translator may be used by many threads at once.

    Args:
        path: Folder of the artifact. Every file in it is checked against its hash first.
        providers: `"auto"` takes CUDA where onnxruntime has it and the CPU otherwise, and logs
            which. A name, or a list of names or `(name, options)` pairs, is taken exactly. What
            runs on the CPU although another provider was asked for is logged, too.
        threads: int, the threads of one operator. `None` leaves it to onnxruntime, one for each
            physical core, the fastest for one batch after another. A server that runs several
            translators or requests at once gives each of them fewer.
        timeout: float, the longest that one run of the graph may take, the bound of what an
            artifact from a stranger, or a batch that is too large, can hold up. `None` for no
            limit.
        megabytes: float, the most memory that the runs of one graph may take together for their
            tensors, weights not counted, on the CPU; on CUDA the provider has `gpu_mem_limit`.
            `None` for no limit. Needs onnxruntime 1.27 or later.
        workers: int, the batches of one call that run at once; `threads=None` then shares the
            cores among them. One for each core is the fastest for many texts on a CPU, and holds
            as many batches in memory.
        loop: Who drives the loop of a search: "graph", `model.onnx` itself; "captured", this class
            with the graphs of an artifact that was exported with `captured=True`, whose steps CUDA
            records and replays, one search at a time; "auto", captured on CUDA where it can be.
        tf32: bool, whether CUDA may multiply with 10 bits of precision, which is faster. Without it
            its numbers are float32.

    A translator is pickled and copied as its folder and its settings: the copy opens the artifact
    that is there then.

    Raises:
        ValueError: `path` is not a folder, a provider is not available or does not open the graph,
            `loop` is unknown, `tf32` is no bool, or `threads`, `timeout`, `megabytes` or `workers`
            is not positive.
        CorruptArtifactError: The artifact is incomplete, damaged or tampered with.
        UnsupportedArtifactError: It is in a newer format, holds no `model.onnx`, or one with
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
        workers: int = 1,
        loop: str = "auto",
        tf32: bool = False,
    ) -> None:
        check_positive(workers=workers)
        check_resources(threads, timeout, megabytes)
        self._providers, self._threads = with_tf32(providers, tf32), threads
        self._timeout, self._megabytes = timeout, megabytes
        self._workers, self._loop = workers, loop
        self._stepper: Stepper | None = None
        self._opening = threading.Lock()
        reading(path, self._open)

    def __reduce__(self) -> tuple[Any, ...]:
        resources = self._threads, self._timeout, self._megabytes, self._workers, self._loop
        return type(self), (str(self.manifest.folder), self._providers, *resources)

    def _open(self, manifest: Manifest) -> None:
        """Reads every file once, and opens what was read."""
        self.manifest, folder = manifest, manifest.folder
        if not manifest.searches():
            raise UnsupportedArtifactError(
                f"{folder}: {MODEL_FILE} holds no search but the call of a model. "
                "Run it with onnxruntime.InferenceSession."
            )
        if "source" not in manifest.vocabulary:
            raise CorruptArtifactError(
                f"{folder}: the manifest gives no vocabulary size for 'source'."
            )
        self._draws = manifest.draws()
        if self._draws and not {"n", "max_length", "seed"} <= set(manifest.search):
            raise CorruptArtifactError(
                f"{folder}: the manifest does not say how many numbers the search draws."
            )
        self._graph = self._open_search()
        read = {*self._graph.files, *map(weights_file, self._graph.files), TOKENIZER_FILE}
        for name in set(manifest.files) - read:
            manifest.check(name)
        self.tokenizer: Tokenizer | None = None
        if TOKENIZER_FILE in manifest.files:
            self.tokenizer = load_tokenizer(manifest)

    def _open_search(self) -> Search:
        threads = self._threads
        if threads is None and self._workers > 1:
            threads = max(1, cores() // self._workers)
        given = threads, self._timeout, self._megabytes
        return open_search(self.manifest, self._loop, self._providers, *given)

    @property
    def session(self) -> Any:
        """The session of onnxruntime that searches: of the whole graph, or of a captured step."""
        return self._graph.session

    def with_threads(self, threads: int) -> "Translator":
        """A translator of the same artifact with so many threads, its weights once more in memory.

        A server has one for batches that run at once, and one for a batch that runs alone.

        Raises:
            ValueError: `threads` is not positive.
            CorruptArtifactError: The artifact was replaced since it was opened.
        """
        check_positive(threads=threads)
        other = object.__new__(type(self))
        vars(other).update(vars(self), _threads=threads)
        other._stepper, other._opening = None, threading.Lock()
        with unreplaced(self.manifest):
            other._graph = other._open_search()
        return other

    @property
    def providers(self) -> list[str]:
        """Names of the execution providers in use, the preferred one first."""
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
    ) -> list[Any]:
        """Translates texts, in batches of similar length, and returns them in the order given.

        A blank text (empty or only white space) gives an empty `Translation` with score 0, and the
        model is not run.

        Args:
            texts: list of str, one sentence each.
            batch_size: int. Most sentences in one run of the model.
            batch_tokens: int. Most source ids in one run, padding included, which is what its
                memory and time grow with; a longer sentence is run alone. `None` for no limit.
            n_best: int. Hypotheses for each text, best first; at most as many as the
                search returns. A text gets fewer where the search found fewer.
            truncate: bool. Whether to cut a text longer than the artifact's limit, with the number
                of such texts in the log, instead of raising.
            progress: Called after each batch with the number of texts done so far.
            alignments: bool. Whether to fetch the attention weights, by far the largest output,
                from where they were computed.
            on_error: "raise", or "keep" for a `Translation` with an `error` in the place of each
                text that is too long, no Unicode text, or that a run fails for. The other texts of
                its batch are then run one by one.

        Returns:
            A list of `Translation`; with `n_best` above 1, a list of such lists. A blank text, and
            one with an error, has one hypothesis.

        Raises:
            ValueError: `texts` is one str, an item is not a str or too long, a number is out of
                range, or the artifact holds no tokenizer.
            RunError: onnxruntime could not run the graph, for want of memory, for example.
            LimitError: A run took longer than `timeout`, or more than `megabytes`.
        """
        return translate_texts(
            texts,
            self.text_tokenizer(),
            lambda source: self.search(source, alignments),
            batch_size=batch_size,
            batch_tokens=batch_tokens,
            n_best=n_best,
            max_source_length=self.manifest.max_source_length,
            truncate=truncate,
            progress=progress,
            alignments=alignments,
            on_error=on_error,
            workers=self._workers,
        )

    def translate_stream(
        self,
        texts: Iterable[str],
        window: int = WINDOW,
        batch_size: int = BATCH_SIZE,
        batch_tokens: int | None = BATCH_TOKENS,
        truncate: bool = False,
        alignments: bool = False,
        on_error: str = "keep",
    ) -> Iterator[Translation]:
        """Translates texts while they come, in their order; memory does not grow with their number.

        What has come while the last window was translated is the next: one text, or a window full.

        Args:
            texts: Any iterable of str, read by a thread; it may wait for its texts.
            window: int. Most texts that are sorted into batches together, and that are read ahead.
            batch_size: As for `translate`.
            batch_tokens: As for `translate`.
            truncate: As for `translate`.
            alignments: As for `translate`.
            on_error: As for `translate`.

        Returns:
            An iterator of one `Translation` for each text.

        Raises:
            ValueError: As `translate`. The iterator raises what `texts` raises, after those before.

        Example:

        >>> for one in Translator("artifact").translate_stream(iterate_lines("source.txt")):
        ...     print(one.text, flush=True)
        """
        check_positive(window=window)

        def found(texts: Iterable[str]) -> list[Any]:
            return self.translate(
                texts, batch_size, batch_tokens, 1, truncate, None, alignments, on_error
            )

        found(())  # refuses now what it always refuses
        coming = windows(checked_stream("texts", texts, on_error == "keep"), window)
        return (one for gathered in coming for one in found(gathered))

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """The token ids of texts, blank ones left out.

        Args:
            texts: list of str, one sentence each.

        Returns:
            list of lists of int, each ended by 3 (end of sentence).

        Raises:
            ValueError: As `translate`.
        """
        limit = self.manifest.max_source_length
        return [ids for ids in encode_texts(texts, self.text_tokenizer(), limit) if ids]

    def translate_ids(
        self, source: ArrayLike, noise: ArrayLike | None = None
    ) -> dict[str, NDArray[Any]]:
        """Runs the graph on token ids.

        Args:
            source: Integer array of shape `(B, Tx)`, each row ended by 3 (end of sentence) as in
                training and padded with 0 at the right.
            noise: For an artifact that samples, the numbers in [0, 1) to draw with, float32 of
                shape `(B, n, max_length)`; those of its seed, or fresh ones, if `None`.

        Returns:
            Dict of `"tokens"` int32 `(B, K, T)`, `"scores"` float32 `(B, K)`, `"lengths"` int32
            `(B, K)` and `"alignments"` float32 `(B, K, T, Tx)`, hypotheses best first; `T` is the
            longest length found.

        Raises:
            ValueError: Wrong rank or dtype, no rows, a row of only padding or with padding inside,
                an id outside the vocabulary, or a row longer than the artifact's limit; or `noise`
                of another shape, or for an artifact that does not sample.
            RunError, LimitError: As `translate`.
        """
        vocabulary = self.manifest.vocabulary
        array = checked_ids("source", source, vocabulary["source"], self.manifest.max_source_length)
        most = most_rows(self.manifest.search, vocabulary.get("target", 1))
        if len(array) > most:
            raise ValueError(
                f"Argument `source` must have at most {most} rows. Received: {len(array)}"
            )
        found = self.search(array, noise=noise)
        longest = int(found["lengths"].max())
        cut = {name: found[name][:, :, :longest] for name in ("tokens", "alignments")}
        return {**found, **cut}

    def stream(self, text: str, max_length: int | None = None) -> Iterator[str]:
        """Translates one text greedily and yields the translation while it is made.

        The `forbidden`, `min_length` and `no_repeat_ngram` of the artifact's search hold here, too.
        Needs `encoder.onnx` and `step.onnx`, which are opened at the first call.

        Args:
            text: str, one sentence.
            max_length: int. Tokens after which it is cut; those of the artifact's search if `None`.

        Yields:
            str, what each step adds to the translation; a step that completes no character yields
            nothing.

        Raises:
            ValueError: As `translate`.
            UnsupportedArtifactError: The artifact holds no steps; export with `stepwise=True`.
            CorruptArtifactError: Its steps are damaged, or it was replaced since it was opened.
            RunError, LimitError: As `translate`; the iterator.

        Example:

        >>> for piece in Translator("artifact").stream("a man on a bike"):
        ...     print(piece, end="", flush=True)
        """
        check_text("text", text)
        [ids] = self.encode([text]) or [[]]  # none of a blank one
        most = most_tokens(self.manifest.search, len(ids)) if max_length is None else max_length
        check_positive(max_length=most)
        stepper = self.open_steps()
        source = np.array([ids], np.int32)
        made = stepper.greedy(source, self.manifest.search, most) if ids else ()
        return self.text_tokenizer().target_decoder().stream(made)

    def text_tokenizer(self) -> Tokenizer:
        """The tokenizer; a ValueError says that the artifact has none."""
        if self.tokenizer is None:
            raise ValueError(
                f"Argument `texts` needs a tokenizer, and the artifact {self.manifest.folder} was "
                "exported without one. Export it with tokenizer=..., or call translate_ids."
            )
        return self.tokenizer

    def open_steps(self) -> Stepper:
        """The `Stepper` of this artifact, opened at the first call; raises as `stream`."""
        with self._opening:
            if self._stepper is None:
                given = self.manifest, self._providers, self._threads
                with unreplaced(self.manifest):
                    self._stepper = Stepper(*given, False, self._timeout, self._megabytes)
            return self._stepper

    def search(
        self,
        source: NDArray[np.int32],
        alignments: bool = True,
        noise: ArrayLike | None = None,
    ) -> dict[str, NDArray[Any]]:
        """The outputs of `translate_ids`, "alignments" if asked for; ids are not checked."""
        if not source.size:  # onnxruntime's GRU ends the process
            raise ValueError(f"Argument `source` must hold ids. Received: shape {source.shape}")
        feeds: dict[str, NDArray[Any]] = {TRANSLATE.inputs[0].name: source}
        if self._draws:
            draws = checked_noise(noise, self.manifest.search, len(source), self._megabytes)
            feeds[NOISE.name] = draws
        elif noise is not None:
            raise ValueError(
                "Argument `noise` must be None for an artifact that draws nothing. "
                f"Received: {noise!r:.80}"
            )
        large = source.size > BATCH_TOKENS  # seldom: the next run would not need as much memory
        found, shape = self._graph.run(feeds, shrink=large)
        size = self.manifest.vocabulary.get("target", 2**31)
        names = [name for name in found if alignments or name != "alignments"]
        arrays = search_arrays(found, shape, size, names)
        rows, length = source.shape  # without what was padded
        cut = {name: array[:rows] for name, array in arrays.items()}
        return {**cut, "alignments": cut["alignments"][..., :length]} if alignments else cut
