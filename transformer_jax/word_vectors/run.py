"""Training word vectors on text files into a folder, and resuming after an epoch."""

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from transformer_jax.core.errors import CheckpointError, ConfigError, plural
from transformer_jax.core.json_types import Json
from transformer_jax.core.output_files import Destination, draft_folder
from transformer_jax.core.task_progress import show_progress
from transformer_jax.data.files import read_file
from transformer_jax.data.text import check_readable, refuse_pipe
from transformer_jax.word_vectors.corpus import Corpus, join_phrases, read_corpus
from transformer_jax.word_vectors.embeddings import WordEmbeddings
from transformer_jax.word_vectors.formats import VECTORS, load_embeddings, save_embeddings
from transformer_jax.word_vectors.settings import TextConfig, Word2VecConfig
from transformer_jax.word_vectors.word2vec_training import (
    EpochReport,
    Tables,
    initial_tables,
    train_epochs,
)

__all__ = ["CONFIG", "STATE", "resume_word_vectors", "train_word_vectors"]

CONFIG = "config.json"
STATE = "state.safetensors"  # state after the last finished epoch, until all are finished
_HASHED = 1 << 24  # ids to hash at a time
Tell = Callable[[EpochReport, Corpus], None]


class _Settings(NamedTuple):
    """The files of the texts, as stored, and the settings that change the vectors."""

    texts: list[str]
    text: TextConfig
    training: Word2VecConfig

    def to_dict(self) -> dict[str, Json]:
        groups = {"text": dataclasses.asdict(self.text)}
        return {"texts": self.texts, **groups, "training": dataclasses.asdict(self.training)}

    def of_vectors(self) -> dict[str, Json]:
        """Returns the settings that change the vectors, by dotted name."""
        return {
            f"{group}.{field.name}": getattr(config, field.name)
            for group, config in (("text", self.text), ("training", self.training))
            for field in dataclasses.fields(config)
        }


def train_word_vectors(
    texts: Sequence[str | Path],
    output: str | Path,
    *,
    text: TextConfig | None = None,
    training: Word2VecConfig | None = None,
    overwrite: bool = False,
    report: Tell | None = None,
) -> WordEmbeddings:
    """Trains word vectors with word2vec; returns them and writes them to a folder.

    The folder has ``vectors.bin`` (word2vec's binary format) and ``config.json`` with the settings
    and results; also ``state.safetensors`` while epochs are left.

    Args:
        texts: Text files, one sentence or paragraph per line.
        output: The folder.
        text: Settings for splitting texts into words.
        training: Settings of the training.
        overwrite: Whether to replace vectors that are already in the folder.
        report: Called regularly with the progress.

    Raises:
        UserError: A setting, a text or the folder is invalid.
    """
    text, training = text or TextConfig(), training or Word2VecConfig()
    if not str(output).strip():
        raise ConfigError("output is empty: name a folder, such as runs/words")
    output = Path(output)
    if not texts:
        raise ConfigError("no text files: name one or more to train on")
    for path in texts:
        refuse_pipe(path)
        check_readable(path)
    there = [name for name in (CONFIG, VECTORS, STATE) if (output / name).exists()]
    if there and not overwrite:
        raise ConfigError(
            f"{output}: there are word vectors already ({', '.join(there)}): choose another "
            f"folder, resume them, or --overwrite"
        )
    settings = _Settings([str(Path(path).absolute()) for path in texts], text, training)
    # First: an interruption here must not leave vectors next to different settings.
    for name in (VECTORS, STATE):
        (output / name).unlink(missing_ok=True)
    _write(output / CONFIG, json.dumps(settings.to_dict(), indent=1).encode())
    return _train(output, settings, report)


def resume_word_vectors(output: str | Path, *, report: Tell | None = None) -> WordEmbeddings:
    """Resumes a training after its last finished epoch, as if it had not been interrupted.

    A training that has ended is returned as it is.

    Args:
        output: The folder of :func:`train_word_vectors`.
        report: Called regularly with the progress.

    Raises:
        CheckpointError: The folder has no training, or the texts have changed.
        UserError: A text cannot be read any more.
    """
    output = Path(output)
    try:
        stored = json.loads((output / CONFIG).read_text("utf-8"))
        settings = _Settings(
            stored["texts"],
            # Earlier versions did not normalize.
            TextConfig(**{"normalization": "none"} | stored["text"]),
            Word2VecConfig(**stored["training"]),
        )
    except FileNotFoundError:
        raise CheckpointError(
            f"{output}: there is nothing to resume: no {CONFIG} in this folder"
        ) from None
    except OSError as error:
        why = error.strerror or error
        raise CheckpointError(f"{output / CONFIG}: cannot be read: {why}") from None
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise CheckpointError(f"{output / CONFIG}: is damaged or foreign: {error}") from None
    if (output / VECTORS).exists():
        return load_embeddings(output)
    return _train(output, settings, report)


def _train(output: Path, settings: _Settings, report: Tell | None) -> WordEmbeddings:
    text, training = settings.text, settings.training
    with draft_folder(output / "words") as folder:
        corpus = _read([Path(path) for path in settings.texts], text, folder)
        first, begun = _state(output / STATE, corpus, settings)
        began, told = time.monotonic(), []

        def tell(one: EpochReport) -> None:
            told.append(one.loss)
            if report is not None:
                report(one, corpus)

        for epochs, tables in train_epochs(corpus, training, begun, first, tell):
            if epochs < training.epochs:
                _save(output / STATE, corpus, settings, tables, epochs)
        vectors = np.asarray(jax.device_get(tables.inputs))
        seconds = time.monotonic() - began
    embeddings = WordEmbeddings(corpus.words, vectors)
    words = corpus.total * (training.epochs - first)
    results = {
        "vocabulary": len(corpus.words),
        "words": corpus.total,
        "loss": told[-1] if told else None,
        "words_per_second": round(words / seconds) if seconds else None,
    }
    stored = settings.to_dict() | {"results": results}
    _write(output / CONFIG, json.dumps(stored, indent=1).encode())
    save_embeddings(embeddings, output / VECTORS, binary=True)
    (output / STATE).unlink(missing_ok=True)
    return embeddings


def _read(paths: list[Path], text: TextConfig, folder: Path) -> Corpus:
    with show_progress("reading the texts"):
        corpus = read_corpus(
            paths,
            folder / "0",
            words=text.words,
            min_count=text.min_count,
            normalization=text.normalization,
        )
    for number in range(text.phrases):
        with show_progress(f"finding phrases, pass {number + 1} of {text.phrases}"):
            corpus = join_phrases(
                corpus,
                folder / str(number + 1),
                threshold=text.phrase_threshold,
                min_count=text.min_count,
            )
        (folder / str(number)).unlink()
    return corpus


def _fingerprint(corpus: Corpus) -> str:
    """Returns a fingerprint of the vocabulary and its counts."""
    told = hashlib.sha256("\n".join(corpus.words).encode())
    told.update(corpus.counts.astype(np.int64).tobytes())
    return told.hexdigest()


def _order(corpus: Corpus) -> str:
    """Returns a fingerprint of the words in their order, as ids."""
    told = hashlib.sha256()
    for start in range(0, len(corpus.ids), _HASHED):
        told.update(np.ascontiguousarray(corpus.ids[start : start + _HASHED]).data)
    return told.hexdigest()


def _state(path: Path, corpus: Corpus, settings: _Settings) -> tuple[int, Tables]:
    """Returns the number of finished epochs, and the tables after them.

    Raises:
        CheckpointError: The state is damaged, or the settings or the texts have changed since.
    """
    if not path.exists():
        return 0, initial_tables(len(corpus.words), settings.training)
    try:
        found = load(read_file(path))
        text = lambda name: bytes(found[name]).decode()
        epochs, corpus_of = int(found["epochs"]), text("corpus")
        tables = Tables(jnp.asarray(found["inputs"]), jnp.asarray(found["outputs"]))
        if "digest" in found and text("digest") != _digest(found):
            raise ValueError("its checksum differs")
        # States of earlier versions have neither.
        order = text("order") if "order" in found else None
        said = json.loads(text("settings")) if "settings" in found else {}
    except OSError as error:
        why = error.strerror or error
        raise CheckpointError(f"{path}: cannot be read: {why}") from None
    except (KeyError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{path}: is damaged: {error}; train again") from None
    since, now = plural(epochs, "epoch"), settings.of_vectors()
    if changed := [name for name, was in said.items() if now.get(name) != was]:
        told = ", ".join(f"{name} is {now.get(name)} ({said[name]} before)" for name in changed)
        raise CheckpointError(
            f"{path.with_name(CONFIG)}: changed since {since}: {told}: change it back, or train "
            f"again"
        )
    if corpus_of != _fingerprint(corpus) or order not in (None, _order(corpus)):
        raise CheckpointError(
            f"{path}: belongs to other texts: their words, counts or order have changed since "
            f"{since}; restore them, or train again"
        )
    return epochs, tables


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    """The checksum of a state: of all arrays but the one that stores it."""
    told = hashlib.sha256()
    for name in sorted(arrays.keys() - {"digest"}):
        told.update(name.encode())
        told.update(np.ascontiguousarray(arrays[name]).tobytes())
    return told.hexdigest()


def _save(path: Path, corpus: Corpus, settings: _Settings, tables: Tables, epochs: int) -> None:
    arrays = {name: np.asarray(jax.device_get(x)) for name, x in tables._asdict().items()}
    arrays["epochs"] = np.array(epochs)
    texts = {"corpus": _fingerprint(corpus), "order": _order(corpus)}
    texts["settings"] = json.dumps(settings.of_vectors())
    arrays |= {name: np.frombuffer(text.encode(), np.uint8) for name, text in texts.items()}
    arrays["digest"] = np.frombuffer(_digest(arrays).encode(), np.uint8)
    _write(path, save(arrays))


def _write(path: Path, content: bytes) -> None:
    to = Destination(path)
    try:
        with to.open() as file:
            file.write(content)
        to.publish()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from None
