"""What a run directory holds, as what sub-commands need."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from transformer_jax.config import TransformerConfig, from_dict
from transformer_jax.errors import CheckpointError, ConfigError, DataError

if TYPE_CHECKING:
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.decoding.language import DecoderLanguageModel, Shapes
    from transformer_jax.decoding.ngram import NgramLanguageModel
    from transformer_jax.training.run_directory import RunDirectory

__all__ = [
    "as_trained",
    "chosen_checkpoint",
    "counted",
    "family",
    "first_token",
    "load",
    "load_language",
    "model_config",
]

# What each family of models is called, and what it is for.
_USE = {
    "encoder-decoder": ("a translator", "translate"),
    "decoder": ("a decoder", "generate"),
    "ngram": ("an n-gram model", "generate"),
}


def model_config(run: "RunDirectory") -> TransformerConfig:
    """The configuration of a run's model.

    Raises:
        CheckpointError: ``config.json`` is damaged or describes no model of ours.
    """
    fields = run.read_config()
    if not isinstance(fields.get("model"), dict):
        raise CheckpointError(f"{run.config}: describes no model: not a run of this library")
    if fields["model"].get("kind") == "ngram":
        raise ConfigError(f"{run.path}: an n-gram model, which has no layers and no attention")
    try:
        config: TransformerConfig = from_dict(TransformerConfig, fields["model"])
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"{run.config}: {error}: written by another version?") from None
    return config


def as_trained(path: Path, *, trim: bool = True) -> Callable[[str], str]:
    """A function from a line to what a run's model was trained on: lower-cased, if that was.

    Blanks at its ends go, unless ``trim`` is False.
    """
    from transformer_jax.training.run_directory import RunDirectory

    read = RunDirectory.open(path).read_config().get("data", {}).get("read", {})
    lower = bool(read.get("lowercase", False))

    def prepare(line: str) -> str:
        if trim:
            line = "" if line.isspace() else line.strip(" \t")
        return line.lower() if lower else line

    return prepare


def chosen_checkpoint(text: str) -> tuple[int | Literal["best", "last"], int]:
    """Which checkpoint, and how many to average, that ``--checkpoint`` asks for.

    Raises:
        ConfigError: Anything but ``best``, ``last``, a step, or ``average:N``.

    Example:
        >>> chosen_checkpoint("best"), chosen_checkpoint("1200"), chosen_checkpoint("average:5")
        (('best', 1), (1200, 1), ('last', 5))
    """
    kind, _, number = text.partition(":")
    if text == "best":
        return "best", 1
    if text == "last":
        return "last", 1
    if text.isdecimal():
        return int(text), 1
    if kind == "average" and number.isdecimal() and int(number):
        return "last", int(number)
    raise ConfigError(
        f"--checkpoint {text}: allowed are best, last, a step (1200) and average:N, the mean of "
        f"the last N"
    )


def family(run: "RunDirectory") -> str:
    """Which kind of model a run has: ``encoder-decoder``, ``decoder`` or ``ngram``.

    Raises:
        CheckpointError: ``config.json`` is damaged or describes no model of ours.
    """
    if counted(run):
        return "ngram"
    return "decoder" if not model_config(run).encoder_layers else "encoder-decoder"


def counted(run: "RunDirectory") -> bool:
    """Whether a run's model is an n-gram model, which has no checkpoints.

    Raises:
        CheckpointError: ``config.json`` is damaged.
    """
    model = run.read_config().get("model")
    return isinstance(model, dict) and model.get("kind") == "ngram"


def first_token(run: "RunDirectory", tokenizer: "Tokenizer") -> int:
    """The token that the texts of a decoder begin with."""
    first = run.read_config().get("first", "bos")
    if first == "newline":
        [[line_end]] = tokenizer.encode_batch(["\n"])
        return line_end
    return tokenizer.eos if first == "eos" else tokenizer.bos


def load(
    path: Path,
    checkpoint: str = "best",
    *,
    kind: str = "encoder-decoder",
    change: Callable[[TransformerConfig], TransformerConfig] = lambda config: config,
) -> tuple[tuple[Any, dict[Any, Any]], "Tokenizer"]:
    """The model of a run, as its graph and parameters in use, and its tokenizer.

    Args:
        path: The run directory.
        checkpoint: Which of its checkpoints, as ``--checkpoint`` says it.
        kind: The family that is asked for.
        change: What becomes of its configuration; the parameters must still fit.

    Raises:
        ConfigError: The run is of another family; it says what that is for.
        CheckpointError: There is no such run, or its files are damaged or do not fit together.
    """
    from transformer_jax.training.run_directory import RunDirectory

    run = RunDirectory.open(path)
    which, average = chosen_checkpoint(checkpoint)
    if (other := family(run)) != kind:
        name, command = _USE[other]
        raise ConfigError(
            f"{path}: the run of {name}, which this command does not use: "
            f"try transformer-jax {command}"
        )
    config = change(model_config(run))

    import jax
    from flax import nnx

    from transformer_jax.data.tokenizer import load_tokenizer
    from transformer_jax.models.decoder import Decoder
    from transformer_jax.models.encoder_decoder import EncoderDecoder
    from transformer_jax.training import manifest
    from transformer_jax.training.stored import checkpoint_name, load_params
    from transformer_jax.training.trees import named

    loaded = load_params(path, which, average=average)
    said = manifest.read(run.checkpoints / checkpoint_name(loaded.step))
    try:
        tokenizer = load_tokenizer(run.tokenizer, sha256=said.get("tokenizer"))
    except DataError as error:
        raise CheckpointError(str(error)) from None
    model: Any = Decoder if kind == "decoder" else EncoderDecoder
    graph, shapes = nnx.split(nnx.eval_shape(lambda: model(config, rngs=nnx.Rngs(0))))
    params = loaded.params
    expected = {name: leaf.shape for name, leaf in named(nnx.to_pure_dict(shapes)).items()}
    found = {name: leaf.shape for name, leaf in named(params).items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise CheckpointError(
                f"{path}: parameter {name} is {_shape(found.get(name))} in the checkpoint and "
                f"{_shape(expected.get(name))} by config.json: they belong to different runs"
            )
    return (graph, jax.device_put(params)), tokenizer


def load_language(
    path: Path,
    checkpoint: str = "best",
    *,
    shapes: "Shapes | None" = None,
    dtype: Literal["float32", "bfloat16"] | None = None,
    context: int | None = None,
    change: Callable[[TransformerConfig], TransformerConfig] = lambda config: config,
) -> "DecoderLanguageModel | NgramLanguageModel":
    """The language model of a run, neural or counted.

    Raises:
        ConfigError: The run is of another family.
        CheckpointError: There is no such run, or its files are damaged or do not fit together.
    """
    from transformer_jax.data.tokenizer import load_tokenizer
    from transformer_jax.training.run_directory import RunDirectory

    run = RunDirectory.open(path)
    if counted(run):
        from transformer_jax.decoding.ngram import NgramLanguageModel
        from transformer_jax.models.ngram import NgramModel

        try:
            tokenizer = load_tokenizer(run.tokenizer)
        except DataError as error:
            raise CheckpointError(str(error)) from None
        counts = NgramModel.load(run.path / "ngram.npz")
        try:
            return NgramLanguageModel(counts, tokenizer)
        except ConfigError as error:
            raise CheckpointError(f"{path}: {error}") from None
    from transformer_jax.decoding.language import DecoderLanguageModel

    model, tokenizer = load(path, checkpoint, kind="decoder", change=change)
    return DecoderLanguageModel(
        model,
        tokenizer,
        first=first_token(run, tokenizer),
        ends=run.read_config().get("first") != "newline",
        shapes=shapes,
        dtype=dtype,
        context=context,
    )


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else str(list(shape))
