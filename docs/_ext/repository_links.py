"""Links of Markdown that leave `docs/` lead to the pages of the site that have the same text."""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

PAGES = {"../README.md": "index.md", "../CONTRIBUTING.md": "contributing.md"}


def on_site(text: str, folder: str = "") -> str:
    """Returns the text of a page with its links to README and CONTRIBUTING changed.

    Args:
        text: Markdown.
        folder: The way from the page's folder to `docs/`, as ``"../"``.

    Example:
        >>> on_site("[how](../CONTRIBUTING.md#changes)")
        '[how](contributing.md#changes)'
        >>> on_site("[speed](../benchmarks/results/train_cpu_py3.11.json)")
        '[speed](measured/train_cpu_py3.11.md)'
    """
    results = rf"\]\({re.escape(folder)}\.\./benchmarks/results/([\w.]+)\.json\)"
    text = re.sub(results, rf"]({folder}measured/\1.md)", text)
    for path, page in PAGES.items():
        text = text.replace(f"]({folder}{path}", f"]({folder}{page}")
    return text


def _rewrite(app: "Sphinx", name: str, content: list[str]) -> None:
    if not name.startswith("measured/"):  # whose links are to the files
        content[0] = on_site(content[0], "../" * name.count("/"))


def setup(app: "Sphinx") -> dict[str, bool]:
    """Registers the change of links."""
    app.connect("source-read", _rewrite)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
