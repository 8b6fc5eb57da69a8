"""The training commands: they train, resume, evaluate; and no mistake ends in a traceback."""

import importlib
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from sacrebleu.metrics import CHRF

from transformer_jax import __version__
from transformer_jax.cli import seq2seq
from transformer_jax.cli.main import main
from transformer_jax.core.config_dict import from_dict
from transformer_jax.core.processes import machine, process_started
from transformer_jax.decoding.generation_config import TRANSLATION
from transformer_jax.inference.pretrained import open_directory
from transformer_jax.models.costs.accounting import training_flops
from transformer_jax.recipes import driver
from transformer_jax.recipes.registry import named_runs
from transformer_jax.recipes.scored_texts import SearchFlags
from transformer_jax.recipes.tasks.settings import EvaluationConfig
from transformer_jax.runs import manifest
from transformer_jax.runs.lock import LOCK
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.training import trainer
from transformer_jax.training.loop import FitResult
from transformer_jax.training.state import TrainState
from transformer_jax.training.trainer import Trainer

RUNS = named_runs("translation", "recurrent_translation")

NOTHING = FitResult(TrainState(0, {}, {}), 0, None, None, False, 0)
# Compiling for all devices takes longer.
ALONE = ["--distributed.num-local-devices", "1"]
WORDS = ["um", "dois", "três", "quatro", "cinco", "seis", "sete", "oito", "nove", "dez"]
TINY = [
    "--model.d-model", "8", "--model.encoder-layers", "1", "--model.decoder-layers", "1",
    "--model.attention.num-heads", "2", "--model.feed-forward.d-ff", "16",
    "--tokenizer.kind", "characters", "--training.steps", "6", "--training.num-buckets", "1",
    "--training.max-tokens", "512", "--optimizer.schedule.warmup-steps", "2",
    "--loop.evaluate-every", "3", "--loop.checkpoint-every", "3", "--evaluation.sentences", "0",
    "--evaluation.num-beams", "1", "--data.read.max-length", "64",
    *ALONE,
]  # fmt: skip


@pytest.fixture(scope="module")
def texts(shared):
    return shared("seq2seq_texts", write_texts)


def write_texts(folder):
    """Aligned files of 60 lines, and a test set of 6, of which two have an empty side."""
    folder.mkdir()
    lines = [f"{a} {b}" for a in WORDS for b in WORDS[:6]]
    (folder / "a.pt").write_text("".join(f"{line}\n" for line in lines))
    (folder / "a.en").write_text("".join(f"{line[::-1]}\n" for line in lines))
    tests = [*((line, line[::-1]) for line in lines[:4]), ("", "mu"), ("dois", " ")]
    (folder / "t.pt").write_text("".join(f"{source}\n" for source, _ in tests))
    (folder / "t.en").write_text("".join(f"{target}\n" for _, target in tests))
    os.mkfifo(folder / "pipe")


def sq_data(texts):
    return [
        "--data.source", f"{texts}/a.pt", "--data.target", f"{texts}/a.en",
        "--data.test.source", f"{texts}/t.pt", "--data.test.target", f"{texts}/t.en",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def trained(texts, shared):
    def train(run):
        command = ["train", "small", *sq_data(texts), *TINY, "--output", str(run)]
        assert seq2seq.main(command) == 0

    return shared("seq2seq_run", train)


@pytest.fixture(autouse=True)
def sq_quiet():
    yield
    logging.getLogger().handlers.clear()


def test_a_run_directory_says_all_about_itself(trained):
    for name in ("config.json", "tokenizer.json", "metrics.jsonl", "curves.png", "results.json"):
        assert (trained / name).stat().st_size > 0
    results = json.loads((trained / "results.json").read_text())
    scores = results["tests"]["test"]
    assert scores["sentences"] == 6
    assert scores["sacrebleu_signature"].startswith("nrefs:1|case:mixed")
    assert "chrf" in scores
    assert len(results["state_sha256"]) == 64
    assert results["recompilations"] == 0
    assert manifest.read(trained / "checkpoints/step_00000006")["devices"] == 1  # as it was told
    config = driver.read(open_directory(trained))
    tokenizer = json.loads((trained / "tokenizer.json").read_text())
    assert config.model.vocab_size == len(tokenizer["model"]["vocab"])
    # Targets are as long as sources.
    assert config.evaluation.limit == (2.0, 10)
    assert config.evaluation.tokenize == "13a"
    lines = read_metrics(trained / "metrics.jsonl")
    assert [r["step"] for r in lines if "loss" in r] == [1, 2, 3, 4, 5, 6]
    assert [r["step"] for r in lines if "valid_loss" in r] == [3, 6]


def test_a_run_stands_in_the_report_with_its_scores_and_its_cost(trained, tmp_path, capsys):
    path = tmp_path / "bleu.json"
    assert main(["report", "bleu", str(trained), "--json", str(path)]) == 0
    [own] = json.loads(path.read_text())["own"]
    stored = json.loads((trained / "results.json").read_text())
    scores, steps = stored["tests"]["test"], read_metrics(trained / "metrics.jsonl")
    assert own["source"] == str(trained)
    assert own["bleu"] == scores["sacrebleu"]
    assert own["signature"] == scores["sacrebleu_signature"]
    assert own["flops"] == sum(r["flops"] for r in steps if "loss" in r)  # row H15
    config = driver.read(open_directory(trained)).model
    # Between those of a token of each text of the batches, and those of all that a batch may hold.
    least, most = (training_flops(config, rows, side, side) for rows, side in ((8, 1), (512, 16)))
    assert 6 * least < own["flops"] < 6 * most
    assert own["signature"] in capsys.readouterr().out


@pytest.mark.slow
def test_evaluate_prints_scores_with_their_signature(trained, texts, tmp_path, capsys):
    files = ["--source", f"{texts}/t.pt", "--target", f"{texts}/t.en"]
    more = ["--num-beams", "1", "--checkpoint", "average:2", "--output", str(tmp_path / "out")]
    assert seq2seq.main(["evaluate", str(trained), *files, *more]) == 0
    assert re.match(r"sacreBLEU \S+ \(nrefs:1\|case:mixed.*\) chrF", capsys.readouterr().out)
    assert len((tmp_path / "out").read_text().splitlines()) == 6
    assert seq2seq.main(["evaluate", str(trained), *files, "--num-beams", "1", "--lowercase"]) == 0
    assert "|case:lc|" in capsys.readouterr().out
    (tmp_path / "zh").write_text("我们去公园。\n" * 6)
    files[3] = str(tmp_path / "zh")
    for more, words, said in (([], "13a", "--tokenize zh"), (["--tokenize", "char"], "char", "")):
        given = ["evaluate", str(trained), *files, "--num-beams", "1", *more]
        assert seq2seq.main(given) == 0
        out, err = capsys.readouterr()
        assert f"|tok:{words}|" in out
        assert said in err


def test_the_length_penalty_is_a_setting_of_the_run_and_a_flag_of_evaluate():
    assert EvaluationConfig().search(4) == TRANSLATION
    assert EvaluationConfig(length_penalty=1.5).search(4).length_penalty == 1.5
    assert SearchFlags(length_penalty=1.5).generation() == TRANSLATION.changed(length_penalty=1.5)


def test_the_end_of_training_scores_every_line_as_evaluate_and_sacrebleu_do(
    trained, texts, tmp_path, capsys
):
    scores = json.loads((trained / "results.json").read_text())["tests"]["test"]
    files = ["--source", f"{texts}/t.pt", "--target", f"{texts}/t.en"]
    more = ["--num-beams", "1", "--output", str(tmp_path / "out")]
    assert seq2seq.main(["evaluate", str(trained), *files, *more]) == 0
    printed = capsys.readouterr().out
    assert f"sacreBLEU {scores['sacrebleu']:.1f} (" in printed
    assert f"chrF {scores['chrf']:.1f} (" in printed
    written, wanted = ((path).read_text().split("\n")[:-1] for path in
                       (tmp_path / "out", texts / "t.en"))  # fmt: skip
    assert scores["chrf"] == pytest.approx(CHRF().corpus_score(written, [wanted]).score)


@pytest.mark.slow
def test_resuming_a_finished_run_changes_nothing(trained, tmp_path):
    """On another mesh too, which also shows that a run may resume on other devices."""
    run = tmp_path / "run"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns(LOCK))
    before = json.loads((run / "results.json").read_text())
    assert seq2seq.main(["resume", str(run), "--mesh.data", "2", "--mesh.fsdp", "4"]) == 0
    after = json.loads((run / "results.json").read_text())
    assert after["state_sha256"] == before["state_sha256"]
    assert after["steps"] == before["steps"]


@pytest.fixture
def no_steps(monkeypatch):
    """Training ends where its first step would begin, and nothing is compiled for it."""
    monkeypatch.setattr(trainer.CompiledStep, "prepare", lambda *_: None)
    monkeypatch.setattr(trainer, "fit", lambda *_, **more: NOTHING)
    monkeypatch.setattr(Trainer, "_write_results", lambda *_: None)


def test_resume_says_which_checkpoint_it_goes_on_from_and_why(trained, tmp_path, capfd, no_steps):
    run = tmp_path / "run"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns(LOCK))
    (run / "checkpoints/step_00000006/manifest.json").unlink()
    assert seq2seq.main(["resume", str(run), *ALONE]) == 0
    err = capfd.readouterr().err
    assert "resumed from step 3, the newest good checkpoint" in err
    assert "step_00000006: manifest.json is missing" in err
    assert "kept as damaged_step_00000006" in err


@pytest.fixture
def in_progress(trained, tmp_path):
    """A run that a living process of this machine writes to."""
    run = tmp_path / "run"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns(LOCK))
    holder = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    started = process_started(holder.pid)
    record = {"machine": machine(), "host": "here", "pid": holder.pid, "started": started}
    record["token"] = "another"
    (run / LOCK).write_text(json.dumps(record))
    yield run, holder.pid
    holder.kill()
    holder.wait()


def sq_content(run):
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_a_run_in_progress_is_left_alone_and_can_be_read(in_progress, texts, capfd):
    run, pid = in_progress
    before = sq_content(run)
    data = [*sq_data(texts), *TINY, "--output", str(run)]
    for given in (["resume", str(run)], ["train", "small", *data, "--overwrite"],
                  ["train", "small", *data]):  # fmt: skip
        assert seq2seq.main(given) == 4
        sq_one_line(capfd.readouterr().err, f"in use by process {pid} on here")
    assert main(["verify", str(run)]) == 0
    files = [f"{texts}/t.pt", f"{texts}/t.en"]
    assert seq2seq.main(["evaluate", str(run), "--source", files[0], "--target", files[1]]) == 0
    assert sq_content(run) == before


@pytest.mark.slow
def test_a_run_whose_process_was_killed_goes_on(in_progress, capfd):
    run, pid = in_progress
    os.kill(pid, signal.SIGKILL)
    assert seq2seq.main(["resume", str(run)]) == 0
    assert f"was in use by process {pid} on here" in capfd.readouterr().err
    assert not (run / LOCK).exists()


def sq_spoil_config(run):
    (run / "config.json").write_text("{")


def sq_spoil_field(run):
    config = json.loads((run / "config.json").read_text())
    config["model"]["widht"] = 3
    (run / "config.json").write_text(json.dumps(config))


def sq_spoil_tokenizer(run):
    (run / "tokenizer.json").write_text("[]")


def sq_spoil_layers(run):
    """So many layers that they take an hour to lay out; checked also without a manifest."""
    config = json.loads((run / "config.json").read_text())
    config["model"]["encoder_layers"] = 10**9
    (run / "config.json").write_text(json.dumps(config))
    sq_spoil_checkpoints(run)


def sq_spoil_measurements(run):
    (run / "metrics.jsonl").unlink()
    os.mkfifo(run / "metrics.jsonl")


def sq_spoil_checkpoints(run):
    for file in (run / "checkpoints").rglob("manifest.json"):
        file.unlink()


def sq_spoil_data(run):
    for path in (run / "checkpoints").iterdir():
        said = manifest.read(path)
        manifest.rewrite(path, said | {"data": said["data"] | {"fingerprint": "0" * 16}})


def sq_spoil_seed(run):
    config = json.loads((run / "config.json").read_text())
    config["training"]["seed"] = 77
    (run / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("spoil", "code", "said"),
    [
        (shutil.rmtree, 4, "no such run directory"),
        (sq_spoil_config, 4, "config.json: damaged"),
        (sq_spoil_field, 4, "model.widht is 3 (absent in training)"),
        (sq_spoil_tokenizer, 3, "tokenizer.json"),
        (sq_spoil_checkpoints, 4, "manifest.json is missing"),
        (sq_spoil_layers, 4, "encoder_layers is 1000000000: at most 4096"),
        (sq_spoil_measurements, 4, "metrics.jsonl: cannot be read: it is a pipe"),
        (sq_spoil_seed, 4, "training.seed is 77 (1 in training)"),
        (sq_spoil_data, 3, "the training data have changed since the run began"),
    ],
)
def test_a_damaged_run_is_named(trained, tmp_path, capfd, spoil, code, said):
    run = tmp_path / "run"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns(LOCK))
    spoil(run)
    assert seq2seq.main(["resume", str(run)]) == code
    sq_one_line(capfd.readouterr().err, said)


def sq_one_line(err, said):
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, err
    assert said in errors[0]
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_changed_run_is_refused_unless_that_is_meant(trained, texts, tmp_path, capfd, caplog):
    """Here more steps are meant, which the checkpoints written from then on know of."""
    run = tmp_path / "run"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns(LOCK))
    config = json.loads((run / "config.json").read_text())
    config["training"]["steps"] = 8
    (run / "config.json").write_text(json.dumps(config))
    files = ["--source", f"{texts}/t.pt", "--target", f"{texts}/t.en"]
    for command in (["resume", str(run)], ["evaluate", str(run), *files]):
        assert seq2seq.main(command) == 4
        sq_one_line(capfd.readouterr().err, "training.steps is 8 (6 in training): change it back")
    assert seq2seq.main(["resume", str(run), "--allow-changed-config"]) == 0
    assert "training.steps is 8" in caplog.text
    assert manifest.read(run / "checkpoints/step_00000008")["config"]["training"]["steps"] == 8
    assert seq2seq.main(["evaluate", str(run), *files]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["by purpose", None])
def test_a_run_by_earlier_code_goes_on_with_its_keys(trained, tmp_path, scheme):
    """Its manifests say nothing of keys, and dropout is drawn from what parameters were."""
    run = tmp_path / "run"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns(LOCK))
    shutil.rmtree(run / "checkpoints/step_00000006")
    path = run / "checkpoints/step_00000003"
    said = manifest.read(path)
    assert said["key"]["scheme"] == "by purpose"
    if scheme is None:
        del said["key"]["scheme"]
        manifest.rewrite(path, said | {"schema": 1})
    alone = [
        "--distributed.num-local-devices",
        "1",
    ]  # as it began: sums are in another order on more
    assert seq2seq.main(["resume", str(run), *alone]) == 0
    assert manifest.read(run / "checkpoints/step_00000006")["key"].get("scheme") == scheme
    before, after = (json.loads((folder / "results.json").read_text()) for folder in (trained, run))
    assert (after["state_sha256"] == before["state_sha256"]) == (scheme is not None)


@pytest.mark.parametrize("begun", [True, False])
def test_a_run_by_earlier_code_may_warm_up_for_longer_than_it_lasts(
    trained, tmp_path, monkeypatch, capfd, begun
):
    """Nothing is to be done about it, where a new run is told."""
    run = tmp_path / "run"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns(LOCK))
    config = json.loads((run / "config.json").read_text())
    config["optimizer"]["schedule"]["warmup_steps"] = 4000
    (run / "config.json").write_text(json.dumps(config))
    if begun:
        for path in (run / "checkpoints").iterdir():
            manifest.rewrite(path, manifest.read(path) | {"config": config})
    else:
        shutil.rmtree(run / "checkpoints")
    monkeypatch.setattr(Trainer, "_fit", lambda *_: NOTHING)
    monkeypatch.setattr(Trainer, "_write_results", lambda *_: None)
    assert seq2seq.main(["resume", str(run)]) == (0 if begun else 2)
    assert ("warmup_steps is 4000" in capfd.readouterr().err) != begun


MISTAKES = [
    (["trian"], 2, "did you mean train?"),
    (["train"], 2, "needs the name of a configuration"),
    (["train", "phraseboook"], 2, "did you mean phrasebook?"),
    (["train", "base"], 2, "no training data"),
    (["train", "small", "--data.source", "{texts}/a.pt"], 2, "data.target is missing"),
    (["train", "phrasebook", "--data.pairs", "x.tsv"], 2, "more than one way"),
    (["train", "small", "--data.source", "{texts}/no", "--data.target", "{texts}/a.en"], 3, "no"),
    (["train", "small", "--data.source", "{texts}/a.pt", "--data.target", "{texts}/t.en"], 3,
     "60 lines"),
    (["train", "small", "--model.attention.num-heads", "7"], 2, "does not divide d_model"),
    (["train", "small", "{data}", "--training.steps", "50", "--optimizer.schedule.warmup-steps",
      "99"], 2, "warmup_steps is 99, but the run has 50 steps"),
    (["train", "small", "--training.gradient-accumulation-steps", "0"], 2,
     "--training.gradient-accumulation-steps is 0"),
    (["train", "small", "--loop.patience", "0"], 2, "loop.patience is 0"),
    (["train", "small", "--evaluation.num-beams", "0"], 2, "--evaluation.num-beams is 0"),
    (["train", "small", "{data}", "--mesh.fsdp", "3"], 2, "there are 8: write --mesh.fsdp 2"),
    (["train", "small", "{data}", "--distributed.num-local-devices", "9"], 2, "allowed are 1 to 8"),
    (["train", "small", "{data}", "--data.read.max-length", "4096"], 2, "max_length is 4096"),
    (["train", "small", "{data}", "--tokenizer.path", "{texts}/no.json"], 3, "no such tokenizer"),
    (["train", "small", "{data}", "--tokenizer.path", "{run}/tokenizer.json", "--model.vocab-size",
      "500"], 2, "leave model.vocab_size out"),
    (["train", "small", "{data}", "--training.max-tokens", "8"], 2, "has no room for"),
    (["train", "small", "{data}", "--model.encoder-layers", "1000000000"], 2, "at most 4096"),
    (["train", "small", "{data}", "--model.d-model", "1000000000000"], 2, "at most 1048576"),
    (["train", "small", "{data}", "--model.vocab-size", "1000000000000"], 2, "at most 67108864"),
    (["train", "small", "{data}", "--model.attention.num-heads", "1000000000000"], 2,
     "at most 16384"),
    (["train", "small", "{data}", "--model.positions.max-length", "1000000000000"], 2,
     "at most 1073741824"),
    (["train", "small", "{data}", "--model.encoder-layers", "4000", "--model.d-model", "65536"], 2,
     "parameters, which with their gradients take"),
    (["train", "small", "{data}", "--model.attention.head-dim", "-1"], 2, "at least 1, or None"),
    (["train", "small", "{data}", "--training.max-tokens", "1000000000"], 2,
     "a batch of 1,000,000"),
    (["train", "small", "--data.source", "{texts}/pipe", "--data.target", "{texts}/a.en"], 3,
     "a pipe that nobody writes to"),
    (["train", "small", "--data.pairs", "{texts}/pipe", "--data.read.format", "tsv"], 3,
     "a pipe that nobody writes to"),
    (["train", "small", "{data}", "--tokenizer.path", "{texts}/pipe"], 3, "it is a pipe"),
    (["train", "small", "--data.source", "/dev/zero", "--data.target", "{texts}/a.en"], 3,
     "it is a device"),
    (["train", "small", "{data}", "--output", "{run}"], 2, "has a run already"),
    (["train", "small", "{data}", "--output", "{texts}"], 2, "is not empty, and not a run"),
    (["train", "small", "{data}", "--output", "", "--overwrite"], 2, "--output is empty: name a"),
    (["train", "small", "{data}", "--output", "{texts}/a.pt/run"], 4, "cannot be written"),
    (["train", "small", "--data.tfds", "no/such", "--data.tfds-dir", "{texts}"], 3, "no/such"),
    (["resume", "{texts}"], 4, "not a run directory"),
    (["resume", "{texts}/nothing"], 4, "no such run directory"),
    (["resume", "{run}", "--mesh.tensor", "3"], 2, "there are 8: write --mesh.tensor 2"),
    (["evaluate", "{texts}", "--source", "a", "--target", "b"], 4, "not a run directory"),
    (["evaluate", "{run}", "--source", "{texts}/a.pt", "--target", "{texts}/t.en"], 3, "60"),
    (["evaluate", "{run}", "--source", "{texts}/t.pt", "--target", "{texts}/t.en", "--checkpoint",
      "newest"], 2, "must be best, last, a step"),
    (["evaluate", "{run}", "--source", "{texts}/t.pt", "--target", "{texts}/t.en", "--checkpoint",
      "5"], 4, "no checkpoint of step 5: there are 3, 6"),
]  # fmt: skip


# Others of their kind are quick.
SLOW = {
    "at most 1048576", "at most 67108864", "at most 16384", "at most 1073741824",
    "at least 1, or None", "it is a pipe",
}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [pytest.param(*m, id=m[2], marks=pytest.mark.slow if m[2] in SLOW else ()) for m in MISTAKES],
)
def test_a_mistake_is_one_line_and_an_exit_code(
    trained, texts, tmp_path, monkeypatch, capfd, given, code, said
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("transformer_jax.data.files._PATIENCE", 0.2)
    filled = []
    for word in given:
        if word == "{data}":
            filled += [*sq_data(texts), "--tokenizer.kind", "characters"]
        else:
            filled.append(word.format(texts=texts, run=trained))
    assert seq2seq.main(filled) == code
    sq_one_line(capfd.readouterr().err, said)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["train", "base", "--data.sorce", "x"],
            "did you mean --data.source? (see python -m experiments.seq2seq train base --help)",
        ),
        (["train", "small", "--beams", "4"], "train small has no flag --beams"),
        (["train", "base", "--training.steps"], "train base --help"),
        (["train", "--config"], "--config needs a file"),
        (["train", "base", "--mesh.fspd", "2"], "--mesh.fsdp"),
        (["train", "base", "--training.steps", "many"], "many"),
        (["resume"], "needs a run directory"),
    ],
)
def test_a_wrong_flag_is_refused_with_the_nearest_right_one(capfd, given, said):
    assert seq2seq.main(given) == 2
    sq_one_line(capfd.readouterr().err, said)


@pytest.mark.slow
def test_a_run_begins_from_the_configuration_of_another(trained, texts, tmp_path, capfd):
    """Flags change what they name; all else is as in the file, without a name of a run."""
    run = tmp_path / "again"
    flags = ["--output", str(run), "--training.seed", "7", "--training.steps", "4"]
    assert seq2seq.main(["train", "--config", str(trained / "config.json"), *flags]) == 0
    first, second = (json.loads((r / "config.json").read_text()) for r in (trained, run))
    assert (second["training"].pop("seed"), second["training"].pop("steps")) == (7, 4)
    assert second.pop("output") == str(run)
    for name in ("seed", "steps"):
        first["training"].pop(name)
    first.pop("output")
    assert second == first


def sq_wrong(change):
    def write(trained, folder):
        config = json.loads((trained / "config.json").read_text())
        change(config)
        (folder / "wrong.json").write_text(json.dumps(config))

    return write


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda trained, folder: None, "wrong.json: cannot be read: No such file"),
        (lambda trained, folder: (folder / "wrong.json").write_text("{"), "damaged (not JSON)"),
        (sq_wrong(lambda c: c["model"].update(d_modle=8)),
         "unknown setting model.d_modle; did you"),
        (sq_wrong(lambda c: c["model"].update(d_model="128")),
         'model.d_model is "128": a whole number is needed'),
        (sq_wrong(lambda c: c["training"].update(steps=2.5)),
         "training.steps is 2.5: a whole number or null is needed"),
        (sq_wrong(lambda c: c["model"]["norm"].update(placement="in")),
         'model.norm.placement is "in": allowed are post, pre, sandwich'),
        (sq_wrong(lambda c: c["training"].update(epochs=0)), "training.epochs is 0"),
        (sq_wrong(lambda c: c.update(model=3)),
         "model is 3: an object (TransformerConfig) is needed"),
    ],
)  # fmt: skip
def test_a_wrong_configuration_is_refused_by_file_and_field(trained, tmp_path, capfd, write, said):
    write(trained, tmp_path)
    assert seq2seq.main(["train", "--config", str(tmp_path / "wrong.json")]) == 2
    err = capfd.readouterr().err
    sq_one_line(err, said)
    assert str(tmp_path / "wrong.json") in err


@pytest.mark.slow
def test_what_follows_from_the_size_of_the_data_is_said_and_kept(texts, tmp_path, capfd):
    """And validation translations are shown; what was chosen is what resuming takes."""
    run, left_out = (
        tmp_path / "sized",
        ("--optimizer.schedule.warmup-steps", "--evaluation.sentences"),
    )
    tiny = [x for i, x in enumerate(TINY) if x not in left_out and TINY[i - 1] not in left_out]
    for name in ("--loop.evaluate-every", "--loop.checkpoint-every"):
        at = tiny.index(name)
        del tiny[at : at + 2]
    tiny[tiny.index("characters")] = "bpe"
    assert seq2seq.main(["train", "small", *sq_data(texts), *tiny, "--output", str(run)]) == 0
    err = capfd.readouterr().err
    assert "(tokenizer.vocab_size 500 chosen by the size of the text)" in err
    chosen = "optimizer.schedule.warmup_steps 1, loop.evaluate_every 1, loop.checkpoint_every 1"
    assert f"from the data: {chosen}, evaluation.max_len_a" in err
    assert "training, with label smoothing 0.1 and dropout" in err
    # Six evaluations of three sentences.
    assert len(re.findall("^  hypothesis  ", err, re.MULTILINE)) == 18
    assert err.count("  source      ") == err.count("  reference   ") == 18
    config = json.loads((run / "config.json").read_text())
    assert config["optimizer"]["schedule"]["warmup_steps"] == config["loop"]["evaluate_every"] == 1
    assert config["tokenizer"]["vocab_size"] == config["model"]["vocab_size"]
    assert seq2seq.main(["resume", str(run), *ALONE]) == 0
    assert json.loads((run / "config.json").read_text()) == config
    assert "from the data" not in capfd.readouterr().err


@pytest.mark.parametrize("entry", ["seq2seq", "decoder_only", "encoder_only"])
def test_every_entry_point_has_a_version_and_says_so(entry, capsys):
    module = importlib.import_module(f"experiments.{entry}")
    assert module.main(["--version"]) == 0
    assert capsys.readouterr().out == f"python -m experiments.{entry} {__version__}\n"
    assert module.main(["--help"]) == 0
    assert "--version" in capsys.readouterr().out


def test_every_named_run_can_be_written_and_read_back():
    import dataclasses

    for _, run in RUNS.values():
        assert from_dict(type(run), json.loads(json.dumps(dataclasses.asdict(run)))) == run


@pytest.mark.parametrize("given", [["--help"], ["train", "--help"], ["train", "base", "--help"]])
def test_help_helps(given, capsys):
    assert seq2seq.main(given) == 0
    assert "experiments.seq2seq" in capsys.readouterr().out


def test_an_error_of_ours_is_one_line_and_a_log(trained, tmp_path, monkeypatch, capfd, no_steps):
    run = tmp_path / "run"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns(LOCK))

    def broken(*args, **kwargs):
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(trainer, "fit", broken)
    assert seq2seq.main(["resume", str(run)]) == 1
    sq_one_line(capfd.readouterr().err, f"unexpected RuntimeError: two lines; see {run}/error.log")
    assert "Traceback" in (run / "error.log").read_text()
