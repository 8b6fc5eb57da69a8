"""``--plan``: bad input is refused in one line before anything is compiled or written."""

import dataclasses
import importlib.util
import json
import re

import pytest

from transformer_jax.cli import decoder_only
from transformer_jax.cli.training import take_plan
from transformer_jax.core.errors import ConfigError
from transformer_jax.data.added_tokens import add_tokens
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.recipes import driver
from transformer_jax.recipes.explicit_settings import Given
from transformer_jax.recipes.instruct import ChatConfig
from transformer_jax.recipes.registry import named_runs
from transformer_jax.recipes.settings import TokenizerConfig

RUNS = named_runs("instruct")

COMPILERS = importlib.util.find_spec("libtpu") is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plan"], "--plan needs devices: --plan h200:8, a TPU slice"),
        (["--plan", "--mesh.fsdp", "2"], "--plan needs devices"),
        (["--plan-json"], "--plan-json is the output format of --plan"),
        (["--plan", "80GiB", "--plan=40GiB"], "--plan is given twice"),
        (["--plan", "80GiB", "--resume"], "--plan and --resume exclude each other"),
    ],
)
def test_a_plan_needs_a_target(arguments, message):
    with pytest.raises(ConfigError, match=message):
        take_plan(arguments)


@pytest.mark.quick(
    "b200:8-there is no target 'b200:8': allowed are h200:8 (GPUs), h200:2x8",
    "v5e:3x5-target v5e:3x5: there is no such slice of v5e: there are 1x1, 2x2, 2x4",
    "80XB---plan 80XB: this is not the memory of a device: write 80GiB",
    "8GiB:8 --mesh.fsdp 3---mesh.fsdp 3 needs a multiple of 3 devices, and there are 8",
    "80GiB --distributed.num-local-devices 2-leave the --distributed flags out",
    "80GiB --training.sequence-length 4096-but the model has positions for 256 tokens",
    "80GiB --loop.best-checkpoint-metric bleu-this run has valid_loss",
)
@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("b200:8", "there is no target 'b200:8': allowed are h200:8 (GPUs), h200:2x8"),
        ("h200:0", "there is no target 'h200:0'"),
        ("v5e:8", "there is no target 'v5e:8'"),
        ("v5e:3x5", "target v5e:3x5: there is no such slice of v5e: there are 1x1, 2x2, 2x4"),
        ("v6e:2x2x2", "there is no such slice of v6e"),
        ("v5p:2x2x3", "there is no such slice of v5p: there are 1x1x1, 2x2x1"),
        ("80XB", "--plan 80XB: this is not the memory of a device: write 80GiB"),
        ("80GiB:0", "--plan 80GiB:0: this is not the memory of a device"),
        ("0GiB", "--plan 0GiB: this is not the memory of a device"),
        ("8GiB:8 --mesh.fsdp 3", "--mesh.fsdp 3 needs a multiple of 3 devices, and there are 8"),
        ("80GiB --distributed.num-local-devices 2", "leave the --distributed flags out"),
        ("80GiB --training.sequence-length 4096", "but the model has positions for 256 tokens"),
        ("80GiB:8 --mesh.context 8 --training.sequence-length 100", "a multiple of 8"),
        ("80GiB --loop.best-checkpoint-metric bleu", "this run has valid_loss"),
    ],
)
def test_an_unknown_target_is_refused_and_nothing_is_written(target, message, run_command):
    code, _, err = run_command("train", "char", "--plan", *target.split())
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_a_batch_without_room_for_the_rows_of_all_devices_is_refused(run_command):
    flags = ["--training.gradient-accumulation-steps", "8"]
    code, _, err = run_command("train", "base", "--plan", "80GiB:64", *flags)
    assert (code, "has no room for 512 rows of the longest text (256 padded)" in err) == (2, True)


def test_only_runs_that_are_pretrained_have_plans(run_command):
    code, _, err = run_command("train", "ngram", "--plan", "h200:8")
    assert (code, "--plan: not available for ngram" in err) == (2, True)


@pytest.mark.skipif(COMPILERS, reason="the compilers are installed")
def test_without_a_compiler_the_plan_is_an_estimate_that_says_so(run_command):
    code, out, err = run_command("train", "char", "--plan", "v5e:2x4")
    assert (code, out[1].split()[0]) == (0, "training")
    assert "estimated, not compiled: the TPU compiler is not installed: `pip install" in err
    speed = r"training, at 23% of the peak in bfloat16, .* s a step, .* tokens/s with padding"
    assert sum(re.match(speed, line) is not None for line in out) == 1
    figures = re.search(
        r"fits: ([\d.]+) GiB of the ([\d.]+) .*, by an estimate, .* (\d+)% free", err
    )
    most, usable, left = map(float, figures.groups())
    assert left == pytest.approx(100 * (1 - most / usable), abs=1)


@pytest.mark.parametrize(
    ("command", "name", "programs"),
    [
        ("train", "small", {"training", "evaluation", "decoding"}),
        ("train", "char", {"training", "evaluation", "decoding"}),
        ("pretrain", "small", {"training", "evaluation"}),
        ("finetune", "tag", {"training", "evaluation"}),
    ],
)
@pytest.mark.slow
def test_every_family_has_a_plan_of_all_its_programs(command, name, programs, run_command):
    code, out, _ = run_command(command, name, "--plan", "80GiB:4", "--plan-json")
    found = json.loads("\n".join(out))
    assert (code, found["estimated"], found["fits"]) == (0, True, True)
    assert {program["program"] for program in found["programs"]} == programs
    assert all(chosen["kernel"] for chosen in found["attention"].values())


@pytest.mark.slow
def test_the_settings_that_are_named_then_fit(run_command):
    code, _, err = run_command("train", "base", "--plan", "2GiB:4")
    assert code == 2
    assert err.splitlines()[-1].startswith("error: 2GiB:4: the run needs ")
    flags = err.rpartition("it fits with ")[2].split()
    code, _, err = run_command("train", "base", "--plan", "2GiB:4", *flags)
    assert (code, "fits: " in err) == (0, True)


@pytest.mark.quick("chatml")
@pytest.mark.parametrize("given", ["chatml", "phi-3"])
def test_tokens_that_a_run_adds_are_in_the_vocabulary_of_its_plan(tmp_path, capsys, given):
    """The vocabulary has the tokens of the tokenizer of such a run; twice is once."""
    tokenizer = train_tokenizer("bytes", ["um dois"], 300)
    path = tmp_path / "tokenizer.json"
    add_tokens(tokenizer, (), ("<|end|>",)).save(path)
    flags = ["--tokenizer.add-tokens", "um", "--chat.template", given]
    flags += ["--tokenizer.path", str(path)]
    chats = tmp_path / "chats.jsonl"
    chats.write_text('{"messages": [{"role": "user", "content": "a"}, '
                     '{"role": "assistant", "content": "b"}]}\n')  # fmt: skip
    named = RUNS["sft-cpu"][1]
    run = dataclasses.replace(
        named,
        data=dataclasses.replace(named.data, train=str(chats)),
        chat=ChatConfig(given),
        tokenizer=TokenizerConfig(path=str(path), add_tokens=("um",)),
        output=str(tmp_path / "run"),
    )
    begun, directory, _ = driver.create_run(run, Given(named))
    assert decoder_only.main(["instruct", "sft-cpu", "--plan", "80GiB", "--plan-json", *flags]) == 0
    found = capsys.readouterr()
    planned = json.loads(found.out)["vocabulary"]
    assert planned == begun.model.vocab_size == directory.load_tokenizer().vocab_size
    more = planned - tokenizer.vocab_size - 1
    assert f"of {path}, and {more} tokens that the run adds" in found.err


@pytest.mark.slow
def test_tokens_of_a_template_come_to_a_vocabulary_that_is_to_be_learned(run_command):
    words = ["instruct", "sft", "--plan", "80GiB", "--chat.template", "llama-3"]
    _, _, err = run_command(*words)
    assert "a vocabulary of 32,003 (at most, learned from the text, and 3 tokens that" in err
