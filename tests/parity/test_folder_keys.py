"""The tables of keys know those of transformers and sentence-transformers."""

import importlib
import inspect
import pkgutil

import pytest

from transformer_jax.interop.folder_keys import GENERATION, SENTENCES, TOKENIZER

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.parity

# Families of the package, by the folder of their tokenizer in transformers.
FAMILIES = (
    "bart", "bert", "camembert", "clip", "distilbert", "electra", "gemma", "gpt2", "llama",
    "m2m_100", "marian", "mbart", "mbart50", "mpnet", "mt5", "nllb", "pegasus", "qwen2", "roberta",
    "siglip", "t5", "xlm_roberta",
)  # fmt: skip
# Arguments that are no settings of a folder.
NO_SETTINGS = {"self", "args", "kwargs", "vocab", "merges", "tokenizer_object", "source_spm",
               "target_spm", "spm_file", "_spm_precompiled_charsmap"}  # fmt: skip


def arguments():
    """The arguments of the tokenizers of the families."""
    found = set()
    for family in FAMILIES:
        try:
            module = importlib.import_module(f"transformers.models.{family}")
        except ModuleNotFoundError:
            continue
        for info in pkgutil.iter_modules(module.__path__):
            if not info.name.startswith("tokenization_"):
                continue
            inner = importlib.import_module(f"{module.__name__}.{info.name}")
            for _, one in inspect.getmembers(inner, inspect.isclass):
                if one.__module__ == inner.__name__ and "okenizer" in one.__name__:
                    found |= set(inspect.signature(one.__init__).parameters)
    return found - NO_SETTINGS


def test_keys_of_tokenizers():
    base = transformers.PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES
    assert not (arguments() | set(base)) - TOKENIZER.keys()


def test_keys_of_generation_configs():
    assert not set(transformers.GenerationConfig().to_dict()) - GENERATION.keys()
    assert not {*vars(transformers.GenerationConfig())} - GENERATION.keys()


def test_keys_of_sentence_encoders():
    pytest.importorskip("sentence_transformers")
    known = {"__version__", "prompts", "default_prompt_name", "similarity_fn_name", "model_type"}
    assert known | {"activation_fn", "keep_in_fp32_modules", "truncate_dim"} <= SENTENCES.keys()
