"""Convert docstrings from Markdown, as in Keras, to the reStructuredText that autodoc reads.

The hook runs before napoleon, which converts the sections with a list of names. It converts code in
backticks, code blocks, equations, and the sections `Returns`, `Yields` and `Raises`.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_BEFORE_NAPOLEON = 400
_INDENT = 4
_HEADER = re.compile(
    r"(Args|Attributes|Call arguments|Example|Output shape|Raises|Returns|Yields):(.*)"
)
_EXCEPTION = re.compile(r"(?:[\w.]*(?:Error|Exception)(?:, | or )?)+: ")
_FENCE = "```"
# Characters that reStructuredText allows next to inline code.
_BEFORE_CODE = re.compile(r"[\s'\"(\[{</:-]$|^$")
_AFTER_CODE = re.compile(r"^[\s'\")\]}>/\\:.,;!?-]|^$")


def setup(app: "Sphinx") -> dict[str, Any]:
    """Convert every docstring, and leave out the fields of named tuples."""
    from generated_text import CLASSES  # imports the packages

    def convert(
        app: "Sphinx", kind: str, name: str, obj: Any, options: Any, lines: list[str]
    ) -> None:
        if kind == "class":
            lines[:] = with_options(lines, obj)
        others = {key: target for key, target in CLASSES.items() if key not in name.split(".")}
        lines[:] = to_rst(lines, others)
        if kind in ("attribute", "property"):
            # Napoleon would read "text: text" in the first line as a type, so it gets a comment.
            lines[:0] = ["..", ""]

    app.connect("autodoc-process-docstring", convert, priority=_BEFORE_NAPOLEON)
    app.connect("autodoc-skip-member", _skip_member)
    app.add_autodoc_attrgetter(type, class_attribute)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _skip_member(
    app: "Sphinx", kind: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    # Python documents each of them as "Alias for field number 0".
    return True if type(obj).__name__ == "_tuplegetter" else None


def with_options(lines: list[str], cls: type) -> list[str]:
    """Return the lines of a class's docstring with its fields that have a help text as "Args"."""
    options = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    added = [
        f"{' ' * _INDENT}{option.name}: {option.metadata['help']}"
        for option in options
        if "help" in option.metadata
        and not any(line.startswith(f"{' ' * _INDENT}{option.name}:") for line in lines)
    ]
    if not added:
        return lines
    if "Args:" in lines:
        place = lines.index("Args:") + 1
        return [*lines[:place], *added, *lines[place:]]
    headers = [number for number, line in enumerate(lines) if _HEADER.fullmatch(line)]
    place = min(headers, default=len(lines))
    return [*lines[:place], "", "Args:", *added, "", *lines[place:]]


def class_attribute(cls: type, name: str, *default: Any) -> Any:
    """Return an attribute of a class for autodoc, but no `__new__` that passes on its arguments.

    Keras defines such a `__new__` for all layers, and autodoc would show its signature instead of
    that of `__init__`.
    """
    value = getattr(cls, name, *default)
    if name == "__new__" and getattr(value, "__module__", "").startswith("keras."):
        return None
    return value


def to_rst(lines: list[str], links: Mapping[str, str]) -> list[str]:
    """Return the lines of a docstring as reStructuredText.

    Args:
        lines: The docstring in Markdown.
        links: The full name of each class, by the name in the docstring.
    """
    converted: list[str] = []
    for kind, block in _blocks(lines):
        match kind:
            case "fence":
                language = block[0].strip().removeprefix(_FENCE) or "text"
                converted += [f".. code-block:: {language}", "", *_indented(block[1:-1]), ""]
            case "literal":
                converted += ["", ".. code-block:: text", "", *block, ""]
            case "doctest":
                converted += block
            case "header":
                converted += [""] if converted and converted[-1] else []
                converted += block
            case "Returns" | "Yields":
                text = _inline("\n".join(_dedented(block)), links)
                first, *rest = text.strip("\n").split("\n")
                converted += [f":{kind.lower()}: {first}", *_indented(rest), ""]
            case "Raises":
                for item in _items(_dedented(block)):
                    converted += _raises(item, links)
                converted.append("")
            case "note":  # a section whose header continues with a sentence
                label, _, text = " ".join(map(str.strip, block)).partition(":")
                converted += [f"**{label}:** {_inline(text.strip(), links)}", ""]
            case _:
                converted += _inline("\n".join(block), links).split("\n")
    return converted


def _blocks(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Split a docstring into pairs of a kind and its lines."""
    section, position = "", 0
    while position < len(lines):
        line = lines[position]
        header = _HEADER.fullmatch(line)
        previous = lines[position - 1] if position else ""
        if header and header[2].strip():
            end = _end(lines, position + 1, lambda text: bool(text.strip()))
            yield "note", lines[position:end]
            section = ""
        elif header:
            section, end = header[1], position + 1
            if section in ("Returns", "Yields", "Raises"):
                end = _end(lines, end, lambda text: not text.strip() or text[0] == " ")
                yield section, lines[position + 1 : end]
            else:
                yield "header", [line]
        elif line.strip().startswith(_FENCE):
            end = 2 + _end(lines, position + 1, lambda text: text.strip() != _FENCE)
            yield "fence", lines[position : end - 1]
            end -= 1
        elif line.strip().startswith(">>>"):
            end = _end(lines, position, lambda text: bool(text.strip()))
            yield "doctest", lines[position:end]
        elif section in ("", "Example") and line.startswith(" " * _INDENT) and not previous.strip():
            end = _end(lines, position, lambda text: not text.strip() or text[0] == " ")
            while not lines[end - 1].strip():
                end -= 1
            yield "literal", lines[position:end]
        else:
            end = position + 1
            while end < len(lines) and not _begins_block(lines[end]):
                if section in ("", "Example") and not lines[end - 1].strip():
                    break
                end += 1
            yield "text", lines[position:end]
            if not line.startswith(" ") and line.strip():
                section = "" if section != "Example" else section
        position = end


def _begins_block(line: str) -> bool:
    return bool(_HEADER.fullmatch(line)) or line.strip().startswith((_FENCE, ">>>"))


def _end(lines: list[str], start: int, continues: Callable[[str], bool]) -> int:
    """Return the index of the first line from `start` that does not continue a block."""
    return next((i for i in range(start, len(lines)) if not continues(lines[i])), len(lines))


def _indented(lines: list[str]) -> list[str]:
    return [" " * _INDENT + line if line.strip() else "" for line in lines]


def _dedented(lines: list[str]) -> list[str]:
    return [line[_INDENT:] for line in lines]


def _items(lines: list[str]) -> Iterator[list[str]]:
    """Split the lines of a section into its items, whose further lines are indented."""
    item: list[str] = []
    for line in lines:
        if line.strip() and not line.startswith(" ") and item:
            yield item
            item = []
        if line.strip():
            item.append(line.strip())
    if item:
        yield item


def _raises(item: list[str], links: Mapping[str, str]) -> list[str]:
    text = " ".join(item)
    exception = _EXCEPTION.match(text)
    if exception is None:
        return [f":raises: {_inline(text, links)}"]
    names = exception[0].removesuffix(": ")
    return [f":raises {names}: {_inline(text[exception.end() :], links)}"]


def _inline(text: str, links: Mapping[str, str]) -> str:
    """Convert code in backticks, and escape the characters that are no markup in Markdown."""
    pieces = re.split(r"(`+[^`]+`+)", text)
    converted = ""
    for index, piece in enumerate(pieces):
        if index % 2 == 0:
            converted += re.sub(r"([*|])|(?<=\w)(_)(?!\w)", r"\\\1\2", piece)
            continue
        code = piece.strip("`")
        before = "" if _BEFORE_CODE.search(converted[-1:]) else r"\ "
        after = "" if _AFTER_CODE.search(pieces[index + 1][:1]) else r"\ "
        converted += before + _code(code, links) + after
    return converted


def _code(code: str, links: Mapping[str, str]) -> str:
    """Return the markup of code, as a link if it is a public class or a member of one."""
    head = code.partition(".")[0]
    name = links.get(head)
    if name is None or not re.fullmatch(r"[\w.]+", code):
        return f"``{code}``"
    return f":py:obj:`{code} <{name}>`"
