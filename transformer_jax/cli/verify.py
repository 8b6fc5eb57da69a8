"""``transformer-jax verify``: checks the files of a run against their checksums."""

import dataclasses
import hashlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import tyro

from transformer_jax.core.config_fields import Configuration
from transformer_jax.core.errors import CheckpointError, plural

if TYPE_CHECKING:
    from transformer_jax.interop.hf_run_directory import HFRunDirectory
    from transformer_jax.interop.sentence_dense import DenseRecord
    from transformer_jax.runs.manifest import Manifest
    from transformer_jax.runs.run_directory import RunDirectory

__all__ = ["Verify"]


@dataclasses.dataclass(frozen=True)
class Verify(Configuration, group="--"):
    """Check every checkpoint of a run against its manifest; exit code 4 if any is damaged.

    For a Hugging Face folder, every tensor is read.
    """

    run: tyro.conf.Positional[Path]
    """Run directory or Hugging Face folder."""

    def __call__(self) -> int:
        """Prints one line per checkpoint; returns 4 if one is damaged or none exists.

        Checkpoints are sorted from the newest. An n-gram model has one file instead.
        """
        from transformer_jax.core.storage.copies import fetched
        from transformer_jax.interop.config_reader import is_hf_checkpoint
        from transformer_jax.interop.hf_run_directory import HFRunDirectory
        from transformer_jax.runs.manifest import exists
        from transformer_jax.runs.run_directory import RunDirectory

        path = fetched(self.run)  # including files that only training reads
        if is_hf_checkpoint(path):
            return _verify_folder(HFRunDirectory(path))
        # Skip the checks of `open`: files may be missing, and the task may be a user's own.
        run = RunDirectory(path)
        if not exists(run.checkpoints):
            return self._verify_ngram(RunDirectory.open(path))
        return self._verify_run(run)

    def _verify_run(self, run: "RunDirectory") -> int:
        from transformer_jax.runs.verification import verify

        findings = verify(run.path)
        for finding in findings:
            _say(finding.path.name, "ok" if finding.problem is None else finding.problem)
        strange, unread = _changed_files(run)
        strange += _strange_dense(run)
        sys.stdout.flush()
        # Leftovers of an interrupted save and checkpoints that were set aside are never loaded.
        checked = [finding for finding in findings if finding.step is not None]
        strange = [f.path.name for f in checked if f.problem and not f.unreadable] + strange
        unread = [finding.path.name for finding in checked if finding.unreadable] + unread
        problems = [
            f"{what}: {', '.join(dict.fromkeys(names))}"
            for what, names in (
                ("changed since it was written", strange),
                ("cannot be read", unread),
            )
            if names
        ]
        if problems:
            raise CheckpointError(f"{self.run}: {'; '.join(problems)}")
        if not checked:
            raise CheckpointError(f"{self.run}: there is no checkpoint")
        return 0

    def _verify_ngram(self, run: "RunDirectory") -> int:
        from transformer_jax.inference.pretrained import open_pretrained

        model = run.read_config(check=False).get("model")
        if not isinstance(model, dict) or model.get("kind") != "ngram":
            raise CheckpointError(f"{self.run}: not a run directory (it has no checkpoints/)")
        strange, unread = _changed_files(run)
        if strange or unread:
            names = ", ".join([*strange, *unread])
            raise CheckpointError(f"{self.run}: changed since it was written: {names}")
        open_pretrained(run.path)  # the file includes its own checksum
        _say("ngram.npz", "ok")
        return 0


def _say(name: str, what: str) -> None:
    print(f"{name}\t{what}")


def _verify_folder(run: "HFRunDirectory") -> int:
    """Reads every tensor of a Hugging Face folder, since the format has no checksums."""
    run.folder.load()
    _say(plural(len(run.folder.tensors.entries), "tensor"), "all of them known, all finite")
    if path := _dense(run):
        _say(path, "ok")
    return 0


def _dense(run: "RunDirectory") -> str:
    """Reads a sentence encoder's dense layer to verify it; returns its path, empty without one.

    Raises:
        CheckpointError: The layer is damaged.
    """
    from transformer_jax.interop.sentence_dense import read_dense

    try:
        fields = run.read_config(check=False)
    except CheckpointError:
        return ""  # reported with the configuration
    sentence, model = fields.get("sentence"), fields.get("model")
    dense = sentence.get("dense") if isinstance(sentence, dict) else None
    if not isinstance(dense, dict) or not isinstance(model, dict):
        return ""
    read_dense(run.path, cast("DenseRecord", dense), model.get("d_model", 0))
    return str(dense["path"])


def _strange_dense(run: "RunDirectory") -> list[str]:
    """Returns a damaged dense layer of a sentence encoder, with a line about it."""
    try:
        path = _dense(run)
    except CheckpointError as error:
        _say("linear map", str(error))
        return ["the linear map of its sentence encoder"]
    if path:
        _say(path, "ok")
    return []


def _changed_files(run: "RunDirectory") -> tuple[list[str], list[str]]:
    """Returns files that changed since the newest good checkpoint or cannot be read.

    Each has a line.
    """
    from transformer_jax.data.files import read_file
    from transformer_jax.runs.config_guard import differences, latest_manifest
    from transformer_jax.runs.manifest import UnreadableError

    strange: list[str] = []
    unread: list[str] = []
    try:
        said = latest_manifest(run.path) or {}
    except UnreadableError:  # reported with the checkpoint
        said = {}
    for path, recorded, of in (
        (run.tokenizer, said.get("tokenizer"), "the checkpoints were made with"),
        (run.template, said.get("template"), "training began with"),
    ):
        if recorded is None:
            continue
        try:
            digest = hashlib.sha256(read_file(path)).hexdigest()
        except OSError as error:
            (strange if isinstance(error, FileNotFoundError) else unread).append(path.name)
            _say(path.name, f"cannot be read: {error.strerror or error}")
            continue
        if digest != recorded:
            strange.append(path.name)
            _say(path.name, f"not the one that {of}")
    try:
        changed = differences(run.read_config(check=False), _with_recipe(said))
    except CheckpointError as error:
        (unread if os.path.isfile(run.config) else strange).append(run.config.name)
        _say(run.config.name, str(error))
        return strange, unread
    if changed:
        strange.append(run.config.name)
        _say(run.config.name, f"changed after training: {', '.join(changed)}")
    return strange, unread


def _with_recipe(said: "Manifest") -> "Manifest":
    """Adds the recipe's name to a manifest of an earlier version, inferred from the settings."""
    from transformer_jax.recipes.registry import recipe_name

    config = said.get("config")
    if not isinstance(config, dict):
        return said
    name = recipe_name(config)
    return said if name is None else {**said, "config": {**config, "recipe": name}}
