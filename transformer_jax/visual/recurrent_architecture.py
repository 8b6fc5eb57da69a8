"""The architecture of a recurrent translator as lines of text, data flowing upwards."""

from transformer_jax.models.recurrent_config import RecurrentConfig

__all__ = ["recurrent_diagram"]

_CELLS = {
    "tanh": "tanh cells",
    "relu": "ReLU cells",
    "lstm": "LSTM",
    "gru": "GRU",
    "gru_reset_after": "GRU, reset after the product",
}
_SCORES = {
    "dot": "dot product",
    "scaled_dot": "scaled dot product",
    "general": "general, q W kᵀ",
    "concat": "additive, vᵀ tanh(W [q; k])",
    "location": "location, W q",
}


def recurrent_diagram(config: RecurrentConfig) -> str:
    """Decoder above encoder, each from its output at the top to its tokens.

    Example:
        >>> from transformer_jax.models.recurrent_config import RECURRENT_PRESETS
        >>> print(recurrent_diagram(RECURRENT_PRESETS["cho2014"]))
        logits [B, T, 15000]
        linear  500 → 15000
        maxout  state, context and embedding 2100 → 500
        GRU × 1  states of 1000, reads embedding and context
        embedding  15000 × 100
        target tokens, shifted right [B, T]
        <BLANKLINE>
        context  the last state [B, 1000]
        GRU × 1  states of 1000, forwards
        embedding  15000 × 100
        source tokens [B, S]
    """
    return "\n".join([*_decoder(config), "", *_encoder(config)])


def _decoder(config: RecurrentConfig) -> list[str]:
    D, V, H = config.d_model, config.decoder().vocab_size, config.hidden_size
    attention, beside = config.attention, ""
    lines = [f"logits [B, T, {V}]"]
    if config.head.tie_word_embeddings:
        lines.append("the embedding table")
    else:
        lines.append(f"linear  {H} → {V}")
    previous = attention.query == "previous"
    if previous:
        read = D + config.encoded_size + config.embedding_size
        lines.append(f"maxout  state, context and embedding {read} → {H}")
        beside = ", reads embedding and context"
    elif attention.score != "none":
        lines.append(f"linear, tanh  context and state {config.encoded_size + D} → {D}")
        if attention.input_feeding:
            beside = ", reads embedding and the last of these"
    if attention.score != "none":
        when = "before" if previous else "after"
        lines.append(
            f"attention of the state {when} the token  {_SCORES[attention.score]}, over the encoded"
            f" states"
        )
    lines.append(f"{_CELLS[config.cell]} × {config.num_layers}  states of {D}{beside}")
    lines.append(f"embedding  {V} × {config.embedding_size}")
    return [*lines, "target tokens, shifted right [B, T]"]


def _encoder(config: RecurrentConfig) -> list[str]:
    if config.attention.score == "none":
        lines = [f"context  the last state [B, {config.encoded_size}]"]
    else:
        lines = [f"encoded states [B, S, {config.encoded_size}]"]
    ways = "backwards" if config.reverse_source else "forwards"
    ways = "in both directions" if config.bidirectional else ways
    cell = _CELLS[config.cell]
    lines.append(f"{cell} × {config.num_layers}  states of {config.d_model}, {ways}")
    if width := config.features.width:
        lines.append(f"linear  {width} → {config.embedding_size}")
        return [*lines, f"stacked frames [B, S, {width}]"]
    lines.append(f"embedding  {config.vocab_size} × {config.embedding_size}")
    return [*lines, "source tokens [B, S]"]
