"""Run directories, which contain everything needed to use or resume a run."""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from transformer_jax.core.errors import CheckpointError, ConfigError, command, no_such_run
from transformer_jax.core.old_names import current_config
from transformer_jax.core.output_files import draft_folder, is_draft, replace_folder, restore_folder
from transformer_jax.core.storage.urls import draft_place, with_urls, working_copy
from transformer_jax.data.files import read_file
from transformer_jax.runs import manifest
from transformer_jax.runs.lock import LOCK, check_lock, of_a_lock
from transformer_jax.runs.manifest import run_storage

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.runs.checkpoint_reader import Loaded

__all__ = [
    "NOT_OURS",
    "RunDirectory",
    "describe_run",
    "group_of",
    "how_to_continue",
    "read_object",
    "stored_settings",
]

# End of messages about a run of a user's own task.
NOT_OURS = (
    "describes no model of this library: a run of your own task is used by "
    "transformer_jax.load(path, task), and continued by its program"
)

_LARGEST_JSON = 1 << 24  # bytes of a file of settings or results

# Fields of ``config.json`` that are not settings: the name of the recipe, the record of the
# published model that the run started from, and the form of the vectors of a sentence encoder.
_NO_SETTINGS = ("recipe", "special", "published", "sentence")


def describe_run(settings: object) -> dict[str, Any]:
    """Returns the settings for ``config.json``, with the name of their recipe.

    Args:
        settings: A dataclass; one with an attribute ``recipe`` names the recipe.
    """
    name = getattr(settings, "recipe", None)
    fields = dataclasses.asdict(cast("DataclassInstance", settings))
    return fields if name is None else {"recipe": name, **fields}


def how_to_continue(path: str | os.PathLike[str]) -> str:
    """Returns what continues a run, for messages: a command, or the program that began it.

    Example:
        >>> how_to_continue("runs/base")
        'continue with `transformer-jax resume runs/base`'
    """
    if RunDirectory(path).begun_by_program():
        return "run the program again to continue"
    return f"continue with {command('resume', path)}"


def stored_settings(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a run in the fields of its ``config.json``."""
    settings = {name: value for name, value in fields.items() if name not in _NO_SETTINGS}
    if settings.get("masking", {}) is None:  # an encoder without a head of masked tokens
        del settings["masking"]
    return settings


class RunDirectory:
    """The paths of the files of a run; for a URL, of its working copy on this machine.

    Args:
        path: The directory.
        allow_changed: Whether a ``config.json`` that was changed after training is read, see
            :func:`transformer_jax.runs.config_guard.refuse_changed`.

    Raises:
        ConfigError: See :func:`transformer_jax.core.storage.urls.url_of`.

    Example:
        >>> RunDirectory("runs/base").metrics.name
        'metrics.jsonl'
    """

    family: Any = None  # of a Hugging Face folder, with its model as one of the family

    def __init__(self, path: str | os.PathLike[str], allow_changed: bool | None = None):
        self.path = working_copy(path)
        self.allow_changed = allow_changed
        self.config = self.path / "config.json"
        self.tokenizer = self.path / "tokenizer.json"
        self.template = self.path / "tokenizer_config.json"  # chat template
        self.checkpoints = self.path / "checkpoints"
        self.metrics = self.path / "metrics.jsonl"
        self.results = self.path / "results.json"
        self.curves = self.path / "curves.png"
        self.log = self.path / "error.log"

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, overwrite: bool = False) -> "RunDirectory":
        """Creates a run directory; a lock in it is kept.

        Args:
            path: The directory; missing or empty.
            overwrite: Whether to delete an existing run. Other folders are never deleted.

        Raises:
            ConfigError: ``path`` is not free.
            CheckpointError: The directory cannot be written.
        """
        run = cls(path)
        cls.check_free(path, overwrite=overwrite)
        check_lock(run.path)
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            for entry in run.path.iterdir():
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                elif entry.name != LOCK:
                    entry.unlink()
            run_storage(run.path).publish()
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be written: {error.strerror}") from None
        return run

    @classmethod
    @contextlib.contextmanager
    def whole(
        cls, path: str | os.PathLike[str], *, overwrite: bool = False
    ) -> Iterator["RunDirectory"]:
        """Context manager: a run that is written to a draft, and renamed when complete.

        A killed process leaves nothing at ``path`` that looks like a run, and an existing run is
        only replaced at the end. Training, whose runs can be resumed, uses :meth:`create` instead.

        Args:
            path: The directory; missing or empty.
            overwrite: Whether to replace an existing run.

        Raises:
            ConfigError: ``path`` is not free.
            CheckpointError: The directory cannot be written, or another process uses it.
        """
        run = cls(path)
        target = Path(os.path.realpath(run.path))  # keeps a link

        def check() -> None:
            cls.check_free(path, overwrite=overwrite)
            check_lock(run.path)

        try:
            restore_folder(target)
            check()
            with draft_folder(draft_place(target)) as draft:
                yield cls(draft)
                check()  # another process may have started a run there
                replace_folder(draft, target)
            run_storage(run.path).publish()
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be written: {error.strerror}") from None

    def has_begun(self) -> bool:
        """Returns whether training has begun; a run without its first files counts as empty."""
        begun = {path.name for path in (self.metrics, self.checkpoints, self.results)}
        return bool(begun & self._names())

    def _names(self) -> set[str]:
        try:
            return run_storage(self.path).names()
        except OSError as error:
            shown = with_urls(str(self.path))
            raise CheckpointError(f"{shown}: cannot be read: {error.strerror}") from None

    @classmethod
    def check_free(cls, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Refuses a directory that ``create`` would refuse.

        Raises:
            ConfigError: ``path`` is not free.
            CheckpointError: The file cannot be read.
        """
        run = cls(path)
        names = run._names()
        if all(of_a_lock(name) or is_draft(name) for name in names):
            return
        if any(name.endswith((".safetensors", ".bin")) for name in names):
            raise ConfigError(
                f"{path}: is a Hugging Face checkpoint, which is never deleted: choose another "
                f"--output"
            )
        if run.config.name not in names:
            raise ConfigError(f"{path}: is not empty, and not a run: choose another --output")
        if run.has_begun() and not overwrite:
            resumes = "" if run._cannot_resume() else f"{how_to_continue(path)}, "
            raise ConfigError(
                f"{path}: has a run already: {resumes}choose another --output, or delete it with "
                f"--overwrite"
            )

    def begun_by_program(self) -> bool:
        """Returns whether a ``Trainer`` of a program began the run, with data of that program.

        Commands write all settings to ``config.json``, among them ``output``; a ``Trainer`` writes
        those of the model and of its text.
        """
        with contextlib.suppress(CheckpointError):
            return "output" not in self.read_config()
        return False

    def _cannot_resume(self) -> bool:
        """Returns whether the run is known to have only weights, or an n-gram model."""
        from transformer_jax.runs.config_guard import holds_weights_alone

        with contextlib.suppress(CheckpointError):
            model = self.read_config().get("model")
            ngram = isinstance(model, dict) and model.get("kind") == "ngram"
            return ngram or holds_weights_alone(self.path)
        return False

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], allow_changed: bool | None = None
    ) -> "RunDirectory":
        """Opens the run at ``path``.

        Raises:
            CheckpointError: The path is not a run.
        """
        run = cls(path, allow_changed)
        if not os.path.isdir(run.path):
            raise CheckpointError(no_such_run(path))
        for needed in (run.config, run.tokenizer):
            if not manifest.exists(needed) and not (needed == run.tokenizer and run.reads_images()):
                why = f"it has no {needed.name}"
                if needed == run.tokenizer and "model" not in run.read_config():
                    why += f", and config.json {NOT_OURS}"
                raise CheckpointError(f"{path}: not a run directory ({why})")
        return run

    def reads_images(self) -> bool:
        """Returns whether the model of the run reads images, and has no tokenizer.

        Raises:
            CheckpointError: ``config.json`` is missing or damaged.
        """
        model = self.read_config().get("model")
        image = model.get("image") if isinstance(model, dict) else None
        return isinstance(image, dict) and bool(image.get("image_size"))

    def read_config(self, *, check: bool = True) -> dict[str, Any]:
        """Reads ``config.json``, which must not have changed since training.

        Args:
            check: Whether to refuse a changed file.

        Raises:
            CheckpointError: The file is missing or damaged, or was changed after training, which
                ``allow_changed`` does not allow.
        """
        from transformer_jax.runs.config_guard import refuse_changed

        fields = current_config(read_object(self.config))
        if check:
            refuse_changed(self.config, fields, self.path, self.allow_changed)
        return fields

    def load_params(
        self, which: int | Literal["best", "last"] = "best", *, average: int = 1
    ) -> "Loaded":
        """Loads the parameters of a checkpoint, see :func:`.checkpoint_reader.load_params`.

        Raises:
            CheckpointError: The checkpoint does not exist, or none verifies.
        """
        from transformer_jax.runs.checkpoint_reader import load_params

        return load_params(self.path, which, average=average)

    def weights_digest(
        self, which: int | Literal["best", "last"] = "best", *, average: int = 1
    ) -> str:
        """Returns a checksum of the parameters of :meth:`load_params`.

        Raises:
            CheckpointError: The checkpoint does not exist, or none verifies.
        """
        from transformer_jax.runs.checkpoint_reader import weights_digest

        return weights_digest(self.path, which, average=average)

    def load_tokenizer(
        self, sha256: str | None = None, fields: Mapping[str, Any] | None = None
    ) -> "Tokenizer":
        """Loads the tokenizer, whose file must have this checksum, by default the manifest's.

        Args:
            sha256: The checksum.
            fields: ``config.json``; None reads it.

        Raises:
            DataError: The file is missing, is not a tokenizer, or has another checksum.
        """
        from transformer_jax.data.tokenizer import load_tokenizer
        from transformer_jax.runs.config_guard import latest_manifest

        if sha256 is None:
            sha256 = (latest_manifest(self.path) or {}).get("tokenizer")
        if fields is None:
            fields = self.read_config() if manifest.exists(self.config) else {}
        return load_tokenizer(self.tokenizer, sha256=sha256, special=fields.get("special"))

    def template_digest(self) -> str | None:
        """Returns the checksum of the chat template's file, or None.

        Raises:
            CheckpointError: The file cannot be read.
        """
        try:
            return hashlib.sha256(read_file(self.template)).hexdigest()
        except FileNotFoundError:
            return None
        except OSError as error:
            why = error.strerror or error
            raise CheckpointError(f"{self.template}: cannot be read: {why}") from None

    def read_results(self) -> dict[str, Any]:
        """Reads ``results.json``, which is written at the end of a run.

        Raises:
            CheckpointError: The file is missing or damaged.
        """
        return read_object(self.results)

    def write(self, path: Path, fields: dict[str, Any]) -> None:
        """Writes a JSON file of the run atomically.

        Raises:
            CheckpointError: The file cannot be written, or another process has taken over the run.
        """
        check_lock(self.path)
        try:
            manifest.atomic_write(path, json.dumps(fields, indent=1, ensure_ascii=False) + "\n")
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be written: {error.strerror}") from None


def read_object(path: Path) -> dict[str, Any]:
    """Reads a JSON file with an object.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    try:
        fields = json.loads(read_file(path, _LARGEST_JSON).decode("utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise CheckpointError(f"{path}: damaged (not JSON)") from None
    if not isinstance(fields, dict):
        raise CheckpointError(f"{path}: damaged (not an object)")
    return fields


def group_of(fields: Mapping[str, Any], *names: str, file: str = "config.json") -> dict[str, Any]:
    """Returns a group within settings; empty if absent.

    Args:
        fields: The settings.
        names: Names of the group, from the outermost.
        file: The file of the settings, for messages.

    Raises:
        CheckpointError: The group is not an object.

    Example:
        >>> group_of({"data": {"read": {"lowercase": True}}}, "data", "read")
        {'lowercase': True}
    """
    for depth, name in enumerate(names, 1):
        fields = fields.get(name, {})
        if not isinstance(fields, dict):
            raise CheckpointError(
                f"{file}: {'.'.join(names[:depth])} is {json.dumps(fields)[:40]}: an object of "
                f"settings is needed"
            )
    return dict(fields)
