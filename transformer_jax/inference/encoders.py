"""Uses of opened encoders and fine-tuned models: vectors, masked tokens, tasks."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from transformer_jax.core.errors import ConfigError, DataError, command, plural
from transformer_jax.data.languages import DEFAULT_DIRECTION, Direction
from transformer_jax.inference.facts import ENCODERS, TASKS, Facts, TaskHead

if TYPE_CHECKING:
    from transformer_jax.data.preparation import Preparation
    from transformer_jax.data.tokenizer import SpecialTokensTemplate, Tokenizer
    from transformer_jax.inference.encoding.masked import MaskFiller
    from transformer_jax.inference.encoding.rewards import RewardRunner
    from transformer_jax.inference.encoding.task_runner import ReadingForm, TaskRunner
    from transformer_jax.inference.encoding.vectors import Embedder, Pool, Pools
    from transformer_jax.inference.pretrained import Pretrained, SentenceLayer

__all__ = [
    "EMBEDDING_FAMILIES",
    "check_masks",
    "check_question",
    "check_scorer",
    "check_task",
    "first_components",
    "mask_filler",
    "pools_of",
    "prompt_of",
    "read_length",
    "similarity_of",
    "skip_of",
    "task_runner",
    "template_of",
    "vectors_of",
]

EMBEDDING_FAMILIES = (*ENCODERS, "encoder-decoder")

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


def read_length(facts: Facts) -> int:
    """Returns an encoder's context length; with learned positions, the length in training."""
    config, fields = facts.transformer, facts.record
    most = config.positions.max_length
    # A published model never reads more than its folder says.
    if "published" not in fields and (not config.positions.learned or config.decoder_layers):
        return most
    part = fields.get("task" if "task" in fields else "training")
    length = (
        part.get("max_length" if "task" in fields else "sequence_length")
        if isinstance(part, dict)
        else None
    )
    return min(most, length) if isinstance(length, int) else most


def vectors_of(
    opened: "Pretrained",
    *,
    tokens: int | None = None,
    direction: Direction = DEFAULT_DIRECTION,
    prepare: Callable[[str, str], str] | None = None,
) -> "Embedder":
    """Returns the embedder of an opened encoder, without the last layer of a sentence encoder.

    A sentence encoder keeps the maximum length in its configuration.

    Args:
        opened: The model, one of :data:`EMBEDDING_FAMILIES`.
        tokens: Maximum number of tokens in a batch.
        direction: The languages, for a multilingual translator, whose tags are read with texts.
        prepare: Prepares a text, put after a prompt; None prepares it as in training.

    Raises:
        ConfigError: The model is recurrent; a language is unknown or missing.
        CheckpointError: The settings of a sentence encoder are damaged.
    """
    from transformer_jax.data.tokenizer import SpecialTokensTemplate
    from transformer_jax.inference.encoding.vectors import Embedder

    facts, tokenizer = opened.facts, opened.tokenizer
    length = min(read_length(facts), facts.sentence.get("length", _NO_END))
    template = template_of(facts, tokenizer)
    direction = facts.direction(tokenizer, direction)  # refuses unknown languages
    if tokenizer.languages is not None:
        before, after = tokenizer.languages.sides(direction)
        template = SpecialTokensTemplate(before, (tokenizer.eos,), after)
    return Embedder(
        opened.model,
        tokenizer,
        length=length,
        tokens=tokens,
        template=template,
        prepare=_preparation(facts) if prepare is None else prepare,
    )


def _preparation(facts: Facts) -> Callable[[str, str], str]:
    """Returns a function that prepares a text for an encoder, and puts it after a prompt.

    Both are lower-cased if the encoder's configuration specifies so.
    """
    prepare = facts.preparation.source
    if "lowercase" in facts.sentence:
        return lambda text, prompt: f"{prompt}{prepare(text)}".lower()
    return lambda text, prompt: f"{prompt}{prepare(text)}"


def prompt_of(
    facts: Facts, name: str | None = None, *, text: str | None = None, usual: bool = True
) -> str:
    """Returns the text of the prompt, chosen as in sentence-transformers.

    Args:
        facts: Facts of the encoder.
        name: Name of a prompt of the sentence encoder; ``query`` and ``document`` are empty if not
            defined.
        text: Text of the prompt, which takes precedence over ``name``.
        usual: Whether to use the encoder's default prompt if neither is given.

    Raises:
        ConfigError: The name is unknown.
    """
    if text is not None:
        return text
    prompts = {"query": "", "document": ""} | dict(facts.sentence.get("prompts", {}))
    name = (facts.sentence.get("default_prompt") if usual else None) if name is None else name
    if name is None:
        return ""
    if name not in prompts:
        known = ", ".join(prompts)
        raise ConfigError(f"{facts.source}: unknown prompt {name!r}: there are {known}")
    return str(prompts[name])


def pools_of(facts: Facts, pooling: "Pool | None" = None) -> "Pools":
    """Returns ``pooling``, or else the sentence encoder's pooling, or else the mean.

    Raises:
        ConfigError: The pooling of the sentence encoder is not supported.
        CheckpointError: The settings of the sentence encoder are damaged.
    """
    if pooling is not None:
        return pooling
    pool = facts.sentence.get("pool", "mean")
    from transformer_jax.inference.encoding.vectors import Pool

    pools, others = tuple(pool.split(" and ")), "choose the pooling mean or cls, for different"
    if not {*pools} <= {*get_args(Pool)} - {"none"}:
        raise ConfigError(
            f"{facts.source}: sentence encoder with pooling {pool!r}, which is not supported: "
            f"{others} vectors"
        )
    if refused := facts.sentence.get("refused"):
        raise ConfigError(f"{facts.source}: {refused[0]}, which is not supported: {others} vectors")
    return pools[0] if len(pools) == 1 else pools  # type: ignore[return-value]


def skip_of(facts: Facts, vectors: "Embedder", prompt: str) -> int:
    """Returns the number of prompt tokens that a sentence encoder excludes from pooling."""
    if not prompt or not facts.sentence.get("excludes_prompt"):
        return 0
    return vectors.prompt_length(prompt.lower() if "lowercase" in facts.sentence else prompt)


def first_components(facts: Facts, layer: "SentenceLayer | None", width: int) -> "SentenceLayer":
    """Returns a function from pooled vectors to the first components of an encoder's vectors.

    They have length 1 again if the encoder's have.

    Args:
        facts: Facts of the encoder.
        layer: Its last layer, or None.
        width: Number of components.
    """
    from transformer_jax.interop.sentence_dense import normalized

    def cut(vectors: np.ndarray) -> np.ndarray:
        vectors = vectors if layer is None else layer(vectors)
        if width > vectors.shape[-1]:
            has = plural(vectors.shape[-1], "component")
            raise ConfigError(f"width is {width}, but vectors of {facts.source} have {has}")
        first = vectors[..., :width]
        return normalized(first) if facts.sentence.get("normalize") else first

    return cut


def similarity_of(facts: Facts) -> tuple[str, Callable[[Any, Any], Any]]:
    """Returns the name of a sentence encoder's similarity, and the function.

    Raises:
        ConfigError: The similarity is neither the cosine nor the dot product.
    """
    from transformer_jax.core.numerics import cosine

    name = facts.sentence.get("similarity", "cosine")
    if name not in ("cosine", "dot"):
        raise ConfigError(
            f"{facts.source}: the similarity {name!r} is not supported: choose the "
            f"pooling mean or cls, for the cosine"
        )
    return name, cosine if name == "cosine" else lambda a, b: (a * b).sum(-1)


def check_masks(facts: Facts) -> None:
    """Refuses a model that does not predict masked tokens.

    Raises:
        ConfigError: The message names a model or a command to use instead.
    """
    if facts.require(*ENCODERS) == "encoder-task":
        begun = facts.head.init_from
        hint = f"use the run that it was initialized from, {begun}" if begun else "pre-train"
        raise ConfigError(
            f"{facts.source}: fine-tuned for the task {facts.head.kind}, it no longer has a "
            f"masked-LM head: {hint}"
        )
    if facts.record.get("masking", {}) is None:
        raise ConfigError(
            f"{facts.source}: this checkpoint has an encoder without a masked-LM head: "
            f"try {command('embed', facts.source)}"
        )


def mask_filler(opened: "Pretrained") -> "MaskFiller":
    """Returns the masked-token predictor of an opened encoder, see :func:`check_masks`.

    Raises:
        ConfigError: The tokenizer has no mask token.
    """
    from transformer_jax.inference.encoding.masked import MaskFiller

    facts, tokenizer = opened.facts, opened.tokenizer
    return MaskFiller(
        opened.model,
        tokenizer,
        length=read_length(facts),
        prepare=facts.preparation.text,
        template=template_of(facts, tokenizer),
    )


def check_task(facts: Facts, *tasks: str) -> TaskHead:
    """Returns the task of a fine-tuned model, which must be one of ``tasks``.

    Raises:
        ConfigError: The model has no head for any of ``tasks``; the message names the right
            command.
        CheckpointError: The task is damaged.
    """
    if facts.require(*ENCODERS, "decoder-task") == "encoder":
        raise ConfigError(
            f"{facts.source}: pre-trained encoder without a head for {_HEADS[tasks[0]]}: fine-tune "
            f"it, see {command('finetune', tasks[0], '--init-from', facts.source, '--help')}"
        )
    kind = facts.head.kind
    if kind not in tasks:
        raise ConfigError(
            f"{facts.source}: the run of the task {kind}, which has a head for {_HEADS[kind]} and "
            f"none for {_HEADS[tasks[0]]}: try {command(TASKS[kind], facts.source)}"
        )
    return facts.head


def check_scorer(facts: Facts) -> TaskHead:
    """Returns the task of a cross-encoder, which gives one number for a pair of texts.

    A Hugging Face folder that does not say whether it reads pairs is taken for one.

    Raises:
        ConfigError: The model gives classes, was trained on single texts, or has no head; the
            message names what is needed.
        CheckpointError: The task is damaged.
    """
    head = check_task(facts, "regress", "multi_label", "classify", "pair")
    published = facts.published
    group = {} if published is None else published["fields"].get("sentence_transformers")
    single = isinstance(group, dict) and group.get("pairs") is False
    if head.kind != "regress" and len(head.labels) != 1:
        what = f"gives {_HEADS[head.kind]}, not one number for a pair"
    elif single or (published is None and not head.pairs):
        what = "was trained on single texts, not on pairs"
    else:
        return head
    raise ConfigError(
        f"{facts.source}: {what}: a cross-encoder is needed, such as a run of "
        f"{command('finetune', 'regress', '--data.read.pair')}"
    )


def check_question(preparation: "Preparation", question: str, name: str) -> None:
    """Refuses a blank question.

    Args:
        preparation: The preparation of texts.
        question: The question.
        name: Its name, for the message.

    Raises:
        DataError: The question is blank.
    """
    if not preparation.line(question):
        raise DataError(f"{name}: no question: it is empty")


def task_runner(opened: "Pretrained", *, tokens: int = 4096) -> "TaskRunner":
    """Returns the runner of an opened fine-tuned model, see :func:`check_task`.

    Args:
        opened: The model.
        tokens: Maximum number of tokens in a batch.

    Raises:
        ConfigError: The chat template of a reward model is damaged.
    """
    facts, tokenizer, head = opened.facts, opened.tokenizer, opened.facts.head
    if facts.recipe == "reward_model":
        return _rewards(opened, tokens)
    from transformer_jax.inference.encoding.task_runner import TaskRunner

    return TaskRunner(
        opened.model,
        tokenizer,
        kind=head.kind,
        labels=head.labels,
        length=head.length,
        stride=head.stride,
        tokens=tokens,
        form=_reading_form(facts, tokenizer),
    )


def _reading_form(facts: Facts, tokenizer: "Tokenizer") -> "ReadingForm":
    """Returns how a model reads and scores texts: a published one as in transformers."""
    from transformer_jax.inference.encoding.task_runner import ReadingForm

    form = ReadingForm(template_of(facts, tokenizer), preparation=facts.preparation)
    if (published := facts.published) is None:
        return form
    return form._replace(
        has_types=published.get("types") is not False,
        odd_token="longer",
        activation=published.get("activation", "identity"),
    )


def _rewards(opened: "Pretrained", tokens: int) -> "RewardRunner":
    """Returns the runner of a reward model trained here."""
    from transformer_jax.inference.chats import encoder_of
    from transformer_jax.inference.encoding.rewards import RewardRunner

    facts, tokenizer, chat = opened.facts, opened.tokenizer, opened.chat
    # Only runs on conversations have a template.
    has_chats = chat.template is not None or chat.error is not None
    return RewardRunner(
        opened.model,
        tokenizer,
        first=facts.first_token(tokenizer),
        length=facts.head.length,
        tokens=tokens,
        chats=encoder_of(facts.source, chat, tokenizer) if has_chats else None,
        prepare=facts.preparation.text,
    )


def template_of(facts: Facts, tokenizer: "Tokenizer") -> "SpecialTokensTemplate | None":
    """Returns the special-tokens template of a model; None for the default of training here.

    A Hugging Face encoder has the template of its tokenizer, if any; a Hugging Face decoder has the
    template of its tokenizer or no special tokens. A reward model trained here reads texts as its
    language model, with an end token.
    """
    from transformer_jax.data.examples import decoder_template
    from transformer_jax.data.tokenizer import SpecialTokensTemplate

    decodes = facts.kind == "decoder-task"
    if (published := facts.published) is None:
        if facts.recipe == "reward_model":
            return SpecialTokensTemplate((facts.first_token(tokenizer),), (), (tokenizer.eos,))
        return decoder_template(tokenizer) if decodes else None
    if decodes:
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
