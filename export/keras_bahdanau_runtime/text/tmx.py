"""Read translation memories (TMX), one unit at a time.

The parser is the expat of the standard library. It keeps open elements, incomplete tags and names
in memory, and parses an incomplete tag again for each block of data, so all of these are limited.
Declarations inside of a file are refused, so a small file cannot expand to a large one, and no
other file is read.
"""

from collections.abc import Iterator
from typing import Any, BinaryIO, NoReturn
from xml.parsers import expat

from keras_bahdanau_runtime.text.corpus import check_length

_CHUNK_SIZE = 2**16  # bytes
_MAX_TAG = 2**20  # bytes of a tag or a comment
_MAX_DEPTH = 100  # open elements
_MAX_NAMES = 1000  # different names of elements and attributes; TMX has about 50
_LANGUAGES = "xml:lang", "lang"  # attribute of a variant; TMX 1.1 has the second
_CODES = {"bpt", "ept", "it", "ph", "ut"}  # elements of a segment that contain markup, not text


def iterate_units(
    file: BinaryIO, name: str, source: str, target: str, encoding: str | None = None
) -> Iterator[tuple[int, str | None, str | None, list[str]]]:
    """Yield the translation units of a TMX file.

    A variant with exactly the code of a side counts before variants with a region. If there are
    several of a kind, the first one counts. The native codes of
    formatting inside a segment (`bpt`, `ept`, `it`, `ph`, `ut`) are left out.

    Args:
        file: Binary file object.
        name: Name of the file, for messages.
        source: Language code of the sources, such as "en". A code without a region matches the
            language with any region except those of `target`: "en" matches "en-US". Case does not
            matter.
        target: Language code of the translations.
        encoding: Name of the encoding; that of the XML declaration if `None`.

    Yields:
        `(line, source, target, languages)`: the line where the unit begins, the text of both sides
        (`None` if the unit has no such language), and all its languages.

    Raises:
        ValueError: The file is not well-formed XML, has no element `tmx` at the top, has
            declarations in its DOCTYPE, uses an entity, or exceeds a limit. The message has the
            line.
    """
    units: list[tuple[int, str | None, str | None, list[str]]] = []
    parser = expat.ParserCreate(encoding)
    handler = _UnitHandler(parser, (source, target), units)
    parser.buffer_text = True
    parser.StartElementHandler = handler.start
    parser.EndElementHandler = handler.end
    parser.CharacterDataHandler = handler.add_text
    parser.StartDoctypeDeclHandler = handler.check_doctype
    parser.SkippedEntityHandler = handler.refuse_entity
    is_last, size = False, 0
    while not is_last:
        chunk = file.read(_CHUNK_SIZE)
        is_last, size = not chunk, size + len(chunk)
        try:
            parser.Parse(chunk, is_last)
            handler.check_size(size)
        except expat.ExpatError as error:
            reason = expat.ErrorString(error.code)
            raise ValueError(
                f"{name}, line {error.lineno}: expected well-formed XML. Received: {reason}"
            ) from error
        except (ValueError, LookupError) as error:  # of the handler; or an unknown encoding
            raise ValueError(f"{name}, {error}") from error
        yield from units
        units.clear()


class _UnitHandler:
    """Handler of expat's events that collects units."""

    def __init__(self, parser: Any, languages: tuple[str, str], units: list[Any]) -> None:
        self._parser, self._languages, self._units = parser, languages, units
        self._depth = 0
        self._line = 0
        self._unit: int | None = None  # position in the file where the current unit begins
        self._variants: list[tuple[str, str]] = []  # language and text of the current unit
        self._language = ""
        self._text: list[str] | None = None  # of the current segment
        self._codes = 0  # open elements of `_CODES`

    def check_size(self, size: int) -> None:
        """Raise a `ValueError` if anything is too long after `size` bytes of the file."""
        if size - self._parser.CurrentByteIndex > _MAX_TAG:
            self._raise(
                f"expected tags and comments of at most {_MAX_TAG >> 20} MB. Received: more"
            )
        if self._unit is not None:
            check_length(size - self._unit, f"line {self._line}")
        if len(self._parser.intern) > _MAX_NAMES:
            self._raise("expected the elements and attributes of TMX. Received: other names")

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if not self._depth and tag != "tmx":
            self._raise(f"expected the element <tmx>. Received: <{tag:.80}>")
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._raise(f"expected at most {_MAX_DEPTH} nested elements. Received: more")
        if tag == "tu":
            self._line, self._variants = self._parser.CurrentLineNumber, []
            self._unit = self._parser.CurrentByteIndex
        elif self._unit is None:
            return
        elif tag == "tuv":
            codes = [attributes[name] for name in _LANGUAGES if name in attributes]
            self._language = codes[0] if codes else ""
        elif tag == "seg":
            self._text = []
        elif tag in _CODES:
            self._codes += 1

    def end(self, tag: str) -> None:
        self._depth -= 1
        if self._unit is None:
            return
        if tag == "seg" and self._text is not None:
            self._variants.append((self._language, "".join(self._text)))
            self._text = None
        elif tag in _CODES:
            self._codes -= 1
        elif tag == "tu":
            source, target = self._languages
            sides = self._side(source, target), self._side(target, source)
            languages = [language for language, _ in self._variants]
            self._units.append((self._line, *sides, languages))
            self._unit, self._text, self._codes = None, None, 0

    def add_text(self, text: str) -> None:
        if self._text is not None and not self._codes:
            self._text.append(text)

    def check_doctype(self, name: str, system: Any, public: Any, has_declarations: int) -> None:
        if has_declarations:
            self._raise("expected no declarations in the DOCTYPE. Received: DOCTYPE with [...]")

    def refuse_entity(self, entity: str, is_parameter: bool) -> None:
        self._raise(f"expected no entities but those of XML. Received: {entity!r:.80}")

    def _side(self, language: str, other: str) -> str | None:
        """Return the text of the first variant in a language, or else in one of its regions.

        If the other side is a region of this one, as zh-Hant is of zh, its variants are not those
        of this side.
        """
        language, other = _normalized(language), _normalized(other)
        excluded = f"{other}-" if other.startswith(f"{language}-") else None
        in_region = None
        for code, text in self._variants:
            code = _normalized(code)
            if code == language:
                return text
            is_other = excluded is not None and f"{code}-".startswith(excluded)
            if in_region is None and code.startswith(f"{language}-") and not is_other:
                in_region = text
        return in_region

    def _raise(self, problem: str) -> NoReturn:
        raise ValueError(f"line {self._parser.CurrentLineNumber}: {problem}")


def _normalized(code: str) -> str:
    return code.lower().replace("_", "-")
