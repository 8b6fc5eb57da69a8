"""Pipelines with random arguments return what those of transformers 4.57 return.

``TRANSFORMERS_4`` is a Python with transformers 4.57, ``SWEEP_CASES`` the number of calls;
``SWEEP_SEED`` repeats those of a run that prints its seed.
"""

import json
import os
import random
import subprocess
import time
import warnings
from pathlib import Path

import pytest

import transformer_jax as tj
from tests.interop import language_folders
from tests.parity import pipelines
from transformer_jax.core.errors import UserError

PROGRAM = Path(__file__).with_name("remake_pipelines.py")
pytestmark = [pytest.mark.parity, pytest.mark.slow]


def expected(root: Path, calls: list[dict]) -> list:
    """Returns the results of transformers."""
    if not (python := os.environ.get("TRANSFORMERS_4")):
        pytest.skip("TRANSFORMERS_4 is no Python with transformers 4.57")
    (root / "calls.json").write_text(json.dumps(calls))
    usual = {"PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1"}
    subprocess.run([python, PROGRAM, root], check=True, env=usual, timeout=3600)
    return json.loads((root / "results.json").read_text())


def without_nothing(answers):
    """Returns answers without those that have no probability, with which transformers fills up."""
    if isinstance(answers, dict):
        return answers
    found = [one for one in answers if one["score"] > 0]
    return found[0] if len(found) == 1 else found


def compared(root: Path, calls: list[dict], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the calls whose results differ."""
    monkeypatch.chdir(root)
    different, refused, loaded = [], 0, {}
    for one, known in zip(calls, expected(root, calls), strict=True):
        name, failed = one["folder"], isinstance(known, dict) and "error" in known
        try:
            loaded[name] = loaded.get(name) or tj.load(name)
            made = tj.pipeline(one["task"], loaded[name], **one["made"])
            found = made(*one["args"], **one["options"])
        except UserError as error:
            refused += 1
            if not failed:
                different.append(f"{one}\n    {error}")
            continue
        if failed:  # of a long question, we read a part and say so
            if "must be strictly less than `max_len" not in known["error"]:
                different.append(f"{one}\n    {known['error'][:200]}")
            continue
        known = without_nothing(known) if one["task"] == "question-answering" else known
        try:
            pipelines.check_equal(found, known)
        except AssertionError:
            different.append(f"{one}\n    {str(found)[:400]}\n    {str(known)[:400]}")
    print(f"{len(calls)} calls, {refused} refused by both, {len(different)} differ")
    return different


def test_random_calls_give_the_same(tmp_path, monkeypatch):
    seed = os.environ.get("SWEEP_SEED", str(time.time_ns() % 2**32))
    print(f"SWEEP_SEED={seed}")
    calls = pipelines.random_calls(int(os.environ.get("SWEEP_CASES", "60")), seed)
    for name in {one["folder"] for one in calls}:
        pipelines.write(name, tmp_path / name)
    pipelines.write_picture(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        different = compared(tmp_path, calls, monkeypatch)
    assert not different, "\n".join(different)


def test_languages_of_translators_are_those_of_transformers(tmp_path, monkeypatch):
    draw, calls = random.Random(3), []
    for family in ("nllb", "mbart50"):
        one, two = language_folders.FAMILIES[family][3]
        known = language_folders.write(family, tmp_path / family)
        ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
        (tmp_path / family / "generation_config.json").write_text(json.dumps(ids))
        # From SentencePiece's file, version 4 gives languages other ids than published models.
        tj.load(tmp_path / family).tokenizer.save(tmp_path / family / "tokenizer.json")
        (tmp_path / family / "sentencepiece.bpe.model").unlink()
        text = " ".join(draw.choices(known, k=5))
        for source, target in ((one, two), (two, one)):
            options = {"src_lang": source, "tgt_lang": target, "max_new_tokens": 6}
            calls.append(pipelines.call("translation", family, text, **options))
            calls.append(pipelines.call("translation", family, [text, known[0]], **options))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        different = compared(tmp_path, calls, monkeypatch)
    assert not different, "\n".join(different)
