"""Checkpoints, written in the background, verified before use, and restored on any mesh.

Orbax writes the arrays; a manifest (``manifest.py``) seals them. A checkpoint that fails
verification is reported, and the previous one is used.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from transformer_jax.core import trees
from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.core.output_files import draft_folder, flush_directory, remove_dead_drafts
from transformer_jax.runs import manifest
from transformer_jax.runs.checkpoint_items import (
    check_fit,
    device_count,
    dispose,
    explained,
    is_utf8,
    items_of,
    orbax,
    read_item,
    state_of,
    tree_of,
)
from transformer_jax.runs.checkpoint_reader import Loaded, load_params
from transformer_jax.runs.checkpoint_score import (
    PROGRESS,
    CheckpointScore,
    Metric,
    MetricsLine,
    Standing,
    score_of,
)
from transformer_jax.runs.lock import check_lock
from transformer_jax.runs.manifest import (
    DAMAGED,
    DELETING,
    SCRATCH,
    Manifest,
    ProgressRecord,
    ScoreRecord,
    check_checkpoint,
    checkpoint_name,
    run_storage,
    steps,
)

if TYPE_CHECKING:
    from orbax.checkpoint import AsyncCheckpointer

__all__ = ["CheckpointScore", "Checkpointer", "Loaded", "Restored", "load_params", "steps"]


class Restored(NamedTuple):
    """A restored training state."""

    step: int
    state: PyTree
    manifest: Manifest
    left: tuple[str, ...] = ()  # problems of newer checkpoints, which were set aside


def _finite(score: CheckpointScore | None) -> ScoreRecord | None:
    if score is None or not np.isfinite(score.value):
        return None
    return {"name": score.name, "value": score.value, "better": score.better}


class Checkpointer:
    """Writes and restores the checkpoints of one run.

    Args:
        directory: Folder of the checkpoints; created if missing.
        keep_last: Number of newest checkpoints to keep, in addition to the best one.
        describe: Further fields for every manifest, such as the configuration.

    Raises:
        CheckpointError: The directory cannot be created or written, or another process writes to
            the run.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep_last: int = 3,
        describe: Manifest | None = None,
    ):
        if keep_last < 1:
            raise ConfigError(f"keep_last is {keep_last}: at least 1 checkpoint must be kept")
        self.directory = Path(directory).absolute()
        self.keep_last = keep_last
        self.describe: Manifest = {**(describe or {})}
        self._pending: tuple[Path, Manifest, tuple[str, ...]] | None = None
        self._left: list[str] = []
        self._storage = run_storage(self.directory.parent)
        self._primary = jax.process_index() == 0
        if self._primary:
            self._prepare()
        self._writer = self._new_writer()

    def _new_writer(self) -> "AsyncCheckpointer":
        ocp = orbax()
        return ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(),
            async_options=ocp.AsyncOptions(post_finalization_callback=self._seal),
        )

    def _prepare(self) -> None:
        if not is_utf8(self.directory):
            raise ConfigError(
                f"{self.directory}: checkpoints cannot be written here, since the path is not "
                f"UTF-8: rename the folder, or choose another --output"
            )
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            # Raise an error for an unwritable folder before the first step.
            with draft_folder(self.directory / "probe") as probe:
                (probe / "file").write_bytes(bytes(4096))
        except OSError as error:
            raise explained(
                error, f"{self.directory}: checkpoints cannot be written here"
            ) from None
        check_lock(self.directory.parent)
        remove_dead_drafts(self.directory)
        for path in self.directory.iterdir():
            if SCRATCH in path.name or path.name.startswith(DELETING):
                shutil.rmtree(path, ignore_errors=True)

    def save(
        self,
        step: int,
        state: PyTree,
        *,
        score: CheckpointScore | None = None,
        progress: ProgressRecord | None = None,
    ) -> None:
        """Starts to write ``state``; its buffers may be donated once this returns.

        Args:
            step: Step of the state.
            state: A ``TrainState``: step, params, opt_state, ema_params.
            score: Its score, if it was evaluated.
            progress: The evaluations so far, see :class:`Standing`.

        Raises:
            CheckpointError: This or the previous checkpoint could not be written, or another
                process has taken over the run.
        """
        ocp = orbax()
        self.wait()
        if self._primary:
            check_lock(self.directory.parent)
        if self._primary and (self.directory / checkpoint_name(step)).exists():
            self._move_aside(self.directory / checkpoint_name(step))
        items = items_of(state)
        fields: Manifest = {
            **self.describe,
            "step": step,
            "tree": tree_of(items),
            "score": _finite(score),
            "versions": manifest.versions(),
            "devices": max(map(device_count, jax.tree.leaves(state))),
            "processes": jax.process_count(),
        }
        if progress is not None:
            fields[PROGRESS] = progress
        self._pending = (self.directory / checkpoint_name(step), fields, tuple(items))
        args = {
            item: ocp.args.PyTreeSave(trees.unflatten_dict(leaves, numbers=False))
            for item, leaves in items.items()
        }
        with self._failures():
            self._writer.save(self._pending[0], args=ocp.args.Composite(**args))

    def set_score(
        self, step: int, score: CheckpointScore | None, progress: ProgressRecord | None = None
    ) -> None:
        """Adds the score, and the evaluations so far, to a stored checkpoint, without its arrays.

        Raises:
            CheckpointError: The checkpoint is missing or damaged, or cannot be written.
        """
        self.wait()
        if not self._primary:
            return
        check_lock(self.directory.parent)
        path = self.directory / checkpoint_name(step)
        fields = manifest.read(path)
        fields["score"] = _finite(score)
        if progress is not None:
            fields[PROGRESS] = progress
        try:
            manifest.rewrite(path, fields)
        except OSError as error:
            raise explained(error, f"{path}: its score cannot be written") from None

    def _seal(self) -> None:
        # Orbax calls this on the first process when all processes have written, before it renames
        # the directory to a checkpoint, so every visible checkpoint has its manifest.
        if self._pending is None:
            return
        final, fields, items = self._pending
        scratch = [path for path in final.parent.glob(f"{final.name}{SCRATCH}*") if path.is_dir()]
        made = scratch[0] if scratch else final
        manifest.write(made, items, fields)
        self._publish({f"{self.directory.name}/{final.name}": made})

    def _publish(self, drafts: Mapping[str, Path] = {}) -> None:
        self._storage.publish(drafts, check=lambda: check_lock(self.directory.parent))

    def wait(self) -> None:
        """Waits until the last save is on disk, then removes checkpoints that are not kept.

        Raises:
            CheckpointError: The checkpoint could not be written.
        """
        if self._pending is None:
            return
        with self._failures():
            self._writer.wait_until_finished()
        self._pending = None
        if self._primary:
            flush_directory(self.directory)
            self._prune()
            try:
                self._publish()
            except OSError as error:
                raise explained(error, f"{self.directory}: cannot be published") from None

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            path = self._pending[0] if self._pending else self.directory
            what = f"{path}: the checkpoint could not be written (earlier ones are intact)"
            failure = explained(error, what)
            self._pending = None
            self._writer = None
            dispose(error)
            self._writer = self._new_writer()
            self._clear(path.name)
            raise failure from None

    def _clear(self, name: str) -> None:
        # Delete a partial checkpoint, which takes up scarce space. Pending writes may still create
        # files in it.
        for _ in range(30):
            left = [*self.directory.glob(f"{name}{SCRATCH}*")]
            for scratch in left:
                shutil.rmtree(scratch, ignore_errors=True)
            if not left:
                return
            time.sleep(0.1)

    def standing(self, step: int, metric: Metric, history: Iterable[MetricsLine] = ()) -> Standing:
        """Returns the evaluations up to a step, from its manifest.

        Args:
            step: The step of a checkpoint, or 0.
            metric: The metric that selects the best checkpoint.
            history: The metrics of the run, for manifests of earlier versions.

        Raises:
            CheckpointError: The manifest of this step is missing or damaged.
        """
        if step == 0:
            return Standing()
        stored = Standing.read(manifest.read(self.directory / checkpoint_name(step)), metric)
        if stored is not None:
            return stored
        scores = {at: one for at, one in self._scores().items() if one is not None and at <= step}
        return Standing.of_earlier(history, scores, metric)

    def _scores(self) -> dict[int, CheckpointScore | None]:
        known: dict[int, CheckpointScore | None] = {}
        for step in steps(self.directory):
            with contextlib.suppress(CheckpointError):
                known[step] = score_of(manifest.read(self.directory / checkpoint_name(step)))
        return known

    def _prune(self) -> None:
        known = self._scores()
        kept = set(list(known)[: self.keep_last])
        best: int | None = None
        for step, score in known.items():
            # Newest first, so that on ties the oldest is kept as best, as reported.
            if score is not None and (best is None or not known[best].beats(score)):  # type: ignore[union-attr]
                best = step
        for step in known.keys() - kept - {best}:
            # Rename first: a kill in between leaves rubbish, not half a checkpoint.
            path = self.directory / checkpoint_name(step)
            rubbish = self.directory / f"{DELETING}{step:08d}"
            with contextlib.suppress(OSError):
                path.rename(rubbish)
                shutil.rmtree(rubbish, ignore_errors=True)

    def restore(self, template: PyTree) -> Restored | None:
        """Restores the newest valid state with the shardings of ``template``, or None.

        Args:
            template: A ``TrainState`` of arrays or ``jax.ShapeDtypeStruct``, whose shardings are
                applied to the restored leaves, regardless of the mesh that wrote them.

        Raises:
            CheckpointError: All checkpoints are damaged, one cannot be read, or the newest good one
                does not match the template.
        """
        self.wait()
        step = _agreed(self._choose() if self._primary else None)
        if step is None:
            return None
        path = self.directory / checkpoint_name(step)
        fields = manifest.read(path)
        items = items_of(template)
        check_fit(path, fields, items)
        try:
            restored = {
                item: read_item(path / manifest.item_directory(fields, item), leaves)
                for item, leaves in items.items()
            }
        except Exception as error:
            raise explained(error, f"{path}: verified, but could not be restored") from error
        return Restored(step, state_of(template, restored), fields, tuple(self._left))

    def _choose(self) -> int | CheckpointError | None:
        found = steps(self.directory)
        problems = []
        self._left.clear()
        for step in found:
            path = self.directory / checkpoint_name(step)
            try:
                _, problem = check_checkpoint(path)
            except manifest.UnreadableError as error:
                return error  # it may be good, and later steps would be repeated
            if problem is None:
                return step
            problems.append(problem)
            if len(problems) < len(found):
                self._left.append(f"{problem} (kept as {self._move_aside(path).name})")
        if problems:
            return CheckpointError(
                f"no checkpoint in {self.directory} can be restored: {'; '.join(problems)}"
            )
        return None

    def _move_aside(self, path: Path) -> Path:
        # Free the name, since training will save this step again.
        target = path.with_name(DAMAGED + path.name)
        try:
            if target.exists():
                shutil.rmtree(target, ignore_errors=True)
            path.rename(target)
        except OSError as error:
            raise explained(error, f"{path}: a damaged checkpoint cannot be renamed") from None
        return target

    def close(self) -> None:
        """Waits for the last save, stops Orbax's threads, and removes an empty directory.

        So a run that fails before its first step leaves nothing that looks like training.
        """
        try:
            self.wait()
        finally:
            self._writer.close()
            if self._primary:
                with contextlib.suppress(OSError, CheckpointError):
                    check_lock(self.directory.parent)
                    self.directory.rmdir()  # fails unless the directory is empty


def _agreed(choice: int | CheckpointError | None) -> int | None:
    """Broadcasts the choice of process 0 to every process."""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        code = choice if isinstance(choice, int) else -2 if choice else -1
        code = int(multihost_utils.broadcast_one_to_all(np.array(code, np.int64)))
        if code >= 0:
            return code
        if code == -2 and choice is None:
            choice = CheckpointError("no checkpoint can be restored: see the first process")
    if isinstance(choice, CheckpointError):
        raise choice
    return choice
