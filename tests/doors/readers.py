"""The formats of data: how a text is written in each, and how the package reads it back."""

import csv
import dataclasses
import io
import json
import wave
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from transformer_jax.data.conversations import read_conversations
from transformer_jax.data.documents import TextOptions, read_texts
from transformer_jax.data.images.picture_tables import read_images
from transformer_jax.data.labeled import read_labeled
from transformer_jax.data.labeled_files import LabeledOptions
from transformer_jax.data.preferences import read_preferences
from transformer_jax.data.preparation import Preparation
from transformer_jax.data.sources import Files, PairData, ReadOptions, read_pairs, with_languages
from transformer_jax.data.speech.recordings import read_manifest
from transformer_jax.data.summaries import read_summaries
from transformer_jax.data.text import read_lines
from transformer_jax.data.text_similarities import (
    SimilarityOptions,
    SimilarityTask,
    read_compared,
)
from transformer_jax.data.unlabeled import read_text_table
from transformer_jax.word_vectors.corpus import read_corpus
from transformer_jax.word_vectors.embeddings import WordEmbeddings
from transformer_jax.word_vectors.formats import load_embeddings
from transformer_jax.word_vectors.questions import read_analogies, read_similarities

PREPARE = Preparation("nfc")


@dataclasses.dataclass(frozen=True)
class Form:
    """The form of a text file: ``bom`` begins it, ``end`` ends each line."""

    bom: bool = False
    end: str = "\n"

    def write(self, path: Path, lines: Sequence[str]) -> Path:
        """Writes lines to a file in this form."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(line + self.end for line in lines)
        path.write_bytes(b"\xef\xbb\xbf" * self.bom + text.encode())
        return path


@dataclasses.dataclass(frozen=True)
class Format:
    """A format: ``write(folder, texts, form)`` returns the file, ``read(file)`` the texts."""

    write: Callable[[Path, Sequence[str], Form], Path]
    read: Callable[[Path], list[str]]


def lines_format(
    name: str, line: Callable[[int, str], str], read: Callable[[Path], list[str]], header: str = ""
) -> Format:
    """A format with a line for each text, after a header."""

    def write(folder: Path, texts: Sequence[str], form: Form) -> Path:
        made = [line(number, text) for number, text in enumerate(texts)]
        return form.write(folder / name, [header, *made] if header else made)

    return Format(write, read)


def csv_format(
    cells: Callable[[int, str], Sequence[str]],
    read: Callable[[Path], list[str]],
    header: Sequence[str],
) -> Format:
    """A format with a row of comma-separated cells for each text, quoted where needed."""

    def row(cells: Sequence[str]) -> str:
        written = io.StringIO()
        csv.writer(written, lineterminator="").writerow(cells)
        return written.getvalue()

    return lines_format("data.csv", lambda i, text: row(cells(i, text)), read, row(header))


def json_lines(
    fields: Callable[[int, str], dict[str, object]],
    read: Callable[[Path], list[str]],
    name: str = "data.jsonl",
) -> Format:
    """A format with a JSON object for each text."""
    line = lambda number, text: json.dumps(fields(number, text), ensure_ascii=False)
    return lines_format(name, line, read)


def columnar_format(
    fields: Callable[[int, str], dict[str, object]], read: Callable[[Path], list[str]]
) -> Format:
    """A Parquet file with a row for each text."""

    def write(folder: Path, texts: Sequence[str], form: Form) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        return write_parquet(folder / "data.parquet", [fields(i, t) for i, t in enumerate(texts)])

    return Format(write, read)


def write_parquet(path: Path, rows: Sequence[dict[str, object]]) -> Path:
    """Writes objects as Parquet."""
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path


def write_saved(folder: Path, rows: Sequence[dict[str, object]], features: object) -> Path:
    """Writes objects as ``save_to_disk`` of the library datasets does."""
    import pyarrow

    folder.mkdir(parents=True, exist_ok=True)
    table = pyarrow.Table.from_pylist(list(rows))
    with pyarrow.ipc.new_stream(str(folder / "data-00000-of-00001.arrow"), table.schema) as stream:
        stream.write_table(table)
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    return folder


# --- Sentence pairs ---------------------------------------------------------------------------


def _write_aligned(folder: Path, texts: Sequence[str], form: Form) -> Path:
    form.write(folder / "target.txt", [f"target {i}" for i in range(len(texts))])
    return form.write(folder / "source.txt", texts)


def _read_aligned(path: Path) -> list[str]:
    return read_pairs(Files(str(path), str(path.with_name("target.txt")))).sources


def _read_pairs(path: Path) -> list[str]:
    return read_pairs(Files(pairs=str(path))).sources


def _read_named(path: Path) -> list[str]:
    return read_pairs(Files(pairs=(f"de-en={path}",)), ReadOptions()).sources


def _write_table(folder: Path, texts: Sequence[str], form: Form) -> Path:
    PAIRS_TSV.write(folder, texts, form)
    return form.write(folder / "pairs.json", ['{"train": {"de-en": "data.tsv"}}'])


def _read_table(path: Path) -> list[str]:
    named = with_languages(PairData(pairs=str(path))).pairs
    return read_pairs(Files(pairs=named)).sources


ALIGNED = Format(_write_aligned, _read_aligned)
PAIRS_TSV = lines_format("data.tsv", lambda i, text: f"{text}\ttarget {i}", _read_pairs)
PAIRS_CSV = csv_format(lambda i, text: (text, f"target {i}"), _read_pairs, ("source", "target"))
PAIRS_JSONL = json_lines(lambda i, text: {"source": text, "target": f"target {i}"}, _read_pairs)
PAIRS_PARQUET = columnar_format(
    lambda i, text: {"source": text, "target": f"target {i}"}, _read_pairs
)
PAIRS_NAMED = Format(PAIRS_TSV.write, _read_named)
PAIRS_TABLE = Format(_write_table, _read_table)

# --- Texts ------------------------------------------------------------------------------------


def _read_summaries(path: Path) -> list[str]:
    return read_summaries(str(path)).sources


def _documents(kind: str) -> Callable[[Path], list[str]]:
    def read(path: Path) -> list[str]:
        stream = read_texts(str(path), TextOptions(documents=kind))  # type: ignore[arg-type]
        return _documents_of(stream)

    return read


def _documents_of(stream: Iterator) -> list[str]:
    """The documents of a stream, whose chunks are joined."""
    texts, begun = [], ""
    for chunk in stream:
        begun += chunk.text
        if chunk.last:
            texts, begun = [*texts, begun.removesuffix("\n")], ""
    return texts


def _write_blocks(folder: Path, texts: Sequence[str], form: Form) -> Path:
    return form.write(folder / "data.txt", [line for text in texts for line in (text, "")])


def _write_folder(folder: Path, texts: Sequence[str], form: Form) -> Path:
    for number, text in enumerate(texts):
        form.write(folder / f"texts/{number:03}.txt", [text])
    return folder / "texts"


SUMMARIES = json_lines(lambda i, text: {"source": text, "target": f"summary {i}"}, _read_summaries)
SUMMARIES_CSV = csv_format(
    lambda i, text: (text, f"summary {i}"), _read_summaries, ("article", "highlights")
)
DOCUMENT_LINES = lines_format("data.txt", lambda i, text: text, _documents("line"))
DOCUMENT_BLOCKS = Format(_write_blocks, _documents("blank"))
DOCUMENT_FOLDER = Format(_write_folder, _documents("file"))
DOCUMENT_JSONL = json_lines(lambda i, text: {"text": text}, _documents("file"))
DOCUMENT_PARQUET = columnar_format(lambda i, text: {"text": text}, _documents("file"))
LINES = lines_format(
    "data.txt", lambda i, text: text, lambda path: [PREPARE.line(one) for one in read_lines(path)]
)

# --- Labeled examples -------------------------------------------------------------------------


def _labeled(task: str, field: str, **options: object) -> Callable[[Path], list[str]]:
    def read(path: Path) -> list[str]:
        options_of = LabeledOptions(**options)  # type: ignore[arg-type]
        return list(getattr(read_labeled(str(path), task, options_of), field))  # type: ignore[arg-type]

    return read


def _words(options: LabeledOptions) -> Callable[[Path], list[str]]:
    def read(path: Path) -> list[str]:
        tagged = read_labeled(str(path), "tag", options)
        return [words[1] for words in tagged.words]  # type: ignore[union-attr]

    return read


def _conllu(i: int, text: str) -> str:
    blank = "\t".join("_" * 6)
    lines = [f"1\tword\t_\tNOUN\t_\t{blank[:9]}", f"2\t{text}\t_\tVERB\t_\t{blank[:9]}"]
    return "\n".join([*lines, ""])


def _write_conllu(folder: Path, texts: Sequence[str], form: Form) -> Path:
    lines = [line for i, text in enumerate(texts) for line in _conllu(i, text).split("\n")]
    return form.write(folder / "data.conllu", lines)


def _write_columns(folder: Path, texts: Sequence[str], form: Form) -> Path:
    return form.write(
        folder / "data.conll", [line for text in texts for line in ("word\tO", f"{text}\tB-X", "")]
    )


def _write_numbered_words(folder: Path, texts: Sequence[str], form: Form) -> Path:
    """Words as in GermEval 2014: with their numbers, and tags of outer and inner entities."""
    words = ("1\tword\tO\tO", "2\t{}\tB-X\tB-Y", "")
    lines = [line.format(text) for text in texts for line in ("#\tsource", *words)]
    return form.write(folder / "data.tsv", lines)


def _write_brackets(folder: Path, texts: Sequence[str], form: Form) -> Path:
    """Words as in CoNLL-2012, with entities in brackets."""
    row = "file 0 {} {} NN * - - - speaker {} -".replace(" ", "\t")
    lines = [
        line
        for text in texts
        for line in (row.format(0, "word", "*"), row.format(1, text, "(X)"), "")
    ]
    return form.write(
        folder / "data.conll", ["#begin document (file); part 000", *lines, "#end document"]
    )


def _write_squad(folder: Path, texts: Sequence[str], form: Form) -> Path:
    answer = {"text": "Paris", "answer_start": 0}
    questions = [
        {"id": str(i), "question": text, "answers": [answer]} for i, text in enumerate(texts)
    ]
    whole = {"data": [{"paragraphs": [{"context": "Paris is here.", "qas": questions}]}]}
    return form.write(
        folder / "data.json", json.dumps(whole, ensure_ascii=False, indent=1).split("\n")
    )


def _read_questions(path: Path) -> list[str]:
    return list(read_labeled(str(path), "qa", LabeledOptions()).questions)  # type: ignore[union-attr]


LABELED_TSV = lines_format(
    "data.tsv",
    lambda i, text: f"{text}\tlabel {i % 2}",
    _labeled("classify", "texts"),
    "text\tlabel",
)
LABELED_CSV = csv_format(
    lambda i, text: (text, f"label {i % 2}"), _labeled("classify", "texts"), ("review", "sentiment")
)
LABELED_JSONL = json_lines(
    lambda i, text: {"text": text, "label": f"label {i % 2}"}, _labeled("classify", "texts")
)
LABELED_PAIRS = lines_format(
    "data.tsv",
    lambda i, text: f"first {i}\t{text}\t{('yes', 'no')[i % 2]}",
    _labeled("pair", "text_pairs"),
    "text\tsecond\tlabel",
)
CLASSES = lines_format(
    "data.tsv", lambda i, text: f"text {i}\t{text}", _labeled("classify", "labels"), "text\tlabel"
)
NUMBERED = lines_format(
    "data.tsv", lambda i, text: f"{text}\t{i}.5", _labeled("regress", "texts"), "text\tlabel"
)


def _compared(task: SimilarityTask) -> Callable[[Path], list[str]]:
    read = lambda path: read_compared(str(path), task, SimilarityOptions(), "data.train")
    return lambda path: list(read(path).text_pairs or [])


SCORED_PAIRS = csv_format(
    lambda i, text: (f"first {i}", text, f"{i}.5"),
    _compared("scores"),
    ("sentence1", "sentence2", "score"),
)
RANKED_CSV = csv_format(
    lambda i, text: (f"first {i}", text, f"another {i}"),
    _compared("ranking"),
    ("query", "answer", "negative"),
)
RANKED_JSONL = json_lines(
    lambda i, text: {"query": f"first {i}", "pos": [text], "neg": [f"another {i}"]},
    _compared("ranking"),
)
TAGGED_CONLLU = Format(_write_conllu, _words(LabeledOptions()))
TAGGED_COLUMNS = Format(_write_columns, _words(LabeledOptions()))
TAGGED_NUMBERED = Format(_write_numbered_words, _words(LabeledOptions()))
TAGGED_BRACKETS = Format(_write_brackets, _words(LabeledOptions()))
TAGGED_JSONL = json_lines(
    lambda i, text: {"words": ["word", text], "tags": ["NOUN", "VERB"]},
    _words(LabeledOptions(text="words", tag="tags")),
)


def _write_data_set(folder: Path, texts: Sequence[str], form: Form) -> Path:
    rows = [{"sentence": text, "label": i % 2} for i, text in enumerate(texts)]
    features = {"label": {"names": ["label 0", "label 1"], "_type": "ClassLabel"}}
    write_saved(folder / "data" / "train", rows, features)
    (folder / "data" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    return folder / "data"


def _question(i: int, text: str) -> dict[str, object]:
    answers = {"text": ["Paris"], "answer_start": [0]}
    return {"question": text, "context": "Paris is here.", "answers": answers}


UNLABELED_CSV = csv_format(
    lambda i, text: (f"{i}", text),
    lambda path: [
        PREPARE.line(one) for [one] in read_text_table(path, LabeledOptions(), False).texts
    ],
    ("id", "review"),
)
LABELED_PARQUET = columnar_format(
    lambda i, text: {"text": text, "label": f"label {i % 2}"}, _labeled("classify", "texts")
)
DATA_SET = Format(_write_data_set, _labeled("classify", "texts"))
QUESTION_ROWS = json_lines(_question, _read_questions)
QUESTIONS = Format(_write_squad, _read_questions)

# --- Preferences and conversations ------------------------------------------------------------


def _prompts(kind: str) -> Callable[[Path], list[str]]:
    return lambda path: list(read_preferences(str(path), kind).prompts)  # type: ignore[arg-type]


def _read_asked(path: Path) -> list[str]:
    read = read_conversations(path)
    return [str(one.messages[0]["content"]) for one in read]


def _conversation(i: int, text: str) -> dict[str, object]:
    said = [("user", text), ("assistant", f"answer {i}")]
    return {"messages": [{"role": role, "content": content} for role, content in said]}


PREFERENCES = json_lines(
    lambda i, text: {"prompt": text, "chosen": f"yes {i}", "rejected": "no"}, _prompts("pairs")
)
PREFERENCES_CSV = csv_format(
    lambda i, text: (text, f"yes {i}", "no"), _prompts("pairs"), ("prompt", "chosen", "rejected")
)
RATED = json_lines(
    lambda i, text: {"prompt": text, "completion": f"yes {i}", "label": i % 2 == 0},
    _prompts("labels"),
)
PROMPTS = json_lines(lambda i, text: {"prompt": text}, _prompts("prompts"))
CONVERSATIONS = json_lines(_conversation, _read_asked)
ANSWERS = json_lines(lambda i, text: {"prompt": text, "completion": f"answer {i}"}, _read_asked)

ANSWERS_CSV = csv_format(
    lambda i, text: (text, f"answer {i}"), _read_asked, ("prompt", "completion")
)

# --- Recordings and pictures ------------------------------------------------------------------


def write_recording(path: Path, seconds: float = 0.5, rate: int = 16_000) -> None:
    """Writes a WAV file of noise."""
    samples = np.random.default_rng(0).integers(-999, 999, int(seconds * rate), np.int16)
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())


def write_picture(path: Path, size: int = 8, shade: int = 90) -> None:
    """Writes a picture of one color."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size, size), (shade, 0, 0)).save(path)


def _with_recordings(format: Format) -> Format:
    def write(folder: Path, texts: Sequence[str], form: Form) -> Path:
        for number in range(len(texts)):
            write_recording(folder / f"{number}.wav")
        return format.write(folder, texts, form)

    return Format(write, format.read)


def _with_pictures(format: Format) -> Format:
    def write(folder: Path, texts: Sequence[str], form: Form) -> Path:
        for number in range(len(texts)):
            write_picture(folder / f"{number}.png", shade=number)
        return format.write(folder, texts, form)

    return Format(write, format.read)


def _read_manifest(path: Path) -> list[str]:
    return read_manifest(str(path), prepare=PREPARE).texts


def _read_pictures(path: Path) -> list[str]:
    return read_images(str(path), prepare=PREPARE).texts


def _write_classes(folder: Path, texts: Sequence[str], form: Form) -> Path:
    """Each text is the name of a class: the form of a file does not matter."""
    for number, text in enumerate(texts):
        write_picture(folder / "pictures" / text / "0.png", shade=number)
    return folder / "pictures"


def _write_arrays(folder: Path, texts: Sequence[str], form: Form) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "data.npy", np.zeros((len(texts), 4, 4, 3), np.uint8))
    form.write(folder / "data.txt", texts)
    return folder / "data.npy"


def _write_coco(folder: Path, texts: Sequence[str], form: Form) -> Path:
    whole = {
        "images": [{"id": i, "file_name": f"{i}.png"} for i in range(len(texts))],
        "annotations": [{"image_id": i, "caption": text} for i, text in enumerate(texts)],
    }
    return form.write(
        folder / "data.json", json.dumps(whole, ensure_ascii=False, indent=1).split("\n")
    )


SPEECH_TSV = _with_recordings(
    lines_format("data.tsv", lambda i, text: f"{i}.wav\t{text}", _read_manifest)
)
SPEECH_CSV = _with_recordings(
    csv_format(lambda i, text: (f"{i}.wav", text), _read_manifest, ("path", "sentence"))
)
SPEECH_JSONL = _with_recordings(
    json_lines(lambda i, text: {"path": f"{i}.wav", "text": text}, _read_manifest)
)
PICTURE_FOLDERS = Format(_write_classes, _read_pictures)
PICTURE_TSV = _with_pictures(
    lines_format("data.tsv", lambda i, text: f"{i}.png\t{text}", _read_pictures, "image\tlabel")
)
PICTURE_CSV = _with_pictures(
    csv_format(lambda i, text: (f"{i}.png", text), _read_pictures, ("image", "caption"))
)
FLICKR = _with_pictures(
    lines_format("data.txt", lambda i, text: f"{i}.png#0\t{text}", _read_pictures)
)
COCO = _with_pictures(Format(_write_coco, _read_pictures))
PICTURE_JSONL = _with_pictures(
    json_lines(lambda i, text: {"image": f"{i}.png", "label": text}, _read_pictures)
)
PICTURE_ARRAYS = Format(_write_arrays, _read_pictures)

# --- Word vectors -----------------------------------------------------------------------------


def _read_words(path: Path) -> list[str]:
    """The words of a text, one a line: in the order of the text."""
    corpus = read_corpus([path], path.with_name("ids"), words="blanks", min_count=1)
    return [corpus.words[i] for i in corpus.ids if i >= 0]


def _write_vectors(folder: Path, texts: Sequence[str], form: Form) -> Path:
    return form.write(
        folder / "vectors.txt",
        [f"{len(texts)} 2", *(f"{text} {i} .5" for i, text in enumerate(texts))],
    )


def _read_vectors(path: Path) -> list[str]:
    vectors: WordEmbeddings = load_embeddings(path)
    return list(vectors.words)


def _read_analogies(path: Path) -> list[str]:
    return [question[0] for section in read_analogies(path).values() for question in section]


WORDS = lines_format("data.txt", lambda i, text: text, _read_words)
VECTORS = Format(_write_vectors, _read_vectors)
GLOVE = lines_format("glove.txt", lambda i, text: f"{text} {i} .5", _read_vectors)
ANALOGIES = lines_format("data.txt", lambda i, text: f"{text} b c d{i}", _read_analogies)
SIMILARITIES = lines_format(
    "data.tsv",
    lambda i, text: f"{text}\tother\t{i}.5",
    lambda path: [word for word, _, _ in read_similarities(path)],
)
