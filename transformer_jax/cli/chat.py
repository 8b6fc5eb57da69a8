"""``transformer-jax chat``: a conversation with a language model in a terminal."""

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from transformer_jax.cli.generate import longer
from transformer_jax.cli.output import appending, note, note_unknown, say, writing, wrote
from transformer_jax.cli.support.run_command import PredictionCommand
from transformer_jax.core.errors import ConfigError, DataError, UserError, plural
from transformer_jax.decoding.generation_config import GenerationConfig
from transformer_jax.recipes.generation_flags import generation_flags

if TYPE_CHECKING:
    from transformer_jax.decoding.requests import GenerationRequest
    from transformer_jax.inference.chat_session import ChatSession

__all__ = ["Chat"]

_COMMANDS = ("/reset", "/system", "/save", "/help", "/quit")
_HELP = """/reset        forget the conversation, except the system prompt
/system TEXT  set the system prompt and forget the conversation
/save FILE    append the conversation to a file as a line of JSON, for training
/help         this help
/quit         quit, as does Ctrl-D
To send a message that begins with a slash, double the slash: //etc"""


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
    """Chat template: a built-in name (chatml, llama-3, ...), a file or a folder; None is the
    adapter's or the model's own."""
    system: str | None = None
    """System prompt."""
    context: int | None = None
    """Context length in tokens; may exceed that of training if the positions allow it."""
    rope_interpolation: bool = False
    """RoPE position interpolation for contexts beyond training."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Data type of weights and computation; None is that of the run."""

    def __call__(self) -> int:
        """Answers each line of standard input: a message or a command."""
        from transformer_jax.decoding.requests import GenerationRequest

        request = GenerationRequest.of("", self.generation())
        change = longer(self.context, self.rope_interpolation)
        from transformer_jax.inference.chat_session import ChatSession
        from transformer_jax.inference.chats import load_chat
        from transformer_jax.inference.folder_generation import GivenSearch, note_unused
        from transformer_jax.inference.pretrained import read_facts

        facts = read_facts(self.run, self.checkpoint, self.opening())
        note_unused(facts, GivenSearch(self.given(), self.FLAGS, has_hf=False))
        model = load_chat(
            facts,
            template=self.template,
            adapter=self.adapter,
            dtype=self.dtype,
            context=self.context,
            change=change,
        )
        session = ChatSession(model, self.system)
        at_terminal = sys.stdin.isatty()
        if at_terminal:
            note(f"{self.run}: /help lists the commands, /quit or Ctrl-D ends")
        for line in _lines(at_terminal):
            try:
                if line.startswith("/") and not line.startswith("//"):
                    if self.command(session, line):
                        break
                elif line.strip():
                    self.answer(session, line.removeprefix("/"), request)
            except UserError as error:
                if not at_terminal:
                    raise
                say(f"error: {error}")
        return 0

    def answer(self, session: "ChatSession", text: str, request: "GenerationRequest") -> None:
        """Prints an answer as it is generated; Ctrl-C stops the answer, not the chat."""
        out, dropped = sys.stdout.buffer, session.dropped
        begun, parts = False, session.ask(text, request)
        try:
            for part in parts:
                # Some templates leave the blank before an answer to the model.
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
        note_unknown(session.counts, "message")
        if session.finish_reason == "length":
            note(f"the answer is truncated: {_cut_by(session, request)}")

    def command(self, session: "ChatSession", line: str) -> bool:
        """Runs a slash command; returns whether it ends the chat.

        Raises:
            DataError: The command is unknown, or a file cannot be written.
        """
        name, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        if name not in _COMMANDS:
            raise DataError(
                f"{name}: unknown command: there are {', '.join(_COMMANDS)}; to send a message "
                f"that begins with a slash, double the slash"
            )
        if name == "/save" and not rest:
            raise DataError("/save needs a file: /save chat.jsonl")
        if name not in ("/save", "/system") and rest:
            raise DataError(f"{name} takes no argument, found {rest!r}")
        if name == "/quit":
            return True
        if name == "/help":
            print(_HELP, file=sys.stderr, flush=True)
        elif name == "/reset":
            session.reset()
        elif name == "/system":
            session.set_system(rest)
        elif name == "/save":
            _save(session, Path(rest))
        return False


def _cut_by(session: "ChatSession", request: "GenerationRequest") -> str:
    """Returns the limit that truncated the last answer, and what to do."""
    if session.context_full:
        return (
            f"the context of {plural(session.context, 'token')} is full: /reset starts a new "
            f"conversation; --context may allow longer ones"
        )
    tokens = plural(request.new_tokens(0), "token")
    return f"it has {tokens}, the limit of --max-new-tokens"


def _save(session: "ChatSession", path: Path) -> None:
    if not session.messages:
        raise DataError(f"/save {path}: the conversation is empty")
    row = {"messages": session.messages}
    with writing("/save", path), appending(path) as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
    wrote(path, what=plural(len(session.messages), "message"))


def _lines(at_terminal: bool) -> Iterator[str]:
    """Yields the lines of standard input, with a prompt at a terminal.

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
