"""Translators and language models as folders that CTranslate2 runs, written from their parameters.

https://opennmt.net/CTranslate2. What is written is told by the configuration alone, so that any
architecture of ours which its layers can compute goes there, whatever family it was published in.
"""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.config import TransformerConfig
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.errors import CheckpointError, ConfigError, DataError
from transformer_jax.functional.positions import sinusoidal
from transformer_jax.interop.family import Model
from transformer_jax.modules.stack import unstack_blocks
from transformer_jax.training.trees import named

__all__ = ["never_written", "refusal", "vocabulary", "write_ctranslate2"]

# Their names of non-linearities, by ours.
_ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_tanh": "GELUTanh",
    "silu": "SWISH",
    "quick_gelu": "GELUSigmoid",
    "tanh": "Tanh",
}
# Added to a score, it hides a token, and fits into float16.
_NEVER = -1e4
_MOST_BYTES = 2**32 - 1  # of one tensor: its size is stored in 32 bits
_VOCABULARIES = ("vocabulary", "shared_vocabulary", "source_vocabulary", "target_vocabulary")


def write_ctranslate2(output: Path, model: Model, params: Any, tokenizer: Tokenizer) -> str:
    """Writes a model as a folder for CTranslate2 with its tokenizer; a line about it.

    The folder computes what the model computes, and texts that it is given are framed by who gives
    them: the line says how. Of a translator, tokens that no translation holds
    (:func:`never_written`) get a score that is never chosen, as in ours; published ones have a rule
    for that (Marian's ``bad_words_ids``), and CTranslate2 has none.

    Args:
        output: The folder.
        model: What is written.
        params: Its parameters.
        tokenizer: Its tokenizer, whose tokens become the vocabulary.

    Raises:
        ConfigError: The package is missing, or cannot express the model; it says in what.
        CheckpointError: Nothing can be written there.
    """
    reason = refusal(model)
    if reason is not None:
        raise ConfigError(f"CTranslate2 cannot run this model: {reason}")
    specs = _package().specs
    config, both = model.config, model.kind == "encoder-decoder"
    source = _Source(_by_name(params), specs)
    decoder = source.decoder(config)
    names = lambda size: vocabulary(tokenizer, size)
    if both:
        source.hide(decoder, never_written(tokenizer, config.decoder().vocab))
        spec = specs.TransformerSpec(source.encoder(config), decoder)
        spec.register_source_vocabulary(names(config.vocab))
        spec.register_target_vocabulary(names(config.decoder().vocab))
        spec.config.decoder_start_token = tokenizer.name(tokenizer.bos)
    else:
        spec = specs.TransformerDecoderModelSpec(decoder)
        spec.register_vocabulary(names(config.vocab))
    spec.config.bos_token = tokenizer.name(tokenizer.bos)
    spec.config.eos_token = tokenizer.name(tokenizer.eos)
    spec.config.unk_token = "" if tokenizer.unk is None else tokenizer.name(tokenizer.unk)
    spec.config.layer_norm_epsilon = config.norm.eps
    _save(spec, output)
    tokenizer.save(output / "tokenizer.json")
    return f"ctranslate2: {spec.name}, float32; {_framing(tokenizer, both)}"


def refusal(model: Model) -> str | None:
    """What of a model CTranslate2 cannot express, or None.

    Example:
        >>> from transformer_jax.config import PRESETS
        >>> refusal(Model("decoder", PRESETS["gpt2"]))
        >>> refusal(Model("encoder", PRESETS["bert_base"])).partition(":")[0]
        'it is an encoder'
    """
    config, both = model.config, model.kind == "encoder-decoder"
    if model.kind not in ("decoder", "encoder-decoder"):
        return "it is an encoder: its heads have no place there; --format hf and stablehlo have one"
    places, scores = config.positions, config.scores
    reasons = {
        "scores.softcap: attention scores are not capped there": scores.softcap is not None,
        "scores.window: prompts are not read through a window there": scores.window is not None,
        "norm.place sandwich: not beside an encoder": both and config.norm.place == "sandwich",
        "embedding.segments: decoders have none there": config.embedding.segments > 0,
        "attention.value_dim: there it is attention.head_dim": (
            config.attention.value_dim not in (None, config.head_dim)
        ),
        "positions.kind alibi: encoders have none there": both and places.kind == "alibi",
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def never_written(tokenizer: Tokenizer, size: int) -> tuple[int, ...]:
    """Tokens that no translation holds: padding, BOS, and what has no text.

    Args:
        tokenizer: Tells them.
        size: How many tokens the model writes.

    Example:
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> never_written(train_tokenizer("bytes", []), 262)
        (0, 2, 260, 261)
    """
    found = {tokenizer.pad, tokenizer.bos, *range(tokenizer.vocab_size, size)}
    return tuple(sorted(token for token in found - {tokenizer.eos} if token < size))


def vocabulary(tokenizer: Tokenizer, size: int) -> list[str]:
    """The first ``size`` tokens by their names; ids without a token get names that nothing has.

    Example:
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> names = vocabulary(train_tokenizer("bytes", []), 262)
        >>> names[:3], names[260:]
        (['<pad>', '<unk>', '<bos>'], ['<unused260>', '<unused261>'])
    """
    found: list[str | None] = []
    for id in range(size):
        try:
            found.append(tokenizer.name(id))
        except (DataError, OverflowError):
            found.append(None)
    known = {name for name in found if name is not None}

    def unused(id: int) -> str:
        name = f"<unused{id}>"
        while name in known:
            name = f"<{name}>"
        return name

    return [unused(id) if name is None else name for id, name in enumerate(found)]


class _Source:
    """Parameters by name, as the layers that CTranslate2 describes."""

    def __init__(self, known: Mapping[str, np.ndarray], specs: Any):
        self.known, self.specs = known, specs

    def encoder(self, config: TransformerConfig) -> Any:
        common = self._settings(config)
        spec = self.specs.TransformerEncoderSpec(config.encoder_layers, **common)
        spec.embeddings[0].weight = self.known["embedding/table"]
        self._stack(spec, "encoder", config, decoder=False)
        return spec

    def decoder(self, config: TransformerConfig) -> Any:
        both, config = bool(config.encoder_layers), config.decoder()
        alibi = config.positions.kind == "alibi"
        spec = self.specs.TransformerDecoderSpec(
            config.decoder_layers,
            with_encoder_attention=both,
            alibi=alibi,
            **self._settings(config),
        )
        own = self.known.get("decoder_embedding/table")
        spec.embeddings.weight = self.known["embedding/table"] if own is None else own
        self._stack(spec, "decoder", config, decoder=True)
        head = config.head
        spec.projection.weight = spec.embeddings.weight if head.tied else self.known["head/table"]
        if head.bias:
            spec.projection.bias = self.known["head/bias"]
        if head.scale != 1.0:
            spec.scale_outputs = float(head.scale)
        if head.softcap is not None:
            spec.final_logit_softcapping = float(head.softcap)
        return spec

    def hide(self, spec: Any, tokens: Sequence[int]) -> None:
        """Gives tokens a score that is never chosen."""
        head = spec.projection
        bias = head.bias.copy() if head.has_bias() else np.zeros(len(head.weight), np.float32)
        bias[list(tokens)] = _NEVER
        head.bias = bias

    def _settings(self, config: TransformerConfig) -> dict[str, Any]:
        att, places = config.attention, config.positions
        kv_heads = att.kv_heads or att.heads
        found = {
            "num_heads": att.heads,
            "num_heads_kv": None if kv_heads == att.heads else kv_heads,
            "head_dim": config.head_dim,
            # Without norms before sub-layers there would be no place for one at the end.
            "pre_norm": config.norm.place != "post" or config.final_norm,
            "pre_post_layer_norm": config.norm.place == "sandwich",
            "no_final_norm": not config.final_norm,
            "activation": self.specs.Activation[_ACTIVATIONS[config.feed_forward.activation]],
            "layernorm_embedding": config.embedding.norm,
            "relative_attention_bias": places.kind == "relative",
            "ffn_glu": config.feed_forward.gated,
            "rms_norm": config.norm.kind == "rms",
            "qk_norm": att.qk_norm,
        }
        if places.kind == "rotary":
            found |= {"rotary_dim": config.head_dim, "rotary_interleave": False}
            found |= {"rotary_base": places.rotary_base}
        return found

    def _stack(self, spec: Any, side: str, config: TransformerConfig, *, decoder: bool) -> None:
        spec.pre_norm = config.norm.place != "post"
        spec.scale_embeddings = float(config.embedding_scale)
        if hasattr(spec, "position_encodings"):
            spec.position_encodings.encodings = self._positions(side, config)
        if config.embedding.norm:
            self._norm(spec.layernorm_embedding, f"{side}/embedding_norm", config)
        if config.final_norm:
            self._norm(spec.layer_norm, f"{side}/final_norm", config)
        for i, layer in enumerate(spec.layer):
            self._block(layer, f"{side}/blocks/{i}", config)
            if config.positions.kind == "relative":
                mix = layer.self_attention
                mix.relative_attention_bias = self.known[f"{side}/relative/table"]
                mix.relative_attention_max_distance = np.int32(config.positions.max_distance)

    def _positions(self, side: str, config: TransformerConfig) -> np.ndarray:
        """What is added to the vector at each position."""
        places = config.positions
        if places.kind == "learned":
            return self.known[f"{side}/positions/table"][places.offset :]
        if places.kind == "none":
            return np.zeros((places.max_length, config.width), np.float32)
        layout: Any = "halves" if places.kind.endswith("halves") else "interleaved"
        return np.asarray(sinusoidal(places.max_length, config.width, layout))

    def _block(self, layer: Any, name: str, config: TransformerConfig) -> None:
        norms = {"self_attention": "self_attention_norm", "ffn": "feed_forward_norm"}
        if config.norm.place == "sandwich":
            for theirs, ours in (
                ("input", "self_attention_norm"),
                ("post_attention", "self_attention_norm_after"),
                ("pre_feedforward", "feed_forward_norm"),
                ("post_feedforward", "feed_forward_norm_after"),
            ):
                self._norm(getattr(layer, f"{theirs}_layer_norm"), f"{name}/{ours}", config)
        else:
            for theirs, ours in norms.items():
                self._norm(getattr(layer, theirs).layer_norm, f"{name}/{ours}", config)
        self._attention(
            layer.self_attention,
            f"{name}/self_attention",
            (("query", "key", "value"), ("out",)),
            config,
        )
        if hasattr(layer, "attention"):
            self._norm(layer.attention.layer_norm, f"{name}/cross_attention_norm", config)
            maps = ("query",), ("key", "value"), ("out",)
            self._attention(layer.attention, f"{name}/cross_attention", maps, config)
        wide = f"{name}/feed_forward"
        self._linear(layer.ffn.linear_0, f"{wide}/up")
        self._linear(layer.ffn.linear_1, f"{wide}/down")
        if config.feed_forward.gated:
            self._linear(layer.ffn.linear_0_noact, f"{wide}/gate")

    def _attention(
        self, spec: Any, name: str, maps: tuple[tuple[str, ...], ...], config: TransformerConfig
    ) -> None:
        scale = config.scores.scale
        spec.queries_scale = float(config.head_dim**-0.5 if scale is None else scale)
        for linear, parts in zip(spec.linear, maps, strict=True):
            self._linear(linear, *(f"{name}/{part}" for part in parts))
        if config.attention.qk_norm:
            for theirs, ours in (("q_norm", "query_norm"), ("k_norm", "key_norm")):
                # Theirs has no bias unless told.
                rms = config.norm.kind == "rms"
                setattr(spec, theirs, self.specs.common_spec.LayerNormSpec(rms_norm=rms))
                self._norm(getattr(spec, theirs), f"{name}/{ours}", config)

    def _linear(self, spec: Any, *names: str) -> None:
        """One linear map, or several of the same input side by side."""
        kernels = [self.known[f"{name}/kernel"] for name in names]
        spec.weight = np.ascontiguousarray(np.concatenate(kernels, axis=1).T)
        biases = [self.known.get(f"{name}/bias") for name in names]
        if biases[0] is not None:
            spec.bias = np.concatenate(biases)

    def _norm(self, spec: Any, name: str, config: TransformerConfig) -> None:
        spec.gamma = self.known[f"{name}/gain"] + np.float32(config.norm.gain_offset)
        if config.norm.kind == "layer":
            bias = self.known.get(f"{name}/bias")
            spec.beta = np.zeros_like(spec.gamma) if bias is None else bias


def _by_name(params: Any) -> dict[str, np.ndarray]:
    """Parameters by name, those of each block on its own."""
    apart = dict(params)
    for side in ("encoder", "decoder"):
        blocks = params.get(side, {}).get("blocks", {})
        if blocks and not all(isinstance(key, int) for key in blocks):
            apart[side] = params[side] | {"blocks": unstack_blocks(blocks)}
    return {name: np.asarray(leaf, np.float32) for name, leaf in named(apart).items()}


def _framing(tokenizer: Tokenizer, both: bool) -> str:
    """What has to stand around a text that is given, in words."""
    name = tokenizer.name
    if not both:
        return f"prompts begin with {name(tokenizer.bos)}, or as those of the training did"
    before = "".join(f"{name(id)} " for id in tokenizer.before)
    after = "".join(f" {name(id)}" for id in tokenizer.after)
    return f"sources are tokens framed as {before}…{after}"


def _save(spec: Any, output: Path) -> None:
    spec.validate()
    largest = max(variable.num_bytes() for variable in spec.variables().values())
    if largest > _MOST_BYTES:
        raise ConfigError(f"CTranslate2 cannot run this model: a tensor of {largest:,} bytes")
    spec.optimize()
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name in _VOCABULARIES:
            with contextlib.suppress(FileNotFoundError):
                (output / f"{name}.json").unlink()
        spec.save(str(output))
    except OSError as error:
        raise CheckpointError(f"{output}: cannot be written: {error.strerror}") from None


def _package() -> Any:
    try:
        import ctranslate2
        import ctranslate2.specs
    except ImportError:
        raise ConfigError(
            "--format ctranslate2 needs a package that is not installed: "
            "pip install 'transformer-jax[ctranslate2]'"
        ) from None
    return ctranslate2
