"""``transformer-jax win-rate``: how often a model's samples are better than another model's."""

import dataclasses
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from transformer_jax.cli.output import check_file, escaped, note, write_json, wrote
from transformer_jax.cli.support.input_lines import note_prompts
from transformer_jax.cli.support.sampling import (
    SamplingCommand,
    completions,
    load_sampler,
    read_prompts,
)
from transformer_jax.core.config_fields import Amount, OutputPath, Range
from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.core.text_tables import aligned

if TYPE_CHECKING:
    from transformer_jax.data.preferences import Prompt
    from transformer_jax.decoding.requests import GenerationRequest
    from transformer_jax.evaluation.win_rate import WinRate

__all__ = ["WinRateCommand"]


@dataclasses.dataclass(frozen=True)
class WinRateCommand(SamplingCommand):
    """Sample from two language models and count whose completions a rule prefers."""

    run: tyro.conf.Positional[Path]
    """Run directory or Hugging Face folder of a language model."""
    other: tyro.conf.Positional[Path]
    """Model to compare with, such as the run that it was initialized from."""
    prompts: tyro.conf.Positional[Path]
    """File with one prompt per line, or .jsonl with "prompt" or the "messages" of a conversation
    per line."""
    rule: Path
    """Python file with reward(prompt, completion) -> float; the higher reward wins. The file is
    executed: use files that you trust. For a conversation, the prompt is its last message."""
    samples: Annotated[int, Range(1, 10_000)] = 1
    """Number of completions per prompt and model, compared in pairs."""
    show: Amount = 0
    """Number of prompts whose completions are printed."""
    json: OutputPath | None = None
    """Output file of all completions, rewards and figures."""

    def __call__(self) -> int:
        """Prints the win rate; returns the exit code.

        Raises:
            ConfigError: A setting is out of range, or the rule cannot be used.
            DataError: A file cannot be read, no prompt fits in both contexts, or the rule fails on
                a completion.
        """
        from transformer_jax.data.preferences import prompt_text
        from transformer_jax.evaluation.win_rate import win_rate
        from transformer_jax.recipes.tasks.rewards import PythonReward, load_reward

        self._check()
        rule = PythonReward(load_reward(str(self.rule), "--rule"), None, str(self.rule))
        blank = lambda prompt: isinstance(prompt, str) and not prompt.strip()
        prompts = [one for one in read_prompts(self.prompts) if not blank(one)]
        prompts, requests, both = self._completions(prompts)
        rewards = [
            [
                [rule.value(prompt_text(one.messages or one.prompt), text) for text in row]
                for one, row in zip(asked, texts, strict=True)
            ]
            for asked, texts in zip(requests, both, strict=True)
        ]
        found = win_rate(*rewards)
        print(self._table(found))
        note(
            f"{plural(len(prompts), 'prompt')}; 95 % interval of the win rate of {self.run}: "
            f"{found.low:.3f} to {found.high:.3f}; a tie is half a win"
        )
        for i, prompt in enumerate(prompts[: self.show]):
            shown = prompt if isinstance(prompt, str) else ""
            for run, texts in zip((self.run, self.other), both, strict=True):
                for text in texts[i]:
                    print(f"{i + 1}\t{run}\t{escaped(shown + text)}")
        if self.json is not None:
            models = {
                name: {"completions": texts, "rewards": values}
                for name, texts, values in zip(("run", "other"), both, rewards, strict=True)
            }
            figures = dataclasses.asdict(found)
            write_json("--json", self.json, {"prompts": prompts, "win_rate": figures, **models})
            wrote(self.json)
        return 0

    def _table(self, found: "WinRate") -> str:
        rows = (
            (self.run, found.wins, found.rate, found.rewards[0]),
            (self.other, found.losses, 1 - found.rate, found.rewards[1]),
        )
        cells = [
            (str(run), f"{wins}", f"{found.ties}", f"{rate:.3f}", f"{reward:.4g}")
            for run, wins, rate, reward in rows
        ]
        return aligned([("model", "wins", "ties", "win rate", "mean reward"), *cells])

    def _check(self) -> None:
        check_file("--json", self.json, (".json",))
        if self.samples > 1 and self.temperature == 0:
            raise ConfigError(
                f"--samples is {self.samples} and --temperature 0: all samples would be equal: "
                f"change one of them"
            )

    def _completions(
        self, prompts: "list[Prompt]"
    ) -> "tuple[list[Prompt], list[list[GenerationRequest]], list[list[list[str]]]]":
        """Returns the prompts that fit both models, prepared as in training, and their completions.

        A model with too short a context would complete a different prompt from the other model.

        Raises:
            DataError: No prompt fits in both contexts.
        """
        from transformer_jax.inference.pretrained import read_facts

        runs, conversational = (self.run, self.other), not isinstance(prompts[0], str)
        known = [read_facts(run, self.checkpoint, self.opening()) for run in runs]
        requests = [self.requests(facts, prompts, self.samples) for facts in known]
        models = [load_sampler(facts, conversational=conversational) for facts in known]
        fit = [
            all(model.reads(one) for model, one in zip(models, both, strict=True))
            for both in zip(*requests, strict=True)
        ]
        if long := fit.count(False):
            said = f"longer than the context of {self.run} or {self.other}"
            if long == len(prompts):
                raise DataError(f"{self.prompts}: all prompts are {said}: shorten them")
            note(f"{self.prompts}: {long} of {plural(len(prompts), 'prompt')} skipped: {said}")
        prompts = list(itertools.compress(prompts, fit))
        requests = [list(itertools.compress(asked, fit)) for asked in requests]
        texts = [
            [completions(one, found) for one, found in zip(asked, model(asked), strict=True)]
            for model, asked in zip(models, requests, strict=True)
        ]
        for run, model in zip(runs, models, strict=True):
            note_prompts(model.language, f"{run}: ")
        return prompts, requests, texts
