"""Runs of language models, from texts to metrics: ``decoder_only``."""

import dataclasses
import functools
import time
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

from transformer_jax.data.document_stream import DocumentStream, TextChunk
from transformer_jax.data.documents import TextSplits, open_texts, read_texts
from transformer_jax.data.token_file import TextStore, sample_texts
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.decoding.language import DecoderLanguageModel
from transformer_jax.decoding.requests import GenerationRequest, LanguageModel
from transformer_jax.errors import ConfigError, plural
from transformer_jax.parallel.mesh import is_main_process
from transformer_jax.predictors.runs import load_language, open_directory
from transformer_jax.predictors.text_starts import text_start
from transformer_jax.runs import begin as beginning
from transformer_jax.runs import checks
from transformer_jax.runs.begin import token_cache
from transformer_jax.runs.denoising_settings import DenoisingRun
from transformer_jax.runs.encoder_settings import PretrainRun
from transformer_jax.runs.freezing import check_layers, initial_of, partition_for
from transformer_jax.runs.initial import load_pretrained
from transformer_jax.runs.language_report import Report, baselines, evaluate_texts, train_ngram
from transformer_jax.runs.language_settings import LanguageRun, NgramRun, read
from transformer_jax.runs.train import train as train_run
from transformer_jax.tasks.fit import allowing
from transformer_jax.tasks.language_model_task import Rows, build_text_store, language_model
from transformer_jax.tasks.scores import write_scores
from transformer_jax.training import manifest
from transformer_jax.training.activity import log
from transformer_jax.training.run_directory import RunDirectory
from transformer_jax.training.task import Task

__all__ = ["begin", "compare", "count", "make_task", "open_run", "train"]

TextRun: TypeAlias = LanguageRun | NgramRun


def begin(run: TextRun, named: TextRun) -> tuple[TextRun, RunDirectory, TextSplits]:
    """Create a run directory; returns the run with all settings, its directory, and its texts."""
    vocab_given, start = False, None
    if isinstance(run, LanguageRun) and isinstance(named, LanguageRun):
        checks.check_rows(run)
        given = run.model.vocab_size != named.model.vocab_size
        if run.init_from is not None:
            start = load_pretrained(run.init_from, ("decoder",))
            run = start.settings(run, named)
            check_layers(run, start)
        vocab_given = start is None and given
        run = checks.checked(run, named)
    else:
        run = checks.with_loaded_tokenizer(run)
    texts = open_run(run)

    def learn() -> Tokenizer:
        if start is not None:
            return start.tokenizer
        return beginning.learn_tokenizer(run, sample_texts(texts.train))

    resolve = functools.partial(_resolved, texts)
    directory = beginning.begin(run, learn, resolve, vocab_given=vocab_given)
    return read(directory), directory, texts


def _resolved(texts: TextSplits, run: TextRun, tokenizer: Tokenizer) -> TextRun:
    """The run with the start token of its texts."""
    if isinstance(run, NgramRun):
        return run
    sized = checks.with_vocab if run.init_from is None else checks.with_rows_for
    run = sized(run, tokenizer)
    if run.first != "auto":
        return run
    first: Literal["bos", "eos", "newline"]
    if run.training.layout == "packed":
        first = "bos"
    elif _several(texts.train):
        first = "eos"
    else:
        first = "newline" if len(tokenizer.encode_batch(["\n"])[0]) == 1 else "eos"
    return dataclasses.replace(run, first=first)


def _several(texts: DocumentStream) -> bool:
    """Whether there is more than one document."""
    ended = False
    for piece in texts:
        if ended:
            return True
        ended = piece.last
    return False


def open_run(run: TextRun | PretrainRun | DenoisingRun) -> TextSplits:
    """The texts of a run; evaluation texts are truncated as its settings say."""
    texts, limit = open_texts(run.data), run.evaluation.characters
    valid = None if texts.valid is None else _beginning(texts.valid, limit)
    tests = {name: _beginning(test, limit) for name, test in texts.tests.items()}
    return TextSplits(texts.train, valid, tests)


def _beginning(texts: DocumentStream, characters: int) -> DocumentStream:
    """The documents up to a number of characters."""

    def chunks() -> Iterator[TextChunk]:
        left, begun = characters, False
        for text, last in texts:
            if len(text) > left:
                log(f"{texts.name}: only the first {plural(characters, 'character')} are evaluated")
                if left or begun:
                    yield TextChunk(text[:left], True)
                return
            left, begun = left - len(text), not last
            yield TextChunk(text, last)

    identity = f"{texts.identity} beginning={characters}"
    return DocumentStream(texts.name, identity, chunks, counts=texts.counts)


def _ends(run: TextRun) -> bool:
    # A single text gets no end token, as in nanoGPT.
    return getattr(run, "first", "bos") != "newline"


def store_of(
    run: TextRun,
    directory: RunDirectory,
    tokenizer: Tokenizer,
    texts: DocumentStream,
) -> TextStore:
    """A run's texts as ids, and a line about them."""
    return build_text_store(texts, tokenizer, token_cache(run, directory), ends=_ends(run))


def make_task(
    run: LanguageRun, directory: RunDirectory, tokenizer: Tokenizer, texts: TextSplits
) -> Task:
    """The task of a run."""
    training = run.training
    task = language_model(
        texts,
        run.model,
        tokenizer,
        rows=Rows(training.batch_size, training.sequence_length, training.layout, training.seed),
        ends=_ends(run),
        cache=token_cache(run, directory),
    )
    tested = functools.partial(_test, run, directory, tokenizer, texts)
    return dataclasses.replace(
        task,
        test=tested,
        partition=partition_for(run, tokenizer),
        initial=initial_of(run, ("decoder",), tokenizer) or task.initial,
        settings=run,
    )


def train(run: TextRun, directory: RunDirectory, texts: TextSplits) -> int:
    """Train, compare the best checkpoint with n-gram models, and write results."""
    if isinstance(run, NgramRun):
        return count(run, directory, texts)
    return train_run(run, directory, functools.partial(make_task, texts=texts))


def _test(
    run: LanguageRun,
    directory: RunDirectory,
    tokenizer: Tokenizer,
    texts: TextSplits,
    model: Any,
    step: int,
) -> dict[str, Any]:
    del step
    language = DecoderLanguageModel(
        model, tokenizer, start=text_start(directory, tokenizer), ends=_ends(run)
    )
    store = functools.partial(store_of, run, directory, tokenizer)
    stores = {name: store(found) for name, found in _evaluation_texts(texts).items()}
    report = Report(run.output or "")
    report.add("this model", evaluate_texts(language, stores))
    for name, counted in baselines(store(texts.train), tokenizer, run.evaluation):
        report.add(name, evaluate_texts(counted, stores))
    print(report, flush=True)
    _write_sample(language, run)
    return {"scores": report.to_dict()}


def _write_sample(model: LanguageModel, run: TextRun) -> None:
    if run.evaluation.sample:
        request = GenerationRequest(
            "", max_new_tokens=run.evaluation.sample, temperature=0.8, top_p=0.95
        )
        [[sample]] = model.generate([request])
        print(f"\nsample:\n{sample.text}\n", flush=True)


def _evaluation_texts(texts: TextSplits) -> dict[str, DocumentStream]:
    """The texts for comparing models: test texts, or else validation texts."""
    valid = {} if texts.valid is None else {"valid": texts.valid}
    return dict(texts.tests) or valid


def count(run: NgramRun, directory: RunDirectory, texts: TextSplits) -> int:
    """Train an n-gram model, score it, and write the model and its results."""
    if not is_main_process():
        return 0

    began = time.monotonic()
    tokenizer = directory.load_tokenizer()
    with allowing(unknown=run.tokenizer.allow_unknown):
        store = store_of(run, directory, tokenizer, texts.train)
    model = train_ngram(store, tokenizer, run.model)
    model.model.save(directory.path / "ngram.npz")
    seal = {"schema": manifest.SCHEMA, "config": directory.read_config()}
    manifest.rewrite(directory.path, seal | {"tokenizer": tokenizer.sha256})
    with allowing(unknown=True):
        stores = {
            name: store_of(run, directory, tokenizer, found)
            for name, found in _evaluation_texts(texts).items()
        }
    report = Report(run.output or "")
    report.add(f"{run.model.order}-gram, {run.model.smoothing}", evaluate_texts(model, stores))
    for name, other in baselines(store, tokenizer, run.evaluation):
        report.add(name, evaluate_texts(other, stores))
    print(report, flush=True)
    _write_sample(model, run)
    seconds = round(time.monotonic() - began, 1)
    directory.write(directory.results, {"scores": report.to_dict(), "seconds": seconds})
    print(f"run: {directory.path}", flush=True)
    return 0


@allowing(unknown=True)
def compare(asked: Any) -> int:
    """Print the metrics of runs, and of n-gram models of the first run's text, on a text."""
    first = open_directory(asked.run)
    run = read(first)
    texts = open_run(run) if asked.text is None or asked.ngrams != () else None
    if asked.text is not None:
        chosen = {"text": read_texts(asked.text, run.data.read, "--text")}
    else:
        assert texts is not None
        chosen = _evaluation_texts(texts)
        if not chosen:
            raise ConfigError(f"{asked.run}: has no test or validation text: give --text")
    report = Report(asked.run)
    for path in (asked.run, *asked.compare):
        directory = open_directory(path)
        checkpoint = asked.checkpoint if path == asked.run else "best"
        model = load_language(directory.path, checkpoint)
        settings = read(directory)
        report.add(path, evaluate_texts(model, _stores(settings, directory, chosen)))
    orders = run.evaluation.ngram_orders if asked.ngrams is None else asked.ngrams
    if orders and texts is not None:
        tokenizer = first.load_tokenizer()
        stores = _stores(run, first, chosen)
        evaluation = dataclasses.replace(run.evaluation, ngram_orders=orders)
        store = store_of(run, first, tokenizer, texts.train)
        for name, counted in baselines(store, tokenizer, evaluation):
            report.add(name, evaluate_texts(counted, stores))
    print(report, flush=True)
    write_scores(asked.output, report.to_dict())
    return 0


def _stores(
    run: TextRun, directory: RunDirectory, texts: dict[str, DocumentStream]
) -> dict[str, TextStore]:
    tokenizer = directory.load_tokenizer()
    return {name: store_of(run, directory, tokenizer, found) for name, found in texts.items()}
