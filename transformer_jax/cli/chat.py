"""``transformer-jax chat``: a conversation with a language model in a terminal."""

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from transformer_jax.cli.generate import longer
from transformer_jax.cli.output import appending, note, say, writing, wrote
from transformer_jax.cli.run_command import PredictionCommand
from transformer_jax.core.errors import ConfigError, DataError, UserError, plural
from transformer_jax.decoding.generation_config import GenerationConfig
from transformer_jax.recipes.generation_flags import generation_flags

if TYPE_CHECKING:
    from transformer_jax.decoding.requests import GenerationRequest
    from transformer_jax.inference.chat_session import ChatSession

__all__ = ["Chat"]

_COMMANDS = ("/reset", "/system", "/save", "/help", "/quit")
_HELP = """/reset        forget the conversation, but the system prompt
/system TEXT  set the system prompt and forget the conversation
/save FILE    append the conversation as a line of JSON, as training reads it
/help         this help
/quit         end, as Ctrl-D does
A message that begins with a slash is written with two: //etc"""


ChatFlags: Any = generation_flags(
    GenerationConfig(max_new_tokens=512, temperature=0.7),
    *("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty"),
    *("no_repeat_ngram_size", "stop", "seed"),
)


@dataclasses.dataclass(frozen=True)
class Chat(ChatFlags, PredictionCommand):
    """Talk with a language model that was trained on conversations."""

    run: tyro.conf.Positional[Path]
    """Run directory or Hugging Face folder of a language model."""
    adapter: Path | None = None
    """Adapter that answers: a run trained on this model with --lora.rank, or a folder in PEFT's
    format."""
    template: str | None = None
    """Chat template: a built-in one (chatml, llama-3, ...), a file or a folder; None is that of the
    adapter, else of the model."""
    system: str | None = None
    """System prompt."""
    checkpoint: str = "best"
    """Checkpoint: best, last, a step number, or average:N (mean of the last N)."""
    context: int | None = None
    """Context length in tokens; may exceed that of training where positions allow it."""
    rope_interpolation: bool = False
    """RoPE position interpolation for contexts beyond training."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Data type of weights and computation; None is that of the run."""

    def __call__(self) -> int:
        """Answers each line of standard input, which is a message or a command."""
        from transformer_jax.decoding.requests import GenerationRequest

        request = GenerationRequest.of("", self.generation())
        change = longer(self.context, self.rope_interpolation)
        from transformer_jax.inference.chat_session import ChatSession
        from transformer_jax.inference.chats import load_chat
        from transformer_jax.inference.runs import as_trained

        prepare = as_trained(self.run, trim=False)
        model = load_chat(
            self.run,
            self.checkpoint,
            template=self.template,
            adapter=self.adapter,
            dtype=self.dtype,
            context=self.context,
            change=change,
        )
        session = ChatSession(model, None if self.system is None else prepare(self.system))
        at_terminal = sys.stdin.isatty()
        if at_terminal:
            note(f"{self.run}: /help lists the commands, /quit or Ctrl-D ends")
        for line in _lines(at_terminal):
            try:
                if line.startswith("/") and not line.startswith("//"):
                    if self.command(session, line, prepare):
                        break
                elif line.strip():
                    self.answer(session, prepare(line.removeprefix("/")), request)
            except UserError as error:
                if not at_terminal:
                    raise
                say(f"error: {error}")
        return 0

    def answer(self, session: "ChatSession", text: str, request: "GenerationRequest") -> None:
        """Writes the answer to a message as it is generated; Ctrl-C ends it, not the chat."""
        out, dropped = sys.stdout.buffer, session.dropped
        begun, parts = False, session.ask(text, request)
        try:
            for part in parts:
                # Templates that begin answers with a blank leave it to the model.
                shown = part if begun else part.lstrip()
                begun = begun or bool(shown)
                out.write(shown.encode())
                out.flush()
        except KeyboardInterrupt:
            parts.close()
            session.finish_reason = "end"
        out.write(b"\n")
        out.flush()
        if session.dropped > dropped:
            note(
                f"the context is full: the model no longer reads the oldest "
                f"{plural(session.dropped, 'message')}"
            )
        if session.finish_reason == "length":
            note(f"the answer is cut: {_cut_by(session, request)}")

    def command(self, session: "ChatSession", line: str, prepare: Any) -> bool:
        """Does what a line with a slash says; whether it ends the chat.

        Raises:
            DataError: There is no such command, or a file cannot be written.
        """
        name, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        if name not in _COMMANDS:
            raise DataError(
                f"{name}: no such command: there are {', '.join(_COMMANDS)}; a message that begins "
                f"with a slash is written with two"
            )
        if name == "/save" and not rest:
            raise DataError("/save needs a file: /save chat.jsonl")
        if name not in ("/save", "/system") and rest:
            raise DataError(f"{name} takes nothing after it, found {rest!r}")
        if name == "/quit":
            return True
        if name == "/help":
            print(_HELP, file=sys.stderr, flush=True)
        elif name == "/reset":
            session.reset()
        elif name == "/system":
            session.set_system(prepare(rest) or None)
        elif name == "/save":
            _save(session, Path(rest))
        return False


def _cut_by(session: "ChatSession", request: "GenerationRequest") -> str:
    """The limit that cut the last answer, and what to do."""
    if session.context_full:
        return (
            f"the context of {plural(session.context, 'token')} is full: /reset begins a new "
            f"conversation, and --context may allow a longer one"
        )
    tokens = plural(request.new_tokens(0), "token")
    return f"it has {tokens}, as many as --max-new-tokens allows"


def _save(session: "ChatSession", path: Path) -> None:
    if not session.messages:
        raise DataError(f"/save {path}: nothing has been said")
    row = {"messages": session.messages}
    with writing("/save", path), appending(path) as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
    wrote(path, what=plural(len(session.messages), "message"))


def _lines(at_terminal: bool) -> Iterator[str]:
    """The lines of standard input, with a prompt at a terminal.

    Raises:
        DataError: A line is not UTF-8.
    """
    from transformer_jax.data.text import decode_lines

    if not at_terminal:
        yield from decode_lines(sys.stdin.buffer, "<stdin>")
        return
    import contextlib

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (lines can be edited)
    while True:
        try:
            yield input("> ")
        except EOFError:
            print(file=sys.stderr)
            return
        except UnicodeDecodeError:
            raise ConfigError("the terminal's text is not UTF-8: set its encoding") from None
