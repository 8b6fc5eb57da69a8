"""Limits of what one must read to follow the package; ``tests/house.py`` has the counts."""

import pytest

from tests import house

SMALL = {
    "transformer_jax/core/config_fields.py": "class Configuration:\n    pass\n",
    "transformer_jax/a.py": (
        "from typing import TYPE_CHECKING, Any\n\n"
        "from transformer_jax.core.config_fields import (\n    Configuration,\n)\n\n"
        "if TYPE_CHECKING:\n    from transformer_jax.c import Other\n\n"
        '__all__ = ["Run"]  # Any\n\n\n'
        'class Run(Configuration, group="run"):\n    """Any run: Any."""\n\n'
        "    steps: int\n    kind: ClassVar[str]\n\n\n"
        "class Longer(Base[Run]):\n    more: int\n\n\n"
        "def f(run: Any) -> None:\n    from transformer_jax.b.x import y as z\n"
    ),
    "transformer_jax/b/x.py": (
        "import contextvars\n\nfrom transformer_jax.a import Run\n\n\n"
        "class Run(Run):\n    rest: dict[str, Any]\n\n\n"
        "_hidden: contextvars.ContextVar[bool] = contextvars.ContextVar(\n    'hidden'\n)\n"
    ),
    "transformer_jax/b/a.py": (
        "@computed_by(kernel)\ndef f(x: Callable[..., PyTree]):\n    open_directory(x)\n"
    ),
    "transformer_jax/training/state.py": "State = PyTree\n",
}


def test_no_count_of_the_source_text_exceeds_its_limit():
    exceeded = house.exceeded(house.count_text(house.sources()), house.TEXT)
    assert not exceeded, "\n".join(exceeded)


@pytest.mark.slow
def test_no_count_of_what_runs_exceeds_its_limit(tmp_path):
    exceeded = house.exceeded(house.count_paths(tmp_path), house.PATHS)
    assert not exceeded, "\n".join(exceeded)


def test_what_is_counted():
    assert house.count_text(SMALL) == {
        "lines of the package, in thousands": 1,
        "files with one importer": 3,
        "lines of imports, per thousand": 186,
        "mentions of Any": 2,
        "parameters run: Any": 1,
        "Callable of any arguments": 1,
        "mentions of PyTree outside training": 1,
        "context variables": 1,
        "Configuration classes": 2,
        "their own fields": 2,
        "names of several files": 1,
        "names of several classes": 1,
        "formulas computed elsewhere": 1,
        "files that open directories": 1,
        "methods and attributes of Recipe": 0,
    }


def test_a_count_above_its_limit_is_told():
    rows = {"files": house.Count(5, 3), "classes": house.Count(5, 3)}
    [line] = house.exceeded({"files": 4, "classes": 3}, rows)
    assert line.startswith("files grew from 3 to 4: ")
    assert "lower than its limit" in house.table({"mentions of Any": 1})
