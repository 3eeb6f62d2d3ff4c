"""The files of Multi30k: where they are, whether they are right, and how to get them.

Elliott et al. 2016, "Multi30K: Multilingual English-German Image Descriptions". The files are those
of the authors' repository, https://github.com/multi30k/dataset, folder data/task1; here they are
plain or .gz, in one folder, those that are lower-cased and tokenised in its subfolder tok.
"""

import gzip
import hashlib
import urllib.request
import zlib
from http.client import HTTPException
from pathlib import Path

from keras_bahdanau_runtime.files import atomic_write

SOURCE = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1"
TRAINING, VALIDATION = "train", "val"
TESTS = ("test_2016_flickr", "test_2017_flickr")
# SHA-256 of the text, unpacked; for each part those of en, de and fr, first raw and then tokenised.
_HASHES = {
    "train": (
        "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
        "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
        "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
        "08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119",
        "cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505",
        "8fa41bb718412bcb7c5dfa58603842810a01543eae86a51279f9886b901266e1",
    ),
    "val": (
        "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
        "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
        "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
        "46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec",
        "97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00",
        "b303e301aa21fe7822a846b2b3fb2d5a1121ec807cd5b1d006fb7b2b5507168a",
    ),
    "test_2016_flickr": (
        "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
        "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
        "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
        "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2",
        "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4",
        "1463bd5960f9bfe098ec3cd752d3df0c49c84dc646fb518964a29232658cd836",
    ),
    "test_2017_flickr": (
        "ce1450ddc5ab0834502579d77a170849952e15a2938b34cc503bdc25ebb4fb98",
        "c3078bc3b36808bf9d20eb2347ed6137016179ef59ec0d2b9b8ecc3fb2880081",
        "6f3764e31dac41e9455e612958bcfd4e877c5e15cd66df2c2b2be6d9bd83e5b6",
        "c9d1dfd7a26add989382e534af235af9f0f658b2a30e7eb0efdaf142496ee54f",
        "02067e4a9402786a4fcb8c1b6f4307e4a5073ced64800abead5273b54f5f31f6",
        "c0583117a47b31e8a6c6a97cfe8de153e462074668f4e994764fcc80b21d33b4",
    ),
}
_LANGUAGES = ("en", "de", "fr")


def find(folder, part, language, tokenized=False):
    """The path of one file, plain or .gz, after a look at its contents.

    Args:
        folder: `Path` of the data.
        part: "train", "val", "test_2016_flickr" or "test_2017_flickr".
        language: "en", "de" or "fr".
        tokenized: Whether it is the lower-cased, tokenised one.

    Raises:
        ValueError: It is not there, or is another version.
    """
    name, paths = _paths(folder, part, language, tokenized)
    if not paths:
        raise ValueError(
            f"Argument `data` must be a folder with {name} or {name}.gz in it. "
            f"Received: {str(folder)!r}, which has neither"
        )
    _check(_read(paths[0]), paths[0], part, language, tokenized)
    return paths[0]


def _check(text, place, part, language, tokenized):
    """Raises a `ValueError` for a text that is not the one expected; `place` is where it is."""
    expected = _HASHES[part][_LANGUAGES.index(language) + 3 * tokenized]
    found = hashlib.sha256(text).hexdigest()
    if found != expected:
        raise ValueError(
            f"Argument `data` must hold the files of {SOURCE}. Received: {place}, whose text "
            f"has the SHA-256 {found}, not {expected}"
        )


def _paths(folder, part, language, tokenized):
    """The name of a file, and the paths under which it is there."""
    name = f"tok/{part}.lc.norm.tok.{language}" if tokenized else f"{part}.{language}"
    return name, [path for path in (folder / name, folder / f"{name}.gz") if path.exists()]


def _read(path):
    return _unpacked(path.read_bytes(), path)


def _unpacked(contents, place):
    """The text of a file, which is packed if the name of its place, a path or an address, is."""
    if not str(place).endswith(".gz"):
        return contents
    try:
        return gzip.decompress(contents)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(
            f"Argument `data` must hold whole files of gzip. Received: {place}: {error}"
        ) from error


def download(folder, language, tokenized=False):
    """Gets what is missing of English and another language, and looks at all of it.

    A file that is there is never replaced, and one that is not the expected is not kept.

    Raises:
        ValueError: As `find`; or there is no way to the network.
    """
    wanted = [(part, each, tokenized) for part in _HASHES for each in ("en", language)]
    missing = [one for one in wanted if not _paths(folder, *one)[1]]
    for place, one in enumerate(missing):
        try:
            _get(folder, *one)
        except (OSError, HTTPException) as error:
            names = ", ".join(_paths(folder, *other)[0] for other in missing[place:])
            raise ValueError(
                f"Argument `data` must name a folder that has the files where {SOURCE} cannot be "
                f"reached: --data DIR. Received: {str(folder)!r}, without {names}, and "
                f"{type(error).__name__}: {error}"
            ) from error
    for one in wanted:
        find(folder, *one)


def _get(folder, part, language, tokenized):
    name = f"tok/{part}.lc.norm.tok.{language}" if tokenized else f"raw/{part}.{language}.gz"
    address, path = f"{SOURCE}/{name}", folder / name.removeprefix("raw/")
    with urllib.request.urlopen(address, timeout=60) as answer:
        contents = answer.read()
    _check(_unpacked(contents, address), address, part, language, tokenized)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write_bytes(contents)


def texts(folder, part, language, tokenized=False):
    """The sentences of a file, one a line."""
    return _read(find(Path(folder), part, language, tokenized)).decode("utf-8").splitlines()
