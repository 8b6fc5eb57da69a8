"""Sliding windows by layer, in Hugging Face configurations."""

from collections.abc import Callable

from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.models.config import ScoreConfig, TransformerConfig

__all__ = ["FULL", "SLIDING", "layer_types", "window_size", "windows"]

FULL, SLIDING = "full_attention", "sliding_attention"
_MOST_LAYERS = 1 << 16


def window_size(fields: ConfigReader, default: int | None = 4096) -> int | None:
    """Returns the size of the sliding window; None if the key is null.

    Example:
        >>> window_size(ConfigReader({})), window_size(ConfigReader({"sliding_window": None}))
        (4096, None)
    """
    fields = fields.filled(sliding_window=default)
    return None if fields.is_null("sliding_window") else fields.whole("sliding_window")


def windows(fields: ConfigReader, window: int | None, usual: Callable[[int], bool]) -> ScoreConfig:
    """Returns the windows of a model's layers.

    Args:
        fields: The configuration, with optional ``layer_types`` for the kind of each layer.
        window: The window of local layers.
        usual: Whether a layer is local, without ``layer_types``.

    Raises:
        CheckpointError: A kind is unknown, their number is wrong, or a local layer has no window.
    """
    layers, kinds = fields.whole("num_hidden_layers"), fields.values.get("layer_types")
    if layers > _MOST_LAYERS:  # before creating a list of them
        raise fields.refused("num_hidden_layers", layers, f"at most {_MOST_LAYERS} can be loaded")
    if kinds is None:
        kinds = [SLIDING if usual(i) else FULL for i in range(layers)]
    if not isinstance(kinds, list) or not all(kind in (FULL, SLIDING) for kind in kinds):
        raise fields.refused("layer_types", kinds, f'a list of "{FULL}" and "{SLIDING}" is needed')
    if len(kinds) != layers:
        raise fields.refused(
            "layer_types", kinds, f"one for each layer is needed, but num_hidden_layers is {layers}"
        )
    local = tuple(i for i, kind in enumerate(kinds) if kind == SLIDING)
    if not local:
        return ScoreConfig()
    if window is None:
        raise fields.refused(
            "sliding_window",
            None,
            f'layers of "{SLIDING}" need it, and use_sliding_window if there is such a key',
        )
    every = next((n for n in (1, 2) if local == tuple(range(0, layers, n))), None)
    if every is None:
        return ScoreConfig(sliding_window=window, sliding_window_layers=local)
    return ScoreConfig(sliding_window=window, sliding_window_every=every)


def layer_types(config: TransformerConfig) -> list[str]:
    """Returns the kind of each layer for a published configuration."""
    layers = range(config.encoder_layers or config.decoder_layers)
    return [FULL if config.scores.window_of(i) is None else SLIDING for i in layers]
