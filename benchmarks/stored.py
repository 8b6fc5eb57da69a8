"""Results of the suite as files."""

import json
from pathlib import Path
from typing import Any

from benchmarks import suite_gpu
from benchmarks.harness import environment
from benchmarks.settings import Settings

__all__ = ["keep"]


def keep(settings: Settings, found: dict[str, Any]) -> Path:
    """Writes the results with their environment; returns the file."""
    facts = environment()
    device: str = settings.device
    if device == "gpu":
        facts |= suite_gpu.facts()
        device = suite_gpu.short_name(facts["gpu"])
    python = ".".join(facts["python"].split(".")[:2])
    settings.output.mkdir(parents=True, exist_ok=True)
    name = settings.what.replace("-", "_") + ("_tiny" if settings.tiny else "")
    where = settings.output / f"{name}_{device}_py{python}.json"
    report = {
        "command": f"python -m benchmarks {settings.what}"
        + " --device gpu" * (settings.device == "gpu")
        + " --tiny" * settings.tiny,
        "environment": facts,
        "rounds": settings.turns,
        **found,
    }
    where.write_text(json.dumps(report, indent=1) + "\n")
    return where
