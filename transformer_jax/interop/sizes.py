"""Limits of the sizes of a Hugging Face model, checked before its tensors are compared."""

from transformer_jax.errors import ConfigError
from transformer_jax.interop.family import Model
from transformer_jax.interop.tensor_files import TensorFolder

__all__ = ["check_sizes"]

_LONGEST = 1 << 20  # positions that are computed and so cost no parameters
_LARGEST_TABLE = 1 << 28  # numbers, of positions that are computed as a table


def check_sizes(model: Model, tensors: TensorFolder) -> None:
    """Refuse sizes that the files cannot hold, before the model is described.

    Raises:
        ConfigError: A size is out of range.
    """
    config, most = model.config, tensors.nbytes
    decoder = config.decoder()
    layers = config.encoder_layers + config.decoder_layers
    sizes = {
        "number of layers": layers * config.d_model,
        "vocabulary": max(config.vocab_size, decoder.vocab_size) * config.embedding_size,
        "embedding width": config.embedding_size * config.d_model,
        "width": config.d_model**2,
        "feed-forward width": max(config.feed_forward.d_ff, decoder.feed_forward.d_ff)
        * config.d_model,
        "heads": config.attention.num_heads * config.head_dim * config.d_model,
    }
    if config.image.image_size:
        sizes["patches"] = config.image.patch_size**2 * config.image.num_channels * config.d_model
    places = config.positions
    if places.kind == "learned":
        sizes["number of positions"] = (places.max_length + places.offset) * config.embedding_size
    for what, elements in sizes.items():
        if elements > most:
            raise ConfigError(
                f"its {what} makes {elements:,} numbers, which do not fit the {most:,} bytes of "
                f"the tensors"
            )
    if layers > len(tensors.entries):
        raise ConfigError(f"{layers} layers, and fewer tensors than that")
    if places.max_length > _LONGEST:
        raise ConfigError(f"{places.max_length} positions: at most {_LONGEST} are computed")
    if places.kind.startswith("sinusoidal") and places.max_length * config.d_model > _LARGEST_TABLE:
        raise ConfigError(f"{places.max_length} positions of {config.d_model} numbers: too many")
