"""Encoders and fine-tuned models of runs and Hugging Face folders, ready for lines of text."""

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
    from transformer_jax.inference.encoding.task_runner import TaskRunner
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
# What the head of each task predicts, for messages.
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
    """The configuration of a run's model, which is a Transformer.

    Raises:
        CheckpointError: ``config.json`` is damaged or describes no model of this library.
        ConfigError: The model is a recurrent translator.
    """
    config = model_config(run)
    if isinstance(config, RecurrentConfig):
        raise ConfigError(
            f"{run.path}: a recurrent translator, and this is for Transformers: try "
            f"{command('translate', run.path)}, or the commands score and attention"
        )
    return config


def read_length(run: "RunDirectory") -> int:
    """The context length of a run's encoder: with learned positions, that of training."""
    config, fields = _transformer_config(run), run.read_config()
    most = config.positions.max_length
    if config.positions.kind != "learned" or config.decoder_layers:
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
    """The embedder of a run's encoder, and a function that preprocesses lines.

    A sentence encoder keeps the maximum length of its own configuration.

    Args:
        path: The run.
        checkpoint: The checkpoint, see :func:`chosen_checkpoint`.
        tokens: Maximum number of tokens in a batch.
        sentences: Whether to apply what a sentence encoder does with pooled vectors.
        prompt: A text that goes before each line.
        loaded: The model and the tokenizer, if they were loaded already.
        direction: The languages, for a translator of several, whose tags are read with texts.

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
        direction_of(run, tokenizer, direction)  # refuses languages
    else:
        before, after = tokenizer.languages.sides(direction)
        template = SpecialTokensTemplate(before, (tokenizer.eos,), after)
    vectors = Embedder(model, tokenizer, length=length, tokens=tokens, template=template)
    if sentences:
        from transformer_jax.interop.dense import read_head

        vectors.dense = read_head(run.path, sentence, vectors.width)
    return vectors, prompted(run, prepare, prompt)


def prompted(
    run: "RunDirectory", prepare: Callable[[str], str], prompt: str
) -> Callable[[str], str]:
    """Returns a function that prepares a line of an encoder and puts a prompt before it.

    Both are read in small letters where the encoder's configuration says so.
    """
    if "lowercase" in sentence_of(run):
        return lambda line: f"{prompt}{prepare(line)}".lower()
    return (lambda line: f"{prompt}{prepare(line)}") if prompt else prepare


def prompt_of(
    run: "RunDirectory", name: str | None = None, *, text: str | None = None, usual: bool = True
) -> str:
    """Returns the text that goes before others, as sentence-transformers chooses it.

    Args:
        run: The run.
        name: Of a prompt of the sentence encoder; ``query`` and ``document`` are empty where it
            has no others.
        text: The prompt itself, which goes before a name.
        usual: Whether the encoder's default prompt is taken where neither is given.

    Raises:
        ConfigError: There is no prompt of this name.
    """
    if text is not None:
        return text
    sentence = sentence_of(run)
    prompts = {"query": "", "document": ""} | dict(sentence.get("prompts", {}))
    name = (sentence.get("default_prompt") if usual else None) if name is None else name
    if name is None:
        return ""
    if name not in prompts:
        raise ConfigError(f"{run.path}: no prompt {name!r}: there are {', '.join(prompts)}")
    return str(prompts[name])


def pool_of(path: Path, pooling: "Pool | None") -> "Pools":
    """The pooling of a run: ``pooling``, else that of a sentence encoder, else mean.

    Raises:
        ConfigError: The pooling of the sentence encoder is not supported.
        CheckpointError: The run does not exist, or is damaged.
    """
    if pooling is not None:
        return pooling
    sentence = sentence_of(open_directory(path))
    pool = sentence.get("pool", "mean")
    from transformer_jax.inference.encoding.vectors import Pool

    pools, others = tuple(pool.split(" and ")), "choose the pooling mean or cls, which give other"
    if not {*pools} <= {*get_args(Pool)} - {"none"}:
        raise ConfigError(
            f"{path}: sentence encoder with pooling {pool!r}, which is not supported: {others} "
            f"vectors"
        )
    if refused := sentence.get("refused"):
        raise ConfigError(f"{path}: {refused[0]}, which is not supported: {others} vectors")
    return pools[0] if len(pools) == 1 else pools  # type: ignore[return-value]


def skip_of(run: "RunDirectory", vectors: "Embedder", prompt: str) -> int:
    """Returns how many tokens of a prompted text a sentence encoder does not pool."""
    sentence = sentence_of(run)
    if not prompt or not sentence.get("excludes_prompt"):
        return 0
    return vectors.prompt_length(prompt.lower() if "lowercase" in sentence else prompt)


def similarity_of(run: "RunDirectory") -> tuple[str, Callable[[Any, Any], Any]]:
    """Returns the name of the similarity of a sentence encoder's vectors, and the function.

    Raises:
        ConfigError: It is neither the cosine nor the dot product.
    """
    from transformer_jax.core.numerics import cosine

    name = sentence_of(run).get("similarity", "cosine")
    if name not in ("cosine", "dot"):
        raise ConfigError(
            f"{run.path}: compares vectors by {name!r}, which is not supported: choose the "
            f"pooling mean or cls, whose vectors are compared by their cosine"
        )
    return name, cosine if name == "cosine" else lambda a, b: (a * b).sum(-1)


def sentence_of(run: "RunDirectory") -> dict[str, Any]:
    """The pooling settings of a sentence encoder; empty for other encoders.

    Raises:
        CheckpointError: ``config.json`` is damaged.
    """
    found = run.read_config().get("sentence", {})
    right = isinstance(found, dict) and isinstance(found.get("pool", ""), str)
    right = right and isinstance(found.get("dense", {}), dict)
    right = right and isinstance(found.get("prompts", {}), dict)
    length = found.get("length", 1) if right else 0
    if type(length) is not int or length < 1:
        raise CheckpointError(f"{run.config}: sentence must hold a pooling and a length: damaged?")
    return found  # type: ignore[no-any-return]


def load_task(
    path: Path, checkpoint: str, tasks: Sequence[str], *, tokens: int = 4096, loaded: Any = None
) -> "tuple[TaskRunner, dict[str, Any], Callable[[str], str]]":
    """The predictor of a fine-tuned model, its task, and a function that preprocesses lines.

    Raises:
        ConfigError: The run has no head for any of ``tasks``; the message names its command.
        CheckpointError: The run does not exist, or is damaged.
    """
    run = open_directory(path)
    if refuse_others(run, (*ENCODERS, "decoder-task")) == "encoder":
        raise ConfigError(
            f"{path}: pre-trained encoder with no head for {_HEADS[tasks[0]]}: fine-tune it, see "
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
        template=template_of(run, tokenizer),
    )
    return predictor, task, prepare


def _rewards(
    run: "RunDirectory",
    model: Any,
    tokenizer: "Tokenizer",
    tokens: int,
    prepare: Callable[[str], str],
) -> "RewardRunner":
    """The predictor of a reward model that was trained here."""
    from transformer_jax.data.chat.template import find_template
    from transformer_jax.inference.chats import encoder_of
    from transformer_jax.inference.encoding.rewards import RewardRunner

    # Only what is trained on conversations has a template.
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
    """The special-tokens template of a run; None is that of training here.

    A Hugging Face encoder has the special-tokens template of its tokenizer, if there is one;
    a Hugging Face decoder has that of its tokenizer or none.
    """
    from transformer_jax.data.examples import decoder_template
    from transformer_jax.data.tokenizer import SpecialTokensTemplate

    published = run.read_config().get("published")
    if not isinstance(published, dict):
        return decoder_template(tokenizer) if family(run) == "decoder-task" else None
    if family(run) == "decoder-task":
        before, between, after = tokenizer.template or SpecialTokensTemplate((), (), ())
        # The class comes from the last token that is not padding, even if a text ends with one.
        while after and after[-1] == published["fields"].get("pad_token_id"):
            after = after[:-1]
        return SpecialTokensTemplate(before, between, after)
    if tokenizer.template is None and tokenizer.bos == tokenizer.pad:  # no start token (T5)
        end = (tokenizer.eos,)
        return SpecialTokensTemplate((), end, end)
    return tokenizer.template
