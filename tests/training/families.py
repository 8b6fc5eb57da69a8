"""Training steps of every family and task, drawn at random, on any mesh."""

import dataclasses
import functools
import os
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from flax import nnx

from transformer_jax.functional.kernels import choice as kernels
from transformer_jax.functional.kernels import splash
from transformer_jax.models.build import make_model
from transformer_jax.models.captioner import Captioner
from transformer_jax.models.config import (
    AttentionConfig,
    ComputeConfig,
    FeatureConfig,
    FeedForwardConfig,
    HeadConfig,
    LoRAConfig,
    MixerConfig,
    NormConfig,
    PositionConfig,
    ScoreConfig,
    TransformerConfig,
)
from transformer_jax.models.contrast_config import ContrastConfig
from transformer_jax.models.layers.parameters import map_parameters
from transformer_jax.models.lora import lora
from transformer_jax.models.partition import EVERYTHING, Partition
from transformer_jax.models.presets import bert, vit
from transformer_jax.models.recurrent_config import (
    AlignmentConfig,
    ModelConfig,
    RecurrentConfig,
    RecurrentEmbeddingConfig,
    RecurrentHeadConfig,
)
from transformer_jax.models.sentence_encoder import DenseForm, SentenceEncoder, SentenceForm
from transformer_jax.models.two_towers import TwoTowers
from transformer_jax.parallel.mesh import local_rows, shard_batch
from transformer_jax.training import objectives
from transformer_jax.training.state import create_state
from transformer_jax.training.step import Objective, compile_step, make_step

SEED = os.environ.get("SWEEP_SEED", "0")  # drawn by tests/conftest.py for all processes
D, N = 32, 4
# With plain descent at rate 1 the change of a parameter is its gradient.
DESCENT = optax.sgd(1.0)


class Case(NamedTuple):
    """A model, its objective, and a batch."""

    make: Callable[[], nnx.Module]
    objective: Objective
    batch: dict[str, Any]
    accumulation: int
    config: ModelConfig
    partition: Partition = EVERYTHING


def draw(task: str, kernel: str = "auto", length: int = 24, rows: int = 16) -> Case:
    """A case of one of :data:`TASKS`; the same for the same ``SWEEP_SEED``."""
    rng = np.random.default_rng(zlib.crc32(f"{SEED}/{task}".encode()))
    return TASKS[task](rng, kernel, length, rows)


def _config(
    rng: np.random.Generator, kernel: str, length: int, positions: Sequence[str], **sizes: Any
) -> dict[str, Any]:
    one = lambda *choices: choices[rng.integers(len(choices))]
    placement = one("pre", "post")
    return {
        "vocab_size": one(24, 23),  # a tensor axis divides it, or does not
        "d_model": D,
        "positions": PositionConfig(
            kind=one(*positions), max_length=length, num_buckets=4, max_distance=8
        ),
        "attention": AttentionConfig(
            num_heads=N, num_kv_heads=one(None, N // 2), implementation=kernel
        ),
        "scores": ScoreConfig(attn_logit_softcapping=one(None, 3.0)),
        "feed_forward": FeedForwardConfig(d_ff=64, gated=one(True, False)),
        "norm": NormConfig(kind=one("layer", "rms"), placement=placement, residual_dropout=0.0),
        "head": HeadConfig(tie_word_embeddings=one(True, False), bias=one(True, False)),
        "compute": ComputeConfig(scan_layers=one(True, False), remat=one(True, False)),
    } | sizes


def _accumulation(rng: np.random.Generator) -> int:
    return int(rng.integers(1, 3))


def _translation(rng: np.random.Generator, kernel: str, length: int, rows: int) -> Case:
    config = TransformerConfig(
        **_config(rng, kernel, length, ("sinusoidal", "learned", "relative", "rope")),
        encoder_layers=1,
        decoder_layers=1,
    )
    lengths = rng.integers(1, length + 1, (2, rows)).astype(np.int32)
    lengths[1, -1] = 0  # a row of padding
    source, target = rng.integers(3, 23, (2, rows, length)).astype(np.int32)
    batch = {
        "inputs": {"source": source, "source_lengths": lengths[0]},
        "target": target,
        "lengths": lengths[1],
    }
    make = lambda: make_model("encoder-decoder", config, rngs=nnx.Rngs(0))
    objective = objectives.sequence_to_sequence(1, 0.1)
    return Case(make, objective, batch, _accumulation(rng), config)


def _recurrent(rng: np.random.Generator, kernel: str, length: int, rows: int) -> Case:
    """A run like :func:`_translation`; there are no kernels to choose from."""
    case = _translation(rng, "auto", length, rows)
    config = random_recurrent(rng, case.config.vocab_size, length)
    make = lambda: make_model("encoder-decoder", config, rngs=nnx.Rngs(0))
    return case._replace(make=make, config=config)


def _speech(rng: np.random.Generator, kernel: str, length: int, rows: int) -> Case:
    """A run like :func:`_translation` or :func:`_recurrent`, of float features."""
    like = _recurrent if rng.integers(2) else _translation
    case = like(rng, kernel, length, rows)
    features: Any = FeatureConfig(num_features=3, stacked_frames=2)
    apart = {"share_encoder_decoder_embeddings": False}
    embedding = dataclasses.replace(case.config.embedding, **apart)
    config = dataclasses.replace(case.config, features=features, embedding=embedding)
    source = rng.standard_normal((rows, length, features.width)).astype(np.float32)
    inputs = case.batch["inputs"] | {"source": source}
    make = lambda: make_model("encoder-decoder", config, rngs=nnx.Rngs(0))
    return case._replace(make=make, config=config, batch=case.batch | {"inputs": inputs})


def _captions(rng: np.random.Generator, kernel: str, length: int, rows: int) -> Case:
    """Pictures of 8 pixels, of another width than their captions."""
    sizes = _config(rng, kernel, length, ("learned", "sinusoidal", "rope"))
    config = TransformerConfig(**sizes, encoder_layers=0, decoder_layers=1)
    encoder = vit((D, 16)[rng.integers(2)], 1, image_size=8, patch_size=4)
    encoder = dataclasses.replace(encoder, compute=config.compute)
    lengths = rng.integers(1, length + 1, rows).astype(np.int32)
    lengths[-1] = 0  # a row of padding
    batch = {
        "inputs": {"images": rng.standard_normal((rows, 8, 8, 3)).astype(np.float32)},
        "target": rng.integers(3, 23, (rows, length)).astype(np.int32),
        "lengths": lengths,
    }
    make = lambda: Captioner(encoder, config, rngs=nnx.Rngs(0))
    return Case(make, objectives.sequence_to_sequence(1), batch, _accumulation(rng), config)


def random_recurrent(rng: np.random.Generator, vocab: int, length: int) -> RecurrentConfig:
    """Any recurrent translator, without dropout."""
    one = lambda *choices: choices[rng.integers(len(choices))]
    score = one("none", "dot", "scaled_dot", "general", "concat", "location")
    query, both = one("current", "previous"), one(True, False) and not score.endswith("dot")
    return RecurrentConfig(
        vocab_size=vocab,
        d_model=D,
        num_layers=one(1, 2),
        cell=one("tanh", "relu", "lstm", "gru", "gru_reset_after"),
        bidirectional=both,
        reverse_source=one(True, False),
        max_length=length,
        dropout=0.0,
        embedding=RecurrentEmbeddingConfig(24, one(True, False)),
        attention=AlignmentConfig(
            score, query, one(True, False) and query == "current" and score != "none"
        ),
        head=RecurrentHeadConfig(query == "previous" and one(True, False)),
    )


def _language(packed: bool, rng: np.random.Generator, kernel: str, length: int, rows: int) -> Case:
    sizes = _config(rng, kernel, length, ("learned", "rope", "alibi"))
    window = (None, length // 3)[rng.integers(2)]
    sizes["scores"] = dataclasses.replace(sizes["scores"], sliding_window=window)
    config = TransformerConfig(**sizes, encoder_layers=0, decoder_layers=2)
    tokens = rng.integers(3, 23, (rows, length + 1)).astype(np.int32)
    weights = (rng.random((rows, length)) < 0.9).astype(np.float32)
    batch = {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "weights": weights}
    if packed:
        begins = rng.random((rows, length)) < 0.15
        begins[:, 0] = True
        segments = np.cumsum(begins, 1).astype(np.int32)
        begun = np.maximum.accumulate(np.where(begins, np.arange(length), 0), 1)
        batch |= {"segments": segments, "positions": (np.arange(length) - begun).astype(np.int32)}
    make = lambda: make_model("decoder", config, rngs=nnx.Rngs(0))
    return Case(make, objectives.language_model(), batch, _accumulation(rng), config)


def _texts(rng: np.random.Generator, length: int, rows: int) -> dict[str, Any]:
    lengths = rng.integers(4, length + 1, rows).astype(np.int32)
    return {
        "tokens": rng.integers(5, 23, (rows, length)).astype(np.int32),
        "lengths": lengths,
        "types": (np.arange(length) > lengths[:, None] // 2).astype(np.int32),
    }


def _encoder(rng: np.random.Generator, kernel: str, length: int) -> TransformerConfig:
    drawn = _config(rng, kernel, length, ("learned", "rope", "sinusoidal"))
    usual = bert(D, 2, vocab_size=drawn["vocab_size"], max_length=length, dropout=0.0)
    names = ("positions", "attention", "scores", "feed_forward", "compute")
    return dataclasses.replace(usual, **{name: drawn[name] for name in names})


def _masked(rng: np.random.Generator, kernel: str, length: int, rows: int) -> Case:
    config, masked = _encoder(rng, kernel, length), 3
    weights = (rng.random((rows, masked)) < 0.7).astype(np.float32)
    batch = _texts(rng, length, rows) | {
        "masked_positions": rng.integers(1, 4, (rows, masked)).astype(np.int32),
        "targets": rng.integers(5, 23, (rows, masked)).astype(np.int32),
        "weights": weights,
        "next_sentence_label": rng.integers(0, 2, rows).astype(np.int32),
    }
    make = lambda: make_model("encoder", config, rngs=nnx.Rngs(0))
    return Case(make, objectives.masked_lm(), batch, _accumulation(rng), config)


def _labels(task: Any, rng: np.random.Generator, kernel: str, length: int, rows: int) -> Case:
    config, batch = _encoder(rng, kernel, length), _texts(rng, length, rows)
    classes = lambda *shape: rng.integers(-1, 3, shape).astype(np.int32)
    objective, labels = {
        "classify": (objectives.sequence_classification(), classes(rows)),
        "tag": (objectives.token_classification(), classes(rows, length)),
        "regress": (objectives.regression(), rng.standard_normal(rows).astype(np.float32)),
        "qa": (objectives.question_answering(), rng.integers(-1, 4, (rows, 2)).astype(np.int32)),
    }[task]
    batch["labels"] = labels
    if task == "qa":
        batch["allowed"] = np.arange(length)[None] < batch["lengths"][:, None]
    make = lambda: make_model("encoder-task", config, task=task, labels=3, rngs=nnx.Rngs(0))
    return Case(make, objective, batch, _accumulation(rng), config)


def _pictures(stem: Any, rng: np.random.Generator, kernel: str, length: int, rows: int) -> Case:
    """Classes of images, mixed by one key, with a row that fills the batch up."""
    one = lambda *choices: choices[rng.integers(len(choices))]
    pooling = one("class", "sequence")
    form = {"stem": stem, "pooling": pooling}
    if pooling == "class":
        form["distillation"] = one("none", "embedding", "head")
    # Eight patches or a multiple of them, which devices share with the text.
    plain = vit(D, 2, image_size=8 * max(1, length // 24), patch_size=one(2, 4), **form)
    config = dataclasses.replace(
        plain,
        attention=AttentionConfig(num_heads=N, implementation=kernel),
        compute=ComputeConfig(scan_layers=one(True, False), remat=one(True, False)),
    )
    size = config.image.image_size
    labels = rng.integers(0, 3, rows).astype(np.int32)
    labels[-1] = -1
    images = rng.standard_normal((rows, size, size, 3)).astype(np.float32)
    mixing = {"mixup": one(0.0, 0.5), "cutmix": one(0.0, 1.0)}
    plainly = objectives.image_classification(0.1, **mixing)
    objective = lambda model, batch, key: plainly(model, batch, jax.random.key(3))
    make = lambda: make_model("image", config, task="classify", labels=3, rngs=nnx.Rngs(0))
    return Case(make, objective, {"images": images, "labels": labels}, 1, config)


def _pairs(rng: np.random.Generator, kernel: str, length: int, rows: int) -> Case:
    """Images and texts, of which one row has none."""
    drawn = _config(rng, kernel, length, ("learned", "sinusoidal"), encoder_layers=0)
    one = lambda *choices: choices[rng.integers(len(choices))]
    config = TransformerConfig(**drawn, decoder_layers=2)
    pooling = one("class", "attention", "sequence")
    encoder = vit(D, 2, image_size=8, patch_size=4, pooling=pooling)
    encoder = dataclasses.replace(encoder, compute=config.compute)
    contrast = ContrastConfig(one("softmax", "sigmoid"), projection_dim=24)
    lengths = rng.integers(1, length + 1, rows).astype(np.int32)
    lengths[5] = 0  # in the middle, so that the order of rows matters
    batch = {
        "images": rng.standard_normal((rows, 8, 8, 3)).astype(np.float32),
        "tokens": rng.integers(3, 23, (rows, length)).astype(np.int32),
        "lengths": lengths,
        # Four texts, of which each image has two.
        "captions": np.stack([np.arange(rows) % 4, (np.arange(rows) + 1) % 4], 1).astype(np.int32),
    }
    make = lambda: TwoTowers(encoder, config, contrast, rngs=nnx.Rngs(0))
    objective = objectives.contrastive(contrast.loss)
    return Case(make, objective, batch, _accumulation(rng), config)


def _compared(rng: np.random.Generator, kernel: str, length: int, rows: int) -> Case:
    """Rows of two pairs of texts each, of which one has none, compared by any loss."""
    one = lambda *choices: choices[rng.integers(len(choices))]
    config, kind = _encoder(rng, kernel, length), one("cosine", "cosent", "ranking")
    lengths = rng.integers(1, length // 4 + 1, (rows, 4)).astype(np.int32)
    lengths[2, 2:] = 0
    starts = (np.cumsum(lengths, 1) - lengths).astype(np.int32)
    places = np.arange(length)[None, None] - starts[..., None]
    inside = (places >= 0) & (places < lengths[..., None])
    batch = {
        "tokens": rng.integers(3, 23, (rows, length)).astype(np.int32),
        "segments": (inside * np.arange(1, 5)[:, None]).sum(1).astype(np.int32),
        "positions": (inside * places).sum(1).astype(np.int32),
        "starts": starts,
        "lengths": lengths,
    }
    if kind == "ranking":
        texts = rng.integers(0, 3 * rows, (rows, 2, 2)).astype(np.int32)
        texts[2, 1] = -1
        batch |= {"texts": texts, "partners": texts}
    else:
        labels = rng.random((rows, 2)).astype(np.float32)
        labels[2, 1] = np.nan
        batch["labels"] = labels
    pools = one(("mean",), ("cls",), ("mean", "max"))
    form = SentenceForm(pools, one(None, DenseForm(24, tanh=True)), one(True, False))
    make = lambda: SentenceEncoder(config, form, rngs=nnx.Rngs(0))
    objective = objectives.similarity(kind, scale=4.0, widths=one((), (24, 8)))
    return Case(make, objective, batch, _accumulation(rng), config)


def _mixed(task: Any, rng: np.random.Generator, kernel: str, length: int, rows: int) -> Case:
    """A case of another task whose blocks have another mixer."""
    case = task(rng, "auto", length, rows)
    one = lambda *choices: choices[rng.integers(len(choices))]
    cell = one("tanh", "relu", "lstm", "gru", "gru_reset_after")
    convolution = MixerConfig("convolution", kernel_size=one(2, 3), dilations=(one(1, 2),))
    config = dataclasses.replace(
        case.config,
        mixer=one(MixerConfig("recurrent", cell=cell), convolution),
        positions=PositionConfig("none", max_length=length),
        scores=ScoreConfig(),
        feed_forward=FeedForwardConfig(d_ff=one(0, 64)),
    )
    kind = "encoder-decoder" if config.encoder_layers else "decoder"
    make = lambda: make_model(kind, config, rngs=nnx.Rngs(0))
    return case._replace(make=make, config=config)


def _adapted(task: Any, rng: np.random.Generator, kernel: str, length: int, rows: int) -> Case:
    """A case of another task, of which adapters alone are trained; none of them is zero."""
    case = task(rng, kernel, length, rows)
    one = lambda *choices: choices[rng.integers(len(choices))]
    variant, targets = one("lora", "rslora", "dora"), one("attention", "all-linear")
    plain = lora(LoRAConfig(4, 8.0, targets=(targets,), variant=variant))

    def split(params: Any, rngs: nnx.Rngs) -> tuple[Any, Any]:
        trainable, frozen = plain.split(params, rngs)
        nudge = lambda p: p.replace(p[...] + 0.1 * jax.random.normal(rngs.params(), p.shape))
        return map_parameters(nudge, trainable), frozen

    return case._replace(partition=plain._replace(split=split))


TASKS: dict[str, Callable[[np.random.Generator, str, int, int], Case]] = {
    "translation": _translation,
    "recurrent translation": _recurrent,
    "mixed translation": functools.partial(_mixed, _translation),
    "speech": _speech,
    "captions": _captions,
    "mixed packed texts": functools.partial(_mixed, functools.partial(_language, True)),
    "texts": functools.partial(_language, False),
    "packed texts": functools.partial(_language, True),
    "masked texts": _masked,
    "adapters of a translator": functools.partial(_adapted, _translation),
    "adapters of packed texts": functools.partial(_adapted, functools.partial(_language, True)),
    "classify": functools.partial(_labels, "classify"),
    "tag": functools.partial(_labels, "tag"),
    "regress": functools.partial(_labels, "regress"),
    "qa": functools.partial(_labels, "qa"),
    "pictures": functools.partial(_pictures, "linear"),
    "convolved pictures": functools.partial(_pictures, "convolutions"),
    "images and texts": _pairs,
    "compared texts": _compared,
}


def step_on(mesh: Any, case: Case) -> tuple[Any, float]:
    """Parameters after a step on a mesh, and its loss."""
    part = case.partition
    graph, state, shardings, frozen = create_state(case.make, DESCENT, mesh, partition=part)
    merge = functools.partial(part.merge, graph)
    raw = make_step(case.objective, DESCENT, merge, accumulation=case.accumulation)
    rows = len(jax.tree.leaves(case.batch)[0])
    held = local_rows(mesh, rows)
    batch = shard_batch(jax.tree.map(lambda x: x[held], case.batch), mesh, rows)
    of_frozen = jax.tree.map(lambda leaf: leaf.sharding, frozen)
    step = compile_step(raw, mesh, shardings, frozen=of_frozen)
    state, metrics = jax.block_until_ready(step(state, frozen, batch, None))
    return state.params, float(metrics["loss"])


def scale(whole: Any) -> float:
    """The largest number of a whole array, or 1: of larger ones float32 has fewer decimals."""
    return max(1.0, float(np.abs(whole).max()))


def worst_difference(params: Any, expected: Any) -> float:
    """The largest difference of what this process holds from arrays that are whole, by scale."""
    worst = 0.0
    for found, whole in zip(jax.tree.leaves(params), jax.tree.leaves(expected), strict=True):
        for shard in found.addressable_shards:
            difference = float(np.abs(shard.data - whole[shard.index]).max())
            worst = max(worst, difference / scale(whole))
    return worst


def interpret_splash() -> None:
    """Let the fused kernel of TPUs run on a CPU."""
    interpreted = {
        name: functools.partial(getattr(splash, name), interpret=True)
        for name in ("run", "run_part")
    }
    kernels.KERNELS["splash"] = kernels.KERNELS["splash"]._replace(**interpreted)
