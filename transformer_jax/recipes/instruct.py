"""Instruction tuning of a decoder on conversations: ``instruct sft``."""

import dataclasses
import functools
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from transformer_jax.core.config_fields import Amount, Configuration, Count, Range
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.added_tokens import has_token
from transformer_jax.data.chat.conversation_store import (
    ChatStore,
    TooLong,
    build_chats,
    split_chats,
)
from transformer_jax.data.chat.template import find_template, special_tokens
from transformer_jax.data.conversations import Message, read_conversations
from transformer_jax.data.data_sets import missing_splits
from transformer_jax.data.preparation import ReadSettings
from transformer_jax.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    NormConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.presets import PRESETS
from transformer_jax.recipes.language_model import TextRows
from transformer_jax.recipes.posttraining import run_template, write_template
from transformer_jax.recipes.read_flags import with_read_flags
from transformer_jax.recipes.recipe import Named, Prepared, Recipe
from transformer_jax.recipes.settings import Adapted, Cached, RunConfig, TokenizerConfig
from transformer_jax.recipes.sizing import with_defaults
from transformer_jax.recipes.tasks.batching import TokenCache
from transformer_jax.recipes.texts import token_cache
from transformer_jax.recipes.validation import ValidationFlags
from transformer_jax.training.settings import LoopConfig, OptimizerConfig, ScheduleConfig

if TYPE_CHECKING:
    from transformer_jax.data.chat.encoding import ChatEncoder
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.inference.facts import Facts
    from transformer_jax.recipes.explicit_settings import Given
    from transformer_jax.recipes.plan_inputs import BatchShapes, PlanInputs
    from transformer_jax.recipes.start import Start
    from transformer_jax.recipes.tasks.instruction_task import Chosen
    from transformer_jax.runs.run_directory import RunDirectory
    from transformer_jax.training.task import Task

__all__ = ["ChatConfig", "ChatData", "Instruct", "InstructRun"]

_SAMPLED = 20_000  # maximum number of messages to train a tokenizer on


@dataclasses.dataclass(frozen=True)
class ChatData(Configuration, group="data"):
    """The source of conversations."""

    train: str | None = None  # .jsonl or .parquet with "messages", .csv with "prompt"; .gz too
    valid: str | None = None  # validation file; None holds out a part of train
    # Fraction of train to hold out, 0 to 0.5.
    validation_size: Annotated[float, Range(0, 0.5)] = 0.05
    # Conversations longer than a row: truncate the start, skip, or stop with an error.
    too_long: TooLong = "truncate"
    read: ReadSettings = ReadSettings()


@dataclasses.dataclass(frozen=True)
class ChatConfig(Configuration, group="chat"):
    """The text form of conversations."""

    # Chat template: a built-in name (chatml, llama-3, ...), a file or a folder; None is the
    # template of init_from.
    template: str | None = None


@dataclasses.dataclass(frozen=True)
class ChatRows(TextRows):
    """Training settings: duration, rows per batch, seed."""

    epochs: Count | None = 3  # passes over the conversations
    layout: Literal["packed"] = "packed"  # pack conversations, which do not attend to each other


@dataclasses.dataclass(frozen=True)
class InstructEvaluation(Configuration, group="evaluation"):
    """Settings of the evaluation at the end of a run."""

    sample: Amount = 100  # tokens of a sample answer to print at the end; 0 is none


@dataclasses.dataclass(frozen=True)
class InstructRun(Cached, Adapted, RunConfig):
    """One instruction-tuning run of a decoder."""

    model: TransformerConfig = PRESETS["gpt2_small"]
    data: ChatData = ChatData()
    chat: ChatConfig = ChatConfig()
    training: ChatRows = ChatRows()
    evaluation: InstructEvaluation = InstructEvaluation()
    first: Literal["bos"] = "bos"  # first token of texts that are not conversations

    parts: ClassVar[tuple[str, ...]] = ("decoder",)

    @property
    def planned_tokenizer(self) -> TokenizerConfig:
        """Returns the settings of the tokenizer with the tokens of a template that was chosen."""
        if self.chat.template is None:
            return self.tokenizer
        return _with_tokens(
            self.tokenizer, special_tokens(run_template(self.chat.template, self.init_from))
        )


class Instruct(Recipe[InstructRun, None]):
    """A decoder, trained on the answers in conversations."""

    name = "instruct"
    title = "a model tuned on conversations"
    config = InstructRun
    family = "decoder"
    starts = ("decoder",)
    evaluation = ValidationFlags
    has_plan = True
    decoding = "sample"

    @functools.cached_property
    def runs(self) -> Named:
        """The named runs."""
        return with_defaults(_NAMED)

    def data(self, run: InstructRun) -> None:
        """Returns nothing: the task reads the conversations."""

    def check(self, run: InstructRun, given: "Given[InstructRun]") -> None:
        """Refuses files that are not conversations, before anything is written."""
        for path, flag in _files(run):
            next(read_conversations(path, flag, run.data.read), None)

    def prepare(
        self, run: InstructRun, start: "Start | None", given: "Given[InstructRun]"
    ) -> Prepared[InstructRun, None]:
        """Returns a run whose tokenizer has the tokens of its template, which it keeps."""
        from transformer_jax.inference.chats import encoder_in
        from transformer_jax.recipes.checks import validated

        if start is not None:
            run = start.adapt(run, given)
        if run.data.train is None:
            raise ConfigError("no conversations: give --data.train chats.jsonl")
        tokens = special_tokens(run_template(run.chat.template, run.init_from))
        if start is not None:
            tokens = tuple(token for token in tokens if not has_token(start.tokenizer, token))
        run = dataclasses.replace(run, tokenizer=_with_tokens(run.tokenizer, tokens))
        run = validated(run, start, given)

        def checked(run: InstructRun, tokenizer: "Tokenizer") -> InstructRun:
            # A template that does not fit is refused by the name that the user gave it.
            encoder_in(Path(run.init_from or run.output or ""), tokenizer, run.chat.template)
            return run

        files = functools.partial(_write_template, run)
        return Prepared(run, None, lambda: _messages(run), with_tokenizer=checked, files=files)

    def task(
        self, run: InstructRun, directory: "RunDirectory", tokenizer: "Tokenizer", data: None
    ) -> "Task":
        """Returns the task of instruction tuning, which ends with a sample answer."""
        from transformer_jax.inference.chats import encoder_in

        if find_template(directory.path) is None:  # the run was killed before it was written
            _write_template(run, directory)
        cache, encoder = token_cache(run, directory), encoder_in(directory.path, tokenizer)
        stores = [_store(run, encoder, cache, *file) for file in _files(run)]
        task = _tuning(run, tokenizer, *_split(run, stores))
        test = functools.partial(_show_answer, run, directory, tokenizer)
        return dataclasses.replace(task, test=test)

    def evaluate(self, request: Any, facts: "Facts") -> int:
        """Prints the validation metrics, and the perplexity of answers."""
        from transformer_jax.recipes.driver import make_task, settings_of, tokenizer_of, with_start
        from transformer_jax.recipes.validation import answer_scores, print_scores, validate

        run, directory = with_read_flags(settings_of(facts), request), facts.reader
        tokenizer = tokenizer_of(run, directory).allowing("unknown")
        if request.data is None:
            task = make_task(run, directory, tokenizer, None)
        else:
            task = _task_on(run, directory, tokenizer, request.data)
            task = with_start(task, run, tokenizer, directory)
        scores = answer_scores(task, validate(request, run, directory, task))
        return print_scores(request, scores)

    def plan_inputs(self, run: InstructRun, batch: "BatchShapes") -> "PlanInputs":
        """Returns what training and evaluation are made of."""
        from transformer_jax.recipes.plan_inputs import row_inputs

        return row_inputs(run, batch, packed=True)

    def predictor(self, facts: "Facts") -> Any:
        """Returns a function from prompts and conversations to texts."""
        from transformer_jax.inference.generation import LanguageModelPredictor
        from transformer_jax.inference.pretrained import Pretrained

        return LanguageModelPredictor(Pretrained.load(facts))


def _with_tokens(tokenizer: TokenizerConfig, tokens: tuple[str, ...]) -> TokenizerConfig:
    """Returns the settings of a tokenizer with additional special tokens."""
    added = tuple(dict.fromkeys((*tokenizer.add_special_tokens, *tokens)))
    return dataclasses.replace(tokenizer, add_special_tokens=added)


def _write_template(run: InstructRun, directory: "RunDirectory") -> None:
    """Writes the template to the run directory, as in Hugging Face folders."""
    from transformer_jax.parallel.mesh import is_main_process  # imports JAX

    if is_main_process():
        write_template(directory, run_template(run.chat.template, run.init_from))


def _messages(run: InstructRun) -> Iterator[str]:
    """Returns a sample of the messages."""
    assert run.data.train is not None
    chats = read_conversations(run.data.train, "data.train", run.data.read)
    texts = (message["content"] for chat in chats for message in chat.messages)
    return itertools.islice(texts, _SAMPLED)


def _files(run: InstructRun) -> Iterator[tuple[str, str]]:
    data = dataclasses.replace(run.data, **missing_splits(run.data))
    for name in ("train", "valid"):
        if (path := getattr(data, name)) is not None:
            yield path, f"data.{name}"


def _task_on(
    run: InstructRun, directory: "RunDirectory", tokenizer: "Tokenizer", path: str
) -> "Task":
    """Returns the task of a run with validation on the conversations of a file."""
    from transformer_jax.inference.chats import encoder_in

    store = _store(run, encoder_in(directory.path, tokenizer), TokenCache(), path, "--data")
    chosen = store, np.arange(len(store))
    return _tuning(run, tokenizer, chosen, chosen)


def _store(
    run: InstructRun, encoder: "ChatEncoder", cache: TokenCache, path: str, flag: str
) -> ChatStore:
    """Returns the conversations of a file, and logs a summary line."""
    from transformer_jax.recipes.tasks.instruction_task import log_chats

    began = time.monotonic()
    store = build_chats(
        path,
        encoder,
        limit=run.training.sequence_length + 1,
        too_long=run.data.too_long,
        read=run.data.read,
        cache=cache.cache,
        writes=cache.writes,
        flag=flag,
    )
    chats = read_conversations(path, flag, run.data.read)
    texts = (message["content"] for chat in chats for message in chat.messages)
    log_chats(path, store, texts, encoder.tokenizer, began)
    return store


def _tuning(
    run: InstructRun, tokenizer: "Tokenizer", chosen: "Chosen", held: "Chosen | None"
) -> "Task":
    from transformer_jax.recipes.tasks.instruction_task import instruction_tuning
    from transformer_jax.recipes.tasks.language_model_task import Rows

    training = run.training
    rows = Rows(training.batch_size, training.sequence_length, seed=training.seed)
    return instruction_tuning(chosen, held, run.model, tokenizer, rows=rows)


def _split(run: InstructRun, stores: list[ChatStore]) -> "tuple[Chosen, Chosen | None]":
    """Returns conversations for training and for validation."""
    train = stores[0]
    if len(stores) > 1:
        return (train, np.arange(len(train))), (stores[1], np.arange(len(stores[1])))
    chosen, held = split_chats(train, run.data.validation_size)
    return (train, chosen), (train, held)


def _first_answer(chat: list[Message]) -> int:
    """Returns the index of the first answer to a user message; 0 if there is none."""
    roles = [message["role"] for message in chat]
    after = roles.index("user") if "user" in roles else len(chat)
    return next((i for i in range(after, len(chat)) if roles[i] == "assistant"), 0)


def _show_answer(
    run: InstructRun, directory: "RunDirectory", tokenizer: "Tokenizer", model: Any, step: int
) -> dict[str, Any]:
    """Prints an answer to a message of the validation file, or else of the training file."""
    del step
    from transformer_jax.decoding.language import DecoderLanguageModel
    from transformer_jax.decoding.requests import GenerationRequest
    from transformer_jax.inference.chat_session import ChatModel
    from transformer_jax.inference.chats import encoder_in

    path = run.data.valid or run.data.train
    if not run.evaluation.sample or path is None or not os.path.exists(path):
        return {}
    chat = next(read_conversations(path, read=run.data.read)).messages
    question = chat[: _first_answer(chat)]
    if not question:
        return {}
    language = DecoderLanguageModel(model, tokenizer)
    answers = ChatModel(language, encoder_in(directory.path, tokenizer))
    request = GenerationRequest("", max_new_tokens=run.evaluation.sample, temperature=0)
    try:
        answer = answers.answer(question, request).text
    except DataError:
        return {}  # longer than the context
    transcript = "\n".join(f"{one['role']}: {one['content']}" for one in question)
    print(f"\nsample:\n{transcript}\nassistant: {answer}\n", flush=True)
    return {"sample": {"messages": question, "answer": answer}}


def _adamw(peak: float) -> OptimizerConfig:
    return OptimizerConfig(
        name="adamw",
        learning_rate=peak,
        beta2=0.99,
        weight_decay=0.01,
        schedule=ScheduleConfig("cosine", warmup_steps=None, final_fraction=0.1),
    )


_SMALL = TransformerConfig(
    d_model=128,
    encoder_layers=0,
    decoder_layers=4,
    embedding=EmbeddingConfig(scale=1.0),
    positions=PositionConfig(kind="rope", max_length=256),
    attention=AttentionConfig(num_heads=4, bias=False, out_bias=False),
    feed_forward=FeedForwardConfig(d_ff=384, activation="silu", gated=True, bias=False),
    norm=NormConfig(kind="rms", placement="pre"),
)


_NAMED: dict[str, tuple[str, Callable[[], InstructRun]]] = {
    "sft": (
        "Supervised fine-tuning of a language model (--init-from), rows of 1024 tokens.",
        lambda: InstructRun(
            model=PRESETS["llama_style"],
            tokenizer=TokenizerConfig(kind="bpe", vocab_size=32_000),
            optimizer=_adamw(2e-5),
            training=ChatRows(batch_size=32, sequence_length=1024),
            loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
        ),
    ),
    "sft-cpu": (
        "The same on a CPU, rows of 256 tokens; without --init-from, a small model from scratch.",
        lambda: InstructRun(
            model=_SMALL,
            tokenizer=TokenizerConfig(kind="bpe", vocab_size=None),
            optimizer=_adamw(5e-4),
            training=ChatRows(batch_size=8, sequence_length=256),
            loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
        ),
    ),
}
