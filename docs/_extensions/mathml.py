"""Equations as MathML, which browsers display without a script or a font of another host."""

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

# Markup that latex2mathml does not convert, and markup with the same result that it converts.
_REPLACEMENTS = {"{aligned}": "{align*}", r"\arg\max": r"\operatorname{arg\,max}"}


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer "mathml" for `html_math_renderer`."""
    app.add_html_math_renderer("mathml", (_visit_inline, None), (_visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _visit_inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(_mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def _visit_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(translator.starttag(node, "div", CLASS="math"))
    translator.body.append(_mathml(node.astext(), "block"))
    if node["number"]:
        number = get_node_equation_number(translator, node)
        translator.body.append(f'<span class="eqno">({number})')
        translator.add_permalink_ref(node, "Link to this equation")
        translator.body.append("</span>")
    translator.body.append("</div>\n")
    raise nodes.SkipNode


def _mathml(latex: str, display: str) -> str:
    """Return an equation as MathML.

    Raises:
        ValueError: A command or an environment was not converted.
    """
    latex = latex.strip()
    if r"\\" in latex and r"\begin" not in latex:
        latex = rf"\begin{{aligned}}{latex}\end{{aligned}}"
    for name, markup in _REPLACEMENTS.items():
        latex = latex.replace(name, markup)
    mathml = convert(latex, display=display)
    if "<mi>&</mi>" in mathml or "\\" in mathml or "linebreak" in mathml:
        raise ValueError(
            f"The equation must have only commands that latex2mathml converts. Received: {latex}"
        )
    return mathml
