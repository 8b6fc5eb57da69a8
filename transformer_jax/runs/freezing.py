"""What of a started run is trained, and what of it is newly initialized (row B38)."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from flax import nnx

from transformer_jax.config import TransformerConfig
from transformer_jax.data.added_tokens import has_token
from transformer_jax.data.examples import DECODER_TOKENS
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.errors import CheckpointError, ConfigError, plural
from transformer_jax.models.making import make_model
from transformer_jax.predictors.runs import ENCODERS
from transformer_jax.runs.initial import Initial, load_pretrained, parameter_shapes
from transformer_jax.runs.settings import StartConfig, start_config
from transformer_jax.training.lora import lora
from transformer_jax.training.partition import EVERYTHING, Partition, where
from transformer_jax.training.state import abstract_parts

__all__ = ["check_layers", "initial_of", "partition_for", "partition_of"]

# What comes before the first block of a stack, and is frozen with the embeddings.
_ENTRANCE = ("positions", "segments", "embedding_norm", "projection")
# What comes after the last block: of language models and translators, of labels, of masked tokens.
_HEADS = ["head/", "labels/", "transform/", "transform_norm/", "next_sentence/"]

# What is trained itself beside adapters.
_NEW_HEADS = ("labels/", "pooler/", "value/")
# New tokens that also frozen tables may have: at the mean of the others, with noise, the layers
# above can tell them apart.
_OWN = frozenset(DECODER_TOKENS)


def partition_of(freeze: str, model: TransformerConfig | None = None) -> Partition:
    """The partition of a run: all parameters, or those that are not frozen, are trainable.

    - ``embeddings``: the tables of tokens, positions and segments are frozen, with their norms.
    - ``encoder``, ``decoder``: the stack and its embeddings are frozen, a table that it shares
      with the other stack or with the output too. What the head has of its own is trained.
    - a number N: the embeddings and the first N layers, of encoder and decoder alike.

    Args:
        freeze: One of these, or ``none``.
        model: The model; needed for ``decoder`` only.

    Example:
        >>> from flax import nnx
        >>> params = {"embedding": {"table": 1}, "labels": {"kernel": 2}}
        >>> partition_of("embeddings").split(params, nnx.Rngs(0))
        ({'labels': {'kernel': 2}}, {'embedding': {'table': 1}})
    """
    if freeze == "none":
        return EVERYTHING
    if freeze == "encoder":
        return where(lambda path: not path.startswith(("encoder/", "embedding/", "pooler/")))
    if freeze == "decoder":
        alone = model is not None and model.encoder_layers and not _shares_tables(model)
        table = "decoder_embedding/" if alone else "embedding/"
        return where(lambda path: not path.startswith(("decoder/", table)))
    layers = 0 if freeze == "embeddings" else int(freeze)
    stacks = ("encoder", "decoder")
    entrance = (f"{stack}/{part}/" for stack in stacks for part in _ENTRANCE)
    tables = ("embedding/", "decoder_embedding/", *entrance)

    def trained(path: str) -> bool:
        parts = path.split("/")
        if parts[0] in stacks and parts[1] == "blocks":
            # Layers of a scanned stack have no numbers; they are frozen by no number above 0.
            return not parts[2].isdecimal() or int(parts[2]) >= layers
        return not path.startswith(tables)

    return where(trained)


def partition_for(run: Any) -> Partition:
    """The partition of a run, by its settings: adapters, or the parameters that are not frozen.

    A new head, of labels with its pooler or of values, is trained itself beside adapters.
    """
    own, adapters = start_config(run), getattr(run, "lora", None)
    if adapters is None or not adapters.rank:
        return partition_of(own.freeze, run.model)
    return lora(adapters, lambda path: path.startswith(_NEW_HEADS))


def _check_adapters(run: Any, stack: str, own: StartConfig) -> None:
    """Refuses adapters that fit nothing of the model, or that would leave parts untrained."""
    if run.model.decoder_layers and stack == "encoder":
        raise ConfigError(
            f"lora.rank is {run.lora.rank}: the decoder is new, as {own.init_from} is an encoder: "
            f"adapters need a trained translator to start from"
        )
    both = run.model.encoder_layers, run.model.decoder_layers
    kind: Any = "encoder-decoder" if all(both) else "decoder" if both[1] else "encoder"
    compute = dataclasses.replace(run.model.compute, dtype="float32")  # it may not be known yet
    config = dataclasses.replace(run.model, compute=compute)
    abstract_parts(lambda: make_model(kind, config, rngs=nnx.Rngs(0)), partition_for(run))


def _shares_tables(model: TransformerConfig) -> bool:
    return model.embedding.share_encoder_decoder_embeddings


def check_layers(run: Any, start: Initial) -> None:
    """Refuses settings about layers that the model of a run does not have, or never trains.

    Args:
        run: The settings, with the model of the start.
        start: What it starts from.

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
        raise ConfigError(f"{prefix}freeze is {freeze}: the model of {own.init_from} has none")
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
            f"{prefix}freeze is {freeze} and {prefix}reinit_last {own.reinit_last}: layers drawn "
            f"anew would never be trained"
        )
    adapters = getattr(run, "lora", None)
    if adapters is not None and adapters.rank:
        _check_adapters(run, stack, own)
    _check_new_tokens(run, start)
    if stack == "encoder" or prefix:  # whose head is new, or beside it
        return
    if own.reinit_head and model.head.tie_word_embeddings:
        raise ConfigError(
            "reinit_head: the output layer of this model is its embedding table: add "
            "--model.head.no-tie-word-embeddings, which gives it a new table, or leave it out"
        )
    _check_anything_is_trained(model, own)


def _check_new_tokens(run: Any, start: Initial) -> None:
    """Refuses new tokens whose rows would stay as they are drawn, but those of labeled examples."""
    own, adapters, asked = start_config(run), getattr(run, "lora", None), run.tokenizer
    added = [one for one in (*asked.add_tokens, *asked.add_special_tokens) if one not in _OWN]
    new = [token for token in added if not has_token(start.tokenizer, token)]
    if not new:
        return
    tables = {"embedding": {"table": 0}, "decoder_embedding": {"table": 0}}
    setting = f"{own.prefix}freeze is {own.freeze}"
    if adapters is not None and adapters.rank:
        setting = f"lora.rank is {adapters.rank}"
    elif not partition_of(own.freeze, run.model).split(tables, nnx.Rngs(0))[1]:
        return
    raise ConfigError(
        f"{setting}: the new tokens {', '.join(new)} would never be trained: leave it out, or add "
        f"no tokens, by --tokenizer flags or a --chat.template, that {own.init_from} lacks"
    )


def _check_anything_is_trained(model: TransformerConfig, own: StartConfig) -> None:
    last = max(model.encoder_layers, model.decoder_layers) - 1
    names = [name.replace("/blocks/0/", f"/blocks/{last}/") for name in parameter_shapes(model)]
    tree = {name: {"": name} for name in names}
    if not partition_of(own.freeze, model).split(tree, nnx.Rngs(0))[0]:
        raise ConfigError(
            f"freeze is {own.freeze}: nothing is left to train, as the output of this model is its "
            f"embedding table: freeze less"
        )


def _top_stack(start: Initial) -> str:
    """The stack whose last layers are those next to the output, of what a run starts from."""
    return "encoder" if start.family in ENCODERS else "decoder"


def initial_of(
    run: Any, families: tuple[str, ...], tokenizer: Tokenizer
) -> Callable[[Any], Any] | None:
    """The parameters of step 0 from newly initialized ones; None where a run starts from nothing.

    Args:
        run: The settings.
        families: Those that it can start from.
        tokenizer: Of the run; it may have more tokens than that of the start.
    """
    if start_config(run).init_from is None:
        return None
    return functools.partial(_initial, run, families, tokenizer.vocab_size)


def _initial(run: Any, families: tuple[str, ...], tokens: int, params: Any) -> Any:
    own = start_config(run)
    assert own.init_from is not None
    try:
        start = load_pretrained(own.init_from, families)
    except CheckpointError as error:
        raise CheckpointError(
            f"{own.prefix}init_from: {error}: a run needs what it starts from until its first "
            f"checkpoint"
        ) from None
    stack = _top_stack(start)
    layers = getattr(run.model, f"{stack}_layers")
    fresh = [f"{stack}/blocks/{i}/" for i in range(layers - own.reinit_last, layers)]
    fresh += ["pooler/"] if own.reinit_last else []
    fresh += _HEADS if own.reinit_head else []
    return start.given(params, lambda name: name.startswith(tuple(fresh)), tokens)
