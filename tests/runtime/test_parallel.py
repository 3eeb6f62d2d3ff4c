"""Parallel text in two files or in one, in any format, encoding and compression."""

import bz2
import csv
import gzip
import io
import json
import lzma
import sys
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bahdanau_runtime.errors import MissingDependencyError
from keras_bahdanau_runtime.text.parallel import (
    TextFormat,
    expand_paths,
    iterate_pairs,
    read_pairs,
    read_parallel,
    read_side,
)
from keras_bahdanau_runtime.text.parquet_file import batch_rows, open_parquet
from keras_bahdanau_runtime.text.tmx import iterate_units

PAIRS = [("a man", "ein Mann"), ("a dog", "ein Hünd")]
NUMBERED = [(1, *PAIRS[0]), (2, *PAIRS[1])]
SKIP = {"on_bad_line": "skip"}


def columns_format(source=None, target=None, **options):
    return TextFormat(source_column=source, target_column=target, **options)


def unit(*variants):
    """A translation unit of TMX with a segment in each language."""
    texts = "".join(f'<tuv xml:lang="{code}"><seg>{text}</seg></tuv>' for code, text in variants)
    return f"<tu>{texts}</tu>\n"


@pytest.mark.parametrize("name", ["a.csv", "a.TSV", "a.jsonl.gz", "a.parquet", "a.tmx", "a.json"])
def test_file_of_another_format_is_no_side(tmp_path, name):
    (tmp_path / name).write_text("source,target\n")
    (tmp_path / "a.en").write_text("a man\n")
    sides = tmp_path / name, tmp_path / "a.en"
    for read in (
        lambda: read_side(sides[0], TextFormat()),
        lambda: read_pairs(*sides),
        lambda: read_pairs(*reversed(sides)),
    ):
        with pytest.raises(ValueError, match=rf"{name}: expected a file with one sentence per li"):
            read()


@pytest.mark.parametrize("name", ["a.json", "a.XLSX", "a.xml.gz", "a.zip", "a.csv.lz4", "a.psv"])
def test_file_of_another_format_has_no_pairs(tmp_path, name):
    with pytest.raises(ValueError, match=rf"{name}: expected tab-separated text, .*another format"):
        iterate_pairs(write(tmp_path / name, "a\tb\n"))


def tmx(*units, head=""):
    return f'{head}<tmx version="1.4"><header srclang="en"/><body>\n{"".join(units)}</body></tmx>'


TSV = "".join(f"{source}\t{target}\n" for source, target in PAIRS)
CSV = "id,en,de\n1,a man,ein Mann\n2,a dog,ein Hünd\n"
JSONL = "".join(f"{json.dumps({'source': s, 'target': t})}\n" for s, t in PAIRS)
TMX = tmx(*(unit(("en-US", source), ("DE", target)) for source, target in PAIRS))


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize(
    ("name", "text", "columns", "lines"),
    [
        ("a.tsv", TSV, (), (1, 2)),
        ("a.txt", TSV.replace("\n", "\r\n"), (), (1, 2)),
        ("a.tsv", "1\tein Mann\ta man\n2\tein Hünd\ta dog\tx\n", ("3", "2"), (1, 2)),
        ("a.csv", CSV, ("en", "de"), (2, 3)),
        ("a.csv", "\ufeff" + CSV.replace("en,de", "source,target"), (), (2, 3)),
        ("a.jsonl", JSONL, (), (1, 2)),
        ("a.jsonl", JSONL.replace('"source"', '"x": null, "a.b"'), ("a.b", "target"), (1, 2)),
        ("a.tmx", TMX, ("en", "de"), (2, 3)),
        ("a.tmx", TMX.replace("xml:lang", "lang"), ("en_us", "de"), (2, 3)),
    ],
)
def test_name_selects_the_format_of_a_file_with_both_sides(tmp_path, name, text, columns, lines):
    pairs = list(iterate_pairs(write(tmp_path / name, text), None, columns_format(*columns)))
    assert pairs == [(line, *pair) for line, pair in zip(lines, PAIRS, strict=True)]


JOINED = (["talo\tN;PL", "a b\t"], ["talot", "c"])


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("a.tsv", "talo\ttalot\tN;PL\na b\tc\t\n", (("1", "3"), "2")),
        ("a.csv", 'word,tags,form\ntalo,N;PL,talot\n"a\tb",,c\n', (("word", "tags"), "form")),
        (
            "a.jsonl",
            '{"a": {"word": "talo"}, "tags": "N;PL", "form": "talot"}\n'
            '{"a": {"word": "a\\tb"}, "tags": "", "form": "c"}\n',
            (("a.word", "tags"), "form"),
        ),
    ],
)
def test_columns_of_a_source_are_joined_by_a_tab_that_no_column_has(tmp_path, name, text, columns):
    path = write(tmp_path / name, text)
    assert read_pairs(path, None, columns_format(*columns)) == JOINED


def test_columns_of_a_source_in_parquet_are_joined(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"tags": ["N;PL", ""], "word": ["talo", "a\tb"], "target": ["talot", "c"]}
    parquet.write_table(arrow.table(columns), tmp_path / "a.parquet")
    pairs = read_pairs(tmp_path / "a.parquet", None, columns_format(("word", "tags")))
    assert pairs == JOINED


def test_a_line_without_all_columns_of_its_source_is_bad(tmp_path):
    path = write(tmp_path / "a.tsv", "talo\ttalot\tN\nauto\tautot\n")
    columns = ("1", "3"), "2"
    with pytest.raises(ValueError, match=r"line 2: expected 3 columns separated by tabs. .*: 2"):
        read_pairs(path, None, columns_format(*columns))
    skipping = columns_format(*columns, **SKIP)
    assert list(iterate_pairs(path, None, skipping))[1] == (2, None, None)


def test_sources_of_translation_memories_have_one_column(tmp_path):
    with pytest.raises(ValueError, match="must be language codes for TMX, one for each side"):
        read_pairs(write(tmp_path / "a.tmx", TMX), None, columns_format(("en", "fr"), "de"))


def test_a_single_column_may_be_a_text():
    assert TextFormat(source_column="en") == TextFormat(source_column=["en"])


def test_tabs_between_columns_are_no_mistake(tmp_path, caplog):
    path = write(tmp_path / "a.tsv", "talo\ttalot\tN\n")
    read_parallel(path, None, columns_format(("1", "3"), "2"))
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("A.CSV", CSV, ("en", "de")),
        ("a.Jsonl", JSONL, ()),
        ("a.ndjson", JSONL, ()),
        ("a.NDJSON.GZ", JSONL, ()),
        ("a.TMX", TMX, ("en", "de")),
        ("a.Csv.Gz", CSV, ("en", "de")),
        ("a.TSV.GZ", TSV, ()),
    ],
)
def test_suffixes_of_a_name_may_be_capitals(tmp_path, name, text, columns):
    path = write(tmp_path / name, text)
    if name.lower().endswith(".gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert [pair[1:] for pair in iterate_pairs(path, None, columns_format(*columns))] == PAIRS


def test_compressed_parquet_is_refused(tmp_path):
    path = tmp_path / "a.parquet.gz"
    path.write_bytes(gzip.compress(b"PAR1"))
    with pytest.raises(ValueError, match=r"a\.parquet\.gz: expected Parquet without a compression"):
        list(iterate_pairs(path))


def test_columns_may_be_inside_objects(tmp_path):
    objects = [{"translation": {"en": source, "de": target}} for source, target in PAIRS]
    path = write(tmp_path / "a.jsonl", "\n\n".join(map(json.dumps, objects)))
    pairs = list(iterate_pairs(path, None, columns_format("translation.en", "translation.de")))
    assert pairs == [(1, *PAIRS[0]), (2, "", ""), (3, *PAIRS[1])]


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz"])
@pytest.mark.parametrize(("name", "text"), [("a.tsv", TSV), ("a.jsonl", JSONL)])
def test_files_with_both_sides_may_be_compressed(tmp_path, suffix, name, text):
    module = {"gz": gzip, "bz2": bz2, "xz": lzma}[suffix]
    path = tmp_path / f"{name}.{suffix}"
    path.write_bytes(module.compress(text.encode()))
    assert list(iterate_pairs(path)) == NUMBERED
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match=rf"{name}\.{suffix} is not a complete"):
        list(iterate_pairs(path))


def compress(kind, text):
    if kind == "zst":
        name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
        return pytest.importorskip(name, reason="zstd is not installed.").compress(text)
    return {"gz": gzip, "bz2": bz2, "xz": lzma}[kind].compress(text)


KINDS = ["gz", "bz2", "xz", "zst"]


# The tools gzip, bzip2, xz and zstd accept this padding. Except for xz, they leave out what follows
# zero bytes, with a warning or an error: all of it is read here.
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("zeros", [0, 4, 2**18])
def test_all_streams_of_a_compressed_file_are_read(tmp_path, kind, zeros):
    zeros = 0 if kind == "zst" else zeros
    first, second = (compress(kind, f"{line}\n".encode()) for line in ("a\tb", "c\td"))
    padding, path = bytes(zeros), tmp_path / f"a.tsv.{kind}"
    path.write_bytes(first + padding + compress(kind, b"") + second + padding)
    assert list(iterate_pairs(path)) == [(1, "a", "b"), (2, "c", "d")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "broken",
    [
        lambda kind, stream: b"",
        lambda kind, stream: bytes(4),
        lambda kind, stream: bytes(4) + stream,
        lambda kind, stream: stream + b"x",
        lambda kind, stream: stream + b"a\tb\n" * 9,
        lambda kind, stream: stream + stream[:-1],
        lambda kind, stream: stream + stream[:1],
        lambda kind, stream: stream + stream[:9] + b"\xff" * 9 + stream[18:],
        lambda kind, stream: stream + compress(KINDS[KINDS.index(kind) - 2], b"a\tb\n"),
        lambda kind, stream: stream + bytes(4) + b"x" + stream,
    ],
)
def test_anything_but_streams_in_a_compressed_file_is_refused(tmp_path, kind, broken):
    path = tmp_path / f"a.tsv.{kind}"
    path.write_bytes(broken(kind, compress(kind, b"a\tb\n")))
    with pytest.raises(ValueError, match=rf"a\.tsv\.{kind} is not a complete"):
        list(iterate_pairs(path))


@pytest.mark.parametrize(("kind", "zeros"), [("xz", 1), ("xz", 6), ("zst", 4)])
def test_padding_that_a_compression_does_not_have_is_refused(tmp_path, kind, zeros):
    path, stream = tmp_path / f"a.tsv.{kind}", compress(kind, b"a\tb\n")
    for data in (stream + bytes(zeros), stream + bytes(zeros) + stream):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=rf"a\.tsv\.{kind} is not a complete"):
            list(iterate_pairs(path))


def test_translation_memories_may_be_compressed(tmp_path):
    path = tmp_path / "a.tmx.xz"
    path.write_bytes(lzma.compress(TMX.encode()))
    texts = columns_format("en", "de")
    assert [pair[1:] for pair in iterate_pairs(path, None, texts)] == PAIRS
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"a\.tmx\.xz is not a complete xz file"):
        list(iterate_pairs(path, None, texts))


@pytest.mark.parametrize(
    ("name", "text", "columns", "line", "message"),
    [
        ("a.tsv", "a\tb\n\na\nc\td\n", (), 3, "expected 2 columns .* second file .* Received: 1"),
        (
            "a.tsv",
            "a\tb\n\na\tb\tc\n",
            (),
            3,
            "expected 2 columns .*, or `source_column` and .* Received: 3",
        ),
        ("a.tsv", "a\tb\tc\n\na\tb\n", ("1", "3"), 3, "expected 3 columns .* Received: 2"),
        ("a.csv", 'en,de\n"a\nb",c\nx\ny,z\n', ("en", "de"), 4, "expected the 2 columns"),
        ("a.csv", 'en,de\na,b\n"c "d" e",f\ng,h\n', ("en", "de"), 3, "expected CSV. Received: ','"),
        ("a.jsonl", f"{JSONL}[]\n", (), 3, r"expected a text as 'source'. Received: \[\]"),
        ("a.jsonl", f"{JSONL}{{\n", (), 3, "expected a JSON object. Received: Expecting"),
        ("a.jsonl", f'{JSONL}{{"source": "a"}}', (), 3, r".* 'target'.*keys \['source'\]"),
        ("a.jsonl", f'{JSONL}{{"source": 1}}', (), 3, "expected a text as 'source'. .* 1"),
        ("a.jsonl", JSONL.replace("dog", "\\ud800"), (), 2, ".* without lone surrogates"),
        (
            "a.tmx",
            tmx(unit(("en", "a"), ("de", "b")), unit(("en", "a"), ("dei", "c"))),
            ("en", "de"),
            3,
            r"expected the languages 'en' and 'de'. Received: \['en', 'dei'\]",
        ),
    ],
)
def test_bad_line_stops_or_is_skipped(tmp_path, name, text, columns, line, message):
    path = write(tmp_path / name, text)
    error = f"{name}, line {line}: {message}.*Correct it, or set `on_bad_line`"
    with pytest.raises(ValueError, match=error):
        list(iterate_pairs(path, None, columns_format(*columns)))
    pairs = list(iterate_pairs(path, None, columns_format(*columns, **SKIP)))
    assert [pair for pair in pairs if None in pair] == [(line, None, None)] and len(pairs) > 1


def test_skipped_lines_are_counted_and_keep_the_place_of_the_others(tmp_path, caplog):
    path = write(tmp_path / "a.tsv", "a\tA\nbad\nb\tB\tbad\nc\tC\n \t \n")
    texts = TextFormat(**SKIP)
    assert read_pairs(path, None, texts) == (["a", "", "", "c", " "], ["A", "", "", "C", " "])
    assert read_parallel(path, None, texts) == (["a", "c"], ["A", "C"])
    assert [record.getMessage() for record in caplog.records] == [
        f"Skipped 2 of 5 bad lines of {path}.",
        f"Skipped 2 of 5 bad lines of {path}.",
        f"Dropped 3 of 5 pairs of {path} (sources) and {path} (targets): one side is blank.",
    ]


@pytest.mark.parametrize(
    ("encoding", "bad"),
    [
        ("utf-8", b"\xe9"),
        ("ascii", b"\xe9"),
        ("shift_jis", b"\x85\xff"),
        ("utf-16", b"\xd8\xd8"),
        ("utf-32-be", b"\0\x11\0\0"),
    ],
)
def test_lines_with_another_encoding_are_skipped(tmp_path, encoding, bad):
    start, (first, second, separator, end) = (
        "".encode(encoding),
        (
            text.encode(encoding).removeprefix("".encode(encoding))
            for text in ("a", "b", "\t", "\n")
        ),
    )
    texts = TextFormat(encoding=encoding, **SKIP)
    expected = [(1, "a", "b"), (2, None, None), (3, None, None), (4, "a", "b"), (5, None, None)]

    def file(name, *lines):
        (tmp_path / name).write_bytes(start + end.join(lines))
        return tmp_path / name

    rows = (first, second), (first + bad, second), (first, bad), (first, second), (bad, first)
    both = file("a.tsv", *(separator.join(row) for row in rows))
    assert list(iterate_pairs(both, None, texts)) == expected
    sides = [file(name, *side) for name, side in zip("st", zip(*rows, strict=True), strict=True)]
    assert list(iterate_pairs(*sides, texts)) == expected
    assert read_side(sides[0], texts) == ["a", "", "a", "a", ""]


def test_rows_of_csv_and_json_with_another_encoding_are_skipped(tmp_path, caplog):
    texts = TextFormat(**SKIP)
    path = tmp_path / "a.csv"
    path.write_bytes(b'id,source,target\n1,a,b\n2,"c\n\xe9",d\n\xe9,e,f\n4,g,h\n')
    skipped = [(3, None, None), (5, None, None)]
    assert list(iterate_pairs(path, None, texts)) == [(2, "a", "b"), *skipped, (6, "g", "h")]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"source": "a", "target": "\xe9"}\n' + JSONL.encode())
    assert list(iterate_pairs(path, None, texts)) == [
        (1, None, None),
        *((line + 1, *pair) for line, *pair in NUMBERED),
    ]


@pytest.mark.parametrize(
    ("name", "text", "columns", "message"),
    [
        ("a.csv", "en,de\na,b\n", (), r"must be columns of .*a.csv, one of \['en', 'de'\]"),
        ("a.csv", "en,en\na,b\n", ("en", "en"), "must be columns of"),
        ("a.csv", "", (), r"must be columns of .*, one of \[\]"),
        ("a.csv", 'source,target\na,b\nc,"d\n', (), "a.csv, line 3: expected CSV"),
        ("a.csv", 'source,target\na,b\n"c"d,"e\nf"\n', (), "a.csv, line 3: expected CSV"),
        ("a.csv", 'source,target\na"b,"c\nd,e\n', (), "a.csv, line 2: expected CSV"),
        ("a.csv", '"source"x,target\na,b\n', (), "a.csv, line 1: expected CSV"),
        ("a.tsv", "PK\x03\x04", (), "a.tsv: expected text. Received: zip"),
        ("a.tsv", TSV, ("en", "de"), "`source_column` must be a number from 1"),
        ("a.tsv", TSV, ("1", "0"), "`target_column` must be a number from 1"),
        ("a.tmx", TMX, ("en",), "must be language codes for TMX"),
        ("a.tmx", TMX[:-5], ("en", "de"), "a.tmx, line 4: expected well-formed XML"),
        ("a.tmx", "<html/>", ("en", "de"), "a.tmx, line 1: expected the element <tmx>"),
        ("a.tmx", "", ("en", "de"), "a.tmx, line 1: expected well-formed XML"),
    ],
)
def test_damaged_file_or_wrong_column_stops_also_if_bad_lines_are_skipped(
    tmp_path, name, text, columns, message
):
    path = write(tmp_path / name, text)
    with pytest.raises(ValueError, match=message):
        list(iterate_pairs(path, None, columns_format(*columns, **SKIP)))


@pytest.mark.parametrize(
    ("head", "text", "message"),
    [
        ('<!DOCTYPE tmx [<!ENTITY a "aaaa">]>', "&a;", "line 1: expected no declarations in the"),
        ('<!DOCTYPE tmx [<!ENTITY a SYSTEM "/etc/passwd">]>', "&a;", "line 1: expected no decl"),
        ('<!DOCTYPE tmx [<!ENTITY % a SYSTEM "x"> %a;]>', "", "line 1: expected no declarations"),
        ('<!DOCTYPE tmx SYSTEM "tmx14.dtd">', "&a;", "line 2: expected no entities but those"),
        ("", "&a;", "line 2: expected well-formed XML. Received: undefined entity"),
    ],
)
def test_entities_of_translation_memories_are_refused(tmp_path, head, text, message):
    path = write(tmp_path / "a.tmx", tmx(unit(("en", text), ("de", "b")), head=head))
    with pytest.raises(ValueError, match=f"a.tmx, {message}"):
        list(iterate_pairs(path, None, columns_format("en", "de", **SKIP)))


def test_segments_are_read_without_formatting_codes(tmp_path):
    segment = (
        'a <bpt i="1">&lt;b&gt;<sub>title</sub></bpt>big<ept i="1">&lt;/b&gt;</ept>\n'
        "<hi>man</hi> &amp;<ph/> &#100;og"
    )
    variants = ("en", segment), ("fr", "x"), ("de-AT", "erste"), ("de-DE", "zweite")
    head = '<?xml version="1.0" encoding="UTF-8"?><!DOCTYPE tmx SYSTEM "tmx14.dtd">'
    path = write(tmp_path / "a.tmx", tmx(unit(*variants), head=head))
    assert list(iterate_pairs(path, None, columns_format("EN", "de"))) == [
        (2, "a big man & dog", "erste")
    ]


@pytest.mark.parametrize("declared", ["utf-16", "iso-8859-1", "windows-1252"])
def test_translation_memories_declare_their_encoding(tmp_path, declared):
    units, pair = unit(("en", "caf\u00e9"), ("de", "\u00fc")), (2, "caf\u00e9", "\u00fc")
    text = tmx(units, head=f'<?xml version="1.0" encoding="{declared}"?>')
    path = write(tmp_path / "a.tmx", text, declared)
    assert list(iterate_pairs(path, None, columns_format("en", "de"))) == [pair]
    write(path, tmx(units), "latin-1")
    assert list(iterate_pairs(path, None, columns_format("en", "de", encoding="latin-1"))) == [pair]
    path = write(path, text.replace(declared, "klingon"))
    with pytest.raises(ValueError, match=r"a\.tmx, .*unknown encoding"):
        list(iterate_pairs(path, None, columns_format("en", "de")))


def test_translation_memory_is_read_as_a_stream():
    data = tmx(*(unit(("en", "a" * 1000), ("de", str(number))) for number in range(1000)))
    file = io.BytesIO(data.encode())
    units = iterate_units(file, "a.tmx", "en", "de")
    assert next(units)[2] == "0" and file.tell() < 100_000 < len(data)
    assert [target for _, _, target, _ in units] == [str(number) for number in range(1, 1000)]


CYRILLIC = "\u043a\u043e\u0442\t\u0441\u043e\u0431\u0430\u043a\u0430"


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("latin-1", "caf\u00e9\t\u00fc\x85"),
        ("cp1251", CYRILLIC),
        ("utf-16", CYRILLIC),
        ("utf-16-le", CYRILLIC),
        ("utf-32-be", "\u0a0a\ta\u2028b"),
        ("shift_jis", "\u732b\t\u30bd\u8868"),
        ("gb18030", "\u732b\t\u72d7"),
        ("UTF8", CYRILLIC),
    ],
)
def test_texts_of_any_encoding_are_read(tmp_path, encoding, text):
    source, target = text.split("\t")
    texts = TextFormat(encoding=encoding)
    path = write(tmp_path / "a.tsv", f"{text}\r\n{text}\n", encoding)
    assert list(iterate_pairs(path, None, texts)) == [(1, source, target), (2, source, target)]
    sides = [
        write(tmp_path / name, f"{side}\n", encoding)
        for name, side in (("s", source), ("t", target))
    ]
    assert list(iterate_pairs(*sides, texts)) == [(1, source, target)]
    assert read_parallel(*sides, texts) == ([source], [target])


@pytest.mark.parametrize("lines", [0, 2, 20_000])
@pytest.mark.parametrize(
    ("encoding", "bad", "name"),
    [
        ("utf-16", b"\xd8\xd8", "utf-16"),
        ("utf-16-be", b"\xd8\xd8", "utf-16-be"),
        ("shift_jis", b"\x85\xff", "shift_jis"),
        ("utf-8", b"\xe9", "UTF-8"),
        ("ascii", b"\xe9", "ascii"),
    ],
)
def test_encoding_error_has_the_line(tmp_path, encoding, bad, name, lines):
    path = tmp_path / "a.tsv"
    mark = "".encode(encoding)
    good = "ab\tc\n".encode(encoding).removeprefix(mark)
    path.write_bytes(mark + good * lines + bad + good * 3)
    with pytest.raises(ValueError, match=rf"a\.tsv, line {lines + 1}: not {name}"):
        list(iterate_pairs(path, None, TextFormat(encoding=encoding)))


def test_utf_16_without_a_byte_order_mark_is_refused(tmp_path):
    path = write(tmp_path / "a.tsv", TSV, "utf-16-le")
    with pytest.raises(ValueError, match=r"a\.tsv, line 1: not utf-16 .*BOM"):
        list(iterate_pairs(path, None, TextFormat(encoding="utf-16")))


ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)


@settings(max_examples=40)
@given(st.lists(st.tuples(ANY_TEXT, ANY_TEXT), max_size=4))
def test_texts_with_commas_quotes_and_line_breaks_are_read_as_they_were_written(
    tmp_path_factory, pairs
):
    folder = tmp_path_factory.mktemp("texts")
    with (folder / "a.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("target", "source"), *pairs])
    lines = [json.dumps({"source": source, "target": target}) for target, source in pairs]
    write(folder / "a.jsonl", "\n".join(lines))

    def line(text):
        return text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")

    expected = [(line(source), line(target)) for target, source in pairs]
    for name in ("a.csv", "a.jsonl"):
        assert [pair[1:] for pair in iterate_pairs(folder / name)] == expected


def test_stream_is_tab_separated():
    assert list(iterate_pairs(io.BytesIO(TSV.encode()))) == NUMBERED


def test_two_files_of_different_length_are_refused(tmp_path):
    write(tmp_path / "s", "a\nb\n"), write(tmp_path / "t", "A\n")
    with pytest.raises(ValueError, match=r"t ends after line 1, .*s goes on"):
        list(iterate_pairs(tmp_path / "s", tmp_path / "t"))


def test_patterns_are_replaced_by_sorted_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    for name in ("b.tsv", "a.tsv", "in/c.tsv", "[x].tsv"):
        write(tmp_path / name, TSV)
    names = [str(path) for path in expand_paths(["none", "?.tsv", "[x].tsv", "**/c.*"])]
    assert names == ["none", "a.tsv", "b.tsv", "[x].tsv", "in/c.tsv"]
    with pytest.raises(ValueError, match=r"'\*\.csv' must match a file"):
        expand_paths(["*.csv"])


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"source_column": ""}, "source_column"),
        ({"source_column": ()}, "source_column"),
        ({"source_column": ("1", 3)}, "source_column"),
        ({"source_column": ("1", "3", "1")}, "source_column"),
        ({"target_column": 2}, "target_column"),
        ({"on_bad_line": "ignore"}, "on_bad_line"),
        ({"encoding": "klingon"}, "encoding"),
        ({"encoding": "base64"}, "encoding"),
        ({"encoding": None}, "encoding"),
    ],
)
def test_invalid_formats_are_refused(values, name):
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        TextFormat(**values)


LIMIT = 2**24  # bytes of a line


def test_csv_has_cells_of_many_characters(tmp_path):
    text = "a, " * 70_000
    path = write(tmp_path / "a.csv", f'source,target\n"{text}\n",b\n')
    assert list(iterate_pairs(path)) == [(2, f"{text} ", "b")]


def test_line_that_a_small_file_expands_to_is_refused_in_bounded_memory(tmp_path):
    path = tmp_path / "a.tsv.gz"
    path.write_bytes(gzip.compress(b"a\tb\n") + 50 * gzip.compress(b"a" * LIMIT, 1))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"a\.tsv\.gz, line 2: expected at most 16 MB of text"):
            list(iterate_pairs(path))
        assert tracemalloc.get_traced_memory()[1] < 5 * LIMIT
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "text", "encoding"),
    [
        ("a.csv", "source,target\n" + "a" * LIMIT + ",b\n", "utf-8"),
        # A quote that is not closed takes in the following lines.
        ("a.csv", 'source,target\n"' + f"{'a' * (LIMIT // 16)}\n" * 20, "utf-8"),
        ("a.csv", 'source,target\n"' + f'{"a" * (LIMIT // 16)}\n","' * 20, "utf-8"),
        ("a.tsv", "a\tb\na\t" + "b" * LIMIT, "utf-16"),
        ("a.jsonl", "\n" + "[" * (LIMIT + 1), "utf-8"),
    ],
)
@pytest.mark.parametrize("action", ["stop", "skip"])
def test_long_lines_and_rows_are_always_an_error(tmp_path, name, text, encoding, action):
    path = write(tmp_path / name, text, encoding)
    texts = TextFormat(encoding=encoding, on_bad_line=action)
    with pytest.raises(ValueError, match="line 2: expected at most 16 MB of text"):
        list(iterate_pairs(path, None, texts))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('<tu x="' + "a" * 4_000_000, "expected tags and comments of at most 1 MB"),
        ("<!-- " + "a" * 4_000_000, "expected tags and comments of at most 1 MB"),
        (
            "<tu><tuv><seg>" + f"{'a' * 1000}\n" * (LIMIT // 1000),
            "line 1: expected at most 16 MB of text",
        ),
        ("<a>" * 101, "expected at most 100 nested elements"),
        ("".join(f"<a{i}/>" for i in range(1001)), "expected the elements and attributes of TMX"),
        ("".join(f"<tu a{i}=''/>" for i in range(1001)), "expected the elements and attributes"),
        ("<" + "a" * 900 + "></tmx>", "Received: mismatched tag"),
    ],
)
def test_translation_memories_that_need_much_memory_or_time_are_refused(body, message):
    file = io.BytesIO(f'<tmx version="1.4">{body}'.encode())
    with pytest.raises(ValueError, match=message) as error:
        list(iterate_units(file, "a.tmx", "en", "de"))
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    "declaration",
    ['<!ATTLIST tuv x CDATA "aaaa">', "<!ELEMENT tu ANY>", '<!NOTATION a SYSTEM "b">'],
)
def test_declarations_in_translation_memories_are_refused(declaration):
    file = io.BytesIO(tmx(head=f"<!DOCTYPE tmx [{declaration}]>").encode())
    with pytest.raises(ValueError, match="line 1: expected no declarations in the DOCTYPE"):
        list(iterate_units(file, "a.tmx", "en", "de"))


@pytest.mark.parametrize(
    ("variants", "languages", "pair"),
    [
        ([("en-US", "color"), ("en", "colour"), ("de", "x")], ("en", "de"), ("colour", "x")),
        ([("en", "colour"), ("en-US", "color"), ("de", "x")], ("en", "de"), ("colour", "x")),
        ([("de", "x"), ("EN_us", "color"), ("En", "colour")], ("eN", "DE"), ("colour", "x")),
        ([("en-US", "color"), ("en-GB", "colour"), ("de", "x")], ("en", "de"), ("color", "x")),
        ([("en-GB-oed", "a"), ("en-GB", "b"), ("de", "x")], ("en-gb", "de"), ("b", "x")),
        ([("de-AT", "a"), ("de-DE", "b"), ("en", "x")], ("en", "de-de"), ("x", "b")),
        # A side never gets the variant that is exactly that of the other side.
        ([("en-GB", "colour"), ("en-US", "color")], ("en", "en-GB"), ("color", "colour")),
        ([("pt", "a"), ("pt-BR", "b")], ("pt-br", "pt"), ("b", "a")),
        # Nor one in a region of the other side, if that is a part of the language.
        ([("zh-Hant-TW", "b"), ("zh-Hans-CN", "a")], ("zh", "zh-Hant"), ("a", "b")),
        ([("zh-Hant-TW", "b"), ("zh-Hantx", "a")], ("zh-Hant", "zh"), ("b", "a")),
        ([("pt-BR", "b"), ("eng", "c")], ("pt-br", "en"), ("b", None)),
    ],
)
def test_exact_language_of_a_translation_memory_counts_before_a_region(variants, languages, pair):
    file = io.BytesIO(tmx(unit(*variants)).encode())
    [(_, source, target, _)] = iterate_units(file, "a.tmx", *languages)
    assert (source, target) == pair


def test_elements_outside_of_a_unit_have_no_text():
    nested = '<tuv xml:lang="en"><seg>no</seg></tuv>'
    outer = f"<tu>{nested}{unit(('en', 'a'), ('de', 'b'))}{nested}</tu>"
    file = io.BytesIO(tmx(nested, outer, nested).encode())
    assert [unit[1:3] for unit in iterate_units(file, "a.tmx", "en", "de")] == [("a", "b")]


def test_messages_about_large_data_are_short(tmp_path):
    long, names = "x" * 100_000, [f"x{i}" for i in range(10_000)]
    nested = "[" * 500 + "]" * 500
    for file, text, columns in (
        ("a.csv", ",".join(names) + "\n", ()),
        ("a.jsonl", json.dumps(dict.fromkeys(names)), ()),
        ("a.jsonl", json.dumps({"source": names}), ()),
        ("a.jsonl", json.dumps({"source": dict.fromkeys(names)}), ()),
        ("a.jsonl", f'{{"source": {nested}}}', ()),
        ("a.jsonl", f'{{"source": 1{"0" * 4000}}}', ()),
        ("a.jsonl", f'{{"source": 1{"0" * 5000}}}', ()),
        ("a.jsonl", "[" * 100_000, ()),
        ("a.jsonl", f'{{"{long}": 1, "{long}": 2}}', ()),
        ("a.tmx", tmx(unit(*((code, "a") for code in names))), ("en", "de")),
        ("a.tmx", tmx(unit((long, "a"))), ("en", "de")),
        ("a.tmx", f"<{long}>", ("en", "de")),
        ("a.tsv", "x\t" * 100_000, ()),
    ):
        path = write(tmp_path / file, text)
        with pytest.raises(ValueError, match="Received: ") as error:
            list(iterate_pairs(path, None, columns_format(*columns)))
        message = str(error.value).replace(str(tmp_path), "")
        assert len(message) < 600, message
        assert "\n" not in message


@pytest.mark.parametrize("inside", [False, True])
def test_repeated_keys_of_an_object_are_a_bad_line(tmp_path, inside):
    record = '{"source": "a", "target": "b", "target": "c"}'
    if inside:
        record = f'{{"source": "a", "target": "b", "x": [{record}]}}'
    path = write(tmp_path / "a.jsonl", f"{record}\n")
    with pytest.raises(ValueError, match=r"line 1: expected a JSON object.*'target' occurs 2"):
        list(iterate_pairs(path))
    assert list(iterate_pairs(path, None, TextFormat(**SKIP))) == [(1, None, None)]


# Parquet, where pyarrow is installed


def test_missing_pyarrow_is_reported(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"keras-bahdanau\[parquet\]"):
        list(iterate_pairs(tmp_path / "a.parquet"))


def test_columns_of_parquet_are_read(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed.")
    import pyarrow

    nested = [{"en": source, "de": target} for source, target in PAIRS]
    table = pyarrow.table(
        {
            "id": [1, 2, 3],
            "translation": [*nested, {"en": "x", "de": None}],
            "source": ["a\nb", "c", None],
            "target": ["d", "e", "f"],
        }
    )
    path = tmp_path / "a.parquet"
    parquet.write_table(table, path, row_group_size=2)
    columns = "translation.en", "translation.de"
    assert list(iterate_pairs(path, None, columns_format(*columns, **SKIP))) == [
        *NUMBERED,
        (3, None, None),
    ]
    with pytest.raises(ValueError, match=r"a.parquet, row 3: expected a text as 'source'.*None"):
        list(iterate_pairs(path))
    assert next(iter(iterate_pairs(path))) == (1, "a b", "d")
    with pytest.raises(ValueError, match=r"one of \['id', 'translation.en', .*'none'"):
        list(iterate_pairs(path, None, columns_format("none")))
    raw = pyarrow.array([b"ok", b"\xff"], pyarrow.binary()).cast(pyarrow.string(), safe=False)
    parquet.write_table(pyarrow.table({"source": raw, "target": raw}), path)
    with pytest.raises(ValueError, match=r"a.parquet, row 2: not UTF-8"):
        list(iterate_pairs(path))
    assert list(iterate_pairs(path, None, TextFormat(**SKIP))) == [(1, "ok", "ok"), (2, None, None)]
    path.write_bytes(b"text")
    with pytest.raises(ValueError, match=r"a.parquet: expected Parquet"):
        list(iterate_pairs(path))


def test_repeated_columns_of_parquet_are_refused(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed.")
    import pyarrow

    texts, path = pyarrow.array(["a"]), tmp_path / "a.parquet"
    for names, columns in (
        (["source", "target", "source"], ()),
        (["source", "target", "target"], ()),
    ):
        parquet.write_table(pyarrow.Table.from_arrays([texts] * 3, names), path)
        with pytest.raises(ValueError, match=r"a\.parquet, one of \['source', 'target', .*\]"):
            list(iterate_pairs(path, None, columns_format(*columns)))
    structs = [pyarrow.array([{language: "a"}]) for language in ("en", "de")]
    parquet.write_table(pyarrow.Table.from_arrays(structs, ["t", "t"]), path)
    with pytest.raises(ValueError, match=r"one of \['t\.en', 't\.de'\]. Received: 't\.en'"):
        list(iterate_pairs(path, None, columns_format("t.en", "t.de")))


@pytest.mark.parametrize("encoding", ["dictionary", "DELTA_BYTE_ARRAY", "PLAIN"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_rows_of_parquet_that_are_read_at_once_fit_into_memory(tmp_path, encoding, version):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed.")
    import pyarrow

    text, path = "x" * 2**20, tmp_path / "a.parquet"
    table = pyarrow.table({"source": [text] * 20, "target": ["b"] * 20})
    own = {"use_dictionary": False, "column_encoding": {"source": encoding, "target": "PLAIN"}}
    own = {} if encoding == "dictionary" else own
    parquet.write_table(table, path, data_page_version=version, compression="zstd", **own)
    assert path.stat().st_size < 100_000
    with open_parquet(path) as file:
        # 2^27 bytes hold 127 texts of 2^20 bytes and their lengths.
        assert 126 <= batch_rows(path, file, ["source"], 8192) <= 128
        assert batch_rows(path, file, ["target"], 8192) == 8192
    assert list(iterate_pairs(path)) == [(row, text, "b") for row in range(1, 21)]


def test_large_pages_and_texts_of_parquet_are_refused(tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed.")
    import pyarrow

    path = tmp_path / "a.parquet"
    texts = ["a", "x" * (LIMIT + 1)]
    parquet.write_table(pyarrow.table({"source": texts, "target": ["b"] * 2}), path)
    with pytest.raises(ValueError, match="row 2: expected at most 16 MB of text as 'source'"):
        list(iterate_pairs(path))
    monkeypatch.setattr("keras_bahdanau_runtime.text.parquet_file._MAX_PAGE", LIMIT)
    with pytest.raises(ValueError, match=r"a page of 167772\d\d bytes"):
        list(iterate_pairs(path))


def test_damaged_parquet_is_refused(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed.")
    import pyarrow

    path = tmp_path / "a.parquet"
    table = pyarrow.table({"source": ["a", "b"] * 50, "target": ["c", "d"] * 50})
    parquet.write_table(table, path)
    data = path.read_bytes()
    for begin in range(4, 200, 7):
        path.write_bytes(data[:begin] + b"\xff" * 20 + data[begin + 20 :])
        try:
            assert len(list(iterate_pairs(path))) == 100
        except ValueError as error:
            assert str(error).startswith(str(path)), error
