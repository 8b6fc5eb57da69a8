"""The architecture as a block diagram in text, data flowing upwards as in the paper's figure 1."""

from transformer_jax.core.errors import plural
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.costs.accounting import components as parts_of
from transformer_jax.models.recurrent_config import ModelConfig, RecurrentConfig

__all__ = ["diagram", "recurrent_diagram"]

GUTTER = 7


def diagram(config: ModelConfig, *, head: bool = True) -> str:
    """Returns encoder and decoder side by side, with the parts of blocks, sizes and data shapes.

    Without ``head``, a head over the vocabulary, a decoder ends with its vectors.

    Source: Vaswani et al. 2017, figure 1.

    Example:
        >>> import dataclasses
        >>> from transformer_jax.models.presets import PRESETS
        >>> print(diagram(dataclasses.replace(PRESETS["bert_base"], encoder_layers=2)))
        vectors [B, S, 768]
        ┌ encoder block × 2, 7,087,872 parameters each ┐
        │ add, layer norm                              │
        │ feed-forward  768 → 3072 → 768, gelu         │
        │ add, layer norm                              │
        │ self-attention  12 heads of 64               │
        └──────────────────────────────────────────────┘
        layer norm
        + segment vectors  2 × 768
        + positions  learned, 512 × 768
        embedding  30522 × 768
        source tokens [B, S]
    """
    if isinstance(config, RecurrentConfig):
        return recurrent_diagram(config)
    D = config.d_model
    encoder, decoder = [], []
    mixer = ["self_attention" if config.mixer.attends else "mixer"]
    feeds = ["feed_forward"] if config.feed_forward.d_ff else []
    if config.encoder_layers:
        name = "memory" if config.decoder_layers else "vectors"
        encoder = _stack(config, "encoder", [*mixer, *feeds])
        encoder.insert(0, f"{name} [B, S, {D}]")
        side = config.image.image_size
        pixels = f"[B, {side}, {side}, {config.image.num_channels}]"
        frames = f"stacked frames [B, S, {config.features.width}]"
        source = frames if config.features.num_features else "source tokens [B, S]"
        encoder.append(f"images {pixels}" if config.image.image_size else source)
    if config.decoder_layers:
        cross = ["cross_attention"] if config.encoder_layers else []
        decoder = _stack(config.decoder(), "decoder", [*mixer, *cross, *feeds])
        top = [f"logits [B, T, {config.decoder().vocab_size}]", _head(config.decoder())]
        decoder = [*(top if head else [f"vectors [B, T, {D}]"]), *decoder]
        decoder.append("target tokens, shifted right [B, T]" if encoder else "tokens [B, T]")
    if encoder and decoder:
        return _two_columns(encoder, decoder)
    return "\n".join(encoder or decoder)


def _stack(config: TransformerConfig, name: str, components: list[str]) -> list[str]:
    """The lines of one stack, from its output at the top to its embedding."""
    norm = f"{config.norm.kind.replace('rms', 'RMS')} norm"
    layers = config.encoder_layers if name == "encoder" else config.decoder_layers
    inside: list[str] = []
    for part in components:
        line = _line(config, part, layers)
        place = config.norm.placement
        below = [] if place == "post" else [norm]
        above = {"post": [f"add, {norm}"], "pre": ["add"], "sandwich": ["add", norm]}[place]
        inside = [*above, line, *below, *inside]
    own = [p.parameters for p in parts_of(config) if p.stack == name and p.in_block]
    title = f" {name} block × {layers}, {plural(sum(own) // layers, 'parameter')} each "
    width = max(len(title), *(len(line) + 2 for line in inside), 44)
    box = [f"┌{title:─<{width}}┐", *(f"│ {line:<{width - 2}} │" for line in inside)]
    box.append(f"└{'─' * width}┘")
    return ([norm] if config.final_norm else []) + box + _entrance(config, norm)


def _line(config: TransformerConfig, part: str, layers: int) -> str:
    if part == "feed_forward":
        return _feed_forward(config)
    if part != "mixer":
        return _attention(config, part, layers)
    mixer = config.mixer
    if mixer.kind == "convolution":
        apart = f", dilated by {', '.join(map(str, mixer.dilations))}" * (mixer.dilations != (1,))
        return f"gated convolution  {mixer.kernel_size} positions{apart}"
    return f"recurrent  {mixer.cell.replace('_', ' ')}"


def _entrance(config: TransformerConfig, norm: str) -> list[str]:
    D, places, embedding = config.embedding_size, config.positions, config.embedding
    width = config.input_size
    lines = [f"linear  {width} → {config.d_model}"] if config.d_model != width else []
    if places.kind == "concatenated":
        lines.append(f"positions concatenated  sinusoidal, {D}")
    lines += [norm] if embedding.layernorm_embedding else []
    if embedding.type_vocab_size:
        lines.append(f"+ segment vectors  {embedding.type_vocab_size} × {D}")
    if places.learned:
        lines.append(f"+ positions  learned, {places.max_length + places.offset} × {D}")
    elif places.kind.startswith("sinusoidal"):
        lines.append(f"+ positions  {places.kind.replace('_', ', ')}")
    scale = config.embedding_scale
    times = "" if scale == 1.0 else f", times {scale:.4g}"
    image = config.image
    if image.image_size:
        if image.num_prefixes:
            lines.append(f"embeddings before the patches  {image.num_prefixes} × {D}{times}")
        if image.stem == "convolutions":
            widths = " → ".join(str(outputs or D) for _, outputs in image.convolutions)
            stem = f"convolutions  {image.num_channels} → {widths}"
            return [*lines, f"{stem}, each halving the sides, {image.num_patches} patches{times}"]
        inputs = f"{image.patch_size} × {image.patch_size} × {image.num_channels}"
        return [*lines, f"linear  {inputs} → {D}, {image.num_patches} patches{times}"]
    if config.features.num_features:
        return [*lines, f"linear  {config.features.width} → {D}{times}"]
    return [*lines, f"embedding  {config.vocab_size} × {D}{times}"]


def _attention(config: TransformerConfig, part: str, layers: int) -> str:
    attention = config.attention
    kv_heads = attention.num_kv_heads or attention.num_heads
    text = f"{part.replace('_', '-')}  {attention.num_heads} heads of {config.head_dim}"
    if kv_heads != attention.num_heads:
        text += f", {kv_heads} of keys and values"
    if attention.value_dim and attention.value_dim != config.head_dim:
        text += f", values of {attention.value_dim}"
    if part == "self_attention":
        if config.positions.for_attention:
            text += f", {config.positions.kind.removeprefix('learned_')}{_angles(config)}"
        text += _window(config, layers)
    return text


_METHODS = {
    "rope_scaling": "Llama 3.1",
    "rope_yarn": "YaRN",
    "rope_dynamic": "dynamic NTK",
    "rope_short_factor": "LongRoPE",
}


def _angles(config: TransformerConfig) -> str:
    """Describes the rotated part of a head, and its scaling, where known."""
    places = config.positions
    told = [] if places.rope_dim is None else [f"{places.rope_dim} dimensions"]
    if places.kind == "rope" and places.rope_method is not None:
        told.append(_METHODS[places.rope_method])
    return f" ({', '.join(told)})" if told else ""


def _window(config: TransformerConfig, layers: int) -> str:
    """The window, and the layers that have it unless all do; nothing if none does."""
    scores = config.scores
    local = [str(i) for i in range(layers) if scores.window_of(i) is not None]
    if not local:
        return ""
    text = f", window {scores.sliding_window}"
    if len(local) == layers:
        return text
    some = f"{', '.join(local[:6])}{', …' if len(local) > 6 else ''}"
    return f"{text} in layer{'s' * (len(local) > 1)} {some}"


def _feed_forward(config: TransformerConfig) -> str:
    ff, D = config.feed_forward, config.d_model
    gated = "gated " if ff.gated else ""
    return f"feed-forward  {D} → {ff.d_ff} → {D}, {gated}{ff.activation.replace('_', ' ')}"


def _head(config: TransformerConfig) -> str:
    head = config.head
    text = f"linear  {config.d_model} → {config.vocab_size}"
    text += ", tied to the embedding" if head.tie_word_embeddings else ""
    return text + (", bias" if head.bias else "")


def _two_columns(encoder: list[str], decoder: list[str]) -> str:
    """Two bottom-aligned columns, connected by the memory's path to cross-attention."""
    height = max(len(encoder), len(decoder))
    left = [""] * (height - len(encoder)) + encoder
    right = [""] * (height - len(decoder)) + decoder
    start = height - len(encoder)
    end = next(i for i, line in enumerate(right) if "cross-attention" in line)
    width = max(map(len, left))
    lines = []
    for i, (a, b) in enumerate(zip(left, right, strict=True)):
        pad, gap = " ", " " * GUTTER
        if i == start:
            pad, gap = "─", "──┐" + " " * (GUTTER - 3)
            a = f"{a} "
        elif start < i < end:
            gap = "  │" + " " * (GUTTER - 3)
        elif i == end:
            gap = "  └" + "─" * (GUTTER - 4) + "▶"
        lines.append(f"{a:{pad}<{width}}{gap}{b}".rstrip())
    return "\n".join(lines)


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
    """Returns the decoder above the encoder, each from its output at the top to its tokens.

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
    return "\n".join([*_recurrent_decoder(config), "", *_recurrent_encoder(config)])


def _recurrent_decoder(config: RecurrentConfig) -> list[str]:
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


def _recurrent_encoder(config: RecurrentConfig) -> list[str]:
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
