"""Instruction tuning, from conversations to a model that answers: ``decoder_only instruct``."""

import dataclasses
import functools
import itertools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.chat.encoding import ChatEncoder
from transformer_jax.chat.session import ChatModel
from transformer_jax.chat.store import ChatStore, build_chats, split_chats
from transformer_jax.chat.template import (
    ChatTemplate,
    built_in,
    find_template,
    named_template,
    special_tokens,
)
from transformer_jax.chat.token_names import token_names
from transformer_jax.data.added_tokens import has_token
from transformer_jax.data.conversations import Message, read_conversations
from transformer_jax.data.preparation import Preparation
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.decoding.language import DecoderLanguageModel
from transformer_jax.decoding.requests import GenerationRequest
from transformer_jax.errors import ConfigError, DataError, plural
from transformer_jax.parallel.mesh import is_main_process, sync_global_devices
from transformer_jax.predictors.chats import encoder_of, special_names
from transformer_jax.runs import begin as beginning
from transformer_jax.runs import checks
from transformer_jax.runs.begin import token_cache
from transformer_jax.runs.freezing import check_layers, initial_of, partition_for
from transformer_jax.runs.initial import Initial, load_pretrained
from transformer_jax.runs.instruct_settings import InstructRun, read
from transformer_jax.runs.train import train as train_run
from transformer_jax.tasks.batching import TokenCache
from transformer_jax.tasks.instruction_task import Chosen, instruction_tuning, log_chats
from transformer_jax.tasks.language_model_task import Rows
from transformer_jax.training.activity import log
from transformer_jax.training.manifest import atomic_write
from transformer_jax.training.run_directory import RunDirectory
from transformer_jax.training.task import Task

__all__ = ["begin", "make_task", "task_on", "train", "with_template_tokens"]

_SAMPLED = 20_000  # messages that a tokenizer is learnt from, at most


def begin(run: InstructRun, named: InstructRun) -> tuple[InstructRun, RunDirectory, None]:
    """Create a run directory; returns the run with all settings, and its directory."""
    checks.check_rows(run)
    if run.data.train is None:
        raise ConfigError("no conversations: give --data.train chats.jsonl")
    start = None if run.init_from is None else load_pretrained(run.init_from, ("decoder",))
    template, run = _template(run), with_template_tokens(run, start)
    vocab_given = start is None and run.model.vocab_size != named.model.vocab_size
    if start is not None:
        run = _within_positions(start.settings(run, named), named)
        check_layers(run, start)
    run = checks.checked(run, named)
    for path, flag in _files(run):
        next(read_conversations(path, flag), None)  # refused before anything is written

    def learn() -> Tokenizer:
        if start is not None:
            return start.tokenizer
        return beginning.learn_tokenizer(run, _messages(run))

    def resolve(run: InstructRun, tokenizer: Tokenizer) -> InstructRun:
        sized = checks.with_vocab if start is None else checks.with_rows_for
        resolved: InstructRun = sized(run, tokenizer)  # type: ignore[assignment]
        return resolved

    directory = beginning.begin(run, learn, resolve, vocab_given=vocab_given)
    _write_template(directory, template)
    return read(directory), directory, None


def _within_positions(run: InstructRun, named: InstructRun) -> InstructRun:
    """The run with rows that its start has positions for, where no length was asked for."""
    training, most = run.training, run.model.positions.max_length
    asked = training.sequence_length != named.training.sequence_length
    if asked or training.sequence_length <= most:
        return run
    log(f"rows of {plural(most, 'token')}, which {run.init_from} has positions for")
    return dataclasses.replace(run, training=dataclasses.replace(training, sequence_length=most))


def _files(run: InstructRun) -> Iterator[tuple[str, str]]:
    for name in ("train", "valid"):
        if (path := getattr(run.data, name)) is not None:
            yield path, f"data.{name}"


def _messages(run: InstructRun) -> Iterator[str]:
    """Messages to learn a tokenizer from."""
    assert run.data.train is not None
    chats = read_conversations(run.data.train, "data.train", prepare=Preparation.of(run.data.read))
    texts = (message["content"] for chat in chats for message in chat.messages)
    return itertools.islice(texts, _SAMPLED)


def _template(run: InstructRun) -> ChatTemplate:
    """The chat template that a run asks for, or that of what it starts from.

    Raises:
        ConfigError: There is none.
    """
    if run.chat.template is not None:
        chosen = named_template(run.chat.template)
        if chosen.special is not None or run.init_from is None:
            return chosen
        return dataclasses.replace(chosen, special=token_names(Path(run.init_from)))
    found = None if run.init_from is None else find_template(Path(run.init_from))
    if found is None:
        where = "" if run.init_from is None else f"{run.init_from}: has no chat template: "
        raise ConfigError(
            f"{where}choose one with --chat.template: {', '.join(built_in())}, a file or a folder"
        )
    return found


def with_template_tokens(run: InstructRun, start: Initial | None = None) -> InstructRun:
    """The run with the special tokens of a built-in template that its tokenizer lacks.

    Raises:
        ConfigError: It has no template.
    """
    wanted = special_tokens(_template(run))
    if start is not None:
        wanted = tuple(token for token in wanted if not has_token(start.tokenizer, token))
    given = run.tokenizer.add_special_tokens
    added = (*given, *(token for token in wanted if token not in given))
    tokenizer = dataclasses.replace(run.tokenizer, add_special_tokens=added)
    return dataclasses.replace(run, tokenizer=tokenizer)


def _write_template(directory: RunDirectory, template: ChatTemplate) -> None:
    """Keep the template with the run, as Hugging Face folders keep theirs."""
    if is_main_process():
        special = template.special
        if special is None:
            special = special_names(directory.load_tokenizer())
        fields = {"chat_template": template.text, **special}
        text = json.dumps(fields, indent=1, ensure_ascii=False) + "\n"
        atomic_write(directory.path / "tokenizer_config.json", text)
    sync_global_devices("template")


def make_task(run: InstructRun, directory: RunDirectory, tokenizer: Tokenizer) -> Task:
    """The task of a run."""
    if find_template(directory.path) is None:  # it was killed before it was written
        _write_template(directory, _template(run))
    cache = token_cache(run, directory)
    read = functools.partial(_store, run, encoder_of(directory.path, tokenizer), cache)
    task = _tuning(run, tokenizer, *_split(run, [read(*file) for file in _files(run)]))
    return dataclasses.replace(
        task,
        test=functools.partial(_test, run, directory, tokenizer),
        partition=partition_for(run, tokenizer),
        initial=initial_of(run, ("decoder",), tokenizer) or task.initial,
        settings=run,
    )


def task_on(run: InstructRun, directory: RunDirectory, tokenizer: Tokenizer, path: str) -> Task:
    """The task of a run with the conversations of a file to validate on.

    Raises:
        DataError: The file cannot be read, or a line is no conversation.
    """
    encoder = encoder_of(directory.path, tokenizer)
    store = _store(run, encoder, TokenCache(), path, "--data")
    chosen = store, np.arange(len(store))
    return dataclasses.replace(
        _tuning(run, tokenizer, chosen, chosen), partition=partition_for(run, tokenizer)
    )


def _store(
    run: InstructRun, encoder: ChatEncoder, cache: TokenCache, path: str, flag: str
) -> ChatStore:
    """The conversations of a file, and a line about them."""
    began = time.monotonic()
    store = build_chats(
        path,
        encoder,
        limit=run.training.sequence_length + 1,
        too_long=run.data.too_long,
        prepare=Preparation.of(run.data.read),
        cache=cache.cache,
        writes=cache.writes,
        flag=flag,
    )
    chats = read_conversations(path, flag, prepare=Preparation.of(run.data.read))
    texts = (message["content"] for chat in chats for message in chat.messages)
    log_chats(path, store, texts, encoder.tokenizer, began)
    return store


def _tuning(run: InstructRun, tokenizer: Tokenizer, chosen: Chosen, held: Chosen | None) -> Task:
    training = run.training
    rows = Rows(training.batch_size, training.sequence_length, seed=training.seed)
    return instruction_tuning(chosen, held, run.model, tokenizer, rows=rows)


def _split(run: InstructRun, stores: list[ChatStore]) -> tuple[Chosen, Chosen | None]:
    """Conversations for training and validation."""
    train = stores[0]
    if len(stores) > 1:
        return (train, np.arange(len(train))), (stores[1], np.arange(len(stores[1])))
    chosen, held = split_chats(train, run.data.validation_size)
    return (train, chosen), (train, held)


def train(run: InstructRun, directory: RunDirectory, texts: None = None) -> int:
    """Train, and show an answer of the best checkpoint."""
    del texts
    return train_run(run, directory, make_task)


def _first_answer(chat: list[Message]) -> int:
    """The place of the first answer to a message of the user; 0 where there is none."""
    roles = [message["role"] for message in chat]
    after = roles.index("user") if "user" in roles else len(chat)
    return next((i for i in range(after, len(chat)) if roles[i] == "assistant"), 0)


def _test(
    run: InstructRun, directory: RunDirectory, tokenizer: Tokenizer, model: Any, step: int
) -> dict[str, Any]:
    """Prints an answer to a message of the validation file, or of training without one."""
    del step
    path = run.data.valid or run.data.train
    if not run.evaluation.sample or path is None or not os.path.exists(path):
        return {}
    chat = next(read_conversations(path, prepare=Preparation.of(run.data.read))).messages
    asked = chat[: _first_answer(chat)]
    if not asked:
        return {}
    language = DecoderLanguageModel(model, tokenizer)
    answers = ChatModel(language, encoder_of(directory.path, tokenizer))
    request = GenerationRequest("", max_new_tokens=run.evaluation.sample, temperature=0)
    try:
        answer = answers.answer(asked, request).text
    except DataError:
        return {}  # longer than the context
    said = "\n".join(f"{one['role']}: {one['content']}" for one in asked)
    print(f"\nsample:\n{said}\nassistant: {answer}\n", flush=True)
    return {"sample": {"messages": asked, "answer": answer}}
