"""Two hundred faults: none is silent, none hangs, none ends in a traceback.

What a fault does to a sound folder is checked by what a command makes of it afterwards: it is
refused by one line and the exit code of its kind, or noted, or without effect. Hugging Face
folders have
no checksums, so flipped bits in the numbers of a ``.safetensors`` file are not among the faults.
"""

import contextlib
import json
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.conftest import READER, TRANSLATOR, WRITER
from tests.faults.harness import DAMAGES, Case, Ended, changed, damaged, ended, verdict_of
from transformer_jax.cli import decoder_only, encoder_only, seq2seq
from transformer_jax.cli.main import main
from transformer_jax.core.processes import this_process
from transformer_jax.runs import manifest
from transformer_jax.runs.lock import LOCK

pytestmark = [pytest.mark.slow, pytest.mark.apart]

# On as many devices as before: on others the sums of a step differ in their last bits.
RESUME = ["resume", "{run}", "--distributed.num-local-devices", "1"]
ALLOWED = {"refused", "told", "no effect"}
COUNTS: Counter[str] = Counter()


def fa_state(folder):
    """The state that a run ended with, if it ended."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        return json.loads((folder / "results.json").read_text()).get("state_sha256")


def fa_judge(kind, sound, cases, copy, capfd, look=lambda folder: None):
    """Runs every case on a copy of its own, and prints a row of the table."""
    baselines = {}
    outcomes = Counter()
    wrong = []
    for case in cases:
        key = (case.command, tuple(case.arguments))
        if key not in baselines:
            whole = Case("none", lambda folder: None, case.command, case.arguments)
            folder = copy(sound)
            baselines[key] = ended(whole, folder, capfd, look)
            assert baselines[key].code == 0, baselines[key].err
            shutil.rmtree(folder)
        folder = copy(sound)
        case.harm(folder)
        found = ended(case, folder, capfd, look)
        verdict = verdict_of(case, baselines[key], found)
        outcomes[verdict] += 1
        if verdict not in ALLOWED:
            wrong.append(f"{case.name}: {verdict}: {found.err[-300:] or found.out[-200:]!r}")
        shutil.rmtree(folder, ignore_errors=True)
    fa_row(kind, outcomes, capfd)
    assert not wrong, "\n".join(wrong)


def fa_row(kind, outcomes, capfd):
    COUNTS[kind] = sum(outcomes.values())
    said = ", ".join(f"{count} {verdict}" for verdict, count in sorted(outcomes.items()))
    with capfd.disabled():
        print(f"\n{kind:34} {COUNTS[kind]:4} faults: {said}", flush=True)


def fa_files(run):
    """Every kind of file of a run, the largest of each where there are several."""
    newest = max((run / "checkpoints").glob("step_*"))
    found = [run / name for name in ("config.json", "tokenizer.json", "metrics.jsonl")]
    found += [run / "results.json", newest / "manifest.json"]
    for item in ("params", "optimizer"):
        files = [path for path in (newest / item).rglob("*") if path.is_file()]
        found += [max(files, key=lambda path: path.stat().st_size), newest / item / "_METADATA"]
    return [path.relative_to(run) for path in found]


def fa_damage(name, kind, other=None):
    return lambda folder: damaged(folder / name, kind, f"{name} {kind}", other and other / name)


@pytest.mark.parametrize("command", ["score", "verify", "resume"])
def test_files_of_a_run(translator, copy, texts, tmp_path, capfd, command):
    other = tmp_path / "other"
    shutil.copytree(translator, other)
    for name in fa_files(translator):
        with contextlib.suppress(OSError):
            older = Path(str(name).replace("step_00000006", "step_00000003"))
            damaged(other / name, "flip", "other")
            if older != name and (translator / older).exists():
                shutil.copyfile(translator / older, other / name)
    files = ["--source", f"{texts}/t.pt", "--target", f"{texts}/t.en"]
    what = {
        "score": (main, ["score", "{run}", *files]),
        "verify": (main, ["verify", "{run}"]),
        "resume": (seq2seq.main, RESUME),
    }[command]
    kinds = DAMAGES if command == "score" else DAMAGES[:4] + DAMAGES[5:6]
    names = fa_files(translator)
    if command == "resume":
        names = [name for name in names if name.name not in ("_METADATA", "results.json")]
    cases = [
        Case(f"{name} {kind}", fa_damage(name, kind, other), *what)
        for name in names
        for kind in kinds
    ]
    look = fa_state if command == "resume" else lambda folder: None
    fa_judge(f"files of a run, {command}", translator, cases, copy, capfd, look)


HUGE = (10**9, 10**18, -1, 1.5, "many", None, [], {}, True)
FIELDS = (
    "model/d_model", "model/encoder_layers", "model/vocab_size", "model/attention/num_heads",
    "model/attention/head_dim", "model/positions/max_length", "model/feed_forward/d_ff",
    "model/norm/eps", "model/positions", "model",
)  # fmt: skip
# A model could have these; this one has not.
CHANGES = (
    ("model/attention/num_heads", 4), ("model/feed_forward/activation", "gelu"),
    ("model/norm/eps", 1e-3), ("model/embedding/scale", 1.0), ("model/head/scale", 2.0),
    ("model/positions/kind", "sinusoidal_halves"), ("data/read/lowercase", True),
    ("model/norm/placement", "post"),
)  # fmt: skip


def test_configurations_of_a_run(translator, copy, texts, capfd):
    files = ["--source", f"{texts}/t.pt", "--target", f"{texts}/t.en"]
    rng = random.Random(0)
    cases = []
    for field in FIELDS:
        for value in rng.sample(HUGE, 3):
            harm = lambda folder, field=field, value=value: changed(
                folder / "config.json", field, value
            )
            case = Case(f"{field} = {value!r}", harm, main, ["score", "{run}", *files])
            cases.append(case)
    for field, value in CHANGES:
        harm = lambda folder, field=field, value=value: changed(
            folder / "config.json", field, value
        )
        cases.append(Case(f"{field} = {value!r}", harm, main, ["score", "{run}", *files]))
    fa_judge("configurations of a run", translator, cases, copy, capfd)


def test_stores_of_tokens(translator, copy, capfd):
    """Damaged ones are made anew, so that nothing is seen of it."""
    store = next(path for path in (translator / "store").iterdir() if path.is_dir())
    names = [path.relative_to(translator) for path in sorted(store.iterdir())]
    cases = [
        Case(f"{name.name} {kind}", fa_damage(name, kind), seq2seq.main, RESUME)
        for name, kinds in zip(names, [DAMAGES[:3], DAMAGES[3:4], DAMAGES[5:]] * 3, strict=False)
        for kind in kinds
    ]
    fa_judge("stores of tokens", translator, cases, copy, capfd, fa_state)


def test_tokenizers(translator, copy, texts, capfd):
    """A tokenizer that still loads is as wrong as one that does not."""
    files = ["--source", f"{texts}/t.pt", "--target", f"{texts}/t.en"]
    fields = [
        ("model/type", "BPE"), ("model/vocab", {}), ("model/vocab/a", 0), ("model/unk_token", "?"),
        ("added_tokens", []), ("added_tokens/0/id", 7), ("normalizer", {"type": "Lowercase"}),
        ("pre_tokenizer", None), ("decoder", None), ("truncation", None), ("model", 3),
        ("added_tokens/1/content", "<x>"),
    ]  # fmt: skip
    cases = [
        Case(
            f"{where} = {value!r}",
            lambda folder, where=where, value=value: changed(
                folder / "tokenizer.json", where, value
            ),
            main,
            ["score", "{run}", *files],
        )
        for where, value in fields
    ]
    fa_judge("tokenizers", translator, cases, copy, capfd)


def test_published_folders(published, copy, texts, tmp_path, capfd):
    other = tmp_path / "other"
    shutil.copytree(published, other)
    changed(other / "config.json", "model_type", "bert")
    (other / "tokenizer.json").write_text("{}")
    (other / "model.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
    cases = []
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        for kind in DAMAGES[1:]:
            cases.append(Case(f"{name} {kind}", fa_damage(name, kind, other), main, []))
    for field, value in (
        ("n_layer", 10**9), ("n_layer", 2), ("n_embd", 10**12), ("n_head", 0), ("n_head", "two"),
        ("vocab_size", 10**15), ("n_positions", 10**12), ("model_type", "nothing"),
        ("model_type", ...), ("activation_function", "none"), ("n_embd", None),
    ):  # fmt: skip
        harm = lambda folder, field=field, value=value: changed(
            folder / "config.json", field, value
        )
        cases.append(Case(f"{field} = {value!r}", harm, main, []))
    rng = random.Random(3)
    length = int.from_bytes((published / "model.safetensors").read_bytes()[:8], "little")
    for number in range(6):
        place = rng.randrange(8 + length)

        def flip(folder, place=place):
            data = bytearray((folder / "model.safetensors").read_bytes())
            data[place] ^= 1 << (place % 7)
            (folder / "model.safetensors").write_bytes(data)

        cases.append(Case(f"header, flip {number} at {place}", flip, main, []))

    def spoil(folder):
        data = bytearray((folder / "model.safetensors").read_bytes())
        data[-(len(data) - 8 - length) :] = b"\x00\x00\xc0\x7f" * ((len(data) - 8 - length) // 4)
        (folder / "model.safetensors").write_bytes(data)

    cases.append(Case("numbers that are none", spoil, main, []))
    asked = ["score", "{run}", f"{texts}/t.pt"]
    cases = [case._replace(arguments=asked) for case in cases]
    fa_judge("Hugging Face folders", published, cases, copy, capfd)


def fa_alone(kind, commands, tmp_path, capfd):
    """Commands that have to be refused, whatever they are given."""
    outcomes, wrong = Counter(), []
    nothing = Ended(0, "", "", None)
    for command, given in commands:
        case = Case(" ".join(given), lambda folder: None, command, given)
        found = ended(case, tmp_path, capfd, lambda folder: None)
        verdict = verdict_of(case, nothing, found)
        outcomes[verdict] += 1
        if verdict != "refused":
            wrong.append(f"{case.name}: {verdict}: {found.err[-300:]!r}")
    fa_row(kind, outcomes, capfd)
    assert not wrong, "\n".join(wrong)


def test_pipes_that_nobody_writes_to(translator, writer, reader, texts, tmp_path, capfd):
    pipe, sound = f"{texts}/pipe", f"{texts}/a.pt"
    out = ["--output", f"{tmp_path}/run"]
    fa_alone("pipes that nobody writes to", [
        (seq2seq.main, ["train", "small", "--data.source", pipe, "--data.target", sound, *out]),
        (seq2seq.main, ["train", "small", "--data.source", sound, "--data.target", pipe, *out]),
        (seq2seq.main, ["train", "small", "--data.pairs", pipe, "--data.read.format", "tsv", *out]),
        (seq2seq.main, ["train", "small", "--data.source", sound, "--data.target", sound,
                        "--tokenizer.path", pipe, *out]),
        (seq2seq.main, ["train", "small", "--data.source", "/dev/zero", "--data.target", sound]),
        (seq2seq.main, ["evaluate", str(translator), "--source", pipe, "--target", sound]),
        (seq2seq.main, ["resume", pipe]),
        (decoder_only.main, ["train", "char-cpu", "--data.text", pipe, *out]),
        (decoder_only.main, ["train", "char-cpu", "--data.jsonl", pipe, *out]),
        (decoder_only.main, ["evaluate", str(writer), "--text", pipe]),
        (encoder_only.main, ["pretrain", "small", "--data.text", pipe, *out]),
        (encoder_only.main, ["finetune", "classify", "--init-from", str(reader),
                             "--data.train",
                             pipe, *out]),
        (encoder_only.main, ["finetune", "classify", "--init-from", pipe, "--data.train",
                             sound]),
        (main, ["translate", pipe]),
        (main, ["generate", str(writer), "--requests", pipe]),
        (main, ["score", str(writer), pipe]),
        (main, ["score", str(translator), "--source", pipe, "--target", sound]),
        (main, ["embed", str(reader), pipe, "--output", f"{tmp_path}/vectors.npz"]),
        (main, ["semantic-search", str(reader), pipe, "um"]),
        (main, ["probe", str(reader), pipe]),
    ], tmp_path, capfd)  # fmt: skip


def test_sizes_that_no_machine_computes_with(texts, tmp_path, capfd):
    out = ["--output", f"{tmp_path}/run"]
    pairs = ["small", "--data.source", f"{texts}/a.pt", "--data.target", f"{texts}/a.en"]
    text = ["--data.text", f"{texts}/a.txt"]
    many = str(10**12)
    commands = []
    for flag in ("model.d-model", "model.encoder-layers", "model.decoder-layers",
                 "model.vocab-size",
                 "model.attention.num-heads", "model.attention.head-dim", "model.feed-forward.d-ff",
                 "model.positions.max-length", "training.max_tokens"):  # fmt: skip
        commands.append((seq2seq.main, ["train", *pairs, *TRANSLATOR, f"--{flag}", many, *out]))
    for flag in (
        "training.batch_size",
        "training.sequence_length",
        "model.d-model",
        "model.decoder-layers",
    ):
        given = ["train", "char-cpu", *text, *WRITER, f"--{flag}", many, *out]
        commands.append((decoder_only.main, given))
    for flag in ("training.max_tokens", "model.d-model", "model.encoder-layers"):
        given = ["pretrain", "small", *text, *READER, f"--{flag}", many, *out]
        commands.append((encoder_only.main, given))
    fa_alone("sizes that no machine has", commands, tmp_path, capfd)


@pytest.fixture
def living():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    yield process.pid
    process.kill()
    process.wait()


def test_runs_that_another_process_writes_to(translator, copy, texts, living, tmp_path, capfd):
    from transformer_jax.core.processes import process_started

    data = ["--data.source", f"{texts}/a.pt", "--data.target", f"{texts}/a.en", *TRANSLATOR]
    text = ["--data.text", f"{texts}/a.txt"]
    holders = {
        "here": {"pid": living, "started": process_started(living)},
        "elsewhere": {"machine": "another", "host": "another"},
    }
    outcomes, wrong = Counter(), []
    for name, holder in holders.items():
        for command, given in (
            (seq2seq.main, RESUME),
            (seq2seq.main, ["train", "small", *data, "--output", "{run}"]),
            (seq2seq.main, ["train", "small", *data, "--output", "{run}", "--overwrite"]),
            (decoder_only.main, ["train", "char-cpu", *text, *WRITER, "--output", "{run}",
                                 "--overwrite"]),
            (encoder_only.main, ["pretrain", "small", *text, *READER, "--output", "{run}",
                                 "--overwrite"]),
        ):  # fmt: skip
            run = copy(translator)
            (run / LOCK).write_text(json.dumps(this_process() | holder | {"token": "t"}))
            before = fa_bytes(run)
            case = Case(name, lambda folder: None, command, given)
            found = ended(case, run, capfd, lambda folder: None)
            verdict = verdict_of(case, Ended(0, "", "", None), found)
            if verdict != "refused" or "in use by" not in found.err or fa_bytes(run) != before:
                wrong.append(f"{name} {given}: {verdict}: {found.err[-300:]}")
            outcomes[verdict] += 1
    fa_row("runs in use", outcomes, capfd)
    assert not wrong, "\n".join(wrong)


def fa_bytes(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextlib.contextmanager
def fa_disk_of(limit):
    """No file may become larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.filterwarnings("ignore:Error writing persistent compilation cache entry")
def test_disks_that_are_full(translator, copy, capsys):
    """Earlier checkpoints stay whole, and training continues once there is room."""
    outcomes, wrong = Counter(), []
    for limit in (0, 1, 50, 300, 1000, 2000, 3000, 5000, 8000, 12_000):
        run = copy(translator)
        shutil.rmtree(run / "checkpoints/step_00000006")
        shutil.rmtree(run / "store")
        (run / "results.json").unlink()  # it names that checkpoint

        def command(given, limit=limit):
            with fa_disk_of(limit):
                return seq2seq.main(given)

        case = Case(f"{limit} bytes", lambda folder: None, command, RESUME)
        found = ended(case, run, capsys, lambda folder: None)
        verdict = verdict_of(case, Ended(0, found.out, "", None), found)
        outcomes[verdict] += 1
        if verdict not in ALLOWED:
            wrong.append(f"{limit}: {verdict}: {found.err[-400:]}")
        if main(["verify", str(run)]) != 0:
            wrong.append(f"{limit}: damaged: {capsys.readouterr().out}")
    fa_row("full disks", outcomes, capsys)
    run_again = seq2seq.main([word.format(run=run) for word in RESUME])
    assert run_again == 0
    assert fa_state(run) == fa_state(translator)
    assert not wrong, "\n".join(wrong)


@contextlib.contextmanager
def fa_read_only(source):
    """A folder mounted so that nobody may write to it, root neither."""
    place = Path(tempfile.mkdtemp())
    mounted = []
    try:
        for options in (["--bind", str(source), str(place)], ["-o", "remount,ro,bind", str(place)]):
            done = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"folders cannot be mounted here: {done.stderr.strip()}")
            mounted.append(place)
        yield place
    finally:
        if mounted:
            subprocess.run(["umount", str(place)], check=False)
        place.rmdir()


def test_folders_that_are_read_only(translator, writer, copy, texts, tmp_path, capfd):
    pairs = ["--source", f"{texts}/t.pt", "--target", f"{texts}/t.en"]
    data = ["--data.source", f"{texts}/a.pt", "--data.target", f"{texts}/a.en", *TRANSLATOR]
    reads = [
        (translator, main, ["score", "{run}", *pairs]),
        (translator, main, ["verify", "{run}"]),
        (translator, seq2seq.main, ["evaluate", "{run}", *pairs, "--num-beams", "1"]),
        (writer, main, ["score", "{run}", f"{texts}/t.pt"]),
        (writer, decoder_only.main, ["evaluate", "{run}", "--text", f"{texts}/a.txt"]),
        (writer, main, ["generate", "{run}", "um", "--max-new-tokens", "4", "--temperature", "0"]),
    ]
    writes = [
        (seq2seq.main, RESUME),
        (seq2seq.main, ["train", "small", *data, "--output", "{run}", "--overwrite"]),
        (seq2seq.main, ["train", "small", *data, "--output", "{run}/new"]),
        (main, ["export", "{run}", "{run}/out", "--format", "hf"]),
    ]
    outcomes, wrong = Counter(), []
    for sound, command, given in reads:
        case = Case(" ".join(given), lambda folder: None, command, given)
        whole = ended(case, copy(sound), capfd, lambda folder: None)
        with fa_read_only(copy(sound)) as folder:
            found = ended(case, folder, capfd, lambda folder: None)
        verdict = verdict_of(case, whole, found)
        outcomes[verdict] += 1
        if verdict not in ("no effect", "told"):
            wrong.append(f"{case.name}: {verdict}: {found.err[-300:]}")
    for command, given in writes:
        case = Case(" ".join(given), lambda folder: None, command, given)
        with fa_read_only(copy(translator)) as folder:
            found = ended(case, folder, capfd, lambda folder: None)
        verdict = verdict_of(case, Ended(0, "", "", None), found)
        outcomes[verdict] += 1
        if verdict != "refused":
            wrong.append(f"{case.name}: {verdict}: {found.err[-300:]}")
    fa_row("read-only folders", outcomes, capfd)
    assert not wrong, "\n".join(wrong)


class Training:
    """The training command in processes of its own; results are those of its kind of process."""

    def __init__(self, texts):
        data = ["--data.source", f"{texts}/a.pt", "--data.target", f"{texts}/a.en"]
        self.begin = ["train", "small", *data, *TRANSLATOR, "--output"]

    def start(self, given):
        return subprocess.Popen(
            [sys.executable, "-m", "experiments.seq2seq", *map(str, given)],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def whole(self, given):
        process = self.start(given)
        return process.communicate(timeout=300)[1], process.returncode


@pytest.fixture(scope="module")
def training(texts, tmp_path_factory):
    made = Training(texts)
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    err, code = made.whole([*made.begin, run])
    assert code == 0, err
    made.state = fa_state(run)
    return made


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_kills_at_any_moment(training, tmp_path, capfd, number):
    """Whatever a run was doing: its directory is whole, and resuming ends where it would have."""
    outcomes, wrong = Counter(), []
    rng = random.Random(int(number))
    for trial in range(3):
        run = tmp_path / f"run{trial}"
        begun = time.monotonic()
        process = training.start([*training.begin, run])
        # From the first line that it says to its end it takes about as long again.
        first = process.stderr.readline()
        time.sleep(rng.uniform(0, 1 + (time.monotonic() - begun)))
        process.send_signal(number)
        sent = time.monotonic()
        _, err = process.communicate(timeout=300)
        took = time.monotonic() - sent
        verdict = "ended" if process.returncode in (0, 128 + number, -number) else "ENDS ODDLY"
        if "Traceback" in err or "unexpected" in err:
            verdict = "CRASHES"
        for path in (run / "checkpoints").glob("step_*"):
            assert manifest.find_corruption(path, manifest.read(path)) is None
        ready = (run / "tokenizer.json").exists() and (run / "config.json").exists()
        again, code = training.whole(["resume", run] if ready else [*training.begin, run])
        if code or fa_state(run) != training.state:
            verdict = "DIFFERS"
        outcomes["ended, and resumed" if verdict == "ended" else verdict] += 1
        if verdict != "ended":
            wrong.append(f"{trial}, {took:.0f} s: {verdict}: {first + err} {again[-300:]}")
    fa_row(f"kills, {signal.Signals(number).name}", outcomes, capfd)
    assert not wrong, "\n".join(wrong)


def test_two_at_once(training, tmp_path, capfd):
    """If two begin together, one does the work, and the other names it."""
    outcomes, wrong = Counter(), []
    for trial, extra in enumerate(([], ["--overwrite"])):
        run = tmp_path / f"run{trial}"
        both = [training.start([*training.begin, run, *extra]) for _ in range(2)]
        ends = [(process.communicate(timeout=300)[1], process.returncode) for process in both]
        codes = sorted(code for _, code in ends)
        said = any("in use by process" in err or "has a run already" in err for err, _ in ends)
        # The second may also come when the first has ended.
        fine = (codes[0] == 0 and codes[1] in (2, 4) and said) or (codes == [0, 0] and extra)
        outcomes["one refused" if fine else "WRONG"] += 2
        if not fine or fa_state(run) != training.state:
            wrong.append(str(ends))
    fa_row("two at once", outcomes, capfd)
    assert not wrong, "\n".join(wrong)


def test_there_were_two_hundred(capfd):
    if len(COUNTS) < 14:
        pytest.skip("only with all others, in one process")
    fa_row("all kinds", Counter({"faults": sum(COUNTS.values())}), capfd)
    assert sum(COUNTS.values()) - COUNTS["all kinds"] >= 200
