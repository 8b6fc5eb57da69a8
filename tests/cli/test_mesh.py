"""Commands on a mesh write what they write on one device."""

import json
import re

import jax
import pytest

import transformer_jax as tj
from tests.cli.conftest import LESSON
from transformer_jax.core.errors import ConfigError
from transformer_jax.inference.facts import Opening
from transformer_jax.inference.pretrained import open_pretrained
from transformer_jax.parallel.placement import mesh_of

MESH = ("--mesh.data", "2", "--mesh.fsdp", "2", "--mesh.tensor", "2")


@pytest.mark.parametrize("more", [("--num-beams", "1"), ()], ids=["greedy", "beam"])
@pytest.mark.slow
def test_translations_of_the_command_are_those_of_one_device(trained_run, run_command, more):
    lines = "".join(source + "\n" for source, _ in LESSON).encode()
    one = run_command("translate", trained_run, *more, text=lines)
    assert one[0] == 0
    assert run_command("translate", trained_run, *more, *MESH, text=lines)[:2] == one[:2]


@pytest.mark.slow
@pytest.mark.parametrize("run", ["decoder_run", "rotary_run"])
@pytest.mark.parametrize(
    "how",
    [("--temperature", "0"), ("--num-beams", "4"), ("--top-k", "8", "--num-return-sequences", "3")],
    ids=["greedy", "beam", "sampled"],
)
def test_texts_of_the_command_are_those_of_one_device(run, how, run_command, request):
    path = request.getfixturevalue(run)
    command = ("generate", path, *how, "--max-new-tokens", "9", "--json")
    one = run_command(*command, text="the sea\na\nof\n")
    assert one[0] == 0
    many = run_command(*command, *MESH, text="the sea\na\nof\n")
    for line, other in zip(one[1], many[1], strict=True):
        same(json.loads(line or "0"), json.loads(other or "0"))


def same(one, other):
    """Equal, but for the rounding of numbers."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        one, other = list(one.values()), list(other.values())
    if isinstance(one, list):
        for pair in zip(one, other, strict=True):
            same(*pair)
    elif isinstance(one, float):
        assert other == pytest.approx(one, abs=2e-4)
    else:
        assert one == other


@pytest.mark.slow
@pytest.mark.parametrize("run", ["trained_run", "decoder_run"])
def test_scores_of_the_command_are_those_of_one_device(run, run_command, request, tmp_path):
    path = request.getfixturevalue(run)
    source, target = tmp_path / "source.txt", tmp_path / "target.txt"
    source.write_text("".join(f"{line}\n" for line, _ in LESSON))
    target.write_text("".join(f"{line}\n" for _, line in LESSON))
    files = ("--source", source, "--target", target) if run == "trained_run" else (source,)
    one, many = (run_command("score", path, *files, *mesh) for mesh in ((), MESH))
    assert (one[0], many[0]) == (0, 0), one[2]
    numbers = lambda out: [[float(n) for n in re.findall(r"-?\d+\.\d+", line)] for line in out]
    assert any(map(len, numbers(one[1])))
    same(numbers(one[1]), numbers(many[1]))


@pytest.mark.slow
def test_a_predictor_on_a_mesh_holds_its_parameters_there(trained_run):
    mesh = tj.make_mesh(fsdp=2, tensor=4)
    model, one = tj.load(trained_run, mesh=mesh), tj.load(trained_run)
    assert mesh_of(jax.tree.leaves(model._translator.params)) == mesh
    sources = [source for source, _ in LESSON]
    assert [text.tokens for text in model(sources)] == [text.tokens for text in one(sources)]


def test_what_searches_on_one_device_refuses_a_mesh(trained_run):
    model = tj.load(trained_run, mesh=tj.make_mesh(fsdp=2, tensor=4))
    with pytest.raises(ConfigError, match="generation_config hf searches on one device: leave it"):
        model("ola", generation_config="hf")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--mesh.tensor", "16"), "16 devices, and there are 8: write --mesh.tensor 8"),
        (("--mesh.data", "3", "--mesh.fsdp", "4"), "mesh 3 x 4 x 1 = 12 devices, but there are 8"),
        (("--mesh.fsdp", "0"), "--mesh.fsdp is 0: at least 1"),
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
    with pytest.raises(ConfigError, match="n-gram model cannot run on a mesh"):
        open_pretrained(tmp_path, opening=Opening(mesh=tj.make_mesh(data=8)))
