"""Layers with a sliding window, in Hugging Face configurations."""

from collections.abc import Callable

from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.models.config import ScoreConfig, TransformerConfig

__all__ = ["FULL", "SLIDING", "layer_types", "window_size", "windows"]

FULL, SLIDING = "full_attention", "sliding_attention"
_MOST_LAYERS = 1 << 16


def window_size(fields: ConfigReader, default: int | None = 4096) -> int | None:
    """Returns the reach of layers with a window; a null key is None.

    Example:
        >>> window_size(ConfigReader({})), window_size(ConfigReader({"sliding_window": None}))
        (4096, None)
    """
    fields = fields.filled(sliding_window=default)
    return None if fields.is_null("sliding_window") else fields.whole("sliding_window")


def windows(fields: ConfigReader, window: int | None, usual: Callable[[int], bool]) -> ScoreConfig:
    """The windows of a decoder's layers.

    Args:
        fields: Its configuration, whose ``layer_types`` names the kind of each layer.
        window: How far those of the local kind look.
        usual: Whether a layer is local, where they are not named.

    Raises:
        CheckpointError: Other kinds, another number of them, or local ones without a window.
    """
    layers, kinds = fields.whole("num_hidden_layers"), fields.values.get("layer_types")
    if layers > _MOST_LAYERS:  # before any list of them is made
        raise fields.refused("num_hidden_layers", layers, f"at most {_MOST_LAYERS} can be loaded")
    if kinds is None:
        kinds = [SLIDING if usual(i) else FULL for i in range(layers)]
    if not isinstance(kinds, list) or not all(kind in (FULL, SLIDING) for kind in kinds):
        raise fields.refused("layer_types", kinds, f'a list of "{FULL}" and "{SLIDING}" is needed')
    if len(kinds) != layers:
        raise fields.refused(
            "layer_types", kinds, f"one for each layer is needed, and num_hidden_layers is {layers}"
        )
    local = tuple(i for i, kind in enumerate(kinds) if kind == SLIDING)
    if not local:
        return ScoreConfig()
    if window is None:
        raise fields.refused(
            "sliding_window",
            None,
            f'layers of "{SLIDING}" need it, and use_sliding_window where there is such a key',
        )
    every = next((n for n in (1, 2) if local == tuple(range(0, layers, n))), None)
    if every is None:
        return ScoreConfig(sliding_window=window, sliding_window_layers=local)
    return ScoreConfig(sliding_window=window, sliding_window_every=every)


def layer_types(config: TransformerConfig) -> list[str]:
    """The kind of each layer, of a decoder that is published."""
    windows = [config.scores.window_of(i) for i in range(config.decoder_layers)]
    return [FULL if window is None else SLIDING for window in windows]
