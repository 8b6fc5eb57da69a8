"""Results of the suite as files."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import environment

if TYPE_CHECKING:
    from benchmarks.settings import Settings

__all__ = ["keep", "named"]


def named(what: str, device: str, facts: dict[str, Any], tiny: bool) -> str:
    """Returns the name of a file of results, without its suffix.

    Example:
        >>> named("language-train", "cpu", {"python": "3.12.3"}, False)
        'language_train_cpu_py3.12'
    """
    python = ".".join(facts["python"].split(".")[:2])
    return f"{what.replace('-', '_')}{'_tiny' if tiny else ''}_{device}_py{python}"


def keep(settings: "Settings", found: dict[str, Any]) -> Path:
    """Writes the results with their environment; returns the file."""
    facts = environment()
    settings.output.mkdir(parents=True, exist_ok=True)
    where = settings.output / f"{named(settings.what, 'cpu', facts, settings.tiny)}.json"
    report = {
        "command": f"python -m benchmarks {settings.what}" + " --tiny" * settings.tiny,
        "environment": facts,
        "rounds": settings.turns,
        **found,
    }
    where.write_text(json.dumps(report, indent=1) + "\n")
    return where
