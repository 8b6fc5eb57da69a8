import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.drawing import normals
from transformer_jax import laws
from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional import masks
from transformer_jax.functional.attention import attend
from transformer_jax.functional.kernels import choice as kernels
from transformer_jax.functional.kernels import chunked, cudnn, splash, xla
from transformer_jax.functional.masks import Mask
from transformer_jax.functional.scores import ScaledDot, Scores

B, N, K, H = 2, 4, 2, 8
_rng = np.random.default_rng(0)


def arrays(T, S, U=H, dtype=jnp.float32):
    return normals((B, N, T, H), (B, K, S, H), (B, K, S, U), (B, N, T, U), dtype=dtype)


def catalogue(T, S):
    """One mask of every kind for T queries and S keys, several with fully masked rows."""
    ids = lambda n: jnp.asarray(np.sort(_rng.integers(0, 4, (B, n)), 1)[:, ::-1].copy())
    return {
        "everything": None,
        "causal": masks.causal(),
        "later": masks.causal(offset=3),
        "window": masks.sliding_window_mask(5),
        "causal_window": masks.causal() & masks.sliding_window_mask(4),
        "lengths": masks.length_mask(jnp.array([S - 4, 0]), jnp.array([T, T - 2])),
        "segments": masks.causal() & masks.segment_mask(ids(T), ids(S)),
        "dense": masks.dense_mask(jnp.asarray(_rng.random((B, 1, T, S)) < 0.1)),
        "dense_heads": masks.dense_mask(jnp.asarray(_rng.random((1, N, T, S)) < 0.3)),
        "traced": masks.causal(jnp.int32(2)),
    }


def both_ways(run, *inputs):
    """The output, and the gradients of a random projection of it."""

    @jax.jit
    def f(q, k, v, g, mask):
        y, back = jax.vjp(lambda q, k, v: run(q, k, v, mask), q, k, v)
        return y, *back(g)

    return f(*inputs)


def plain(scale=None, softcap=None, **how):
    """The reference: checked itself against float64 and finite differences in test_attention."""
    return lambda q, k, v, mask: xla.run(
        q, k, v, Scores(mask, None, ScaledDot(scale, softcap)), **how
    )


def assert_formula(run, mask, inputs, **how):
    """Output and gradients by the formula in float64, and exact zeros of fully masked rows."""
    kernel = laws.with_gradients(run)
    laws.attention_kernel(kernel, *inputs, mask, **how).require()
    visible = None if mask is None else mask.any_visible(inputs[0].shape[2], inputs[1].shape[2])
    if visible is not None and not visible.all():
        laws.masked_rows(kernel, *inputs, mask).require()


def assert_same(found, expected, atol=1e-5):
    for one, other in zip(found, expected, strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_allclose(one, other, atol=atol)


def assert_masked_rows_are_zero(found, mask, T, S):
    """Output zero, no gradient to the query: both exactly."""
    visible = None if mask is None else mask.any_visible(T, S)
    if visible is not None:
        masked = ~np.broadcast_to(visible, (B, N, T, 1))
        assert (np.where(masked, found[0], 0) == 0).all()
        assert (np.where(masked, found[1], 0) == 0).all()


@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("name", catalogue(19, 21))
@pytest.mark.quick("segments-0.0")
def test_handwritten_backward_is_autodiff_under_every_mask(name, rate, key, monkeypatch):
    T, S = 19, 21
    mask, inputs = catalogue(T, S)[name], arrays(T, S, U=6)
    score, dropout = ScaledDot(0.3), (rate, key)
    run = lambda q, k, v, mask: xla.run(q, k, v, Scores(mask, None, score), dropout)
    expected = both_ways(run, *inputs, mask)
    # It is for bfloat16, but rounding would hide small faults.
    monkeypatch.setattr(xla, "NARROW", (np.dtype("float32"),))
    found = both_ways(run, *inputs, mask)
    assert_same(found, expected, atol=2e-5)
    assert_masked_rows_are_zero(found, mask, T, S)


@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("name", ["later", "segments", "dense", "before"])
@pytest.mark.quick("segments-0.0")
def test_bfloat16_in_query_blocks_is_near_float32(name, rate, key, monkeypatch):
    T, S = 19, 21
    mask = (catalogue(T, S) | {"before": masks.causal(offset=-9)})[name]
    half = arrays(T, S, dtype=jnp.bfloat16)
    run = plain(dropout=(rate, key))
    wide = [x.astype(jnp.float32) for x in half]
    expected = both_ways(run, *wide, mask)
    monkeypatch.setattr(xla, "MIN_LENGTH", 1)
    monkeypatch.setattr(xla, "QUERY_BLOCK", 8)
    found = both_ways(plain(dropout=(rate, key), query_blocks=True), *half, mask)
    assert all(x.dtype == jnp.bfloat16 for x in found)
    assert_same([x.astype(jnp.float32) for x in found], expected, atol=6e-2)
    assert_masked_rows_are_zero(found, mask, T, S)


@pytest.mark.parametrize("name", ["causal_window", "segments", "before", "far"])
@pytest.mark.quick("causal_window", "far")
def test_causal_query_blocks_are_the_formula(name, monkeypatch):
    T, S = 19, 21
    offsets = {"before": masks.causal(offset=-9), "far": masks.causal(offset=5)}
    mask, inputs = (catalogue(T, S) | offsets)[name], arrays(T, S, U=6)[:3]
    monkeypatch.setattr(xla, "MIN_LENGTH", 1)
    monkeypatch.setattr(xla, "QUERY_BLOCK", 8)
    assert_formula(plain(query_blocks=True), mask, inputs)


def test_query_blocks_do_not_read_keys_after_them(monkeypatch):
    monkeypatch.setattr(xla, "MIN_LENGTH", 1)
    monkeypatch.setattr(xla, "QUERY_BLOCK", 8)
    q, k, v, _ = arrays(16, 16)
    broken = k.at[:, :, -1].set(jnp.nan), v.at[:, :, -1].set(jnp.nan)
    y = jax.jit(plain(query_blocks=True))(q, *broken, masks.causal())
    seen = np.isfinite(y).all((0, 1, 3))
    assert seen[:8].all()
    assert not seen[8:].any()


KERNELS = {
    "xla": plain(),
    "chunked": lambda *args: chunked.run(*args[:3], Scores(args[3]), block=8),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", catalogue(19, 21))
@pytest.mark.quick("dense_heads-chunked", "lengths-xla")
def test_kernels_are_the_formula_under_every_mask(name, kernel):
    T, S = 19, 21
    assert_formula(KERNELS[kernel], catalogue(T, S)[name], arrays(T, S, U=6)[:3])


@pytest.mark.parametrize(("T", "S", "block"), [(1, 9, 4), (9, 1, 4), (3, 5, 128)])
@pytest.mark.quick("3-5-128")
def test_chunked_takes_any_length(T, S, block):
    mask, score = masks.length_mask(jnp.array([S, 1])), ScaledDot(1.0)
    run = lambda q, k, v, mask: chunked.run(q, k, v, Scores(mask, None, score), block=block)
    assert_formula(run, mask, arrays(T, S)[:3], score=score, tolerance=2e-5)


def test_chunked_soft_cap_is_the_formula():
    mask, score = catalogue(19, 21)["later"], ScaledDot(1.0, 2.0)
    run = lambda q, k, v, mask: chunked.run(q, k, v, Scores(mask, None, score), block=8)
    assert_formula(run, mask, arrays(19, 21)[:3], score=score)


@pytest.mark.slow
@pytest.mark.parametrize("run", [xla.run, chunked.run])
def test_half_precision_stays_near_single(run):
    mask, inputs = masks.causal(), arrays(16, 16)
    half = [x.astype(jnp.bfloat16) for x in inputs]
    f = lambda q, k, v, mask: run(q, k, v, Scores(mask))
    found = both_ways(f, *half, mask)
    assert all(x.dtype == jnp.bfloat16 for x in found)
    single = both_ways(plain(), *(x.astype(jnp.float32) for x in half), mask)
    assert_same([x.astype(jnp.float32) for x in found], single, atol=6e-2)


def test_chunked_reads_only_blocks_in_reach():
    # 1024 queries in 8 pieces over 8 blocks: piece i of a causal mask reads blocks 0 .. i.
    ranges = lambda mask, T=1024, S=1024: [p[2:] for p in chunked._plan(T, S, mask, 128)]
    assert ranges(masks.causal()) == [(0, i + 1) for i in range(8)]
    assert ranges(masks.causal() & masks.sliding_window_mask(128)) == [
        (max(i - 1, 0), i + 1) for i in range(8)
    ]
    assert ranges(masks.sliding_window_mask(2))[3] == (2, 5)
    assert ranges(masks.causal(offset=512), 512)[0] == (0, 5)
    # Without structure, or without knowing where the queries stand: one pass over everything.
    assert ranges(Mask()) == ranges(masks.causal(jnp.int32(0))) == [(0, 8)]
    # Every piece has something to read, even where nothing is to be seen.
    assert ranges(masks.sliding_window_mask(2) & masks.causal(), 1024, 256)[-1] == (1, 2)


def test_chunked_memory_grows_with_length_not_its_square():
    def temporary(run, T):
        x = jax.ShapeDtypeStruct((1, 1, T, 8), jnp.float32)
        mask = masks.length_mask(jnp.array([9]))
        loss = lambda q, k, v: run(q, k, v, Scores(mask)).sum()
        compiled = jax.jit(jax.grad(loss, (0, 1, 2))).lower(x, x, x).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    blocks = lambda *args, **options: chunked.run(*args, **options, block=32)
    assert temporary(xla.run, 2048) > 4 * 2048**2
    assert temporary(blocks, 2048) < 4 * 2048**2 / 4
    assert temporary(blocks, 4096) < 2.5 * temporary(blocks, 2048)


@pytest.mark.parametrize(
    ("name", "T"), [("everything", 17), ("causal_window", 16), ("causal", 17), ("lengths", 16)]
)
@pytest.mark.quick("causal_window-16")
def test_cudnn_call_is_the_same_function(name, T):
    # The same arguments, computed by jax.nn's own XLA path, which has cuDNN's semantics.
    mask, inputs = catalogue(T, T)[name], arrays(T, T)
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), inputs)
    assert cudnn._refuses(mask or Mask(), T, T) is None
    run = lambda q, k, v, mask: cudnn.run(q, k, v, Scores(mask), implementation="xla")
    assert_formula(run, mask, inputs[:3])
    (q, k, v), settings = cudnn.arguments(*half[:3], mask or Mask())
    lengths = settings["key_value_seq_lengths"]
    # A row without any key would make cuDNN's normaliser infinite.
    assert lengths is None or (lengths.min() >= 1 and lengths.max() <= T)
    assert q.shape == (B, T + T % 2, N, H)
    assert k.shape == v.shape == (B, T + T % 2, K, H)


def test_cudnn_gives_reasons_for_what_it_does_not_support():
    T, S = 6, 7
    q, k, v, _ = arrays(T, S, dtype=jnp.bfloat16)
    why = lambda mask=None, bias=None, softcap=None, q=q, v=v, k=k: cudnn.supports(
        q, k, v, Scores(mask, bias, ScaledDot(softcap=softcap))
    )
    assert why() is None
    assert why(masks.length_mask(jnp.array([1, 2]))) is None
    assert "one query" in why(q=q[:, :, :1])
    assert "bfloat16 or float16" in why(q=q.astype(jnp.float32))
    assert "one dtype" in why(k=k.astype(jnp.float16))
    assert "value heads of size 4" in why(v=v[..., :4])
    assert "multiple of 8" in why(q=q[..., :4], k=k[..., :4], v=v[..., :4])
    assert "soft cap" in why(softcap=1.0)
    assert "bias" in why(bias=jnp.zeros((1, 1, T, S)))
    assert "as many queries" in why(masks.causal())
    square = lambda mask: why(mask, k=q[:, :K], v=q[:, :K])
    assert square(masks.causal()) is None
    assert "from position 0" in square(masks.causal(offset=1))
    assert "from position 0" in square(masks.causal(offset=jnp.int32(0)))
    assert "to the left" in square(masks.sliding_window_mask(2))
    assert square(masks.sliding_window_mask(2) & masks.causal()) is None
    short = masks.sliding_window_mask(2) & masks.causal() & masks.length_mask(jnp.array([1, 2]))
    assert "fully masked" in square(short)
    assert "segments" in square(catalogue(T, T)["segments"])
    assert "dense" in square(catalogue(T, T)["dense"])


def test_splash_gives_reasons_for_what_it_does_not_support():
    q, k, v, _ = arrays(128, 256)
    why = lambda mask=None, bias=None, q=q, k=k: splash.supports(q, k, v, Scores(mask, bias))
    assert why() is None
    assert why(masks.length_mask(jnp.array([1, 2]))) is None
    assert "multiples of 128" in why(q=q[:, :, :100])
    assert "bias" in why(bias=jnp.zeros((1, 1, 128, 256)))
    assert "dense" in why(catalogue(128, 256)["dense"])
    assert "as many queries" in why(masks.causal())
    assert why(masks.causal(), k=q[:, :K]) is None
    assert "from position 0" in why(masks.causal(offset=1), k=q[:, :K])


@pytest.mark.parametrize("name", ["everything", "lengths", "segments", "window", "causal_window"])
@pytest.mark.quick("causal_window", "segments")
def test_splash_ids_and_structure_say_the_same_as_the_mask(name):
    T = 128
    mask = catalogue(T, T)[name] or Mask()
    shape = (B, 1, T, T)
    expected = np.broadcast_to(True if mask.array(T, T) is None else mask.array(T, T), shape)
    structure = np.asarray(splash._structure(mask.causal, mask.window, T, T)[:, :])
    ids = splash.segment_ids(mask, B, T, T)
    same = True if ids is None else ids[0][:, :, None] == ids[1][:, None, :]
    found = np.broadcast_to(structure & np.asarray(same), (B, T, T))[:, None]
    seeing = expected.any(-1, keepdims=True)
    np.testing.assert_array_equal(found & seeing, expected)
    # The kernel divides by zero where a row sees nothing.
    assert found.any(-1).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["everything", "causal", "causal_window", "lengths", "segments"])
def test_splash_kernel_interpreted_is_the_same_function(name):
    T = 256
    run = lambda q, k, v, mask: splash.run(q, k, v, Scores(mask), interpret=True)
    assert_formula(run, catalogue(T, T)[name], arrays(T, T)[:3], tolerance=1e-4)


def test_unsupported_cases_run_on_xla_and_the_reason_is_logged_once(caplog):
    q, k, v, _ = (x.swapaxes(1, 2) for x in arrays(5, 7))
    bias = jnp.ones((1, 1, 5, 7))
    kernels._log_once.cache_clear()
    with caplog.at_level(logging.INFO, logger=kernels.__name__):
        for name in ("chunked", "splash", "cudnn", "auto", "xla"):
            for _ in range(2):
                found = attend(q, k, v, bias=bias, implementation=name)
                np.testing.assert_allclose(found, attend(q, k, v), atol=1e-6)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "attention by xla instead of chunked: it takes no bias",
        "attention by xla instead of splash: 5 queries and 7 keys are not both multiples of 128",
        "attention by xla instead of cudnn: it needs a GPU, and there is none",
    ]


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a GPU")
def test_cudnn_without_a_gpu_says_that_there_is_none():
    half = jnp.ones((1, 4, 2, 8), jnp.bfloat16)
    message = "implementation cudnn needs a GPU with cuDNN, and there is no GPU: use auto"
    with pytest.raises(ArgumentError, match=message):
        attend(half, half, half, implementation="cudnn")


def test_unknown_name_is_refused_with_the_allowed():
    q, k, v, _ = arrays(2, 2)
    with pytest.raises(ArgumentError, match=r"'flash'.*auto, xla, chunked, cudnn, splash"):
        kernels.select_kernel("flash", q, k, v)


def select(name, T, mask=None, dtype=jnp.float32, S=None, bias=None, softcap=None):
    S = T if S is None else S
    shape = lambda n, length: jax.ShapeDtypeStruct((1, n, length, 64), dtype)
    q, k = shape(8, T), shape(8, S)
    return kernels.select_kernel(name, q, k, k, Scores(mask, bias, ScaledDot(softcap=softcap)))


def test_auto_chooses_by_length():
    name = lambda *case, **options: select("auto", *case, **options).name
    assert name(64, masks.causal()) == "xla"
    for mask in (None, masks.causal()):
        assert name(kernels.LONG - 1, mask) == "xla"
        assert name(kernels.LONG, mask) == "chunked"
    assert name(512, bias=jnp.zeros((1, 1, 1, 512))) == "xla"
    assert name(1, masks.causal(jnp.int32(3)), S=4096) == "xla"
    assert name(8192) == "chunked"


def test_fused_kernels_leave_what_they_do_not_support_to_xla():
    name = lambda *case, **options: select(*case, **options).name
    assert name("cudnn", 256, masks.causal(), jnp.bfloat16) == "cudnn"
    assert name("cudnn", 256, masks.causal(), jnp.bfloat16, softcap=30.0) == "xla"
    assert name("cudnn", 1, None, jnp.bfloat16, S=64) == "xla"
    assert name("cudnn", 256, masks.causal()) == "xla"
    assert name("cudnn", 8192) == "chunked"  # scores that should not be held at once
    assert name("splash", 256, masks.causal()) == "splash"
    assert name("splash", 200, masks.causal()) == "xla"
    # Query blocks are for CPU.
    assert select("splash", 200, masks.causal()).run is xla.run
    assert select("auto", 200, masks.causal()).run is not xla.run


def test_implementations_are_resolved_for_devices():
    resolve = kernels.resolve_implementation
    assert resolve("auto", "cpu", jnp.float32, 64) == "auto"
    assert resolve("auto", "gpu", jnp.float32, 64) == "auto"
    assert resolve("auto", "gpu", jnp.bfloat16, 64) == "cudnn"
    assert resolve("auto", "gpu", jnp.bfloat16, 192) == "cudnn"
    assert resolve("auto", "gpu", jnp.bfloat16, 192, capability=8.6) == "auto"
    assert resolve("auto", "tpu", jnp.float32, 64) == "splash"
    assert resolve("cudnn", "tpu", jnp.bfloat16, 64) == "auto"
    assert resolve("splash", "cpu", jnp.bfloat16, 64) == "auto"
    for name in ("xla", "chunked"):
        assert resolve(name, "gpu", jnp.bfloat16, 64) == name
