"""Sentence encoders: trained, used, evaluated, exported and started from again."""

import json
import shutil

import jax
import numpy as np
import pytest

import transformer_jax as tj
from transformer_jax.cli.main import main
from transformer_jax.core.errors import ConfigError
from transformer_jax.interop.sentence_dense import write_dense
from transformer_jax.runs.run_directory import RunDirectory

pytestmark = pytest.mark.slow

SMALL = [
    "--model.d-model", "16", "--model.encoder-layers", "1", "--model.attention.num-heads", "2",
    "--model.feed-forward.d-ff", "16", "--model.positions.max-length", "32",
    "--task.max-length", "16",
]  # fmt: skip
SHORT = [
    "--training.batch-size", "8", "--training.steps", "4", "--optimizer.learning-rate", "1e-2",
    "--loop.checkpoint-every", "2", "--distributed.num-local-devices", "1",
]  # fmt: skip
WORDS = ["red", "blue", "green", "round", "square", "small", "large", "box", "ball", "star"]


def texts(count):
    """Two words each, in an order that no other line has."""
    return [f"{WORDS[i % 10]} {WORDS[(i * 3 + i // 10) % 10]} {i}" for i in range(count)]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    one, two = texts(40), texts(41)[1:]
    rows = [f"{a},{b},{i % 6}" for i, (a, b) in enumerate(zip(one, two, strict=True))]
    (folder / "scored.csv").write_text("\n".join(["sentence1,sentence2,score", *rows]))
    rows = [{"query": a, "pos": [b], "neg": [a[::-1]]} for a, b in zip(one, two, strict=True)]
    (folder / "ranked.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def train(files, path, name, *flags):
    return main(
        ["finetune", "similarity", "--data.train", str(files / name), "--output", str(path),
         *SHORT, *flags]
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(files, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "ranked"
    widths = ["--task.matryoshka-dims", "16", "8", "--task.symmetric"]
    assert train(files, path, "ranked.jsonl", *SMALL, *widths) == 0
    return path


@pytest.fixture(scope="module")
def folder(run, tmp_path_factory):
    """The export of the run, as a sentence encoder with a linear layer and prompts."""
    path = tmp_path_factory.mktemp("folders") / "encoder"
    assert main(["export", str(run), str(path)]) == 0
    kernel = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
    write_dense({"linear.weight": kernel, "linear.bias": kernel[:, 0]}, path / "2_Dense")
    (path / "2_Dense" / "config.json").write_text(
        json.dumps({"activation_function": "torch.nn.modules.activation.Tanh"})
    )
    modules = json.loads((path / "modules.json").read_text())
    for number, kind in ((2, "Dense"), (3, "Normalize")):
        said = {"idx": number, "name": str(number), "path": f"{number}_{kind}"}
        modules.append(said | {"type": f"sentence_transformers.models.{kind}"})
    (path / "modules.json").write_text(json.dumps(modules))
    beside = path / "config_sentence_transformers.json"
    prompts = {"query": "red ", "document": "blue "}
    beside.write_text(json.dumps(json.loads(beside.read_text()) | {"prompts": prompts}))
    return path


def parameters(path):
    return RunDirectory.open(path).load_params("last").params


def test_a_run_is_used_and_exported_as_it_is(run, tmp_path, capsys):
    assert main(["export", str(run), str(tmp_path / "out")]) == 0
    one, two = tj.load(run).embed(texts(5)), tj.load(tmp_path / "out").embed(texts(5))
    np.testing.assert_array_equal(one, two)
    (tmp_path / "lines.txt").write_text("\n".join(texts(5)))
    capsys.readouterr()
    assert main(["semantic-search", str(run), str(tmp_path / "lines.txt"), texts(3)[1]]) == 0
    best = capsys.readouterr().out.splitlines()[1]
    assert best.endswith(f"2\t{texts(3)[1]}")
    with pytest.raises(ConfigError, match="an encoder without a masked-LM head"):
        tj.load(run).fill_mask("red [MASK]")


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(run, tmp_path):
    again = shutil.copytree(run, tmp_path / "again")
    shutil.rmtree(again / "checkpoints" / "step_00000004")
    assert main(["resume", str(again), "--distributed.num-local-devices", "1"]) == 0
    jax.tree.map(np.testing.assert_array_equal, parameters(again), parameters(run))


def test_vectors_are_cut_to_the_widths_that_were_trained(run, files, tmp_path, capsys):
    assert main(["evaluate", str(run), "--data", str(files / "ranked.jsonl")]) == 0
    assert "data, first 8" in capsys.readouterr().out
    whole, first = tj.load(run).embed(texts(3)), tj.load(run).embed(texts(3), width=8)
    np.testing.assert_array_equal(first, whole[:, :8])
    (tmp_path / "lines.txt").write_text("\n".join(texts(3)))
    embed = ["embed", str(run), str(tmp_path / "lines.txt"), "--output", str(tmp_path / "a.npz")]
    assert main([*embed, "--width", "8"]) == 0
    np.testing.assert_allclose(np.load(tmp_path / "a.npz")["vectors"], first, atol=1e-6)
    assert main([*embed, "--width", "17"]) == 2
    assert main([*embed, "--width", "8", "--pool", "none"]) == 2
    with pytest.raises(ConfigError, match="have 16 components"):
        tj.load(run).embed("red", width=17)


def test_adapters_are_trained_alone(run, files, tmp_path):
    path = tmp_path / "run"
    assert train(files, path, "scored.csv", "--init-from", str(run), "--lora.rank", "2") == 0
    assert np.abs(tj.load(path).embed(texts(3)) - tj.load(run).embed(texts(3))).max() > 1e-4
    assert main(["export", str(path), str(tmp_path / "out")]) == 0
    one, two = tj.load(path).embed(texts(3)), tj.load(tmp_path / "out").embed(texts(3))
    np.testing.assert_allclose(one, two, atol=1e-5)


def test_a_linear_layer_and_prompts_of_a_start_are_kept_and_trained(
    files, folder, tmp_path, capsys
):
    path = tmp_path / "run"
    assert train(files, path, "ranked.jsonl", "--init-from", str(folder)) == 0
    out = capsys.readouterr()
    assert "loaded the linear layer after pooling" in out.err
    assert out.out.count("valid") == 2  # before training, and after it
    before = tj.load(folder).embed(texts(4))
    after = tj.load(path).embed(texts(4))
    assert after.shape == before.shape == (4, 8)
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(np.linalg.norm(after, axis=1), 1, rtol=1e-6)
    again = tmp_path / "out"
    assert main(["export", str(path), str(again)]) == 0
    np.testing.assert_array_equal(tj.load(again).embed(texts(4)), after)
    queries = [tj.load(one).embed(texts(2), prompt_name="query") for one in (path, again)]
    np.testing.assert_array_equal(*queries)
    # A run that starts from the run has its linear layer, not the folder's.
    more = tmp_path / "more"
    still = ["--init-from", str(path), "--optimizer.learning-rate", "0"]
    assert train(files, more, "ranked.jsonl", *still) == 0
    jax.tree.map(np.testing.assert_array_equal, parameters(more), parameters(path))


def test_scores_are_normalized_when_asked_and_never_silently(files, run, tmp_path, capsys):
    path, start = tmp_path / "run", ["--init-from", str(run), "--task.loss", "cosine"]
    assert train(files, path, "scored.csv", *start) == 2
    assert "say which labels mean 0 and 1 with --task.label-range" in capsys.readouterr().err
    assert not path.exists()
    assert train(files, path, "scored.csv", *start, "--task.label-range", "0", "4") == 2
    assert "beyond label_range 0 4" in capsys.readouterr().err
    assert train(files, path, "scored.csv", *start, "--task.label-range", "0", "5") == 0
    said = capsys.readouterr()
    assert "labels from 0 to 5 are cosines, 0 as 0, 5 as 1" in said.err
    assert "before training" in said.out
    table = tmp_path / "found.csv"
    data = ["--data", str(files / "scored.csv"), "--output", str(table)]
    assert main(["evaluate", str(path), *data]) == 0
    assert "data, before training" in capsys.readouterr().out
    rows = table.read_text().splitlines()
    assert rows[0] == "place,text,second,label,predicted"
    assert len(rows) == 41
    first = tj.load(path).embed([texts(1)[0], texts(2)[1]])
    cosine = first[0] @ first[1] / np.prod(np.linalg.norm(first, axis=1))
    np.testing.assert_allclose(float(rows[1].split(",")[-1]), cosine, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "flags", "said"),
    [
        ("scored.csv", ["--task.loss", "ranking", "--task.label-range", "0", "5"], "is for the"),
        ("scored.csv", ["--task.symmetric"], "task.symmetric is for the loss ranking"),
        ("scored.csv", ["--data.read.negatives", "score"], "have no negatives"),
        ("ranked.jsonl", ["--task.loss", "cosent"], "no field 'second'"),
        ("ranked.jsonl", ["--training.mode", "pmap"], "use jit"),
        ("ranked.jsonl", ["--task.matryoshka-dims", "17"], "vectors have 16 components"),
        ("ranked.jsonl", ["--task.pooling", "none"], "choose mean or cls"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(files, tmp_path, capsys, name, flags, said):
    assert train(files, tmp_path / "run", name, *SMALL, *flags) in (2, 3)
    error = capsys.readouterr().err
    assert said in error
    assert "unexpected" not in error
    assert not (tmp_path / "run").exists()
