"""Compares a run's ``config.json`` with the configuration in its checkpoints' manifests.

Unlike ``config.json``, a manifest has its own checksum (``manifest.py``). A ``config.json`` that is
edited after training describes another model for the same parameters, often without any error.
"""

import dataclasses
import functools
import json
import logging
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.core.json_types import Json
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.recurrent_config import RecurrentConfig
from transformer_jax.runs import manifest

__all__ = [
    "differences",
    "holds_weights_alone",
    "latest_manifest",
    "leaves",
    "refuse_changed",
    "refuse_weights_alone",
]

log = logging.getLogger(__name__)

# Manifests of schema 1 recorded a resumed run's values of these settings, unlike config.json. They
# do not affect results.
_TOLD = ("loop", "mesh", "distributed", "output", "overwrite")
_SHOWN = 5  # differences to name in a message

_ABSENT = object()


def latest_manifest(run: Path) -> manifest.Manifest | None:
    """Returns the newest valid manifest of a run's checkpoints, or None.

    An n-gram model has a manifest next to its file instead.

    Raises:
        UnreadableError: Manifests exist, but no valid one can be read now.
    """
    folder, unreadable = run / "checkpoints", None
    steps = manifest.steps(folder)
    for path in (*(folder / manifest.checkpoint_name(step) for step in steps), run):
        try:
            if manifest.exists(path / manifest.MANIFEST):
                stat = (path / manifest.MANIFEST).stat()
                return _read(path, (stat.st_ino, stat.st_size, stat.st_mtime_ns))
        except manifest.UnreadableError as error:
            unreadable = error
        except (CheckpointError, OSError):
            continue
    if unreadable is not None:
        raise unreadable
    return None


@functools.lru_cache(maxsize=4)
def _read(path: Path, stamp: tuple[int, ...]) -> manifest.Manifest:
    """Reads a manifest, cached until its file changes, since commands read it several times."""
    return manifest.read(path)


def differences(config: Mapping[str, Json], said: manifest.Manifest) -> list[str]:
    """Returns the differences between ``config.json`` and a manifest's configuration, by field.

    A missing field of the model has its default; any other missing field is a difference.

    Args:
        config: Fields of ``config.json``.
        said: The manifest.

    Example:
        >>> differences({"model": {"depth": 8}}, {"config": {"model": {"depth": 4}}, "schema": 2})
        ['model.depth is 8 (4 in training)']
    """
    if not isinstance(said.get("config"), dict):
        return []
    ignored = _TOLD if said["schema"] == 1 else ()
    if "recipe" not in config or "recipe" not in said["config"]:
        ignored = (*ignored, "recipe")  # earlier versions stored no name
    now, then = (leaves(_whole(fields)) for fields in (config, said["config"]))
    return [
        f"{name} is {_shown(now.get(name, _ABSENT))} ({_shown(then.get(name, _ABSENT))} in "
        f"training)"
        for name in {**then, **now}
        if name.split(".")[0] not in ignored
        and not _same(now.get(name, _ABSENT), then.get(name, _ABSENT))
    ]


def refuse_changed(
    path: Path, config: Mapping[str, Json], run: Path, allowed: bool | None = None
) -> None:
    """Refuses a ``config.json`` that differs from the run's checkpoints.

    Args:
        path: The file, for the message.
        config: The fields of the file.
        run: The run directory.
        allowed: Whether to only warn, as ``--allow-changed-config`` says; None where there is no
            such flag for the message.

    Raises:
        CheckpointError: The configurations differ; the message names the fields with both values.
    """
    said = latest_manifest(run)
    found = [] if said is None else differences(config, said)
    if not found:
        return
    more = f", and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    what = f"{path}: changed after training: {', '.join(found[:_SHOWN])}{more}"
    if allowed:
        _note(what)
        return
    meant = ", or give --allow-changed-config if intended" if allowed is not None else ""
    raise CheckpointError(f"{what}: change it back{meant}")


def holds_weights_alone(run: Path) -> bool:
    """Returns whether a run has only weights, without training state, as from ``merge``.

    Raises:
        CheckpointError: The checkpoint cannot be read.
    """
    said = latest_manifest(run)
    return said is not None and "tree" in said and "data" not in said


def refuse_weights_alone(run: Path, *, published: bool = False) -> None:
    """Refuses to resume a run with only weights.

    Args:
        run: The run directory.
        published: Whether it is the folder of a published model.

    Raises:
        ConfigError: The run has weights, but no optimizer state.
    """
    if published or holds_weights_alone(run):
        raise ConfigError(
            f"{run}: has only weights, no training to resume: start a run from it with "
            f"--init-from {shlex.quote(str(run))}"
        )


@functools.lru_cache(maxsize=16)
def _note(text: str) -> None:
    # Warn once: a command reads the file several times.
    log.warning("%s", text)


def _whole(fields: Mapping[str, Json]) -> dict[str, Json]:
    """Fills in the defaults of the model in a configuration; other fields are unchanged."""
    model = fields.get("model")
    if not isinstance(model, dict) or model.get("kind") == "ngram":
        return dict(fields)
    plain = RecurrentConfig() if model.get("kind") == "recurrent" else TransformerConfig()
    return {**fields, "model": _filled(model, dataclasses.asdict(plain))}


def _filled(values: Mapping[str, Json], defaults: Mapping[str, Json]) -> dict[str, Json]:
    """Fills in missing keys of nested dictionaries from defaults."""
    both = {
        name: _filled(value, default)
        for name, value in values.items()
        if isinstance(value, dict) and isinstance(default := defaults.get(name), dict)
    }
    return {**defaults, **values, **both}


def leaves(value: Any, name: str = "") -> dict[str, Any]:
    """Returns the values of nested dictionaries by dotted path."""
    if not isinstance(value, dict) or not value:
        return {name: value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found |= leaves(inner, f"{name}.{key}" if name else str(key))
    return found


def _same(one: object, other: object) -> bool:
    """Returns whether two values of a configuration are equal: true is not 1, but 1.0 is."""
    # JSON has no tuples, and 1 and 1.0 are the same number.
    plain = lambda value: list(value) if isinstance(value, tuple) else value
    truth = isinstance(one, bool) == isinstance(other, bool)
    return bool(truth and plain(one) == plain(other))


def _shown(value: object) -> str:
    return "absent" if value is _ABSENT else json.dumps(value, ensure_ascii=False)
