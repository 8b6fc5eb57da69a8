"""Settings of a folder's generation config are applied, or told with what applies them."""

import contextlib
import io
import json

import pytest

import transformer_jax
from tests.interop import published_starts as starts
from transformer_jax.cli.main import main
from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.decoding.hf_config import LACKING
from transformer_jax.inference import folder_generation
from transformer_jax.inference.folder_generation import (
    SAMPLING,
    SEARCH,
    GivenSearch,
    note_unused,
    unused_settings,
)
from transformer_jax.inference.pretrained import Pretrained, read_facts
from transformer_jax.interop.folder_keys import GENERATION

SAID = {
    "num_beams": 3, "max_length": 30, "repetition_penalty": 1.5, "do_sample": True,
    "temperature": 0.6, "typical_p": 0.5,
}  # fmt: skip
LISTED = "num_beams 3, max_length 30, repetition_penalty 1.5, temperature 0.6, typical_p 0.5"


@pytest.fixture(autouse=True)
def first_time():
    """Each line is logged once in a process."""
    folder_generation._log_once.cache_clear()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}
    for layout in ("gpt2", "marian"):
        made[layout] = starts.write(layout, tmp_path_factory.mktemp("folders") / layout)
        path = made[layout] / "generation_config.json"
        said = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**said, "eos_token_id": 1, **SAID}))
        settings = made[layout] / "tokenizer_config.json"
        chat = {"chat_template": "{% for m in messages %}{{ m.content }} {% endfor %}"}
        settings.write_text(json.dumps(json.loads(settings.read_text()) | chat))
    return made


def test_every_key_that_changes_texts_is_told():
    """``diversity_penalty`` has an effect only with groups of beams, which are told."""
    special = {name for name in GENERATION if name.endswith("_token_id")}
    special |= {"do_sample", "force_bos_token_to_be_generated", "diversity_penalty"}
    searched = {name for name, use in GENERATION.items() if use.applied}
    sampled = {name for name, use in GENERATION.items() if use.why.startswith("transformers'")}
    told = SEARCH.keys() | SAMPLING.keys() | LACKING.keys()
    assert (searched | sampled) - special == told - special


@pytest.mark.parametrize(
    ("fields", "given", "expected"),
    [
        ({"num_beams": 1, "max_length": 20, "guidance_scale": 1}, (), {}),
        ({"temperature": 0.5, "top_p": 0.9}, (), {}),  # transformers does not sample
        ({"temperature": 0.5, "do_sample": True}, (), {"temperature": 0.5}),
        ({"guidance_scale": 2}, (), {"guidance_scale": 2}),
        ({"max_length": 9, "num_beams": 2}, ("max_new_tokens", "num_beams"), {}),
    ],
)
def test_settings_are_unused_if_they_would_change_texts(fields, given, expected):
    assert unused_settings(fields, given) == expected


@pytest.mark.parametrize(
    ("search", "said"),
    [
        (
            GivenSearch({}, ["num_beams", "temperature"]),
            "give --temperature 0.6; --generation-config hf applies num_beams, "
            "max_length, repetition_penalty; not available here: typical_p",
        ),
        (
            GivenSearch({}, ["temperature"], has_hf=False),
            "give --temperature 0.6; num_beams, max_length, repetition_penalty: only with "
            "--generation-config hf of translate and generate; not available here: typical_p",
        ),
        (
            GivenSearch({}, ["temperature"], flags=False),
            'give temperature=0.6; generation_config="hf" applies num_beams, max_length, '
            "repetition_penalty; not available here: typical_p",
        ),
    ],
    ids=["flags", "without hf", "arguments"],
)
def test_the_line_says_what_applies_each_setting(search, said, folders, capsys):
    for _ in range(2):
        note_unused(read_facts(folders["gpt2"]), search)
    expected = f"this search does not apply {LISTED} of the folder's generation config: {said}\n"
    [line] = capsys.readouterr().err.splitlines(keepends=True)
    assert line.endswith(f"{folders['gpt2']}: {expected}")


CTRANSLATE2 = ["--engine", "ctranslate2"]
OWN = "give --temperature 0.6 --repetition-penalty 1.5; "
DOORS = {
    "translate": ("marian", ["translate", "{run}"], "give --sample --temperature 0.6; --gener"),
    "translate on CTranslate2": (
        "marian", ["translate", "{run}", *CTRANSLATE2], "give --sample --temperature 0.6; num_be",
    ),
    "evaluate": ("marian", ["evaluate", "{run}", "--data.pairs", "{data}"], "give --num-beams 3; "),
    "generate": ("gpt2", ["generate", "{run}", "a"], OWN + "--generation-config hf applies num_be"),
    "generate on CTranslate2": ("gpt2", ["generate", "{run}", "a", *CTRANSLATE2], OWN + "num_be"),
    "chat": ("gpt2", ["chat", "{run}"], OWN + "num_beams, max_length: only with"),
    "prefer": (
        "gpt2",
        ["prefer", "{run}", "{prompts}", "--output", "{pairs}", "--rule", "{rule}"],
        "give --temperature 0.6; num_beams",
    ),
    "win-rate": (
        "gpt2", ["win-rate", "{run}", "{run}", "{prompts}", "--rule", "{rule}"],
        "give --temperature 0.6; num_beams",
    ),
}  # fmt: skip


@pytest.mark.quick("evaluate", "generate", "chat", "prefer")
@pytest.mark.parametrize("door", DOORS)
def test_every_command_that_searches_tells(door, folders, tmp_path, monkeypatch, capsys):
    """Before a model is loaded."""
    layout, words, said = DOORS[door]
    if "CTranslate2" in door:
        pytest.importorskip("ctranslate2")
    stopped = CheckpointError("no model is loaded")

    def stop(*_, **__):
        raise stopped

    monkeypatch.setattr(Pretrained, "load", stop)
    files = {name: tmp_path / name for name in ("prompts", "pairs")}
    files["prompts"].write_text("a b\n")
    files["data"] = tmp_path / "data.tsv"
    files["data"].write_text("a\tb\n")
    files["rule"] = tmp_path / "rule.py"
    files["rule"].write_text("def reward(p, c):\n    return 0\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    main([word.format(run=folders[layout], **files) for word in words])
    err = capsys.readouterr().err
    assert f"does not apply {LISTED} of the folder's generation config: {said}" in err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* reached the limit|.* reached the length limit")
def test_every_predictor_that_searches_tells(folders, capsys):
    model = transformer_jax.load(folders["gpt2"])
    calls = {
        "generate": lambda: model.generate("a", max_new_tokens=1),
        "stream": lambda: list(model.stream("a", max_new_tokens=1)),
        "chat": lambda: model.chat([{"role": "user", "content": "a"}], max_new_tokens=1),
        "translate": lambda: transformer_jax.load(folders["marian"])("a", max_len_b=1),
    }
    for name, call in calls.items():
        folder_generation._log_once.cache_clear()
        capsys.readouterr()
        with contextlib.suppress(ConfigError):  # the template ends answers with a blank
            call()
        err = capsys.readouterr().err
        assert err.count("of the folder's generation config: give ") == 1, name
        assert "max_length" not in err, name  # a limit was given
