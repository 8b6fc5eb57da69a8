"""``transformer-jax verify``: checks the files of a run against their checksums."""

import dataclasses
import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from transformer_jax.errors import CheckpointError, plural

if TYPE_CHECKING:
    from transformer_jax.training.run_directory import RunDirectory

__all__ = ["Verify"]


@dataclasses.dataclass(frozen=True)
class Verify:
    """Check every checkpoint of a run against its manifest; exit code 4 if any is damaged.

    Of a Hugging Face folder, every tensor is read.
    """

    run: tyro.conf.Positional[Path]
    """Run directory or Hugging Face folder."""

    def __call__(self) -> int:
        """Prints one line per checkpoint; returns 4 if one is damaged or none exists.

        Checkpoints are in order from the newest. An n-gram model has one file instead of them.
        """
        from transformer_jax.interop.hf_run_directory import HFRunDirectory
        from transformer_jax.predictors.runs import load_language, open_directory
        from transformer_jax.storage.copies import fetched
        from transformer_jax.training.verification import verify

        run = open_directory(fetched(self.run))  # all of it, also what only training reads
        if isinstance(run, HFRunDirectory):
            # Names, shapes and finite values only: the format has no checksum.
            run.folder.load()
            said = plural(len(run.folder.tensors.entries), "tensor")
            print(f"{said}\tall of them known, all finite")
            if path := _dense(run):
                print(f"{path}\tok")
            return 0
        model = run.read_config(check=False).get("model")
        if isinstance(model, dict) and model.get("kind") == "ngram":
            if strange := _strange(run):
                raise CheckpointError(f"{self.run}: not as it was written: {', '.join(strange)}")
            load_language(run.path)  # the file contains its own checksum
            print("ngram.npz\tok")
            return 0
        findings = verify(run.path)
        for finding in findings:
            said = "ok" if finding.problem is None else finding.problem
            print(f"{finding.path.name}\t{said}")
        strange = [*_strange(run), *_strange_dense(run)]
        sys.stdout.flush()
        # Remains of an interrupted save and checkpoints that were set aside are never loaded.
        checked = [finding for finding in findings if finding.step is not None]
        damaged = [finding.path.name for finding in checked if finding.problem]
        if damaged or strange:
            names = ", ".join([*damaged, *strange])
            raise CheckpointError(f"{self.run}: not as it was written: {names}")
        if not checked:
            raise CheckpointError(f"{self.run}: there is no checkpoint")
        return 0


def _dense(run: "RunDirectory") -> str:
    """The path of a sentence encoder's dense layer, read to verify it; empty without one.

    Raises:
        CheckpointError: It is damaged.
    """
    from transformer_jax.interop.dense import read_dense

    fields = run.read_config(check=False)
    sentence, model = fields.get("sentence"), fields.get("model")
    dense = sentence.get("dense") if isinstance(sentence, dict) else None
    if not isinstance(dense, dict) or not isinstance(model, dict):
        return ""
    read_dense(run.path, dense, model.get("d_model", 0))
    return str(dense["path"])


def _strange_dense(run: "RunDirectory") -> list[str]:
    """The dense layer of a sentence encoder if it is damaged, with a line about it."""
    try:
        path = _dense(run)
    except CheckpointError as error:
        print(f"linear map\t{error}")
        return ["the linear map of its sentence encoder"]
    if path:
        print(f"{path}\tok")
    return []


def _strange(run: "RunDirectory") -> list[str]:
    """Files that changed since the newest good checkpoint, with a line about each."""
    from transformer_jax.data.files import read_file
    from transformer_jax.training.sealed import differences, sealed

    strange, said = [], sealed(run.path) or {}
    if "tokenizer" in said:
        found = hashlib.sha256(read_file(run.tokenizer)).hexdigest()
        if found != said["tokenizer"]:
            strange.append(run.tokenizer.name)
            print(f"{run.tokenizer.name}\tnot the one that the checkpoints were made with")
    changed = differences(run.read_config(check=False), said)
    if changed:
        strange.append(run.config.name)
        print(f"{run.config.name}\tchanged after training: {', '.join(changed)}")
    return strange
