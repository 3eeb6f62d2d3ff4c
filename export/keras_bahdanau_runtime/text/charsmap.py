"""Normalization of SentencePiece: rules that replace characters, stored as a "charsmap".

A charsmap is a double-array trie (Darts) of the UTF-8 bytes of the keys, and the values, each with
a zero at its end. SentencePiece replaces the longest key at each place of a text. The normalizer
`Precompiled` of `tokenizers` reads the same bytes, but takes the shortest key of each grapheme
cluster and drops the rest of the cluster, so it is used only for tokenizers of that library.
"""

import re

# The rules of SentencePiece itself have 250 kB, keys of up to 13 bytes and 21,000 nodes.
_MAX_BYTES = 2**22
_MAX_KEY_BYTES = 256
_MAX_NODES = 2**19
_ASTRAL = "\U00010000"


class CharacterMap:
    """Function that replaces the characters of a text as SentencePiece does.

    Args:
        charsmap: Bytes of the rules.

    Attributes:
        growth: Largest number of bytes of a value per byte of its key.

    Raises:
        ValueError: The charsmap is damaged, or larger than the rules of any language. The library
            `tokenizers` can read every other one without a crash.
    """

    growth: float

    def __init__(self, charsmap: bytes) -> None:
        import numpy as np

        trie_bytes = int.from_bytes(charsmap[:4], "little")
        if len(charsmap) > _MAX_BYTES:
            raise ValueError(f"a charsmap of {len(charsmap)} bytes, more than {_MAX_BYTES}")
        if not 0 < trie_bytes <= len(charsmap) - 4 or trie_bytes % 1024:
            raise ValueError(f"a charsmap of {len(charsmap)} bytes with a trie of {trie_bytes}")
        self._values = charsmap[4 + trie_bytes :]
        units = np.frombuffer(charsmap, "<u4", trie_bytes // 4, offset=4).astype(np.int64)
        # A node has a label, a byte of a key, and the base of its children: the child for a byte is
        # at `base ^ byte`. If a key ends at a node, the unit at its base is the place of the value.
        bases = np.arange(len(units)) ^ ((units >> 10) << ((units & 512) >> 6))
        nodes = np.flatnonzero(units < 2**31)
        if bases[nodes].max(initial=0) >= len(units) or units[0] >= 2**31:
            raise ValueError("a charsmap whose trie has children outside of it")
        has_value = nodes[(units[nodes] >> 8) & 1 == 1]
        places = units[bases[has_value]] & 0x7FFFFFFF
        self._check_places(set(places.tolist()))
        self._places = dict(zip(has_value.tolist(), places.tolist(), strict=True))
        labels = units[nodes] & 255
        parents = nodes ^ labels
        self._bases = bases.tolist()
        self._children: dict[int, dict[int, int]] = {}  # nodes by label, by the base of the parent
        for node, label, base in zip(*(a.tolist() for a in (nodes, labels, parents)), strict=True):
            if label:
                self._children.setdefault(base, {})[label] = node
        self._longest, self.growth = self._measure()
        self._keyed = self._keyed_characters()

    def __call__(self, text: str) -> str:
        """Return the text with all replacements."""
        search = self._keyed.search
        parts, end = [], 0
        while match := search(text, end):
            start = max(end, match.start() - 1)
            parts.append(text[end:start])
            length, value = self._longest_match(text[start : start + self._longest])
            parts.append(value)
            end = start + length
        return "".join([*parts, text[end:]]) if parts else text

    def _longest_match(self, text: str) -> tuple[int, str]:
        """Return the length of the longest key at the start of a text, and its value.

        Without a key they are those of the first character.
        """
        contents = text.encode("utf-8")
        length, place = 0, 0
        base = self._bases[0]
        for index, byte in enumerate(contents, start=1):
            node = self._children.get(base, {}).get(byte)
            if node is None:
                break
            base = self._bases[node]
            is_end = index == len(contents) or contents[index] & 0xC0 != 0x80  # of a character
            if is_end and node in self._places:
                length, place = index, self._places[node]
        if not length:
            return 1, text[0]
        return len(contents[:length].decode("utf-8")), self._value(place).decode("utf-8")

    def _value(self, place: int) -> bytes:
        return self._values[place : self._values.index(0, place)]

    def _check_places(self, places: set[int]) -> None:
        """Raise a `ValueError` unless a whole string begins at each place of the values."""
        try:
            self._values.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError("a charsmap whose values are not UTF-8") from error
        values = self._values
        if places and (
            values[-1:] != b"\0"
            or max(places) >= len(values)
            or any(values[place] & 0xC0 == 0x80 for place in places)
        ):
            raise ValueError("a charsmap whose values are outside of it")

    def _measure(self) -> tuple[int, float]:
        """Return the number of bytes of the longest key, and the growth."""
        growth, depth, visited = 1.0, 0, 0
        level = {self._bases[0]}
        while level:
            depth, visited = depth + 1, visited + len(level)
            if depth > _MAX_KEY_BYTES or visited > _MAX_NODES:
                raise ValueError(
                    f"a charsmap with keys of more than {_MAX_KEY_BYTES} bytes, or with more than "
                    f"{_MAX_NODES} nodes"
                )
            nodes = {node for base in level for node in self._children.get(base, {}).values()}
            for place in {self._places[node] for node in nodes if node in self._places}:
                growth = max(growth, len(self._value(place)) / depth)
            level = {self._bases[node] for node in nodes}
        return depth, growth

    def _keyed_characters(self) -> re.Pattern[str]:
        """Return an expression for characters that may be a key, or the second one of a key.

        A key begins at the first match of a text, or one character before it. Most texts have no
        match, and this finds that without Python code for each character.
        """
        firsts = self._characters({self._bases[0]})
        characters = {
            character for character, nodes in firsts.items() if nodes & self._places.keys()
        }
        ends = {self._bases[node] for nodes in firsts.values() for node in nodes}
        characters.update(self._characters(ends & self._children.keys()))
        # The expression is fast for any set of characters below U+10000, and slow for many above.
        classes = [re.escape(character) for character in sorted(characters) if character < _ASTRAL]
        if len(classes) < len(characters):
            classes.append(f"{_ASTRAL}-\U0010ffff")
        return re.compile(f"[{''.join(classes)}]" if classes else r"(?!)")

    def _characters(self, bases: set[int]) -> dict[str, set[int]]:
        """Return the nodes where a character ends that begins at one of the bases."""
        characters: dict[str, set[int]] = {}
        prefixes = {b"": bases}
        steps = 0
        for _ in range(4):  # bytes of a character
            longer: dict[bytes, set[int]] = {}
            for prefix, starts in prefixes.items():
                for base in starts:
                    for label, node in self._children.get(base, {}).items():
                        longer.setdefault(prefix + bytes([label]), set()).add(node)
                        steps += 1
                        if steps > _MAX_NODES:
                            raise ValueError("a charsmap with too many keys")
            prefixes = {}
            for prefix, nodes in longer.items():
                try:
                    characters[prefix.decode("utf-8")] = nodes
                except UnicodeDecodeError:  # the next byte belongs to the same character
                    prefixes[prefix] = {self._bases[node] for node in nodes}
        return characters
