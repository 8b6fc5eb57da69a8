"""A registered attention is one of the library's: in models, caches, meshes, laws and commands."""

import dataclasses
import io
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import transformer_jax as tj
from experiments import decoder_only, encoder_only, seq2seq
from tests.drawing import drawn
from transformer_jax.cli.commands import import_modules
from transformer_jax.cli.main import main
from transformer_jax.core.errors import ArgumentError, ConfigError
from transformer_jax.doctor import examine
from transformer_jax.interop import ctranslate2
from transformer_jax.interop.export_plan import choose_family
from transformer_jax.interop.family import Model
from transformer_jax.models.config import MIXER_KINDS
from transformer_jax.models.transformer.layers import ATTENTIONS
from transformer_jax.parallel.placement import prepare_for_decoding, shard_parameters, split_model

SOURCE = """
import jax.numpy as jnp
import transformer_jax as tj


class CosineAttention(tj.Attention):
    def attend(self, q, k, v, scores, key=None):
        unit = lambda x: x / jnp.linalg.norm(x + 1e-6, axis=-1, keepdims=True)
        return super().attend(10 * unit(q), unit(k), v, scores, key)


tj.register_mixer("cosine", CosineAttention)
"""
COSINE = tj.TransformerConfig(
    vocab_size=40,
    d_model=32,
    encoder_layers=0,
    decoder_layers=1,
    attention=tj.AttentionConfig(num_heads=4, num_kv_heads=2),
    feed_forward=tj.FeedForwardConfig(d_ff=64),
    positions=tj.PositionConfig(kind="rope", max_length=64),
)
TOKENS = jnp.asarray(np.random.default_rng(0).integers(1, 40, (8, 9)))
SMALL = [
    *("--model.d-model", "32", "--model.encoder-layers", "1", "--model.decoder-layers", "1"),
    *("--model.attention.num-heads", "2", "--model.feed-forward.d-ff", "64"),
    *("--training.steps", "4", "--model.mixer.kind", "cosine"),
]


def forget():
    ATTENTIONS.pop("cosine", None)
    MIXER_KINDS.pop("cosine", None)
    sys.modules.pop("own_cosine", None)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The module in the working directory, not imported yet."""
    (tmp_path / "own_cosine.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    forget()


@pytest.fixture
def config(module):
    import_modules(["--import", "own_cosine"])
    return dataclasses.replace(COSINE, mixer=tj.MixerConfig(kind="cosine"))


def decoder(config):
    return nnx.merge(*drawn(lambda: tj.Decoder(config, rngs=nnx.Rngs(0))))


@pytest.mark.slow
def test_parameters_are_those_of_attention_and_results_are_not(config):
    own, plain = decoder(config), decoder(COSINE)
    paths = lambda model: jax.tree.structure(nnx.to_pure_dict(nnx.state(model)))
    assert paths(own) == paths(plain)
    assert float(jnp.abs(own(TOKENS) - plain(TOKENS)).max()) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    "prepare",
    [
        pytest.param(lambda model: model, id="as it is"),
        pytest.param(prepare_for_decoding, id="prepared"),
    ],
)
def test_beams_of_a_cache_equal_the_text(config, prepare):
    model = decoder(config)
    full, model = model(TOKENS), prepare(model)
    logits, cache = model.prefill(TOKENS[:, :7], model.init_cache(None, 8, 9, beams=2))
    np.testing.assert_allclose(logits, full[:, 6], atol=1e-5)
    logits, cache = model.step(jnp.repeat(TOKENS[:, 7], 2), cache)
    np.testing.assert_allclose(logits.reshape(8, 2, -1)[:, 1], full[:, 7], atol=1e-5)


@pytest.mark.slow
def test_a_mesh_computes_what_one_device_does(config):
    model = decoder(config)
    graph, params = split_model(model)
    mesh = tj.make_mesh(data=2, fsdp=2, tensor=2)
    sharded = shard_parameters(graph, params, mesh)
    logits = jax.jit(lambda params: nnx.merge(graph, params)(TOKENS))(sharded)
    assert len(jax.tree.leaves(sharded)[0].sharding.device_set) == 8
    np.testing.assert_allclose(logits, model(TOKENS), atol=1e-5)


def test_formats_with_their_own_attention_refuse_it(config):
    own = Model("decoder", config)
    with pytest.raises(ConfigError, match=r"mixer\.kind cosine instead of attention"):
        choose_family(own)
    with pytest.raises(ConfigError, match=r"mixer\.kind cosine instead of attention"):
        choose_family(own, {"model_type": "gpt2"})  # published, then changed
    assert "mixer.kind cosine" in ctranslate2.refusal(own)


@pytest.mark.slow
def test_doctor_finds_no_fault_and_compares_no_kernel_with_dot_products(config):
    found = examine(decoder(config), {"causality", "cached", "attention_kernel"})
    assert not found.broken
    assert {one.finding.law for one in found.results} == {"causality", "cached"}


def test_a_name_that_is_not_registered_is_refused_with_advice(module):
    with pytest.raises(ConfigError, match=r"kind is cosine: allowed are attention, .* --import"):
        tj.MixerConfig(kind="cosine")
    with pytest.raises(ConfigError, match="did you mean attention"):
        tj.MixerConfig(kind="atention")


@pytest.mark.parametrize(
    ("name", "attention", "said"),
    [
        ("attention", tj.Attention, "a mixer of this library"),
        ("convolution", tj.Attention, "a mixer of this library"),
        ("two words", tj.Attention, "letters, digits and _"),
        ("own", nnx.Linear, "a subclass of tj.Attention"),
    ],
)
def test_what_is_no_attention_is_not_registered(name, attention, said):
    with pytest.raises(ArgumentError, match=said):
        tj.register_mixer(name, attention)
    assert "own" not in ATTENTIONS


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing_there", "No module named 'nothing_there'"),
        ("broken", r"ZeroDivisionError: division by zero \(.*broken.py:2\)"),
        ("own_cosine.py", "the name of a Python module is needed, such as own_cosine"),
        ("", "the name of a Python module is needed"),
    ],
)
def test_a_module_that_cannot_be_imported_is_refused_in_one_line(module, tmp_path, name, said):
    (tmp_path / "broken.py").write_text("\n1 / 0\n")
    with pytest.raises(ConfigError, match=said) as refused:
        import_modules(["train", "small", "--import", name])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "program", [main, seq2seq.main, decoder_only.main, encoder_only.main],
    ids=["transformer-jax", "seq2seq", "decoder_only", "encoder_only"],
)  # fmt: skip
def test_every_program_imports_it_before_it_reads_flags(program, capfd):
    assert program(["train", "small", "--import", "nothing_there", "--no-such-flag"]) == 2
    assert "error: --import nothing_there: ModuleNotFoundError" in capfd.readouterr().err


@pytest.mark.slow
def test_commands_train_load_and_refuse_it(module, tmp_path, capfd, monkeypatch):
    def translate(*more):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"o gato 3 come\n")))
        return main(["translate", "run", *more])

    lines = range(200)
    (tmp_path / "a.pt").write_text("".join(f"o gato {i} come\n" for i in lines))
    (tmp_path / "a.en").write_text("".join(f"the cat {i} eats\n" for i in lines))
    data = ["--data.source", "a.pt", "--data.target", "a.en", "--output", "run"]
    assert main(["train", "small", *data, *SMALL]) == 2  # not registered yet
    assert main(["train", "small", *data, *SMALL, "--import", "own_cosine"]) == 0
    assert main(["describe", "run"]) == 0
    assert translate("--import=own_cosine") == 0
    with pytest.warns(UserWarning, match="length limit"):  # four steps teach no end
        assert isinstance(tj.load("run")(["o gato 3 come"])[0], str)
    capfd.readouterr()
    for form in ("hf", "ctranslate2"):
        assert main(["export", "run", "out", "--format", form]) == 2
        assert "mixer.kind cosine" in capfd.readouterr().err
    forget()
    assert translate() == 4
    error = capfd.readouterr().err
    assert "--import" in error
    assert "another version" not in error
