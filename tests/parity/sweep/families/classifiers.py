"""Classifiers of texts that are decoders: told from the last token that is no padding."""

import dataclasses
import re

from tests.parity.sweep.drawing import FAMILIES, Case, Draw, family
from tests.parity.sweep.families import decoders

# By their files: a collection of doctests gives the module another name.
_DECODERS = [
    name for name, one in FAMILIES.items() if one.case.__code__.co_filename == decoders.__file__
]


@family("decoder-classifiers")
def classifiers(draw: Draw) -> Case:
    case = FAMILIES[draw.turn(_DECODERS)].case(draw)
    labels = {
        "num_labels": draw.choice([1, 2, 5]),
        "problem_type": draw.choice([None, "multi_label_classification"]),
    }
    cls = re.sub("ForCausalLM|LMHeadModel", "ForSequenceClassification", case.cls)
    return dataclasses.replace(case, cls=cls, config={**case.config, **labels})
