"""Pre-training and fine-tuning commands: from text and labels to scores, and no traceback."""

import csv
import dataclasses
import json
import logging
import shutil

import numpy as np
import pytest
from flax import nnx

from transformer_jax.cli import encoder_only, seq2seq
from transformer_jax.cli.flags import parse
from transformer_jax.cli.main import main as command
from transformer_jax.core.config_dict import from_dict
from transformer_jax.core.trees import flatten_dict
from transformer_jax.data.labeled import Sentences
from transformer_jax.data.tag_schemes import write_entities
from transformer_jax.data.tokenizer import BERT_SPECIAL, train_tokenizer
from transformer_jax.evaluation.classification import f1, macro_f1
from transformer_jax.inference.encoding.task_runner import TaskRunner
from transformer_jax.inference.loading import load as tj_load
from transformer_jax.recipes.driver import read
from transformer_jax.recipes.finetuning import FinetuneRun
from transformer_jax.recipes.freezing import partition_of
from transformer_jax.recipes.masked_lm import PretrainRun
from transformer_jax.recipes.registry import named_runs
from transformer_jax.recipes.tasks.masked_lm_task import masked_lm
from transformer_jax.recipes.tasks.scores import predict
from transformer_jax.runs.checkpoint_reader import load_params, load_parts
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.runs.run_directory import RunDirectory

PRETRAIN_RUNS = named_runs("masked_lm")
TASK_RUNS = named_runs("finetuning")

SIZES = [
    "--model.d-model", "16", "--model.encoder-layers", "2", "--model.attention.num-heads", "2",
    "--model.feed-forward.d-ff", "32", "--model.positions.max-length", "48",
]  # fmt: skip
# Compiling for all devices takes longer, and what is taught here is not about them.
ALONE = ["--distributed.num-local-devices", "1"]
# Dropout draws other masks on other meshes; without it, losses are those of a single device.
CERTAIN = [
    "--model.embedding.dropout", "0", "--model.attention.dropout", "0",
    "--model.norm.residual-dropout", "0",
]  # fmt: skip
SHORT = [
    "--training.steps", "6", "--training.num-buckets", "1", "--optimizer.schedule.warmup-steps",
    "2",
    "--loop.evaluate-every", "3", "--loop.checkpoint-every", "3",
]  # fmt: skip
GOOD, BAD = ("good", "fine", "great", "warm"), ("bad", "poor", "cold", "grim")
COLOURS, THINGS = ("red", "blue", "green"), ("dog", "cat", "bird", "fish")


@pytest.fixture(autouse=True)
def do_quiet():
    yield
    logging.getLogger().handlers.clear()


@pytest.fixture(scope="module")
def data(shared):
    return shared("encoder_only_data", write_data)


def write_data(folder):
    """A text of documents, and labeled examples of every task."""
    folder.mkdir()
    sentence = lambda a, b: f"the {a} {b} sees a {b}."
    documents = ["\n".join(sentence(colour, thing) for colour in COLOURS) for thing in THINGS * 3]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    rows = [(f"a {word} {thing}", i) for i, side in enumerate((BAD, GOOD)) for word in side
            for thing in THINGS]  # fmt: skip
    lines = lambda name, head, rows: (folder / name).write_text(
        "\t".join(head) + "\n" + "".join("\t".join(map(str, row)) + "\n" for row in rows)
    )
    lines("classify.tsv", ("text", "label"), rows)
    pairs = [(f"the {a}", f"a {b}", "same" if a == b else "other") for a in THINGS for b in THINGS]
    lines("pair.tsv", ("text", "second", "label"), pairs * 2)
    lines("regress.tsv", ("text", "label"), [(text, label + 0.5) for text, label in rows])
    tagged = [f"1\tthe\t_\tDET\n2\t{c}\t_\tADJ\n3\t{t}s\t_\tNOUN\n" for c in COLOURS
              for t in THINGS]  # fmt: skip
    fields = lambda block: block.replace("\tDET", "\tDET\tx" + "\t_" * 5)
    conllu = "\n".join(
        "\n".join(line + "\t_" * (9 - line.count("\t")) for line in fields(block).splitlines()[:3])
        .replace("\tx", "\t_") + "\n" for block in tagged
    )  # fmt: skip
    (folder / "tag.conllu").write_text(conllu)
    context = "the red dog sees a blue bird"
    questions = [
        {"id": f"{i}", "question": f"who is {colour}?",
         "answers": [{"text": thing, "answer_start": context.index(thing)}]}
        for i, (colour, thing) in enumerate([("red", "dog"), ("blue", "bird")] * 6)
    ]  # fmt: skip
    paragraphs = [{"context": context, "qas": questions[:6]},
                  {"context": "and " + context, "qas": [
                      q | {"id": "x" + q["id"], "answers": [
                          {"text": q["answers"][0]["text"],
                           "answer_start": q["answers"][0]["answer_start"] + 4}]}
                      for q in questions[6:]]}]  # fmt: skip
    squad = {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}
    (folder / "span.json").write_text(json.dumps(squad))


FILES = {
    "classify": "classify.tsv", "pair": "pair.tsv", "regress": "regress.tsv",
    "tag": "tag.conllu", "qa": "span.json",
}  # fmt: skip


def pretrain(data, output, *more):
    code = encoder_only.main(
        ["pretrain", "small", *SIZES, *CERTAIN, *SHORT, *ALONE, "--training.max-tokens", "512",
         "--training.sequence-length", "24", "--tokenizer.vocab-size", "60",
         "--data.text", str(data / "text.txt"), "--output", str(output), *more]
    )  # fmt: skip
    assert code == 0
    return output


def finetune(data, start, kind, output, *more):
    windows = ["--task.doc-stride", "4"] if kind == "qa" else []
    code = encoder_only.main(
        ["finetune", kind, *SHORT, *ALONE, "--data.train", str(data / FILES[kind]), *windows,
         "--training.max-tokens", "256", "--task.max-length", "24",
         *(["--init-from", str(start)] if start else SIZES), "--output", str(output), *more]
    )  # fmt: skip
    assert code == 0
    return output


@pytest.fixture(scope="module")
def pretrained(data, shared):
    return shared("pretrained", lambda run: pretrain(data, run))


ASKED = {
    "classify": ["--freeze", "1", "--reinit-last", "1", "--training.seed", "5",
                 "--model.norm.residual-dropout", "0.2"],
    "pair": ["--freeze", "embeddings", "--optimizer.layer-decay", "0.5"],
    "regress": ["--freeze", "encoder"],
    "tag": [],
    "qa": ["--training.ema-decay", "0.9", "--loop.best-checkpoint-metric", "valid_f1"],
}  # fmt: skip


class Tuned(dict):
    """A run of every task, trained when it is asked for: most from the pre-trained encoder."""

    def __init__(self, data, pretrained, shared):
        self.made_of, self.shared = (data, pretrained), shared

    def __missing__(self, kind):
        data, pretrained = self.made_of
        start = None if kind == "tag" else pretrained
        train = lambda run: finetune(data, start, kind, run, *ASKED[kind])
        self[kind] = self.shared(f"finetuned_{kind}", train)
        return self[kind]


@pytest.fixture(scope="module")
def tuned(data, pretrained, shared):
    return Tuned(data, pretrained, shared)


def results(run):
    return json.loads((run / "results.json").read_text())


def gone_on_with(run, copy):
    """The results of a copy that lost its last checkpoint and was resumed."""
    shutil.copytree(run, copy)
    shutil.rmtree(next((copy / "checkpoints").glob("step_*6")))
    (copy / "results.json").unlink()
    assert encoder_only.main(["resume", str(copy), *ALONE]) == 0
    return results(copy)


def test_pre_training_ends_with_scores_beside_guesses(pretrained):
    """Rows B35, H18, H19."""
    [scores] = results(pretrained)["scores"].values()
    assert {"mlm_accuracy", "nsp_accuracy", "most_frequent_word", "unigram_loss"} <= set(scores)
    assert 0 < scores["most_frequent_word"] < 1
    looks = [r for r in read_metrics(pretrained / "metrics.jsonl") if "valid_loss" in r]
    assert [record["step"] for record in looks] == [3, 6]


@pytest.mark.slow
def test_pre_training_resumes_bit_by_bit(pretrained, tmp_path):
    again = gone_on_with(pretrained, tmp_path / "run")
    assert again["state_sha256"] == results(pretrained)["state_sha256"]


PACKED = [
    "pretrain", "modernbert-small", *SIZES, "--model.scores.full-attention-every", "2",
    "--model.scores.sliding-window", "5", *SHORT, *ALONE, "--training.max-tokens", "512",
    "--training.epochs", "None", "--training.sequence-length", "32", "--tokenizer.vocab-size",
    "300",
]  # fmt: skip


@pytest.mark.slow
def test_pre_training_in_packed_rows_resumes_bit_by_bit_and_is_exported(data, tmp_path, capfd):
    """Rows of several texts, as those of ModernBERT."""
    run, given = tmp_path / "run", ["--data.text", str(data / "text.txt")]
    assert encoder_only.main([*PACKED, *given, "--output", str(run)]) == 0
    again = gone_on_with(run, tmp_path / "copy")
    assert again["state_sha256"] == results(run)["state_sha256"]
    [scores] = results(run)["scores"].values()
    assert {"mlm_accuracy", "most_frequent_word"} <= set(scores)
    assert command(["export", str(run), str(tmp_path / "folder")]) == 0
    text = "the [MASK] dog"
    found = [tj_load(path).fill_mask(text)[0] for path in (run, tmp_path / "folder")]
    assert [one.text for one in found[0]] == [one.text for one in found[1]]
    pairs = ["--masking.sentence-objective", "sop", "--output", str(tmp_path / "pairs")]
    capfd.readouterr()
    assert encoder_only.main([*PACKED, *given, *pairs]) == 2
    assert "only none is possible in packed rows" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "classify",
        *(pytest.param(k, marks=pytest.mark.slow) for k in ("tag", "qa", "pair", "regress")),
    ],
)
def test_every_task_resumes_bit_by_bit(tuned, tmp_path, kind):
    again = gone_on_with(tuned[kind], tmp_path / "run")
    assert again["state_sha256"] == results(tuned[kind])["state_sha256"]
    assert again["scores"] == results(tuned[kind])["scores"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "weights"), [("classify", ["balanced"]), ("tag", ["ADJ=3", "NOUN=0.5"])]
)
def test_a_run_with_weights_of_classes_resumes_bit_by_bit(data, tmp_path, kind, weights):
    flags = ["--training.class-weights", *weights]
    if kind == "classify":  # other numbers of the classes, which weigh otherwise
        rows = (data / "classify.tsv").read_text().splitlines(keepends=True)
        (tmp_path / "few.tsv").write_text("".join(rows[:-10]))
        flags += ["--data.train", str(tmp_path / "few.tsv")]
    plain = finetune(data, None, kind, tmp_path / "plain", *flags[1 + len(weights) :])
    weighted = finetune(data, None, kind, tmp_path / "weighted", *flags)
    again = gone_on_with(weighted, tmp_path / "again")
    assert again["state_sha256"] == results(weighted)["state_sha256"]
    assert again["scores"] == results(weighted)["scores"]
    assert again["state_sha256"] != results(plain)["state_sha256"]


@pytest.mark.parametrize(
    ("kind", "measure"),
    [("classify", "matthews"), ("pair", "f1"), ("tag", "macro_f1"), ("qa", "exact_match"),
     pytest.param("regress", "spearman", marks=pytest.mark.slow)],
)  # fmt: skip
@pytest.mark.slow
def test_every_task_is_measured(tuned, kind, measure):
    assert measure in results(tuned[kind])["scores"]["valid"]


@pytest.mark.parametrize(("classes", "kind"), [(("0", "1"), f1), (("0", "1", "2"), macro_f1)])
def test_f1_is_that_of_the_run_and_not_of_the_labels_that_occur(classes, kind):
    wanted = ["0", "1", "1", "0", "1"]
    predicted = np.array([0, 1, 0, 0, 1])

    class StubPredictor(TaskRunner):
        def __init__(self):
            pass

        def classes(self, texts, seconds):
            return np.eye(len(classes))[predicted]

    part = Sentences("some", wanted, None, wanted)
    task = dataclasses.replace(TASK_RUNS["classify"][1].task, labels=classes)
    found = predict(StubPredictor(), task.kind, task.labels, part).scores["f1"]
    assert found == kind(predicted, np.array([int(label) for label in wanted]))
    assert f1(predicted, predicted * 0 + 1) != macro_f1(predicted, predicted * 0 + 1)


@pytest.mark.slow
def test_the_best_is_that_of_validation(tuned):
    """Training measures accuracy too, of one batch, which is another matter."""
    looks = [r["valid_f1"] for r in read_metrics(tuned["qa"] / "metrics.jsonl") if "valid_f1" in r]
    assert results(tuned["qa"])["best"]["value"] == max(looks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "freeze"),
    [
        ("classify", "1"),
        pytest.param("pair", "embeddings", marks=pytest.mark.slow),
        pytest.param("regress", "encoder", marks=pytest.mark.slow),
    ],
)
def test_frozen_parameters_stay_bit_by_bit(pretrained, tuned, kind, freeze):
    """Row B38."""
    before = flatten_dict(load_params(pretrained, "best").params)
    params = load_params(tuned[kind], "last").params
    after = flatten_dict(params)
    trained, kept = (flatten_dict(part) for part in partition_of(freeze).split(params, nnx.Rngs(0)))
    assert kept
    for name in kept:
        assert before[name].tobytes() == after[name].tobytes(), name
    moved = [name for name in trained if name in before and name.endswith("kernel")]
    assert all((before[name] != after[name]).any() for name in moved)


@pytest.mark.slow
def test_reinitialized_layers_are_not_loaded(pretrained, tuned):
    """Row B38: the last layer and the pooler are fresh, the first layer is not."""
    before = flatten_dict(load_params(pretrained, "best").params)
    after = flatten_dict(load_params(tuned["classify"], "last").params)
    far = lambda name: float(np.abs(before[name] - after[name]).max())
    path = "encoder/blocks/{}/feed_forward/up/kernel"
    assert far(path.format(0)) == 0
    assert far(path.format(1)) > 0.1
    assert far("pooler/kernel") > 0.1


@pytest.mark.slow
def test_evaluate_repeats_the_scores_of_training(pretrained, tuned, tmp_path, capfd):
    for run in (pretrained, tuned["classify"]):
        output = tmp_path / f"{run.name}.json"
        assert encoder_only.main(["evaluate", str(run), "--output", str(output)]) == 0
        [said] = json.loads(output.read_text()).values()
        [known] = results(run)["scores"].values()
        assert said == pytest.approx(known, rel=1e-5)
    capfd.readouterr()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classify", "pair", "regress"])
def test_a_table_without_labels_gets_what_one_with_labels_gets(data, tuned, kind, tmp_path):
    labeled, run = data / FILES[kind], str(tuned[kind])
    rows = [line.split("\t")[:-1] for line in labeled.read_text().splitlines()]
    numbers = [f"{number}" for number in range(len(rows) - 1)]
    plain = tmp_path / "plain.tsv"
    lines = zip(rows, ["id", *numbers], strict=True)
    plain.write_text("\n".join("\t".join([*row, number]) for row, number in lines))
    texts = ["\t".join(row) for row in rows[1:]]
    found = [
        table_of(tmp_path, "evaluate", run, "--data", str(labeled)),
        table_of(tmp_path, "classify", run, "--data", str(plain)),
        table_of(tmp_path, "classify", run, *texts),
    ]
    assert [row.pop("id") for row in found[1]] == numbers
    for row in found[0]:
        del row["place"], row["label"]
    assert found[0] == found[1] == found[2]


def table_of(folder, *words):
    """The rows that a command writes."""
    path = folder / "found.csv"
    assert command([*words, "--output", str(path)]) == 0
    return [*csv.DictReader(path.read_text().splitlines())]


@pytest.mark.slow
def test_entities_in_any_scheme_are_scored_in_that_of_training(tmp_path, capfd):
    """Tags with B and I alone may be of IOB1 or IOB2: the run knows which."""
    rows = [["B-PER", "B-PER", "O", "B-LOC", "I-LOC"], ["O", "B-LOC"]] * 6
    for scheme in ("iob1", "iob2", "bioes"):
        tags = [write_entities(row, scheme) for row in rows]
        words = [f"{tag[2:] or 'the'}{i} {tag}" for row in tags for i, tag in enumerate([*row, ""])]
        text = "\n".join("" if word.endswith(" ") else word for word in words)
        (tmp_path / f"{scheme}.conll").write_text(text)
    run, train = tmp_path / "run", str(tmp_path / "iob1.conll")
    given = ["--data.train", train, "--data.read.validation-size", "0", "--output", str(run),
             "--task.max-length", "40"]  # fmt: skip
    assert encoder_only.main(["finetune", "tag", *given, *SIZES, *SHORT, *ALONE]) == 0
    capfd.readouterr()
    shown = []
    for scheme in ("iob1", "iob2", "bioes"):
        data = ["--data", str(tmp_path / f"{scheme}.conll")]
        assert encoder_only.main(["evaluate", str(run), *data]) == 0
        out, err = capfd.readouterr()
        shown.append(out)
        assert (f"rewritten from {scheme.upper()} to IOB1" in err) == (scheme != "iob1")
    assert len({*shown}) == 1
    assert "entity_f1" in shown[0]


@pytest.mark.slow
def test_runs_are_a_row_of_the_glue_table(tuned, capfd):
    """Row H22; 70.9 where the slide says 71.0."""
    given = [f"SST-2={tuned['classify']}", f"MRPC={tuned['pair']}"]
    capfd.readouterr()  # what their training printed
    assert encoder_only.main(["glue", *given]) == 0
    rows = {line.split("  ")[0]: line.split() for line in capfd.readouterr().out.splitlines()}
    averages = [rows[name][-1] for name in list(rows)[1:6]]
    assert averages == ["74.0", "70.9", "75.1", "79.6", "82.1"]
    scores = (
        results(tuned["classify"])["scores"]["valid"],
        results(tuned["pair"])["scores"]["valid"],
    )
    ours = [f"{100 * scores[0]['accuracy']:.1f}", f"{100 * scores[1]['f1']:.1f}"]
    assert rows["these runs"][2:] == ours


@pytest.mark.slow
def test_devices_change_no_loss(data, pretrained, tmp_path):
    """Sharded = single."""
    other = pretrain(data, tmp_path / "run", "--distributed.num-local-devices", "8",
                     "--mesh.fsdp", "2", "--mesh.tensor", "2",
                     "--training.gradient-accumulation-steps", "2")  # fmt: skip
    steps = lambda run: [r for r in read_metrics(run / "metrics.jsonl") if "loss" in r]
    losses = lambda run: [record["loss"] for record in steps(run)]
    assert len(losses(other)) == 6
    np.testing.assert_allclose(losses(other), losses(pretrained), rtol=2e-4)
    assert [r["masked_tokens"] for r in steps(other)] == [
        r["masked_tokens"] for r in steps(pretrained)
    ]


@pytest.mark.slow
def test_pre_training_goes_on_from_an_encoder(pretrained, data, tmp_path, capfd):
    """Row B38: at rate 0 the frozen and the trained are those of the start, the head too."""
    code = encoder_only.main(
        ["pretrain", "small", *CERTAIN, *SHORT, *ALONE, "--training.max-tokens", "512",
         "--training.sequence-length", "24", "--data.text", str(data / "text.txt"),
         "--init-from", str(pretrained), "--freeze", "1", "--optimizer.learning-rate", "0",
         "--output", str(tmp_path / "run")]
    )  # fmt: skip
    assert code == 0
    assert "newly initialized: none" in capfd.readouterr().err
    before = flatten_dict(load_params(pretrained, "best").params)
    after = flatten_dict(load_params(tmp_path / "run", "last").params)
    assert before.keys() == after.keys()
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)
    assert not (set(before) ^ set(after))


@pytest.mark.slow
def test_a_fine_tuned_head_is_kept_or_drawn_anew(pretrained, tuned, data, tmp_path, capfd):
    """Row B38: of as many labels it goes on, of others it is refused."""
    before = flatten_dict(load_params(tuned["classify"], "best").params)
    still = ("--optimizer.learning-rate", "0", "--training.seed", "9")
    for name, more in (("kept", ()), ("anew", ("--reinit-head",))):
        run = finetune(data, tuned["classify"], "classify", tmp_path / name, *still, *more)
        after = flatten_dict(load_params(run, "last").params)
        same = {name for name in before if before[name].tobytes() == after[name].tobytes()}
        fresh = {"labels/kernel", "labels/bias"} if more else set()
        assert before.keys() - same == fresh
    file = str(data / FILES["classify"])
    given = ["finetune", "classify", "--data.train", file, "--reinit-head", "--init-from",
             str(pretrained), "--task.max-length", "24", "--output",
             str(tmp_path / "none")]  # fmt: skip
    assert encoder_only.main(given) == 2
    said = f"task.reinit_head: {pretrained} has no head for this run, so it is new anyway"
    assert said in capfd.readouterr().err
    rows = "".join(f"a text {i}\t{i % 3}\n" for i in range(30))
    (tmp_path / "three.tsv").write_text("text\tlabel\n" + rows)
    code = encoder_only.main(
        ["finetune", "classify", "--init-from", str(tuned["classify"]), "--data.train",
         str(tmp_path / "three.tsv"), "--task.max-length", "24", "--output", str(tmp_path / "run")]
    )  # fmt: skip
    assert code == 2
    assert "has a head of 2 outputs, and this run needs 3: add --reinit-head" in (
        capfd.readouterr().err
    )


@pytest.mark.slow
def test_a_translator_starts_from_an_encoder(pretrained, tmp_path, capfd):
    """Row H23: an encoder cannot write, but what can may start from it."""
    (tmp_path / "a").write_text("the red dog.\n" * 30)
    (tmp_path / "b").write_text("a blue cat.\n" * 30)
    code = seq2seq.main(
        ["train", "small", "--init-from", str(pretrained), "--model.decoder-layers", "1",
         "--data.source", str(tmp_path / "a"), "--data.target", str(tmp_path / "b"),
         "--data.read.max-length", "24", "--training.steps", "1", "--training.max-tokens", "256",
         "--training.num-buckets", "1", "--evaluation.sentences", "0", "--evaluation.num-beams",
         "1",
         "--optimizer.learning-rate", "0", *ALONE, "--output", str(tmp_path / "run")]
    )  # fmt: skip
    assert code == 0
    assert "newly initialized: decoder" in capfd.readouterr().err
    before = flatten_dict(load_params(pretrained, "best").params)
    after = flatten_dict(load_params(tmp_path / "run", "last").params)
    same = [n for n in after if n in before and np.array_equal(before[n], after[n])]
    assert {"embedding/table", "encoder/blocks/1/feed_forward/up/kernel"} <= set(same)


def _line(data, name, line):
    (data / name).write_text(line)
    return str(data / name)


@pytest.mark.parametrize("shares", [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_b35_the_shares_of_masked_tokens_are_flags(data, shares):
    """Row B35: the recipe of the lecture replaces every masked token by [MASK]."""
    names = ("mask-replace-prob", "random-replace-prob", "unchanged-prob")
    pairs = zip(names, shares, strict=True)
    flags = [word for name, share in pairs for word in (f"--masking.{name}", str(share))]
    run = parse(PretrainRun, "pretrain", flags)
    tokenizer = train_tokenizer("wordpiece", ["red blue dog cat."], 40, special=BERT_SPECIAL)
    texts = ["red dog cat blue. " * 4, "blue cat. dog red. " * 4]
    made = masked_lm(texts, run.model, tokenizer, masking=run.masking, length=40).train
    batch = made.make_batch(made.plan.batch(0))
    real = batch["weights"] > 0
    shown = np.take_along_axis(batch["tokens"], batch["masked_positions"], 1)[real]
    assert len(shown) > 4
    assert np.mean(shown == tokenizer.mask) == shares[0]
    assert (shown == batch["targets"][real]).all() == bool(shares[2])


MISTAKES = [
    (["pretrain"], 2, "python-docs"),
    (["pretrain", "tiny"], 2, "unknown configuration tiny"),
    (["finetune", "class"], 2, "did you mean classify"),
    (["pretrain", "small", "--data.text", "{data}/text.txt", "--training.sequence-length", "600"],
     2,
     "training.sequence_length is 600"),
    (["pretrain", "small", "--data.text", "{data}/text.txt", "--data.read.documents", "file",
      "--data.read.validation-size", "0", "--training.sequence-length", "24"], 3,
      "needs two documents, found one"),
    (["pretrain", "small", "--data.text", "{data}/text.txt", "--tokenizer.kind", "characters",
      "--masking.whole-word-mask"], 2, "do not show where words begin"),
    (["pretrain", "small", "--masking.mlm-probability", "1.5"], 2,
     "--masking.mlm-probability is 1.5"),
    (["pretrain", "small", "--masking.mask-replace-prob", "1"], 2,
     "are 1, 0.1, 0.1: their sum must be 1"),
    (["finetune", "classify"], 2, "give data.train"),
    (["finetune", "classify", "--data.train", "{data}/none.tsv"], 3, "none.tsv"),
    (["finetune", "regress", "--data.train", "{data}/pair.tsv"], 2, "pair.tsv:1: has a second"),
    (["finetune", "classify", "--data.train", "{data}/one.tsv", "--data.read.validation-size",
      "0"], 3,
     "all examples have the class 'x'"),
    (["finetune", "classify", "--data.train", "{data}/classify.tsv", "--data.valid",
      "{data}/unseen.tsv"], 3, "unseen.tsv:2: the class 'x'"),
    (["finetune", "tag", "--data.train", "{data}/classify.tsv"], 3, "classify learns classes"),
    (["finetune", "regress", "--data.train", "{data}/regress.tsv", "--data.read.text-pair", "b"], 2,
     "data.read.text_pair is b: regress reads one text: give data.read.pair too"),
    (["finetune", "qa", "--data.train", "{data}/wrong.json"], 3, "dog"),
    (["finetune", "classify", "--data.train", "{data}/classify.tsv", "--task.labels", "a", "b"], 2,
     "task.labels are read from the training file"),
    (["finetune", "classify", "--data.train", "{data}/classify.tsv", "--freeze", "some"], 2,
     "task.freeze is some"),
    (["finetune", "classify", "--data.train", "{data}/classify.tsv", "--freeze", "1"], 2,
     "without task.init_from"),
    (["finetune", "classify", "--data.train", "{data}/classify.tsv", "--init-from",
      "{start}", "--reinit-last", "3", "--task.max-length", "24"], 2, "there are 2 layers"),
    (["finetune", "classify", "--data.train", "{data}/classify.tsv", "--init-from",
      "{start}", "--freeze", "2", "--reinit-last", "1", "--task.max-length", "24"], 2,
     "never be trained"),
    (["finetune", "classify", "--data.train", "{data}/classify.tsv", "--init-from",
      "{start}", "--tokenizer.kind", "bpe"], 2, "tokenizer"),
    (["finetune", "classify", "--data.train", "{data}/classify.tsv", "--init-from",
      "{start}", "--model.d-model", "32", "--task.max-length", "24"], 2, "keeps the sizes"),
    (["finetune", "classify", "--data.train", "{data}/classify.tsv", "--init-from",
      "{data}/none"], 4, "none: no such run"),
    (["finetune", "tag", "--data.train", "{data}/tag.conllu", "--loop.best-checkpoint-metric",
     "valid_f1"], 2,
     "valid_accuracy, valid_macro_f1, valid_entity_f1"),
    (["finetune", "classify", "--data.train", "{data}/classify.tsv", "--task.max-length", "900"], 2,
     "task.max_length is 900"),
    (["evaluate", "{data}"], 4, "not a run directory"),
    (["glue", "SST-2"], 2, "give COLUMN=RUN"),
    (["glue", "SST-2={start}"], 3, "has no accuracy on validation examples"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "code", "said"), MISTAKES, ids=[m[2] for m in MISTAKES])
def test_a_mistake_is_one_line_and_an_exit_code(
    data, pretrained, tmp_path, capfd, monkeypatch, given, code, said
):
    monkeypatch.chdir(tmp_path)
    (data / "one.tsv").write_text("text\tlabel\na\tx\nb\tx\n")
    (data / "unseen.tsv").write_text("text\tlabel\na\tx\n")
    wrong = json.loads((data / "span.json").read_text())
    wrong["data"][0]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] = 1
    (data / "wrong.json").write_text(json.dumps(wrong))
    words = [word.format(data=data, start=pretrained) for word in given]
    assert encoder_only.main(words) == code
    err = capfd.readouterr().err
    assert said in err
    [line] = [line for line in err.splitlines() if line.startswith("error:")]
    assert "Traceback" not in err
    assert "unexpected" not in line


@pytest.mark.parametrize("name", [*PRETRAIN_RUNS, *TASK_RUNS])
def test_every_named_run_can_be_written_and_read_back(name, tmp_path):
    run = {**PRETRAIN_RUNS, **TASK_RUNS}[name][1]
    fields = json.loads(json.dumps(dataclasses.asdict(run)))
    assert from_dict(type(run), fields) == run
    directory = RunDirectory(tmp_path)
    directory.config.write_text(json.dumps(fields))
    assert isinstance(read(directory), FinetuneRun) == (name in TASK_RUNS)


@pytest.mark.parametrize(
    "given", [["--help"], ["finetune", "--help"], ["pretrain", "small", "--help"]]
)
def test_help_helps(given, capsys):
    assert encoder_only.main(given) == 0
    assert "encoder_only" in capsys.readouterr().out


@pytest.mark.slow
def test_adapters_of_an_encoder_are_trained_with_its_head_alone(data, pretrained, tmp_path):
    """Row B39: a head that is new is trained itself; the encoder keeps every bit."""
    run = finetune(data, pretrained, "classify", tmp_path / "run", "--lora.rank", "2")
    parts = load_parts(run, "last")
    names = set(flatten_dict(parts.params))
    own = {name for name in names if "/lora_" not in name}
    assert own == {"labels/kernel", "labels/bias", "pooler/kernel", "pooler/bias"}
    start = flatten_dict(load_params(pretrained).params)
    for name, value in flatten_dict(parts.frozen).items():
        assert value.tobytes() == start[name].tobytes(), name
    found = tj_load(run)(["good"])
    assert command(["merge", str(run), "--output", str(tmp_path / "plain")]) == 0
    assert "init_from" not in json.loads((tmp_path / "plain/config.json").read_text())["task"]
    assert tj_load(tmp_path / "plain")(["good"]) == found
