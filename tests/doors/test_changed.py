"""Changed is noticed: data that change between kill and resume are refused, however they are read.

A run compares checksums: of the training data, of each validation set, and of what else it reads
(``Task.checksums``). Here its data are read twice, as at its start and when it is resumed; training
itself refuses what differs (``tests/training/test_trainer.py``).
"""

import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.doors import table
from tests.doors.readers import Form
from transformer_jax.core.errors import DataError
from transformer_jax.data.documents import TextData, TextOptions
from transformer_jax.data.images.data import ImageData, ImageReadOptions
from transformer_jax.data.images.picture_tables import read_images
from transformer_jax.data.labeled import LabeledData
from transformer_jax.data.labeled_files import LabeledOptions
from transformer_jax.data.preferences import PreferenceData, open_preferences
from transformer_jax.data.sources import Files, PairData
from transformer_jax.data.speech.recordings import SpeechData, read_manifest
from transformer_jax.data.summaries import SummaryData
from transformer_jax.data.text_similarities import SimilarityData
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.recipes import driver
from transformer_jax.recipes.explicit_settings import Given
from transformer_jax.recipes.instruct import ChatConfig, ChatData
from transformer_jax.recipes.on_policy import RewardConfig
from transformer_jax.recipes.registry import get_recipe
from transformer_jax.recipes.rewarding import reward_inputs
from transformer_jax.recipes.tasks.on_policy_task import PromptRows
from transformer_jax.recipes.tasks.preference_task import CompletionRows, encode_splits
from transformer_jax.recipes.text_similarity import SimilarityConfig
from transformer_jax.runs.data_guard import content_checksum
from transformer_jax.runs.run_directory import RunDirectory
from transformer_jax.word_vectors.corpus import read_corpus
from transformer_jax.word_vectors.run import _fingerprint, _order

LAW = 8
KINDS = ("reader",)

COUNT = 12
Sums = dict[str, str]
# The checksums of a run with a training and a validation file, in a folder.
Case = Callable[[Path, str, str], Sums]


def of_run(recipe: str, name: str, data: Callable[[str, str], Any], **changes: Any) -> Case:
    """The checksums that a run has at its start, or when it is resumed."""

    def sums(folder: Path, train: str, valid: str) -> Sums:
        named = get_recipe(recipe).runs[name][1]
        output = folder / "run"
        if output.exists():
            directory = RunDirectory.open(output)
            run = driver.read(directory)
            read = driver.open_data(run)
        else:
            run = dataclasses.replace(named, data=data(train, valid), output=str(output), **changes)
            one = dataclasses.replace(run.distributed, num_local_devices=1)
            run = dataclasses.replace(run, distributed=one)
            run, directory, read = driver.create_run(run, Given(named))
        tokenizer = None if run.tokenizer is None else driver.tokenizer_of(run, directory)
        task = driver.make_task(run, directory, tokenizer, read)
        sums = {"train": task.train.fingerprint, **task.checksums}
        if hasattr(read, "tests"):  # as of test data, whose change is told
            sums["valid, as a test"] = content_checksum(read.valid)
        return sums

    return sums


def of_pairs(named: str = "") -> Case:
    def data(train: str, valid: str) -> PairData:
        files = tuple(f"{named}{path}" for path in (train, valid)) if named else (train, valid)
        train, valid = ((path,) if named else path for path in files)
        return PairData(pairs=train, valid=Files(pairs=valid))

    return of_run("translation", "tiny", data)


def of_table(train: str, valid: str) -> PairData:
    return PairData(pairs=train, valid=Files(pairs=f"de-en={Path(valid).with_name('data.tsv')}"))


def of_aligned(train: str, valid: str) -> PairData:
    target = lambda path: str(Path(path).with_name("target.txt"))
    held = Files(source=valid, target=target(valid))
    return PairData(source=train, target=target(train), valid=held)


def of_documents(kind: str, name: str = "text") -> Case:
    read = TextOptions(documents=kind)  # type: ignore[arg-type]
    return of_run(
        "language_model",
        "char-cpu",
        lambda train, valid: TextData(**{name: train}, valid=valid, read=read),
    )


def of_labeled(task: str, **options: Any) -> Case:
    read = LabeledOptions(**options)
    return of_run("finetuning", task, lambda *files: LabeledData(*files, read=read))


def of_compared(loss: str) -> Case:
    """Data of a run whose loss says how the files are read."""
    return of_run("similarity", "similarity", SimilarityData, task=SimilarityConfig(loss=loss))


def of_preferences(kind: str) -> Case:
    """The checksums of a run on preferences, without the model that it starts from."""

    def sums(folder: Path, train: str, valid: str) -> Sums:
        del folder
        tokenizer = train_tokenizer("bytes", [])
        splits = open_preferences(PreferenceData(train, valid), kind)  # type: ignore[arg-type]
        if kind == "prompts":
            prompts, held = PromptRows(tokenizer.bos), splits.valid
            assert held is not None
            parts = [prompts.data(splits.train, tokenizer), prompts.data(held, tokenizer)]
        else:
            rows = CompletionRows(tokenizer.bos)
            encoded = encode_splits(splits, tokenizer, rows).parts().values()
            parts = [rows.data(store, tokenizer.pad) for store in encoded]
        return dict(zip(("train", "valid"), (part.fingerprint for part in parts), strict=True))

    return sums


def of_rewards(folder: Path, train: str, valid: str) -> Sums:
    del folder
    rewards = {name: RewardConfig(path) for name, path in (("train", train), ("valid", valid))}
    made = {name: reward_inputs(one) for name, one in rewards.items()}
    return {name: sum_of for name, sums in made.items() for sum_of in sums.values()}


def of_words(folder: Path, train: str, valid: str) -> Sums:
    """Word vectors have no validation: each file is a training of its own."""

    def sum_of(path: str) -> str:
        corpus = read_corpus([Path(path)], folder / "ids", words="blanks", min_count=1)
        return _fingerprint(corpus) + _order(corpus)

    return {"train": sum_of(train), "valid": sum_of(valid)}


PAIRS = of_pairs()
CHATS = of_run(
    "instruct",
    "sft-cpu",
    lambda train, valid: ChatData(train=train, valid=valid),
    chat=ChatConfig("chatml"),
)
SPEECH = of_run("speech", "tiny", lambda train, valid: SpeechData(train=train, valid=valid))


def of_pictures(**options: Any) -> Case:
    read = ImageReadOptions(**options)
    data = lambda train, valid: ImageData(images=train, valid=valid, read=read)
    return of_run("images", "digits", data)


CASES: dict[str, Case] = {
    "pairs in two aligned files": of_run("translation", "tiny", of_aligned),
    "pairs as TSV": PAIRS,
    "pairs as CSV": PAIRS,
    "pairs as JSONL": PAIRS,
    "pairs as Parquet": PAIRS,
    "pairs by language": of_pairs("de-en="),
    "table of pairs by language": of_run("translation", "tiny", of_table),
    "texts with summaries": of_run("summarization", "summarize", SummaryData),
    "texts with summaries as CSV": of_run("summarization", "summarize", SummaryData),
    "documents in lines": of_documents("line"),
    "documents between blank lines": of_documents("blank"),
    "documents in files of a folder": of_documents("file"),
    "documents as JSONL": of_documents("file", "jsonl"),
    "documents as Parquet": of_documents("file", "jsonl"),
    "labeled texts as TSV": of_labeled("classify"),
    "labeled texts as CSV": of_labeled("classify"),
    "labeled texts as JSONL": of_labeled("classify"),
    "labeled texts as Parquet": of_labeled("classify"),
    "data set of Hugging Face": of_labeled("classify"),
    "labeled pairs as TSV": of_labeled("pair"),
    "classes of labeled texts": of_labeled("classify"),
    "numbered texts": of_labeled("regress"),
    "pairs with scores": of_compared("cosent"),
    "texts with positives as CSV": of_compared("ranking"),
    "texts with positives as JSONL": of_compared("ranking"),
    "tagged words as CoNLL-U": of_labeled("tag"),
    "tagged words in columns": of_labeled("tag"),
    "tagged words as GermEval": of_labeled("tag"),
    "tagged words as CoNLL-2012": of_labeled("tag"),
    "tagged words as JSONL": of_labeled("tag", text="words", tag="tags"),
    "questions": of_labeled("qa"),
    "questions in rows": of_labeled("qa"),
    "preferences": of_preferences("pairs"),
    "preferences as CSV": of_preferences("pairs"),
    "completions with a label": of_preferences("labels"),
    "prompts to learn from": of_preferences("prompts"),
    "conversations": CHATS,
    "prompts with completions": CHATS,
    "completions as CSV": CHATS,
    "recordings as TSV": SPEECH,
    "recordings as CSV": SPEECH,
    "recordings as JSONL": SPEECH,
    "pictures in class folders": of_pictures(),
    "pictures in a TSV table": of_pictures(),
    "pictures in a CSV table": of_pictures(),
    "captions of Flickr8k": of_pictures(),
    "captions of COCO": of_pictures(),
    "pictures in a JSONL table": of_pictures(decode_first=False),  # read when they are needed
    "pictures in arrays": of_pictures(),
    "text for word vectors": of_words,
    "rewards and rules of users": of_rewards,
}
_NO_RUN = "a command reads it and ends: nothing is resumed on it"
EXEMPT = {
    "data sets of TensorFlow": "their records become the texts, labels and pictures of the others",
    "word vectors": "read at the start of a run, whose parameters are stored: never read again",
    "word vectors of GloVe": "read at the start of a run: never read again",
    **dict.fromkeys(
        (
            "analogy questions",
            "similar words",
            "demonstrations",
            "prompts in lines or JSONL",
            "requests",
            "lines of text",
            "results of benchmarks",
            "outputs with references",
            "texts in a table as CSV",
        ),
        _NO_RUN,
    ),
}


def write(name: str, folder: Path, texts: list[str]) -> str:
    """Writes texts as the door does, over what is there."""
    door = table.by_name(name)
    if door.write is not None:
        return str(door.write(folder, texts, Form()))
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"# {text}" for text in texts]
    (folder / "reward.py").write_text("\n".join([*lines, "def reward(a, b): return 1.0", ""]))
    return str(folder / "reward.py")


def rewrite(name: str, folder: Path, texts: list[str]) -> None:
    """Writes other texts to files of the same names, sizes and times."""
    times = {path: path.stat() for path in folder.rglob("*")}
    shutil.rmtree(folder)
    write(name, folder, texts)
    for path in folder.rglob("*"):
        if path in times:
            os.utime(path, ns=(times[path].st_atime_ns, times[path].st_mtime_ns))


def overwrite(folder: Path) -> None:
    """Changes the content of pictures, arrays and recordings, but nothing else."""
    for path in folder.rglob("*"):
        if path.suffix in (".wav", ".png", ".npy"):
            status, content = path.stat(), bytearray(path.read_bytes())
            content[-1] ^= 1
            path.write_bytes(content)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


TEXTS = [f"word{number:02}" for number in range(COUNT)]
SWAPPED = [TEXTS[-1], *TEXTS[1:-1], TEXTS[0]]
EDITED = [*TEXTS[:-1], "word99"]


def changed(case: Case, folder: Path, files: list[str], part: str, before: Sums) -> bool:
    """Returns whether the change of one part is noticed, or what was read is refused."""
    try:
        after = case(folder, *files)
    except DataError as error:
        return "the run began?" in str(error) or "not among the training labels" in str(error)
    return all(after[name] != before[name] for name in before if part in name)


@pytest.mark.quick(
    "pairs as TSV",
    "documents in lines",
    "classes of labeled texts",
    "tagged words in columns",
    "questions",
    "preferences",
    "completions with a label",
    "prompts to learn from",
    "conversations",
    "recordings as JSONL",
    "pictures in a JSONL table",
    "text for word vectors",
    "rewards and rules of users",
)
@pytest.mark.parametrize("name", CASES)
def test_a_changed_file_of_a_run_is_noticed(tmp_path, name):
    case = CASES[name]
    folders = {part: tmp_path / part for part in ("train", "valid")}
    files = [write(name, folder, TEXTS) for folder in folders.values()]
    before = case(tmp_path, *files)
    assert len(before) >= 2
    assert case(tmp_path, *files) == before  # the same data have the same checksums
    for part, folder in folders.items():
        for other in (SWAPPED, EDITED):
            rewrite(name, folder, other)
            assert changed(case, tmp_path, files, part, before), (part, other[:2])
        rewrite(name, folder, TEXTS)
    assert case(tmp_path, *files) == before


@pytest.mark.quick("pictures in class folders", "recordings as JSONL")
@pytest.mark.parametrize(
    "name", [name for name in CASES if name.startswith(("pictures", "recordings"))]
)
def test_changed_contents_of_test_files_are_noticed(tmp_path, name):
    """Names, labels, sizes and times are the same."""
    path = write(name, tmp_path, TEXTS)
    read = read_manifest if name.startswith("recordings") else read_images
    before = content_checksum(read(path))
    assert content_checksum(read(path)) == before
    overwrite(tmp_path)
    assert content_checksum(read(path)) != before
