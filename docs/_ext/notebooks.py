"""Pages with code cells can be downloaded as executed notebooks."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def _executed(app: "Sphinx") -> Path:
    return Path(app.outdir).parent / "jupyter_execute"


def _offer(app: "Sphinx", page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    if (_executed(app) / f"{page}.ipynb").exists():
        context["ipynb_source"] = f"{page}.ipynb"  # of which the theme makes a button


def _copy(app: "Sphinx", error: Exception | None) -> None:
    for notebook in sorted(_executed(app).rglob("*.ipynb")) if error is None else ():
        target = Path(app.outdir) / "_sources" / notebook.relative_to(_executed(app))
        if target.with_suffix(".md").exists():  # else the page is gone
            shutil.copyfile(notebook, target)


def setup(app: "Sphinx") -> dict[str, bool]:
    """Registers the notebooks."""
    app.connect("html-page-context", _offer, priority=400)
    app.connect("build-finished", _copy)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
