"""Checks of the settings of a run against its devices, tokenizer, metrics and each other."""

import dataclasses
import math
from typing import Any

from jax.sharding import Mesh

from transformer_jax.data.tokenizer import Tokenizer, load_tokenizer
from transformer_jax.errors import ConfigError, plural
from transformer_jax.evaluation.words import check_tokenize
from transformer_jax.parallel.mesh import devices_of, make_mesh
from transformer_jax.parallel.sharding import num_batch_shards
from transformer_jax.runs.alignment_settings import PolicyRun, PreferenceRun
from transformer_jax.runs.any_run import AnyRun, BucketedRunType, RunType
from transformer_jax.runs.encoder_settings import FinetuneRun, PretrainRun
from transformer_jax.runs.language_settings import LanguageRun
from transformer_jax.runs.settings import start_config, with_normalization
from transformer_jax.runs.speech_settings import SpeechRun
from transformer_jax.runs.summarization_settings import SummarizationRun
from transformer_jax.runs.translation_settings import Run as TranslationRun
from transformer_jax.tasks.scores import MEASURES
from transformer_jax.training.activity import log
from transformer_jax.training.schedules import check_warmup
from transformer_jax.word_vectors.initialization import check_size

__all__ = [
    "check_rows",
    "checked",
    "length_limit",
    "mesh_of",
    "with_loaded_tokenizer",
    "with_rows",
    "with_rows_for",
    "with_vocab",
    "with_warmup",
]


def with_vocab(run: RunType, tokenizer: Tokenizer) -> RunType:
    """The run with a model of the tokenizer's vocabulary."""
    model = dataclasses.replace(run.model, vocab_size=tokenizer.vocab_size)
    return dataclasses.replace(run, model=model)


def with_rows_for(run: RunType, tokenizer: Tokenizer) -> RunType:
    """The run with a model that has a row for each token; rows that it has more stay."""
    model, needed = run.model, tokenizer.vocab_size
    own = model.decoder_vocab_size
    model = dataclasses.replace(
        model,
        vocab_size=max(model.vocab_size, needed),
        decoder_vocab_size=None if own is None else max(own, needed),
    )
    return dataclasses.replace(run, model=model)


def mesh_of(run: AnyRun) -> Mesh:
    """The mesh over the devices that the run may use."""
    return make_mesh(run.mesh, devices_of(run.distributed))


def with_rows(run: BucketedRunType) -> BucketedRunType:
    """The run with a number of rows that divides over this mesh and those of later resumes."""
    training = run.training
    needed = num_batch_shards(mesh_of(run)) * training.gradient_accumulation_steps
    multiple = math.lcm(training.required_batch_size_multiple, needed)
    return dataclasses.replace(
        run, training=dataclasses.replace(training, required_batch_size_multiple=multiple)
    )


def checked(run: RunType, named: RunType) -> RunType:
    """The run with a warmup that fits, after what can be refused before any text is read.

    A tokenizer that is loaded decides whether text is composed.

    Args:
        run: The settings.
        named: The settings before flags changed them.

    Raises:
        ConfigError: A model of features for text, words of scores that nothing installed splits, a
            metric of checkpoints that the run does not
            have, word vectors of another size or beside another run to start from, texts that
            exceed the model's positions or that the devices along ``context`` cannot share, or a
            warmup that is too long.
        DataError: The file of word vectors cannot be read.
    """
    features = run.model.features.num_features
    if features and not isinstance(run, SpeechRun):
        raise ConfigError(
            f"model.features.num_features is {features}: this run reads text: leave it out"
        )
    if isinstance(run, TranslationRun) and run.evaluation.tokenize not in (None, "latin"):
        check_tokenize(run.evaluation.tokenize, "evaluation.tokenize")
    _check_best(run)
    _check_word_vectors(run)
    _check_adapters(run)
    run = with_warmup(run, named)
    _check_length(run)
    return with_loaded_tokenizer(run)


def with_loaded_tokenizer(run: Any) -> Any:
    """Returns the run with the normalization of a tokenizer that it names.

    Raises:
        DataError: The tokenizer cannot be loaded.
    """
    if run.tokenizer.path is None:
        return run
    return with_normalization(run, load_tokenizer(run.tokenizer.path).normalization)


def length_limit(run: AnyRun) -> tuple[str, int]:
    """The setting that bounds the tokens of a text, and its value.

    Example:
        >>> from transformer_jax.runs.translation_settings import RUNS
        >>> length_limit(RUNS["base"][1])
        ('data.read.max_length', 256)
    """
    if isinstance(run, TranslationRun):
        return "data.read.max_length", run.data.read.max_length
    if isinstance(run, FinetuneRun):
        return "task.max_length", run.task.max_length
    if isinstance(run, PreferenceRun):
        return "align.max_length", run.align.max_length or 0
    if isinstance(run, PolicyRun):
        align = run.align
        both = align.max_prompt_length + align.max_new_tokens
        return "the sum of align.max_prompt_length and align.max_new_tokens", both
    return "training.sequence_length", run.training.sequence_length


def _check_best(run: AnyRun) -> None:
    match run:
        case SummarizationRun():
            more: tuple[str, ...] = ("rouge1", "rouge2", "rougeL", "rougeLsum")
        case SpeechRun():
            more = ("wer", "cer", "sacrebleu")
        case TranslationRun():
            more = ("sacrebleu",)
        case PretrainRun():
            more = ("valid_mlm_accuracy",)
        case FinetuneRun():
            more = tuple(f"valid_{name}" for name in MEASURES[run.task.kind])
        case PreferenceRun():
            more = ("valid_accuracy",)
        case PolicyRun():
            more = ("valid_reward",)
        case _:
            more = ()
    allowed = ("valid_loss", *more)
    if run.loop.best_checkpoint_metric not in (None, *allowed):
        raise ConfigError(
            f"loop.best_checkpoint_metric is {run.loop.best_checkpoint_metric}: "
            f"this run has {', '.join(allowed)}"
        )


def _check_word_vectors(run: AnyRun) -> None:
    path = run.model.embedding.init
    if path is None:
        return
    if not path:
        raise ConfigError("model.embedding.init needs a file of word vectors")
    start = start_config(run)
    if start.init_from is not None:
        raise ConfigError(
            f"model.embedding.init {path} and {start.prefix}init_from {start.init_from}: "
            f"embeddings begin with word vectors or with those of another run: leave one out"
        )
    check_size(run.model)


def with_warmup(run: RunType, named: RunType) -> RunType:
    """The run with a warmup that fits into its steps: a tenth of them where the named one does not.

    Raises:
        ConfigError: A warmup of its own that is too long; the message has both numbers.
    """
    steps, schedule = run.training.steps, run.optimizer.schedule
    if steps is None:
        return run
    try:
        check_warmup(schedule, steps)
    except ConfigError:
        if schedule.warmup_steps != named.optimizer.schedule.warmup_steps:
            raise
        schedule = dataclasses.replace(schedule, warmup_steps=None)
        check_warmup(schedule, steps)
        log(f"warmup: a tenth of {plural(steps, 'step')}, since that of the named run is longer")
    optimizer = dataclasses.replace(run.optimizer, schedule=schedule)
    return dataclasses.replace(run, optimizer=optimizer)


def _check_adapters(run: AnyRun) -> None:
    asked, own = getattr(run, "lora", None), start_config(run)
    if asked is None:
        return
    if not asked.rank:
        if asked != type(asked)():
            raise ConfigError(
                "lora: settings of adapters are given without lora.rank: add --lora.rank 8"
            )
        return
    if own.init_from is None:
        raise ConfigError(
            f"lora.rank is given without {own.prefix}init_from: adapters change a trained model"
        )
    given = {"freeze": "none", "reinit_last": 0, "reinit_head": False}
    for name, usual in given.items():
        value = getattr(own, name)
        if value != usual:
            raise ConfigError(
                f"{own.prefix}{name} is {value} and lora.rank {asked.rank}: beside adapters the "
                f"whole model stays as it is: leave one of them out"
            )


def _check_length(run: AnyRun) -> None:
    setting, length = length_limit(run)
    most = run.model.max_length
    if length > most:
        raise ConfigError(
            f"{setting} is {length}, but the model has positions for {plural(most, 'token')}: "
            f"lower the one "
            f"or raise model.{'positions.' * hasattr(run.model, 'positions')}max_length"
        )
    # The batches of other runs are padded to lengths that divide.
    if isinstance(run, LanguageRun) and length % run.mesh.context:
        raise ConfigError(
            f"{setting} is {length}: with mesh.context {run.mesh.context} it must be a multiple of "
            f"{run.mesh.context}"
        )


def check_rows(run: AnyRun) -> None:
    """Refuse batches whose rows do not divide over devices and micro-batches.

    Raises:
        ConfigError: The rows do not divide; the message has the divisor.
    """
    needed = num_batch_shards(mesh_of(run)) * run.training.gradient_accumulation_steps
    if run.training.row_unit % needed:
        raise ConfigError(
            f"this run has batches of a multiple of {plural(run.training.row_unit, 'row')}, which "
            f"do not "
            f"divide by {needed} (mesh data x fsdp x gradient_accumulation_steps): choose another "
            f"mesh, or other "
            f"batches for a new run"
        )
