"""Options of the preparation of a corpus."""

from dataclasses import dataclass

from keras_bahdanau_runtime.option_fields import check_options, option
from keras_bahdanau_runtime.text.tokenizer import MIN_VOCABULARY_SIZE, NORMALIZATIONS
from keras_bahdanau_runtime.text.tokenizer_schema import MAX_VOCABULARY_SIZE


@dataclass(frozen=True, kw_only=True)
class TokenizerOptions:
    """Options of the tokenizer of a corpus: a file, or options of one to learn.

    Raises:
        ValueError: A value has another type than its field, or is outside its limits.
    """

    tokenizer: str = option(
        "bpe",
        "Kind of pieces to learn: bpe, words, characters or bytes; or a file: a tokenizer.json of "
        "this package or of Hugging Face, or a .model of SentencePiece.",
        panel="Data",
    )
    vocabulary_size: int = option(
        8000,
        "Maximum number of pieces to learn.",
        limits={"low": MIN_VOCABULARY_SIZE, "high": MAX_VOCABULARY_SIZE},
        panel="Data",
    )
    joint: bool = option(
        True, "One vocabulary for both languages, or two.", flags="--joint/--separate", panel="Data"
    )
    normalization: str | None = option(
        None,
        "Unicode form that the tokenizer converts all text to: nfc or nfkc; none by default.",
        choices=("none", *NORMALIZATIONS),
        panel="Data",
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.normalization == "none":
            object.__setattr__(self, "normalization", None)


@dataclass(frozen=True, kw_only=True)
class PrepareOptions(TokenizerOptions):
    """Options of `prepare`.

    Rules of `filter` drop pairs. A pair is counted for the first rule that it breaks, and the
    counts are in the manifest as `filtered`. Lengths are in characters, without spaces at both
    ends:

    - "length=3:500": each side has 3 to 500 characters; "length=500" has no minimum.
    - "ratio=3": the longer side has at most 3 times the characters of the shorter one.
    - "identical": drop pairs with two equal sides.
    - "duplicate": drop all but the first of equal pairs. It needs about 100 bytes of memory for
      each different pair.
    - "script=latin:cyrillic": drop pairs if most letters of the source are not Latin, or most of
      the target not Cyrillic.

    With `too_long="cut"` the last id of a cut sequence stays the last. The numbers of cut and of
    dropped pairs are logged. With fewer than 100,000 pairs, only this process encodes unless
    `processes` is given.

    Raises:
        ValueError: A value has another type than its field, or is outside its limits.

    Example:

    >>> PrepareOptions(vocabulary_size=300, normalization="nfc").too_long
    'cut'
    """

    filter: tuple[str, ...] = option(
        (),
        "Drop and count pairs: length=MIN:MAX in characters, ratio=LIMIT of the lengths, identical "
        "sides, duplicate pairs, or other scripts than script=SOURCE:TARGET, such as "
        "script=latin:cyrillic. May be repeated.",
        metavar="RULE",
        panel="Data",
    )
    sample: int = option(
        100_000,
        "Number of pairs that the pieces are learned from.",
        limits={"low": 1},
        panel="Data",
    )
    max_length: int | None = option(
        None,
        "Maximum tokens of a sentence; no limit by default.",
        limits={"low": 2},
        panel="Data",
    )
    too_long: str = option(
        "cut",
        "What to do with a pair above that limit: cut or drop.",
        choices=("cut", "drop"),
        panel="Data",
    )
    shard_pairs: int = option(
        250_000, "Approximate number of pairs in a shard.", limits={"low": 1}, panel="System"
    )
    seed: int = option(0, "Seed of the sample and the order.", limits={"low": 0}, panel="System")
    processes: int | None = option(
        None,
        "Number of encoding processes; one per core by default.",
        limits={"low": 1},
        panel="System",
    )
