"""Commands for encoders: rows B3, B36, H18, H21, H23, T16, U13."""

import dataclasses
import json
import re
from collections import Counter

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

import transformer_jax as tj
from tests.drawing import drawn
from tests.opened import load
from transformer_jax.data.preparation import Preparation
from transformer_jax.data.tokenizer import BERT_SPECIAL, train_tokenizer
from transformer_jax.inference.encoding.masked import MaskFiller
from transformer_jax.inference.encoding.task_runner import AnswerSpan, TaskRunner
from transformer_jax.inference.encoding.vectors import Embedder
from transformer_jax.models.config import AttentionConfig
from transformer_jax.models.heads import EncoderForMaskedLM, SequenceClassifier, TokenClassifier
from transformer_jax.models.presets import bert
from transformer_jax.runs.checkpoint import Checkpointer
from transformer_jax.runs.run_directory import RunDirectory
from transformer_jax.training.state import TrainState

TEXT = ["i sat on the bank of the river.", "i took cash to the bank.", "rivers ran; who ran?"]
TOKENIZER = train_tokenizer("wordpiece", TEXT * 3, 90, special=BERT_SPECIAL)
CONFIG = dataclasses.replace(
    bert(16, 2, vocab_size=TOKENIZER.vocab_size, max_length=32, dropout=0.0),
    attention=AttentionConfig(num_heads=2),
)
LOWER = {"read": {"lowercase": True}}
TASKS = {
    "classify": (SequenceClassifier, 3, ["bad", "good", "so-so"]),
    "pair": (SequenceClassifier, 2, ["no", "yes"]),
    "regress": (SequenceClassifier, 1, []),
    "tag": (TokenClassifier, 3, ["DET", "NOUN", "VERB"]),
    "qa": (TokenClassifier, 2, ["none"]),
}


def save(folder, make, fields):
    """A run of something that has learnt nothing, but is far from uniform."""
    run = RunDirectory.create(folder)
    TOKENIZER.save(run.tokenizer)
    run.write(run.config, {"model": dataclasses.asdict(CONFIG), "data": LOWER, **fields})
    checkpointer = Checkpointer(run.checkpoints)
    checkpointer.save(7, TrainState(np.int32(7), drawn(make)[1], {}))
    checkpointer.wait()
    checkpointer.close()
    return run.path


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    fields = {
        "masking": {"mlm_probability": 0.15, "sentence_objective": "nsp"},
        "training": {"sequence_length": 16},
    }
    model = lambda: EncoderForMaskedLM(CONFIG, rngs=nnx.Rngs(0))
    return save(tmp_path_factory.mktemp("runs") / "pretrained", model, fields)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """The run of each task, made when first asked for."""
    made = {}

    def run_of(kind):
        if kind not in made:
            model, size, labels = TASKS[kind]
            task = {
                "kind": kind,
                "labels": labels,
                "max_length": 24,
                "doc_stride": 4,
                "init_from": "runs/a",
            }
            folder = tmp_path_factory.mktemp("runs") / kind
            net = lambda: model(CONFIG, labels=size, rngs=nnx.Rngs(1))
            made[kind] = save(folder, net, {"task": task})
        return made[kind]

    return run_of


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("\n".join([*TEXT, "", "The bank. " * 20]) + "\n")
    return path


def tsv(rows):
    return [row.split("\t") for row in rows if row]


def mistake(found):
    """The code and the only line of a command that ends with a mistake."""
    code, out, err = found
    assert out == [""]
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return code, err


# fill-mask


def test_fill_mask_prints_the_likeliest_words(pretrained, run_command):
    """H18."""
    code, out, err = run_command("fill-mask", pretrained, "The [MASK] of [MASK]", "--top", 3)
    assert (code, err) == (0, "")
    head, *rows = tsv(out)
    assert head == ["line", "mask", "word", "probability"]
    assert [row[:2] for row in rows] == [["1", "1"]] * 3 + [["1", "2"]] * 3
    [masks] = MaskFiller(*load(pretrained, kind="encoder"))(["the [MASK] of [MASK]"], top=3)
    wanted = [[word.text, f"{word.probability:.4f}"] for words in masks for word in words]
    assert [row[2:] for row in rows] == wanted


@pytest.mark.slow
def test_fill_mask_reads_pipes(pretrained, run_command):
    text = "The [MASK] of [MASK]"
    found = run_command("fill-mask", pretrained, text, "--top", 3)
    assert run_command("fill-mask", pretrained, "--top", 3, text=f"{text}\n") == found


@pytest.mark.parametrize(
    ("arguments", "text", "code", "says"),
    [
        (["the dog"], "", 3, "text 1 has no [MASK]: put it in place of a word"),
        ([], "[MASK] ran\nran\n", 3, "<stdin>:2 has no [MASK]"),
        (["bank " * 30 + "[MASK]"], "", 3, "tokens: at most 16 are possible: shorten it"),
        (["[MASK]", "--top", "0"], "", 2, "--top is 0: at least 1"),
        (["[MASK]", "--top", "5000"], "", 2, "top is 5000: from 1 to"),
    ],
)
def test_fill_mask_says_what_it_needs(pretrained, run_command, arguments, text, code, says):
    found, err = mistake(run_command("fill-mask", pretrained, *arguments, text=text))
    assert found == code
    assert says in err


MESH = ("--mesh.data", "2", "--mesh.fsdp", "2", "--mesh.tensor", "2")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "kind", "more"),
    [
        ("fill-mask", None, ("The [MASK] of [MASK]",)),
        ("embed", None, ("-",)),
        ("classify", "classify", ("--all",)),
        ("classify", "regress", ()),
        ("tag", "tag", ()),
    ],
)
def test_commands_on_a_mesh_write_what_one_device_does(
    pretrained, tasks, run_command, tmp_path, command, kind, more
):
    run = tasks(kind) if kind else pretrained
    text = "" if command == "fill-mask" else "".join(f"{line}\n" for line in TEXT)
    found = []
    for name, flags in (("one", ()), ("all", MESH)):
        files = ("--output", tmp_path / f"{name}.npz") if command == "embed" else ()
        code, out, err = run_command(command, run, *more, *files, *flags, text=text)
        assert code == 0, err
        if files:
            found.append((np.load(tmp_path / f"{name}.npz")["vectors"].ravel(), []))
        else:
            words = re.split(r"[\t ]", "\t".join(out))
            number = lambda word: re.fullmatch(r"-?\d+\.\d+", word)
            found.append(
                ([float(w) for w in words if number(w)], [w for w in words if not number(w)])
            )
    np.testing.assert_allclose(found[0][0], found[1][0], atol=2e-4)
    assert found[0][1] == found[1][1]


# Fine-tuned encoders


def test_classify_is_line_by_line(tasks, run_command):
    """B36, T16."""
    code, out, err = run_command("classify", tasks("classify"), "--all", text="I sat\n\nrivers\n")
    assert (code, err) == (0, "")
    head, *rows = tsv(out)
    labels = TASKS["classify"][2]
    assert head == ["label", "probability", *labels]
    model, tokenizer = load(tasks("classify"), kind="encoder-task")
    wanted = TaskRunner(model, tokenizer, kind="classify", length=24).classes(
        ["i sat", "", "rivers"]
    )
    for row, shares in zip(rows, wanted, strict=True):
        assert row[:2] == [labels[shares.argmax()], f"{shares.max():.4f}"]
        assert row[2:] == [f"{share:.4f}" for share in shares]
    short = run_command("classify", tasks("classify"), "I sat", "", "rivers")
    assert short == (0, ["\t".join(row[:2]) for row in rows] + [""], "")


@pytest.mark.slow
def test_pairs_and_numbers(tasks, run_command):
    code, out, _ = run_command("classify", tasks("pair"), text="i sat\tto the bank\ni\tran\n")
    assert code == 0
    assert [row[0] in TASKS["pair"][2] for row in tsv(out)] == [True, True]
    code, out, _ = run_command("classify", tasks("regress"), "i sat")
    assert code == 0
    assert re.fullmatch(r"-?\d+\.\d{4}", out[0])
    code, err = mistake(run_command("classify", tasks("pair"), text="i sat\n"))
    assert code == 3
    assert "<stdin>:1: 0 tabs: this run reads pairs" in err
    code, err = mistake(run_command("classify", tasks("regress"), "--all", "i sat"))
    assert code == 2
    assert "--all is for classes" in err


def test_evaluate_reads_other_columns(tasks, run_command, tmp_path):
    (tmp_path / "a.tsv").write_text("review\tmood\ni sat\tbad\nthe bank\tgood\n")
    data = ["--data", tmp_path / "a.tsv"]
    columns = ["--data.read.text", "review", "--data.read.label", "mood"]
    code, out, _ = run_command("evaluate", tasks("classify"), *data, *columns)
    assert code == 0
    assert out[0].split()[:2] == ["data", "accuracy"]
    code, err = mistake(run_command("evaluate", tasks("classify"), *columns))
    assert (code, "--data.read.text: give --data too" in err) == (2, True)
    (tmp_path / "a.tsv").write_text("text\tlabel\ni sat\tbad\nthe bank\tx\n")
    code, out, err = run_command("evaluate", tasks("classify"), *data)
    assert code == 3
    assert "a.tsv:3: the label 'x' is not among the training labels" in err


def test_an_export_reads_the_second_text_of_a_pair_as_the_run_does(tasks, run_command, tmp_path):
    assert run_command("export", tasks("pair"), tmp_path / "out")[0] == 0
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert settings["model_input_names"] == ["input_ids", "token_type_ids", "attention_mask"]


@pytest.mark.parity
@pytest.mark.slow
def test_transformers_gives_an_exported_pair_the_probability_of_the_run(
    tasks, run_command, tmp_path
):
    transformers = pytest.importorskip("transformers")
    run_command("export", tasks("pair"), tmp_path / "out")
    _, out, _ = run_command("classify", tasks("pair"), "--all", text="i sat\tto the bank\n")
    theirs = transformers.pipeline("text-classification", str(tmp_path / "out"), top_k=None)
    scores = theirs({"text": "i sat", "text_pair": "to the bank"})
    probabilities = {one["label"]: one["score"] for one in scores}
    ours = dict(zip(TASKS["pair"][2], map(float, tsv(out)[1][2:]), strict=True))
    assert probabilities == pytest.approx(ours, abs=1e-4)


def test_tag_keeps_every_word(tasks, run_command):
    """B36."""
    long = " ".join(["rivers"] * 40)
    code, out, err = run_command("tag", tasks("tag"), text=f"The  Bank ran\n\n{long}\n")
    assert (code, err) == (0, "")
    words = [[pair.rsplit("/", 1) for pair in line.split()] for line in out]
    assert [[word for word, _ in row] for row in words] == [
        ["The", "Bank", "ran"], [], ["rivers"] * 40, [],
    ]  # fmt: skip
    assert {tag for row in words for _, tag in row} <= set(TASKS["tag"][2])
    code, columns, _ = run_command("tag", tasks("tag"), "--columns", "The  Bank ran")
    assert [row.split("\t")[:2] for row in columns[:3]] == words[0]
    assert columns[3:] == ["", ""]


def test_answer_is_a_piece_of_the_text(tasks, run_command, tmp_path):
    context = tmp_path / "context.txt"
    context.write_text("I sat on the Bank\nof the river. " * 3)
    command = ("answer", tasks("qa"), "who ran", "Who sat", "--context", context)
    code, out, err = run_command(*command, "--top", 4)
    assert code == 0
    head, *rows = tsv(out)
    assert head == ["question", "answer", "score", "start"]
    assert [row[0] for row in rows] == ["1"] * 4 + ["2"] * 4
    flat = context.read_text().replace("\n", " ")
    for _, said, score, start in rows:
        if start == "-1":
            assert (said, score) == ("(no answer)", "0.0000")
        else:
            assert flat[int(start) :].startswith(said)
            assert said
    nothing = [row for row in (rows[0], rows[4]) if row[3] == "-1"]
    assert ("no answer" in err) == bool(nothing)
    scores = [float(row[2]) for row in rows[:4]]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([-1], "note: the question has no answer in this text"),
        ([-1, 3, 5], "note: 1 of 3 questions has no answer"),
        ([-1, 3, -1], "note: 2 of 3 questions have no answer"),
        ([3], ""),
    ],
    ids=str,
)
def test_questions_without_an_answer_are_counted(monkeypatch, run_command, tmp_path, found, said):
    (tmp_path / "text").write_text("I sat on the bank of the river.")
    answers = lambda *_, **how: [[AnswerSpan("a", start, 1.0)] for start in found]
    predictor = type("TaskRunner", (), {"answers": staticmethod(answers), "counts": Counter()})
    facts = type("Facts", (), {"preparation": Preparation()})
    for name, result in {
        "pretrained.read_facts": facts,
        "pretrained.Pretrained.load": None,
        "encoders.check_task": None,
        "encoders.task_runner": predictor,
    }.items():
        monkeypatch.setattr(f"transformer_jax.inference.{name}", lambda *_, result=result: result)
    questions = ["who"] * len(found)
    code, _, err = run_command("answer", tmp_path, *questions, "--context", tmp_path / "text")
    assert code == 0
    assert err.startswith(said)
    assert bool(err) == bool(said)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["who"], 2, "--context is missing"),
        (["who", "--context", "none"], 3, "--context none: no such file"),
        (["who", "--context", "-", "--top", "0"], 2, "--top is 0: at least 1"),
        (["--context", "-"], 2, "give the questions as arguments"),
        (["who", "--context", "-"], 3, "no text: it is empty"),
    ],
)
def test_answer_says_what_it_needs(tasks, run_command, arguments, code, says):
    found, err = mistake(run_command("answer", tasks("qa"), *arguments))
    assert found == code
    assert says in err


# embed and similar


def test_embed_writes_what_vectors_are(pretrained, run_command, lines, tmp_path):
    """B36, H21: in blocks as whole, in both kinds of files, from a file as from a pipe."""
    how = ("--pool", "none", "--layers", "all")
    code, out, err = run_command(
        "embed", pretrained, lines, *how, "--buffer-size", 2, "--output", tmp_path / "a.npz"
    )
    assert (code, out) == (0, [""])
    assert err.startswith(f"wrote {tmp_path / 'a.npz'}: vectors ")
    assert err.endswith(" of 5 lines, 1 of them truncated to 16 tokens\n")
    run_command(
        "embed", pretrained, "-", *how, "--output", tmp_path / "a.safetensors",
        text=lines.read_bytes(),
    )  # fmt: skip
    found = dict(np.load(tmp_path / "a.npz"))
    other = load_file(tmp_path / "a.safetensors")
    assert found.keys() == other.keys()
    for name, array in found.items():
        np.testing.assert_allclose(other[name], array, atol=1e-5)
    vectors = Embedder(*load(pretrained, kind="encoder"), length=16)
    [block] = vectors.embed([*TEXT, "", "the bank. " * 20], layers="all", pool="none")
    np.testing.assert_allclose(found["vectors"], block.vectors, atol=1e-5)
    assert found["vectors"].shape[1:] == (3, 16)
    assert found["offsets"].tolist() == [0, *np.cumsum(block.lengths)]
    assert found["ids"].tolist() == block.ids.tolist()


def test_similar_finds_the_line_itself_first(pretrained, run_command, lines):
    lines.write_text(lines.read_text() + TEXT[1] + "\n")
    code, out, err = run_command("semantic-search", pretrained, lines, TEXT[1].upper(), "--top", 4)
    assert code == 0
    head, *rows = tsv(out)
    assert head == ["cosine", "line", "text"]
    assert sorted(row[:2] for row in rows[:2]) == [["1.0000", "2"], ["1.0000", "6"]]
    assert [row[2] for row in rows[:2]] == [TEXT[1]] * 2
    cosines = [float(row[0]) for row in rows]
    assert cosines == sorted(cosines, reverse=True)
    assert len(rows) == 4
    assert "1 of 5 lines truncated" in err


# words, attention, probe


@pytest.mark.slow
def test_words_shows_one_static_and_many_contextual_vectors(pretrained, run_command, tmp_path):
    """B3."""
    page = tmp_path / "page.html"
    code, out, err = run_command(
        "word-vectors",
        pretrained,
        "bank",
        "I sat on the bank of the river.",
        TEXT[1],
        "--output",
        page,
    )
    assert (code, err) == (0, f"wrote {page}\n")
    table = {row[:7].strip(): float(row[7:]) for row in out[1:5]}
    assert list(table) == ["static", "layer 0", "layer 1", "layer 2"]
    assert table["static"] == 1
    assert all(value < 1 for name, value in table.items() if name != "static")
    assert [out[6], out[8]] == [f"1  {TEXT[0]}", f"2  {TEXT[1]}"]
    assert out[7].startswith("   reads ")
    text = page.read_text()
    assert "<b>bank</b>" in text
    assert "river" in text
    assert not re.search(r"__[A-Z]+__|https?://", text)


def test_attention_of_an_encoder(pretrained, tasks, run_command, tmp_path):
    """U13."""
    page = tmp_path / "map.html"
    code, out, _ = run_command("attention", pretrained, "I ran", "--json", "--output", page)
    assert (code, out) == (0, [""])
    said = json.loads(page.with_suffix(".json").read_text())["encoder"]
    assert said["rows"] == said["columns"] == ["[CLS]", "i", "ran", "[SEP]"]
    weights = np.array(said["weights"])
    assert weights.shape == (2, 2, 4, 4)
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-5)
    code, err = mistake(run_command("attention", pretrained, "i ran", "--num-beams", 2))
    assert code == 2
    assert "--num-beams is for translators" in err


@pytest.mark.slow
def test_attention_of_encoders_in_python(pretrained, tasks):
    for run, texts in ((pretrained, ["The BANK"]), (tasks("pair"), ["The bank", "a cat"])):
        attention = tj.load(run).attention(*texts)
        weights = attention.weights["encoder"]
        assert weights.shape[2:] == (len(attention.tokens),) * 2
        assert attention.tokens.count("[SEP]") == len(texts)
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
        assert attention.png().startswith(b"\x89PNG")


@pytest.mark.slow
def test_attention_of_an_encoder_of_pairs(tasks, run_command, tmp_path):
    page = tmp_path / "map.html"
    run_command("attention", tasks("pair"), "i\tran", "--json", "--output", page)
    said = json.loads(page.with_suffix(".json").read_text())["encoder"]
    assert said["rows"] == ["[CLS]", "i", "[SEP]", "ran", "[SEP]"]


@pytest.mark.slow
def test_probe_tells_what_a_layer_knows(pretrained, run_command, tmp_path):
    """H21: which word stands before is unknown to the embeddings of a word."""
    rng = np.random.default_rng(0)
    rows = []
    for first in rng.permutation(["river", "cash"] * 60):
        tags = {"the": "DET", "river": "X", "cash": "X", "bank": "A" if first == "river" else "B"}
        words = [first, "bank"] if rng.random() < 0.8 else [first, "bank", "the"]
        lines = [f"{i}\t{word}\t_\t{tags[word]}" + "\t_" * 6 for i, word in enumerate(words, 1)]
        rows.append("\n".join(lines))
    (tmp_path / "a.conllu").write_text("\n\n".join(rows) + "\n")
    # Held-out texts would be known ones.
    flags = ("--valid", tmp_path / "a.conllu", "--limit", 120)
    code, out, err = run_command("probe", pretrained, tmp_path / "a.conllu", *flags)
    assert code == 0
    assert "trained on 120 words, evaluated on 120; 4 classes" in err
    share = {line[:22].strip(): float(line.split("%")[0].split()[-1]) for line in out[1:-1]}
    assert list(share) == [
        "majority (X)", "layer 0 (embeddings)", "layer 1", "layer 2", "sum of last 2",
        "last 2 concatenated",
    ]  # fmt: skip
    assert share["layer 0 (embeddings)"] < 85
    assert share["layer 2"] > 95


@pytest.mark.slow
def test_probe_of_sentences_holds_a_fifth_out(tasks, run_command, tmp_path):
    rows = [f"{'river' if i % 2 else 'cash'} {' the' * (i // 2)}\t{i % 2}" for i in range(20)]
    (tmp_path / "a.tsv").write_text("\n".join(["text\tshore", *rows]))
    flags = ("--label", "shore", "--output", tmp_path / "layers.html")
    code, out, err = run_command("probe", tasks("tag"), tmp_path / "a.tsv", *flags)
    assert code == 0
    assert f"wrote {tmp_path / 'layers.html'}" in err
    assert "data:image/png;base64," in (tmp_path / "layers.html").read_text()
    assert "trained on 16 sentences, evaluated on 4; 2 classes" in err
    assert sum(line.endswith("  best") for line in out) >= 1
    code, err = mistake(run_command("probe", tasks("tag"), tmp_path / "a.tsv"))
    assert code == 3
    assert "column 'label' is not in the header" in err
    assert "give --label, a name, or a number from 1 and --header True" in err


# Mistakes


@pytest.mark.parametrize(
    ("command", "arguments", "code", "says"),
    [
        ("embed", ["{lines}", "--output", "a.csv"], 2, "the name ends in .npz or .safetensors"),
        ("embed", ["{lines}", "--layers", "sum"], 2, "--layers sum: allowed are last, all"),
        ("embed", ["{lines}", "--layers", "3"], 2, "layers 3: allowed are"),
        ("embed", ["{lines}", "--buffer-size", "0"], 2, "--buffer-size is 0: at least 1"),
        ("embed", ["none.txt"], 3, "embed none.txt: no such file"),
        ("embed", ["-"], 3, "no lines: it is empty"),
        ("semantic-search", ["{lines}", " "], 2, "the query is empty"),
        ("semantic-search", ["{lines}", "a", "--layers", "all"], 2, "compared by one vector"),
        ("semantic-search", ["-", "a"], 3, "no lines: it is empty"),
        ("word-vectors", ["bank"], 2, "a word and sentences with it are needed"),
        ("word-vectors", ["bank", "the bank"], 2, "occurs only once"),
        (
            "word-vectors",
            ["bank", "the bank", "rivers"],
            3,
            '"bank" is not a word of the sentence "rivers"',
        ),
        ("word-vectors", ["bank", "a bank", "--output", "a.txt"], 2, "ends in .html"),
        ("probe", ["none.tsv"], 3, "probe none.tsv: no such file"),
        ("probe", ["{lines}"], 2, "the name does not tell the format"),
        ("probe", ["a.tsv", "--limit", "1"], 2, "--limit is 1: at least 2"),
        ("probe", ["a.tsv", "--output", "a.txt"], 2, "--output a.txt: the name ends in .png"),
    ],
)
def test_wrong_arguments_are_one_line(
    pretrained, run_command, lines, tmp_path, monkeypatch, command, arguments, code, says
):
    monkeypatch.chdir(tmp_path)
    given = [argument.format(lines=lines) for argument in arguments]
    found, err = mistake(run_command(command, pretrained, *given))
    assert found == code, err
    assert says in err


@pytest.mark.parametrize(
    ("kind", "command", "says"),
    [
        ("classify", "tag", "a head for classes and none for tags: try `transformer-jax classify "),
        ("tag", "classify", "has a head for tags and none for classes: try `transformer-jax tag "),
        ("pair", "answer", "none for answers: try `transformer-jax classify "),
        ("qa", "tag", "a head for answers and none for tags: try `transformer-jax answer "),
        ("regress", "fill-mask", "it no longer has a masked-LM head: use the run that it was "
         "initialized from, runs/a"),
        (None, "classify", "without a head for classes: fine-tune it, see "
         "`transformer-jax finetune classify --init-from"),
    ],
)  # fmt: skip
def test_a_head_that_is_not_there(pretrained, tasks, run_command, lines, kind, command, says):
    run = pretrained if kind is None else tasks(kind)
    flags = ["--context", lines] if command == "answer" else []
    code, err = mistake(run_command(command, run, "a text", *flags))
    assert code == 2
    assert says in err


@pytest.mark.parametrize("kind", [None, "tag"])
@pytest.mark.parametrize(
    "command", [["translate"], ["generate", "a"], ["score", "{lines}"], ["prompt"]]
)
def test_an_encoder_writes_nothing_and_says_what_it_can(
    pretrained, tasks, run_command, lines, kind, command
):
    """H23."""
    run = pretrained if kind is None else tasks(kind)
    name, *rest = (part.format(lines=lines) for part in command)
    if name == "prompt":
        rest = ["--task", "in-context"]
    code, err = mistake(run_command(name, run, *rest))
    assert code == 2
    assert "is bidirectional, without a next-token distribution" in err
    use = "fill-mask" if kind is None else "tag"
    assert f"use `transformer-jax {use} {run}`, or initialize a translator from it, see" in err
    assert f"`transformer-jax train small --init-from {run} --help`" in err


@pytest.mark.parametrize(
    "command",
    [
        ["fill-mask", "[MASK]"],
        ["classify", "a"],
        ["tag", "a"],
        ["embed", "-"],
        ["word-vectors", "a", "a"],
    ],
)
def test_other_families_are_named(decoder_run, run_command, command):
    code, err = mistake(run_command(command[0], decoder_run, *command[1:]))
    assert code == 2
    said = (
        "the run of a decoder, which this command does not support: try `transformer-jax generate "
    )
    assert said in err


@pytest.mark.parametrize("task", ["tag", {"kind": "sing"}, {"kind": "tag", "labels": "a"}])
def test_a_damaged_task_exits_4(tmp_path, run_command, task):
    fields = {"model": dataclasses.asdict(CONFIG), "task": task}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    TOKENIZER.save(tmp_path / "tokenizer.json")
    for name in ("tag", "describe"):
        code, err = mistake(run_command(name, tmp_path))
        assert code == 4
        assert "config.json" in err


# describe and verify


def test_describe_counts_the_heads_too(pretrained, tasks, run_command):
    for run, kind, heads in (
        (pretrained, "encoder", {"head/bias", "transform/kernel", "next_sentence/bias"}),
        (tasks("tag"), "encoder-task", {"labels/kernel", "labels/bias"}),
    ):
        code, out, err = run_command("describe", run)
        assert (code, err) == (0, "")
        (_, params), _ = load(run, kind=kind)
        count = sum(leaf.size for leaf in jax.tree.leaves(params))
        assert f"{run}: {count:,} parameters" in out[0]
        assert heads <= {line.split()[0] for line in out if line}
    assert "16×3" in "\n".join(out)


def test_verify_an_encoder(pretrained, run_command):
    assert run_command("verify", pretrained)[:2] == (0, ["step_00000007\tok", ""])
