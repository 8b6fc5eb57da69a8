"""Runs the laws on a model, with tolerances for its data type and device."""

import dataclasses
import hashlib
import math
import platform
import time
from collections.abc import Callable, Collection
from typing import TypedDict, cast

import flax
import jax
import jaxlib
import numpy as np
from flax import nnx

import transformer_jax
from transformer_jax import laws
from transformer_jax.core.config_fields import nearest
from transformer_jax.core.errors import ConfigError
from transformer_jax.core.json_types import Json
from transformer_jax.core.task_progress import show_progress
from transformer_jax.core.trees import flatten_dict
from transformer_jax.doctor.checks import Check, largest
from transformer_jax.doctor.families import model_checks
from transformer_jax.doctor.kernel_laws import attention_layers, kernels_of
from transformer_jax.laws import Finding
from transformer_jax.models.ngram import NgramModel
from transformer_jax.models.recurrent_config import ModelConfig

__all__ = ["NOT_CHECKED", "Examination", "Result", "examine", "tolerance"]

# Largest relative rounding error. A float32 product is TF32 on a GPU, and bfloat16 on a TPU.
_ROUNDING = {"cpu": 1e-4, "gpu": 1e-2, "tpu": 5e-2}
_BFLOAT16 = 0.1
# Laws about values that are float32 whatever the compute dtype.
_FLOAT32 = ("weights_sum_to_one",)

# Laws about an order, which rounding changes if scores are almost equal: only for float32 on CPU.
_ORDERED = ("beam_search",)

# Reasons why a law is not checked on a model.
_NO_ATTENTION = "the model has no attention layers"
_NO_CACHE = "the model does not write texts with a cache"
_NO_LOSS = "no loss of this model adds up over rows, or none of its rows has padding"
_NO_PADDING = "the model reads no padding after texts"
_NOT_PACKED = "the model takes one text per row"
NOT_CHECKED = {
    **dict.fromkeys(("attention_kernel", "mask_polarity", "masked_rows"), _NO_ATTENTION),
    "weights_sum_to_one": _NO_ATTENTION,
    **dict.fromkeys(("cached", "prefilled", "prompt_padding", "reordered"), _NO_CACHE),
    **dict.fromkeys(("loss_length", "loss_padding", "loss_split"), _NO_LOSS),
    **dict.fromkeys(("padding", "padding_length"), _NO_PADDING),
    **dict.fromkeys(("packed_mates", "packing"), _NOT_PACKED),
    "beam_search": "the model has no beam search, or rounding may swap texts of equal score",
    "causality": "no layer reads a text from left to right",
    "causality_by_gradient": "changing inputs tests the same",
    "visibility": "changing inputs tests the same",
    "permutation": "positions encode the order",
    "resumed": "it would have to train a run",
    "sharded": "the model is on one device",
    "source_length": "padding_length shortens sources too",
    "source_padding": "the model reads no padded source",
}


@dataclasses.dataclass(frozen=True)
class Result:
    """A checked law.

    Attributes:
        finding: The error, the tolerance and the place.
        seconds: Time taken, including compilation.
    """

    finding: Finding
    seconds: float


# The model of a certificate; one of n-grams has only the first two.
About = TypedDict(
    "About",
    {"class": str, "dtype": str, "parameters": int, "sha256": str, "attention_kernels": list[str]},
    total=False,
)


@dataclasses.dataclass(frozen=True)
class Examination:
    """The laws of a model.

    Attributes:
        results: The checked laws, in the order of ``laws.ALL``.
        not_checked: Reasons why other laws do not apply.
        model: The model: class, number and SHA-256 of its parameters, data type, kernels.
    """

    results: tuple[Result, ...]
    not_checked: dict[str, str]
    model: About

    @property
    def broken(self) -> tuple[Finding, ...]:
        """The findings of laws that do not hold."""
        return tuple(one.finding for one in self.results if not one.finding.holds)

    def certificate(self) -> dict[str, object]:
        """Returns all figures, with versions and the device, for a JSON file.

        A non-finite error is None.
        """
        device = jax.devices()[0]
        return {
            "holds": not self.broken,
            "versions": {
                "transformer_jax": transformer_jax.__version__,
                "python": platform.python_version(),
                "jax": jax.__version__,
                "jaxlib": jaxlib.__version__,
                "flax": flax.__version__,
                "numpy": np.__version__,
            },
            "device": {
                "platform": device.platform,
                "kind": device.device_kind,
                "count": jax.device_count(),
            },
            "model": self.model,
            "laws": [_fields(one) for one in self.results],
            "not_checked": self.not_checked,
        }


def _fields(result: Result) -> dict[str, Json]:
    found = dataclasses.asdict(result.finding)
    if not math.isfinite(found["error"]):
        found["error"] = None
    return {**found, "holds": result.finding.holds, "seconds": round(result.seconds, 3)}


def examine(
    model: nnx.Module | NgramModel,
    names: Collection[str] | None = None,
    on_result: Callable[[Result], None] = lambda result: None,
) -> Examination:
    """Checks each law that applies to a model, on small random inputs.

    Outputs are divided by their root mean square, so that errors are relative.

    Args:
        model: A module of this package, such as ``transformer_jax.load(path).model``.
        names: The laws to check; None is all that apply.
        on_result: Called with each result as soon as it is available.

    Raises:
        ConfigError: The model is of an unknown kind, or there is no such law.

    Example:
        >>> from transformer_jax.models.ngram import AddK, NgramModel
        >>> ids = np.array([0, 1, 2, 1, 0, 2, 1])
        >>> counts = NgramModel.train(
        ...     ids, np.array([0, 7]), order=2, vocab_size=3, smoothing=AddK()
        ... )
        >>> examine(counts).broken
        ()
    """
    for name in names or ():
        if name not in laws.ALL:
            hint = nearest(name, laws.ALL) or ";"
            raise ConfigError(f"no law {name}{hint} transformer_jax.laws.ALL has all names")
    with show_progress("laws") as activity:
        activity.name = "preparing"
        known = model_checks(model)
        about = _about(model)
        exact = tolerance("cached", about["dtype"]) <= _ROUNDING["cpu"]
        checks = _by_law(known, names, () if exact else _ORDERED)
        activity.total = len(checks)
        results = []
        for name, several in checks.items():
            activity.name = name
            began = time.monotonic()
            limit = tolerance(name, about["dtype"])
            found = largest(("", check.run(limit)) for check in several)
            result = Result(found, time.monotonic() - began)
            results.append(result)
            on_result(result)
            activity.update()
    reasons = {
        name: NOT_CHECKED[name] if names is None or name in names else "it was not requested"
        for name in laws.ALL
        if name not in checks
    }
    return Examination(tuple(results), reasons, about)


def _by_law(
    checks: list[Check], names: Collection[str] | None, but: Collection[str]
) -> dict[str, list[Check]]:
    """Groups checks by law, in order of first occurrence, leaving some out."""
    found: dict[str, list[Check]] = {}
    for check in checks:
        if (names is None or check.law in names) and check.law not in but:
            found.setdefault(check.law, []).append(check)
    return found


def tolerance(law: str, dtype: str) -> float:
    """Returns the tolerance of a law for a model on the current device.

    Exact laws have tolerance 0 in every data type. The others allow for rounding on the device,
    relative to the size of the outputs: 1e-4 in float32 on a CPU, 0.1 in bfloat16.

    Example:
        >>> tolerance("padding", "bfloat16"), tolerance("cached", "float32")
        (0.0, 0.0001)
    """
    usual = laws.ALL[law].tolerance
    if usual == 0:
        return 0.0
    if law in _FLOAT32:
        return 10 * usual
    if dtype != "float32":
        return _BFLOAT16
    return _ROUNDING.get(jax.devices()[0].platform, _ROUNDING["gpu"])


def _about(model: nnx.Module | NgramModel) -> About:
    found: About = {"class": type(model).__name__, "dtype": "float32"}
    if not isinstance(model, nnx.Module):
        return found
    config = cast(ModelConfig, model.config)  # type: ignore[attr-defined]
    params = flatten_dict(nnx.to_pure_dict(nnx.state(model)))
    digest = hashlib.sha256()
    for name in sorted(params):
        leaf = np.asarray(params[name])
        digest.update(f"{name} {leaf.dtype} {leaf.shape}".encode())
        digest.update(leaf.tobytes())  # bfloat16 does not support the buffer protocol
    kernels = {name for _, layer in attention_layers(model)
               for name, _ in kernels_of(layer.attention.implementation)}  # fmt: skip
    return found | {
        "dtype": config.compute.dtype,
        "parameters": sum(leaf.size for leaf in params.values()),
        "sha256": digest.hexdigest(),
        "attention_kernels": sorted(kernels),
    }
