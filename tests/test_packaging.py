"""Files of the distribution: the README on PyPI, the citation, the workflows and the image."""

import re
import tomllib
from pathlib import Path

import yaml

from keras_bahdanau_runtime import __version__

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
README = (ROOT / "README.md").read_text("utf-8")


def pypi_readme(text):
    """README.md as hatch-fancy-pypi-readme writes it."""
    hook = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    for substitution in hook["substitutions"]:
        text = re.sub(substitution["pattern"], substitution["replacement"], text)
    return text.replace("$HFPR_VERSION", __version__)


def test_readme_on_pypi_has_absolute_links_to_files_of_the_tag():
    text = pypi_readme(README)
    targets = re.findall(r'\]\(([^)\s]+)|\bsrc(?:set)?="([^"]+)"', text)
    targets = [link or source for link, source in targets]
    assert [target for target in targets if not re.match("https://|#", target)] == []
    own = [re.fullmatch(r"(https://.+?)/(raw|blob)/(.+?)/([^#]+)(#.+)?", t) for t in targets]
    own = [match.groups() for match in own if match]
    assert {(tag, base) for base, _, tag, _, _ in own} == {(f"v{__version__}", own[0][0])}
    for _, kind, _, path, _ in own:
        assert (ROOT / path).exists(), path
        assert (kind == "raw") == path.endswith((".png", ".svg")), path
    assert [kind for _, kind, _, _, _ in own].count("raw") > 0


def test_readme_on_pypi_differs_in_links_and_pictures_only():
    for line, changed in zip(README.splitlines(), pypi_readme(README).splitlines(), strict=True):
        assert line == changed or re.search(r"\]\(|\bsrc(set)?=", line)


def test_address_of_the_repository_is_in_one_place():
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    assert len(re.findall("https://github.com/", text)) == 1


def test_version_is_in_one_place():
    assert "version" in PROJECT["project"]["dynamic"]
    path = ROOT / PROJECT["tool"]["hatch"]["version"]["path"]
    assert f'__version__ = "{__version__}"' in path.read_text("utf-8")
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["version"] == __version__


def test_included_files_of_the_sdist_exist():
    for pattern in PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]:
        assert list(ROOT.glob(pattern.removeprefix("/"))), pattern


def test_release_publishes_what_was_tested_without_a_token():
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    assert any("make dist" in step.get("run", "") for step in jobs["build"]["steps"])
    assert jobs["publish"]["needs"] == "build"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in text


def test_forms_of_issues_have_unique_fields():
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
    assert len(forms) == 2
    for form in forms:
        fields = [field["id"] for field in yaml.safe_load(form.read_text("utf-8"))["body"]]
        assert len(fields) == len(set(fields)) > 0


def test_image_installs_a_wheel_with_extras_that_exist():
    ignored = set((ROOT / ".dockerignore").read_text("utf-8").splitlines())
    text = (ROOT / "Dockerfile").read_text("utf-8")
    [sources] = re.findall(r"^COPY (.+) /wheel/$", text, re.M)
    assert sources.split() == ["dist/keras_bahdanau-*.whl", "constraints.tx[t]"]
    assert not {"dist", "constraints.txt", "artifact"} & ignored
    assert "pip wheel --no-deps --wheel-dir dist ." in text
    [extras] = re.findall(r"\.whl\)\[([\w,]+)\]", text)
    assert {*extras.split(",")} <= {*PROJECT["project"]["optional-dependencies"]}


def test_quick_tests_exist():
    text = (ROOT / "Makefile").read_text("utf-8")
    groups = re.findall(r"addprefix (\S+/)?(\S*test_),([^)]+)\)", text)
    names = [
        f"{folder}{prefix}{name}" for folder, prefix, words in groups for name in words.split()
    ]
    assert len(names) > 5
    for name in names:
        assert list(ROOT.glob(f"tests/library/{name}.py")), name
