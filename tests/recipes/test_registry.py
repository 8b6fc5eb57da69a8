"""``config.json`` names the recipe of a run; for files that name none a table tells it."""

import dataclasses
import json
import tarfile
from pathlib import Path

import pytest
from flax import nnx

from transformer_jax import load
from transformer_jax.cli import decoder_only, encoder_only, seq2seq, training
from transformer_jax.core.config_dict import from_dict
from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.data.denoising import NoiseConfig
from transformer_jax.data.images.preprocessing import Preprocessing
from transformer_jax.data.sources import ReadOptions
from transformer_jax.data.summaries import SummaryOptions
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.presets import vit
from transformer_jax.models.recurrent_config import RecurrentConfig
from transformer_jax.recipes import translation
from transformer_jax.recipes.registry import (
    INFERRED,
    RECIPES,
    get_recipe,
    infer_recipe,
    named_runs,
    stored_recipe,
)
from transformer_jax.recipes.tasks.denoising_task import DenoisingSettings
from transformer_jax.recipes.tasks.image_task import ImageSettings
from transformer_jax.recipes.tasks.labeled import ExampleSettings, LabeledSettings
from transformer_jax.recipes.tasks.language_model_task import LanguageModelSettings
from transformer_jax.recipes.tasks.masked_lm_task import MaskedLMSettings, SentenceObjectiveSettings
from transformer_jax.recipes.tasks.settings import ImageTask, TrainingLength
from transformer_jax.recipes.tasks.summarization_task import SummarizationSettings, SummarySettings
from transformer_jax.recipes.tasks.translation_task import PairSettings, TranslationSettings
from transformer_jax.runs.config_guard import differences
from transformer_jax.runs.run_directory import RunDirectory, describe_run, stored_settings

PROGRAMS = (seq2seq.FAMILY, decoder_only.FAMILY, encoder_only.FAMILY)
NAMED = [(recipe, name) for recipe in RECIPES if recipe != "captioning"
         for name in get_recipe(recipe).runs]  # fmt: skip
BOTH = TransformerConfig()
DECODER = dataclasses.replace(BOTH, encoder_layers=0)
ENCODER = dataclasses.replace(BOTH, decoder_layers=0)
PAIRS, LENGTH = PairSettings(ReadOptions()), TrainingLength(9)
LIBRARY = {
    "translation": TranslationSettings(BOTH, PAIRS),
    "recurrent_translation": TranslationSettings(RecurrentConfig(), PAIRS),
    "summarization": SummarizationSettings(BOTH, SummarySettings(SummaryOptions())),
    "denoising": DenoisingSettings(BOTH, NoiseConfig(), LENGTH),
    "language_model": LanguageModelSettings(DECODER, "bos"),
    "masked_lm": MaskedLMSettings(ENCODER, SentenceObjectiveSettings("nsp"), LENGTH),
    "finetuning": LabeledSettings(ENCODER, ExampleSettings("tag", ("a",), 9, 2)),
    "images": ImageSettings(vit(64, 1), ImageTask(labels=("a",)), Preprocessing()),
}


def stored(value):
    return json.loads(json.dumps(dataclasses.asdict(value)))


@pytest.mark.parametrize(("recipe", "name"), NAMED)
def test_a_named_run_is_told_from_its_settings_and_read_back(recipe, name, tmp_path):
    run = get_recipe(recipe).runs[name][1]
    assert run.recipe == recipe
    assert infer_recipe(stored(run)) == recipe or recipe not in INFERRED
    assert from_dict(get_recipe(recipe).config, stored(run)) == run
    directory = RunDirectory(tmp_path)
    directory.write(directory.config, describe_run(run))
    assert directory.read_config()["recipe"] == recipe
    assert "recipe" not in stored_settings(directory.read_config())
    assert stored_recipe(directory.read_config(), directory.config) is get_recipe(recipe)


@pytest.mark.parametrize("recipe", LIBRARY)
def test_a_task_of_the_library_names_its_recipe(recipe):
    assert describe_run(LIBRARY[recipe])["recipe"] == recipe
    assert infer_recipe(stored(LIBRARY[recipe])) == recipe


def test_runs_of_an_earlier_version_are_told_from_their_settings(tmp_path):
    wanted = {
        "translation": "translation", "contiguous": "language_model", "packed": "language_model",
        "pretraining": "masked_lm", "classification": "finetuning", "pairs": "finetuning",
        "regression": "finetuning", "tagging": "finetuning", "answers": "finetuning",
        "bigram": "ngram", "ngram": "ngram",
    }  # fmt: skip
    with tarfile.open(Path(__file__).parents[1] / "stored/runs.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    found = {
        path.parent.name: stored_recipe(RunDirectory.open(path.parent).read_config(), path).name
        for path in tmp_path.glob("runs/*/config.json")
    }
    assert len(found) > 10
    for run, recipe in found.items():
        assert recipe == wanted[run.partition("-")[0]], run


def test_every_recipe_has_a_name_of_its_own_and_a_command():
    begun = [name for program in PROGRAMS for name in program.recipes]
    assert len(set(begun)) == len(begun)
    assert {*begun} == {*RECIPES} - {"captioning"}
    for name in begun:
        recipe = get_recipe(name)
        assert (recipe.name, recipe.config.recipe) == (name, name)
    for program in PROGRAMS:
        for recipes in program.commands.values():
            assert len(named_runs(*recipes)) == sum(len(get_recipe(one).runs) for one in recipes)


def test_a_recipe_gives_its_settings_its_name():
    @dataclasses.dataclass(frozen=True)
    class PaintingRun(translation.Run):
        pass

    assert PaintingRun.recipe == "translation"

    class Painting(translation.Translation):
        name = "painting"
        config = PaintingRun

    assert PaintingRun().recipe == "painting"
    assert translation.Run.recipe == "translation"
    assert describe_run(PaintingRun()) == describe_run(translation.Run()) | {"recipe": "painting"}


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"config": translation.Run}, "Painting has no name"),
        ({"name": "painting"}, "Painting has the settings of the recipe translation, Run"),
        (
            {"name": "painting", "config": translation.RecurrentRun},
            "Painting has the settings of the recipe recurrent_translation, RecurrentRun",
        ),
    ],
)
def test_a_recipe_without_a_name_or_settings_of_its_own_is_refused_in_its_file(own, said):
    with pytest.raises(ConfigError, match=f"{__file__}: {said}"):
        type("Painting", (translation.Translation,), {"__module__": __name__, **own})
    assert translation.RecurrentRun.recipe == "recurrent_translation"


def test_a_name_that_differs_between_registry_and_file_is_refused(monkeypatch):
    monkeypatch.setitem(RECIPES, "painting", "transformer_jax.recipes.speech")
    said = r"recipes/speech.py: defines no recipe painting, but RECIPES in .*registry.py"
    with pytest.raises(ConfigError, match=said + " names it; there are .*, speech, recurr"):
        get_recipe("painting")


def test_a_name_that_a_program_alone_has_is_refused_at_its_start(capfd):
    program = training.TrainingProgram("paint", "Paint.", {"train": ("painting",)})
    assert training.main(program, ["evaluate", "runs/a"]) == 2
    said = "error: paint: train starts the recipe painting, but RECIPES in "
    assert capfd.readouterr().err.startswith(said)


def test_a_named_run_with_the_settings_of_another_recipe_is_refused(monkeypatch):
    run = get_recipe("summarization").runs["summarize"]
    monkeypatch.setattr(get_recipe("translation"), "runs", {"summarize": run})
    with pytest.raises(ConfigError, match="the named run summarize of the recipe translation has"):
        named_runs("translation")


def test_an_unknown_recipe_is_refused(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.write(directory.config, {"recipe": "painting", "model": {}})
    with pytest.raises(CheckpointError, match="unknown recipe painting; there are translation,"):
        stored_recipe(directory.read_config(), directory.config)
    directory.write(directory.config, {"layers": 3})
    with pytest.raises(CheckpointError, match="describes no model of this library"):
        stored_recipe(directory.read_config(), directory.config)


def test_a_recipe_that_was_changed_after_training_is_seen():
    seal = {"schema": 2, "config": {"recipe": "denoising", "seed": 1}}
    assert differences({"recipe": "denoising", "seed": 1}, seal) == []
    assert differences({"seed": 1}, seal) == []
    assert (
        differences({"recipe": "denoising", "seed": 1}, {"schema": 2, "config": {"seed": 1}}) == []
    )
    [said] = differences({"recipe": "translation", "seed": 1}, seal)
    assert said == 'recipe is "translation" ("denoising" in training)'


def test_a_model_of_rewards_without_a_method_is_refused_where_its_parameters_are(tmp_path):
    directory = RunDirectory(tmp_path)
    fields = {"recipe": "reward_model", "model": stored(DECODER)}
    directory.write(directory.config, fields)
    directory.tokenizer.write_text("{}")
    with pytest.raises(CheckpointError):
        load(tmp_path)
    assert get_recipe("on_policy").model(
        dataclasses.replace(DECODER, d_model=8, decoder_layers=1), fields, nnx.Rngs(0)
    )
