"""Numbers that are none are refused when a model is loaded, and when it computes them."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.runs.checkpoint import Checkpointer
from transformer_jax.runs.checkpoint_reader import load_params
from transformer_jax.training.state import TrainState

SAID = "error: the model computed NaN or infinity"


def with_params(run, folder, change):
    """The run with its parameters changed, as training would have written them."""
    params = load_params(run).params
    shutil.copytree(run, folder)
    shutil.rmtree(folder / "checkpoints")
    checkpointer = Checkpointer(folder / "checkpoints")
    checkpointer.save(9, TrainState(jnp.int32(9), change(params), {}))
    checkpointer.wait()
    checkpointer.close()
    return folder


def overflowing(params):
    """All finite, and the gains of norms far too large."""
    return jax.tree.map(lambda leaf: leaf * np.float32(1e38) if leaf.ndim == 1 else leaf, params)


def holed(value):
    """One number in one parameter is none."""

    def change(params):
        leaves, tree = jax.tree.flatten(params)
        leaves[3] = leaves[3].copy()
        leaves[3].flat[-1] = value
        return jax.tree.unflatten(tree, leaves)

    return change


@pytest.fixture(scope="module")
def large_translator(trained_run, tmp_path_factory):
    return with_params(trained_run, tmp_path_factory.mktemp("large") / "run", overflowing)


@pytest.fixture(scope="module")
def large_decoder(decoder_run, tmp_path_factory):
    return with_params(decoder_run, tmp_path_factory.mktemp("large") / "run", overflowing)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.quick("inf")
def test_parameters_that_are_no_numbers_are_refused_at_loading(
    trained_run, run_command, tmp_path, value
):
    run = with_params(trained_run, tmp_path / "run", holed(value))
    code, lines, err = run_command("translate", run, text="a\n")
    assert (code, lines) == (4, [""])
    assert "contains NaN or infinity: use another checkpoint" in err
    code, lines, err = run_command("verify", run)
    assert code == 4
    assert "contains NaN or infinity" in lines[0]


@pytest.mark.parametrize(
    "flags",
    [["--num-beams", 1], ["--num-beams", 2], ["--sample"], ["--num-beams", 1,
                                                            "--generation-config", "hf"],
     ["--num-beams", 2, "--generation-config", "hf"]],
)  # fmt: skip
@pytest.mark.quick("flags0")
def test_translations_of_no_numbers_exit_5(large_translator, run_command, flags):
    code, lines, err = run_command("translate", large_translator, *flags, text="O gato\n")
    assert (code, lines) == (5, [""])
    assert err.startswith(SAID)
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "flags",
    [["--temperature", 0], [], ["--num-beams", 2], ["--temperature", 0,
                                                    "--prompt-lookup-num-tokens", 2],
     ["--generation-config", "hf", "--temperature", 0]],
)  # fmt: skip
@pytest.mark.quick("flags0")
def test_texts_of_no_numbers_exit_5(large_decoder, run_command, flags):
    code, _, err = run_command("generate", large_decoder, "a cab", "--max-new-tokens", 3, *flags)
    assert code == 5
    assert err.startswith(SAID)


@pytest.mark.parametrize(
    ("name", "run", "arguments"),
    [
        ("score", "decoder", ["FILE"]),
        ("score", "translator", ["--source", "FILE", "--target", "FILE"]),
        ("attention", "translator", ["O gato", "--target", "O gato", "--output", "PAGE"]),
        ("embed", "translator", ["FILE", "--output", "VECTORS"]),
    ],
    ids=["scores", "scores of pairs", "map", "vectors"],
)
@pytest.mark.quick("scores", "vectors")
def test_scores_and_maps_of_no_numbers_exit_5(request, run_command, tmp_path, name, run, arguments):
    paths = {"FILE": tmp_path / "a", "PAGE": tmp_path / "a.html", "VECTORS": tmp_path / "a.npz"}
    paths["FILE"].write_text("O gato dorme.\n")
    run = request.getfixturevalue(f"large_{run}")
    code, _, err = run_command(name, run, *(paths.get(word, word) for word in arguments))
    assert code == 5
    assert err.startswith(SAID)
