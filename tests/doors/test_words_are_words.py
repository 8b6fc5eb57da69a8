"""Words are words: marks stay with their letters, and sentences end where their script ends them.

``transformer_jax/data/words.py`` alone says what a word is and where a sentence ends.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

import transformer_jax
from tests.doors import table, uses
from tests.doors.readers import Form
from transformer_jax.data.documents import TextOptions, read_texts
from transformer_jax.data.sentences import build_sentences
from transformer_jax.data.summaries import read_summaries
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.evaluation.captions import caption_words
from transformer_jax.evaluation.diversity import distinct_n
from transformer_jax.evaluation.error_rates import word_error_rate
from transformer_jax.evaluation.word_splitting import main_script, split_characters, split_words
from transformer_jax.inference.encoding.task_runner import TaskRunner
from transformer_jax.inference.texts import TaggingPredictor
from transformer_jax.visual.heat_maps import word_maps
from transformer_jax.word_vectors.corpus import read_corpus

LAW = 2
KINDS = ("reader", "use")

# Words with vowel signs, joiners, tone marks, accents that have no composed letter, and blanks
# that forbid a line break.
WORDS = ["हिन्दी", "किताब", "தமிழ்", "বাংলা", "ไม่", "ខ្ញុំ", "می\u200cخواهم", "כִּתָּה", "ḍ̇a"]
WORDS += ["10\u00a0000"]
SENTENCES = [
    "वह घर गया।",
    "وہ گھر گیا۔",
    "هل ذهبت؟",
    "Նա գնաց։",
    "ወደ ቤት ሄደ።",
    "He left.",
    "他回家了。",
]


def _as_words(name: str) -> Callable[[Path], None]:
    """A reader each of whose texts is a word."""

    def check(folder: Path) -> None:
        door = table.by_name(name)
        assert door.write is not None
        assert door.read is not None
        assert door.read(door.write(folder, WORDS, Form())) == WORDS

    return check


def _letters(folder: Path) -> None:
    """Word vectors on runs of letters, whose marks count as letters."""
    _as_words("text for word vectors")(folder)
    words = WORDS[:-1]  # a blank is no letter
    (folder / "text").write_text(", ".join(words), "utf-8")
    corpus = read_corpus([folder / "text"], folder / "ids", min_count=1)
    assert [corpus.words[i] for i in corpus.ids if i >= 0] == words


def _summarized(folder: Path) -> None:
    door = table.by_name("texts with summaries")
    path = door.write(folder, [" ".join(SENTENCES)], Form())
    assert read_summaries(str(path)).parts == [SENTENCES]


def _documents(name: str, kind: str) -> Callable[[Path], None]:
    """Documents, whose sentences denoising and sentence pairs take."""

    def check(folder: Path) -> None:
        path = table.by_name(name).write(folder, [" ".join(SENTENCES)], Form())
        texts = read_texts(str(path), TextOptions(documents=kind))
        tokenizer = train_tokenizer("bytes", [])
        store = build_sentences(texts, tokenizer)
        assert tokenizer.decode_batch([store[i].tolist() for i in range(len(store))]) == SENTENCES

    return check


def _tag(folder: Path) -> None:
    class Runner(TaskRunner):
        def __init__(self) -> None:
            """Has no model."""
            self.counts = Counter()

        def tags(self, words: Sequence[Sequence[str]]) -> list[list[tuple[int, float]]]:
            return [[(0, 1.0)] * len(row) for row in words]

    model = TaggingPredictor.__new__(TaggingPredictor)
    model.runner, model.labels = Runner(), ("X",)
    assert [one.word for one in model(" ".join(WORDS))] == WORDS


def _vectors_of_a_word(folder: Path) -> None:
    """The vectors of each word, and none of the part of a word before a vowel sign."""
    from transformer_jax.core.errors import DataError
    from transformer_jax.inference.encoders import vectors_of
    from transformer_jax.inference.pretrained import open_pretrained

    use = uses.USES["embed texts"]
    vectors = vectors_of(open_pretrained(use.write(folder / "model")))
    sentence = "किताब और कि"
    found = vectors.word(sentence, "कि")
    assert [one.start for one in found] == [9]
    assert [sentence[start:stop] for start, stop in found[0].words] == sentence.split()
    assert [word for word, _ in found[0].attended()] == ["किताब", "और"] or len(
        found[0].attended()
    ) == 2
    with pytest.raises(DataError, match="is not a word"):
        vectors.word("किताब", "क")


def _samples(folder: Path) -> None:
    """Words of texts in Hindi are those between blanks, in all that counts them."""
    texts = ["वह किताब पढ़ता है", "वह किताब लिखती है"]
    assert distinct_n(texts, 1) == 5 / 8
    assert word_error_rate(texts[:1], texts[1:]).rate == 25
    assert main_script(texts) == "other"
    assert split_words("char")("ที่ นี่") == ["ที่", "นี่"]
    assert split_characters("ที่นี่ 猫咪") == ["ที่", "นี่", "猫", "咪"]
    assert caption_words(f"{texts[0]}।") == texts[0].split(" ")


def _tokens(folder: Path) -> None:
    """Tokens of tokenizers trained here, which may be as long as words."""
    words = WORDS[:-1]
    for kind in ("bpe", "wordpiece", "words"):
        tokenizer = train_tokenizer(kind, [" ".join(["a", *words])] * 9, 900)
        assert [len(tokenizer.encode(f"a {word}")) for word in words] == [2] * len(words), kind


def _captions(folder: Path) -> None:
    """Heat maps of words, each with its own letters."""
    words = WORDS[:2]
    tokenizer = train_tokenizer("characters", [" ".join(words)], 60)
    ids = [*tokenizer.encode(" ".join(words)), tokenizer.eos]
    weights = np.full((1, 1, len(ids), 4), 0.25, np.float32)
    pixels = np.zeros((4, 4, 3), np.uint8)
    maps = word_maps("", pixels, weights, ids, tokenizer.decode)
    assert maps.words[:-1] == tuple(words)


CASES: dict[str, Callable[[Path], None]] = {
    "texts with summaries": _summarized,
    "documents in lines": _documents("documents in lines", "line"),
    "documents between blank lines": _documents("documents between blank lines", "blank"),
    "documents in files of a folder": _documents("documents in files of a folder", "file"),
    "documents as JSONL": _documents("documents as JSONL", "file"),
    "tagged words as CoNLL-U": _as_words("tagged words as CoNLL-U"),
    "tagged words in columns": _as_words("tagged words in columns"),
    "tagged words as GermEval": _as_words("tagged words as GermEval"),
    "tagged words as CoNLL-2012": _as_words("tagged words as CoNLL-2012"),
    "tagged words as JSONL": _as_words("tagged words as JSONL"),
    "text for word vectors": _letters,
    "word vectors": _as_words("word vectors"),
    "word vectors of GloVe": _as_words("word vectors of GloVe"),
    "analogy questions": _as_words("analogy questions"),
    "similar words": _as_words("similar words"),
    "tag words": _tag,
    "compare vectors of a word": _vectors_of_a_word,
    "compare samples": _samples,
    "caption": _captions,
    "tokenize": _tokens,
}
_WHOLE = (
    "pairs in two aligned files",
    "pairs as TSV",
    "pairs as CSV",
    "pairs as JSONL",
    "pairs as Parquet",
    "texts with summaries as CSV",
    "documents as Parquet",
    "labeled texts as Parquet",
    "data set of Hugging Face",
    "questions in rows",
    "preferences as CSV",
    "completions as CSV",
    "pairs by language",
    "table of pairs by language",
    "labeled texts as TSV",
    "labeled texts as CSV",
    "texts in a table as CSV",
    "labeled texts as JSONL",
    "labeled pairs as TSV",
    "classes of labeled texts",
    "numbered texts",
    "pairs with scores",
    "texts with positives as CSV",
    "texts with positives as JSONL",
    "questions",
    "preferences",
    "completions with a label",
    "prompts to learn from",
    "conversations",
    "prompts with completions",
    "recordings as TSV",
    "recordings as CSV",
    "recordings as JSONL",
    "pictures in class folders",
    "pictures in a TSV table",
    "pictures in a CSV table",
    "captions of Flickr8k",
    "captions of COCO",
    "pictures in a JSONL table",
    "pictures in arrays",
    "data sets of TensorFlow",
    "demonstrations",
    "rewards and rules of users",
    "prompts in lines or JSONL",
    "requests",
    "lines of text",
    "results of benchmarks",
    "outputs with references",
    "translate",
    "embed a translator's sources",
    "score translations",
    "look at attention",
    "generate",
    "chat",
    "score texts",
    "few-shot prompts",
    "classify texts",
    "rank texts",
    "reward texts",
    "answer questions",
    "tag tokens",
    "find answers",
    "fill masks",
    "embed texts",
    "search texts",
    "transcribe",
    "classify pictures",
    "embed pictures",
    "match pictures and texts",
)
EXEMPT = dict.fromkeys(_WHOLE, "a text goes to the tokenizer whole: no word is cut or counted") | {
    "words of word vectors": "a word is given as an argument: nothing is cut",
}


_SLOW = ("compare vectors of a word",)  # has a model


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in _SLOW)) for name in CASES]
)
def test_words_keep_their_marks_and_sentences_their_ends(name, tmp_path):
    CASES[name](tmp_path)


# Where user text comes to, and the files of it that may match letters or split at blanks.
FOLDERS = (
    "data", "decoding", "evaluation", "inference", "recipes", "visual", "word_vectors",
)  # fmt: skip
ELSEWHERE = {
    "data/words.py": "says what a word is",
    "data/corpora/": "texts of the package itself",
    "data/tokenizer_files/": "patterns of files, and memory of a process",
    "data/chat/render_process.py": "memory of a process",
    "evaluation/word_splitting.py": "letters of scripts; words as sacreBLEU's tokenizers part them",
    "evaluation/answers.py": "SQuAD's own script, which drops English articles",
    "evaluation/output_scores.py": "tags and numbers that the package joined",
    "word_vectors/formats.py": "bytes: fields of a file of vectors",
}


def _cuts(tree: ast.AST) -> list[int]:
    r"""Lines with a pattern of letters (``\w``, ``\b``), or that split a text at blanks.

    Joining what was split makes single blanks of all, and cuts no word.
    """
    nodes = list(ast.walk(tree))
    calls = [one for one in nodes if isinstance(one, ast.Call)]
    calls = [one for one in calls if isinstance(one.func, ast.Attribute)]
    joined = {id(part) for one in calls if one.func.attr == "join" for part in one.args}
    docstrings = {id(one.value) for one in nodes if isinstance(one, ast.Expr)}
    split = [one for one in calls if one.func.attr == "split" and id(one) not in joined]
    cuts = [one for one in split if not one.args and not one.keywords]
    for one in nodes:
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            cuts += [one] * (id(one) not in docstrings and bool(re.search(r"\\[wWbB]", one.value)))
        if isinstance(one, ast.Attribute) and ast.unparse(one) == "str.split":
            cuts.append(one)
    return sorted(one.lineno for one in cuts)


def test_one_module_says_what_a_word_is():
    package, found = Path(transformer_jax.__file__).parent, []
    for folder in FOLDERS:
        for path in sorted((package / folder).rglob("*.py")):
            name = path.relative_to(package).as_posix()
            if not any(name.startswith(part) for part in ELSEWHERE):
                text = path.read_text("utf-8")
                if re.search(r"split\b|\\[wWbB]", text):  # few have either: parsing is slow
                    found += [f"{name}:{line}" for line in _cuts(ast.parse(text))]
    assert not found, f"use transformer_jax.data.words: {found}"


def test_the_cutters_of_words_are_seen():
    code = "a.split()\n' '.join(a.split())\nre.findall(r'\\w+', a)\nmap(str.split, a)\na.split(',')"
    assert sorted(_cuts(ast.parse(code))) == [1, 3, 4]
