"""One trace of a program serves every platform, and each keeps only its own way."""

import dataclasses
import re
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import transformer_jax
from tests.drawing import drawn
from transformer_jax.data.tokenizer import BERT_SPECIAL, train_tokenizer
from transformer_jax.decoding.language import DecoderLanguageModel
from transformer_jax.functional.losses import linear_cross_entropy
from transformer_jax.inference.encoding.masked import MaskFiller
from transformer_jax.inference.encoding.vectors import Embedder
from transformer_jax.models.build import make_model
from transformer_jax.models.presets import PRESETS
from transformer_jax.models.transformer.models import Decoder

PLATFORMS = ("cpu", "cuda", "tpu")


def decoder(dtype):
    base = PRESETS["nanogpt_char"]
    return dataclasses.replace(
        base,
        vocab_size=11,
        d_model=12,
        decoder_layers=1,
        attention=dataclasses.replace(base.attention, num_heads=2),
        feed_forward=dataclasses.replace(base.feed_forward, d_ff=8),
        compute=dataclasses.replace(base.compute, dtype=dtype),
    )


def training(dtype):
    """Gradients of a causal model long enough for query blocks, and its parameters."""
    graph, params = drawn(lambda: Decoder(decoder(dtype), rngs=nnx.Rngs(0)))
    tokens = jnp.zeros((2, 200), jnp.int32)

    def loss(params):
        model = nnx.merge(graph, params)
        table = model.output_table()
        hidden = model.hidden(None, tokens)
        return linear_cross_entropy(hidden, table, tokens)[0]

    return jax.jit(jax.value_and_grad(loss)), params


def decoding(dtype):
    """One token of two beams, and the parameters."""
    graph, params = drawn(lambda: Decoder(decoder(dtype), rngs=nnx.Rngs(0)))

    def step(params):
        model = nnx.merge(graph, params)
        return model.step(jnp.zeros(4, jnp.int32), model.init_cache(None, 2, 4, beams=2))[0]

    return jax.jit(step), params


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("make", [training, decoding])
def test_one_trace_is_lowered_for_every_platform(make, dtype):
    program, params = make(dtype)
    traced = program.trace(params)
    text = {p: traced.lower(lowering_platforms=(p,)).as_text() for p in PLATFORMS}
    # Layouts are fixed on CPU alone; slopes are computed early there, and some sums apart on GPUs.
    fixed = {p: "LayoutConstraint" in text[p] for p in PLATFORMS}
    assert fixed == {"cpu": make is training and dtype == "bfloat16", "cuda": False, "tpu": False}
    barriers = {p: text[p].count("optimization_barrier") for p in PLATFORMS}
    assert barriers["tpu"] == 0
    assert (barriers["cpu"] > 0) == (make is training)
    assert barriers["cuda"] > 0
    assert all("xla_python_cpu_callback" not in text[p] for p in PLATFORMS)


@pytest.mark.parametrize("make", [training, decoding])
@pytest.mark.quick("training")
def test_nothing_of_other_platforms_is_left_in_a_compiled_program(make):
    program, params = make("float32")
    text = program.trace(params).lower().compile().as_text()
    assert " conditional(" not in text
    # Means and sums of rows are products here: all that is reduced are softmaxes and the loss.
    widths = re.findall(r"= f32\[[\d,]*\]\S* reduce\(", text)
    assert len(widths) < 20


def test_no_file_reads_the_default_backend():
    """Choices by platform are made at lowering, or by the devices of arrays."""
    package = Path(transformer_jax.__file__).parent
    for file in package.rglob("*.py"):
        assert "default_backend" not in file.read_text(), file


def user_of(name, monkeypatch):
    """The user of a tiny model whose arrays lie on a TPU, as far as it can know."""
    tpu = lambda tree: types.SimpleNamespace(platform="tpu")
    for module in (
        "parallel.placement",
        "inference.encoding.vectors",
        "inference.encoding.masked",
    ):
        monkeypatch.setattr(f"transformer_jax.{module}.device_of", tpu)
    tokenizer = train_tokenizer("wordpiece", ["a b c"] * 9, 30, special=BERT_SPECIAL)
    config = dataclasses.replace(decoder("float32"), vocab_size=tokenizer.vocab_size)
    if name == "DecoderLanguageModel":
        pair = drawn(lambda: Decoder(config, rngs=nnx.Rngs(0)))
        return DecoderLanguageModel(pair, tokenizer).run.graph
    config = dataclasses.replace(config, encoder_layers=1, decoder_layers=0)
    pair = drawn(lambda: make_model("encoder", config, next_sentence=False, rngs=nnx.Rngs(0)))
    return {"Embedder": Embedder, "MaskFiller": MaskFiller}[name](pair, tokenizer)._graph


@pytest.mark.parametrize("name", ["DecoderLanguageModel", "Embedder", "MaskFiller"])
def test_whoever_uses_a_model_takes_the_attention_kernels_of_its_devices(monkeypatch, name):
    assert "splash" in repr(user_of(name, monkeypatch))


def test_importing_the_package_changes_nothing_in_the_process():
    script = textwrap.dedent("""
        import ctypes, importlib, logging, os, pkgutil, signal, sys, threading, warnings
        import jax

        def state():
            return {
                "environment": dict(os.environ),
                "signals": [signal.getsignal(n) for n in signal.valid_signals()],
                "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook),
                "jax": dict(jax.config.values),
                "loggers": (list(logging.root.handlers), logging.root.level),
                "warnings": [f for f in warnings.filters if "transformer_jax" in str(f)],
                "threads": threading.active_count(),
                "backends": dict(jax._src.xla_bridge._backends),
            }

        opened = []
        open_library = ctypes.CDLL
        class Library(open_library):
            def __getattr__(self, name):
                opened.append(name)
                return super().__getattr__(name)
        ctypes.CDLL = Library
        before = state()
        import transformer_jax
        for module in pkgutil.walk_packages(transformer_jax.__path__, "transformer_jax."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
        after = state()
        for name in before:
            assert before[name] == after[name], (name, before[name], after[name])
        assert "mallopt" not in opened, opened
        print(len([name for name in sys.modules if name.startswith("transformer_jax.")]))
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-1500:]
    assert int(done.stdout) > 100
