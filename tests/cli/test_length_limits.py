"""The most tokens of a text: kept in the run, obeyed wherever texts are made, and told."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import transformer_jax
from tests.decoding.test_translator import Letters
from transformer_jax.cli import seq2seq
from transformer_jax.cli.transcribe import Transcribe
from transformer_jax.cli.translate import Translate
from transformer_jax.core.errors import ConfigError
from transformer_jax.decoding.generation_config import LengthLimit
from transformer_jax.decoding.hf_config import GenerationConfig
from transformer_jax.decoding.length_penalty import learn_length_limit
from transformer_jax.decoding.partial_text import GenerationSequence
from transformer_jax.decoding.requests import GenerationRequest
from transformer_jax.inference.generation_settings import search_settings
from transformer_jax.inference.hf_generation import _continuation
from transformer_jax.inference.pretrained import read_facts
from transformer_jax.recipes.scored_texts import beam_search
from transformer_jax.recipes.tasks.translation_task import decode_texts
from transformer_jax.recipes.translation_evaluation import EvaluateTranslator


@pytest.fixture(scope="module")
def short_run(trained_run, tmp_path_factory):
    """A copy of the run whose settings allow three tokens, whatever the source."""
    path = tmp_path_factory.mktemp("runs") / "short"
    shutil.copytree(trained_run, path)
    config = json.loads((path / "config.json").read_text())
    config["evaluation"] = {"sentences": 3, "max_len_a": 0.0, "max_len_b": 3}
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("evaluation", "limit"),
    [
        (None, (2.0, 10)),  # a Hugging Face folder, or a task of a user
        ({"sentences": 3, "num_beams": 4}, (2.0, 10)),  # an earlier version
        ({"sentences": 3, "max_len_a": 5.5, "max_len_b": 10}, (5.5, 10)),
        ({"texts": 3, "max_length": 128}, (0.0, 128)),
        ({"ngram_orders": [1]}, (2.0, 10)),
    ],
)
def test_the_limit_is_the_run_s_and_without_one_that_of_earlier_versions(
    trained_run, tmp_path, evaluation, limit
):
    path = tmp_path / "run"
    shutil.copytree(trained_run, path)
    config = json.loads((path / "config.json").read_text())
    if evaluation is not None:
        (path / "config.json").write_text(json.dumps(config | {"evaluation": evaluation}))
    assert search_settings(read_facts(path)) == LengthLimit(*limit)._asdict()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluating(EvaluateTranslator):
    """The flags of ``evaluate`` for a translator, with the run."""

    run: Path


def test_the_penalty_of_the_run_holds_at_every_door_until_another_is_given(trained_run, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(trained_run, path)
    config = json.loads((path / "config.json").read_text())
    config["evaluation"] = {"sentences": 3, "length_penalty": 1.5}
    (path / "config.json").write_text(json.dumps(config))
    doors = {
        "transcribe": lambda run, **flags: beam_search(
            Transcribe(Path(run), (), **flags), read_facts(run)
        ),
        "translate": lambda run, **flags: Translate(Path(run), **flags).options(read_facts(run))[0],
        "evaluate": lambda run, **flags: beam_search(
            Evaluating(run=Path(run), **flags), read_facts(run)
        ),
    }
    for door, search in doors.items():
        assert search(path).length_penalty == 1.5, door
        assert search(path, length_penalty=0.0).length_penalty == 0.0, door
        assert search(trained_run).length_penalty == 0.6, door
    assert search_settings(read_facts(path))["length_penalty"] == 1.5  # in Python


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 4])
def test_translate_obeys_the_run_s_limit_and_counts_the_texts_that_it_cuts(
    short_run, lesson, run_command, beams
):
    source, target = lesson[0]
    flags = ("translate", short_run, "--num-beams", beams)
    code, lines, err = run_command(*flags, text=f"{source}\n\n")
    assert (code, len(lines)) == (0, 3)
    assert lines[0] != target
    assert err.strip() == (
        "note: 1 of 2 texts reached the length limit (3 tokens, at most 64) and may be cut: raise "
        "--max-len-a or --max-len-b"
    )
    raised = run_command(*flags, "--max-len-b", 60, text=f"{source}\n")
    assert raised == (0, [target, ""], "")


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("engine", ["jax", "ctranslate2"])
def test_python_obeys_the_run_s_limit_and_says_why_a_text_ended(
    short_run, lesson, tmp_path, beams, engine
):
    if engine == "ctranslate2":
        pytest.importorskip("ctranslate2")
    source, target = lesson[0]
    model = transformer_jax.load(short_run, engine=engine)
    with pytest.warns(UserWarning, match="1 of 1 text reached the length limit"):
        cut = model(source, num_beams=beams)
    assert (cut.finish_reason, cut == target) == ("length", False)
    assert len(cut.tokens) <= 3
    whole = model(source, num_beams=beams, max_len_a=3.0, max_len_b=10)
    assert (str(whole), whole.finish_reason) == (target, "end")
    with pytest.raises(ConfigError, match="max_len_b is 0"):
        model(source, max_len_b=0)


def test_the_limit_follows_from_the_ratio_of_training_pairs():
    """Twice the 99 % quantile: few misaligned lines do not raise it."""
    rng = np.random.default_rng(0)
    sources = rng.integers(2, 12, 5000)
    targets = np.where(np.arange(5000) % 500 == 0, 50 * sources, 5 * sources)
    assert learn_length_limit(sources, targets) == (10.0, 10)


@pytest.mark.slow
def test_evaluate_obeys_the_limit_of_the_run_or_of_its_flags(short_run, lesson, tmp_path, capfd):
    for side, name in enumerate(("source", "target")):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in lesson))
    files = ["--source", str(tmp_path / "source"), "--target", str(tmp_path / "target")]
    assert seq2seq.main(["evaluate", str(short_run), *files]) == 0
    out, err = capfd.readouterr()
    assert "sacreBLEU 100.0" not in out
    limited = "4 of 4 texts reached the length limit (3 tokens, at most 64) and may be cut"
    assert f"{limited}: raise --max-len-a or --max-len-b\n" in err
    assert seq2seq.main(["evaluate", str(short_run), *files, "--max-len-b", "60"]) == 0
    out, err = capfd.readouterr()
    assert "sacreBLEU 100.0" in out
    assert "length limit" not in err


def test_an_end_that_a_generation_config_forces_does_not_tell_that_a_text_ended():
    config = GenerationConfig(eos_token_id=(3,), forced_eos_token_id=(3,))
    sequence = GenerationSequence(
        GenerationRequest("", max_new_tokens=9),
        index=0,
        sample=0,
        prompt_ids=[],
        tokenizer=Letters(),
        prompt_text="",
        end_tokens=(3,),
    )
    reasons = [
        _continuation(sequence, ids, -1.0, config, 3).finish_reason
        for ids in ([5, 6, 3], [5, 3, 0], [5, 6, 7])
    ]
    assert reasons == ["length", "end", "length"]


def _decode(limit):
    """Texts that reach their limit, as a task decodes them."""

    class Limited:
        counts: ClassVar[dict[str, int]] = {"cut": 0, "limited": 0}

        def translate(self, sources, *, directions):
            self.counts["limited"] = 1
            return []

        def limit_note(self, count, lines):
            return "limited"

    decode_texts(Limited(), ["a"], *([limit] if limit else []))


@pytest.mark.parametrize(
    ("limit", "named"),
    [
        (None, "evaluation.max_len_a or evaluation.max_len_b"),
        ("--max-len-b", "--max-len-b"),
    ],
)
def test_a_limit_has_the_name_of_the_door_that_was_used(capsys, limit, named):
    _decode(limit)
    assert capsys.readouterr().err == f"limited: raise {named}\n"
