"""Progress of training: a live line on a terminal, plain lines elsewhere."""

import contextlib
import sys
import time

from rich.console import Console
from rich.live import Live
from rich.text import Text

from transformer_jax.core.errors import visible
from transformer_jax.core.task_progress import duration, mark_line_time, shown_by
from transformer_jax.runs.checkpoint_score import MetricsLine, step_of

__all__ = ["Progress", "duration", "progress_line"]

_RATE = "_per_second"


def progress_line(record: MetricsLine, steps: int, left: float | int | None) -> str:
    """Formats a line of progress.

    Args:
        record: ``step``, ``epoch``, ``loss``, ``tokens_per_second`` and
            ``tokens_per_second_per_device`` (or ``examples``, or another unit), ``mfu``,
            ``learning_rate``.
        steps: The last step.
        left: Seconds to the last step, if known.

    Example:
        >>> progress_line({"step": 5, "epoch": 0.5, "loss": 4.2, "learning_rate": 1e-4}, 10, 62)
        'step 5/10  epoch 0.50  loss 4.2000  lr 0.0001  ETA 1m02s'
        >>> progress_line({"step": 5, "loss": 4.2, "answer_tokens_per_second": 1234.0}, 10, None)
        'step 5/10  loss 4.2000  1,234 answer tokens/s'
    """
    parts = [f"step {record['step']}/{steps}"]
    if record.get("epoch") is not None:
        parts.append(f"epoch {record['epoch']:.2f}")
    loss = record.get("loss")
    parts.append("loss not finite" if loss is None else f"loss {loss:.4f}")
    for name in record:
        if not name.endswith(_RATE):
            continue
        each = record.get(f"{name}_per_device")
        of_one = "" if each is None else f" ({each:,.0f}/device)"
        counted = name.removesuffix(_RATE).replace("_", " ")
        parts.append(f"{record[name]:,.0f} {counted}/s{of_one}")
    if record.get("mfu") is not None:
        parts.append(f"MFU {record['mfu']:.1%}")
    if record.get("learning_rate") is not None:
        parts.append(f"lr {record['learning_rate']:.3g}")
    if left is not None:
        parts.append(f"ETA {duration(left)}")
    return "  ".join(parts)


class Progress:
    """Context manager that shows progress and prints permanent lines.

    Args:
        steps: The last step.
        start: The step before the first.
        every: Seconds between plain lines.
        quiet: Whether to show nothing, as in all processes but the first.
        console: Output; None is standard error, so that results can be piped.
    """

    def __init__(
        self,
        steps: int,
        start: int = 0,
        *,
        every: float = 10.0,
        quiet: bool = False,
        console: Console | None = None,
    ):
        self._steps, self._start, self._every = steps, start, every
        self._console = console or Console(file=sys.stderr, quiet=quiet, highlight=False)
        live = self._console.is_terminal and not quiet
        self._live = Live(console=self._console, refresh_per_second=4) if live else None
        self._began = self._shown = time.monotonic()
        self._first = True
        self._inside = contextlib.ExitStack()
        self._quiet = quiet

    def __enter__(self) -> "Progress":
        if self._live is not None:
            self._live.start()
        self._inside.enter_context(shown_by(self._live, quiet=self._quiet))
        return self

    def __exit__(self, *_: object) -> None:
        self._inside.close()
        if self._live is not None:
            self._live.stop()

    def begin(self) -> None:
        """Starts the clock of the ETA."""
        self._began = time.monotonic()

    def leave_out(self, seconds: float) -> None:
        """Excludes seconds without steps from the ETA."""
        self._began += seconds

    def step(self, record: MetricsLine) -> None:
        """Shows a step; without a terminal, only the first, the last, and one per interval."""
        now = time.monotonic()
        step = step_of(record)
        done = step - self._start
        left = (now - self._began) / done * (self._steps - step) if done > 1 else None
        line = progress_line(record, self._steps, left)
        if self._live is not None:
            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"))
            return
        if self._first or now - self._shown >= self._every or record["step"] == self._steps:
            self._first, self._shown = False, now
            self.say(line)

    def say(self, text: str) -> None:
        """Prints a permanent line."""
        self._console.print(visible(text), markup=False, soft_wrap=True)
        mark_line_time()
