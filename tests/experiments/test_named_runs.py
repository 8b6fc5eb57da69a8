"""The claims of README about all named runs: their export, and their results."""

import dataclasses
import re

import pytest

from transformer_jax.core.errors import ConfigError
from transformer_jax.interop.export_plan import choose_family
from transformer_jax.interop.hf_run_directory import model_of
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.presets import PRESETS
from transformer_jax.recipes.checks import with_warmup
from transformer_jax.recipes.registry import named_runs
from transformer_jax.recipes.sizing import (
    VOCABULARY,
    changed_settings,
    epochs_for,
    vocabulary_for,
    with_step_intervals,
)
from transformer_jax.training.settings import check_warmup

DENOISING_RUNS = named_runs("denoising")
PRETRAIN_RUNS = named_runs("masked_lm")
TASK_RUNS = named_runs("finetuning")
IMAGE_RUNS = named_runs("images")
LANGUAGE_RUNS = named_runs("language_model", "ngram")
TRANSLATION_RUNS = named_runs("translation", "recurrent_translation")

# How transformers calls what each is exported as; None is no family, and the message says why.
EXPORTS = {
    "encoder-decoder": {
        "phrasebook": "PegasusForConditionalGeneration", "babel": "PegasusForConditionalGeneration",
        "small": "PegasusForConditionalGeneration", "tiny": "PegasusForConditionalGeneration",
        "base": "MarianMTModel", "big": "MarianMTModel",
        "convs2s": None,
    },
    "encoder-decoder pretrain": {
        "bart-mini": "PegasusForConditionalGeneration", "t5-mini": "T5ForConditionalGeneration",
        "bart-base": "BartForConditionalGeneration", "t5-small": "T5ForConditionalGeneration",
    },
    "decoder": {
        "python-docs": "LlamaForCausalLM", "in-context": "LlamaForCausalLM",
        "char-cpu": "GPT2LMHeadModel", "char": "GPT2LMHeadModel", "gpt2-small": "GPT2LMHeadModel",
        "modern": "LlamaForCausalLM", "lstm": None, "gated-conv": None,
    },
    "encoder": {
        "python-docs": None, "small": "BertForPreTraining", "modern": None,
        "bert-base": "BertForPreTraining", "bert-large": "BertForPreTraining",
        "modernbert-small": "ModernBertForMaskedLM", "modernbert": "ModernBertForMaskedLM",
    },
    "encoder-task": {
        "classify": "BertForSequenceClassification", "pair": "BertForSequenceClassification",
        "regress": "BertForSequenceClassification", "tag": "BertForTokenClassification",
        "qa": "BertForQuestionAnswering",
    },
    "image": {
        "vit": "ViTForImageClassification", "vit-small": "ViTForImageClassification",
        "vit-base": "ViTForImageClassification", "cct": None, "digits": None,
    },
    "captioner": dict.fromkeys(("scenes", "captions"), "VisionEncoderDecoderModel"),
    "two-tower": {"clip": "CLIPModel", "siglip": None, "clip-scenes": "CLIPModel"},
}  # fmt: skip
RUNS = {
    "encoder-decoder": TRANSLATION_RUNS,
    "encoder-decoder pretrain": DENOISING_RUNS,
    "decoder": LANGUAGE_RUNS,
    "encoder": PRETRAIN_RUNS,
    "encoder-task": TASK_RUNS,
    "image": IMAGE_RUNS,
    "captioner": named_runs("captions"),
    "two-tower": named_runs("clip"),
}
NEURAL = [
    (kind, name, run)
    for kind, runs in RUNS.items()
    for name, (_, run) in runs.items()
    if isinstance(run.model, TransformerConfig)
]
IDS = [f"{kind} {name}" for kind, name, _ in NEURAL]


@pytest.mark.parametrize(("kind", "name", "run"), NEURAL, ids=IDS)
def test_a_named_run_is_exported_as_its_family_or_the_difference_is_named(kind, name, run):
    fields = dataclasses.asdict(run)
    if kind in ("encoder-task", "image"):
        fields["task"]["labels"] = ("no", "yes")
    wanted = EXPORTS[kind][name]
    if wanted is not None:
        assert choose_family(model_of(fields, kind.split()[0])).fields["architectures"] == [wanted]
        return
    with pytest.raises(
        ConfigError, match="no Hugging Face model type has this architecture: "
    ) as caught:
        choose_family(model_of(fields, kind))
    settings = re.findall(r"([a-z_.]+) \S+ instead of", str(caught.value))
    why = {"positions.kind", "mixer.kind", "image.stem", "contrast.loss"}
    assert why & set(settings)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_exported_as_a_family(name):
    config = PRESETS[name]
    both = config.encoder_layers and config.decoder_layers
    kind = "encoder-decoder" if both else "decoder" if config.decoder_layers else "encoder"
    kind = "image" if config.image.image_size else kind
    family = choose_family(model_of({"model": dataclasses.asdict(config)}, kind)).family
    own = {"vaswani": "marian", "nanogpt": "gpt2"}
    first = name.partition("_")[0]
    assert family.types[0] == own.get(first, first)


@pytest.mark.parametrize(("kind", "name", "run"), NEURAL, ids=IDS)
def test_help_shows_the_vocabulary_that_will_be_learnt(kind, name, run):
    learnt = 0 if run.tokenizer is None else run.tokenizer.vocab_size or VOCABULARY
    assert run.model.vocab_size == learnt


@pytest.mark.parametrize("steps", [1, 13, 1000, 10**6])
def test_whatever_the_size_of_the_data_a_run_on_ones_own_text_warms_up_within_it(steps):
    for kind, name, run in NEURAL:
        sized = with_step_intervals(run, steps)
        assert None not in (sized.optimizer.schedule.warmup_steps, sized.loop.evaluate_every)
        assert with_step_intervals(sized, 7 * steps) == sized, (kind, name)  # what was chosen stays
        if run.optimizer.schedule.warmup_steps is None:
            total = sized.training.steps or sized.training.epochs * steps
            check_warmup(sized.optimizer.schedule, total)
            assert sized.loop.evaluate_every <= total, (kind, name)
            assert changed_settings(run, sized)


def test_what_is_given_is_left_alone():
    run = TRANSLATION_RUNS["small"][1]
    schedule = dataclasses.replace(run.optimizer.schedule, warmup_steps=7)
    run = dataclasses.replace(
        run,
        training=dataclasses.replace(run.training, epochs=3),
        optimizer=dataclasses.replace(run.optimizer, schedule=schedule),
        loop=dataclasses.replace(run.loop, evaluate_every=0),
    )
    sized = with_step_intervals(run, 13)
    assert (sized.training.epochs, sized.optimizer.schedule.warmup_steps) == (3, 7)
    assert (sized.loop.evaluate_every, sized.loop.checkpoint_every) == (0, 0)
    assert changed_settings(run, sized) == "loop.checkpoint_every 0"


def test_3000_pairs_give_a_run_that_warms_up_and_learns():
    sized = with_step_intervals(TRANSLATION_RUNS["small"][1], 13)
    assert changed_settings(TRANSLATION_RUNS["small"][1], sized) == (
        "training.epochs 50, optimizer.schedule.warmup_steps 65, loop.evaluate_every 65, "
        "loop.checkpoint_every 65"
    )


def test_more_data_never_give_fewer_tokens_or_more_passes():
    sizes = [vocabulary_for(["word" * n], "bpe") for n in (1, 10**4, 10**5, 10**6)]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (500, VOCABULARY)
    epochs = [epochs_for(n) for n in (1, 20, 99, 101, 10**5)]
    assert epochs == sorted(epochs, reverse=True)


def test_a_vocabulary_that_follows_from_the_text_has_room_for_its_characters():
    letters = "".join(map(chr, range(0x4E00, 0x4E00 + 900)))
    assert vocabulary_for([letters], "wordpiece") >= 1800
    assert vocabulary_for([letters], "characters") >= 900
    # Words that occur once teach the unknown token.
    repeated = " ".join(f"w{i} w{i} once{i}" for i in range(650))
    assert vocabulary_for([repeated], "words") == 600


@pytest.mark.parametrize("steps", [1, 30])
def test_a_short_run_has_a_warmup_that_fits_unless_it_is_given(steps, capsys):
    named = LANGUAGE_RUNS["char-cpu"][1]
    short = dataclasses.replace(named, training=dataclasses.replace(named.training, steps=steps))
    fitting = with_warmup(short, named)
    assert fitting.optimizer.schedule.warmup_steps is None
    assert "warmup: a tenth of" in capsys.readouterr().err
    schedule = dataclasses.replace(short.optimizer.schedule, warmup_steps=99)
    given = dataclasses.replace(
        short, optimizer=dataclasses.replace(short.optimizer, schedule=schedule)
    )
    with pytest.raises(ConfigError, match=f"warmup_steps is 99, but the run has {steps} step"):
        with_warmup(given, named)
    assert with_warmup(named, named) == named
