"""A reader's functions in a trained model: their own Transformer, with a run's parameters."""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from transformer_jax.core.errors import ConfigError
from transformer_jax.exercises.checking import adapted
from transformer_jax.exercises.table import TRANSFORMER, Function
from transformer_jax.functional.layers import linear, relu
from transformer_jax.inference.facts import Facts, Opening
from transformer_jax.inference.pretrained import Pretrained, read_facts
from transformer_jax.models.config import (
    AttentionConfig,
    FeedForwardConfig,
    NormConfig,
    TransformerConfig,
)
from transformer_jax.visual.attention import attention_html, translation_maps

__all__ = ["OwnTransformer", "facts_of"]

_BEAMS, _ALPHA = 4, 0.6
Map = Callable[[jax.Array], jax.Array]


class OwnTransformer:
    """The encoder-decoder of a run, computed by the twelve functions of a file.

    Attributes:
        functions: The functions, with the arguments of the blanks.
        weights: The attention weights of the last pass, in order; empty if ``multi_head`` does not
            call ``attention``.
    """

    def __init__(self, module: ModuleType, run: Path):
        """Loads the run.

        Args:
            module: The reader's module.
            run: A run of a translator in the form of the demo's.

        Raises:
            ConfigError: The model has another form.
        """
        opened = Pretrained.load(facts_of(run), "encoder-decoder")
        model, self.tokenizer = opened.module, opened.tokenizer
        self.config, self.weights = model.config, list[np.ndarray]()
        self.params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
        setattr(module, "attention", self._watched(getattr(module, "attention")))  # noqa: B009, B010
        self.functions = {name: adapted(name, getattr(module, name)) for name in TRANSFORMER}

    def translate(self, sentences: Sequence[str]) -> list[tuple[str, float]]:
        """Returns translations by the reader's beam search, and the loss of each per token."""
        f, tokens = self.functions, self.tokenizer
        found = []
        for sentence in sentences:
            source = np.array([[*tokens.encode(sentence), tokens.eos]], np.int32)
            limit = 2 * source.shape[1] + 5
            next_logits = self.continuing(source, limit)
            ids, _ = f["beam"](next_logits, tokens.bos, tokens.eos, limit, _BEAMS, _ALPHA)
            target = np.array([list(map(int, ids))], np.int32)
            inputs = np.asarray(f["shift_right"](target, tokens.bos))
            losses = f["smooth_loss"](self.logits(source, inputs), target, 0.0)
            total, number = f["token_loss"](losses, np.ones(target.shape, bool))
            found.append((tokens.decode(target[0].tolist()), float(total) / float(number)))
        return found

    def continuing(self, source: np.ndarray, limit: int) -> Function:
        """Returns the function from prefixes of one source's translation to the next logits."""
        source = np.repeat(source, _BEAMS, 0)
        memory = self.encode(source)
        pad = self.tokenizer.pad

        def next_logits(prefixes: Sequence[Sequence[int]]) -> np.ndarray:
            rows, T = len(prefixes), len(prefixes[0])
            target = np.full((_BEAMS, limit), pad, np.int32)
            target[:rows, :T] = np.asarray(prefixes)
            return np.asarray(self.decode(memory, source, target))[:rows, T - 1]

        return next_logits

    def page(self, sentence: str) -> str | None:
        """Returns the page with the attention of the reader's model; None if none was seen."""
        [(translation, _)] = self.translate([sentence])
        ids = lambda text: [*self.tokenizer.encode(text), self.tokenizer.eos]
        source, target = np.array([ids(sentence)], np.int32), ids(translation)
        self.weights.clear()
        inputs = np.array([[self.tokenizer.bos, *target[:-1]]], np.int32)
        self.logits(source, inputs)
        E, D = self.config.encoder_layers, self.config.decoder_layers
        if len(self.weights) != E + 2 * D:
            return None
        layers = self.weights[:E], self.weights[E::2], self.weights[E + 1 :: 2]
        kinds = {
            kind: np.stack(maps)
            for kind, maps in zip(("encoder", "decoder", "cross"), layers, strict=True)
        }
        names = self.tokenizer.convert_ids_to_tokens
        maps = translation_maps(names(source[0].tolist()), names(target), kinds)
        return attention_html(maps, title=sentence, subtitle=translation)

    def logits(self, source: np.ndarray, inputs: np.ndarray) -> jax.Array:
        """Returns logits ``[B T V]`` of a source and a target, shifted right."""
        return self.decode(self.encode(source), source, inputs)

    def encode(self, source: np.ndarray) -> jax.Array:
        """Returns a vector for each source token."""
        real = source != self.tokenizer.pad
        return self._stack("encoder", source, self.functions["mask"](real, False))

    def decode(self, memory: jax.Array, source: np.ndarray, target: np.ndarray) -> jax.Array:
        """Returns logits of the token after each target token."""
        real, words = target != self.tokenizer.pad, source != self.tokenizer.pad
        see = self.functions["mask"](real, True), self.functions["mask"](words, False)
        hidden = self._stack("decoder", target, *see, memory)
        return hidden @ jnp.asarray(self.params["embedding"]["table"]).T

    def _stack(
        self,
        side: str,
        tokens: np.ndarray,
        mask: object,
        memory_mask: object = None,
        memory: jax.Array | None = None,
    ) -> jax.Array:
        f, params = self.functions, self.params[side]
        x = jnp.asarray(self.params["embedding"]["table"])[tokens] * self.config.d_model**0.5
        x = x + jnp.asarray(f["sinusoids"](*x.shape[1:]))[None].astype(x.dtype)
        for _, block in sorted(params["blocks"].items()):
            parts = [("self_attention", self._attends(block["self_attention"], mask))]
            if memory is not None:
                cross = self._attends(block["cross_attention"], memory_mask, memory)
                parts.append(("cross_attention", cross))
            parts.append(("feed_forward", _feed_forward(block["feed_forward"])))
            norms = [self._norm(block[f"{name}_norm"]) for name, _ in parts]
            x = jnp.asarray(
                f["block"](x, [part for _, part in parts], norms, self.config.norm.placement)
            )
        return x if "final_norm" not in params else self._norm(params["final_norm"])(x)

    def _norm(self, params: dict) -> Map:
        given = np.asarray(params["gain"]), np.asarray(params["bias"]), self.config.norm.eps
        return lambda x: jnp.asarray(self.functions["layer_norm"](x, *given))

    def _attends(self, params: dict, mask: object, memory: jax.Array | None = None) -> Map:
        N, D = self.config.attention.num_heads, self.config.d_model
        w, b = {}, {}
        for name, part in (("q", "query"), ("k", "key"), ("v", "value")):
            w[name] = np.asarray(params[part]["kernel"]).reshape(D, N, -1)
            b[name] = np.asarray(params[part]["bias"]).reshape(N, -1)
        w["o"] = np.asarray(params["out"]["kernel"]).reshape(N, -1, D)
        b["o"] = np.asarray(params["out"]["bias"])
        f = self.functions["multi_head"]
        return lambda x: jnp.asarray(f(x, x if memory is None else memory, mask, w, b))

    def _watched(self, attention: Function) -> Function:
        """The reader's attention, which also keeps its weights: its output for unit values."""
        names = list(inspect.signature(attention).parameters)
        at = names[2] if "v" not in names else "v"

        def watched(*args: object, **kwargs: object) -> object:
            given = inspect.signature(attention).bind(*args, **kwargs)
            y = attention(*given.args, **given.kwargs)
            S = given.arguments[at].shape[-2]
            given.arguments[at] = jnp.broadcast_to(jnp.eye(S), (*np.shape(y)[:-2], S, S))
            self.weights.append(np.asarray(attention(*given.args, **given.kwargs)))
            return y

        watched.__signature__ = inspect.signature(attention)  # type: ignore[attr-defined]
        return watched


def _feed_forward(params: dict) -> Map:
    up, down = ((params[name]["kernel"], params[name]["bias"]) for name in ("up", "down"))
    return lambda x: linear(relu(linear(jnp.asarray(x, jnp.float32), *up)), *down)


def facts_of(run: Path) -> Facts:
    """Returns what is known of a run without its parameters.

    Raises:
        ConfigError: The twelve functions do not compute its model.
    """
    facts = read_facts(run, "best", Opening())
    facts.require("encoder-decoder")
    _check_form(facts.transformer, run)
    return facts


def _check_form(config: TransformerConfig, run: Path) -> None:
    """Refuses a model that the twelve functions do not compute."""
    plain = TransformerConfig(
        vocab_size=config.vocab_size,
        d_model=config.d_model,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        embedding=dataclasses.replace(
            TransformerConfig().embedding, dropout=config.embedding.dropout
        ),
        positions=dataclasses.replace(
            TransformerConfig().positions, max_length=config.positions.max_length
        ),
        attention=AttentionConfig(
            num_heads=config.attention.num_heads, dropout=config.attention.dropout
        ),
        feed_forward=FeedForwardConfig(
            d_ff=config.feed_forward.d_ff, activation_dropout=config.feed_forward.activation_dropout
        ),
        norm=NormConfig(
            placement=config.norm.placement,
            eps=config.norm.eps,
            residual_dropout=config.norm.residual_dropout,
        ),
        compute=config.compute,
    )
    if plain != config or config.compute.scan_layers or config.norm.placement == "sandwich":
        raise ConfigError(
            f"--run {run}: the exercises make a Transformer like that of train phrasebook: give a "
            f"run of it"
        )
