"""Files and command lines of earlier versions stay usable through one table of names."""

import dataclasses
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_jax.core import old_names
from transformer_jax.decoding.requests import GenerationRequest
from transformer_jax.models.config import TransformerConfig
from transformer_jax.recipes.denoising import DenoisingRun
from transformer_jax.recipes.driver import read
from transformer_jax.recipes.finetuning import FinetuneRun
from transformer_jax.recipes.language_model import LanguageRun
from transformer_jax.recipes.masked_lm import PretrainRun
from transformer_jax.recipes.on_policy import PolicyRun
from transformer_jax.recipes.preferences import PreferenceRun
from transformer_jax.recipes.registry import named_runs
from transformer_jax.recipes.translation import Run
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.runs.run_directory import RunDirectory

TASK_RUNS = named_runs("finetuning")


def leaves(kind, prefix):
    for field in dataclasses.fields(kind):
        default = getattr(kind(), field.name)
        if dataclasses.is_dataclass(default):
            yield from leaves(type(default), f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


MODEL = set(leaves(TransformerConfig, "model."))


def nested(path, value):
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def flag(path):
    return "--" + path.replace("_", "-")


@pytest.mark.parametrize("table", ["SETTINGS", "COMMANDS", "REQUESTS", "METRICS", "ITEMS"])
def test_no_current_name_is_an_earlier_one(table):
    names = getattr(old_names, table)
    assert not set(names) & set(names.values())


def test_current_names_of_model_settings_exist():
    renamed = {new for new in old_names.SETTINGS.values() if new.startswith("model.")}
    assert renamed <= MODEL
    assert not set(old_names.SETTINGS) & MODEL


@pytest.mark.parametrize("run", [Run, DenoisingRun, LanguageRun, PretrainRun, FinetuneRun])
def test_no_setting_of_a_run_has_an_earlier_name(run):
    assert not set(old_names.SETTINGS) & set(leaves(run, ""))


def test_current_names_of_settings_of_runs_exist():
    runs = (Run, LanguageRun, PretrainRun, FinetuneRun)
    known = {name for run in runs for name in leaves(run, "")}
    assert set(old_names.SETTINGS.values()) - MODEL <= known


def test_every_earlier_setting_is_read_under_its_current_name():
    for old, new in old_names.SETTINGS.items():
        assert old_names.current_config(nested(old, 3)) == nested(new, 3)
        assert old_names.current_config(nested(new, 3)) == nested(new, 3)


def test_every_earlier_value_is_read_as_its_current_one():
    earlier = {new: old for old, new in old_names.SETTINGS.items()}
    for path, values in old_names.VALUES.items():
        for old, new in values.items():
            for name in {path, earlier.get(path, path)}:
                assert old_names.current_config(nested(name, old)) == nested(path, new)
                arguments = old_names.current_flags("train", [flag(name), old], [])
                assert arguments == [flag(path), new]


def test_every_earlier_flag_becomes_the_current_one_and_is_named(caplog):
    with caplog.at_level(logging.WARNING):
        for old, new in old_names.SETTINGS.items():
            for command in ("train", "resume"):
                assert old_names.current_flags(command, [flag(old), "x"], []) == [flag(new), "x"]
                assert f"{flag(old)} is now {flag(new)}" in caplog.text
            assert old_names.current_flags("train", [f"{flag(old)}=x"], []) == [f"{flag(new)}=x"]
    for command, flags in old_names.FLAGS.items():
        for old, new in flags.items():
            assert old_names.current_flags(command, [old, "x"], [])[0] == new
            no = [name.replace("--", "--no-", 1) for name in (old, new)]
            assert old_names.current_flags(command, no[:1], []) == no[1:]
    for command, values in old_names.FLAG_VALUES.items():
        for name, current in values.items():
            for old, new in current.items():
                assert old_names.current_flags(command, [name, old], []) == [name, new]


def test_earlier_flags_and_commands_lead_to_ones_that_exist():
    from transformer_jax.cli.commands import with_flags
    from transformer_jax.cli.flags import flags_of
    from transformer_jax.cli.training import flag_kinds, training_runs

    COMMANDS = dict(with_flags())
    assert set(old_names.COMMANDS.values()) <= set(COMMANDS)
    assert not set(old_names.COMMANDS) & set(COMMANDS)
    for command, flags in old_names.FLAGS.items():
        runs = [type(run) for _, run in training_runs("finetune").values()]
        kinds = {"evaluate": flag_kinds("evaluate").values(), "finetune": runs}
        known = {
            f"--{name}"
            for kind in kinds.get(command) or [COMMANDS[command]]
            for name in flags_of(kind)
        }
        assert set(flags.values()) <= known
        assert not set(flags) & known


def test_earlier_names_of_named_runs_lead_to_ones_that_exist(caplog):

    from transformer_jax.cli.run_flags import asked_run

    assert set(old_names.RUNS) == {"finetune"}
    [(old, new)] = old_names.RUNS["finetune"].items()
    assert old not in TASK_RUNS
    ask = lambda name: asked_run(
        "x finetune", {"finetune": ["finetuning"]}, [name, "--task.kind", old]
    )
    with caplog.at_level(logging.WARNING):
        name, run, *_ = ask(old)
    assert f"{old} is now {new}" in caplog.text
    assert (name, run.task.kind) == (new, new)
    assert (name, run) == ask(new)[:2]


def test_switches_keep_their_no():
    assert old_names.current_flags("train", ["--model.compute.no-scan"], []) == [
        "--model.compute.no-scan-layers"
    ]


def test_nothing_after_two_dashes_is_a_flag():
    arguments = ["--", "--model.width", "8"]
    assert old_names.current_flags("train", arguments, []) == arguments


def test_current_names_of_request_settings_exist():
    fields = {field.name for field in dataclasses.fields(GenerationRequest)}
    assert set(old_names.REQUESTS.values()) <= fields
    assert not set(old_names.REQUESTS) & fields


@pytest.mark.parametrize("objective", ["nsp", "sop"])
def test_earlier_measurements_of_pairs_are_named_after_the_sentence_objective(tmp_path, objective):
    earlier = {"next": "nsp", "order": "sop"}
    [pairs] = [old for old, new in earlier.items() if new == objective]
    (tmp_path / "config.json").write_text(json.dumps({"masking": {"pairs": pairs}}))
    line = {"step": 2, "valid_pair_accuracy": 0.5, "valid_masked_loss": 1.5, "pair_loss": 0.25}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    assert read_metrics(tmp_path / "metrics.jsonl") == [
        {"step": 2, f"valid_{objective}_accuracy": 0.5, "valid_mlm_loss": 1.5,
         f"{objective}_loss": 0.25},
    ]  # fmt: skip


def test_flat_keys_under_both_names_stay():
    both = {"beams": 1, "num_beams": 2}
    assert old_names.current_keys(both, old_names.REQUESTS) == both


WORDS = st.text("abdehiltw_.", max_size=5)  # "width" and "tied" among them


@given(st.dictionaries(WORDS, st.none() | WORDS | st.integers(0, 9), max_size=4))
def test_other_settings_stay_as_they_are(config):
    assert old_names.current_config({"other": config}) == {"other": config}


def test_a_setting_under_both_names_is_left_for_the_reader_to_refuse():
    both = {"model": {"width": 4, "d_model": 8}}
    assert old_names.current_config(both) == both


def test_a_run_that_has_a_setting_not_yet_keeps_what_it_did(tmp_path):
    fields = dataclasses.asdict(PreferenceRun())
    run = RunDirectory(tmp_path)
    run.write(run.config, fields)
    assert read(run).align.truncation == "pair"
    del fields["align"]["truncation"]
    run.write(run.config, fields)
    assert read(run).align.truncation == "row"
    fields = dataclasses.asdict(PolicyRun())
    run.write(run.config, fields)
    assert dataclasses.asdict(read(run).align) == fields["align"]
