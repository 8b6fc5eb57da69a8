"""Conversion of parameters to layers of CTranslate2."""

import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import PyTree

from transformer_jax.core.json_types import Json
from transformer_jax.core.trees import flatten_dict
from transformer_jax.functional.positions import rotary_frequencies
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.prepare import unstack_blocks
from transformer_jax.models.transformer.layers import frequencies_of, sinusoids

if TYPE_CHECKING:
    import ctranslate2.specs

__all__ = ["LayerSpecs"]

# CTranslate2's names of activations, by ours.
_ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_tanh": "GELUTanh",
    "silu": "SWISH",
    "quick_gelu": "GELUSigmoid",
    "tanh": "Tanh",
}
# Added to a score to exclude a token; fits into float16.
_NEVER = -1e4


class LayerSpecs:
    """Fills specifications of layers from parameters.

    Attributes:
        known: The parameters by name.
        specs: The module ``ctranslate2.specs``.
    """

    def __init__(self, params: PyTree, specs: types.ModuleType):
        self.known: Mapping[str, np.ndarray] = _by_name(params)
        self.specs = specs

    def encoder(self, config: TransformerConfig) -> "ctranslate2.specs.LayerSpec":
        """Sets the encoder of a translator."""
        common = self._settings(config)
        spec = self.specs.TransformerEncoderSpec(config.encoder_layers, **common)
        spec.embeddings[0].weight = self.known["embedding/table"]
        self._stack(spec, "encoder", config, decoder=False)
        return spec

    def decoder(self, config: TransformerConfig) -> "ctranslate2.specs.LayerSpec":
        """Sets the decoder of a translator or language model, with its head."""
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
        spec.projection.weight = (
            spec.embeddings.weight if head.tie_word_embeddings else self.known["head/table"]
        )
        if head.bias:
            spec.projection.bias = self.known["head/bias"]
        if head.scale != 1.0:
            spec.scale_outputs = float(head.scale)
        if head.final_logit_softcapping is not None:
            spec.final_logit_softcapping = float(head.final_logit_softcapping)
        return spec

    def hide(self, spec: "ctranslate2.specs.LayerSpec", tokens: Sequence[int]) -> None:
        """Sets a score for tokens that is never chosen."""
        head = spec.projection
        bias = head.bias.copy() if head.has_bias() else np.zeros(len(head.weight), np.float32)
        bias[list(tokens)] = _NEVER
        head.bias = bias

    def _settings(self, config: TransformerConfig) -> dict[str, Json]:
        att, places = config.attention, config.positions
        kv_heads = att.num_kv_heads or att.num_heads
        found = {
            "num_heads": att.num_heads,
            "num_heads_kv": None if kv_heads == att.num_heads else kv_heads,
            "head_dim": config.head_dim,
            # Only pre-norm specifications have a final norm.
            "pre_norm": config.norm.placement != "post" or config.final_norm,
            "pre_post_layer_norm": config.norm.placement == "sandwich",
            "no_final_norm": not config.final_norm,
            "activation": self.specs.Activation[_ACTIVATIONS[config.feed_forward.activation]],
            "layernorm_embedding": config.embedding.layernorm_embedding,
            "relative_attention_bias": places.kind == "relative",
            "ffn_glu": config.feed_forward.gated,
            "rms_norm": config.norm.kind == "rms",
            "qk_norm": att.qk_norm,
        }
        if places.kind == "rope":
            rope_dim = places.rope_dim or config.head_dim
            found |= {"rotary_dim": rope_dim, "rotary_interleave": False}
            found |= {"rotary_base": places.rope_theta} | self._scaling(config)
        if config.scores.sliding_window is not None:
            found["sliding_window"] = config.scores.sliding_window
        return found

    def _scaling(self, config: TransformerConfig) -> dict[str, Json]:
        """Sets RoPE scaling, if any."""
        places, kinds = config.positions, self.specs.RotaryScalingType
        if places.rope_method is not None:
            # The kind with a factor per frequency can express any other kind.
            length = {
                f"{name}max_position_embeddings": places.max_length for name in ("original_", "")
            }
            return {"rotary_scaling_type": kinds.Su} | length
        if places.rope_interpolation == 1.0:
            return {}
        factor = places.rope_interpolation
        return {"rotary_scaling_type": kinds.Linear, "rotary_scaling_factor": factor}

    def _stack(
        self,
        spec: "ctranslate2.specs.LayerSpec",
        side: str,
        config: TransformerConfig,
        *,
        decoder: bool,
    ) -> None:
        spec.pre_norm = config.norm.placement != "post"
        spec.scale_embeddings = float(config.embedding_scale)
        if hasattr(spec, "position_encodings"):
            spec.position_encodings.encodings = self._positions(side, config)
        if config.embedding.layernorm_embedding:
            self._norm(spec.layernorm_embedding, f"{side}/embedding_norm", config)
        if config.final_norm:
            self._norm(spec.layer_norm, f"{side}/final_norm", config)
        for i, layer in enumerate(spec.layer):
            self._block(layer, f"{side}/blocks/{i}", config)
            if config.scores.sliding_window is not None and config.scores.window_of(i) is None:
                layer.self_attention.sliding_window = np.int32(0)
            if config.positions.kind == "relative":
                mix = layer.self_attention
                mix.relative_attention_bias = self.known[f"{side}/relative/table"]
                mix.relative_attention_max_distance = np.int32(config.positions.max_distance)

    def _positions(self, side: str, config: TransformerConfig) -> np.ndarray:
        """Returns the vectors to add at each position."""
        places = config.positions
        if places.kind == "learned":
            return self.known[f"{side}/positions/table"][places.offset :]
        if places.kind == "none":
            return np.zeros((places.max_length, config.d_model), np.float32)
        return np.asarray(sinusoids(config))

    def _block(
        self, layer: "ctranslate2.specs.LayerSpec", name: str, config: TransformerConfig
    ) -> None:
        norms = {"self_attention": "self_attention_norm", "ffn": "feed_forward_norm"}
        if config.norm.placement == "sandwich":
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
        self,
        spec: "ctranslate2.specs.LayerSpec",
        name: str,
        maps: tuple[tuple[str, ...], ...],
        config: TransformerConfig,
    ) -> None:
        scale = config.scores.scale
        spec.queries_scale = float(config.head_dim**-0.5 if scale is None else scale)
        if config.positions.kind == "rope" and name.endswith("self_attention"):
            # For both queries and keys.
            spec.queries_scale *= config.positions.rope_attention_factor**2
        if hasattr(spec, "rotary_scaling_long_factor"):
            factors = _slower(config)
            spec.rotary_scaling_long_factor = spec.rotary_scaling_short_factor = factors
        for linear, parts in zip(spec.linear, maps, strict=True):
            self._linear(linear, *(f"{name}/{part}" for part in parts))
        if config.attention.qk_norm:
            for theirs, ours in (("q_norm", "query_norm"), ("k_norm", "key_norm")):
                # The specification has no bias by default.
                rms = config.norm.kind == "rms"
                setattr(spec, theirs, self.specs.common_spec.LayerNormSpec(rms_norm=rms))
                self._norm(getattr(spec, theirs), f"{name}/{ours}", config)

    def _linear(self, spec: "ctranslate2.specs.LayerSpec", *names: str) -> None:
        """Sets a linear map, or several with the same input, concatenated."""
        kernels = [self.known[f"{name}/kernel"] for name in names]
        spec.weight = np.ascontiguousarray(np.concatenate(kernels, axis=1).T)
        if f"{names[0]}/bias" in self.known:
            spec.bias = np.concatenate([self.known[f"{name}/bias"] for name in names])

    def _norm(
        self, spec: "ctranslate2.specs.LayerSpec", name: str, config: TransformerConfig
    ) -> None:
        spec.gamma = self.known[f"{name}/gain"] + np.float32(config.norm.gain_offset)
        if config.norm.kind == "layer":
            bias = self.known.get(f"{name}/bias")
            spec.beta = np.zeros_like(spec.gamma) if bias is None else bias


def _slower(config: TransformerConfig) -> np.ndarray:
    """Returns the factor by which scaling slows down the rotation of each pair of channels."""
    places, H = config.positions, config.head_dim
    plain = rotary_frequencies(places.rope_dim or H, places.rope_theta)
    return (plain / frequencies_of(places, H)).astype(np.float32)


def _by_name(params: PyTree) -> dict[str, np.ndarray]:
    """Returns parameters by name, with separate blocks."""
    apart = dict(params)
    for side in ("encoder", "decoder"):
        blocks = params.get(side, {}).get("blocks", {})
        if blocks and not all(isinstance(key, int) for key in blocks):
            apart[side] = params[side] | {"blocks": unstack_blocks(blocks)}
    return {name: np.asarray(leaf, np.float32) for name, leaf in flatten_dict(apart).items()}
