"""``metrics.jsonl``: one JSON object per line, each step once, even after kills and resumes."""

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from transformer_jax.data.files import read_file
from transformer_jax.errors import CheckpointError, ConfigError
from transformer_jax.old_names import current_metrics, current_settings
from transformer_jax.training import manifest
from transformer_jax.training.lock import check_lock

__all__ = ["MetricsLog", "read_metrics"]

_CHECKED = 10.0  # seconds between checks of the lock


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file; one that a kill cut short ends the list.

    Raises:
        CheckpointError: The file cannot be read.
    """
    try:
        text = read_file(path).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    records = []
    for line in text.split("\n"):
        try:
            record = json.loads(line)
        except ValueError:
            break
        if not isinstance(record, dict) or not isinstance(record.get("step"), int):
            break
        records.append(record)
    objective = _sentence_objective(path.with_name("config.json"))
    return [current_metrics(record, objective) for record in records]


def _sentence_objective(config: Path) -> str:
    """The sentence objective of a run, which earlier names of metrics left out."""
    try:
        masking = current_settings(json.loads(read_file(config)))["masking"]
        return str(masking["sentence_objective"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return "nsp"


def _plain(value: Any) -> Any:
    """A JSON value; a non-finite number becomes null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class MetricsLog:
    """Appends to ``metrics.jsonl``, and to TensorBoard on request.

    Lines after ``start`` belong to steps that will be repeated and are deleted.

    Args:
        path: The file.
        start: The step from which training resumes.
        tensorboard: Folder of TensorBoard's files; None writes none.
        writes: Whether to write the file; False in all processes but the first.

    Attributes:
        history: All lines so far.

    Raises:
        CheckpointError: The file cannot be read or written, or another process has the run.
        ConfigError: TensorBoard is on and ``tensorboardX`` is not installed.
    """

    def __init__(
        self,
        path: Path,
        start: int = 0,
        *,
        tensorboard: Path | None = None,
        writes: bool = True,
    ):
        self.path = path
        self.history = [line for line in read_metrics(path) if line["step"] <= start]
        self._board = None
        self._file: IO[str] | None = None
        if not writes:
            return
        check_lock(path.parent)
        self._checked = time.monotonic()
        if tensorboard is not None:
            try:
                from tensorboardX import SummaryWriter
            except ImportError:
                raise ConfigError(
                    "TensorBoard is asked for, but tensorboardX is not installed: "
                    "pip install 'transformer-jax[tensorboard]', or leave the flag out"
                ) from None
            self._board = SummaryWriter(str(tensorboard), purge_step=start + 1)
        try:
            text = "".join(self._line(record) for record in self.history)
            manifest.atomic_write(path, text)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be written: {error.strerror}") from None

    @staticmethod
    def _line(record: Mapping[str, Any]) -> str:
        return json.dumps(dict(record), allow_nan=False) + "\n"

    def write(self, record: Mapping[str, Any]) -> None:
        """Appends one record, which has a ``step``; it survives a kill of the process.

        Raises:
            CheckpointError: The disk is full, or another process has taken the run over.
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
                    self._board.add_scalar(name, value, plain["step"])

    def close(self) -> None:
        """Closes the files."""
        if self._file is not None:
            self._file.close()
        if self._board is not None:
            self._board.close()
