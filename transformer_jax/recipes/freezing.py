"""Freezing and re-initialization for fine-tuning."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from flax import nnx
from jaxtyping import PyTree

from transformer_jax.core.errors import CheckpointError, ConfigError, plural
from transformer_jax.core.trees import flatten_dict
from transformer_jax.data.added_tokens import has_token
from transformer_jax.data.extension import joined_tokens
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.inference.facts import ENCODERS, FINE_TUNED, Opening
from transformer_jax.inference.pretrained import abstract_model, read_facts
from transformer_jax.models.build import make_model
from transformer_jax.models.config import LoRAConfig
from transformer_jax.models.lora import lora
from transformer_jax.models.partition import EVERYTHING, Partition, where
from transformer_jax.models.recurrent_config import ModelConfig, RecurrentConfig
from transformer_jax.models.trainable_tokens import trainable_tokens
from transformer_jax.recipes.registry import get_recipe
from transformer_jax.recipes.settings import Adapted, AnyRun, StartConfig, Trained, start_config
from transformer_jax.recipes.start import Start, parameter_shapes
from transformer_jax.training.state import abstract_parts

__all__ = [
    "check_layers",
    "initial_of",
    "load_pretrained",
    "partition_for",
    "partition_of",
    "with_new_tokens",
]

# Parameters before the first block of a stack, frozen with the embeddings.
_ENTRANCE = ("positions", "segments", "embedding_norm", "projection")
# Parameters after the last block: heads of language models and translators, of labels, of masked
# tokens; the last is for recurrent translators.
_HEADS = [
    "head/", "labels/", "distilled_labels/", "transform/", "transform_norm/", "next_sentence/",
    "decoder/table/",
]  # fmt: skip

# Parameters that are trained in addition to adapters.
_NEW_HEADS = ("labels/", "pooler/", "value/")

# Parameters before the first block of an encoder, outside the stack.
_TABLES = (
    "embedding/", "class_embedding/", "distillation_embedding/", "convolutions/",
)  # fmt: skip


def partition_of(freeze: str, model: ModelConfig | None = None) -> Partition:
    """Returns the partition of a run: all parameters that are not frozen are trainable.

    - ``embeddings``: the tables of tokens, positions and segments are frozen, with their norms.
    - ``encoder``, ``decoder``: the stack and its embeddings are frozen, including a table shared
      with the other stack or the output. Parameters of the head alone are trained.
    - a number N: the embeddings and the first N layers, of both encoder and decoder.

    Args:
        freeze: One of these, or ``none``.
        model: The model; needed for ``decoder`` and for recurrent translators.

    Example:
        >>> from flax import nnx
        >>> params = {"embedding": {"table": 1}, "labels": {"kernel": 2}}
        >>> partition_of("embeddings").split(params, nnx.Rngs(0))
        ({'labels': {'kernel': 2}}, {'embedding': {'table': 1}})
    """
    if freeze == "none":
        return EVERYTHING
    if isinstance(model, RecurrentConfig):
        frozen = _recurrent_parts(freeze, model)
        return where(lambda path: not path.startswith(frozen) or path.startswith("decoder/table/"))
    if freeze == "encoder":
        parts = ("encoder/", *_TABLES, "pooler/", "pool/")
        return where(lambda path: not path.startswith(parts))
    if freeze == "decoder":
        alone = model is not None and model.encoder_layers and not _shares_tables(model)
        table = "decoder_embedding/" if alone else "embedding/"
        return where(lambda path: not path.startswith(("decoder/", table)))
    layers = 0 if freeze == "embeddings" else int(freeze)
    stacks = ("encoder", "decoder")
    entrance = (f"{stack}/{part}/" for stack in stacks for part in _ENTRANCE)
    tables = (*_TABLES, "decoder_embedding/", *entrance)

    def trained(path: str) -> bool:
        parts = path.split("/")
        if parts[0] in stacks and parts[1] == "blocks":
            # Layers of a scanned stack have no numbers, so a number above 0 cannot freeze them.
            return not parts[2].isdecimal() or int(parts[2]) >= layers
        return not path.startswith(tables)

    return where(trained)


def _recurrent_parts(freeze: str, model: RecurrentConfig) -> tuple[str, ...]:
    """Returns the path prefixes of frozen parameters of a recurrent translator."""
    shared = model.embedding.share_encoder_decoder_embeddings
    table = "decoder/embedding/"  # shared by both sides, if they share one
    if freeze in ("encoder", "decoder"):
        return (f"{freeze}/", *(table,) * shared)
    layers = range(0 if freeze == "embeddings" else int(freeze))
    return ("encoder/embedding/", table, *(name for i in layers for name in _layer_names(i)))


def _layer_names(i: int) -> tuple[str, ...]:
    """Returns the path prefixes of layer ``i`` of a recurrent translator."""
    ways = ("encoder/layers/forward", "encoder/layers/backward", "decoder/layers/forward")
    return tuple(f"{way}/{i}/" for way in ways)


def partition_for(run: Trained, tokenizer: Tokenizer | None) -> Partition:
    """Returns the partition of a run: adapters, or the parameters that are not frozen.

    With adapters, a new head (of labels with its pooler, or of values) and the rows of
    ``trainable_tokens`` in frozen tables are also trained.
    """
    tokens = start_config(run).trainable_tokens
    ids = [] if tokenizer is None else [tokenizer.token_id(token) for token in tokens]
    return trainable_tokens(_without_tokens(run), ids)


def _adapters(run: Trained) -> LoRAConfig | None:
    """Returns the adapters of a run; None if it trains none."""
    return run.lora if isinstance(run, Adapted) and run.lora.rank else None


def _without_tokens(run: Trained) -> Partition:
    if (adapters := _adapters(run)) is None:
        return partition_of(start_config(run).freeze, run.model)
    return lora(adapters, lambda path: path.startswith(_NEW_HEADS))


def _freezes_table(run: Trained) -> bool:
    """Returns whether a table of tokens is frozen completely."""
    if _adapters(run) is not None:
        return True
    rows = {"table": 0}
    tables: dict[str, Any] = {"embedding": rows, "decoder_embedding": rows}
    if isinstance(run.model, RecurrentConfig):
        tables = {"encoder": {"embedding": rows}, "decoder": {"embedding": rows}}
    return bool(partition_of(start_config(run).freeze, run.model).split(tables, nnx.Rngs(0))[1])


def with_new_tokens(run: AnyRun, before: Tokenizer, grown: Tokenizer) -> AnyRun:
    """Adds a run's new tokens to its ``trainable_tokens``, if a table is frozen.

    Args:
        run: The settings of a run of any family.
        before: The tokenizer of the start.
        grown: The tokenizer of the run.
    """
    own = start_config(run)
    if own.init_from is None or not isinstance(run, Trained) or not _freezes_table(run):
        return run
    new = [grown.name(token) for token in range(before.vocab_size, grown.vocab_size)]
    tokens = tuple(dict.fromkeys((*own.trainable_tokens, *new)))
    changed: Any = dataclasses.replace(own, trainable_tokens=tokens)
    return (
        changed if isinstance(run, StartConfig) else dataclasses.replace(run, **{"task": changed})
    )


def _check_adapters(run: Trained, adapters: LoRAConfig, stack: str, own: StartConfig) -> None:
    """Refuses adapters that match no part of the model, or that would leave parts untrained."""
    if isinstance(run.model, RecurrentConfig):
        raise ConfigError(
            f"lora.rank is {adapters.rank}: adapters are for Transformers, and {own.init_from} is "
            f"a recurrent translator: leave it out"
        )
    if run.model.decoder_layers and stack == "encoder":
        raise ConfigError(
            f"lora.rank is {adapters.rank}: the decoder is new, as {own.init_from} is an encoder: "
            f"adapters need a trained translator to start from"
        )
    both = run.model.encoder_layers, run.model.decoder_layers
    kind: Any = "encoder-decoder" if all(both) else "decoder" if both[1] else "encoder"
    compute = dataclasses.replace(run.model.compute, dtype="float32")  # may be unknown yet
    config = dataclasses.replace(run.model, compute=compute)
    abstract_parts(lambda: make_model(kind, config, rngs=nnx.Rngs(0)), _without_tokens(run))


def _shares_tables(model: ModelConfig) -> bool:
    return model.embedding.share_encoder_decoder_embeddings


def check_layers(run: Trained, start: Start) -> None:
    """Refuses settings about layers that the model of a run does not have or would never train.

    Args:
        run: The settings, with the model of the start.
        start: The start of the run.

    Raises:
        ConfigError: It names the setting and what is allowed.
    """
    own, model = start_config(run), run.model
    prefix, freeze, stack = own.prefix, own.freeze, _top_stack(start)
    layers = getattr(model, f"{stack}_layers")
    if own.reinit_last > layers:
        raise ConfigError(
            f"{prefix}reinit_last is {own.reinit_last}: there are {plural(layers, 'layer')}"
        )
    if freeze in ("encoder", "decoder") and not getattr(model, f"{freeze}_layers"):
        raise ConfigError(f"{prefix}freeze is {freeze}: {own.init_from} has no such part")
    both = min(model.encoder_layers or layers, model.decoder_layers or layers)
    if freeze.isdecimal() and int(freeze) > both:
        raise ConfigError(f"{prefix}freeze is {freeze}: there are {plural(both, 'layer')}")
    if freeze.isdecimal() and int(freeze) and model.compute.scan_layers:
        raise ConfigError(
            f"{prefix}freeze is {freeze}: the layers of a scanned stack cannot be frozen one by "
            f"one: add --model.compute.no-scan-layers"
        )
    if model.decoder_layers and stack == "encoder" and freeze not in ("none", "encoder"):
        raise ConfigError(
            f"{prefix}freeze is {freeze}: the decoder is new, as {own.init_from} is an encoder: "
            f"allowed are none and encoder"
        )
    kept = layers if freeze == stack else int(freeze) if freeze.isdecimal() else 0
    if kept + own.reinit_last > layers:
        raise ConfigError(
            f"{prefix}freeze is {freeze} and {prefix}reinit_last {own.reinit_last}: reinitialized "
            f"layers would never be trained"
        )
    if (adapters := _adapters(run)) is not None:
        _check_adapters(run, adapters, stack, own)
    if run.tokenizer is not None:
        _check_trainable_tokens(run, start)
        _check_tokens_like(run, start)
    elif own.trainable_tokens or own.tokens_like:
        given = "trainable_tokens" if own.trainable_tokens else "tokens_like"
        raise ConfigError(f"{prefix}{given} is given, but this run reads no text: leave it out")
    if own.reinit_head:
        _check_head(run, start)
    if stack == "encoder" or _has_labels(run):  # the head is new, or separate
        return
    if own.reinit_head and model.head.tie_word_embeddings:
        raise ConfigError(
            "reinit_head: the output layer of this model is its embedding table: add "
            "--model.head.no-tie-word-embeddings, for a new table, or leave it out"
        )
    added = (*run.tokenizer.add_tokens, *run.tokenizer.add_special_tokens)
    grows = run.tokenizer.extend_by or not all(has_token(start.tokenizer, one) for one in added)
    if not own.trainable_tokens and not grows:
        _check_anything_is_trained(model, own)


def _check_trainable_tokens(run: Trained, start: Start) -> None:
    """Refuses tokens that do not exist, or whose table is trained completely."""
    own, tokenizer = start_config(run), run.tokenizer
    setting = f"{own.prefix}trainable_tokens"
    for token in own.trainable_tokens:
        added = token in tokenizer.add_tokens or token in tokenizer.add_special_tokens
        # Which subwords an extension has is not known before the text is read.
        if not (added or tokenizer.extend_by or has_token(start.tokenizer, token)):
            raise ConfigError(
                f"{setting}: {own.init_from} has no token {token!r}: add it with "
                f"--tokenizer.add-tokens, or leave it out"
            )
    if own.trainable_tokens and not _freezes_table(run):
        raise ConfigError(
            f"{setting} is {', '.join(own.trainable_tokens)}: all token rows are trained anyway: "
            f"leave it out, or add --lora.rank 8 or --freeze embeddings"
        )


def _check_tokens_like(run: Trained, start: Start) -> None:
    """Refuses pairs of ``tokens_like`` with an unknown old token or a known new token."""
    own, languages = start_config(run), start.tokenizer.languages
    setting = f"{own.prefix}tokens_like"
    added = {*run.tokenizer.add_tokens, *run.tokenizer.add_special_tokens}
    pairs = _pairs(own)
    for pair, (new, old) in zip(own.tokens_like, pairs, strict=True):
        if not new or not old:
            raise ConfigError(f"{setting}: {pair!r} is not NEW=OLD, such as xxx_Latn=deu_Latn")
        if not has_token(start.tokenizer, _token(start.tokenizer, old)):
            raise ConfigError(f"{setting}: {own.init_from} has no token {old!r}")
        tag = languages.token(new) if languages else new
        token = tag if tag in added else new
        if has_token(start.tokenizer, _token(start.tokenizer, token)):
            raise ConfigError(f"{setting}: {own.init_from} has {new!r} already: leave it out")
        if token not in added:
            raise ConfigError(
                f"{setting}: {new!r} is not a new token of this run: add it with "
                f"--tokenizer.add-tokens, or as a language of --data.pairs"
            )
        if [name for name, _ in pairs].count(new) > 1:
            raise ConfigError(f"{setting}: {new!r} is given twice")


def _has_labels(run: Trained) -> bool:
    """Returns whether a run trains a head of labels or of a reward."""
    return get_recipe(run.recipe).family in (*FINE_TUNED, "image")


def _check_head(run: Trained, start: Start) -> None:
    """Refuses to reinitialize a head that is new anyway, since the start has none of its kind."""
    own = start_config(run)
    labels = _has_labels(run)
    if not labels and _top_stack(start) == "decoder":
        return  # the table of the tokens
    parts = ("labels/",) if labels else tuple(_HEADS)
    state = nnx.to_pure_dict(nnx.state(abstract_model(start.facts, start.model)))
    if not any(name.startswith(parts) for name in flatten_dict(state)):
        raise ConfigError(
            f"{own.prefix}reinit_head: {own.init_from} has no head for this run, so it is new "
            f"anyway: leave it out"
        )


def _check_anything_is_trained(model: ModelConfig, own: StartConfig) -> None:
    last = max(model.encoder_layers, model.decoder_layers) - 1
    names = [name.replace("/blocks/0/", f"/blocks/{last}/") for name in parameter_shapes(model)]
    tree = {name: {"": name} for name in names}
    if not partition_of(own.freeze, model).split(tree, nnx.Rngs(0))[0]:
        raise ConfigError(
            f"freeze is {own.freeze}: nothing is left to train, since the output of this model is "
            f"its embedding table: freeze less"
        )


def _top_stack(start: Start) -> str:
    """Returns the stack of a start that is followed by the output."""
    return "encoder" if start.family in (*ENCODERS, "image") else "decoder"


def load_pretrained(
    path: str, families: Sequence[str] = ENCODERS, allow_changed: bool | None = None
) -> Start:
    """Loads the run or Hugging Face folder at ``path`` as a start.

    Args:
        path: Its folder.
        families: Those that the run can start from.
        allow_changed: See :class:`.Opening`.

    Raises:
        ConfigError: The model is of another family; the message names the allowed ones.
        CheckpointError: The run does not exist, or is damaged.
    """
    return Start.of(read_facts(path, opening=Opening(allow_changed)), families, path)


def initial_of(
    run: Trained,
    families: Sequence[str],
    tokenizer: Tokenizer | None,
    allow_changed: bool | None = None,
) -> Callable[[PyTree], PyTree] | None:
    """Returns a function from new parameters to those of step 0; None if a run starts from scratch.

    Args:
        run: The settings.
        families: The families that the run can start from.
        tokenizer: The tokenizer of the run, which may have more tokens than the start's; None if
            the run reads no text.
        allow_changed: See :class:`.Opening`.
    """
    if start_config(run).init_from is None:
        return None
    return functools.partial(_initial, run, families, tokenizer, allow_changed)


def _initial(
    run: Trained,
    families: Sequence[str],
    tokenizer: Tokenizer | None,
    allow_changed: bool | None,
    params: PyTree,
) -> PyTree:
    own = start_config(run)
    assert own.init_from is not None
    try:
        start = load_pretrained(own.init_from, families, allow_changed)
    except CheckpointError as error:
        raise CheckpointError(
            f"{own.prefix}init_from: {error}: a run needs its start until its first checkpoint"
        ) from None
    stack = _top_stack(start)
    layers = getattr(run.model, f"{stack}_layers")
    inside = "layers/forward" if isinstance(run.model, RecurrentConfig) else "blocks"
    fresh = [f"{stack}/{inside}/{i}/" for i in range(layers - own.reinit_last, layers)]
    fresh += ["pooler/"] if own.reinit_last else []
    fresh += _HEADS if own.reinit_head else []
    anew = lambda name: name.startswith(tuple(fresh))
    if tokenizer is None:
        return start.given(params, anew, model=run.model)
    like = joined_tokens(tokenizer, start.tokenizer.vocab_size) | {
        tokenizer.token_id(_token(tokenizer, new)): (tokenizer.token_id(_token(tokenizer, old)),)
        for new, old in _pairs(own)
    }
    return start.given(params, anew, tokenizer.vocab_size, like)


def _pairs(own: StartConfig) -> list[tuple[str, str]]:
    """Returns the pairs of ``tokens_like``: a new token, and the token to initialize it from."""
    return [(new, old) for new, _, old in (pair.rpartition("=") for pair in own.tokens_like)]


def _token(tokenizer: Tokenizer, name: str) -> str:
    """Returns the token of a name, which may be a language code."""
    languages = tokenizer.languages
    named = languages is not None and name in languages.tags
    return tokenizer.name(languages.tags[name]) if languages and named else name
