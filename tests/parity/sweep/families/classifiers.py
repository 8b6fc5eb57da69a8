"""Classifiers of texts that are decoders: told from the last token that is no padding."""

import dataclasses

from tests.parity.sweep.drawing import FAMILIES, Case, Draw, family
from tests.parity.sweep.families import decoders  # noqa: F401  (registers what is read here)

_KINDS = {
    "gpt2": "GPT2", "llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3",
    "gemma": "Gemma", "gemma2": "Gemma2", "phi3": "Phi3", "stablelm": "StableLm", "opt": "OPT",
}  # fmt: skip


@family("decoder-classifiers")
def classifiers(draw: Draw) -> Case:
    name = draw.turn(list(_KINDS))
    case = FAMILIES[name].case(draw)
    labels = {
        "num_labels": draw.choice([1, 2, 5]),
        "problem_type": draw.choice([None, "multi_label_classification"]),
    }
    return dataclasses.replace(
        case, cls=f"{_KINDS[name]}ForSequenceClassification", config={**case.config, **labels}
    )
