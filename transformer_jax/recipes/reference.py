"""The reference of a run on preferences: log-probabilities, computed once and stored."""

import zipfile
from pathlib import Path
from typing import Literal

import numpy as np
from flax import nnx
from jaxtyping import Float

from transformer_jax.core.errors import DataError
from transformer_jax.core.keys import key_for
from transformer_jax.core.numpy_files import load_arrays
from transformer_jax.core.output_files import draft_file
from transformer_jax.core.task_progress import log
from transformer_jax.data.preference_examples import CompletionStore
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.models.transformer.models import Decoder
from transformer_jax.parallel.mesh import is_main_process, sync_global_devices
from transformer_jax.recipes.checks import mesh_of
from transformer_jax.recipes.freezing import initial_of
from transformer_jax.recipes.posttraining import STARTS
from transformer_jax.recipes.settings import Trained
from transformer_jax.recipes.tasks.preference_task import (
    CompletionRows,
    EncodedCompletions,
    reference_log_probs,
)
from transformer_jax.runs.run_directory import RunDirectory

__all__ = ["compute_reference", "kept_reference"]

_FILE = "reference.npz"  # in the run directory


def kept_reference(
    run: Trained,
    directory: RunDirectory,
    tokenizer: Tokenizer,
    encoded: EncodedCompletions,
    rows: CompletionRows,
) -> dict[str, Float[np.ndarray, "n 2"]]:
    """Returns log-probabilities of the reference, computed at the start of the run and then stored.

    Args:
        run: The settings.
        directory: Of the run.
        tokenizer: Of the run.
        encoded: The examples of the run.
        rows: The batching rules.

    Raises:
        DataError: The stored log-probabilities are for other data, or damaged.
    """
    path = Path(directory.path) / _FILE
    stores = encoded.parts().values()
    identity = " ".join(rows.data(store, tokenizer.pad).fingerprint for store in stores)
    if path.exists():
        return _stored(path, identity, encoded)
    found = compute_reference(run, directory, tokenizer, encoded, rows)
    if is_main_process():
        with draft_file(path) as draft, open(draft, "wb") as file:
            np.savez(file, identity=np.array(identity), **found)  # type: ignore[arg-type]
    sync_global_devices("reference is stored")
    log(f"log-probabilities of the reference: {path}")
    return found


def compute_reference(
    run: Trained,
    directory: RunDirectory,
    tokenizer: Tokenizer,
    encoded: EncodedCompletions,
    rows: CompletionRows,
) -> dict[str, Float[np.ndarray, "n 2"]]:
    """Returns log-probabilities of the reference, the start of the run, by name of the part.

    Args:
        run: The settings.
        directory: Of the run.
        tokenizer: Of the run.
        encoded: The examples.
        rows: The batching rules.

    Raises:
        CheckpointError: The start of the run is missing.
    """
    make = lambda rngs: Decoder(run.model, rngs=rngs)
    drawn = make(nnx.Rngs(key_for(run.training.seed, "initialization")))
    initial = initial_of(run, STARTS, tokenizer, directory.allow_changed)
    mesh = mesh_of(run)
    assert initial is not None
    params = initial(nnx.to_pure_dict(nnx.state(drawn)))
    parts: tuple[tuple[Literal["train", "valid"], CompletionStore | None], ...] = (
        ("train", encoded.train), ("valid", encoded.valid)
    )  # fmt: skip
    return {
        name: reference_log_probs(make, params, store, rows, tokenizer.pad, mesh, name=name)
        for name, store in parts
        if store is not None
    }


def _stored(path: Path, identity: str, encoded: EncodedCompletions) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as raw, load_arrays(raw) as file:
            kept = {name: file[name] for name in file.files}
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: damaged ({error}): start the run again") from None
    sizes = {name: (len(store), 2) for name, store in encoded.parts().items()}
    if str(kept.pop("identity", "")) != identity or {k: v.shape for k, v in kept.items()} != sizes:
        raise DataError(
            f"{path}: the preferences have changed since the run began: restore them, or begin a "
            f"new run"
        )
    return kept
