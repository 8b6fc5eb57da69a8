"""Formulas as MathML: static, readable by screen readers, without scripts.

KaTeX translates them when the site is built, and refuses what it cannot read. The site brings a
font with the sizes of mathematical characters, which few systems have.
"""

import functools
import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import quickjs
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util import logging

ElementTree.register_namespace("", "http://www.w3.org/1998/Math/MathML")
LOGGER = logging.getLogger(__name__)
FONT = "STIXTwoMath-Regular.ttf"

# The first capital, small letter and digit of each alphabet in Unicode.
ALPHABETS = {
    "bold": (0x1D400, 0x1D41A, 0x1D7CE),
    "bold-italic": (0x1D468, 0x1D482, None),
    "script": (0x1D49C, 0x1D4B6, None),
    "fraktur": (0x1D504, 0x1D51E, None),
    "double-struck": (0x1D538, 0x1D552, 0x1D7D8),
    "sans-serif": (0x1D5A0, 0x1D5BA, 0x1D7E2),
    "monospace": (0x1D670, 0x1D68A, 0x1D7F6),
}
# Letters that Unicode had before those alphabets, which have holes there.
EARLIER = {
    "script": dict(zip("BEFHILMRego", "ℬℰℱℋℐℒℳℛℯℊℴ", strict=True)),
    "fraktur": dict(zip("CHIRZ", "ℭℌℑℜℨ", strict=True)),
    "double-struck": dict(zip("CHNPQRZ", "ℂℍℕℙℚℝℤ", strict=True)),
}


def alphabet(letter: str, variant: str) -> str:
    """Returns a letter or digit in an alphabet of Unicode, or itself where it has no such form.

    Example:
        >>> alphabet("R", "double-struck"), alphabet("L", "script"), alphabet("x", "bold")
        ('ℝ', 'ℒ', '𝐱')
    """
    if letter in EARLIER.get(variant, {}):
        return EARLIER[variant][letter]
    for first, code in zip("Aa0", ALPHABETS[variant], strict=True):
        size = 10 if first == "0" else 26
        if code is not None and 0 <= ord(letter) - ord(first) < size:
            return chr(code + ord(letter) - ord(first))
    return letter


def _for_browsers(code: str) -> str:
    """Returns MathML without the attributes that browsers ignore: alphabets and aligned columns."""
    tree = ElementTree.fromstring(code)
    for element in tree.iter():
        variant = element.get("mathvariant", "")
        if variant in ALPHABETS and element.text:
            element.text = "".join(alphabet(letter, variant) for letter in element.text)
            del element.attrib["mathvariant"]
        columns = element.get("columnalign", "").split()
        padding = "; padding: 0.3em 0" if element.get("columnspacing") == "0em" else ""
        for row in element if columns else ():
            for number, cell in enumerate(row):
                cell.set("style", f"text-align: {columns[min(number, len(columns) - 1)]}{padding}")
    return ElementTree.tostring(tree, encoding="unicode")


@functools.cache
def _package_file(package: str, name: str) -> Path:
    [file] = [one for one in importlib.metadata.files(package) or [] if one.name == name]
    return Path(str(file.locate()))


@functools.cache
def _katex() -> Callable[[str, bool], str]:
    engine = quickjs.Context()
    engine.eval(_package_file("sphinxcontrib-katex", "katex.min.js").read_text("utf-8"))
    # A long string is a tree of its parts in QuickJS, which its interface does not read: replacing
    # makes it one, without the element around the formula.
    render: Callable[[str, bool], str] = engine.eval(
        "(formula, displayMode) => katex.renderToString(formula, "
        "{displayMode, output: 'mathml', throwOnError: true, strict: 'error'})"
        r".replace(/^<span[^>]*>|<\/span>$/g, '')"
    )
    return render


def mathml(formula: str, display: bool) -> str:
    r"""Returns a formula of LaTeX as MathML.

    Raises:
        ValueError: KaTeX does not read the formula.

    Example:
        >>> code = mathml(r"\mathbb{R}", display=False)
        >>> "<mi>ℝ</mi>" in code
        True
    """
    formula = formula.strip()
    if r"\\" in formula and r"\begin" not in formula:
        formula = rf"\begin{{aligned}}{formula}\end{{aligned}}"
    try:
        code = _katex()(formula, display)
    except quickjs.JSException as error:
        raise ValueError(str(error).splitlines()[0]) from None
    return _for_browsers(code)


def _code(node: nodes.Element, display: bool) -> str:
    try:
        return mathml(node.astext(), display)
    except ValueError as error:
        LOGGER.warning("%s", error, location=node)
        return ""


def visit_inline(translator: Any, node: nodes.math) -> None:
    """Writes a formula within a line."""
    translator.body.append(_code(node, display=False))
    raise nodes.SkipNode


def visit_block(translator: Any, node: nodes.math_block) -> None:
    """Writes a displayed formula, with its anchor and number."""
    anchors = "".join(f'<span id="{name}"></span>' for name in node["ids"])
    number = f'<span class="eqno">({node["number"]})</span>' if node["number"] else ""
    code = _code(node, display=True)
    translator.body.append(f'<div class="math">{anchors}{code}{number}</div>\n')
    raise nodes.SkipNode


def _add_font(app: Sphinx, config: Config) -> None:
    config.html_static_path.append(str(_package_file("ziamath", FONT)))


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the renderer and its font."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    app.connect("config-inited", _add_font)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
