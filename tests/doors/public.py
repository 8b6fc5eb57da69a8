"""Files as public data sets shape them, and what each is read as, or why it is refused.

Ten lines or fewer of each shape, written for this file: nothing is copied from the data sets.
``python -m tests.doors.public`` prints a table of them.
"""

import dataclasses
import functools
import gzip
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.doors.readers import write_parquet, write_picture, write_recording, write_saved
from transformer_jax.core.errors import UserError
from transformer_jax.data.conversations import read_conversations
from transformer_jax.data.documents import TextData, TextOptions, open_texts, read_texts
from transformer_jax.data.images.picture_tables import read_images
from transformer_jax.data.labeled import LabeledOptions, Questions, Tagged, read_labeled
from transformer_jax.data.preferences import read_preferences
from transformer_jax.data.sources import Files, ReadOptions, read_pairs
from transformer_jax.data.speech.recordings import read_manifest
from transformer_jax.data.summaries import read_summaries
from transformer_jax.word_vectors.formats import load_embeddings
from transformer_jax.word_vectors.questions import read_analogies, read_similarities

__all__ = ["SAMPLES", "Sample", "outcome", "table"]

Read = Callable[[str], str]  # from a path to what was read, in a few words


@dataclasses.dataclass(frozen=True)
class Sample:
    """A file as a data set shapes it.

    Attributes:
        name: The data set.
        file: The path of the file, or of the folder, that is given.
        content: Its lines; or a function that writes it, for what is no text.
        read: Reads it.
        says: What is read of it, or a part of the message that refuses it.
        refused: Whether it is refused.
    """

    name: str
    file: str
    content: str | Callable[[Path], object]
    read: Read
    says: str
    refused: bool = False

    def write(self, folder: Path) -> str:
        """Writes the file, and what it names, into a folder; returns its path."""
        path = folder / self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(self.content, str):
            path.write_text(self.content, "utf-8")
        else:
            self.content(path)
        return str(path)


def outcome(sample: Sample, folder: Path) -> tuple[bool, str]:
    """Returns whether a sample is read, and what is read of it or the message."""
    path = sample.write(folder)
    try:
        return True, sample.read(path)
    except UserError as error:
        return False, str(error).replace(f"{folder}/", "")


# --- Ways to read ---------------------------------------------------------------------------------


def _labeled(task: Any, **options: Any) -> Read:
    def read(path: str) -> str:
        found = read_labeled(path, task, LabeledOptions(**options))
        if isinstance(found, Tagged):
            shown = " ".join(f"{w}/{t}" for w, t in zip(found.words[0], found.tags[0], strict=True))
            return f"{len(found)} sentences: {shown}"
        if isinstance(found, Questions):
            answers = [one.text for one in found.answers[0]]
            return f"{len(found)} questions: {found.questions[0]} {answers}"
        second = "" if found.text_pairs is None else f" | {found.text_pairs[0]}"
        return f"{len(found)} texts: {found.texts[0]}{second} -> {found.labels[0]}"

    return read


def _pairs(path: str, **options: Any) -> str:
    target = str(Path(path).with_suffix(".en"))
    files = Files(path, target) if Path(target).exists() else Files(pairs=path)
    found = read_pairs(files, ReadOptions(**options))
    return f"{len(found)} pairs: {found.sources[0]} -> {found.targets[0]}"


def _summaries(path: str) -> str:
    found = read_summaries(path)
    return f"{len(found)} texts: {found.sources[0]} -> {found.references[0][0]}"


def _documents(kind: Any) -> Read:
    def read(path: str) -> str:
        chunks = list(read_texts(path, TextOptions(documents=kind)))
        return f"{sum(chunk.last for chunk in chunks)} documents: {chunks[0].text[:20].strip()}"

    return read


def _objects(path: str) -> str:
    chunks = list(open_texts(TextData(jsonl=path, read=TextOptions(validation_size=0))).train)
    return f"{len(chunks)} documents: {chunks[0].text}"


def _preferences(kind: Any) -> Read:
    def read(path: str) -> str:
        found = read_preferences(path, kind)
        return f"{len(found)} prompts: {found.prompts[0]} -> {found.completions[0]}"

    return read


def _chats(path: str) -> str:
    found = list(read_conversations(path))
    return f"{len(found)} conversations: {found[0].messages[-1]['content']}"


def _recordings(path: str) -> str:
    found = read_manifest(path)
    return f"{len(found)} recordings: {Path(found.title(0)).name} {found.texts[0]}"


def _pictures(path: str) -> str:
    found = read_images(path)
    return f"{len(found.texts)} pictures: {found.texts[0]}"


def _vectors(path: str) -> str:
    found = load_embeddings(path)
    return f"{len(found)} words of {found.size}: {found.words[1]}"


# --- Ways to write --------------------------------------------------------------------------------


def _lines(*rows: object) -> str:
    return "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)


def _bytes(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def _with(content: str, write: Callable[[Path], object], *files: str) -> Callable[[Path], object]:
    """A file with files that it names, next to it."""

    def make(path: Path) -> None:
        path.write_text(content, "utf-8")
        for name in files:
            write(path.parent / name)

    return make


def _parquet(*rows: Mapping[str, object]) -> Callable[[Path], object]:
    return lambda path: write_parquet(path, [dict(row) for row in rows])


def _clone(path: Path) -> None:
    """Writes a clone of a repository of the hub, with two splits."""
    (path / "data").mkdir(parents=True)
    rows: list[dict[str, object]] = [{"sentence": "a joy", "label": "pos", "idx": 0}]
    for split in ("train", "validation"):
        write_parquet(path / f"data/{split}-00000-of-00001.parquet", rows)
    (path / "README.md").write_text("---\nlicense: other\n---\n")


def _saved(path: Path) -> None:
    """Writes a folder as ``DatasetDict.save_to_disk`` does."""
    names = {"label": {"names": ["World", "Sports"], "_type": "ClassLabel"}}
    write_saved(path / "train", [{"text": "A goal.", "label": 1}], names)
    (path / "dataset_dict.json").write_text('{"splits": ["train"]}')


def _classes(path: Path) -> None:
    for name in ("cat/1.png", "dog/1.png"):
        write_picture(path / name)


def _squad(*questions: Mapping[str, object]) -> str:
    paragraph = {"context": "Ada lives in Paris.", "qas": list(questions)}
    return json.dumps({"version": "1", "data": [{"title": "t", "paragraphs": [paragraph]}]})


_ANSWER = {"text": "Paris", "answer_start": 13}
_ASKED = {"id": "1", "question": "Where?", "answers": [_ANSWER]}
_ROW = {"id": "1", "title": "t", "context": "Ada lives in Paris.", "question": "Where?",
        "answers": {"text": ["Paris"], "answer_start": [13]}}  # fmt: skip
_IMPOSSIBLE = {"id": "2", "question": "When?", "answers": [], "is_impossible": True}
_ONTO = "bc/x/00/x 0 {} {} NNP * - - - Ada {} -"
_UD = "{}\t{}\t_\t{}\t_\t_\t0\troot\t_\t_"
_COCO = {"images": [{"id": 9, "file_name": "9.png", "height": 8, "width": 8}],
         "annotations": [{"id": 1, "image_id": 9, "caption": "A cat."}]}  # fmt: skip

_MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
_BINARY = b"2 2\n</s> \0\0\x80?\0\0\0@\nthe \0\0\x80?\0\0\0@\n"

SAMPLES: tuple[Sample, ...] = (
    # --- Classes and numbers of texts ---
    Sample("SST-2 of GLUE", "train.tsv", _lines("sentence\tlabel", 'a "joy \t1', "dull\t0"),
           _labeled("classify"), '2 texts: a "joy -> 1'),
    Sample("CoLA of GLUE", "train.tsv", _lines("gj04\t1\t\tHe left.", "gj04\t0\t*\tLeft he."),
           _labeled("classify", text="4", label="2"), "2 texts: He left. -> 1"),
    Sample("IMDB as CSV", "IMDB Dataset.csv",
           _lines("review,sentiment", '"Good, ""really"".<br />Yes.",positive', "Bad.,negative"),
           _labeled("classify"), '2 texts: Good, "really".<br />Yes. -> positive'),
    Sample("AG News as CSV", "train.csv", _lines('"3","Oil","Oil, up"', '"1","Vote","A vote"'),
           _labeled("classify", text="3", label="1"), "2 texts: Oil, up -> 3"),
    Sample("Banking77", "train.csv", _lines("text,category", "My card?,card_arrival"),
           _labeled("classify"), "1 texts: My card? -> card_arrival"),
    Sample("emotion as JSONL", "train.jsonl", _lines({"text": "i feel low", "label": 0}),
           _labeled("classify"), "1 texts: i feel low -> 0"),
    Sample("SST-2, a clone of the hub", "sst2", _clone, _labeled("classify"),
           "1 texts: a joy -> pos"),
    Sample("AG News, saved to disk", "ag_news", _saved, _labeled("classify"),
           "1 texts: A goal. -> Sports"),
    Sample("Sentiment140", "train.csv", _bytes('"0","caf\u00e9"\n'.encode("latin-1")),
           _labeled("classify", text="2", label="1"), "iconv -f latin1 -t utf-8", True),
    Sample("fastText's labels", "train.txt", _lines("__label__2 good", "__label__1 bad"),
           _labeled("classify"), "the name does not tell the format", True),
    Sample("TREC", "train_5500.label", _lines("DESC:manner How ?"), _labeled("classify"),
           "the name does not tell the format", True),
    Sample("reviews with semicolons", "reviews.csv", _lines("text;label", "good;1"),
           _labeled("classify"), "columns are separated by commas", True),
    # --- Pairs of texts ---
    Sample("MRPC of GLUE", "train.tsv",
           "\ufeff" + _lines("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", '1\t7\t8\t"A.\tA B.'),
           _labeled("pair", text="#1 String", text_pair="#2 String", label="Quality"),
           '1 texts: "A. | A B. -> 1'),
    Sample("QQP of GLUE", "train.tsv",
           _lines("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "0\t1\t2\tWhy?\tHow?\t0"),
           _labeled("pair"), "1 texts: Why? | How? -> 0"),
    Sample("SNLI as JSONL", "snli_1.0_train.jsonl",
           _lines({"annotator_labels": ["neutral"], "gold_label": "neutral", "sentence1": "A man.",
                   "sentence2": "He is tall.", "pairID": "1"}),
           _labeled("pair"), "1 texts: A man. | He is tall. -> neutral"),
    Sample("RTE of GLUE", "train.tsv",
           _lines("index\tsentence1\tsentence2\tlabel", "0\tIt rains.\tIt is wet.\tentailment"),
           _labeled("pair"), "1 texts: It rains. | It is wet. -> entailment"),
    Sample("STS-B of GLUE", "train.tsv",
           _lines("index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
                  "\tscore", '0\tm\tMSRvid\t2012\t1\tnone\tnone\tA "plane.\tAn air plane.\t5.000'),
           _labeled("regress", pair=True), '1 texts: A "plane. | An air plane. -> 5.000'),
    Sample("STS benchmark", "sts-train.csv",
           _lines("main-captions\tMSRvid\t2012test\t0001\t5.000\tA plane.\tAn air plane."),
           _labeled("regress", pair=True, format="tsv", text="6", text_pair="7", label="5"),
           "1 texts: A plane. | An air plane. -> 5.000"),
    Sample("STS benchmark, read as CSV", "sts-train.csv",
           _lines("main-captions\tMSRvid\t2012test\t0001\t5.000\tA plane, grey.\tA plane."),
           _labeled("regress", pair=True), "the first line has tabs: give data.read.format", True),
    Sample("SICK, relatedness", "SICK_train.txt",
           _lines("pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment",
                  "1\tA dog runs.\tA dog is running.\t4.5\tENTAILMENT"),
           _labeled("regress", pair=True, format="tsv"),
           "1 texts: A dog runs. | A dog is running. -> 4.5"),
    Sample("SICK, entailment", "SICK_train.txt",
           _lines("pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment",
                  "1\tA dog runs.\tA dog is running.\t4.5\tENTAILMENT"),
           _labeled("pair", format="tsv"),
           "1 texts: A dog runs. | A dog is running. -> ENTAILMENT"),
    # --- Words with tags ---
    Sample("CoNLL-2003", "eng.train",
           _lines("-DOCSTART- -X- -X- O", "", "Ada NNP I-NP I-PER", "left VBD I-VP O", ""),
           _labeled("tag"), "1 sentences: Ada/I-PER left/O"),
    Sample("CoNLL-2003 in BIOES", "train.bioes",
           _lines("Ada NNP B-NP S-PER", "left VBD B-VP O", ""),
           _labeled("tag", tag_scheme="iob2"), "1 sentences: Ada/B-PER left/O"),
    Sample("GermEval 2014", "NER-de-train.tsv",
           _lines("#\thttp://x [2009-10-17]", "1\tAda\tB-PER\tO", "2\tging\tO\tO", ""),
           _labeled("tag"), "1 sentences: Ada/B-PER ging/O"),
    Sample("MultiCoNER", "en-train.conll",
           _lines("# id 12-a\tdomain=en", "the _ _ O", "patriot _ _ B-CW", ""),
           _labeled("tag"), "1 sentences: the/O patriot/B-CW"),
    Sample("OntoNotes of CoNLL-2012", "x.v4_gold_conll",
           _lines("#begin document (bc/x/00/x); part 000", _ONTO.format(0, "Ada", "(PERSON*"),
                  _ONTO.format(1, "L.", "*)"), _ONTO.format(2, "left", "*"), "", "#end document"),
           _labeled("tag"), "1 sentences: Ada/B-PERSON L./I-PERSON left/O"),
    Sample("OntoNotes without its words", "x.v4_gold_conll",
           _lines("#begin document (bc/x/00/x); part 000", _ONTO.format(0, "[WORD]", "*"), ""),
           _labeled("tag"), "add the words to the file", True),
    Sample("WNUT-17", "wnut17train.conll", _lines("@ada\tO", "Paris\tB-location", "", "ok\tO", ""),
           _labeled("tag"), "2 sentences: @ada/O Paris/B-location"),
    Sample("WikiNEuRal", "train_en.conllu", _lines("0\tAda\tB-PER", "1\tleft\tO", ""),
           _labeled("tag", format="columns"), "1 sentences: Ada/B-PER left/O"),
    Sample("WikiNEuRal by its ending", "train_en.conllu", _lines("0\tAda\tB-PER", ""),
           _labeled("tag"), "give data.read.format columns", True),
    Sample("Universal Dependencies", "en_ewt-ud-train.conllu",
           _lines("# sent_id = 1", _UD.format(1, "Ada", "PROPN"), _UD.format(2, "ran", "VERB"), ""),
           _labeled("tag"), "1 sentences: Ada/PROPN ran/VERB"),
    Sample("CoNLL-2003 of the hub", "train.parquet",
           _parquet({"id": "0", "tokens": ["Ada", "left"], "ner_tags": ["B-PER", "O"]}),
           _labeled("tag"), "1 sentences: Ada/B-PER left/O"),
    Sample("two lists of tags", "train.jsonl",
           _lines({"tokens": ["Ada"], "pos_tags": ["NNP"], "ner_tags": ["B-PER"]}),
           _labeled("tag"), "name it with data.read.tag", True),
    Sample("NER of Kaggle", "ner_dataset.csv",
           _lines("Sentence #,Word,POS,Tag", "Sentence: 1,Ada,NNP,B-per"), _labeled("tag"),
           "the format csv is not for the task tag", True),
    # --- Questions ---
    Sample("SQuAD 1.1", "train-v1.1.json", _squad(_ASKED), _labeled("qa"),
           "1 questions: Where? ['Paris']"),
    Sample("SQuAD 2.0", "train-v2.0.json", _squad(_IMPOSSIBLE, _ASKED), _labeled("qa"),
           "2 questions: When? []"),
    Sample("SQuAD of the hub", "train.parquet", _parquet(_ROW), _labeled("qa"),
           "1 questions: Where? ['Paris']"),
    Sample("SQuAD 2.0 as JSONL", "train.jsonl",
           _lines(_ROW | {"answers": {"text": [], "answer_start": []}}), _labeled("qa"),
           "1 questions: Where? []"),
    Sample("SQuAD with places in bytes", "train-v1.1.json",
           _squad(_ASKED | {"answers": [_ANSWER | {"answer_start": 14}]}), _labeled("qa"),
           "nearest found at 13: correct answer_start", True),
    # --- Translations and summaries ---
    Sample("Europarl", "europarl.de", _with("ein Haus\n", _bytes(b"a house\n"), "europarl.en"),
           _pairs, "1 pairs: ein Haus -> a house"),
    Sample("Tatoeba of ManyThings", "deu.txt",
           _lines("Go.\tGeh.\tCC-BY 2.0 (France) Attribution: #1"),
           functools.partial(_pairs, format="tsv", columns=(2, 1)), "1 pairs: Geh. -> Go."),
    Sample("WMT of the hub", "train.parquet", _parquet({"translation": {"de": "ein", "en": "one"}}),
           _pairs, "1 pairs: ein -> one"),
    Sample("WMT as JSONL", "train.jsonl", _lines({"translation": {"de": "ein", "en": "one"}}),
           _pairs, "1 pairs: ein -> one"),
    Sample("pairs as CSV", "train.csv", _lines("source,target", '"ein, zwei",one'),
           _pairs, "1 pairs: ein, zwei -> one"),
    Sample("TED with names", "ted.tsv", _lines("de\ten\ttalk", "ein\tone\t7"),
           functools.partial(_pairs, fields=("de", "en")), "1 pairs: ein -> one"),
    Sample("CNN/DailyMail", "train.csv", _lines("id,article,highlights", "1,It rains. So.,Rain."),
           _summaries, "1 texts: It rains. So. -> Rain."),
    Sample("XSum of the hub", "train.parquet",
           _parquet({"document": "It rains. A lot.", "summary": "Rain.", "id": "1"}),
           _summaries, "1 texts: It rains. A lot. -> Rain."),
    Sample("SAMSum, one list", "train.json",
           json.dumps([{"dialogue": "A: Hi", "summary": "Hi."}], indent=1), _summaries,
           "one list of objects, and an object in each line is needed, as `jq", True),
    # --- Texts, preferences and conversations ---
    Sample("WikiText", "wiki.train.tokens", _lines("", " = Ada = ", "", " Ada was <unk> . "),
           _documents("line"), "2 documents: = Ada ="),
    Sample("C4", "c4-train.00000-of-01024.json.gz",
           _bytes(gzip.compress(b'{"text": "It is.", "url": "x"}\n')), _objects,
           "1 documents: It is."),
    Sample("FineWeb", "000.parquet", _parquet({"text": "It is.", "url": "x", "token_count": 3}),
           _documents("file"), "1 documents: It is."),
    Sample("DPO pairs", "train.jsonl", _lines({"prompt": "Why?", "chosen": "So", "rejected": "No"}),
           _preferences("pairs"), "1 prompts: Why? -> ('So', 'No')"),
    Sample("DPO pairs as CSV", "train.csv", _lines("prompt,chosen,rejected", '"Why, now?",So.,No.'),
           _preferences("pairs"), "1 prompts: Why, now? -> ('So.', 'No.')"),
    Sample("HH-RLHF", "train.jsonl", _lines({"chosen": "\n\nHuman: a", "rejected": "\n\nHuman: b"}),
           _preferences("pairs"), "no field 'prompt'", True),
    Sample("chats of OpenAI's format", "train.jsonl", _lines({"messages": _MESSAGES}), _chats,
           "1 conversations: Hello."),
    Sample("chats as Parquet", "train.parquet", _parquet({"messages": _MESSAGES}), _chats,
           "1 conversations: Hello."),
    Sample("ShareGPT", "train.jsonl", _lines({"conversations": [{"from": "human", "value": "Hi"}]}),
           _chats, "messages", True),
    # --- Recordings ---
    Sample("Common Voice, decoded", "train.tsv",
           _with("client_id\tpath\tsentence\n7\tcommon_1.mp3\tHello.\n", write_recording,
                 "clips/common_1.wav"), _recordings, "1 recordings: common_1.wav Hello."),
    Sample("Common Voice", "train.tsv",
           _with("client_id\tpath\tsentence\n7\ta.mp3\tHello.\n", write_recording, "clips/b.wav"),
           _recordings, "ffmpeg -i", True),
    Sample("NeMo", "train_manifest.json",
           _with(_lines({"audio_filepath": "a.wav", "offset": 0.1, "duration": 0.2, "text": "hi"}),
                 write_recording, "a.wav"), _recordings,
           "1 recordings: a.wav (0.1 s to 0.3 s) hi"),
    Sample("DeepSpeech", "train.csv",
           _with("wav_filename,wav_filesize,transcript\na.wav,164,hi\n", write_recording, "a.wav"),
           _recordings, "1 recordings: a.wav hi"),
    Sample("LJSpeech", "metadata.csv", _lines("LJ001-0001|Printing, so|Printing, so"), _recordings,
           "path (or audio_filepath), text", True),
    Sample("LibriSpeech", "84-121123.trans.txt", _lines("84-121123-0000 GO"), _recordings,
           "the name of a manifest ends in", True),
    # --- Pictures ---
    Sample("Flickr8k", "captions.txt",
           _with(_lines("image,caption", '1.png,"A cat, grey ."'), write_picture, "Images/1.png"),
           _pictures, "1 pictures: A cat, grey ."),
    Sample("Flickr8k.token", "Flickr8k.token.txt",
           _with(_lines("1.png#0\tA cat .", "1.png#1\tCat ."), write_picture, "1.png"), _pictures,
           "2 pictures: A cat ."),
    Sample("Flickr30k", "results.csv",
           _with(_lines("image_name| comment_number| comment", "1.png| 0| A cat ."),
                 write_picture, "flickr30k_images/1.png"), _pictures, "1 pictures: A cat ."),
    Sample("COCO captions", "captions_val2017.json",
           _with(json.dumps(_COCO), write_picture, "9.png"), _pictures, "1 pictures: A cat."),
    Sample("pictures in class folders", "train", _classes, _pictures, "2 pictures: cat"),
    # --- Word vectors ---
    Sample("GloVe", "glove.6B.50d.txt", _lines("the 0.1 0.2 0.3", "a b 1 2 3", ", 1 2 3"), _vectors,
           "3 words of 3: a b"),
    Sample("fastText", "wiki.en.vec", _lines("2 3", "the 0.1 0.2 0.3 ", "of 1 2 3 "), _vectors,
           "2 words of 3: of"),
    Sample("word2vec", "GoogleNews.bin", _bytes(_BINARY), _vectors, "2 words of 2: the"),
    Sample("analogies of Google", "questions-words.txt",
           _lines(": capital", "Paris France Rome Italy"),
           lambda path: f"{sum(map(len, read_analogies(Path(path)).values()))} questions",
           "1 questions"),
    Sample("WordSim-353", "combined.tab", _lines("tiger\tcat\t7.35", "old\tnew\t1.58"),
           lambda path: f"{len(read_similarities(Path(path)))} pairs", "2 pairs"),
)  # fmt: skip


def table(folder: Path) -> str:
    """Returns a Markdown table of all samples."""
    lines = ["| data set | file | read as, or refused with |", "|---|---|---|"]
    counts = [0, 0]
    for number, sample in enumerate(SAMPLES):
        is_read, said = outcome(sample, folder / str(number))
        counts[is_read] += 1
        said = said.splitlines()[0].replace("|", "\\|")
        said = said if len(said) <= 110 else f"{said[:107]}..."
        shown = said if is_read else f"refused: {said}"
        lines.append(f"| {sample.name} | {sample.file} | {shown} |")
    return "\n".join([*lines, "", f"{counts[1]} read, {counts[0]} refused"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(table(Path(folder)))
    sys.stdout.flush()
