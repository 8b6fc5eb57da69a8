"""Pages with code cells can be downloaded as executed notebooks, whose numbers hold."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sphinx.errors import ExtensionError

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def _executed(app: "Sphinx") -> Path:
    return Path(app.outdir).parent / "jupyter_execute"


def _offer(app: "Sphinx", page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    if (_executed(app) / f"{page}.ipynb").exists():
        context["ipynb_source"] = f"{page}.ipynb"  # of which the theme makes a button


def _changed(notebook: Path) -> list[str]:
    """Returns what hidden cells printed: they compare numbers, and print those that differ."""
    cells = json.loads(notebook.read_text())["cells"]
    hidden = [cell for cell in cells if "remove-cell" in cell["metadata"].get("tags", [])]
    return [f"{notebook.stem}: {output}" for cell in hidden for output in cell.get("outputs", [])]


def _copy(app: "Sphinx", error: Exception | None) -> None:
    for notebook in sorted(_executed(app).rglob("*.ipynb")) if error is None else ():
        target = Path(app.outdir) / "_sources" / notebook.relative_to(_executed(app))
        if target.with_suffix(".md").exists():  # else the page is gone
            shutil.copyfile(notebook, target)
            if changed := _changed(notebook):
                raise ExtensionError("\n".join(changed))


def setup(app: "Sphinx") -> dict[str, bool]:
    """Registers the notebooks."""
    app.connect("html-page-context", _offer, priority=400)
    app.connect("build-finished", _copy)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
