"""Options of a search that a call or a request may set, and constraints on single texts.

options = SearchOptions(beam_size=3, length_penalty=0.6)
options.check(manifest)
inputs = options.inputs() | constraint_inputs([encode_constraints(tokenizer, prefix="ein Ma")])
"""

import itertools
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keras_bahdanau_runtime.checks import check_range, check_text
from keras_bahdanau_runtime.errors import ArgumentError, UnsupportedArtifactError, argument_error
from keras_bahdanau_runtime.ids import PAD, SPECIAL, UNK
from keras_bahdanau_runtime.manifest import Manifest
from keras_bahdanau_runtime.search_settings import SearchSettings, check_setting
from keras_bahdanau_runtime.signature import MODEL_FILE, OPTIONS, SETTINGS
from keras_bahdanau_runtime.text.batches import pad
from keras_bahdanau_runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class SearchOptions(SearchSettings):
    """Settings of a search for one call, in place of those of the export; `None` keeps a setting.

    Equal options can share a batch. The fields are those of `SearchSettings`.

    Example:

    >>> SearchOptions(beam_size=2).inputs()
    {'beam_size': array(2, dtype=int32)}
    """

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "SearchOptions":
        """Return options from values by name; raise a `ValueError` for an unknown name."""
        for name in values:
            if name not in SETTINGS:
                raise argument_error(
                    name, f"be left out: the options of a search are {list(SETTINGS)}", values[name]
                )
        return cls(**values)

    def check(self, manifest: Manifest) -> None:
        """Check the options against the limits of an artifact.

        Args:
            manifest: Manifest of the artifact.

        Raises:
            ValueError: A number is out of its range. The message names the range.
            UnsupportedArtifactError: The artifact has no such option.
        """
        require_options(manifest, self.values())
        search = manifest.search
        self.check_values(search.max_steps, search.min_length or 0, search.num_hypotheses)

    def check_values(
        self,
        max_length: int | None = None,
        min_length: int = 0,
        max_beam_size: int | None = None,
    ) -> None:
        """Check the options against the settings that they replace.

        Args:
            max_length: int, largest number of output tokens of the search; `None` if it differs
                between texts.
            min_length: int, smallest number of output tokens of the search.
            max_beam_size: int, the largest `beam_size`; `None` for the largest of any search.

        Raises:
            ValueError: As `check`.
        """
        highest = dict.fromkeys(("min_length", "max_length", "no_repeat_ngram"), max_length)
        values, limits = self.values(), {"beam_size": max_beam_size, **highest}
        for name, value in values.items():
            check_setting(name, value, high=limits.get(name))
        longest = max_length if self.max_length is None else self.max_length
        shortest = min_length if self.min_length is None else self.min_length
        is_set = values.keys() & {"min_length", "max_length"}
        if is_set and longest is not None and shortest > longest:
            raise argument_error(
                "min_length", f"be at most `max_length`, {longest}", received=str(shortest)
            )

    def inputs(self) -> dict[str, NDArray[Any]]:
        """Return the inputs of the graph that set these options, scalars by name."""
        return {name: np.array(value, OPTIONS[name].dtype) for name, value in self.values().items()}

    def output_limit(self, manifest: Manifest, source_length: int) -> int:
        """Return the largest number of output tokens for a source of this many tokens."""
        limit = manifest.search.output_limit(source_length)
        return limit if self.max_length is None else min(limit, self.max_length)

    def values(self) -> dict[str, Any]:
        """Return the options that are set, by name."""
        values = {name: getattr(self, name) for name in SETTINGS}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Constraints:
    """Constraints on the output for one text, as ids.

    Args:
        prefix: Ids that the output starts with.
        completions: Pairs of a position and an id that may end the prefix there: the output then
            starts with the ids of the prefix before the position and this id. Each id has one.
        suppressed: Ids that the output does not contain after the prefix.
        required: Phrases of ids that the output contains.
    """

    prefix: tuple[int, ...] = ()
    completions: tuple[tuple[int, int], ...] = ()
    suppressed: tuple[int, ...] = ()
    required: tuple[tuple[int, ...], ...] = ()


NO_CONSTRAINTS = Constraints()


def require_options(manifest: Manifest, names: Iterable[str]) -> None:
    """Raise an `UnsupportedArtifactError` unless `model.onnx` has the options with these names."""
    for name in names:
        if name not in manifest.options:
            reason = (
                f"a {manifest.search.name} has no such option"
                if manifest.options
                else "it was written by an older version. Export it again to set options"
            )
            raise UnsupportedArtifactError(
                f"{manifest.folder}: {MODEL_FILE} has no input {name!r}: {reason}."
            )


def encode_constraints(
    tokenizer: Tokenizer,
    prefix: str | None = None,
    suppressed: Sequence[str | int] = (),
    disable_unknown: bool = False,
    required: Sequence[str] | None = None,
) -> Constraints:
    """Return the constraints for one text as ids.

    A prefix may end anywhere, also within a word. The output follows its tokens, but at any of them
    it may continue with one token whose bytes start with all the rest of the prefix ("token
    healing"). So "ein Ma" can become "ein Mann", even if " Mann" is one token and " Ma" are two,
    and "ein " does not lead to two spaces. If the tokens spell only a beginning of the prefix, as
    of a word that is cut off, the output continues there with such a token. In all cases it starts
    with the prefix exactly and contains each phrase exactly. Text that no tokens spell is an error:
    it has unknown pieces, or the tokenizer's normalization changes it. A tokenizer of split text
    expects a prefix and phrases that are split, too, and the output has their joined form.

    Args:
        tokenizer: `Tokenizer`; that of `Tokenizer.for_source` for a prefix and phrases with copied
            words.
        prefix: Text that the output starts with; `None` or "" for none.
        suppressed: Tokens, as text or ids, that the output does not contain. A text suppresses the
            token that spells it, with and without a space in front.
        disable_unknown: Whether to suppress the unknown token.
        required: Phrases that the output contains; `None` for none. A phrase starts as a word.
            What follows it is free, so "Mann" is also in "Mannschaft".

    Raises:
        ValueError: A text is not Unicode, a suppressed text is not one token, an id is outside the
            vocabulary, the tokenizer cannot spell a prefix or a phrase, or a phrase is blank or
            contains a suppressed token.

    Example:

    >>> tokenizer = Tokenizer.train(["a"], ["ein ein Mann Mann"], vocabulary_size=300)
    >>> constraints = encode_constraints(tokenizer, "ein Ma")
    >>> [tokenizer.decode([index]) for _, index in constraints.completions]
    ['Mann']
    """
    if isinstance(suppressed, str) or not isinstance(suppressed, Iterable):
        raise argument_error("suppressed", "be a list of str or int", suppressed)
    excluded = {UNK} if disable_unknown else set[int]()
    for item in suppressed:
        excluded.update(_suppressed_ids(tokenizer, item))
    excluded.discard(PAD)  # the value of padding in the rows of a batch; no output contains it
    constraints = Constraints(suppressed=tuple(sorted(excluded)))
    return _with_texts(tokenizer, constraints, prefix, required)


def text_constraints(
    tokenizer: Tokenizer,
    texts: Iterable[str],
    prefixes: Sequence[str | None] | None = None,
    suppressed: Sequence[str | int] = (),
    disable_unknown: bool = False,
    required: Sequence[Sequence[str] | None] | None = None,
    on_error: str = "raise",
) -> Callable[[int | None], Constraints]:
    """Return a function from the index of a text to its constraints.

    For `None` it returns those of all texts, without a prefix and required phrases.

    Args:
        tokenizer: `Tokenizer`.
        texts: The texts; with `prefixes` or `required` a list.
        prefixes: As for `Translator.translate`.
        suppressed: As for `Translator.translate`.
        disable_unknown: As for `Translator.translate`.
        required: As for `Translator.translate`.
        on_error: "raise"; or "keep" to raise the error of a prefix, or of phrases, only when the
            function is called with the index of their text.

    Raises:
        ValueError: As `encode_constraints`, or there are not as many prefixes, or lists of required
            phrases, as texts.
    """
    shared = encode_constraints(tokenizer, None, suppressed, disable_unknown)
    if prefixes is None and required is None:
        return lambda index: shared
    texts = list(texts)
    count = len(texts)
    check_count("prefixes", prefixes, count)
    check_count("required", required, count)
    nothing = [None] * count
    encoded = list[Constraints | ValueError]()
    constrained = zip(texts, prefixes or nothing, required or nothing, strict=True)
    for text, prefix, phrases in constrained:
        try:
            encoded.append(_with_texts(tokenizer.for_source(text), shared, prefix, phrases))
        except ValueError as error:
            if on_error != "keep":
                raise
            encoded.append(error)

    def constraints_of(index: int | None) -> Constraints:
        constraints = shared if index is None else encoded[index]
        if isinstance(constraints, ValueError):
            raise constraints
        return constraints

    return constraints_of


def check_count(name: str, values: Any, count: int) -> None:
    """Raise a `ValueError` unless there is a value for each of `count` texts, or `None` for all."""
    is_list = isinstance(values, Sequence) and not isinstance(values, (str, bytes))
    if values is not None and (not is_list or len(values) != count):
        kind = "str" if name == "prefixes" else "list of str"
        received = len(values) if is_list else f"one {type(values).__name__}"
        raise argument_error(
            name, f"have one {kind} or None for each of {count} texts", received=str(received)
        )


def _with_texts(
    tokenizer: Tokenizer,
    constraints: Constraints,
    prefix: str | None,
    phrases: Sequence[str] | None,
) -> Constraints:
    """Return constraints, so far of suppressed tokens only, with a prefix and phrases."""
    if prefix not in (None, ""):
        ids, completions = _encode_prefix(tokenizer, prefix, constraints.suppressed)
        constraints = replace(constraints, prefix=tuple(ids), completions=tuple(completions))
    if phrases is None:
        return constraints
    if isinstance(phrases, str):
        raise argument_error(
            "required", "have a list of str for each text", received=f"one str, {phrases!r:.80}"
        )
    encoded = [_encode_phrase(tokenizer, phrase, constraints.suppressed) for phrase in phrases]
    return replace(constraints, required=tuple(dict.fromkeys(encoded)))


def _encode_prefix(
    tokenizer: Tokenizer, prefix: str, suppressed: Collection[int]
) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the ids of a prefix and its completions; see `Constraints`."""
    ids, text, starts = _spell(tokenizer, "prefixes", prefix)
    completions = dict[int, int]()  # a position for each id: the first one
    for position in range(len(ids), -1, -1):
        rest = text[starts[position] :]
        if len(rest) > tokenizer.longest_target_piece:
            break
        own = ids[position : position + 1]
        starting = tokenizer.target_ids_starting_with(rest) if rest else []
        starting = [index for index in starting if index not in own]
        completions |= dict.fromkeys(_joined_alike(tokenizer, rest, starting), position)
    if starts[-1] < len(text):
        # The ids do not spell the prefix, so a completion does: the one that adds least to it.
        completions = {i: at for i, at in completions.items() if i not in suppressed}
        if not completions:
            raise _unspelled("prefixes", tokenizer, prefix)
        last = min(completions, key=lambda i: (-completions[i], len(tokenizer.target_piece(i)), i))
        ids = [*ids[: completions.pop(last)], last]
    return ids, sorted((position, index) for index, position in completions.items())


def _joined_alike(tokenizer: Tokenizer, start: bytes, indices: list[int]) -> list[int]:
    """Return the ids, whose pieces start with `start`, that do so after joining, too.

    "Ma@@" starts with "Ma@", but the output has "Ma".
    """
    mark = tokenizer.target_mark[:1].encode("utf-8")
    if not mark or not start.endswith(mark):
        return indices
    joined_start = tokenizer.join_target(start.decode("utf-8"))
    joined = {i: tokenizer.join_target(tokenizer.target_piece(i).decode("utf-8")) for i in indices}
    return [index for index, text in joined.items() if text.startswith(joined_start)]


def spelled_ids(tokenizer: Tokenizer, name: str, text: str) -> list[int]:
    """Return the target ids of a text that they spell exactly, without the end of the sentence.

    Args:
        tokenizer: `Tokenizer`.
        name: Name of the argument, for messages.
        text: The text.

    Raises:
        ValueError: The text is not Unicode, has unknown pieces, or is changed by a normalization.
    """
    ids, spelled, starts = _spell(tokenizer, name, text, ends_word=True)
    if starts[-1] < len(spelled):
        raise _unspelled(name, tokenizer, text)
    return ids


def _spell(
    tokenizer: Tokenizer, name: str, text: str, ends_word: bool = False
) -> tuple[list[int], bytes, list[int]]:
    """Compare the target ids of a text with its bytes.

    Args:
        tokenizer: `Tokenizer`.
        name: Name of the argument, for messages.
        text: The text.
        ends_word: Whether the last word of the text is complete.

    Returns:
        The first ids, up to one that does not spell the bytes of the text, such as `UNK`; the bytes
        of the text in the spelling of the pieces; and where in them each of these ids starts and
        the last one ends, which is the end of the bytes if the ids spell the text.
    """
    check_text(name, text)
    ids = tokenizer.encode_target(text)[:-1]
    adds_space = tokenizer.spellings[1].strips_space and (
        not ids or ids[0] in SPECIAL or tokenizer.target_piece(ids[0]).startswith(b" ")
    )
    spelled, starts = b" " * (adds_space and text != "") + text.encode("utf-8"), [0]
    if ends_word and text and tokenizer.spellings[1].ends_words and not text.endswith(" "):
        spelled += b" "
    for index in ids:
        piece = tokenizer.target_piece(index)
        if index in SPECIAL or not spelled.startswith(piece, starts[-1]):
            break
        starts.append(starts[-1] + len(piece))
    return ids[: len(starts) - 1], spelled, starts


def _unspelled(name: str, tokenizer: Tokenizer, text: str) -> ArgumentError:
    spelled = "".join(tokenizer.target_decoder().tokens(tokenizer.encode_target(text)[:-1]))
    forms = (unicodedata.normalize("NFC", each) for each in (text, spelled))
    show = ascii if len({*forms}) == 1 else repr  # they would look the same
    return argument_error(
        name,
        "hold text that the tokenizer can spell exactly. Use words and characters of its "
        "vocabulary, in its normalization",
        received=f"{show(text):.80}, which it spells {show(spelled):.80}",
    )


def _encode_phrase(
    tokenizer: Tokenizer, phrase: str, suppressed: Collection[int]
) -> tuple[int, ...]:
    """Return the ids of a phrase, of which none may be suppressed."""
    check_text("required", phrase)
    if not phrase.strip():
        raise argument_error("required", "have no blank phrase", phrase)
    ids = spelled_ids(tokenizer, "required", phrase)
    barred = set(ids) & set(suppressed)
    if barred:
        tokens = tokenizer.target_decoder().tokens(barred)
        raise argument_error(
            "required",
            "have no phrase with a token that is also in `suppressed`",
            received=f"{phrase!r:.80}, which contains {tokens!r:.80}",
        )
    return tuple(ids)


def _suppressed_ids(tokenizer: Tokenizer, item: str | int) -> set[int]:
    size = tokenizer.target_vocabulary_size
    if not isinstance(item, str):
        check_range("suppressed", item, int, 0, size - 1)
        return {item}
    check_text("suppressed", item)
    spellings = {item.encode("utf-8"), f" {item}".encode()}
    if tokenizer.spellings[1].ends_words:
        spellings.add(f"{item} ".encode())
    ids = {
        index
        for spelling in spellings
        for index in tokenizer.target_ids_starting_with(spelling)
        if tokenizer.target_piece(index) == spelling
    }
    if not item or not ids:
        tokens = tokenizer.target_decoder().tokens(tokenizer.encode_target(item)[:-1])
        raise argument_error(
            "suppressed",
            "hold texts that are one token each, or ids",
            received=f"{item!r:.80}, {len(tokens)} tokens: {tokens!r:.80}",
        )
    return ids


def constraint_inputs(rows: Sequence[Constraints]) -> dict[str, NDArray[np.int32]]:
    """Return the inputs of the graph for the constraints of a batch.

    Args:
        rows: Constraints of each of `B` sources.

    Returns:
        Int32 arrays by name, padded with 0; only those that some row needs: "prefix" and
        "suppressed" `(B, n)`, "completions" `(B, n, 2)`, "required" `(B, phrases, length)`.

    Example:

    >>> constraint_inputs([Constraints(prefix=(7, 8)), Constraints()])
    {'prefix': array([[7, 8],
           [0, 0]], dtype=int32)}
    """
    inputs = {}
    for name in ("prefix", "suppressed"):
        ids = [getattr(row, name) for row in rows]
        if any(ids):
            inputs[name] = pad(ids)
    if any(row.completions for row in rows):
        flat = pad([list(itertools.chain(*row.completions)) for row in rows])
        inputs["completions"] = flat.reshape(len(rows), -1, 2)
    count = max(len(row.required) for row in rows)
    if count:
        phrases = [
            phrase
            for row in rows
            for phrase in (*row.required, *[()] * (count - len(row.required)))
        ]
        inputs["required"] = pad(phrases).reshape(len(rows), count, -1)
    return inputs


def check_constraints(
    constraints: Constraints, manifest: Manifest, limit: int, beam_size: int | None = None
) -> None:
    """Check constraints against an artifact.

    Args:
        constraints: Constraints of one text.
        manifest: Manifest of the artifact.
        limit: int, largest number of output tokens for the text.
        beam_size: int, the option; `None` for the beam of the export.

    Raises:
        ValueError: The prefix or the required phrases are longer than the output may be, or there
            are phrases and `beam_size` is 1.
    """
    if constraints.required:
        check_beam_for_phrases(beam_size)
    room = shortlist_room(manifest)
    forced = len({*constraints.prefix, *itertools.chain(*constraints.required)} - {*SPECIAL})
    if room is not None and forced > room:
        name = "prefixes" if constraints.prefix else "required"
        raise argument_error(
            name,
            f"have at most {room} different tokens for a text, for which the shortlist of the "
            "artifact has room, phrases included",
            received=str(forced),
        )
    check_room(constraints, limit, manifest.search.forbidden)


def shortlist_room(manifest: Manifest) -> int | None:
    """Return how many tokens one run of an artifact with a shortlist can force, or `None`."""
    shortlist = manifest.other.get("shortlist")
    size = shortlist.get("ids") if isinstance(shortlist, dict) else None
    return max(size - len(SPECIAL), 0) if isinstance(size, int) else None


def forced_ids(inputs: Mapping[str, NDArray[Any]]) -> set[int]:
    """Return the ids of prefixes and phrases in the inputs of a graph, without special ones."""
    arrays = [inputs[name] for name in ("prefix", "required") if name in inputs]
    return {index for array in arrays for index in np.unique(array).tolist()} - {*SPECIAL}


def check_beam_for_phrases(beam_size: int | None) -> None:
    """Raise a `ValueError` if `beam_size`, an option or `None`, is too small for phrases."""
    if beam_size == 1:
        raise argument_error("beam_size", "be at least 2 for required phrases", received="1")


def check_room(constraints: Constraints, limit: int, forbidden: Collection[int] = ()) -> None:
    """Raise a `ValueError` unless an output can have the prefix and contain all required phrases.

    Args:
        constraints: Constraints of one text.
        limit: int, largest number of output tokens for the text.
        forbidden: Ids that the search never chooses.
    """
    check_prefix(constraints, limit)
    prefix = constraints.prefix
    barred = set(itertools.chain(*constraints.required)) & set(forbidden)
    if barred:
        raise argument_error(
            "required",
            "have no phrase with a token that the search forbids",
            received=f"the id {min(barred)}",
        )
    room = limit - len(prefix)
    missing = count_missing(constraints.required, prefix)
    if missing > room:
        raise argument_error(
            "required",
            f"have at most {room} tokens for a text, the largest number of output tokens "
            "after its prefix",
            received=str(missing),
        )


def count_missing(phrases: Iterable[Sequence[int]], prefix: Sequence[int]) -> int:
    """Return how many tokens an output needs at most after a prefix to contain all phrases.

    Example:

    >>> count_missing([(5, 6), (7, 8, 9)], (5, 6, 7))
    2
    """
    text, missing, started = tuple(prefix), 0, 0
    for phrase in set(map(tuple, phrases)):
        length = len(phrase)
        ends = (text[i : i + length] == phrase for i in range(len(text) - length + 1))
        if not any(ends):
            matches = (n for n in range(length) if text[len(text) - n :] == phrase[:n])
            missing, started = missing + length, max(started, *matches)
    return missing - started


def check_prefix(constraints: Constraints, limit: int) -> None:
    """Raise a `ValueError` if the prefix is longer than `limit`, the most output tokens."""
    length = len(constraints.prefix)
    if length > limit:
        raise argument_error(
            "prefixes",
            f"have at most {limit} tokens each, the largest number of output tokens",
            received=str(length),
        )
