"""Adapters in the folder format of PEFT: ``adapter_config.json``, ``adapter_model.safetensors``.

PEFT is Hugging Face's library of adapters, https://huggingface.co/docs/peft.
"""

from transformer_jax.interop.peft_config import CONFIG
from transformer_jax.interop.peft_reader import WEIGHTS, is_peft_folder, read_peft
from transformer_jax.interop.peft_writer import write_peft

__all__ = ["CONFIG", "WEIGHTS", "is_peft_folder", "read_peft", "write_peft"]
