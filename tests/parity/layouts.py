"""Tiny models of every published layout: their configurations and their random weights.

``references/layouts.json`` holds what transformers writes for each: ``config.json``, and the names
and shapes of the tensors. The weights are drawn here, so that no file holds them, with noise on
every tensor: zeros and ones hide mistakes.
"""

import dataclasses
import hashlib
import json
from pathlib import Path

import numpy as np

REFERENCES = Path(__file__).parent / "references"
FILE = REFERENCES / "layouts.json"

LAYOUTS: dict[str, dict] = (
    json.loads(FILE.read_text()) if FILE.exists() else {}
)  # name: {"config": …, "tensors": {name: shape}}

# Angles that depend on the length of a text are those of a context; that of the inputs is longer
# than what is read unless it is asked for.
CONTEXTS = {"llama_dynamic": 40, "phi3_long": 40}


def in_context(layout: str, model):
    """The model of a layout with the context of its inputs, where angles depend on it."""
    if layout not in CONTEXTS:
        return model
    positions = dataclasses.replace(model.config.positions, max_length=CONTEXTS[layout])
    config = dataclasses.replace(model.config, positions=positions)
    return dataclasses.replace(model, config=config)


def random(name: str) -> np.random.RandomState:
    """Random numbers that depend on a name alone, and on no version of NumPy."""
    return np.random.RandomState(int(hashlib.sha256(name.encode()).hexdigest()[:8], 16))


def weights(layout: str, tensors: dict[str, list[int]] | None = None) -> dict[str, np.ndarray]:
    """The tensors of a layout by their published names, or those of other shapes."""
    found = {}
    for name, shape in (tensors or LAYOUTS[layout]["tensors"]).items():
        noise = 0.15 * random(f"{layout}/{name}").standard_normal(shape)
        gain = len(shape) == 1 and name.endswith("weight") and "gemma" not in layout
        found[name] = np.asarray(noise + gain, np.float32)
    return found


def write(layout: str, folder: Path) -> Path:
    """A Hugging Face folder with ``config.json`` and ``model.safetensors``."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LAYOUTS[layout]["config"], indent=2))
    save_file(weights(layout), folder / "model.safetensors", {"format": "pt"})
    return folder


def inputs(layout: str) -> dict[str, np.ndarray]:
    """The inputs of a layout, see :func:`inputs_of`."""
    return inputs_of(LAYOUTS[layout]["config"], random(f"{layout} inputs"))


def inputs_of(fields: dict, draw: np.random.RandomState) -> dict[str, np.ndarray]:
    """Four rows: whole, and padded on the right, on the left and in the middle."""
    image = fields.get("encoder", fields)
    if "image_size" in image:
        size = image["image_size"]
        shape = (3, image["num_channels"], size, size)
        pixels = {"pixel_values": draw.standard_normal(shape).astype(np.float32)}
        if "decoder" not in fields:
            return pixels
        return pixels | {"decoder_input_ids": draw.randint(5, 80, (3, 33))}
    if "vision_config" in fields:
        return towers(draw, fields)
    B, S = 4, 40
    ids, real = draw.randint(5, 80, (B, S)), np.ones((B, S), np.int64)
    real[1, 29:] = real[2, :13] = real[3, 11:20] = 0
    ids[real == 0] = fields.get("pad_token_id") or 0
    found = {"input_ids": ids, "attention_mask": real}
    if fields.get("type_vocab_size", 0) > 1:
        found["token_type_ids"] = draw.randint(0, 2, (B, S))
    if fields.get("is_encoder_decoder"):
        found["decoder_input_ids"] = draw.randint(5, 80, (B, 33))
        found["decoder_input_ids"][:, 0] = fields["decoder_start_token_id"]
    elif _decodes(fields["model_type"]):
        found["position_ids"] = np.maximum(real.cumsum(1) - 1, 0)
    return found


def _decodes(kind: str) -> bool:
    """Returns whether a ``model_type`` is that of decoders, some with heads of classifiers."""
    each = (layout["config"] for layout in LAYOUTS.values())
    ends = ("ForCausalLM", "LMHeadModel")
    return any(c["model_type"] == kind and c["architectures"][0].endswith(ends) for c in each)


def towers(draw: np.random.RandomState, fields: dict) -> dict[str, np.ndarray]:
    """Images and texts for two towers: CLIP looks for ends of texts, SigLIP reads padding too."""
    image, text, rows = fields["vision_config"], fields["text_config"], 4
    shape = (3, image["num_channels"], image["image_size"], image["image_size"])
    pixels = {"pixel_values": draw.standard_normal(shape).astype(np.float32)}
    length, end = text["max_position_embeddings"], text["eos_token_id"]
    ids = draw.randint(3, text["vocab_size"] - 1, (rows, length))
    if fields["model_type"] == "siglip":
        return pixels | {"input_ids": ids}
    last = draw.randint(1, length, (rows, 1))
    ids = np.where(ids == end, end + 1, ids)
    ids[np.arange(rows), last[:, 0]] = end
    real = (np.arange(length) <= last).astype(np.int64)
    return pixels | {"input_ids": ids, "attention_mask": real}


# In transformers a padding token that these write has the position of padding; in ours the next.
NO_POSITION_FOR_PAD = ("m2m_100",)
