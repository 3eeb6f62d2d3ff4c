"""Read translation memories (TMX), one unit at a time.

The parser is the expat of the standard library. Entities that a file declares are refused, so a
small file cannot expand to a large one, and no other file is read.
"""

from collections.abc import Iterator
from typing import Any, BinaryIO, NoReturn
from xml.parsers import expat

_CHUNK_SIZE = 2**16  # bytes
_LANGUAGES = "xml:lang", "lang"  # attribute of a variant; TMX 1.1 has the second
_CODES = {"bpt", "ept", "it", "ph", "ut"}  # elements of a segment that contain markup, not text


def iterate_units(
    file: BinaryIO, name: str, source: str, target: str, encoding: str | None = None
) -> Iterator[tuple[int, str | None, str | None, list[str]]]:
    """Yield the translation units of a TMX file.

    If a unit has several variants in one language, the first one counts. The native codes of
    formatting inside a segment (`bpt`, `ept`, `it`, `ph`, `ut`) are left out.

    Args:
        file: Binary file object.
        name: Name of the file, for messages.
        source: Language code of the sources, such as "en". A code without a region matches the
            language with any region: "en" matches "en-US". Case does not matter.
        target: Language code of the translations.
        encoding: Name of the encoding; that of the XML declaration if `None`.

    Yields:
        `(line, source, target, languages)`: the line where the unit begins, the text of both sides
        (`None` if the unit has no such language), and all its languages.

    Raises:
        ValueError: The file is not well-formed XML, has no element `tmx` at the top, or declares or
            uses an entity. The message has the line.
    """
    units: list[tuple[int, str | None, str | None, list[str]]] = []
    parser = expat.ParserCreate(encoding)
    handler = _UnitHandler(parser, (source, target), units)
    parser.buffer_text = True
    parser.StartElementHandler = handler.start
    parser.EndElementHandler = handler.end
    parser.CharacterDataHandler = handler.add_text
    parser.EntityDeclHandler = handler.refuse_declaration
    parser.SkippedEntityHandler = handler.refuse_entity
    is_last = False
    while not is_last:
        chunk = file.read(_CHUNK_SIZE)
        is_last = not chunk
        try:
            parser.Parse(chunk, is_last)
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
        self._variants: list[tuple[str, str]] = []  # language and text of the current unit
        self._language = ""
        self._text: list[str] | None = None  # of the current segment
        self._codes = 0  # open elements of `_CODES`

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if not self._depth and tag != "tmx":
            self._raise(f"expected the element <tmx>. Received: <{tag}>")
        self._depth += 1
        if tag == "tu":
            self._line, self._variants = self._parser.CurrentLineNumber, []
        elif tag == "tuv":
            codes = [attributes[name] for name in _LANGUAGES if name in attributes]
            self._language = codes[0] if codes else ""
        elif tag == "seg":
            self._text = []
        elif tag in _CODES:
            self._codes += 1

    def end(self, tag: str) -> None:
        self._depth -= 1
        if tag == "seg" and self._text is not None:
            self._variants.append((self._language, "".join(self._text)))
            self._text = None
        elif tag in _CODES:
            self._codes -= 1
        elif tag == "tu":
            source, target = map(self._side, self._languages)
            languages = [language for language, _ in self._variants]
            self._units.append((self._line, source, target, languages))

    def add_text(self, text: str) -> None:
        if self._text is not None and not self._codes:
            self._text.append(text)

    def refuse_declaration(self, entity: str, *_: object) -> None:
        self._raise(f"expected no declarations of entities. Received: {entity!r:.80}")

    def refuse_entity(self, entity: str, is_parameter: bool) -> None:
        self._raise(f"expected no entities but those of XML. Received: {entity!r:.80}")

    def _side(self, language: str) -> str | None:
        """Return the text of the first variant in a language."""
        for code, text in self._variants:
            if _matches(code, language):
                return text
        return None

    def _raise(self, problem: str) -> NoReturn:
        raise ValueError(f"line {self._parser.CurrentLineNumber}: {problem}")


def _matches(code: str, language: str) -> bool:
    """Return whether a code is that of a language, with or without a region."""
    code, language = (value.lower().replace("_", "-") for value in (code, language))
    return code == language or code.startswith(f"{language}-")
