"""Text data sets prepared on disk by TensorFlow Datasets.

The format array_record is read without TensorFlow; tfrecord, the default of the package, needs
TensorFlow. Nothing is downloaded: a data set that is not prepared is an error.
"""

import importlib
import importlib.util
import json
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from transformer_jax.core.errors import ConfigError, DataError, install, plural
from transformer_jax.data.files import read_file

__all__ = [
    "LabeledReader",
    "PreparedReader",
    "PreparedTextReader",
    "TranslationReader",
    "find_prepared",
    "open_labeled",
    "open_text",
    "open_translation",
]


_VALIDATION = ("validation", "valid", "dev", "val")  # usual names of the split


class PreparedReader:
    """The records of a prepared data set, split by split.

    Attributes:
        info: Information about the data set.
        splits: The names of its splits.
        features: The names of its features.
        uses_tensorflow: Whether it is in tfrecord.
    """

    splits: list[str]

    def __init__(self, folder: pathlib.Path):
        package = _package()
        self.folder = folder
        self.uses_tensorflow = _check_format(folder) == "tfrecord"
        try:
            self._builder = package.builder_from_directory(str(folder))
            self.info = self._builder.info
            self.splits, self.features = list(self.info.splits), list(self.info.features)
        except Exception as error:  # the package has no error class of its own
            raise DataError(f"{folder}: cannot be read as a data set: {_line(error)}") from None

    def _records(self, split: str, fields: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Yields the named texts of each record of a split, unchanged."""
        if self.uses_tensorflow:
            yield from self._tensorflow_records(split, fields)
            return
        data = self.records(split)
        for i in range(len(data)):
            try:
                row = data[i]
                texts = tuple(_text(row[field]) for field in fields)
            except UnicodeDecodeError:
                raise DataError(f"{self.folder} {split}: record {i} is not UTF-8") from None
            except Exception as error:  # so does array_record
                raise DataError(
                    f"{self.folder} {split}: record {i} cannot be read ({_line(error)}): prepare "
                    f"the data set again"
                ) from None
            yield texts

    def validation(self, names: Sequence[str] = _VALIDATION) -> str | None:
        """Returns the name of the validation split; None if there is none.

        Args:
            names: Usual names, of which the first that there is counts.

        Raises:
            DataError: There is no split called train, to which it would belong.
        """
        if "train" not in self.splits:
            raise DataError(
                f"{self.folder}: no split is called train, only {', '.join(self.splits)}"
            )
        return next((name for name in names if name in self.splits), None)

    def records(self, split: str, decoders: Any = None) -> Any:
        """Returns the records of an array_record split, by index.

        Raises:
            DataError: A shard is missing, cut or damaged.
        """
        self._check_shards(split)
        return self._builder.as_data_source(split=split, decoders=decoders)

    def _tensorflow_records(self, split: str, fields: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Yields the records of a tfrecord data set."""
        i, wanted = 0, self.info.splits[split].num_examples
        try:
            for row in _tensorflow_rows(self._builder, split):
                yield tuple(_text(row[field]) for field in fields)
                i += 1
        except UnicodeDecodeError:
            raise DataError(f"{self.folder} {split}: record {i} is not UTF-8") from None
        except Exception as error:  # TensorFlow has many error classes
            raise DataError(
                f"{self.folder} {split}: record {i} cannot be read ({_line(error)}): prepare the "
                f"data set again"
            ) from None
        if i != wanted:
            raise DataError(
                f"{self.folder} {split}: {plural(i, 'record')} where dataset_info.json has "
                f"{wanted:,}: a shard is cut or damaged: prepare the data set again"
            )

    def _check_shards(self, split: str) -> None:
        """Counts records: a truncated shard opens without an error, but has too few of them."""
        module = importlib.import_module("array_record.python.array_record_module")
        info = self.info.splits[split]
        for path, wanted in zip(info.filepaths, info.shard_lengths, strict=True):
            if not pathlib.Path(path).is_file():
                raise DataError(f"{path}: the shard is missing: prepare the data set again")
            try:
                reader = module.ArrayRecordReader(str(path))
                found = reader.num_records()
                reader.close()  # a truncated shard may or may not raise here
            except Exception as error:
                raise DataError(
                    f"{path}: damaged ({_line(error)}): prepare the data set again"
                ) from None
            if found != wanted:
                raise DataError(
                    f"{path}: {plural(found, 'record')} where dataset_info.json has {wanted}: the "
                    f"shard is cut or damaged: prepare the data set again"
                )


class TranslationReader(PreparedReader):
    """The pairs of a prepared data set, split by split.

    Attributes:
        splits: The names of its splits.
        fields: The languages of source and target.
    """

    fields: tuple[str, str]

    def __init__(self, folder: pathlib.Path, fields: tuple[str, str] | None = None):
        """Opens the prepared data set in ``folder``, which contains dataset_info.json.

        Args:
            folder: Folder of one version of one configuration.
            fields: Languages of source and target; None is the data set's own order.

        Raises:
            ConfigError: The package is not installed, or a language does not exist.
            DataError: The folder cannot be read, or its format is not supported.
        """
        super().__init__(folder)
        self.fields = _choose_fields(self.info, fields)

    def rows(self, split: str) -> Iterator[tuple[str, str]]:
        """Yields the pairs of a split, each side on one line.

        Raises:
            DataError: A shard is missing, cut or damaged, or a text is not UTF-8.
        """
        for source, target in self._records(split, self.fields):
            yield " ".join(source.split("\n")), " ".join(target.split("\n"))


class PreparedTextReader(PreparedReader):
    """The documents of a prepared data set, split by split.

    Attributes:
        splits: The names of its splits.
    """

    def __init__(self, folder: pathlib.Path, field: str = "text"):
        """Opens the prepared data set in ``folder``, which contains dataset_info.json.

        Args:
            folder: Folder of one version of one configuration.
            field: The feature that holds the text.

        Raises:
            ConfigError: The package is not installed, or the feature does not exist or is not text.
            DataError: The folder cannot be read, or its format is not supported.
        """
        super().__init__(folder)
        self._field = field
        names = ", ".join(self.features)
        if field not in self.features:
            raise ConfigError(
                f"data.read.field {field}: {self.info.name} has no such feature, only {names}"
            )
        if type(self.info.features[field]).__name__ != "Text":
            raise ConfigError(f"data.read.field {field}: not a text, choose another of {names}")

    def rows(self, split: str) -> Iterator[str]:
        """Yields the documents of a split.

        Raises:
            DataError: A shard is missing, cut or damaged, or a text is not UTF-8.
        """
        for (text,) in self._records(split, (self._field,)):
            yield text


class LabeledReader(PreparedReader):
    """The sentences of a prepared data set with their labels, split by split.

    Attributes:
        splits: The names of its splits.
    """

    def __init__(
        self, folder: pathlib.Path, texts: Sequence[str], label: str, *, numbers: bool = False
    ):
        """Opens the prepared data set in ``folder``, which contains dataset_info.json.

        Args:
            folder: Folder of one version of one configuration.
            texts: The features that hold the sentences, one or two.
            label: The feature that holds the label.
            numbers: Whether the label is a number (regression), not a class.

        Raises:
            ConfigError: The package is not installed, or a feature is missing or of the wrong type.
            DataError: The folder cannot be read, or its format is not supported.
        """
        super().__init__(folder)
        kinds = {name: self.info.features[name] for name in self.features}
        names = ", ".join(f"{name} ({type(kind).__name__})" for name, kind in kinds.items())
        for field, option in (*zip(texts, ("text", "text_pair"), strict=False), (label, "label")):
            if field not in kinds:
                raise ConfigError(
                    f"data.read.{option} {field}: {self.info.name} has no such feature, "
                    f"only {names}"
                )
            kind = type(kinds[field]).__name__
            scalar = kind in ("Scalar", "Tensor") and kinds[field].shape == ()
            fits = scalar or (not numbers and kind in ("ClassLabel", "Text"))
            if not (fits if option == "label" else kind == "Text"):
                what = "a text" if option != "label" else "a number" if numbers else "a class"
                raise ConfigError(
                    f"data.read.{option} {field}: not {what}, choose another of {names}"
                )
        self._fields = (*texts, label)
        self._names = getattr(kinds[label], "names", None)

    def rows(self, split: str) -> Iterator[tuple[str, ...]]:
        """Yields the sentences and the label, as text, of each record; "" if a class is withheld.

        Raises:
            DataError: A shard is missing, cut or damaged, or a text is not UTF-8.
        """
        for *texts, label in self._records(split, self._fields):
            if self._names is not None:
                label = self._names[int(label)] if int(label) >= 0 else ""
            yield *texts, label


def open_labeled(
    name: str, data_dir: str | None, texts: Sequence[str], label: str, *, numbers: bool = False
) -> LabeledReader:
    """Opens a data set by name; see ``find_prepared`` and ``LabeledReader``."""
    _package()
    return LabeledReader(find_prepared(name, data_dir), texts, label, numbers=numbers)


def open_text(name: str, data_dir: str | None = None, field: str = "text") -> PreparedTextReader:
    """Opens a data set by name; see ``find_prepared`` and ``PreparedTextReader``."""
    _package()
    return PreparedTextReader(find_prepared(name, data_dir), field)


def open_translation(
    name: str, data_dir: str | None = None, fields: tuple[str, str] | None = None
) -> TranslationReader:
    """Opens a data set by name; see ``find_prepared`` and ``TranslationReader``."""
    _package()
    return TranslationReader(find_prepared(name, data_dir), fields)


def find_prepared(name: str, data_dir: str | None = None) -> pathlib.Path:
    """Finds the folder of a prepared data set: the newest version, unless one is named.

    Args:
        name: ``data_set`` or ``data_set/configuration``, with optional ``:version``.
        data_dir: Folder of data sets; None is TFDS_DATA_DIR or ``~/tensorflow_datasets``. It may
            also be the folder of the version itself.

    Raises:
        DataError: It does not exist (the message has the command that prepares it), or it has
            several configurations and none is named.
    """
    default = os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
    root = pathlib.Path(data_dir or default).expanduser()
    path, _, version = name.partition(":")
    if (root / "dataset_info.json").is_file():
        return root
    base = root / path
    found = sorted(
        info.parent
        for pattern in ("*/dataset_info.json", "*/*/dataset_info.json")
        for info in base.glob(pattern)
        if version in ("", info.parent.name)
    )
    configurations = sorted({folder.parent for folder in found})
    if len(configurations) > 1:
        names = ", ".join(str(folder.relative_to(root)) for folder in configurations)
        raise DataError(f"data.tfds {name}: it has several configurations, name one: {names}")
    if not found:
        raise DataError(
            f"data.tfds {name}: not prepared in {root}. Where there is network, run: "
            f"{_preparing(path, root)} ; or point data.tfds_dir at where it is"
        )
    return max(found, key=lambda folder: _version(folder.name))


def _version(name: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else -1 for part in name.split("."))


def _package() -> Any:
    try:
        # array_record reads the data, and TFDS leaves its installation to the user.
        importlib.import_module("array_record.python.array_record_module")
        return importlib.import_module("tensorflow_datasets")
    except ImportError as error:
        raise ConfigError(
            f"data.tfds needs packages that are not installed ({error.name}): {install('tfds')}"
        ) from None


def _tensorflow_rows(builder: Any, split: str) -> Iterator[dict[str, Any]]:
    """Returns the records of a split in order, read by TensorFlow, which interleaves by default."""
    package = _package()
    one_by_one = package.ReadConfig(interleave_cycle_length=1)
    rows = builder.as_dataset(split=split, shuffle_files=False, read_config=one_by_one)
    return iter(package.as_numpy(rows))


def _has_tensorflow() -> bool:
    return importlib.util.find_spec("tensorflow") is not None


def _check_format(folder: pathlib.Path) -> str:
    """Returns the format of a prepared data set.

    Raises:
        DataError: The format is unsupported; the message has the command for array_record.
    """
    try:
        info = json.loads(read_file(folder / "dataset_info.json").decode("utf-8"))
        format = info.get("fileFormat", "tfrecord")
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(f"{folder}/dataset_info.json: cannot be read: {_line(error)}") from None
    if format == "array_record" or (format == "tfrecord" and _has_tensorflow()):
        return str(format)
    name = "/".join(filter(None, (info.get("name"), info.get("configName"))))
    name, depth = name or folder.parent.name, 2 + ("/" in name)
    root = folder.parents[min(depth, len(folder.parents)) - 1] / "array_record"
    raise DataError(
        f"{folder}: prepared as {format}, which needs TensorFlow: install it, or prepare the data "
        f"set without it: {_preparing(name, root)}, and give --data.tfds-dir {root}"
    )


def _preparing(name: str, root: pathlib.Path) -> str:
    """The command that prepares a data set so that it can be read without TensorFlow."""
    return (
        f'python -c "import tensorflow_datasets as tfds; tfds.builder({name!r}, '
        f"data_dir={str(root)!r}, file_format='array_record').download_and_prepare()\""
    )


def _choose_fields(info: Any, fields: tuple[str, str] | None) -> tuple[str, str]:
    languages = list(info.features)
    if fields is None:
        if info.supervised_keys:
            source, target = info.supervised_keys[:2]
            return str(source), str(target)
        if len(languages) != 2:
            raise ConfigError(
                f"data.tfds has the fields {', '.join(languages)}: choose two with data.read.fields"
            )
        return languages[0], languages[1]
    for field in fields:
        if field not in languages:
            raise ConfigError(
                f"data.read.fields {' '.join(fields)}: {info.name} has {', '.join(languages)}"
            )
    return fields


def _text(value: object) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
