"""Output of commands: tables, texts, files written atomically, notes on standard error."""

import contextlib
import gzip
import io
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from transformer_jax.core.errors import ConfigError, plural, visible
from transformer_jax.core.output_files import Destination
from transformer_jax.core.storage.urls import with_urls

if TYPE_CHECKING:
    from transformer_jax.decoding.requests import Continuation, GenerationRequest

__all__ = [
    "TextOutput",
    "Writer",
    "appending",
    "check_file",
    "columns",
    "escaped",
    "note",
    "note_unknown",
    "say",
    "tsv",
    "waiting",
    "write_json",
    "writing",
    "wrote",
]

_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


def escaped(text: str) -> str:
    r"""Escapes a text reversibly, for one line and one cell.

    Example:
        >>> escaped("a\tb\nC:\\new\x1b")
        'a\\tb\\nC:\\\\new\\x1b'
    """
    return visible(text.translate(_ESCAPES))


def tsv(*cells: str | int | float) -> bytes:
    r"""Formats one row of a table in UTF-8, regardless of the locale; floats have four decimals.

    Example:
        >>> tsv(1, -0.25, "a\nb")
        b'1\t-0.2500\ta\\nb\n'
    """
    shown = (f"{cell:.4f}" if isinstance(cell, float) else escaped(str(cell)) for cell in cells)
    return "\t".join(shown).encode() + b"\n"


def columns(rows: Iterable[tuple[str, str]], indent: int = 2) -> str:
    """Formats names and texts in two columns, as wide as the terminal.

    Args:
        rows: A name and a text.
        indent: Number of blanks before each line.

    Example:
        >>> print(columns([("train", "Train a model."), ("use", "Use it.")]))
          train  Train a model.
          use    Use it.
    """
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0) + 2
    room = max(shutil.get_terminal_size().columns - 1, 60)
    lines = []
    for name, text in rows:
        head = " " * indent + f"{name:<{width}}"
        lines += textwrap.wrap(
            text, room, initial_indent=head, subsequent_indent=" " * len(head)
        ) or [head.rstrip()]
    return "\n".join(lines)


def say(text: str) -> None:
    """Prints one line on standard error, if possible.

    Control characters and lone surrogates are printed as escapes.
    """
    line = visible(" ".join(with_urls(text).split()))
    shown = line.encode("utf-8", "backslashreplace").decode()
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(shown, file=sys.stderr, flush=True)


def note(text: str) -> None:
    """Prints ``text`` as a note on standard error."""
    say(f"note: {text}")


def note_unknown(counts: Mapping[str, int], what: str = "text", total: str | None = None) -> None:
    """Prints a note about texts that the tokenizer does not know as a whole, if there are any.

    Args:
        counts: Numbers of texts by name; ``unknown`` is that of these texts.
        what: What the texts are, in the singular.
        total: Name of the number of all texts, if there is one.
    """
    from transformer_jax.data.coverage import unknown_note

    if count := counts["unknown"]:
        note(unknown_note(count, what, None if total is None else counts[total]))


def wrote(*paths: Path, what: str = "") -> None:
    """Prints the paths that a command wrote on standard error."""
    say(f"wrote {', '.join(map(str, paths))}" + (f": {what}" if what else ""))


def waiting(what: str) -> None:
    """Prints that a command waits for ``what``, if standard input is a terminal."""
    if sys.stdin.isatty():
        note(f"waiting for {what} at the terminal, one per line; Ctrl-D ends")


def check_file(flag: str, path: Path | None, suffixes: Sequence[str] = ()) -> None:
    """Refuses a file that could not be written, before any work; None passes.

    Args:
        flag: Its flag, for messages.
        path: The file.
        suffixes: The ends of its name that are allowed; empty allows all.

    Raises:
        ConfigError: The suffix is wrong, the path is a folder, or its folder cannot be written.
    """
    if path is None:
        return
    if suffixes and path.suffix not in suffixes:
        raise ConfigError(f"{flag} {path}: the name ends in {', '.join(suffixes)}")
    if os.path.isdir(path):
        raise ConfigError(f"{flag} {path}: this is a folder: name a file")
    with writing(flag, path):
        to = Destination(path)
        if to.draft is not None:  # permissions are not enough: a file system may refuse its owner
            to.open().close()
            to.draft.unlink()


@contextlib.contextmanager
def writing(flag: str, path: Path) -> Iterator[None]:
    """Context manager: errors in writing ``path`` name the flag.

    Raises:
        ConfigError: The file cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{flag} {path}: cannot be written: {error.strerror or error}") from None


def appending(path: Path) -> io.TextIOWrapper:
    """Opens a UTF-8 file to append lines; ends an unterminated last line first.

    Raises:
        OSError: The file cannot be opened, or cannot be sought in, such as a pipe.
    """
    file = path.open("a+b")
    if file.tell():
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")
    return io.TextIOWrapper(file, encoding="utf-8", newline="\n")


def write_json(flag: str, path: Path, content: Any) -> None:
    """Writes JSON to a file atomically.

    Raises:
        ConfigError: The file cannot be written.
    """
    with writing(flag, path):
        to = Destination(path)
        with to.open() as file:
            file.write(json.dumps(content, ensure_ascii=False, indent=1).encode() + b"\n")
        to.publish()


class TextOutput:
    """Standard output, or a file that is renamed into place once it is complete.

    After a failure or an interrupt, the partial output stays in ``NAME.partial``.

    Args:
        path: The file, compressed if its name ends in ``.gz``; None is standard output. Links are
            followed; pipes and devices are written directly.
        source: The input file, if there is one.

    Raises:
        ConfigError: ``path`` is the input file or a folder, or cannot be written.
    """

    def __init__(self, path: Path | None, source: Path | None = None):
        self.path, self._lines = path, 0
        self._file: Any = None
        self._to: Destination | None = None
        if path is None:
            return
        # Unlike methods of Path, these do not raise: __enter__ reports missing permissions.
        if os.path.isdir(path):
            raise ConfigError(f"--output {path}: this is a folder: name a file")
        both = (path, source) if source is not None else ()
        if both and all(map(os.path.isfile, both)) and os.path.samefile(*both):
            raise ConfigError(f"--output {path}: is the input file: name another")
        self._to = Destination(path)

    def __enter__(self) -> "TextOutput":
        if self._to is not None and self.path is not None:
            try:
                file = self._to.open()
            except OSError as error:
                raise self._refused(error) from None
            self._file = _packed(file, self.path.name) if self.path.suffix == ".gz" else file
        return self

    def write(self, lines: bytes) -> None:
        """Writes ``lines``, which include their line ends."""
        self._guarded(lambda out: out.write(lines))
        self._lines += lines.count(b"\n")

    def flush(self) -> None:
        """Flushes the file."""
        self._guarded(lambda out: out.flush())

    def _guarded(self, act: Any) -> None:
        if self._file is None:
            act(sys.stdout.buffer)
            return
        try:
            act(self._file)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise self._refused(error) from None

    def __exit__(self, kind: Any, *error: object) -> None:
        if self._file is None or self._to is None or self.path is None:
            if kind is None:
                sys.stdout.buffer.flush()
            return
        problem = self._closed(publish=kind is None)
        if kind is None and problem is None:
            wrote(self.path, what=plural(self._lines, "line"))
            return
        self._keep(self._to, whole=problem is None)
        if kind is None and isinstance(problem, OSError):
            raise problem if isinstance(problem, BrokenPipeError) else self._refused(problem)

    def _closed(self, publish: bool) -> OSError | None:
        """Closes the file and renames it into place; returns the error, if any."""
        assert self._to is not None
        try:
            self._file.close()
            if publish:
                self._to.publish()
        except OSError as problem:
            return problem
        return None

    def _keep(self, to: Destination, whole: bool) -> None:
        """Keeps the partial output of a failed command as ``NAME.partial``.

        Args:
            to: The intended path.
            whole: Whether every line up to the failure was written.
        """
        if to.draft is None:
            return
        with contextlib.suppress(OSError):
            if not self._lines or not to.draft.stat().st_size:
                to.draft.unlink(missing_ok=True)
                return
        partial = to.path.with_name(f"{to.path.name}.partial")
        try:
            os.replace(to.draft, partial)
        except OSError:
            partial = to.draft
        lines = f"{plural(self._lines, 'line')}, " if whole else ""
        wrote(partial, what=f"{lines}incomplete output")

    def _refused(self, error: OSError) -> ConfigError:
        return ConfigError(f"--output {self.path}: cannot be written: {error.strerror or error}")


def _packed(file: Any, name: str) -> gzip.GzipFile:
    """Returns a compressed stream into ``file``; closing it closes ``file``."""
    packed = gzip.GzipFile(name, "wb", fileobj=file)
    packed.myfileobj = file  # type: ignore[assignment]
    return packed


class Writer:
    """A writer of the texts of each prompt.

    Args:
        form: ``plain`` writes each prompt with its text, with a header line if there are several;
            ``tsv``, a row per text; ``json``, an object per prompt.
        several: Whether there is more than one text.
    """

    def __init__(self, form: Literal["plain", "tsv", "json"], several: bool):
        self.form, self.several, self.prompts = form, several, 0

    def __call__(self, request: "GenerationRequest", found: "Sequence[Continuation]") -> None:
        """Writes the continuations of a prompt; results of beam search are sorted, best first."""
        if self.form == "json":
            self._json(request, found)
        else:
            texts = [(one.text, one.log_prob) for one in found]
            self.texts(request.prompt, texts, ranked=request.num_beams > 1)

    def texts(self, prompt: str, found: Sequence[tuple[str, float]], ranked: bool = False) -> None:
        """Writes texts that follow ``prompt``, each with its score, a log-probability.

        Args:
            prompt: The prompt.
            found: The texts, without the prompt.
            ranked: Whether the texts are sorted, best first.
        """
        self.prompts += 1
        out, kind = sys.stdout.buffer, "rank" if ranked else "sample"
        if self.form == "tsv" and self.prompts == 1:
            # Rows of sampling and of beam search share one header.
            out.write(tsv("prompt", "sequence", "score", "text"))
        for number, (text, score) in enumerate(found, 1):
            if self.form == "tsv":
                out.write(tsv(self.prompts, number, float(score), text))
                continue
            if self.several:
                which = f", {kind} {number}" if len(found) > 1 else ""
                worth = f", score {score:.4f}" if ranked else ""
                out.write(f"--- prompt {self.prompts}{which}{worth} ---\n".encode())
            out.write((prompt + text).encode() + b"\n")
        out.flush()

    def _json(self, request: "GenerationRequest", found: "Sequence[Continuation]") -> None:
        texts = [
            {
                "text": one.text,
                "log_prob": one.log_prob,
                "tokens": len(one.tokens),
                "finish_reason": one.finish_reason,
            }
            for one in found
        ]
        asked: dict[str, Any] = {"prompt": request.prompt}
        if request.messages is not None:
            asked = {"messages": list(request.messages)}
        if request.adapter is not None:
            asked["adapter"] = request.adapter
        line = json.dumps(asked | {"texts": texts}, ensure_ascii=False)
        sys.stdout.buffer.write(line.encode() + b"\n")
        sys.stdout.buffer.flush()
