"""``--engine ctranslate2`` on the command line: every flag works there, or is refused by name."""

import dataclasses
import json
import random
import re
import shutil
import subprocess
import sys

import jax
import pytest

import transformer_jax as tj
from tests.cli.conftest import LESSON
from tests.conftest import SWEEP_SEED
from tests.interop.word_level import tokenizer_json
from tests.parity import layouts
from transformer_jax.cli.generate import Generate
from transformer_jax.cli.translate import Translate
from transformer_jax.core.errors import ConfigError
from transformer_jax.decoding.generation_config import TRANSLATION
from transformer_jax.runs.checkpoint import Checkpointer
from transformer_jax.runs.checkpoint_reader import load_params
from transformer_jax.training.state import TrainState

pytest.importorskip("ctranslate2")

ENGINE = ("--engine", "ctranslate2")
LINES = "".join(f"{source}\n" for source, _ in LESSON) + "\n"
PROMPTS = "a c\n\nab, d\nab\n"


@pytest.fixture(scope="module")
def lesson_run(trained_run, tmp_path_factory):
    return shutil.copytree(trained_run, tmp_path_factory.mktemp("engine") / "lesson")


@pytest.fixture(scope="module")
def language_run(rotary_run, tmp_path_factory):
    return shutil.copytree(rotary_run, tmp_path_factory.mktemp("engine") / "language")


# Each flag with a value of its own; None is refused, and names another reason where it is a text.
TRANSLATE = {
    "output": ["--output", "OUT"],
    "num_beams": ["--num-beams", 1],
    "normalization": ["--normalization", "none"],
    "length_penalty": ["--length-penalty", 0],
    "num_return_sequences": ["--num-return-sequences", 2],
    "scores": ["--scores"],
    "tsv": ["--tsv"],
    "checkpoint": ["--checkpoint", 100],
    "batch_size": ["--batch-size", 2],
    "buffer_size": ["--buffer-size", 1],
    "max_len_a": ["--max-len-a", 1],
    "max_len_b": ["--max-len-b", 40],
    "too_long": ["--too-long", "error"],
    "allow_changed_config": ["--allow-changed-config"],
    "engine_cache": ["--engine-cache", "CACHE"],
}
GENERATE = {
    "max_new_tokens": ["--max-new-tokens", 30],
    "top_k": ["--top-k", 3],
    "top_p": ["--top-p", 0.5],
    "repetition_penalty": ["--repetition-penalty", 1.3],
    "no_repeat_ngram_size": ["--no-repeat-ngram-size", 2],
    "stop": ["--stop", "$$", "a"],
    "num_return_sequences": ["--num-return-sequences", 2],
    "seed": ["--seed", 4],
    "json": ["--json"],
    "tsv": ["--tsv"],
    "checkpoint": ["--checkpoint", 7],
    "batch_size": ["--batch-size", 2],
    "too_long": ["--too-long", "error"],
    "on_full_context": ["--on-full-context", "stop"],
    "allow_changed_config": ["--allow-changed-config"],
    "engine_cache": ["--engine-cache", "CACHE"],
}
REFUSED = {
    "adapter": ["--adapter", "runs/mine"],
    "min_p": ["--min-p", 0.1],
    "trace": ["--trace"],
    "exhaustive": ["--exhaustive", 2],
    "beam_tree": ["--beam-tree", "tree.png"],
    "generation_config": ["--generation-config", "hf"],
    "mesh": ["--mesh.data", 2],
    "prompt_lookup_num_tokens": ["--prompt-lookup-num-tokens", 4],
    "context": ["--context", 16],
    "rope_interpolation": ["--rope-interpolation"],
    "dtype": ["--dtype", "bfloat16"],
}
# Sampling, and what is compared elsewhere.
OTHERS = {"sample", "temperature", "top_k", "top_p", "seed", "input", "engine", "compute", "run"}
OTHERS |= {"prompt", "prompts", "requests", "num_beams", "num_return_sequences"}
OTHERS |= {"to", "from_language"}


@pytest.mark.parametrize(
    ("command", "table"),
    [(Translate, TRANSLATE), (Generate, GENERATE)],
    ids=["translate", "generate"],
)
def test_each_flag_of_the_command_is_decided(command, table):
    names = {field.name for field in dataclasses.fields(command)}
    assert names - OTHERS - set(table) <= set(REFUSED)
    assert not set(table) & set(REFUSED)
    assert set(command.NOT_THERE) == set(REFUSED)


def in_both(run_command, command, run, flags, tmp_path, text):
    """The output of the command in both engines, without figures."""
    found = []
    for engine in ((), ENGINE):
        given = [*flags, *engine]
        if "--engine-cache" in given and not engine:
            given = [flag for flag in given if flag not in ("--engine-cache", "CACHE")]
        given = [{"CACHE": tmp_path / "cache", "OUT": tmp_path / "out"}.get(f, f) for f in given]
        code, out, err = run_command(command, run, *given, text=text)
        assert code == 0, err
        if (tmp_path / "out").exists():
            out = [(tmp_path / "out").read_text()]
        found.append([re.sub(r"-?\d+\.\d+", "N", line) for line in out])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSLATE)
def test_each_flag_of_translate_works_as_in_ours(lesson_run, run_command, tmp_path, name):
    found = in_both(run_command, "translate", lesson_run, TRANSLATE[name], tmp_path, LINES)
    if name == "num_return_sequences":  # its further translations are those that had ended by then
        found = [[line.split("\t")[0] for line in part] for part in found]
    assert found[0] == found[1]
    assert "Hello, how are you?" in "".join(found[1])
    if name == "engine_cache":
        assert [path.name for path in (tmp_path / "cache").iterdir()] == ["ctranslate2"]


@pytest.mark.slow
@pytest.mark.parametrize("name", GENERATE)
def test_each_flag_of_generate_works_as_in_ours(language_run, run_command, tmp_path, name):
    base = ["--prompts", "-", "--temperature", 0]
    base += [] if name == "max_new_tokens" else ["--max-new-tokens", 9]
    flags = [*base, *GENERATE[name]]
    one, other = in_both(run_command, "generate", language_run, flags, tmp_path, PROMPTS)
    assert one == other
    assert len(one) > 4


@pytest.mark.parametrize("name", REFUSED)
def test_a_flag_that_it_lacks_is_refused_by_name(lesson_run, language_run, run_command, name):
    in_translate = name in {field.name for field in dataclasses.fields(Translate)}
    command, run = ("translate", lesson_run) if in_translate else ("generate", language_run)
    code, out, err = run_command(command, run, *REFUSED[name], *ENGINE, text="a\n")
    assert (code, out) == (2, [""])
    flag = "--" + name.replace("_", "-")
    assert err.startswith(f"error: {flag} does not go with --engine ctranslate2, which ")
    assert err.endswith(": leave it out, or use --engine jax\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize("flag", [("--compute", "int8"), ("--engine-cache", "there")])
def test_flags_of_the_engine_alone_are_refused_without_it(lesson_run, run_command, flag):
    code, _, err = run_command("translate", lesson_run, *flag, text="a\n")
    assert code == 2
    assert err == f"error: {flag[0]} is for --engine ctranslate2: add that\n"


def test_requests_are_refused_by_their_line(gpt2_like, run_command, tmp_path):
    asked = tmp_path / "requests"
    for line, said in (
        ({"prompt": "a", "min_p": 0.5}, "min_p: CTranslate2 has no such setting"),
        ({"prompt": "a", "repetition_penalty": 2, "temperature": 0}, "ignores the start token"),
        ({"prompt": "a", "no_repeat_ngram_size": 2, "max_new_tokens": 99}, "at most 23 new tokens"),
    ):
        asked.write_text(json.dumps(line) + "\n")
        code, out, err = run_command("generate", gpt2_like, "--requests", asked, *ENGINE)
        assert (code, out) == (2, [""])
        assert said in err
        assert err.strip().count("\n") <= 1  # the export is told, the first time


@pytest.fixture(scope="module")
def gpt2_like(tmp_path_factory):
    from tests.cli.conftest import language_run

    return language_run(tmp_path_factory.mktemp("engine") / "gpt2", "bytes", "learned", "eos")


@pytest.mark.slow
def test_requests_of_many_settings_at_once(language_run, run_command, tmp_path):
    """Each with its own, as in ours, in the order of the file."""
    settings = (
        {"temperature": 0},
        {"temperature": 0, "max_new_tokens": 3},
        {"temperature": 0, "stop": "b"},
        {"temperature": 0, "repetition_penalty": 1.5},
        {"num_beams": 2},
        {"temperature": 0, "max_new_tokens": 40},
    )
    lines = [{"prompt": "ab c"[:n], "max_new_tokens": 5} | one for n, one in enumerate(settings)]
    (tmp_path / "asked").write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = ["--requests", tmp_path / "asked", "--json"]
    one, other = in_both(run_command, "generate", language_run, flags, tmp_path, "")
    assert one == other


@pytest.mark.slow
@pytest.mark.parametrize("case", range(24))
def test_any_combination_works_as_in_ours_or_is_refused_by_name(
    language_run, lesson_run, run_command, tmp_path, case
):
    draw = random.Random(f"{SWEEP_SEED} {case}")
    translates = draw.random() < 0.5
    table = TRANSLATE if translates else GENERATE
    chosen = draw.sample(sorted(set(table) - {"output"}), 3)
    chosen += draw.sample(sorted(REFUSED), 1) if draw.random() < 0.2 else []
    if {"tsv", "json"} <= set(chosen) or {"tsv", "scores"} <= set(chosen):
        chosen.remove("tsv")
    if {"num_return_sequences", "num_beams"} <= set(chosen):
        chosen.remove("num_beams")  # fewer than the translations that are asked for: refused
    counting = {"no_repeat_ngram_size", "repetition_penalty"} & set(chosen)
    if counting and "max_new_tokens" in chosen:
        chosen.remove("max_new_tokens")  # more than the context holds: refused together
    flags = [] if translates else ["--prompts", "-", "--temperature", 0, "--max-new-tokens", 9]
    for name in sorted(chosen, key=lambda name: name != "max_new_tokens"):
        flags += (table | REFUSED)[name]
    run, text = (lesson_run, LINES) if translates else (language_run, PROMPTS)
    command = "translate" if translates else "generate"
    known = {field.name for field in dataclasses.fields(Translate if translates else Generate)}
    refused = [name for name in chosen if name in REFUSED]
    if refused:
        if refused[0] not in known:
            return
        code, _, err = run_command(command, run, *flags, *ENGINE, text=text)
        assert code == 2
        assert f"--{refused[0].replace('_', '-')}" in err
        return
    one, other = in_both(run_command, command, run, flags, tmp_path, text)
    if "num_return_sequences" in chosen:
        one, other = ([line.split("\t")[0] for line in part] for part in (one, other))
    assert one == other, (flags, chosen)


def test_without_the_package_it_says_how_to_get_it(lesson_run, run_command, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    code, out, err = run_command("translate", lesson_run, *ENGINE, text="a\n")
    said = "CTranslate2 is not installed: `pip install 'transformer-jax[ctranslate2]'`"
    assert (code, out, err) == (2, [""], f"error: {said}\n")


def test_a_data_type_that_the_processor_lacks_is_refused(lesson_run, run_command):
    code, _, err = run_command("translate", lesson_run, *ENGINE, "--compute", "float16", text="a\n")
    assert code == 2
    assert re.search(r"compute is float16: CTranslate2 has .*float32.* on this processor", err)


def test_models_that_it_does_not_compute_are_refused(ngram_run, run_command):
    code, _, err = run_command("generate", ngram_run, "a", *ENGINE)
    assert code == 2
    assert "--engine is for neural models" in err
    with pytest.raises(ConfigError, match="n-gram model, which CTranslate2 does not support"):
        tj.load(ngram_run, engine="ctranslate2")


@pytest.mark.slow
def test_a_run_is_exported_once_and_again_after_more_training(trained_run, run_command, tmp_path):
    run = shutil.copytree(trained_run, tmp_path / "run", ignore=lambda *_: ["ctranslate2"])
    folders = lambda: sorted(path.name for path in (run / "ctranslate2").iterdir())
    told = [run_command("translate", run, *ENGINE, text=LINES)[2] for _ in range(2)]
    assert re.fullmatch(
        r"wrote .*/run/ctranslate2/\w{32}: ctranslate2: TransformerSpec.*\n", told[0]
    )
    assert told[1] == ""
    before = folders()
    params = jax.tree.map(lambda leaf: -leaf, load_params(run).params)
    checkpointer = Checkpointer(run / "checkpoints")
    checkpointer.save(200, TrainState(jax.numpy.int32(200), params, {}))
    checkpointer.wait()
    checkpointer.close()
    _, lines, err = run_command("translate", run, *ENGINE, text=LINES)
    assert err.startswith("wrote ")
    assert len(folders()) == 2
    assert set(before) < set(folders())
    assert lines[0] != LESSON[0][1]
    _, lines, err = run_command("translate", run, *ENGINE, "--checkpoint", 150, text=LINES)
    assert (lines[0], err) == (LESSON[0][1], "")


def test_a_run_that_cannot_be_written_is_exported_to_the_cache(
    trained_run, run_command, tmp_path, monkeypatch
):
    run = shutil.copytree(trained_run, tmp_path / "run", ignore=lambda *_: ["ctranslate2"])
    (run / "ctranslate2").write_text("")  # no folder can be made there
    monkeypatch.setenv("TRANSFORMER_JAX_CACHE", str(tmp_path / "cache"))
    code, lines, err = run_command("translate", run, *ENGINE, text=LINES)
    assert (code, lines[0]) == (0, LESSON[0][1])
    assert err.startswith(f"wrote {tmp_path}/cache/exports/ctranslate2/")
    flags = [*ENGINE, "--engine-cache", run / "config.json"]
    code, _, err = run_command("translate", run, *flags, text=LINES)
    assert code != 0
    assert "cannot be written" in err
    assert "name another folder with --engine-cache" in err


@pytest.mark.parametrize("name", ["gpt2", "llama", "marian", "bart", "t5"])
@pytest.mark.slow
def test_published_folders_write_what_ours_writes(run_command, tmp_path, name):
    layouts.write(name, tmp_path / name)
    (tmp_path / name / "tokenizer.json").write_text(tokenizer_json(97))
    if name == "bart":  # what every target begins with is given to both
        fields = json.loads((tmp_path / name / "config.json").read_text())
        fields["forced_bos_token_id"] = 20
        (tmp_path / name / "config.json").write_text(json.dumps(fields))
    lines = "w5 w6 w7\nw9\nw11 w12 w13 w14 w15\n"
    greedy = {
        "translate": ["--num-beams", 1],
        "generate": ["--temperature", 0, "--max-new-tokens", 9, "--prompts", "-"],
    }
    command = "generate" if name in ("gpt2", "llama") else "translate"
    found = in_both(run_command, command, tmp_path / name, greedy[command], tmp_path, lines)
    assert found[0] == found[1]
    assert len(set(found[0])) > 2
    assert (tmp_path / name / "ctranslate2").is_dir()
    if command == "translate":
        how = ["--generation-config", "hf", *greedy[command]]
        _, published, _ = run_command(command, tmp_path / name, *how, text=lines)
        for ours, theirs in zip(found[0][:-1], published[:-1], strict=True):
            both = ours.split(), theirs.split()
            assert both[0][: len(both[1])] == both[1][: len(both[0])]
            assert len(both[1]) > 5


@pytest.mark.slow
def test_what_every_target_begins_with_counts_for_nothing(tmp_path):
    """Beams have the log-probability and the length of what follows it."""
    layouts.write("bart", tmp_path)
    (tmp_path / "tokenizer.json").write_text(tokenizer_json(97))
    fields = json.loads((tmp_path / "config.json").read_text()) | {"forced_bos_token_id": 20}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    ours, theirs = (tj.load(tmp_path, **how)._translator for how in ({}, {"engine": "ctranslate2"}))
    search = TRANSLATION.changed(num_beams=3, max_len_a=0, max_len_b=6, length_penalty=1.0)
    [found] = theirs.translate(["w5 w6 w7"], search)
    assert len(found.tokens) == 6
    [score] = ours.score(["w5 w6 w7"], [found.text])
    # CTranslate2 has probabilities among the tokens that may be written.
    assert found.hypotheses[0].log_prob == pytest.approx(sum(score.log_probs[:6]), abs=0.1)


@pytest.mark.slow
def test_two_commands_may_export_at_once(trained_run, tmp_path):
    run = shutil.copytree(trained_run, tmp_path / "run", ignore=lambda *_: ["ctranslate2"])
    command = [sys.executable, "-m", "transformer_jax.cli.main", "translate", str(run), *ENGINE]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for process in both:
        assert process.communicate(LINES)[0].splitlines()[0] == LESSON[0][1]
    assert len(list((run / "ctranslate2").iterdir())) == 1


@pytest.mark.slow
def test_the_predictor_in_python(lesson_run, learnt_run, language_run, tmp_path):
    learnt = shutil.copytree(learnt_run, tmp_path / "learnt")
    model = tj.load(learnt, engine="ctranslate2", compute="int8")
    assert model([source for source, _ in LESSON]) == [target for _, target in LESSON]
    assert len(model(LESSON[0][0], num_return_sequences=3).alternatives) == 2
    assert model.model is None
    for refused in (lambda: model.score("a", "b"), lambda: model.embed("a")):
        with pytest.raises(ConfigError, match="CTranslate2 only translates: leave engine out"):
            refused()
    with pytest.raises(ConfigError, match="support generation_config hf"):
        model("a", generation_config="hf")
    ours, theirs = tj.load(language_run), tj.load(language_run, engine="ctranslate2")
    how = {"temperature": 0, "max_new_tokens": 12}
    assert theirs("a c", **how) == ours("a c", **how)
    assert abs(theirs.score("abc").log_prob - ours.score("abc").log_prob) < 1e-3
    with pytest.raises(ConfigError, match="min_p"):
        theirs("a", min_p=0.1)
    for how in ({"compute": "int8"}, {"engine_cache": "x"}, {"engine": "torch"}):
        with pytest.raises(ConfigError, match="engine"):
            tj.load(lesson_run, **how)
    with pytest.raises(ConfigError, match="mesh"):
        tj.load(lesson_run, engine="ctranslate2", mesh=tj.make_mesh(data=8))
