"""The files of Multi30k: find, check and download them.

Elliott et al. 2016, "Multi30K: Multilingual English-German Image Descriptions". The files are those
of https://github.com/multi30k/dataset, folder data/task1. Here they are in one folder, plain or
.gz, with the lower-cased and tokenized ones in its subfolder tok.
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
# SHA-256 of the decompressed text. Per part: en, de and fr raw, then en, de and fr tokenized.
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


def find_file(folder, part, language, tokenized=False):
    """Return the path of one file, plain or .gz, after checking its contents.

    Args:
        folder: `Path` of the data folder.
        part: "train", "val", "test_2016_flickr" or "test_2017_flickr".
        language: "en", "de" or "fr".
        tokenized: Whether to use the lower-cased, tokenized file.

    Raises:
        ValueError: If the file is missing or is another version.
    """
    name, paths = _paths(folder, part, language, tokenized)
    if not paths:
        raise ValueError(
            f"Argument `data` must be a folder with {name} or {name}.gz. "
            f"Received: {str(folder)!r}, which has neither"
        )
    _check_hash(_read(paths[0]), paths[0], part, language, tokenized)
    return paths[0]


def _check_hash(text, location, part, language, tokenized):
    """Raise a `ValueError` unless a text has the expected hash; `location` is its path or URL."""
    expected = _HASHES[part][_LANGUAGES.index(language) + 3 * tokenized]
    actual = hashlib.sha256(text).hexdigest()
    if actual != expected:
        raise ValueError(
            f"Argument `data` must contain the files of {SOURCE}. Received: {location}, whose text "
            f"has the SHA-256 {actual}, not {expected}"
        )


def _paths(folder, part, language, tokenized):
    """Return the name of a file and its existing paths."""
    name = f"tok/{part}.lc.norm.tok.{language}" if tokenized else f"{part}.{language}"
    return name, [path for path in (folder / name, folder / f"{name}.gz") if path.exists()]


def _read(path):
    return _decompress(path.read_bytes(), path)


def _decompress(contents, location):
    """Decompress a file if its path or URL ends with .gz."""
    if not str(location).endswith(".gz"):
        return contents
    try:
        return gzip.decompress(contents)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(
            f"Argument `data` must contain complete gzip files. Received: {location}: {error}"
        ) from error


def download(folder, language, tokenized=False):
    """Download the missing files of English and another language, and check all of them.

    Existing files are never replaced. A download with a wrong hash is not saved.

    Raises:
        ValueError: As `find_file`, or if the network is not available.
    """
    required = [(part, side, tokenized) for part in _HASHES for side in ("en", language)]
    missing = [file for file in required if not _paths(folder, *file)[1]]
    for index, file in enumerate(missing):
        try:
            _download_file(folder, *file)
        except (OSError, HTTPException) as error:
            names = ", ".join(_paths(folder, *other)[0] for other in missing[index:])
            raise ValueError(
                f"Argument `data` must be a folder with the files (--data DIR), because {SOURCE} "
                f"cannot be reached. Received: {str(folder)!r}, without {names}, and "
                f"{type(error).__name__}: {error}"
            ) from error
    for file in required:
        find_file(folder, *file)


def _download_file(folder, part, language, tokenized):
    name = f"tok/{part}.lc.norm.tok.{language}" if tokenized else f"raw/{part}.{language}.gz"
    url, path = f"{SOURCE}/{name}", folder / name.removeprefix("raw/")
    with urllib.request.urlopen(url, timeout=60) as response:
        contents = response.read()
    _check_hash(_decompress(contents, url), url, part, language, tokenized)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write_bytes(contents)


def read_lines(folder, part, language, tokenized=False):
    """Return the sentences of a file, one per line."""
    return _read(find_file(Path(folder), part, language, tokenized)).decode("utf-8").splitlines()
