"""Rows of files that are good, bad, or hold more than their reader uses, for each reader of rows.

``ROWS`` has them by the name of the door.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.doors.readers import write_parquet, write_picture, write_recording
from transformer_jax.data.bad_rows import Unread
from transformer_jax.data.conversations import read_conversations
from transformer_jax.data.documents import TextOptions, read_texts
from transformer_jax.data.images.data import ImageReadOptions, open_table
from transformer_jax.data.labeled import LabeledOptions, read_labeled
from transformer_jax.data.preferences import PreferenceOptions, read_preferences
from transformer_jax.data.preparation import ReadSettings
from transformer_jax.data.sources import Files, PairData, ReadOptions, read_pairs, with_languages
from transformer_jax.data.speech.recordings import read_manifest
from transformer_jax.data.summaries import SummaryOptions, read_summaries
from transformer_jax.data.text_similarities import SimilarityOptions, read_compared
from transformer_jax.data.unlabeled import read_text_table

Read = Callable[[str, Any], list[Any]]  # from a path and a policy for bad rows to what was read


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of a door.

    Attributes:
        file: Name of a file.
        read: Reads a file.
        good: A row, with the line ends that belong to it.
        bad: A row that cannot be read.
        more: A row with more than the reader uses, as a key, a column or a text.
        message: What a line or an error says about it.
        head: The line before the rows.
        more_head: The line before rows with more.
        summary: Whether bad rows are counted in the summary of a run, since a file is read twice.
        skips: Whether bad rows can be skipped.
    """

    file: str
    read: Read
    good: str
    bad: str
    more: str
    message: str
    head: str = ""
    more_head: str = ""
    summary: bool = False
    skips: bool = True

    def write(self, folder: Path, kinds: str) -> str:
        """Writes rows by their kinds: g is good, b is bad, m has more; returns the path."""
        write_recording(folder / "a.wav")
        write_picture(folder / "a.png")
        rows = {"g": self.good, "b": self.bad, "m": self.more}
        head = self.more_head if "m" in kinds else self.head
        path = folder / self.file
        path.write_text(head + "".join(rows[kind] for kind in kinds), "utf-8")
        return str(path)


class _Columnar(Rows):
    """Rows as lines of JSON, of which a Parquet file is made."""

    def write(self, folder: Path, kinds: str) -> str:
        """Writes rows by their kinds as above."""
        rows = {"g": self.good, "b": self.bad, "m": self.more}
        objects = [json.loads(rows[kind]) for kind in kinds]
        names = dict.fromkeys(name for one in objects for name in one)
        objects = [names | one for one in objects]
        return str(write_parquet(folder / self.file, objects))


def lines(*rows: Any) -> str:
    """The lines of a file, of texts or JSON objects."""
    return "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)


def _pairs(path: str, policy: Any) -> list[Any]:
    return read_pairs(Files(pairs=path), ReadOptions(bad_rows=policy)).sources


def _columns(path: str, policy: Any) -> list[Any]:
    return read_pairs(Files(pairs=path), ReadOptions(bad_rows=policy, columns=(1, 2))).sources


def _named(path: str, policy: Any) -> list[Any]:
    files = Files(pairs=(f"de-en={path}",))
    return read_pairs(files, ReadOptions(bad_rows=policy)).sources


def _table(path: str, policy: Any) -> list[Any]:
    table = Path(path).with_name("pairs.json")
    table.write_text(json.dumps({"train": {"de-en": Path(path).name}}))
    data = with_languages(PairData(pairs=str(table), read=ReadOptions(bad_rows=policy)))
    return read_pairs(Files(pairs=data.pairs), data.read).sources


def _labeled(task: Any, field: str, **options: Any) -> Read:
    def read(path: str, policy: Any) -> list[Any]:
        part = read_labeled(path, task, LabeledOptions(bad_rows=policy, **options))
        return list(getattr(part, field))

    return read


def _unlabeled(path: str, policy: Any) -> list[Any]:
    return read_text_table(path, LabeledOptions(bad_rows=policy), False).texts


def _compared(task: Any) -> Read:
    def read(path: str, policy: Any) -> list[Any]:
        return read_compared(path, task, SimilarityOptions(policy), "data.train").texts

    return read


def _preferences(kind: Any) -> Read:
    return lambda path, policy: read_preferences(path, kind, PreferenceOptions(policy)).prompts


def _documents(path: str, policy: Any) -> list[Any]:
    return [chunk.text for chunk in read_texts(path, TextOptions(bad_rows=policy))]


def _chats(path: str, policy: Any) -> list[Any]:
    unread = Unread(path, "key")
    read = read_conversations(path, "", ReadSettings(policy), unread=unread)
    messages = [one.messages for one in read]
    unread.report()  # as when a store is built
    return messages


def _pictures(path: str, policy: Any) -> list[Any]:
    return open_table(path, ImageReadOptions(bad_rows=policy), "").texts


def _recordings(path: str, policy: Any) -> list[Any]:
    return read_manifest(path, bad_rows=policy).texts


def _word(word: str, tag: str) -> str:
    return f"1\t{word}\t_\t{tag}" + "\t_" * 6 + "\n"


_TOLD, _REFUSED = "not read: ", "bad"
_CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
_CHOICE = {"prompt": "one", "chosen": "a", "rejected": "b"}
_RATED = {"prompt": "one", "completion": "a", "label": True}
_MORE = {"id": 7}
_QUESTION = {
    "context": "one two", "question": "Which?", "answers": {"text": ["one"], "answer_start": [0]}
}  # fmt: skip

ROWS: dict[str, Rows] = {
    "pairs as TSV": Rows(
        "a.tsv", _columns, lines("one\tun"), lines("two"), lines("one\tun\tnote"),
        "column not read: 3",
    ),
    "pairs as CSV": Rows(
        "a.csv", _columns, lines('"one, two",un'), lines('"two" 2,deux'),
        lines('"one, two",un,note'),
        "column not read: 3",
    ),
    "pairs as JSONL": Rows(
        "a.jsonl", _pairs, lines({"source": "one", "target": "un"}), lines("{"),
        lines({"source": "one", "target": "un"} | _MORE), "key not read: id",
    ),
    "pairs as Parquet": _Columnar(
        "a.parquet", _pairs, lines({"source": "one", "target": "un"}),
        lines({"source": "one", "target": None}),
        lines({"source": "one", "target": "un"} | _MORE), "key not read: id",
    ),
    "pairs by language": Rows(
        "a.tsv", _named, lines("one\tun"), lines("two\tdeux\tzwei"), lines("one\tun\tnote"),
        "3 columns, but 2 are needed",
    ),
    "table of pairs by language": Rows(
        "a.tsv", _table, lines("one\tun"), lines("two"), lines("one\tun\tnote"),
        "3 columns, but 2 are needed",
    ),
    "texts with summaries": Rows(
        "a.jsonl",
        lambda path, policy: read_summaries(path, SummaryOptions(bad_rows=policy)).parts,
        lines({"source": "one", "target": "un"}), lines({"source": "one"}),
        lines({"source": "one", "target": "un"} | _MORE), "key not read: id",
    ),
    "texts with summaries as CSV": Rows(
        "a.csv",
        lambda path, policy: read_summaries(path, SummaryOptions(bad_rows=policy)).parts,
        lines('"one, two",un'), lines("one"), lines('"one, two",un,note'),
        "key not read: remark", "article,highlights\n", "article,highlights,remark\n",
    ),
    "documents as Parquet": _Columnar(
        "a.parquet", _documents, lines({"text": "one"}), lines({"text": None}),
        lines({"text": "one"} | _MORE), "key not read: id", summary=True,
    ),
    "documents as JSONL": Rows(
        "a.jsonl", _documents, lines({"text": "one"}), lines({"text": 1}),
        lines({"text": "one"} | _MORE), "key not read: id", summary=True,
    ),
    "labeled texts as TSV": Rows(
        "a.tsv", _labeled("classify", "texts"), lines("one\ta"), lines("two"),
        lines("one\ta\tnote"), "column not read: 3 (remark)", "text\tlabel\n",
        "text\tlabel\tremark\n",
    ),
    "labeled texts as CSV": Rows(
        "a.csv", _labeled("classify", "texts"), lines('"one, ""two""",a'), lines("two,a,b,c"),
        lines('"one, ""two""",a,note'), "column not read: 3 (remark)", "review,label\n",
        "review,label,remark\n",
    ),
    "labeled texts as JSONL": Rows(
        "a.jsonl", _labeled("classify", "texts"), lines({"text": "one", "label": 1}), lines([]),
        lines({"text": "one", "label": 1, "second": "two"}), "has a second text, 'second'",
    ),
    "labeled texts as Parquet": _Columnar(
        "a.parquet", _labeled("classify", "texts"), lines({"text": "one", "label": 1}),
        lines({"text": "", "label": 1}), lines({"text": "one", "label": 1, "second": "two"}),
        "has a second text, 'second'",
    ),
    "texts in a table as CSV": Rows(
        "a.csv", _unlabeled, lines('"one, ""two""",a'), lines(",a"), lines("one,a,two"),
        "has a second text, 'second'", "review,remark\n", "review,remark,second\n",
    ),
    "labeled pairs as TSV": Rows(
        "a.tsv", _labeled("pair", "text_pairs"), lines("one\ttwo\ta"), lines("one\t\ta"),
        lines("one\ttwo\ta\tnote"), "4 columns, but the first line has 3",
        *["text\tsecond\tlabel\n"] * 2,
    ),
    "classes of labeled texts": Rows(
        "a.tsv", _labeled("classify", "labels"), lines("one\ta"), lines("two\t"),
        lines("one\ta\tb"), "3 columns, but the first line has 2", *["text\tlabel\n"] * 2,
    ),
    "numbered texts": Rows(
        "a.tsv", _labeled("regress", "texts"), lines("one\t1.5"), lines("two\tmuch"),
        lines("one\t1.5\ttwo"), "has a second text, 'second'", "text\tlabel\n",
        "text\tlabel\tsecond\n",
    ),
    "pairs with scores": Rows(
        "a.csv", _compared("scores"), lines("one,two,1.5"), lines("one,two,much"),
        lines("one,two,1.5,7"), "column not read: 4 (id)", "text,second,label\n",
        "text,second,label,id\n",
    ),
    "texts with positives as CSV": Rows(
        "a.csv", _compared("ranking"), lines("one,two,three"), lines("one,two,two"),
        lines("one,two,three,7"), "column not read: 4 (id)", "query,answer,negative\n",
        "query,answer,negative,id\n",
    ),
    "texts with positives as JSONL": Rows(
        "a.jsonl", _compared("ranking"), lines({"query": "one", "pos": ["a", "b"], "neg": "c"}),
        lines({"query": "one", "pos": [], "neg": "c"}),
        lines({"query": "one", "pos": "a", "neg": ["c", "d"]} | _MORE), "key not read: id",
    ),
    "tagged words as CoNLL-U": Rows(
        "a.conllu", _labeled("tag", "words"), lines(_word("one", "NUM")), lines(_word("two", "_")),
        lines(_word("one", "NUM").rstrip() + "\tnote\n"), "11 columns, but CoNLL-U has 10",
    ),
    "tagged words in columns": Rows(
        "a.conll", _labeled("tag", "words"), lines("one NUM", ""),
        lines("a NUM", "two", "b NUM", ""), lines("one x NUM", ""), "column not read: 2",
    ),
    "tagged words as GermEval": Rows(
        "a.tsv", _labeled("tag", "words"), lines("1\tone\tNUM", ""),
        lines("1\ta\tNUM", "3\ttwo\tNUM", "3\tb\tNUM", ""), lines("1\tone\tx\tNUM", ""),
        "column not read: 3",
    ),
    "tagged words as CoNLL-2012": Rows(
        "a.conll", _labeled("tag", "words"), lines("f 0 0 one NN * - - - - (X) -", ""),
        lines("f 0 0 one NN * - - - -", ""), lines("f 0 0 one NN * - - - - (X -", ""),
        "not closed", *["#begin document (f); part 000\n"] * 2,
    ),
    "tagged words as JSONL": Rows(
        "a.jsonl", _labeled("tag", "words", tag="tags"), lines({"text": ["one"], "tags": ["NUM"]}),
        lines({"text": ["one"], "tags": []}), lines({"text": ["one"], "tags": ["NUM"]} | _MORE),
        "key not read: id",
    ),
    "questions in rows": Rows(
        "a.jsonl", _labeled("qa", "questions"), lines(_QUESTION),
        lines(_QUESTION | {"answers": {"text": ["two"], "answer_start": [0]}}),
        lines(_QUESTION | {"title": "x"}), "key not read: title",
    ),
    "preferences as CSV": Rows(
        "a.csv", _preferences("pairs"), lines('"one, two",a,b'), lines("one,a,a"),
        lines('"one, two",a,b,7'), "key not read: id", "prompt,chosen,rejected\n",
        "prompt,chosen,rejected,id\n",
    ),
    "completions as CSV": Rows(
        "a.csv", _chats, lines('"one, two",a'), lines("one"), lines('"one, two",a,7'),
        "key not read: id", "prompt,completion\n", "prompt,completion,id\n", summary=True,
    ),
    "preferences": Rows(
        "a.jsonl", _preferences("pairs"), lines(_CHOICE), lines(_CHOICE | {"rejected": "a"}),
        lines(_CHOICE | _MORE), "key not read: id",
    ),
    "completions with a label": Rows(
        "a.jsonl", _preferences("labels"), lines(_RATED), lines(_RATED | {"label": "good"}),
        lines(_RATED | _MORE), "key not read: id",
    ),
    "prompts to learn from": Rows(
        "a.jsonl", _preferences("prompts"), lines({"prompt": "one"}), lines({"prompt": 1}),
        lines(_CHOICE), "keys not read: chosen, rejected",
    ),
    "conversations": Rows(
        "a.jsonl", _chats, lines({"messages": _CHAT}), lines({"messages": _CHAT[:1]}),
        lines({"messages": _CHAT} | _MORE), "key not read: id", summary=True,
    ),
    "prompts with completions": Rows(
        "a.jsonl", _chats, lines({"prompt": "one", "completion": "a"}), lines({"prompt": "one"}),
        lines({"prompt": "one", "completion": "a", "messages": _CHAT}), "has both", summary=True,
    ),
    "recordings as TSV": Rows(
        "a.tsv", _recordings, lines("a.wav\tone"), lines("b.wav\ttwo"),
        lines("a.wav\tone\tnote"), "column not read: remark", "path\ttext\n",
        "path\ttext\tremark\n",
    ),
    "recordings as CSV": Rows(
        "a.csv", _recordings, lines("a.wav,one"), lines("b.wav,two"),
        lines("a.wav,one,note"), "column not read: remark", "path,transcript\n",
        "path,transcript,remark\n",
    ),
    "recordings as JSONL": Rows(
        "a.jsonl", _recordings, lines({"path": "a.wav", "text": "one"}), lines({"path": "a.wav"}),
        lines({"path": "a.wav", "text": "one"} | _MORE), "key not read: id",
    ),
    "pictures in a TSV table": Rows(
        "a.tsv", _pictures, lines("a.png\tone"), lines("\ttwo"), lines("a.png\tone\tnote"),
        "column not read: remark", "image\tlabel\n", "image\tlabel\tremark\n",
    ),
    "pictures in a CSV table": Rows(
        "a.csv", _pictures, lines('a.png,"one, two"'), lines(",two"),
        lines('a.png,"one, two",note'),
        "column not read: remark", "image,label\n", "image,label,remark\n",
    ),
    "captions of Flickr8k": Rows(
        "a.txt", _pictures, lines("a.png#0\tone"), lines("a.png\ttwo"),
        lines("a.png#0\tone\tnote"), "NAME#NUMBER, a tab and a caption are needed",
    ),
    "pictures in a JSONL table": Rows(
        "a.jsonl", _pictures, lines({"image": "a.png", "label": "one"}),
        lines({"image": "a.png", "label": ""}),
        lines({"image": ["a.png", "a.png"], "label": "one"}), "2 pictures",
    ),
}  # fmt: skip


def squad(rows: Sequence[tuple[str, str]]) -> str:
    """A SQuAD file with questions and answers of one paragraph."""
    questions = [
        {"id": str(i), "question": text, "answers": [{"text": answer, "answer_start": 0}]}
        for i, (text, answer) in enumerate(rows)
    ]
    return json.dumps({"data": [{"paragraphs": [{"context": "one two", "qas": questions}]}]})


NO_ROWS = {
    "data set of Hugging Face": "files of its folder, whose rows are those of Arrow or Parquet",
    "pairs in two aligned files": "a line that is left out would shift the others: all are needed",
    "documents in lines": "every line is a document: none is bad, and none has more",
    "documents between blank lines": "every block is a document: none is bad, and none has more",
    "documents in files of a folder": "every file is a document: none is bad, and none has more",
    "captions of COCO": "one object: keys of images and annotations that are not read are many",
    "data sets of TensorFlow": "features are named, and rows checked by the library",
    "text for word vectors": "every line is text: none is bad, and none has more",
    "word vectors": "written by programs: a bad line means a damaged file, which is refused",
    "word vectors of GloVe": "written by programs: a bad line means a damaged file",
    "rewards and rules of users": "code, which has no rows",
    "lines of text": "every line has a line of output: none is left out",
    "results of benchmarks": "written by the package",
}
