"""``transformer-jax prefer``: which of two samples is better, written as pairs for ``align``."""

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from transformer_jax.cli.output import note
from transformer_jax.cli.run_command import PredictionCommand
from transformer_jax.errors import ConfigError, DataError, plural

if TYPE_CHECKING:
    from transformer_jax.decoding.requests import GenerationRequest, LanguageModel

__all__ = ["Prefer"]

Choice = Literal["1", "2", "s", "q"]
# Of a prompt and its two samples.
Choose = Callable[[str, str, str], Choice]

ANSWERS: tuple[Choice, ...] = ("1", "2", "s", "q")
QUESTION = "better: 1 or 2? (s skips, q quits) "
AT_ONCE = 32  # prompts whose samples are drawn together, where nobody waits


@dataclasses.dataclass(frozen=True)
class Prefer(PredictionCommand):
    """Show two samples of each prompt and write the better one: pairs for align dpo and reward."""

    run: tyro.conf.Positional[Path]
    """Run directory or Hugging Face folder of a language model."""
    prompts: tyro.conf.Positional[Path]
    """File with one prompt per line."""
    output: Path
    """JSON lines with "prompt", "chosen" and "rejected"; a file that is there is continued."""
    rule: Path | None = None
    """Python file with reward(prompt, completion) -> float that chooses, instead of the keyboard.
    Equal rewards skip the prompt."""
    max_new_tokens: int = 128
    """Maximum number of new tokens."""
    temperature: float = 1.0
    """Sampling temperature."""
    top_k: int | None = None
    """Sample from the k most probable tokens."""
    top_p: float | None = None
    """Nucleus sampling: the fewest tokens with at least this total probability."""
    seed: int = 0
    """Random seed for sampling."""
    checkpoint: str = "best"
    """Checkpoint: best, last, a step number, or average:N (mean of the last N)."""

    def __call__(self) -> int:
        """Writes a pair for each choice; returns the exit code.

        Raises:
            ConfigError: A setting out of its range, or a rule that cannot be used.
            DataError: A file cannot be read or written, or is of other prompts.
        """
        from transformer_jax.data.text import read_lines
        from transformer_jax.predictors.runs import as_trained, load_language

        if not self.temperature:
            raise ConfigError("--temperature is 0: the two samples would be equal: give more")
        prepare = as_trained(self.run, trim=False)
        requests = [self._request(prepare(line)) for line in read_lines(self.prompts, "prompts")]
        if not requests:
            raise DataError(f"{self.prompts}: no prompts, it is empty")
        choose, begun = self._chooser(), self._begun([one.prompt for one in requests])
        if begun == len(requests):
            note(f"{self.output}: all {plural(begun, 'prompt')} are done")
            return 0
        model = load_language(self.run, self.checkpoint)
        if begun:
            note(f"{self.output}: continued at prompt {begun + 1} of {len(requests)}")
        written = 0
        try:
            with self.output.open("a", encoding="utf-8") as file:
                for row in self._pairs(model, requests, begun, choose):
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
                    file.flush()
                    written += 1
        except OSError as error:
            raise DataError(
                f"--output {self.output}: cannot be written: {error.strerror}"
            ) from None
        note(f"{self.output}: {plural(written, 'pair')} written")
        return 0

    def _request(self, prompt: str) -> "GenerationRequest":
        from transformer_jax.decoding.requests import GenerationRequest

        return GenerationRequest(
            prompt,
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=self.seed,
            num_return_sequences=2,
        )

    def _chooser(self) -> Choose:
        if self.rule is None:
            return _ask
        from transformer_jax.tasks.rewards import PythonReward, load_reward

        rule = PythonReward(load_reward(str(self.rule), "--rule"), None, str(self.rule))

        def by_rule(prompt: str, one: str, two: str) -> Choice:
            first, second = rule.value(prompt, one), rule.value(prompt, two)
            return "s" if first == second else "1" if first > second else "2"

        return by_rule

    def _begun(self, prompts: list[str]) -> int:
        """How many prompts the output file is beyond: those up to its last pair.

        Raises:
            DataError: A pair of it is of no such prompt.
        """
        from transformer_jax.data.tables import parse_object
        from transformer_jax.data.text import read_lines

        if not self.output.exists():
            return 0
        last = 0
        for number, line in enumerate(read_lines(self.output, "--output"), 1):
            row = parse_object(line, self.output, number)
            at: Any = row.get("line")
            known = isinstance(at, int) and 1 <= at <= len(prompts)
            if not known or prompts[at - 1] != row.get("prompt"):
                raise DataError(
                    f"--output {self.output}:{number}: no pair of the prompts of {self.prompts}: "
                    f"choose another file"
                )
            last = max(last, at)
        return last

    def _pairs(
        self,
        model: "LanguageModel",
        requests: "list[GenerationRequest]",
        begun: int,
        choose: Choose,
    ) -> Iterator[dict[str, Any]]:
        """The pairs that are chosen, with the line of each prompt."""
        size = 1 if self.rule is None else AT_ONCE
        for start in range(begun, len(requests), size):
            part = [
                dataclasses.replace(one, number=start + i)
                for i, one in enumerate(requests[start : start + size])
            ]
            for at, (request, found) in enumerate(
                zip(part, model.generate(part), strict=True), start + 1
            ):
                one, two = (sample.text for sample in found)
                shown = request.prompt
                if one == two or not one or not two:
                    note(f"prompt {at} of {len(requests)}: samples are equal or empty, skipped")
                    continue
                if self.rule is None:
                    _show(at, len(requests), shown, one, two)
                choice = choose(shown, one, two)
                if choice == "q":
                    return
                if choice != "s":
                    chosen, rejected = (one, two) if choice == "1" else (two, one)
                    yield {"prompt": shown, "chosen": chosen, "rejected": rejected, "line": at}


def _show(number: int, count: int, prompt: str, one: str, two: str) -> None:
    for text in (f"prompt {number} of {count}: {prompt}", f"[1] {one}", f"[2] {two}"):
        print(text, flush=True)


def _ask(prompt: str, one: str, two: str) -> Choice:
    """The choice of whoever sits at the keyboard, or of a line of standard input."""
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
