"""``metrics.jsonl``: one JSON object per line, each step once, even after kills and resumes."""

import contextlib
import functools
import json
import logging
import math
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from transformer_jax.core.errors import CheckpointError, ConfigError, install, plural
from transformer_jax.core.old_names import current_config, current_metrics
from transformer_jax.core.output_files import draft_file
from transformer_jax.data.files import read_file
from transformer_jax.runs.checkpoint_score import MetricsLine, step_of
from transformer_jax.runs.lock import check_lock

__all__ = ["MetricsLog", "read_metrics"]

log = logging.getLogger(__name__)

_NAMED = 5  # maximum number of damaged lines to name in a warning
_CHECKED = 10.0  # seconds between checks of the lock


class _Line(NamedTuple):
    """A line of a metrics file with its line end; ``record`` is None if the line is damaged."""

    number: int
    raw: bytes
    record: dict[str, int | float | None] | None


def read_metrics(path: Path) -> list[dict[str, int | float | None]]:
    """Returns the records of a metrics file; skips damaged lines with a warning.

    An incomplete last line, which is being written or was interrupted by a kill, is skipped
    silently.

    Raises:
        CheckpointError: The file cannot be read.
    """
    lines = _read(path)
    _warn(path, [line for line in lines if line.record is None and line.raw.endswith(b"\n")])
    return _records(path, lines)


def _read(path: Path) -> list[_Line]:
    try:
        content = read_file(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    raw = [line for line in re.split(rb"(?<=\n)", content) if line]
    return [
        _Line(number, line, _parsed(line)) for number, line in enumerate(raw, 1) if line.strip()
    ]


def _parsed(line: bytes) -> dict[str, int | float | None] | None:
    try:
        record = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    step = record.get("step") if isinstance(record, dict) else None
    return record if isinstance(step, int) and not isinstance(step, bool) else None


def _records(path: Path, lines: Iterable[_Line]) -> list[dict[str, int | float | None]]:
    objective = _sentence_objective(path.with_name("config.json"))
    return [current_metrics(line.record, objective) for line in lines if line.record is not None]


def _warn(path: Path, damaged: Sequence[_Line]) -> None:
    if damaged:
        numbers = ", ".join(str(line.number) for line in damaged[:_NAMED])
        more = f" and {len(damaged) - _NAMED} more" if len(damaged) > _NAMED else ""
        _warn_once(
            f"{path}: {plural(len(damaged), 'line is', 'lines are')} damaged and skipped (line "
            f"{numbers}{more}); training and the best checkpoint do not depend on it"
        )


@functools.lru_cache(maxsize=16)
def _warn_once(text: str) -> None:
    log.warning("%s", text)


def _until(lines: Sequence[_Line], start: int) -> list[_Line]:
    """Returns the lines of the steps up to ``start``, including damaged ones.

    A line belongs to a later step only if the step of the next line is also later, so a single
    damaged number does not move a line. A damaged line belongs to the steps of its neighbors; an
    incomplete last line belongs to a step that is repeated.
    """
    steps: list[float] = []  # step of each line, or of the next line if earlier
    after = math.inf
    for line in reversed(lines):
        if line.record is not None:
            steps.append(min(step_of(line.record), after))
            after = step_of(line.record)
        else:
            steps.append(math.nan)
    kept, before = [], 0.0
    for line, step in zip(lines, reversed(steps), strict=True):
        before = before if math.isnan(step) else step
        cut = not line.raw.endswith(b"\n") and line.record is None
        if before < start or (before == start and not cut):
            kept.append(line)
    return kept


def _sentence_objective(config: Path) -> str:
    """Returns the sentence objective of a run, which earlier names of metrics omitted."""
    try:
        masking = current_config(json.loads(read_file(config, 1 << 24)))["masking"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return "nsp"
    return str(masking.get("sentence_objective", "nsp")) if isinstance(masking, dict) else "nsp"


def _plain(value: int | float | None) -> int | float | None:
    """Returns a JSON value, with non-finite numbers as null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class MetricsLog:
    """Appends to ``metrics.jsonl``, and to TensorBoard on request.

    Lines after ``start`` belong to steps that will be repeated, and are deleted. Earlier damaged
    lines are kept unchanged.

    Args:
        path: The file.
        start: The step from which training resumes.
        tensorboard: Folder of TensorBoard files, or None.
        writes: Whether to write the file; False in all processes but the first.

    Attributes:
        history: The records of all valid lines so far.

    Raises:
        CheckpointError: The file cannot be read or written, or another process holds the run.
        ConfigError: TensorBoard is on and ``tensorboardX`` is not installed.
    """

    def __init__(
        self, path: Path, start: int = 0, *, tensorboard: Path | None = None, writes: bool = True
    ):
        self.path = path
        lines = _until(_read(path), start)
        self.history = _records(path, lines)
        self._board = None
        self._file: IO[str] | None = None
        if not writes:
            return
        _warn(path, [line for line in lines if line.record is None])
        last = max(map(step_of, self.history), default=0)
        if last < start:  # every step before a checkpoint has a record
            _warn_once(
                f"{path}: has no records of steps {last + 1} to {start}: it was removed or cut. "
                f"Training and the best checkpoint do not depend on it; curves lack these steps"
            )
        check_lock(path.parent)
        self._checked = time.monotonic()
        if tensorboard is not None:
            try:
                from tensorboardX import SummaryWriter
            except ImportError:
                raise ConfigError(
                    "TensorBoard needs tensorboardX, which is not installed: "
                    f"{install('tensorboard')}, or leave the flag out"
                ) from None
            self._board = SummaryWriter(str(tensorboard), purge_step=start + 1)
        try:
            with draft_file(path) as draft:
                draft.write_bytes(b"".join(line.raw.rstrip(b"\n") + b"\n" for line in lines))
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be written: {error.strerror}") from None

    @staticmethod
    def _line(record: MetricsLine) -> str:
        return json.dumps(dict(record), allow_nan=False) + "\n"

    def write(self, record: MetricsLine) -> None:
        """Appends one record with a ``step``, safe against a kill of the process.

        Raises:
            CheckpointError: The disk is full, or another process has taken over the run.
        """
        plain = {name: _plain(value) for name, value in record.items()}
        self.history.append(plain)
        if self._file is None:
            return
        if time.monotonic() - self._checked >= _CHECKED:
            check_lock(self.path.parent)
            self._checked = time.monotonic()
        try:
            self._file.write(self._line(plain))
            self._file.flush()
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be written: {error.strerror}") from None
        if self._board is not None:
            for name, value in plain.items():
                if name != "step" and isinstance(value, int | float):
                    self._board.add_scalar(name, value, step_of(plain))

    def close(self) -> None:
        """Closes the files, and removes a file without records."""
        if self._file is not None:
            self._file.close()
            with contextlib.suppress(OSError, CheckpointError):
                if not self.path.stat().st_size:
                    check_lock(self.path.parent)
                    self.path.unlink()
        if self._board is not None:
            self._board.close()
