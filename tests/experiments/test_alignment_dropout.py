"""``align`` from models with dropout: at its first step, the policy is its reference, row B40."""

import dataclasses
import itertools
import json
import math
import shutil
import typing

import pytest

from tests.cli.conftest import language_run
from tests.interop.word_level import tokenizer_json
from tests.parity import layouts
from transformer_jax.cli import decoder_only
from transformer_jax.core.errors import DataError
from transformer_jax.models.config import TransformerConfig
from transformer_jax.recipes.explicit_settings import Given
from transformer_jax.recipes.freezing import load_pretrained
from transformer_jax.recipes.on_policy import PolicyConfig, RewardConfig
from transformer_jax.recipes.preferences import AlignConfig
from transformer_jax.recipes.registry import get_recipe
from transformer_jax.recipes.tasks.batching import dropout_rates

ON_POLICY = typing.get_args(typing.get_type_hints(PolicyConfig)["method"])
PREFERENCES = typing.get_args(typing.get_type_hints(AlignConfig)["method"])
RECIPES = dict.fromkeys(PREFERENCES, "preferences") | {"reward": "reward_model"}
RECIPES |= dict.fromkeys(ON_POLICY, "on_policy")

DECODERS = [
    name
    for name, layout in layouts.LAYOUTS.items()
    if layout["config"]["architectures"][0].endswith(("CausalLM", "GPT2LMHeadModel"))
]
RATES = dropout_rates(TransformerConfig())
# The loss and margin of two equal policies.
EQUAL = {"dpo": (math.log(2), 0), "ipo": (25, 0), "kto": (0.5, 0), "grpo": (0, None)}
STEP = ["--distributed.num-local-devices", "1", "--loop.evaluate-every", "0", "--training.steps", 1]
STEP += ["--loop.checkpoint-every", "0"]
ROWS = ["--align.max-length", "16", "--training.max-tokens", "256", "--training.num-buckets", "1"]
# A ratio counts as clipped if it differs from 1 by more than 1e-5.
SAMPLES = ["--align.max-prompt-length", "8", "--align.max-new-tokens", "4", "--align.clip", "1e-5"]
SAMPLES += ["--align.group-size", "2", "--align.updates", "1", "--training.batch-size", "2"]


def hf_folder(path, layout, rate):
    """Writes a Hugging Face folder of a layout with one dropout rate everywhere."""
    layouts.write(layout, path)
    fields = layouts.LAYOUTS[layout]["config"]
    rates = {name: rate for name in fields if name.endswith(("dropout", "pdrop"))}
    (path / "config.json").write_text(json.dumps(fields | rates))
    (path / "tokenizer.json").write_text(tokenizer_json(fields["vocab_size"]))
    return path


def with_dropout(run, rate):
    """Sets all dropout rates in the configuration of a run."""
    fields = json.loads((run / "config.json").read_text())
    for name in RATES:
        group, key = name.split(".")
        fields["model"][group][key] = rate
    (run / "config.json").write_text(json.dumps(fields))
    return run


@pytest.fixture(scope="module")
def base(shared):
    return shared("align_base", lambda run: language_run(run, "characters", "rope", "bos"))


@pytest.fixture
def files(tmp_path):
    (tmp_path / "reward.py").write_text("def reward(p, c):\n    return len(c) / 9\n")
    for kind, words in (("folder", [f"w{i} " for i in range(6, 30)]), ("run", "abcdefab" * 3)):
        rows = [(words[i], words[i + 1] + words[i + 2], words[i + 3]) for i in range(20)]
        pairs = [dict(zip(("prompt", "chosen", "rejected"), row, strict=True)) for row in rows]
        labels = [
            {"prompt": p, "completion": c, "label": i % 3 > 0} for i, (p, c, _) in enumerate(rows)
        ]
        for name, lines in (("pairs", pairs), ("labels", labels)):
            file = tmp_path / f"{kind}_{name}.jsonl"
            file.write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


def first_step(method, start, files, name, *more):
    """Runs one step of a method; returns its metrics."""
    kind = "run" if (start / "checkpoints").exists() else "folder"
    data = files / f"{kind}_{'labels' if method == 'kto' else 'pairs'}.jsonl"
    given = ["align", method, "--init-from", start, "--data.train", data, *STEP]
    given += [*SAMPLES, "--reward.file", files / "reward.py"] if method in ON_POLICY else ROWS
    given += ["--output", files / name, *more]
    assert decoder_only.main([*map(str, given)]) == 0
    rows = map(json.loads, (files / name / "metrics.jsonl").read_text().splitlines())
    return next(row for row in rows if "loss" in row)


def test_the_named_runs_of_align_are_the_methods():
    named = {name for recipe in set(RECIPES.values()) for name in get_recipe(recipe).runs}
    assert named == {*PREFERENCES, *ON_POLICY}


@pytest.mark.quick("gpt2")
@pytest.mark.parametrize("layout", DECODERS)
def test_no_method_takes_the_dropout_of_a_folder(tmp_path, monkeypatch, layout):
    opened = []
    reward = tmp_path / "reward.py"
    reward.write_text("def reward(prompt, completion):\n    return 0.0\n")

    def data(self, run):
        opened.append(run)
        raise DataError

    start = load_pretrained(str(hf_folder(tmp_path / layout, layout, 0.3)), ("decoder",))
    assert any(dropout_rates(start.model).values())
    for method, name in RECIPES.items():
        recipe = get_recipe(name)
        named = recipe.runs[method][1]
        monkeypatch.setattr(type(recipe), "data", data)
        run = dataclasses.replace(named, init_from=str(tmp_path / layout))
        if method in ON_POLICY:
            run = dataclasses.replace(run, reward=RewardConfig(str(reward)))
        with pytest.raises(DataError):
            recipe.prepare(run, start, Given(named))
        assert not any(dropout_rates(opened[-1].model).values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "method"),
    [
        *itertools.product(["gpt2"], RECIPES),
        *itertools.product(["phi3", "opt", "run"], ["dpo", "ppo"]),
    ],
)
def test_the_first_step_is_the_step_of_two_equal_policies(base, files, capsys, start, method):
    def made(rate):
        path = files / f"{start}_{rate}"
        if start == "run":
            shutil.copytree(base, path)
            return with_dropout(path, rate)
        return hf_folder(path, start, rate)

    found = first_step(method, made(0.3), files, "dropout")
    assert "no dropout in this run" in capsys.readouterr().err
    plain = first_step(method, made(0.0), files, "plain")
    compared = ("loss", "accuracy", "reward_margin", "clipped", "reward", "kl", "value_loss")
    assert {k: found[k] for k in compared if k in found} == {
        k: plain[k] for k in compared if k in plain
    }
    if method in EQUAL:
        loss, margin = EQUAL[method]
        assert found["loss"] == pytest.approx(loss, abs=2e-5)
        assert margin is None or found["reward_margin"] == pytest.approx(margin, abs=2e-5)
    if method in ON_POLICY:
        assert found["clipped"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dpo", "reward", "ppo"])
def test_dropout_that_is_asked_for_is_used_and_told(files, capsys, method):
    start = hf_folder(files / "start", "gpt2", 0.1)
    asked = ["--model.norm.residual-dropout", "0.1"]  # equal to the folder's rate
    found = first_step(method, start, files, "asked", *asked)
    told = "dropout in the loss only, not in references and samples: norm.residual_dropout 0.1"
    assert told in capsys.readouterr().err
    rates = json.loads((files / "asked" / "config.json").read_text())["model"]
    assert (rates["norm"]["residual_dropout"], rates["embedding"]["dropout"]) == (0.1, 0.0)
    plain = first_step(method, start, files, "plain")
    assert found["loss"] != plain["loss"]
    if method in ON_POLICY:
        assert found["clipped"] > 0.5
