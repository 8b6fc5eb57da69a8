"""Loads encoders and fine-tuned models of runs and Hugging Face folders, for lines of text."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from transformer_jax.core.errors import CheckpointError, ConfigError, command
from transformer_jax.data.languages import DEFAULT_DIRECTION, Direction
from transformer_jax.inference.load_run import load
from transformer_jax.inference.runs import (
    ENCODERS,
    FINE_TUNED,
    TASKS,
    as_trained,
    direction_of,
    family,
    first_token,
    model_config,
    open_directory,
    refuse_others,
    source_as_trained,
    task_of,
)
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.recurrent_config import RecurrentConfig
from transformer_jax.recipes.registry import recipe_of

if TYPE_CHECKING:
    from transformer_jax.data.tokenizer import SpecialTokensTemplate, Tokenizer
    from transformer_jax.inference.encoding.rewards import RewardRunner
    from transformer_jax.inference.encoding.task_runner import ReadingForm, TaskRunner
    from transformer_jax.inference.encoding.vectors import Embedder, Pool, Pools
    from transformer_jax.runs.run_directory import RunDirectory

__all__ = [
    "load_task",
    "load_vectors",
    "pool_of",
    "prompt_of",
    "prompted",
    "read_length",
    "sentence_of",
    "similarity_of",
    "skip_of",
    "template_of",
]

_NO_END = 1 << 30  # tokens
# The predictions of each task's head, for messages.
_HEADS = {
    "classify": "classes",
    "multi_label": "labels",
    "pair": "classes of pairs",
    "regress": "numbers",
    "replaced": "replaced tokens",
    "tag": "tags",
    "qa": "answers",
}


def _transformer_config(run: "RunDirectory") -> TransformerConfig:
    """Returns the configuration of a run's Transformer.

    Raises:
        CheckpointError: ``config.json`` is damaged or does not describe a model of this library.
        ConfigError: The model is a recurrent translator.
    """
    config = model_config(run)
    if isinstance(config, RecurrentConfig):
        raise ConfigError(
            f"{run.path}: a recurrent translator, but a Transformer is needed: try "
            f"{command('translate', run.path)}, or the commands score and attention"
        )
    return config


def read_length(run: "RunDirectory") -> int:
    """Returns a run's encoder context length; with learned positions, the length in training."""
    config, fields = _transformer_config(run), run.read_config()
    most = config.positions.max_length
    # A published model never reads more than its folder says.
    if "published" not in fields and (config.positions.kind != "learned" or config.decoder_layers):
        return most
    part = fields.get("task" if "task" in fields else "training")
    length = (
        part.get("max_length" if "task" in fields else "sequence_length")
        if isinstance(part, dict)
        else None
    )
    return min(most, length) if isinstance(length, int) else most


def load_vectors(
    path: Path,
    checkpoint: str = "best",
    *,
    tokens: int | None = None,
    sentences: bool = False,
    prompt: str = "",
    loaded: Any = None,
    direction: Direction = DEFAULT_DIRECTION,
) -> "tuple[Embedder, Callable[[str], str]]":
    """Loads the embedder of a run's encoder, and a function that preprocesses lines.

    A sentence encoder keeps the maximum length in its configuration.

    Args:
        path: The run.
        checkpoint: The checkpoint, see :func:`chosen_checkpoint`.
        tokens: Maximum number of tokens in a batch.
        sentences: Whether to apply a sentence encoder's layers after pooling.
        prompt: Text to put before each line.
        loaded: The model and the tokenizer, if already loaded.
        direction: The languages, for a multilingual translator, whose tags are read with texts.

    Raises:
        ConfigError: The run has no encoder; a language is unknown or missing.
        CheckpointError: The run does not exist, or is damaged.
    """
    run = open_directory(path)
    kinds = (*ENCODERS, "encoder-decoder")
    refuse_others(run, kinds)
    prepare = source_as_trained(path)
    from transformer_jax.data.tokenizer import SpecialTokensTemplate
    from transformer_jax.inference.encoding.vectors import Embedder

    model, tokenizer = loaded or load(path, checkpoint, kind=kinds)
    sentence = sentence_of(run)
    length = min(read_length(run), sentence.get("length", _NO_END))
    template: Any = template_of(run, tokenizer)
    if tokenizer.languages is None:
        direction_of(run, tokenizer, direction)  # refuses unknown languages
    else:
        before, after = tokenizer.languages.sides(direction)
        template = SpecialTokensTemplate(before, (tokenizer.eos,), after)
    vectors = Embedder(model, tokenizer, length=length, tokens=tokens, template=template)
    if sentences:
        from transformer_jax.interop.sentence_dense import read_head

        vectors.dense = read_head(run.path, sentence, vectors.width)
    return vectors, prompted(run, prepare, prompt)


def prompted(
    run: "RunDirectory", prepare: Callable[[str], str], prompt: str
) -> Callable[[str], str]:
    """Returns a function that preprocesses a line for an encoder, with a prompt before it.

    Both are lower-cased if the encoder's configuration specifies so.
    """
    if "lowercase" in sentence_of(run):
        return lambda line: f"{prompt}{prepare(line)}".lower()
    return (lambda line: f"{prompt}{prepare(line)}") if prompt else prepare


def prompt_of(
    run: "RunDirectory", name: str | None = None, *, text: str | None = None, usual: bool = True
) -> str:
    """Returns the text of the prompt, chosen as in sentence-transformers.

    Args:
        run: The run.
        name: Name of a prompt of the sentence encoder; ``query`` and ``document`` are empty if not
            defined.
        text: Text of the prompt, which takes precedence over ``name``.
        usual: Whether to use the encoder's default prompt if neither is given.

    Raises:
        ConfigError: The name is unknown.
    """
    if text is not None:
        return text
    sentence = sentence_of(run)
    prompts = {"query": "", "document": ""} | dict(sentence.get("prompts", {}))
    name = (sentence.get("default_prompt") if usual else None) if name is None else name
    if name is None:
        return ""
    if name not in prompts:
        raise ConfigError(f"{run.path}: unknown prompt {name!r}: there are {', '.join(prompts)}")
    return str(prompts[name])


def pool_of(path: Path, pooling: "Pool | None") -> "Pools":
    """Returns ``pooling``, or else the sentence encoder's pooling, or else the mean.

    Raises:
        ConfigError: The pooling of the sentence encoder is not supported.
        CheckpointError: The run does not exist, or is damaged.
    """
    if pooling is not None:
        return pooling
    sentence = sentence_of(open_directory(path))
    pool = sentence.get("pool", "mean")
    from transformer_jax.inference.encoding.vectors import Pool

    pools, others = tuple(pool.split(" and ")), "choose the pooling mean or cls, for different"
    if not {*pools} <= {*get_args(Pool)} - {"none"}:
        raise ConfigError(
            f"{path}: sentence encoder with pooling {pool!r}, which is not supported: {others} "
            f"vectors"
        )
    if refused := sentence.get("refused"):
        raise ConfigError(f"{path}: {refused[0]}, which is not supported: {others} vectors")
    return pools[0] if len(pools) == 1 else pools  # type: ignore[return-value]


def skip_of(run: "RunDirectory", vectors: "Embedder", prompt: str) -> int:
    """Returns the number of prompt tokens that a sentence encoder excludes from pooling."""
    sentence = sentence_of(run)
    if not prompt or not sentence.get("excludes_prompt"):
        return 0
    return vectors.prompt_length(prompt.lower() if "lowercase" in sentence else prompt)


def similarity_of(run: "RunDirectory") -> tuple[str, Callable[[Any, Any], Any]]:
    """Returns the name of a sentence encoder's similarity, and the function.

    Raises:
        ConfigError: The similarity is neither the cosine nor the dot product.
    """
    from transformer_jax.core.numerics import cosine

    name = sentence_of(run).get("similarity", "cosine")
    if name not in ("cosine", "dot"):
        raise ConfigError(
            f"{run.path}: the similarity {name!r} is not supported: choose the "
            f"pooling mean or cls, for the cosine"
        )
    return name, cosine if name == "cosine" else lambda a, b: (a * b).sum(-1)


def sentence_of(run: "RunDirectory") -> dict[str, Any]:
    """Returns the pooling settings of a sentence encoder; empty for other encoders.

    Raises:
        CheckpointError: ``config.json`` is damaged.
    """
    # Loading the model checks the file; this is also read later, from Python.
    found = run.read_config(check=False).get("sentence", {})
    right = isinstance(found, dict) and isinstance(found.get("pool", ""), str)
    right = right and isinstance(found.get("dense", {}), dict)
    right = right and isinstance(found.get("prompts", {}), dict)
    length = found.get("length", 1) if right else 0
    if type(length) is not int or length < 1:
        raise CheckpointError(f"{run.config}: sentence must have a pooling and a length: damaged?")
    return found  # type: ignore[no-any-return]


def load_task(
    path: Path, checkpoint: str, tasks: Sequence[str], *, tokens: int = 4096, loaded: Any = None
) -> "tuple[TaskRunner, dict[str, Any], Callable[[str], str]]":
    """Loads a fine-tuned model, its task, and a function that preprocesses lines.

    Raises:
        ConfigError: The run has no head for any of ``tasks``; the message names the right command.
        CheckpointError: The run does not exist, or is damaged.
    """
    run = open_directory(path)
    if refuse_others(run, (*ENCODERS, "decoder-task")) == "encoder":
        raise ConfigError(
            f"{path}: pre-trained encoder without a head for {_HEADS[tasks[0]]}: fine-tune it, see "
            f"{command('finetune', tasks[0], '--init-from', path, '--help')}"
        )
    task = task_of(run)
    kind = task["kind"]
    if kind not in tasks:
        raise ConfigError(
            f"{path}: the run of the task {kind}, which has a head for {_HEADS[kind]} and none "
            f"for {_HEADS[tasks[0]]}: try "
            f"{command(TASKS[kind], path)}"
        )
    prepare = as_trained(path)
    from transformer_jax.inference.encoding.task_runner import TaskRunner

    model, tokenizer = loaded or load(path, checkpoint, kind=FINE_TUNED)
    if recipe_of(run).name == "reward_model":
        prepare = as_trained(path, trim=False)
        return _rewards(run, model, tokenizer, tokens, prepare), task, prepare
    predictor = TaskRunner(
        model,
        tokenizer,
        kind=kind,
        labels=task.get("labels", []),
        length=int(task.get("max_length", 128)),
        stride=int(task.get("doc_stride", 64)),
        tokens=tokens,
        form=_reading_form(run, tokenizer),
    )
    return predictor, task, prepare


def _reading_form(run: "RunDirectory", tokenizer: "Tokenizer") -> "ReadingForm":
    """Returns how a model reads and scores texts: a published one as in transformers."""
    from transformer_jax.inference.encoding.task_runner import ReadingForm

    template, published = template_of(run, tokenizer), run.read_config().get("published")
    if not isinstance(published, dict):
        return ReadingForm(template)
    types, activation = published.get("types") is not False, published.get("activation", "identity")
    return ReadingForm(template, types, "longer", activation)


def _rewards(
    run: "RunDirectory",
    model: Any,
    tokenizer: "Tokenizer",
    tokens: int,
    prepare: Callable[[str], str],
) -> "RewardRunner":
    """Returns the runner of a reward model trained here."""
    from transformer_jax.data.chat.template import find_template
    from transformer_jax.inference.chats import encoder_of
    from transformer_jax.inference.encoding.rewards import RewardRunner

    # Only runs on conversations have a template.
    has_chats = find_template(run.path) is not None
    return RewardRunner(
        model,
        tokenizer,
        first=first_token(run, tokenizer),
        length=int(task_of(run)["max_length"]),
        tokens=tokens,
        chats=encoder_of(run.path, tokenizer) if has_chats else None,
        prepare=prepare,
    )


def template_of(run: "RunDirectory", tokenizer: "Tokenizer") -> "SpecialTokensTemplate | None":
    """Returns the special-tokens template of a run; None for the default of training here.

    A Hugging Face encoder has the template of its tokenizer, if any; a Hugging Face decoder has the
    template of its tokenizer or no special tokens. A reward model trained here reads texts as its
    language model, with an end token.
    """
    from transformer_jax.data.examples import decoder_template
    from transformer_jax.data.tokenizer import SpecialTokensTemplate

    published = run.read_config().get("published")
    if not isinstance(published, dict):
        if recipe_of(run).name == "reward_model":
            return SpecialTokensTemplate((first_token(run, tokenizer),), (), (tokenizer.eos,))
        return decoder_template(tokenizer) if family(run) == "decoder-task" else None
    if family(run) == "decoder-task":
        before, between, after = tokenizer.template or SpecialTokensTemplate((), (), ())
        # The class is read from the last token that is not the padding token, even if a text ends
        # with it.
        while after and after[-1] == published["fields"].get("pad_token_id"):
            after = after[:-1]
        return SpecialTokensTemplate(before, between, after)
    if tokenizer.template is None and tokenizer.bos == tokenizer.pad:  # no start token (T5)
        end = (tokenizer.eos,)
        return SpecialTokensTemplate((), end, end)
    return tokenizer.template
