"""A user's program, as checkers of types see it: mypy checks it with --strict."""

from collections.abc import Callable
from typing import Any, assert_type

import transformer_jax as tj
from transformer_jax.inference.generation import LanguageModelPredictor, TranslationPredictor
from transformer_jax.inference.pipelines import FillMaskPipeline, LabelRanking, TranslationRecord
from transformer_jax.inference.results import GeneratedText, RankedText
from transformer_jax.inference.speech import SpeechPredictor
from transformer_jax.inference.texts import (
    ClassificationPredictor,
    EncoderPredictor,
    QuestionAnsweringPredictor,
    RegressionPredictor,
    RewardPredictor,
    TaggingPredictor,
)


def configure() -> tj.TransformerConfig:
    """Makes a configuration of the public names."""
    config = tj.TransformerConfig(
        d_model=64, mixer=tj.MixerConfig(kind="recurrent"), norm=tj.NormConfig(placement="pre")
    )
    assert_type(config.norm.eps, float)
    assert_type(tj.presets["gpt2_small"], tj.TransformerConfig)
    return config


def use(path: str) -> None:
    """Loads models by the names of their tasks."""
    translate = tj.load(path, "translation", checkpoint="last")
    assert_type(translate, TranslationPredictor)
    assert_type(translate("a sentence"), GeneratedText)
    assert_type(translate(["a sentence"], num_beams=2), list[GeneratedText])
    assert_type(tj.load(path, "summarization"), TranslationPredictor)
    assert_type(tj.load(path, "language_model"), LanguageModelPredictor)
    assert_type(tj.load(path, "speech_recognition"), SpeechPredictor)
    assert_type(tj.load(path, "masked_lm"), EncoderPredictor)
    assert_type(tj.load(path, "sequence_classification"), ClassificationPredictor)
    assert_type(tj.load(path, "regression"), RegressionPredictor)
    assert_type(tj.load(path, "regression").rank("a query", ["a text"]), list[RankedText])
    assert_type(tj.load(path, "token_classification"), TaggingPredictor)
    assert_type(tj.load(path, "question_answering"), QuestionAnsweringPredictor)
    assert_type(tj.load(path, "reward"), RewardPredictor)
    assert_type(tj.load(path), Any)


def keep(path: str) -> None:
    """Calls pipelines as programs of transformers 4 do."""
    assert_type(tj.pipeline("translation", path)("a sentence"), list[TranslationRecord])
    assert_type(tj.pipeline("fill-mask", path, top_k=2), FillMaskPipeline)
    assert_type(tj.pipeline("zero-shot-classification", path)("a", ["b"]), LabelRanking)
    print(tj.pipeline("summarization", path)("a text", max_length=9)[0]["summary_text"])
    print(tj.pipeline("image-classification", path)(["a.png"])[0][0]["label"])
    tj.pipeline("fill-mask", path)("a [MASK]", topk=2)  # type: ignore[call-arg]


def mistakes(path: str) -> None:
    """Each line is refused: mypy reports an ignored error that there is not."""
    print(tj.TransfomerConfig)  # type: ignore[attr-defined]
    tj.load(path, "translaton")  # type: ignore[call-overload]
    tj.load(path, checkpont="best")  # type: ignore[call-overload]
    tj.NormConfig(placement="prenorm")  # type: ignore[arg-type]
    tj.load(path, "translation")(3)  # type: ignore[call-overload]


PROGRAMS: list[Callable[[str], None]] = [use, keep, mistakes]
