"""A folder with all that pages name: texts, pictures, recordings, tiny models of others, and runs.

Files and published models are written once. A run that a page uses and another page trains is
made by the commands of :data:`MADE`, when it is asked for.
"""

import csv
import itertools
import json
import re
import shutil
import wave
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import numpy as np
from flax import nnx
from PIL import Image

from tests import published_translators
from tests.drawing import drawn
from tests.interop import language_folders
from tests.parity import layouts
from transformer_jax.data.chat.template import named_template
from transformer_jax.data.corpora import phrasebook
from transformer_jax.data.tokenizer import BERT_SPECIAL, train_tokenizer
from transformer_jax.interop.export import write_folder
from transformer_jax.interop.family import Model
from transformer_jax.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    NormConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.transformer.models import Decoder
from transformer_jax.word_vectors.embeddings import WordEmbeddings
from transformer_jax.word_vectors.formats import save_embeddings

PAIRS = phrasebook.generate("train", 60)
PT, EN = ([pair[side] for pair in PAIRS] for side in (0, 1))
# Lines without commas, each with the next.
PLAIN = [*itertools.pairwise(line for line in EN if "," not in line)]
COLORS = ("red", "blue", "green")
CAPITALS = "paris france italy rome house home"
# Letters of prompts are letters of the text, and words of questions are words of it.
TEXT = [
    f"ROMEO: {line}\nJULIET: Once upon a time, the bank by the river. {CAPITALS}."
    for line in EN[:30]
]

# The most frequent words of the texts, with which tiny vocabularies know most of them.
WORDS = [
    word for word, _ in Counter(re.findall(r"\w+|[^\w\s]+", " ".join([*TEXT, *EN]))).most_common(70)
]

# Commands by the runs and files that they make, in the folder of the world.
MADE = {
    "runs/pt-en": ["train small --data.source corpus.pt --data.target corpus.en"],
    "runs/phrasebook": ["train phrasebook"],
    "runs/luong": ["train luong --data.corpus phrasebook"],
    "runs/joint": [
        "train tiny --data.pairs de-en=a.de,a.en en-de=a.de,a.en en-fr=b.en,b.fr fr-en=b.en,b.fr"
    ],
    "runs/many": [
        "train tiny --data.pairs de-en=a.de,a.en en-de=a.de,a.en en-cs=b.en,b.cs cs-en=b.en,b.cs"
    ],
    "runs/three": [
        "train tiny --data.pairs de-en=a.de,a.en en-de=a.de,a.en en-fr=b.en,b.fr fr-en=b.en,b.fr"
    ],
    "runs/base": ["train char-cpu --data.text shakespeare.txt"],
    "runs/char-cpu": ["train char-cpu --data.text shakespeare.txt"],
    "runs/shakespeare": ["train char-cpu --data.text shakespeare.txt"],
    "runs/in-context": ["train in-context"],
    "runs/ngram": ["train ngram --data.text shakespeare.txt"],
    "runs/python-docs": ["pretrain small --data.text corpus.txt"],
    "runs/mine": ["pretrain small --data.text corpus.txt"],
    "runs/small": ["pretrain small --data.text corpus.txt"],
    "runs/bert": ["pretrain small --data.text corpus.txt"],
    "runs/bart": ["pretrain bart-mini --data.text corpus.txt"],
    "runs/mood": ["finetune classify --init-from runs/mine --data.train reviews.tsv"],
    "runs/phrases": ["finetune classify --init-from runs/mine --data.train reviews.tsv"],
    "runs/couples": ["finetune pair --init-from runs/mine --data.train couples.tsv"],
    "runs/tags": ["finetune tag --init-from runs/mine --data.train train.conllu"],
    "runs/answers": ["finetune qa --init-from runs/mine --data.train questions.json"],
    "runs/words": ["word-vectors train corpus.txt"],
    "runs/gpt2": ["convert models/gpt2 runs/gpt2"],
    "runs/grpo": [
        "align grpo --init-from runs/base --data.train prompts.jsonl --reward.file reward.py"
    ],
    "runs/sft": [
        "instruct sft --init-from models/SmolLM2-135M --chat.template chatml "
        "--data.train chats.jsonl"
    ],
    "runs/chat": [
        "instruct sft --init-from models/SmolLM2-135M --chat.template chatml "
        "--data.train chats.jsonl --lora.rank 2"
    ],
    "peft/other": [
        "train char-cpu --init-from runs/base --lora.rank 2 --data.text mine.txt "
        "--output runs/other",
        "export runs/other peft/other --format peft",
    ],
    "peft/mine": [
        "train char-cpu --init-from models/gpt2 --lora.rank 2 --data.text mine.txt "
        "--output runs/of-gpt2",
        "export runs/of-gpt2 peft/mine --format peft",
    ],
}
# The same for single pages, where a name is that of another run.
MADE_FOR = {
    "many-devices": {"runs/base": ["train base --data.source corpus.pt --data.target corpus.en"]},
}

# Words for the placeholders of patterns in text and tables, by the page, and by the command where
# it matters. A pattern without a word for each is not run.
STANDS = {
    "chat": {"RUN": "runs/mine"},
    "data": {
        "FILE": "corpus.txt", "OTHER": "other.txt", "RUN_OR_FOLDER": "models/gpt2",
        "TEXT": {"tokenize": "'Once upon'", "": "'a rare area'"},
    },
    "encoders": {
        "RUN": {"classify": "runs/mood", "tag": "runs/tags", "answer": "runs/answers",
                "glue": "runs/phrases", "": "runs/mine"},
        "RUN2": {"semantic-search": "runs/sts", "": "runs/couples"}, "F": "corpus.txt",
        "FILE": {"probe": "sentences.tsv", "": "sentences.txt"},
    },
    "language-models": {
        "RUN": "runs/shakespeare", "RUN2": "runs/ngram", "F": "more.txt", "FILE": "prompts.txt"
    },
    "lectures/cs4391": {"RUN": "runs/phrasebook"},
    "preferences": {"...": "--init-from runs/base --data.train pairs.jsonl --output runs/two"},
    "runs": {
        "RUN": {"evaluate": "runs/base", "": "runs/pt-en"},
        "NAME": {"pretrain": "python-docs", "": "phrasebook"},
    },
    "translation": {
        "RUN": {"report": "runs/phrasebook", "": "runs/pt-en"}, "F": "new.pt", "FILE": "new.pt"
    },
    "word-vectors": {"VECTORS": "runs/words"},
}  # fmt: skip


def write(folder: Path) -> None:
    """Writes the files of all pages, and those of single ones in ``only/PAGE``."""
    folder.mkdir(parents=True)
    _texts(folder)
    _json_lines(folder)
    _pictures(folder)
    _recordings(folder / "only" / "speech")
    shutil.copytree(folder / "only" / "speech", folder / "only" / "tasks")


def place(world: Path, page: str, folder: Path) -> None:
    """Copies the files of a page to its folder."""
    names = shutil.ignore_patterns("models", "only", "runs", "peft")
    shutil.copytree(world, folder, ignore=names, dirs_exist_ok=True)
    only = world / "only" / page
    if only.exists():
        shutil.copytree(only, folder, dirs_exist_ok=True)


def _lines(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def _texts(folder: Path) -> None:
    other = [" ".join(line.split()[::-1]) for line in EN]
    for name, lines in {
        "corpus.pt": PT, "corpus.en": EN, "corpus.de": other, "corpus.fr": other,
        "more.pt": PT[:30], "more.en": EN[:30],
        **{f"{stem}.{one}": EN if one == "en" else other
           for stem in ("a", "b", "train") for one in ("de", "en", "fr", "cs")},
        "test.de": other[:4], "test.cs": other[:4], "few.de": other[:4], "few.cs": other[:4],
        "few.en": EN[:4], "few.pt": PT[:4],
        "in": other[:2], "in.en": EN[:2], "in.de": other[:2], "new.de": other[:2], "new.pt": PT[:2],
        "text": PT[:2], "text.de": PT[:9], "texts.txt": EN[:2],
        "b.tsv": [f"{a}\t{b}" for a, b in zip(EN, other, strict=True)],
        "new.tsv": [f"{a}\t{b}" for a, b in zip(EN, other, strict=True)],
        "pairs.tsv": [f"{a}\t{b}" for a, b in PAIRS],
        "sentences.txt": EN[:6], "lines.txt": EN[:9],
        "prompts.txt": ["ROMEO:", "Once upon"],
        "sentences.tsv": ["text\tlabel", *(f"{line}\t{'yes' if 'is' in line else 'no'}"
                                           for line in EN)],
        "new.csv": ["id,text", *(f'{i},"{line}"' for i, line in enumerate(EN[:9]))],
        "reviews.tsv": ["text\tlabel", *(f"{line}\t{'no' if i % 3 else 'yes'}"
                                         for i, line in enumerate(EN))],
        "couples.tsv": ["text\tsecond\tlabel", *(f"{a}\t{b}\t{'yes' if i % 2 else 'no'}"
                        for i, (a, b) in enumerate(itertools.pairwise(EN)))],
        "only/encoders/pairs.tsv": [
            "sentence1\tsentence2\tlabel", *(f"{a}\t{b}\tyes\n{b}\t{a}\tno" for a, b in PAIRS)
        ],
        **{f"only/{page}/sts.tsv": [
            "text\tsecond\tscore", *(f"{a}\t{b}\t{len(b) / 9:.1f}" for a, b in PAIRS)
        ] for page in ("encoders", "from/sentence-transformers")},
        "only/encoders/ner.conll": [
            f"{word} {'B-PER' if word.istitle() else 'O'}" if word else ""
            for line in EN for word in (*line.split(), "")
        ],
        "scored.csv": ["sentence1,sentence2,score", *(f"{a},{b},{len(b) % 6}" for a, b in PLAIN)],
        "questions.csv": ["query,answer", *(f"{a},{b}" for a, b in PLAIN)],
        "questions-words.txt": [": capitals", "paris france rome italy", "house home rome italy"],
        "ws353.txt": ["paris france 7.5", "rome italy 8", "house italy 1.5"],
        "men.txt": ["house home 40", "paris home 10", "rome house 20"],
        "shown.tsv": ["input\toutput", *(f"{i}\t{i + 1}" for i in range(9))],
        "only/scores/out.en": other[:9], "only/scores/out2.en": EN[1:10],
        "only/scores/other.en": other[:9], "only/scores/test.en": EN[:9],
        "only/scores/test.pt": PT[:9],
        **{f"only/scores/{name}.conll": [f"{word} {'B-PER' if word.istitle() else other}"
           for word in EN[0].split()] for name, other in (("test", "O"), ("tags", "I-PER"))},
        "only/from/fairseq/test.en": EN[:4], "only/from/fairseq/valid.de": other[:9],
        "only/from/fairseq/valid.en": EN[:9],
        "only/language-models/test.tsv": ["input\toutput", *(f"{i}\t{i + 1}" for i in range(3))],
    }.items():  # fmt: skip
        _lines(folder / name, lines)
    for name in ("corpus", "shakespeare", "more", "mine", "book", "other"):
        (folder / f"{name}.txt").write_text("\n\n".join(TEXT) + "\n")
    words = [[f"{i}\t{word}\t_\t{'NOUN' if i % 2 else 'VERB'}" for i, word in
              enumerate(line.split(), 1)] for line in EN]  # fmt: skip
    blocks = ["\n".join(row + "\t_" * 6 for row in block) for block in words]
    (folder / "train.conllu").write_text("\n\n".join(blocks) + "\n\n")
    asked = [{"id": str(i), "question": "Who is it?", "is_impossible": False,
              "answers": [{"text": line.split()[0], "answer_start": 0}]}
             for i, line in enumerate(EN)]  # fmt: skip
    texts = [{"context": line, "qas": [one]} for line, one in zip(EN, asked, strict=True)]
    squad = {"version": "v2.0", "data": [{"title": "all", "paragraphs": texts}]}
    for name in ("questions", "only/encoders/train-v2.0", "only/encoders/dev-v2.0"):
        (folder / f"{name}.json").write_text(json.dumps(squad))
    answers = Path(__file__).parents[2] / "course/transformer.py"
    (folder / "my.py").write_text(answers.read_text())
    rule = "def reward(prompt, answer):\n    return float(answer.count('a'))\n"
    for name in ("reward.py", "other.py"):
        (folder / name).write_text(rule)
    known = sorted({word.strip(".,?!").lower() for line in EN for word in line.split()} - {""})
    rows = np.random.default_rng(0).normal(size=(len(known), 16)).astype(np.float32)
    save_embeddings(WordEmbeddings(tuple(known), rows), folder / "vectors.bin", binary=True)


def _json_lines(folder: Path) -> None:
    user = [{"role": "user", "content": "Hi"}]
    chats = [{"messages": [*user, {"role": "assistant", "content": line}]} for line in EN[:20]]
    prompts = [{"prompt": f"{line} "} for line in EN[:20]]
    pairs = [{**row, "chosen": "a time", "rejected": "the bank"} for row in prompts]
    labels = [{**row, "completion": word, "label": word == "a time"}
              for row in prompts for word in ("a time", "the bank")]  # fmt: skip
    known = lambda line: [word for word in re.findall(r"\w+", line) if word in WORDS]
    words = [" ".join(known(line)) for line in EN if len(known(line)) > 2][:20]
    summaries = [{"source": f"{line} . It is so .", "target": line} for line in words]
    for name, rows in {
        "chats": chats, "only/chat/more": chats, "prompts": prompts, "pairs": pairs,
        "only/preferences/more": pairs, "labels": labels, "completions": labels[:4],
        "texts": summaries, "only/summarization/train": summaries,
        "only/summarization/test": summaries[:3], "only/summarization/more": summaries[:3],
    }.items():  # fmt: skip
        _lines(folder / f"{name}.jsonl", [json.dumps(row) for row in rows])


def _pictures(folder: Path) -> None:
    rows = []
    for i in range(24):
        picture, name = Image.new("RGB", (40 + i, 48), COLORS[i % 3]), f"{i}.png"
        for part in ("pictures", "test"):
            path = folder / part / COLORS[i % 3] / name
            path.parent.mkdir(parents=True, exist_ok=True)
            picture.save(path)
        rows.append((f"pictures/{COLORS[i % 3]}/{name}", f"it is {COLORS[i % 3]}"))
    for name in ("a.png", "b.png", "a.jpg", "picture.png"):
        Image.new("RGB", (50, 48), "red").save(folder / name)
    with (folder / "captions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("file_name", "caption"), *rows])
    table = [json.dumps({"file_name": name, "caption": text}) for name, text in rows[:4]]
    _lines(folder / "only" / "captions" / "test.jsonl", table)


def _recordings(folder: Path) -> None:
    folder.mkdir(parents=True)
    rng, rows = np.random.default_rng(0), []
    for i in range(12):
        samples = (1000 * rng.standard_normal(4000)).astype("<i2")
        with wave.open(str(folder / f"{i}.wav"), "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(16_000)
            out.writeframes(samples.tobytes())
        rows.append(f"{i}.wav\t{'yes' if i % 2 else 'no'}")
    shutil.copy(folder / "0.wav", folder / "a.wav")
    np.save(folder / "b.npy", rng.standard_normal((30, 80)).astype(np.float32))
    _lines(folder / "train.tsv", rows)
    _lines(folder / "test.tsv", rows[:3])


def _published(name: str, folder: Path) -> None:
    layouts.write(name, folder)
    if name.startswith("bert"):
        _tokenizer(folder, "wordpiece", BERT_SPECIAL)
    if name == "clip":
        _tokenizer(folder, "words", ("<pad>", "<|startoftext|>", "<|endoftext|>", "<unk>"))


def _tokenizer(folder: Path, kind: str, special: tuple[str, ...]) -> int:
    # Merges stop at the fewest ids that a layout has room for.
    room = 400 if kind == "bpe" else 97
    tokenizer = train_tokenizer(kind, [*TEXT, *EN], room, special=special)
    tokenizer.save(folder / "tokenizer.json")
    return tokenizer.vocab_size


def _decoder(folder: Path, layers: int, dense: bool = False, **fields: object) -> None:
    """GPT-2 (``dense``: learned positions, biases) or Llama, with the tokens of chats."""
    folder.mkdir(parents=True)
    size = _tokenizer(folder, "bpe", ("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    ends = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(ends | fields))
    dropouts = {"residual_dropout": 0.0, "placement": "pre"}
    config = TransformerConfig(
        vocab_size=size, d_model=16, encoder_layers=0, decoder_layers=layers,
        embedding=EmbeddingConfig(scale=1.0, dropout=0.0),
        positions=PositionConfig("learned" if dense else "rope", max_length=192),
        attention=AttentionConfig(num_heads=4, bias=dense, out_bias=dense),
        feed_forward=FeedForwardConfig(
            d_ff=32, activation="gelu_tanh" if dense else "silu", gated=not dense, bias=dense
        ),
        norm=NormConfig(**dropouts) if dense else NormConfig("rms", **dropouts),
        head=HeadConfig(tie_word_embeddings=True),
    )  # fmt: skip
    _, params = drawn(lambda: Decoder(config, rngs=nnx.Rngs(0)), spread=0.1)
    ids = {"bos_token_id": 0, "eos_token_id": 0}
    write_folder(folder, Model("decoder", config), jax.tree.map(np.asarray, params), ids=ids)


# Tiny models with random weights, in the layouts of those that pages name.
_CHATS = {"chat_template": named_template("chatml").text}
MODELS: dict[str, Callable[[Path], object]] = {
    "models/gpt2": partial(_decoder, layers=7, dense=True),
    "models/SmolLM2-135M": partial(_decoder, layers=2),
    "models/SmolLM2-135M-Instruct": partial(_decoder, layers=2, **_CHATS),
    "models/all-MiniLM-L6-v2": partial(_published, "bert_bare"),
    "models/bert-base-uncased": partial(_published, "bert"),
    "models/opus-mt-de-en": partial(published_translators.write, "marian", words=WORDS),
    "models/bart-base": partial(published_translators.write, "bart", words=WORDS),
    "models/t5-small": partial(published_translators.write, "t5", words=WORDS),
    "models/nllb-200-distilled-600M": partial(
        language_folders.write, "nllb", src_lang="eng_Latn", tgt_lang="deu_Latn"
    ),
    "models/m2m100_418M": partial(language_folders.write, "m2m100", src_lang="en", tgt_lang="de"),
    "models/vit": partial(_published, "vit"),
    "models/deit-tiny-distilled-patch16-224": partial(_published, "deit"),
    "models/clip-vit-base-patch32": partial(_published, "clip"),
}
