"""Evaluation of language models and n-gram models on texts: a row for each model."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.document_stream import DocumentStream
from transformer_jax.data.documents import TextSplits, read_texts
from transformer_jax.data.token_file import TextStore
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.decoding.language import DecoderLanguageModel
from transformer_jax.decoding.requests import GenerationRequest, LanguageModel
from transformer_jax.inference.generation_settings import text_start
from transformer_jax.inference.runs import load_language, open_directory
from transformer_jax.recipes.driver import read
from transformer_jax.recipes.language_report import Report, baselines, evaluate_texts
from transformer_jax.recipes.tasks.language_model_task import build_text_store
from transformer_jax.recipes.tasks.scores import write_scores
from transformer_jax.recipes.texts import open_texts_of, token_cache
from transformer_jax.runs.run_directory import RunDirectory

__all__ = ["build_stores", "compare_models", "score_language_model", "write_sample"]


def build_stores(
    run: Any, directory: RunDirectory, texts: Mapping[str, DocumentStream]
) -> dict[str, TextStore]:
    """Returns texts as ids of a run's tokenizer, by name, and logs a line about each."""
    tokenizer, cache = directory.load_tokenizer(), token_cache(run, directory)
    return {
        name: build_text_store(text, tokenizer, cache, ends=run.ends)
        for name, text in texts.items()
    }


def score_language_model(
    run: Any,
    directory: RunDirectory,
    tokenizer: Tokenizer,
    texts: TextSplits,
    model: Any,
    step: int,
) -> dict[str, Any]:
    """Prints and returns the scores of a trained model next to n-gram models, and a sample."""
    del step
    language = DecoderLanguageModel(
        model, tokenizer, start=text_start(directory, tokenizer), ends=run.ends
    )
    stores = build_stores(run, directory, texts.scored)
    report = Report(run.output or "")
    report.add("this model", evaluate_texts(language, stores))
    trained = build_stores(run, directory, {"train": texts.train})["train"]
    for name, counted in baselines(trained, tokenizer, run.evaluation):
        report.add(name, evaluate_texts(counted, stores))
    print(report, flush=True)
    write_sample(language, run)
    return {"scores": report.to_dict()}


def write_sample(model: LanguageModel, run: Any) -> None:
    """Prints a text that a model writes, if the run asks for one."""
    if tokens := run.evaluation.sample:
        request = GenerationRequest("", max_new_tokens=tokens, temperature=0.8, top_p=0.95)
        [[sample]] = model.generate([request])
        print(f"\nsample:\n{sample.text}\n", flush=True)


def compare_models(request: Any, directory: RunDirectory) -> int:
    """Prints the metrics of runs on a text, and of n-gram models of the first run's text.

    Raises:
        ConfigError: There is no text to compare on, or a run is of another kind.
    """
    run = read(directory)
    texts = open_texts_of(run) if request.text is None or request.ngrams != () else None
    if request.text is not None:
        chosen = {"text": read_texts(request.text, run.data.read, "--text")}
    else:
        assert texts is not None
        chosen = texts.scored
        if not chosen:
            raise ConfigError(f"{request.run}: has no test or validation text: give --text")
    report = Report(request.run)
    for path in (request.run, *request.compare):
        other = open_directory(path)
        checkpoint = request.checkpoint if path == request.run else "best"
        model = load_language(other.path, checkpoint)
        report.add(path, evaluate_texts(model, build_stores(_read_texts_run(other), other, chosen)))
    orders = run.evaluation.ngram_orders if request.ngrams is None else request.ngrams
    if orders and texts is not None:
        stores = build_stores(run, directory, chosen)
        evaluation = dataclasses.replace(run.evaluation, ngram_orders=orders)
        trained = build_stores(run, directory, {"train": texts.train})["train"]
        for name, counted in baselines(trained, directory.load_tokenizer(), evaluation):
            report.add(name, evaluate_texts(counted, stores))
    print(report, flush=True)
    write_scores(request.output, report.to_dict())
    return 0


def _read_texts_run(directory: RunDirectory) -> Any:
    """Returns the settings of a run on texts.

    Raises:
        ConfigError: The run is of another kind.
    """
    run = read(directory)
    if not hasattr(run, "ends"):
        raise ConfigError(
            f"{directory.path}: was not trained on texts: this command compares models of texts"
        )
    return run
