"""Published classifiers: of several labels a text, and those that are decoders (row B36)."""

import csv
import json
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.opened import load
from tests.parity import layouts
from transformer_jax.cli.classify import Classify
from transformer_jax.data.tokenizer import BERT_SPECIAL, train_tokenizer
from transformer_jax.interop.stablehlo import load_stablehlo

TEXTS = ["i sat on the bank of the river.", "i took cash to the bank.", "rivers ran; who ran?"]
DECODER = ("<s>", "<pad>", "</s>", "<unk>")


def frame(file, before, after):
    """Writes what a tokenizer puts around a text into its file."""
    fields = json.loads(file.read_text())
    ids = {token["content"]: token["id"] for token in fields["added_tokens"]}
    token = lambda name: {"SpecialToken": {"id": name, "type_id": 0}}
    single = [
        *map(token, before), {"Sequence": {"id": "A", "type_id": 0}}, *map(token, after)
    ]  # fmt: skip
    names = {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in (*before, *after)}
    fields["post_processor"] = {
        "type": "TemplateProcessing", "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": names,
    }  # fmt: skip
    file.write_text(json.dumps(fields))


@pytest.fixture
def published(tmp_path):
    def folder(name, *, before=(), after=(), **keys):
        path = layouts.write(name, tmp_path / name)
        special = BERT_SPECIAL if name.startswith(("bert", "electra")) else DECODER
        tokenizer = train_tokenizer("wordpiece", TEXTS * 3, 90, special=special)
        tokenizer.save(path / "tokenizer.json")
        if before or after:
            frame(path / "tokenizer.json", before, after)
        said = layouts.LAYOUTS[name]["config"] | keys
        (path / "config.json").write_text(json.dumps(said))
        return path

    return folder


def scores(folder, rows):
    """The scores of each row of ids; decoders get rows that end in one place."""
    (graph, params), _ = load(folder, kind=("encoder-task", "decoder-task"))
    width, left = max(map(len, rows)), not folder.name.startswith("bert")
    ids, real = np.zeros((len(rows), width), int), np.zeros((len(rows), width), bool)
    for i, row in enumerate(rows):
        where = slice(width - len(row), None) if left else slice(len(row))
        ids[i, where], real[i, where] = row, True
    tell = jax.jit(lambda params, *given: nnx.merge(graph, params)(*given))
    return list(np.asarray(tell(params, jnp.asarray(ids), jnp.asarray(real))))


def shares(values):
    """Independent probabilities."""
    return [1 / (1 + math.exp(-value)) for value in values.tolist()]


@pytest.mark.parametrize("name", ["bert_multi", "gpt2_multi"])
@pytest.mark.slow
def test_labels_of_a_text_have_probabilities_of_their_own(published, run_command, name):
    """Labels above the threshold, the likeliest first; all of them in their order on request."""
    names = {str(i): f"topic {i}" for i in range(4)}
    folder = published(name, id2label=names)
    _, tokenizer = load(folder, kind=("encoder-task", "decoder-task"))
    frames = ([tokenizer.bos], [tokenizer.eos]) if name == "bert_multi" else ([], [])
    rows = [[*frames[0], *tokenizer.encode(text), *frames[1]] for text in TEXTS]
    wanted = np.array([shares(row) for row in scores(folder, rows)])
    assert not np.allclose(wanted.sum(1), 1, atol=0.05)
    code, out, err = run_command("classify", folder, *TEXTS, "--all")
    assert code == 0, err
    assert out[0].split("\t") == list(names.values())
    found = np.array([[float(cell) for cell in line.split("\t")] for line in out[1:-1]])
    np.testing.assert_allclose(found, wanted, atol=6e-5)
    code, out, err = run_command("classify", folder, *TEXTS, "--threshold", "0.6")
    assert code == 0, err
    for row, line in zip(wanted, out, strict=False):
        shown = [i for i in np.argsort(-row) if row[i] >= 0.6]
        assert line.split("\t")[::2] == ([f"topic {i}" for i in shown] or [""])


@pytest.mark.slow
def test_a_table_gets_labels_above_the_threshold(published, run_command, tmp_path):
    folder = published("bert_multi", id2label={str(i): f"topic {i}" for i in range(4)})
    (tmp_path / "a.csv").write_text(
        "\n".join(["n,text", *(f'{n},"{t}"' for n, t in enumerate(TEXTS))])
    )
    table = ["--data", tmp_path / "a.csv", "--output", tmp_path / "b.csv"]
    code, out, err = run_command("classify", folder, *table, "--threshold", "0.6")
    assert (code, out) == (0, [""]), err
    _, lines, _ = run_command("classify", folder, *TEXTS, "--threshold", "0.6")
    with (tmp_path / "b.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    before = table[1].read_text()
    code, _, err = run_command("classify", folder, "--data", table[1], "--output", table[1])
    assert (code, table[1].read_text()) == (2, before)
    assert "this is --data: name another file" in err
    assert [row["predicted"].split(", ") for row in rows] == [
        line.split("\t")[::2] for line in lines[: len(TEXTS)]
    ]
    assert [*rows[0]] == [
        "n",
        "text",
        "predicted",
        *(f"probability of topic {i}" for i in range(4)),
    ]


@pytest.mark.parametrize(("flags", "message"), [
    (["--all", "--output", "a.csv"], "leave --all out"),
    (["--output", "a.json"], "--output a.json: the name ends in .csv"),
    (["--data", "a.csv", "text"], "--data a.csv: leave the other texts out"),
    (["--data.read.text", "a"], "--data.read.text: give --data too"),
    (["--data.read.header", "True"], "--data.read.header: give --data too"),
    (["--data.read.bad-rows", "skip"], "--data.read.bad-rows: give --data too"),
])  # fmt: skip
def test_flags_of_a_table_are_for_a_table(flags, message, run_command, tmp_path):
    code, _, err = run_command("classify", tmp_path, *flags)
    assert (code, message in err) == (2, True), err


@pytest.mark.slow
def test_how_published_classifiers_were_trained_is_not_told(published, run_command):
    code, _, err = run_command("classify", published("bert_multi"), "bank " * 99)
    assert code == 0
    assert re.fullmatch(r"note: 1 text truncated to \d+ tokens\n", err)


@pytest.mark.parametrize(("flags", "wanted"), [
    ({}, ["b", "0.9000", "c", "0.5000"]), ({"threshold": 0.6}, ["b", "0.9000"]),
    ({"threshold": 0.95}, []), ({"threshold": 0.0}, ["b", "0.9000", "c", "0.5000", "a", "0.2000"]),
    ({"all": True}, ["0.2000", "0.9000", "0.5000"]),
], ids=str)  # fmt: skip
def test_labels_above_the_threshold_are_shown(flags, wanted):
    row = np.array([0.2, 0.9, 0.5], np.float32)
    assert Classify(Path("run"), **flags).cells("multi_label", "abc", row) == wanted


@pytest.mark.parametrize(("before", "after"), [
    ((), ()), (("<s>",), ("</s>",)), pytest.param(("<s>",), (), marks=pytest.mark.slow),
])  # fmt: skip
@pytest.mark.slow
def test_a_decoder_reads_what_its_tokenizer_puts_around_a_text(
    published, run_command, before, after
):
    """Nothing more, in batches of texts of many lengths, padded."""
    folder = published("llama_cls", before=before, after=after)
    _, tokenizer = load(folder, kind="decoder-task")
    ids = {"<s>": 0, "</s>": 2}
    around = [ids[n] for n in before], [ids[n] for n in after]
    rows = [[*around[0], *tokenizer.encode(text), *around[1]] for text in TEXTS]
    code, out, err = run_command("classify", folder, *TEXTS, "--all")
    assert code == 0, err
    for row, line in zip(scores(folder, rows), out[1:], strict=False):
        exact = np.exp(row - row.max())
        label, share, *every = line.split("\t")
        assert label == f"LABEL_{row.argmax()}"
        np.testing.assert_allclose([float(cell) for cell in every], exact / exact.sum(), atol=6e-5)
        assert float(share) == max(float(cell) for cell in every)


@pytest.mark.slow
def test_padding_at_the_end_of_a_text_is_not_its_last_token(published, run_command):
    """If padding is the end token, transformers reads the token before."""
    ended = published("llama_cls", after=("</s>",), pad_token_id=2)
    found = run_command("classify", ended, *TEXTS, "--all")
    plain = published("llama_cls")
    assert run_command("classify", plain, *TEXTS, "--all")[1] == found[1]
    other = published("llama_cls", after=("</s>",))
    assert run_command("classify", other, *TEXTS, "--all")[1] != found[1]


@pytest.mark.slow
def test_a_decoder_may_tell_numbers(published, run_command):
    folder = published("qwen3_number")
    _, tokenizer = load(folder, kind="decoder-task")
    code, out, err = run_command("classify", folder, *TEXTS)
    assert code == 0, err
    wanted = [row[0] for row in scores(folder, [tokenizer.encode(text) for text in TEXTS])]
    assert [float(line) for line in out[:-1]] == pytest.approx(wanted, abs=6e-5)


@pytest.mark.parametrize(
    "name", ["bert_multi", "llama_cls", *(pytest.param(n, marks=pytest.mark.slow)
                                          for n in ("gpt2_multi", "gemma2_cls"))]
)  # fmt: skip
@pytest.mark.slow
def test_the_way_there_and_back(published, tmp_path, run_command, name):
    """A run gives the same labels, and is exported unchanged."""
    folder, run, back = published(name), tmp_path / "run", tmp_path / "back"
    assert run_command("convert", folder, run)[0] == 0
    assert run_command("export", run, back)[0] == 0
    told = [run_command("classify", path, *TEXTS)[:2] for path in (folder, run)]
    assert told[0] == told[1]
    assert told[0][0] == 0
    files = [(path / "model.safetensors").read_bytes() for path in (folder, back)]
    assert files[0] == files[1]
    assert run_command("verify", folder)[0] == 0


@pytest.mark.parametrize(
    "name", ["bert_multi", "gpt2_multi", "llama_cls", "electra", "electra_mlm", "t5_encoder"]
)
def test_all_parameters_are_described(published, run_command, name):
    """Neither a classifier nor an encoder has a head over the vocabulary that writes."""
    code, out, err = run_command("describe", published(name))
    assert code == 0, err
    count = sum(math.prod(shape) for shape in layouts.LAYOUTS[name]["tensors"].values())
    assert f" {count:,} parameters" in out[0]
    said = "\n".join(out)
    assert "logits" not in said
    assert "decoding  " not in said
    if name in ("bert_multi", "gpt2_multi", "llama_cls", "electra"):
        assert re.search(
            r"^The heads of this model, [0-9,]+ parameters, not counted above:$", said, re.M
        )
        assert re.search(r"labels/kernel +32×\d", said)
    if name.startswith("electra"):
        assert "linear  20 → 32" in said
        assert "embedding  97 × 20" in said
        assert re.search(r"encoder/projection +20×32, 32 +672 ", said)


@pytest.mark.slow
def test_the_discriminator_tells_words_that_are_replaced(published, run_command):
    """By the first token of each; nothing but 0 divides the two."""
    folder = published("electra")
    (graph, params), tokenizer = load(folder, kind="encoder-task")
    code, out, err = run_command("tag", folder, TEXTS[1], "--columns")
    assert code == 0, err
    words = TEXTS[1].split()
    pieces = [tokenizer.encode(word) for word in words]
    row = [tokenizer.bos, *(id for ids in pieces for id in ids), tokenizer.eos]
    scores = jax.jit(lambda p, *given: nnx.merge(graph, p)(*given))(
        params, jnp.array([row]), jnp.array([len(row)])
    )[0, :, 0]
    at = 1
    for word, ids, line in zip(words, pieces, out, strict=False):
        score, (name, tag, share) = float(scores[at]), line.split("\t")
        assert (name, tag) == (word, "replaced" if score > 0 else "original")
        assert float(share) == pytest.approx(1 / (1 + math.exp(-abs(score))), abs=6e-5)
        at += len(ids)


@pytest.mark.parametrize(("name", "words", "said"), [
    ("llama_cls", ["generate", "{}", "the"], "a fine-tuned decoder, which this command does not"),
        ("llama_cls", ["classify", "{}", "a", ""], "text 2 is empty, and this model adds no"),
    ("llama_cls", ["classify", "{}", "a", "--threshold", "0.5"], "predicts one class: leave"),
    ("qwen3_number", ["classify", "{}", "a", "--threshold", "0"], "predicts a number: leave"),
    ("bert_multi", ["classify", "{}", "a", "--threshold", "1.5"], "--threshold is 1.5: at most 1"),
    ("bert_multi", ["classify", "{}", "a", "--threshold", "nan"], "--threshold is nan: at least 0"),
    ("bert_multi", ["classify", "{}", "a", "--threshold", "0", "--all"], "leave --threshold out"),
    ("bert_multi", ["tag", "{}", "a"], "a head for labels and none for tags"),
    ("llama_cls", ["export", "{}", "{}_", "--format", "ctranslate2"], "it is a classifier, whose"),
    ("llama_cls", ["export", "{}", "{}_", "--format", "stablehlo", "--length", "3"], "leave --len"),
], ids=lambda value: value if isinstance(value, str) else value[0])  # fmt: skip
def test_a_mistake_is_one_line(published, run_command, name, words, said):
    folder = published(name)
    code, _, err = run_command(*[word.replace("{}", str(folder)) for word in words])
    assert code in (2, 3), err
    assert said in err
    assert "Traceback" not in err
    assert err.count("error:") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama_cls", "electra"])
def test_programs_tell_the_same(published, tmp_path, run_command, name):
    """Exported as StableHLO, from tokens and lengths to scores."""
    pytest.importorskip("flatbuffers")
    folder, out = published(name), tmp_path / "out"
    assert run_command("export", folder, out, "--format", "stablehlo")[0] == 0
    (graph, params), _ = load(folder, kind=("encoder-task", "decoder-task"))
    tokens, lengths = jnp.arange(5, 25).reshape(2, 10), jnp.array([10, 6])
    given = {"tokens": tokens, "lengths": lengths}
    if name == "electra":
        given["types"] = jnp.zeros_like(tokens)
    found = load_stablehlo(out).forward(**given)["scores"]
    wanted = jax.jit(lambda p: nnx.merge(graph, p)(tokens, lengths))(params)
    real = (jnp.arange(10)[None] < lengths[:, None]) if name == "electra" else slice(None)
    np.testing.assert_allclose(found[real], wanted[real], atol=1e-5)
