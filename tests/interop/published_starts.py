"""Tiny published models of every layout with a tokenizer, and commands that train from them.

The commands do all that comes before the first step: they read data, check the start and write the
run directory.
"""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from flax import nnx
from PIL import Image
from tokenizers.processors import TemplateProcessing

from tests.parity import layouts
from tests.parity.layouts import LAYOUTS
from transformer_jax.cli.main import main
from transformer_jax.core.trees import flatten_dict, unflatten_dict
from transformer_jax.inference.pretrained import abstract_model, facts_of
from transformer_jax.interop.hf_run_directory import save_converted
from transformer_jax.recipes import driver
from transformer_jax.runs.run_directory import RunDirectory

WORDS = ["um", "dois", "três", "a", "b", "c", ":", "summarize", "user", "assistant", "\n"]
ROLES = ("pad", "bos", "eos")
ENCODERS = ("bert", "roberta", "camembert", "distilbert", "electra", "mpnet", "modernbert")
ENCODER_DECODERS = ("bart", "mbart", "m2m_100", "marian", "pegasus", "t5")


def write(layout: str, folder: Path) -> Path:
    """Writes a folder of a layout, with a tokenizer of :data:`WORDS` if it reads text."""
    layouts.write(layout, folder)
    fields = layouts.LAYOUTS[layout]["config"]
    texts = fields.get("text_config") or fields.get("decoder") or fields
    if texts.get("vocab_size"):
        _write_tokenizer(folder, fields, texts)
    return folder


def _write_tokenizer(folder, fields, texts):
    size, kind = texts["vocab_size"], fields["model_type"]
    given = {role: texts.get(f"{role}_token_id") for role in ROLES}
    taken = {id for id in given.values() if isinstance(id, int) and id < size}
    free = iter(id for id in range(size) if id not in taken)
    tokens: dict[str, int] = {}
    for role in (*ROLES, "unk", "mask"):
        id = given.get(role)
        known = isinstance(id, int) and 0 <= id < size
        if known and id in tokens.values():
            continue
        tokens[f"<{role}>"] = id if known else next(free)
    words = [*WORDS, *(f"<extra_id_{i}>" for i in range(4)), *(f"w{i}" for i in range(size))]
    vocab = tokens | dict(zip(words, free, strict=False))
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens([*tokens, *(f"<extra_id_{i}>" for i in range(4))])
    around = "$A <eos>" if kind in ENCODER_DECODERS else "<bos> $A <eos>"
    if kind in (*ENCODERS, *ENCODER_DECODERS, "clip", "siglip"):
        made.post_processor = TemplateProcessing(
            single=around,
            pair=f"{around} $B <eos>",
            special_tokens=[(name, id) for name, id in tokens.items() if name in around],
        )
    made.save(str(folder / "tokenizer.json"))
    said = {f"{name[1:-1]}_token": name for name in tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))


def write_data(folder: Path) -> Path:
    """Writes a small file for each command."""
    folder.mkdir(parents=True)
    lines = [f"{a} {b} {c}" for a in "abc" for b in ("um", "dois") for c in ("a", "c", "três")]
    (folder / "text.txt").write_text("\n\n".join(lines))
    (folder / "pairs.tsv").write_text("".join(f"{one}\t{one}\n" for one in lines))

    def table(name, head, rows):
        text = "\n".join("\t".join(map(str, row)) for row in (head, *rows))
        (folder / name).write_text(text + "\n")

    table("classify.tsv", ("text", "label"), [(one, "xy"[i % 2]) for i, one in enumerate(lines)])
    table(
        "pair.tsv",
        ("text", "second", "label"),
        [(one, one, "xy"[i % 2]) for i, one in enumerate(lines)],
    )
    table("regress.tsv", ("text", "label"), [(one, i / 4) for i, one in enumerate(lines)])
    tagged = [
        "".join(f"{word}\t{'XY'[i % 2]}\n" for i, word in enumerate(one.split())) for one in lines
    ]
    (folder / "tag.conll").write_text("\n".join(tagged))

    def rows(name, found):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in found))

    paragraphs = [
        {"context": one, "qas": [{"id": str(i), "question": "a ?", "answers": [
            {"text": one.split()[1], "answer_start": 2}]}]}
        for i, one in enumerate(lines)
    ]  # fmt: skip
    (folder / "qa.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    rows("summarize.jsonl", [{"source": one, "target": "a b"} for one in lines])
    rows("pairs.jsonl", [{"prompt": one, "chosen": " a", "rejected": " b"} for one in lines])
    rows(
        "kto.jsonl",
        [{"prompt": one, "completion": " a", "label": i % 2 == 0} for i, one in enumerate(lines)],
    )
    chat = lambda one: [{"role": "user", "content": one}, {"role": "assistant", "content": "a"}]
    rows("chats.jsonl", [{"messages": chat(one)} for one in lines])
    (folder / "reward.py").write_text("def reward(p, c):\n    return c.count('a')\n")
    for i in range(8):
        color = "red" if i % 2 else "blue"
        (folder / "pictures" / color).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (30 * i, 0, 9)).save(folder / "pictures" / color / f"{i}.png")
    with (folder / "captions.csv").open("w", newline="") as file:
        captions = [(f"pictures/{'red' if i % 2 else 'blue'}/{i}.png", f"a {i}") for i in range(8)]
        csv.writer(file).writerows([("file_name", "caption"), *captions])
    return folder


_TEXT = "--data.text {data}/text.txt --data.read.documents blank"
_LENGTH = "--training.sequence-length 16"
_ALIGN = "--align.max-length 16 --first eos"
_SAMPLES = (
    "--data.train {data}/pairs.jsonl --align.max-prompt-length 8 --align.max-new-tokens 4 "
    "--align.group-size 2 --align.updates 1 --training.batch-size 2 "
    "--reward.file {data}/reward.py --first eos"
)
LABELED = {
    f"finetune {kind}": f"finetune {kind} --data.train {{data}}/{file} --task.max-length 16"
    for kind, file in {
        "classify": "classify.tsv", "pair": "pair.tsv",
        "regress": "regress.tsv", "tag": "tag.conll", "qa": "qa.json",
    }.items()
}  # fmt: skip
COMMANDS = {
    **LABELED,
    "masked LM": f"pretrain small {_TEXT} --training.sequence-length 12",
    "causal LM": f"train char-cpu {_TEXT} {_LENGTH} --training.batch-size 2 --evaluation.sample 0",
    "instruct": "instruct sft-cpu --data.train {data}/chats.jsonl --chat.template chatml "
    + _LENGTH,
    "reward": f"align reward --data.train {{data}}/pairs.jsonl {_ALIGN}",
    "dpo": f"align dpo --data.train {{data}}/pairs.jsonl {_ALIGN}",
    "kto": f"align kto --data.train {{data}}/kto.jsonl {_ALIGN}",
    "simpo": f"align simpo --data.train {{data}}/pairs.jsonl {_ALIGN}",
    "grpo": f"align grpo {_SAMPLES}",
    "ppo": f"align ppo {_SAMPLES}",
    "summarize": "finetune summarize --data.train {data}/summarize.jsonl --data.read.max-length 16",
    "translate": "train small --data.pairs {data}/pairs.tsv --data.read.max-length 16",
    "denoise": f"pretrain bart-mini {_TEXT} {_LENGTH}",
    "images": "train vit --data.images {data}/pictures",
    "clip": "train clip --data.images {data} --training.batch-size 2",
    "captions": f"train captions --data.images {{data}} {_LENGTH}",
}


_ENCODER = (*LABELED, "masked LM")
_DECODER = (
    "finetune classify", "finetune pair", "finetune regress", "causal LM", "instruct", "reward",
    "dpo", "kto", "simpo", "grpo", "ppo",
)  # fmt: skip
_CLASSIFIER = _DECODER[:3]
_WAYS = {
    **dict.fromkeys(ENCODERS, _ENCODER),
    **dict.fromkeys(ENCODER_DECODERS, ("summarize", "translate", "denoise")),
    **dict.fromkeys(("vit", "deit"), ("images",)),
    **dict.fromkeys(("clip", "siglip"), ("clip",)),
    "vision-encoder-decoder": ("captions",),
}


def _ways(layout: str) -> tuple[str, ...]:
    """Returns the commands that train from a layout."""
    fields = LAYOUTS[layout]["config"]
    [name] = fields["architectures"]
    if name == "T5EncoderModel":
        return _ENCODER
    if fields["model_type"] not in _WAYS:
        more = ("captions",) if fields["model_type"] == "gpt2" else ()
        return _CLASSIFIER if name.endswith("Classification") else (*_DECODER, *more)
    return _WAYS[fields["model_type"]]


# Each layout with each command that trains from it.
CELLS = [(layout, command) for layout in LAYOUTS for command in _ways(layout)]


def refusal(layout: str, command: str) -> str | None:
    """Returns a pattern of the refusal of a cell; None if its runs are exported."""
    if layout == "t5_encoder":
        return "the trained model could not be exported: .*t5 has"
    return None


def begin(layout: str, command: str, start: Path | None, data: Path, run: Path, *more: str) -> int:
    """Runs a command up to the first step; returns its exit code."""
    words = [word.format(data=data) for word in COMMANDS[command].split()]
    labeled = command in LABELED or command == "images"
    if labeled and LAYOUTS[layout]["config"]["architectures"][0].endswith(_HEADS):
        words.append("--reinit-head")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "train", lambda *_: 0)
        where = ["--output", str(run), *([] if start is None else ["--init-from", str(start)])]
        return main([*words, *more, *where, "--distributed.num-local-devices", "1"])


_HEADS = ("Classification", "QuestionAnswering", "WithTeacher", "ElectraForPreTraining")


def draw_parameters(run: Path) -> None:
    """Saves random parameters as the checkpoint of a run that has begun."""
    directory = RunDirectory.open(run)
    model = abstract_model(facts_of(directory))
    state = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    names = flatten_dict(state)
    leaves = {name: _drawn(name, leaf.shape) for name, leaf in names.items()}
    save_converted(directory, unflatten_dict(leaves), {})


def _drawn(name, shape):
    noise = 0.15 * layouts.random(name).standard_normal(shape)
    return np.asarray(noise + name.endswith("gain"), np.float32)
