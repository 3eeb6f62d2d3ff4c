"""Flags of commands for the search options and the constraints of a call."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_bahdanau_cli.arguments import check_file
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.option_fields import option
from keras_bahdanau_runtime.search_settings import SearchSettings
from keras_bahdanau_runtime.signature import SETTINGS
from keras_bahdanau_runtime.text.corpus import iterate_lines
from keras_bahdanau_runtime.text.file_kind import file_kind, is_lines

if TYPE_CHECKING:
    from keras_bahdanau_runtime.search_options import SearchOptions


@dataclass(frozen=True, kw_only=True)
class SearchFlags(SearchSettings):
    """Settings of a search, and constraints on the translations, as flags.

    Example:

    >>> SearchFlags(beam_size=2, suppress=["x"]).options()
    {'beam_size': 2, 'suppressed': ['x']}
    """

    suppress: list[str] | None = option(
        None, "A token that no translation contains. May be repeated.", panel="Search"
    )
    disable_unknown: bool = option(
        False, "Never output the unknown token.", flags="--disable-unknown", panel="Search"
    )
    prefix: Path | None = option(
        None,
        "File with the beginning of each translation, line by line; blank for none.",
        panel="Search",
    )
    required: Path | None = option(
        None,
        "File with phrases that each translation contains, line by line, separated by tabs; blank "
        "for none.",
        panel="Search",
    )

    def search_options(self) -> "SearchOptions":
        """Return the options that are numbers."""
        from keras_bahdanau_runtime.search_options import SearchOptions

        return SearchOptions(**{name: getattr(self, name) for name in SETTINGS})

    def options(self) -> dict[str, Any]:
        """Return the arguments of `Translator.translate` for all texts, without the unset ones."""
        options: dict[str, Any] = self.search_options().values()
        options |= {"suppressed": self.suppress or None}
        options |= {"disable_unknown": self.disable_unknown or None}
        return {name: value for name, value in options.items() if value is not None}

    def constraints(self) -> dict[str, list[Any]]:
        """Read the files with the arguments of `Translator.translate` that differ between texts.

        Raises:
            ValueError: A file does not exist, has the name of another format or is not UTF-8.
        """
        constraints = dict[str, list[Any]]()
        for name, path in (("prefix", self.prefix), ("required", self.required)):
            # Phrases are separated by tabs, so `required` may be tab-separated text.
            is_tabbed = name == "required" and path is not None and file_kind(path).format == "tsv"
            if path is not None and not is_lines(path) and not is_tabbed:
                raise argument_error(
                    name,
                    "be a file with a line for each source",
                    received=f"{str(path)!r}, the name of another format",
                )
        if self.prefix is not None:
            check_file("prefix", self.prefix)
            constraints["prefixes"] = list(iterate_lines(self.prefix))
        if self.required is not None:
            check_file("required", self.required)
            constraints["required"] = [
                [phrase for phrase in line.split("\t") if phrase.strip()]
                for line in iterate_lines(self.required)
            ]
        return constraints
