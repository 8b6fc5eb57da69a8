"""course/transformer.py computes what the package computes, and trains a translator."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import transformer_jax as tj
from transformer_jax.data.corpora.phrasebook import L1_PAIRS
from transformer_jax.decoding.programs import generate

ROOT = Path(__file__).parents[2]
FILE = ROOT / "course/transformer.py"
V, D, LAYERS, HEADS, F = 19, 16, 2, 4, 32


@pytest.fixture(autouse=True)
def plain_broadcasting():
    """Broadcasting as in NumPy, which a page for readers uses."""
    with jax.numpy_rank_promotion("allow"):
        yield


def course():
    """The module."""
    spec = importlib.util.spec_from_file_location("course_transformer", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def theirs(placement):
    """The package's model of the same form."""
    config = tj.TransformerConfig(
        vocab_size=V,
        d_model=D,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        attention=tj.AttentionConfig(num_heads=HEADS),
        feed_forward=tj.FeedForwardConfig(d_ff=F),
        norm=tj.NormConfig(placement=placement),
    )
    return tj.TransformerEncoderDecoder(config, rngs=nnx.Rngs(3))


def ours(module, placement):
    return module.Transformer(V, D, LAYERS, HEADS, F, placement, rngs=nnx.Rngs(0))


def sentences(rng, module, B, S, T):
    """Sources and targets with padding, of random lengths."""
    rows = lambda n: np.where(
        np.arange(n) < rng.integers(1, n + 1, (B, 1)), rng.integers(4, V, (B, n)), module.PAD
    )
    return rows(S), rows(T)


def test_it_is_short():
    assert len(FILE.read_text().splitlines()) <= 350


def test_parameters_have_the_names_and_shapes_of_the_package():
    module = course()
    shapes = lambda make: {
        path: leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(
            nnx.to_pure_dict(nnx.state(nnx.eval_shape(make), nnx.Param))
        )
    }
    assert shapes(lambda: ours(module, "pre")) == shapes(lambda: theirs("pre"))


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_logits_and_gradients_are_the_packages_on_a_hundred_batches(placement):
    module, model = course(), theirs(placement)
    mine = ours(module, placement)
    nnx.update(mine, nnx.state(model, nnx.Param))
    objective = tj.objectives.sequence_to_sequence(module.BOS, label_smoothing=0.1)

    @jax.jit
    def their_program(params, source, target):
        lengths = (source != module.PAD).sum(1), (target != module.PAD).sum(1)
        full = nnx.merge(nnx.graphdef(model), params)
        logits = full(source, module.shift_right(target, module.BOS), lengths[0], lengths[1])

        def loss(params):
            inputs = {"source": source, "source_lengths": lengths[0]}
            batch = {"inputs": inputs, "target": target, "lengths": lengths[1]}
            total, weight = objective(nnx.merge(nnx.graphdef(model), params), batch, None)["loss"]
            return total / weight

        return logits, jax.value_and_grad(loss)(params)

    @jax.jit
    def my_program(params, source, target):
        inputs = module.shift_right(target, module.BOS)

        def loss(params):
            logits = nnx.merge(nnx.graphdef(mine), params)(source, inputs)
            losses = module.smooth_loss(logits, target, 0.1)
            total, tokens = module.token_loss(losses, target != module.PAD)
            return total / tokens, logits

        (value, logits), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        return logits, (value, gradient)

    rng = np.random.default_rng(0)
    for _ in range(100):
        source, target = sentences(rng, module, 5, 7, 6)
        found = my_program(nnx.state(mine, nnx.Param), source, target)
        wanted = their_program(nnx.state(model, nnx.Param), source, target)
        real = (target != module.PAD)[:, :, None]
        found, wanted = (
            (jnp.where(real, logits, 0), value, nnx.to_pure_dict(gradient))
            for logits, (value, gradient) in (found, wanted)
        )
        # Single precision: in units of the array's largest value.
        error = lambda a, b: jnp.abs(a - b).max() / jnp.maximum(jnp.abs(b).max(), 1)
        assert max(jax.tree.leaves(jax.tree.map(error, found, wanted))) < 1e-6


@pytest.mark.slow
def test_greedy_and_beams_are_the_packages_on_a_thousand_sentences():
    module, model = course(), theirs("pre")
    table = model.embedding.table
    table[...] = 1.5 * table[...]  # decided enough for texts of many lengths
    table[module.EOS] = 3 * table[module.EOS]
    mine = ours(module, "pre")
    nnx.update(mine, nnx.state(model, nnx.Param))
    source, _ = sentences(np.random.default_rng(1), module, 1000, 7, 1)
    limit, special = 10, (module.BOS, module.EOS, 10)
    config = tj.GenerationConfig(
        decoder_start_token_id=module.BOS,
        eos_token_id=(module.EOS,),
        pad_token_id=module.PAD,
        max_new_tokens=limit,
        at_limit="eos",
        normalization="gnmt",
        length_penalty=0.6,
    )
    inputs = {"source": source, "source_lengths": (source != module.PAD).sum(1)}
    four = tj.GenerationConfig(**{**vars(config), "num_beams": 4})
    wanted = generate(model, inputs, config), generate(model, inputs, four)
    lengths = set()
    for row in range(1000):
        then = module.continuing(mine, source[row], limit, 4)
        for found, texts in zip(
            (module.greedy(then, *special), module.beam(then, *special, 4, 0.6)[0]),
            wanted,
            strict=True,
        ):
            padded = found + [module.PAD] * (limit - len(found))
            assert padded == texts[row].tolist(), row
            lengths.add(len(found))
    assert len(lengths) > 5


@pytest.mark.slow
@pytest.mark.apart
def test_it_trains_on_the_phrasebook_and_says_the_four_sentences():
    with subprocess.Popen(
        [sys.executable, str(FILE)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        lines, _ = program.communicate(timeout=3600)
    assert program.returncode == 0
    for source, target in L1_PAIRS:
        assert f"{source}  ->  {target}\n" in lines
