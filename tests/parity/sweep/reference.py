"""Files and outputs of transformers; everything here needs torch."""

import contextlib
import inspect
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from safetensors.numpy import load_file, save_file

from tests.parity.exact import exact
from tests.parity.sweep.drawing import Case

KINDS = ("logits", "prediction_logits", "seq_relationship_logits", "start_logits", "end_logits",
         "pooler_output", "last_hidden_state", "logits_per_image", "image_embeds",
         "text_embeds")  # fmt: skip
_WIDE = {torch.float32: contextlib.nullcontext, torch.float64: exact}


class MisfitError(Exception):
    """Transformers would fill in tensors that a file lacks, or leave some out."""


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Transformers without its warnings and progress bars, torch on one thread."""
    hf.logging.set_verbosity_error()
    hf.logging.disable_progress_bar()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def write(case: Case, folder: Path, noise: np.random.RandomState) -> None:
    """The folder of a case: as transformers writes it, with noise on every tensor."""
    cls = getattr(hf, case.cls)
    model = cls(cls.config_class(**case.config))
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    tensors = {name: _noisy(array, noise) for name, array in sorted(load_file(file).items())}
    save_file(case.edit(tensors), file, {"format": "pt"})
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(case.fields(fields), indent=2))


def _noisy(array: np.ndarray, noise: np.random.RandomState) -> np.ndarray:
    """Zeros and ones hide mistakes; what is constant, such as a gain, stays around it."""
    middle = array.flat[0] if array.size and np.all(array == array.flat[0]) else 0.0
    return np.asarray(middle + 0.15 * noise.standard_normal(array.shape), np.float32)


def load(cls: str, folder: Path, spare: Sequence[str] = ()) -> Any:
    """The model of a folder.

    Raises:
        MisfitError: Its tensors are not those of the model, but for ``spare`` ones.
    """
    model, said = getattr(hf, cls).from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
    )
    extra = {name for name in said.pop("unexpected_keys")
             if not any(re.fullmatch(pattern, name) for pattern in spare)}  # fmt: skip
    wrong = {kind: sorted(map(str, names)) for kind, names in said.items() if names}
    if wrong or extra:
        raise MisfitError(f"{wrong} {sorted(extra)}")
    return model.eval()


def accepted(model: Any, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The ``inputs`` that the model takes."""
    names = inspect.signature(model.forward).parameters
    return {name: value for name, value in inputs.items() if name in names}


def outputs(model: Any, inputs: Mapping[str, np.ndarray], dtype: torch.dtype = torch.float32):
    """The outputs of the model, as float64 arrays."""
    given = {name: torch.tensor(value) for name, value in inputs.items()}
    given = {name: x.to(dtype) if x.is_floating_point() else x for name, x in given.items()}
    with torch.no_grad(), _WIDE[dtype]():
        out = model.to(dtype)(**given)
    model.to(torch.float32)
    return {kind: out[kind].double().numpy() for kind in KINDS if out.get(kind) is not None}


def generate(
    model: Any, ids: np.ndarray, mask: np.ndarray, rules: Mapping[str, Any], dtype: torch.dtype
) -> np.ndarray:
    """The tokens that ``generate`` gives, the prompt or start among them."""
    with torch.no_grad(), _WIDE[dtype]():
        out = model.to(dtype).generate(
            torch.tensor(ids), attention_mask=torch.tensor(mask), do_sample=False, **rules
        )
    model.to(torch.float32)
    return out.numpy()


def generate_captions(
    model: Any, pixels: np.ndarray, rules: Mapping[str, Any], dtype: torch.dtype
) -> np.ndarray:
    """The tokens that ``generate`` gives for pictures, the start among them."""
    with torch.no_grad(), _WIDE[dtype]():
        given = torch.tensor(pixels).to(dtype)
        out = model.to(dtype).generate(pixel_values=given, do_sample=False, **rules)
    model.to(torch.float32)
    return out.numpy()
