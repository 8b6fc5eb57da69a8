"""Multi-head attention: projections around :func:`attend_heads_first`."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_jax.config import TransformerConfig
from transformer_jax.functional.attention import attend_heads_first, attention_weights
from transformer_jax.functional.linear import linear
from transformer_jax.functional.masks import Mask
from transformer_jax.functional.positions import apply_rotary_embedding
from transformer_jax.functional.scores import ScaledDot
from transformer_jax.modules.linear import Linear
from transformer_jax.modules.norm import Norm
from transformer_jax.modules.rotation import frequencies_of

__all__ = ["Attention", "OnKeyValues", "OnWeights"]

# Called with the weights of each attention that runs, [B N T S].
OnWeights = Callable[[Float[Array, "B N T S"]], None]
# Called with the keys and values of each self-attention that runs, [B K T H] and [B K T U].
OnKeyValues = Callable[[Float[Array, "B K T H"], Float[Array, "B K T U"]], None]


class Attention(nnx.Module):
    """``Concat(head₁ … head_N) W^O``, each head attending with its own slice of the projections.

    The fused kernel ``[D, N H]`` is the per-head ``[D, H]`` kernels side by side (row L10).
    Vaswani et al. 2017, section 3.2.2; rows U6, B10, T12.
    """

    def __init__(self, config: TransformerConfig, *, rotate: bool = False, rngs: nnx.Rngs):
        att, D = config.attention, config.d_model
        self.attention, self.positions = att, config.positions
        self.score = ScaledDot(config.scores.scale, config.scores.attn_logit_softcapping)
        self.rotate = rotate
        self.N, self.K = att.num_heads, att.num_kv_heads or att.num_heads
        self.H = config.head_dim
        self.U = att.value_dim or self.H
        self.query = Linear(D, self.N * self.H, ("embed", "heads"), bias=att.bias, rngs=rngs)
        self.key = Linear(D, self.K * self.H, ("embed", "heads"), bias=att.bias, rngs=rngs)
        self.value = Linear(D, self.K * self.U, ("embed", "heads"), bias=att.bias, rngs=rngs)
        self.out = Linear(self.N * self.U, D, ("heads", "embed"), bias=att.out_bias, rngs=rngs)
        self.fused_qkv: Linear | None = None  # the first three side by side, in place of them
        self.query_norm = Norm(config.norm, self.H, "head_dim") if att.qk_norm else None
        self.key_norm = Norm(config.norm, self.H, "head_dim") if att.qk_norm else None

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S D"] | None = None,
        mask: Mask | None = None,
        *,
        bias: Float[Array, "#B #N #T #S"] | None = None,
        positions: Int[Array, "#B T"] | None = None,
        key: Key[Array, ""] | None = None,
        on_weights: OnWeights | None = None,
        on_kv: OnKeyValues | None = None,
        last_n: int | None = None,
    ) -> Float[Array, "B _ D"]:
        """Attend to ``memory``, or to ``x`` itself, from all positions or the ``last_n``."""
        if memory is None:
            q, k, v = self.split_qkv(self.project_qkv(x))
        else:
            q = self.split_heads(self.query(x), self.N)
            k, v = (
                self.split_heads(self.key(memory), self.K),
                self.split_heads(self.value(memory), self.K),
            )
        q, k = self.apply_rope(q, k, positions)
        if on_kv is not None:
            on_kv(k, v)
        if last_n is not None:
            skip = q.shape[2] - last_n
            q, mask = q[:, :, skip:], None if mask is None else mask.skip_queries(skip)
            bias = None if bias is None else bias[:, :, -last_n:]
        if on_weights is not None:
            qkv = (q.swapaxes(1, 2), k.swapaxes(1, 2))
            on_weights(attention_weights(*qkv, mask, bias=bias, score=self.score))
        return self.out(self.merge_heads(self.attend(q, k, v, mask, bias, key)))

    def attend(self, q, k, v, mask=None, bias=None, key=None):
        """Mixes values, heads first, as the configuration says scores are made."""
        return attend_heads_first(
            q,
            k,
            v,
            mask,
            bias=bias,
            score=self.score,
            implementation=self.attention.implementation,
            dropout=(self.attention.dropout, key),
        )

    def project_qkv(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows F"]:
        """Queries, keys and values side by side: one product where their maps are plain."""
        if self.fused_qkv is not None:
            return self.fused_qkv(x)
        maps = self.query, self.key, self.value
        if all(type(part) is Linear for part in maps):
            return linear(x, *_fused(maps))
        return jnp.concatenate([part(x) for part in maps], axis=-1)

    def with_fused_qkv(self) -> "Attention":
        """The same self-attention with one map for queries, keys and values.

        Decoding would put the three together again for every token. Maps that are not plain, such
        as those with an adapter, stay apart.
        """
        maps = self.query, self.key, self.value
        if not all(type(part) is Linear for part in maps):
            return self
        made = nnx.merge(*nnx.split(self))
        kernel, bias = _fused(maps)
        made.fused_qkv = nnx.data(
            Linear.of(
                self.query.kernel.replace(kernel),
                None if self.query.bias is None else self.query.bias.replace(bias),
            )
        )
        made.query = made.key = made.value = None  # type: ignore[assignment]
        return made

    def split_qkv(self, qkv: Float[Array, "B T F"]) -> tuple[Array, Array, Array]:
        """Queries, keys and values, heads first, out of the fused projection."""
        ends = self.N * self.H, (self.N + self.K) * self.H
        q, k, v = jnp.split(qkv, ends, axis=-1)
        return self.split_heads(q, self.N), self.split_heads(k, self.K), self.split_heads(v, self.K)

    def split_heads(self, x: Float[Array, "B T F"], heads: int) -> Float[Array, "B N T H"]:
        """``[B T N·H]`` as ``[B N T H]``."""
        return x.reshape(*x.shape[:-1], heads, -1).swapaxes(1, 2)

    def merge_heads(self, x: Float[Array, "B N T U"]) -> Float[Array, "B T F"]:
        """Heads side by side again."""
        return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)

    def apply_rope(self, q, k, positions):
        """Normalises and rotates query and key heads, where the configuration asks for it."""
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        if self.rotate:
            how = frequencies_of(self.positions, self.H), self.positions.rope_attention_factor
            turn = lambda x: apply_rotary_embedding(x.swapaxes(1, 2), positions, *how).swapaxes(
                1, 2
            )
            q, k = turn(q), turn(k)
        return q, k

    def project_memory(self, memory: Float[Array, "B S D"]) -> tuple[Array, Array]:
        """Keys and values of ``memory`` for any number of later queries, ``[B·K S H]``."""
        k, v = (
            self.split_heads(self.key(memory), self.K),
            self.split_heads(self.value(memory), self.K),
        )
        if self.key_norm is not None:
            k = self.key_norm(k)
        flat = lambda x: x.reshape(-1, *x.shape[2:])
        return flat(k), flat(v)

    def cross_attend(
        self,
        x: Float[Array, "R D"],
        keys: Float[Array, "BK S H"],
        values: Float[Array, "BK S U"],
        visible: Bool[Array, "#B 1 1 S"] | None,
    ) -> Float[Array, "R D"]:
        """Reads what :meth:`project_memory` made, from one token of each of ``R = B M`` rows."""
        q = self.rows_to_beams(self.query(x), keys.shape[0] // self.K, self.N)
        if self.query_norm is not None:
            q = self.query_norm(q)
        return self.out(self.beams_to_rows(self.cached_attend(q, keys, values, visible, None)))

    def step(
        self,
        x: Float[Array, "R D"],
        keys: Float[Array, "BK J H"],
        values: Float[Array, "BK J U"],
        slot: Int[Array, ""],
        positions: Int[Array, "#B #M"],
        visible: Bool[Array, "#B 1 #M J"],
        bias: Float[Array, "1 N #M J"] | None,
    ) -> tuple[Float[Array, "R D"], Array, Array]:
        """Reads its own past from ``M`` new tokens of each sentence, which join that past.

        They are those of ``M`` beams, or ``M`` tokens of a single one, and take the slots from
        ``slot`` on. Returns what was read, and the keys and values with theirs among them.
        """
        B, ends = keys.shape[0] // self.K, (self.N * self.H, (self.N + self.K) * self.H)
        M = x.shape[0] // B
        q, k, v = jnp.split(self.project_qkv(x), ends, axis=-1)
        q, k = self.rows_to_beams(q, B, self.N), self.rows_to_beams(k, B, self.K)
        q, k = self.apply_rope(q, k, positions)
        v = self.rows_to_beams(v, B, self.K)

        def join(past, new):
            new = new.reshape(-1, M, new.shape[-1]).astype(past.dtype)
            return jax.lax.dynamic_update_slice(past, new, (jnp.int32(0), slot, jnp.int32(0)))

        keys, values = join(keys, k), join(values, v)
        return (
            self.out(self.beams_to_rows(self.cached_attend(q, keys, values, visible, bias))),
            keys,
            values,
        )

    def cached_attend(
        self,
        q: Float[Array, "B N M H"],
        keys: Float[Array, "BK J H"],
        values: Float[Array, "BK J U"],
        visible: Bool[Array, "#B 1 #M J"] | None,
        bias: Float[Array, "1 N #M J"] | None,
    ) -> Float[Array, "B N M U"]:
        """What queries read from a cache: all heads of all sentences as those of one sentence."""
        B, N, M, H = q.shape
        # Not "> 1", which cannot be decided of a batch whose size is left open.
        if visible is not None and visible.shape[0] != 1:
            visible = jnp.repeat(visible[:, 0], N, axis=0)[None]
        if bias is not None:
            bias = jnp.tile(bias, (1, B, 1, 1))
        mask = None if visible is None else Mask(dense=visible)
        read = self.attend(q.reshape(1, B * N, M, H), keys[None], values[None], mask, bias)
        return read.reshape(B, N, M, -1)

    def rows_to_beams(self, x: Float[Array, "R F"], B: int, heads: int) -> Float[Array, "B N M H"]:
        """Rows of ``M`` beams (or tokens) each as ``M`` queries of their sentence, heads first."""
        return x.reshape(B, x.shape[0] // B, heads, -1).swapaxes(1, 2)

    def beams_to_rows(self, x: Float[Array, "B N M U"]) -> Float[Array, "R F"]:
        """The opposite of :meth:`rows_to_beams`, heads side by side."""
        B, N, M, U = x.shape
        return x.swapaxes(1, 2).reshape(B * M, N * U)


def _fused(maps: tuple[Linear, ...]) -> tuple[Array, Array | None]:
    """Kernel and bias of linear maps of the same inputs, their outputs side by side."""
    biases = [part.bias[...] for part in maps if part.bias is not None]
    kernel = jnp.concatenate([part.kernel[...] for part in maps], axis=1)
    return kernel, jnp.concatenate(biases) if biases else None
