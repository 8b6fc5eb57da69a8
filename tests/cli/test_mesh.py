"""Commands on a mesh write what they write on one device."""

import jax
import pytest

import transformer_jax as tj
from tests.cli.conftest import LESSON
from transformer_jax.errors import ConfigError
from transformer_jax.parallel.inference import loading_on, mesh_of
from transformer_jax.predictors.runs import load_language

MESH = ("--mesh.data", "2", "--mesh.fsdp", "2", "--mesh.tensor", "2")


@pytest.mark.parametrize("more", [("--num-beams", "1"), ()], ids=["greedy", "beam"])
@pytest.mark.quick("beam")
def test_translations_of_the_command_are_those_of_one_device(trained_run, run_command, more):
    lines = "".join(source + "\n" for source, _ in LESSON).encode()
    one = run_command("translate", trained_run, *more, text=lines)
    assert one[0] == 0
    assert run_command("translate", trained_run, *more, *MESH, text=lines)[:2] == one[:2]


def test_a_predictor_on_a_mesh_holds_its_parameters_there(trained_run):
    mesh = tj.make_mesh(fsdp=2, tensor=4)
    model, one = tj.load(trained_run, mesh=mesh), tj.load(trained_run)
    assert mesh_of(jax.tree.leaves(model._translator.params)) == mesh
    sources = [source for source, _ in LESSON]
    assert [text.tokens for text in model(sources)] == [text.tokens for text in one(sources)]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--mesh.tensor", "16"), "mesh.tensor 16 = 16 does not divide the 8 devices"),
        (("--mesh.data", "3", "--mesh.fsdp", "4"), "mesh 3 x 4 x 1 = 12 devices, but there are 8"),
        (("--mesh.fsdp", "0"), "mesh.fsdp is 0: allowed are 1 and more"),
        (("--generation-config", "hf", "--mesh.data", "2"), "--mesh does not go with"),
    ],
)
def test_a_mesh_that_does_not_fit_is_one_line(trained_run, run_command, flags, says):
    code, out, err = run_command("translate", trained_run, *flags, text=b"a\n")
    assert code == 2
    assert out == [""]
    assert says in err
    assert err.count("\n") == 1


def test_an_n_gram_model_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model": {"kind": "ngram"}}')
    (tmp_path / "tokenizer.json").write_text("{}")
    with (
        loading_on(tj.make_mesh(data=8)),
        pytest.raises(ConfigError, match="n-gram model runs on no mesh"),
    ):
        load_language(tmp_path)
