"""Which sizes of a published model are believed, before its tensors are compared one by one."""

from transformer_jax.errors import ConfigError
from transformer_jax.interop.family import Model
from transformer_jax.interop.tensor_files import TensorFolder

__all__ = ["check_sizes"]

_LONGEST = 1 << 20  # positions that are computed and so cost no parameters
_LARGEST_TABLE = 1 << 28  # numbers, of positions that are computed as a table


def check_sizes(model: Model, tensors: TensorFolder) -> None:
    """Refuses sizes that the files cannot hold, before a model of such sizes is even described.

    Raises:
        ConfigError: A size that cannot be.
    """
    config, most = model.config, tensors.nbytes
    decoder = config.decoder()
    layers = config.encoder_layers + config.decoder_layers
    sizes = {
        "number of layers": layers * config.width,
        "vocabulary": max(config.vocab, decoder.vocab) * config.embedding_width,
        "embedding width": config.embedding_width * config.width,
        "width": config.width**2,
        "feed-forward width": max(config.feed_forward.width, decoder.feed_forward.width)
        * config.width,
        "heads": config.attention.heads * config.head_dim * config.width,
    }
    if config.image.size:
        sizes["patches"] = config.image.patch**2 * config.image.channels * config.width
    places = config.positions
    if places.kind == "learned":
        sizes["number of positions"] = (places.max_length + places.offset) * config.embedding_width
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
    if places.kind.startswith("sinusoidal") and places.max_length * config.width > _LARGEST_TABLE:
        raise ConfigError(f"{places.max_length} positions of {config.width} numbers: too many")
