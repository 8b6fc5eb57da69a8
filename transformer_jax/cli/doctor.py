"""``transformer-jax doctor``: the laws on a trained model, on the devices at hand."""

import dataclasses
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from transformer_jax.cli.output import check_file, write_json, wrote
from transformer_jax.cli.support.run_command import PredictionCommand
from transformer_jax.core.config_fields import OutputPath
from transformer_jax.core.errors import NumericsError, plural
from transformer_jax.core.storage.urls import with_urls
from transformer_jax.core.task_progress import show_progress

if TYPE_CHECKING:
    from transformer_jax.doctor import Examination, Result

__all__ = ["Doctor"]

_ROW = "{:<20}  {:<5}  {:>9}  {:>9}  {}"


@dataclasses.dataclass(frozen=True)
class Doctor(PredictionCommand):
    """Check the laws of a model on this machine; exit code 5 if one does not hold.

    Checks causality, padding, batches, caches, attention kernels and losses on small random inputs,
    with the model's own parameters.
    """

    run: tyro.conf.Positional[Path]
    """Run directory or Hugging Face folder."""
    output: OutputPath | None = None
    """Output file of all figures, with versions, device and checksum of the parameters (JSON)."""

    def __call__(self) -> int:
        """Prints a line per law.

        Raises:
            NumericsError: A law does not hold.
        """
        check_file("--output", self.output, (".json",))
        began = time.monotonic()
        with show_progress(f"loading {self.run}"):
            from transformer_jax.doctor import examine
            from transformer_jax.inference.facts import FAMILY_NAMES
            from transformer_jax.inference.pretrained import (
                Pretrained,
                chosen_checkpoint,
                read_facts,
            )

            chosen_checkpoint(self.checkpoint)  # refuses an invalid name
            facts = read_facts(self.run, self.checkpoint, self.opening())
            title, model = facts.title, Pretrained.load(facts, *FAMILY_NAMES).module
        print(_ROW.format("law", "holds", "error", "tolerance", "worst place").rstrip())
        found = examine(model, on_result=_print)
        seconds = time.monotonic() - began
        print("\n".join(_summary(found, f"{with_urls(str(self.run))}: {title}", seconds)))
        sys.stdout.flush()
        if self.output is not None:
            source = {"run": str(self.run), "checkpoint": self.checkpoint, "title": title}
            content = source | found.certificate() | {"seconds": round(seconds, 1)}
            write_json("--output", self.output, content)
            wrote(self.output)
        if found.broken:
            raise NumericsError(f"{self.run}: {_complaint(found)}")
        return 0


def _print(result: "Result") -> None:
    """Prints the line of a law as soon as it is checked."""
    found = result.finding
    holds, limit = "yes" if found.holds else "no", f"{found.tolerance:g}"
    print(_ROW.format(found.law, holds, f"{found.error:.2g}", limit, found.where).rstrip())
    sys.stdout.flush()


def _summary(found: "Examination", title: str, seconds: float) -> list[str]:
    """Returns lines about the model, and why other laws were not checked."""
    import jax

    reasons: dict[str, list[str]] = {}
    for name, reason in found.not_checked.items():
        reasons.setdefault(reason, []).append(name)
    device, about = jax.devices()[0], found.model
    size = f"{plural(about['parameters'], 'parameter')}, " if "parameters" in about else ""
    kernels = ", ".join(about.get("attention_kernels", ())) or "none"
    return [
        "",
        *(f"not checked: {', '.join(names)}: {reason}" for reason, names in reasons.items()),
        f"{title}, {size}{about['dtype']} on {device.device_kind}, attention kernels: {kernels}",
        f"{plural(len(found.results), 'law')} in {seconds:.0f} s, {len(found.broken)} broken",
    ]


def _complaint(found: "Examination") -> str:
    """Returns the broken laws in one line."""
    each = "; ".join(f"{one.law}: {one.sentence.rstrip('.')} ({one.where})" for one in found.broken)
    return f"{plural(len(found.broken), 'law')} broken: {each}"
