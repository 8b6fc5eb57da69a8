"""``transformer-jax prefer``: choices between two samples, written as pairs for ``align``."""

import collections
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from transformer_jax.cli.output import appending, note, writing
from transformer_jax.cli.support.input_lines import note_prompts
from transformer_jax.cli.support.sampling import (
    SamplingCommand,
    completions,
    load_sampler,
    read_prompts,
)
from transformer_jax.core.config_fields import OutputPath
from transformer_jax.core.errors import ConfigError, DataError, plural

if TYPE_CHECKING:
    from transformer_jax.decoding.requests import Continuation, GenerationRequest

__all__ = ["Prefer"]

Choice = Literal["1", "2", "s", "q"]
# The choice between two samples of a prompt.
Choose = Callable[[str, str, str], Choice]

ANSWERS: tuple[Choice, ...] = ("1", "2", "s", "q")
QUESTION = "better: 1 or 2? (s skips, q quits) "
AT_ONCE = 32  # prompts sampled together if no person waits


@dataclasses.dataclass(frozen=True)
class Prefer(SamplingCommand):
    """Show two samples of each prompt and record the better one: pairs for align dpo and reward."""

    run: tyro.conf.Positional[Path]
    """Run directory or Hugging Face folder of a language model."""
    prompts: tyro.conf.Positional[Path]
    """File with one prompt per line, or .jsonl with "prompt" or the "messages" of a conversation
    per line."""
    output: OutputPath
    """Output file of JSON lines with "prompt" (or "messages"), "chosen" and "rejected"; an existing
    file is continued."""
    rule: Path | None = None
    """Python file with reward(prompt, completion) -> float that chooses, instead of the keyboard.
    The file is executed: use files that you trust. If rewards are equal, the prompt is skipped. For
    a conversation, the prompt is its last message."""

    def __call__(self) -> int:
        """Writes a pair for each choice; returns the exit code.

        Raises:
            ConfigError: A setting is out of range, the rule cannot be used, or the output cannot be
                written.
            DataError: A file cannot be read, or the output is from other prompts.
        """
        if self.temperature == 0:
            raise ConfigError("--temperature is 0: the two samples would be equal: raise it")
        if self.output.suffix == ".gz":
            raise ConfigError(
                f"--output {self.output}: pairs are appended, which .gz does not allow"
            )
        from transformer_jax.inference.pretrained import read_facts

        facts = read_facts(self.run, self.checkpoint, self.opening())
        requests = self.requests(facts, read_prompts(self.prompts), 2)
        choose, begun = self._chooser(), self._begun(requests)
        if begun == len(requests):
            note(f"{self.output}: all {plural(begun, 'prompt')} are done")
            return 0
        conversational = requests[0].messages is not None
        complete = load_sampler(facts, conversational=conversational)
        if begun:
            note(f"{self.output}: continued at prompt {begun + 1} of {len(requests)}")
        written, left = 0, collections.Counter[str]()
        with writing("--output", self.output):
            file = appending(self.output)
        with file:
            for row in self._pairs(complete, requests, begun, choose, left):
                with writing("--output", self.output):
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
                    file.flush()
                written += 1
        note_prompts(complete.language)
        why = ", ".join(f"{reason} {count:,}" for reason, count in left.items())
        counts = f"; prompts without a pair: {why}" if why else ""
        note(f"{self.output}: {plural(written, 'pair')} written{counts}")
        return 0

    def _chooser(self) -> Choose:
        if self.rule is None:
            return _ask
        from transformer_jax.recipes.tasks.rewards import PythonReward, load_reward

        rule = PythonReward(load_reward(str(self.rule), "--rule"), None, str(self.rule))

        def by_rule(prompt: str, one: str, two: str) -> Choice:
            first, second = rule.value(prompt, one), rule.value(prompt, two)
            return "s" if first == second else "1" if first > second else "2"

        return by_rule

    def _begun(self, requests: "list[GenerationRequest]") -> int:
        """Returns the number of prompts up to the last pair of the output file.

        Raises:
            DataError: A pair does not belong to these prompts.
        """
        from transformer_jax.data.tables import JsonRow
        from transformer_jax.data.text import read_lines

        if not self.output.exists():
            return 0
        with writing("--output", self.output):
            _drop_unfinished(self.output)
        last = 0
        for number, line in enumerate(read_lines(self.output, "--output"), 1):
            row = JsonRow.parse(line, f"{self.output}:{number}").fields
            at: Any = row.get("line")
            known = isinstance(at, int) and 1 <= at <= len(requests)
            if not known or not row.items() >= _prompt(requests[at - 1]).items():
                raise DataError(
                    f"--output {self.output}:{number}: not a pair of a prompt in {self.prompts}: "
                    f"choose another file"
                )
            last = max(last, at)
        return last

    def _pairs(
        self,
        complete: "Callable[[Sequence[GenerationRequest]], Iterable[list[Continuation]]]",
        requests: "list[GenerationRequest]",
        begun: int,
        choose: Choose,
        left: collections.Counter[str],
    ) -> Iterator[dict[str, Any]]:
        """Yields the chosen pairs, with the line number of each prompt; counts the others."""
        from transformer_jax.data.preferences import prompt_text

        size = 1 if self.rule is None else AT_ONCE
        for start in range(begun, len(requests), size):
            part = [
                (at, request)
                for at, request in enumerate(requests[start : start + size], start + 1)
                if request.messages or request.prompt.strip()
            ]
            left.update(["empty prompt"] * (len(requests[start : start + size]) - len(part)))
            answers = complete([request for _, request in part])
            for (at, request), found in zip(part, answers, strict=True):
                shown = prompt_text(request.messages or request.prompt)
                one, two = completions(request, found)
                # Skip pairs that training would refuse.
                if one == two or not one or not two or "\0" in one + two:
                    where = f"prompt {at} of {len(requests)}"
                    note(f"{where}: samples are equal or empty, or hold NUL, skipped")
                    left["equal or empty samples"] += 1
                    continue
                if self.rule is None:
                    _show(at, len(requests), shown, one, two)
                choice = choose(shown, one, two)
                if choice == "q":
                    return
                if choice == "s":
                    left["skipped" if self.rule is None else "equal rewards"] += 1
                else:
                    chosen, rejected = (one, two) if choice == "1" else (two, one)
                    yield _prompt(request) | {"chosen": chosen, "rejected": rejected, "line": at}


def _drop_unfinished(path: Path) -> None:
    """Removes an incomplete last line, left by a kill."""
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    if not content.startswith((b'{"prompt": ', b'{"messages": ')) or end == len(content):
        return
    try:
        json.loads(content[end:])
    except (ValueError, RecursionError):
        os.truncate(path, end)
        note(f"{path}: the last line was incomplete and was removed")


def _prompt(request: "GenerationRequest") -> dict[str, Any]:
    """Returns the prompt of a request as fields of a JSON line."""
    if request.messages is None:
        return {"prompt": request.prompt}
    return {"messages": list(request.messages)}


def _show(number: int, count: int, prompt: str, one: str, two: str) -> None:
    for text in (f"prompt {number} of {count}: {prompt}", f"[1] {one}", f"[2] {two}"):
        print(text, flush=True)


def _ask(prompt: str, one: str, two: str) -> Choice:
    """Reads a choice from the keyboard or a line of standard input."""
    del prompt, one, two
    while True:
        print(QUESTION, end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return "q"
        for answer in ANSWERS:
            if line.strip().lower() == answer:
                return answer
        note(f"{line.strip()[:20]!r}: type {', '.join(ANSWERS[:-1])} or {ANSWERS[-1]}")
