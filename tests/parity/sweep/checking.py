"""Compares ours with transformers on a folder: outputs, the way back, and texts."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from flax import nnx

from tests.parity import layouts, ours
from tests.parity.sweep import reference
from tests.parity.sweep.drawing import Case, Draw
from transformer_jax.core.errors import UserError
from transformer_jax.decoding.hf_config import from_generation_config
from transformer_jax.decoding.hf_generate import HFGenerator
from transformer_jax.decoding.programs import generate
from transformer_jax.interop.export import hf_tensors, write_folder
from transformer_jax.interop.hf_checkpoint import HFCheckpoint, abstract_model, open_hf_checkpoint

ALLOWED = 1e-5
ROWS = 4
PROMPT, NEW = 10, 8  # tokens


class RefusedError(Exception):
    """Ours does not read, or not write, such a folder."""


def check(case: Case, folder: Path, draw: Draw, *, generates: bool = False) -> float:
    """The difference of ours from transformers, in units of the allowed one.

    Args:
        case: The configuration.
        folder: Where it is written; files beside it may be written too.
        draw: Where weights and inputs come from.
        generates: Whether texts are compared too.

    Raises:
        RefusedError: Ours refuses the folder, in words.
        AssertionError: The two differ in any way.
    """
    noise = np.random.RandomState(draw.getrandbits(32))
    reference.write(case, folder, noise)
    there = reference.load(case.cls, folder, case.spare)
    here = opened(folder)
    params = here.load()
    given = case.inputs(draw) if case.inputs else inputs(here, case, draw, noise)
    given = reference.accepted(there, given)
    wanted = reference.outputs(there, given)
    far = compare(ours.compute(here.model, params, filled(given, here)), wanted, there, given)
    check_return(case, folder, here, params)
    check_export(case, folder.parent / "exported", here, params, there, given)
    if generates and here.model.kind in ("decoder", "encoder-decoder"):
        check_texts(here, params, there, draw)
    if generates and here.model.kind == "captioner":
        check_captions(here, params, there, given["pixel_values"], draw)
    return far


def opened(folder: Path) -> HFCheckpoint:
    """The folder as ours reads it.

    Raises:
        RefusedError: It does not.
    """
    try:
        return open_hf_checkpoint(folder)
    except UserError as error:
        raise RefusedError(str(error)) from None


def inputs(folder: HFCheckpoint, case: Case, draw: Draw, noise: Any) -> dict[str, np.ndarray]:
    """Rows that are whole, and padded on the right, on the left and in the middle."""
    config, fields = folder.model.config, folder.fields.values
    if folder.model.kind == "two-tower":
        return layouts.towers(noise, fields)
    most = min(case.positions or 80, 80)
    if folder.model.kind in ("image", "captioner"):
        image = (folder.model.encoder or config).image
        shape = (3, image.num_channels, image.image_size, image.image_size)
        pixels = {"pixel_values": noise.standard_normal(shape).astype(np.float32)}
        if folder.model.kind == "image":
            return pixels
        T = draw.randint(most // 3, most)
        return pixels | {"decoder_input_ids": noise.randint(3, config.vocab_size, (3, T))}
    S = draw.randint(most // 2, most)
    pad = fields.get("pad_token_id") or 0
    real = padding(draw, ROWS, S)
    ids = np.where(real, tokens(noise, (ROWS, S), config.vocab_size, pad), pad)
    found = {"input_ids": ids, "attention_mask": real.astype(np.int64)}
    if fields.get("type_vocab_size", 0) > 1:
        found["token_type_ids"] = noise.randint(0, fields["type_vocab_size"], (ROWS, S))
    if folder.model.kind == "encoder-decoder":
        T = draw.randint(most // 3, most)
        found["decoder_input_ids"] = tokens(noise, (ROWS, T), config.decoder().vocab_size, pad)
        found["decoder_input_ids"][:, 0] = fields["decoder_start_token_id"]
    found["position_ids"] = np.maximum(real.cumsum(1) - 1, 0)
    if folder.model.kind not in ("decoder", "decoder-task"):
        del found["position_ids"]
    return found


def padding(draw: Draw, rows: int, length: int) -> np.ndarray:
    """Masks of real tokens: all, and all but some on the right, on the left, in the middle."""
    real = np.ones((rows, length), bool)
    some = lambda: draw.randint(1, length // 2)
    real[1, -some() :] = False
    real[2, : some()] = False
    start = draw.randint(1, length // 2)
    real[3, start : start + draw.randint(1, length // 3)] = False
    return real


def tokens(noise: Any, shape: tuple[int, ...], vocab: int, pad: int) -> np.ndarray:
    """Any tokens but the one that stands for padding."""
    ids = noise.randint(0, vocab - 1, shape)
    return ids + (ids >= pad)


def filled(given: Mapping[str, np.ndarray], folder: HFCheckpoint) -> dict[str, np.ndarray]:
    """The inputs of ours: positions also where transformers finds them by itself."""
    found = dict(given)
    if folder.model.kind == "decoder":
        found["position_ids"] = np.maximum(found["attention_mask"].cumsum(1) - 1, 0)
    return found


def compare(
    found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], there: Any, given: Any
) -> float:
    """The largest difference of two results, at most what is allowed.

    That is 1e-5, or twice what transformers in float32 is from itself in float64.
    """
    assert wanted, "transformers gives nothing to compare"
    assert wanted.keys() <= found.keys(), f"{sorted(found)}, and {sorted(wanted)} there"
    real = given.get("attention_mask", np.ones(0)).astype(bool)
    seen = lambda x: x[real] if x.shape[:2] == real.shape else x
    true, worst = None, 0.0
    for kind, values in wanted.items():
        value = np.asarray(found[kind], np.float64)
        assert value.shape == values.shape, f"{kind}: {value.shape}, and {values.shape} there"
        far = float(np.abs(seen(value - values)).max())
        assert np.isfinite(far), kind
        if far > ALLOWED:
            true = true or reference.outputs(there, given, torch.float64)
            exact = true[kind]
            far = float(np.abs(seen(value - exact)).max())
            allowed = max(ALLOWED, 2 * float(np.abs(seen(values - exact)).max()))
            size = float(np.abs(seen(exact)).max())
            assert far <= allowed, f"{kind} of up to {size:.2g}: {far:.2g}, allowed {allowed:.2g}"
        worst = max(worst, far)
    return worst


def check_return(case: Case, folder: Path, here: HFCheckpoint, params: Any) -> None:
    """A checkpoint that was read goes back bit by bit under its names."""
    from safetensors.numpy import load_file

    file = load_file(folder / "model.safetensors")
    back = hf_tensors(here.family, here.model, params)
    wanted = {here.names[row.hf_name]: row.hf_name for row in here.mappings}
    assert back.keys() == set(wanted.values())
    for there, name in wanted.items():
        assert back[name].dtype == file[there].dtype
        assert back[name].shape == file[there].shape
        assert back[name].tobytes() == file[there].tobytes(), name
    left = [name for name in file.keys() - wanted.keys()
            if not any(re.fullmatch(pattern, name) for pattern in case.spare)]  # fmt: skip
    assert not left, f"{left} do not go back"


def check_export(
    case: Case, folder: Path, here: HFCheckpoint, params: Any, there: Any, given: Mapping[str, Any]
) -> None:
    """The model is exported like one trained here: transformers reads the same from it.

    Raises:
        RefusedError: No family has this architecture when it is written.
    """
    try:
        said = write_folder(folder, here.model, params, ids=special(here))
    except UserError as error:
        raise RefusedError(f"export: {error}") from None
    name = said["architectures"][0]
    again = reference.load(name, folder)
    wanted = reference.outputs(there, given)
    found = reference.outputs(again, reference.accepted(again, given))
    kinds = wanted.keys() & found.keys()
    assert kinds, f"{name} gives {sorted(found)}, and {case.cls} {sorted(wanted)}"
    compare(found, {kind: wanted[kind] for kind in kinds}, there, given)


def special(here: HFCheckpoint) -> dict[str, Any]:
    """The ids of special tokens, as a tokenizer would give them."""
    names = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
    fields = here.fields.values
    fields = fields.get("text_config", fields)
    return {name: fields[name] for name in names if name in fields}


def check_captions(
    here: HFCheckpoint, params: Any, there: Any, pixels: np.ndarray, draw: Draw
) -> None:
    """Greedy or beam search writes the same tokens for pictures."""
    fields = here.fields.values
    rules = {
        "num_beams": draw.choice([1, 2, 3]),
        "max_new_tokens": NEW,
        "eos_token_id": draw.randint(3, here.model.config.vocab_size - 1),
    }
    given = json.loads(json.dumps(fields)) | rules
    config = from_generation_config(given).changed(do_sample=None)
    model = nnx.merge(nnx.split(abstract_model(here.model))[0], params)
    images = {"images": np.moveaxis(pixels, 1, -1)}
    with jax.default_matmul_precision("highest"):
        found = generate(model, images, config)
    start = fields["decoder_start_token_id"]
    found = np.concatenate([np.full((len(found), 1), start), found], axis=1)
    for dtype in (torch.float32, torch.float64):
        wanted = reference.generate_captions(there, pixels, rules, dtype)
        if np.array_equal(found[:, : wanted.shape[1]], wanted):
            return
    raise AssertionError(f"{rules}: {found}, {wanted}")


def check_texts(here: HFCheckpoint, params: Any, there: Any, draw: Draw) -> None:
    """Greedy or beam search writes the same tokens."""
    fields, encodes = here.fields.values, here.model.kind == "encoder-decoder"
    vocab, pad = here.model.config.decoder().vocab_size, fields.get("pad_token_id") or 0
    rules = {
        "num_beams": draw.choice([1, 2, 3]),
        "max_new_tokens": NEW,
        "eos_token_id": draw.choice([i for i in range(2, vocab) if i != pad]),
        "pad_token_id": pad,
    }
    if fields["model_type"] in layouts.NO_POSITION_FOR_PAD:
        rules["suppress_tokens"] = [pad]
    ids = np.array([[draw.randrange(3, 55) for _ in range(PROMPT)] for _ in range(2)])
    ids += ids == pad
    real = np.ones_like(ids)
    real[1, : draw.randint(1, PROMPT // 2)] = 0
    ids[real == 0] = pad
    given = from_generation_config(json.loads(json.dumps(fields)) | rules)
    model = nnx.split(abstract_model(here.model))[0], params
    ours = HFGenerator(model, given, rows=(2,), lengths=(PROMPT, NEW))
    with jax.default_matmul_precision("highest"):
        found = ours.generate(ids, real).tokens
    more = rules | ({"use_cache": False} if encodes else {})
    # Where float32 and float64 disagree, rounding decides between two hypotheses.
    wanted = [reference.generate(there, ids, real, more, torch.float32)]
    if not np.array_equal(found, wanted[0]):
        wanted.append(reference.generate(there, ids, real, more, torch.float64))
    assert any(np.array_equal(found, text) for text in wanted), f"{rules}: {found}, {wanted}"
