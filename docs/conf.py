"""Settings of the documentation site; `make docs` builds it into `docs/_build/html`."""

import os
import sys
import tomllib
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS / "_extensions"), str(ROOT), str(ROOT / "export")]
# Autodoc imports the packages, and Keras imports its backend.
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from keras_bahdanau_runtime.version import __version__  # noqa: E402 - from the paths above

project = "keras_bahdanau"
author = "the keras_bahdanau authors"
release = version = __version__
# Links to files outside of docs/ lead here, as those of the README on PyPI do.
_HATCH = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]
_README = _HATCH["metadata"]["hooks"]["fancy-pypi-readme"]
repository_url = _README["substitutions"][-1]["replacement"]

extensions = [
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "docstrings",
    "generated_text",
    "mathml",
    "notebook_scripts",
    "repository_links",
]
exclude_patterns = [
    "_build",
    "_extensions",
    "*.py",
    "concepts/*.py",
    "pictures/*.py",
    "**/README.md",
]
nitpicky = True
# Annotations name types of other packages, whose pages are not part of this site, and classes
# that are not public. Any other name without an entry fails the build.
nitpick_ignore_regex = [("py:class", r"(collections|keras|numpy|os|pathlib)\..+")]
nitpick_ignore = [
    ("py:class", "keras_bahdanau_runtime.calibration.LogisticModel"),
    ("py:class", "keras_bahdanau_runtime.manifest.Manifest"),
    ("py:class", "keras_bahdanau_runtime.search_settings.ManifestSearch"),
    ("py:class", "keras_bahdanau.data.choices.Choice"),
    ("py:class", "keras_bahdanau.data.corpus.Shard"),
    ("py:class", "keras_bahdanau_runtime.text.tokenizer.TextDecoder"),
]

# Markdown
myst_enable_extensions = ["attrs_block", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
# Notebooks are scripts with "# %%" cells. `make notebooks` runs them.
nb_custom_formats = {".py": "notebook_scripts.read"}
nb_execution_mode = "off"

# Copy buttons: of a session, the lines with a prompt, without it.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_copy_empty_lines = False

# Docstrings
autodoc_inherit_docstrings = False  # do not repeat what Keras documents
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
napoleon_custom_sections = [("Call arguments", "params_style"), "Output shape"]
napoleon_use_ivar = True
python_maximum_signature_line_length = 56
toc_object_entries_show_parents = "hide"

# Pages: no file of another host is loaded.
html_theme = "furo"
html_title = f"{project} {release}"
html_static_path = ["_static"]
# The demo of the start page, which `make docs` writes.
html_extra_path = [path for path in ["_build/extra"] if (DOCS / path).is_dir()]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_favicon = "_static/icon.svg"
html_math_renderer = "mathml"
html_show_sourcelink = html_copy_source = False
html_show_copyright = html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"
