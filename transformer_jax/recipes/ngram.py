"""N-gram models, counted in one pass: ``train ngram``."""

import dataclasses
import functools
import time
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from transformer_jax.core.config_fields import Configuration, Count, NotNegative
from transformer_jax.data.documents import TextData
from transformer_jax.parallel.settings import DistributedConfig
from transformer_jax.recipes.language_model import EvaluateLanguageModels
from transformer_jax.recipes.recipe import Fit, Named, Prepared, Recipe
from transformer_jax.recipes.settings import TokenizerConfig
from transformer_jax.recipes.texts import LanguageEvaluation, open_texts_of

if TYPE_CHECKING:
    from transformer_jax.data.documents import TextSplits
    from transformer_jax.inference.facts import Facts
    from transformer_jax.recipes.explicit_settings import Given
    from transformer_jax.recipes.start import Start
    from transformer_jax.runs.run_directory import RunDirectory

__all__ = ["Ngram", "NgramConfig", "NgramRun"]


@dataclasses.dataclass(frozen=True)
class NgramConfig(Configuration, group="model"):
    """An n-gram model."""

    kind: Literal["ngram"] = "ngram"  # distinguishes n-gram models from neural ones
    order: Count = 5  # 1 is a bag of words
    smoothing: Literal["kneser-ney", "add-k"] = "kneser-ney"  # smoothing of counts
    k: NotNegative = 1.0  # k of add-k


@dataclasses.dataclass(frozen=True)
class NgramRun(Configuration):
    """One n-gram model."""

    model: NgramConfig = NgramConfig()
    data: TextData = TextData()
    tokenizer: TokenizerConfig = TokenizerConfig()
    evaluation: LanguageEvaluation = LanguageEvaluation(ngram_orders=())
    distributed: DistributedConfig = DistributedConfig()
    output: str | None = None  # the run directory; None is runs/NAME
    overwrite: bool = False  # delete an existing run
    cache: str | None = None  # shared folder for tokenized text; None is the run directory
    recipe: ClassVar[str]
    ends: ClassVar[bool] = True  # whether texts end with the end token


class Ngram(Recipe[NgramRun, "TextSplits"]):
    """An n-gram model, counted on texts."""

    name = "ngram"
    title = "an n-gram model"
    config = NgramRun
    family = "ngram"
    evaluation = EvaluateLanguageModels

    @functools.cached_property
    def runs(self) -> Named:
        """Returns the named run."""
        about = "An n-gram language model of any order, the baseline of every neural model."
        return {"ngram": (about, NgramRun())}

    def data(self, run: NgramRun) -> "TextSplits":
        """Returns the texts; those to evaluate on are truncated as settings say."""
        return open_texts_of(run)

    def prepare(
        self, run: NgramRun, start: "Start | None", given: "Given[NgramRun]"
    ) -> "Prepared[NgramRun, TextSplits]":
        """Returns a run whose tokenizer is of a file, or trained on a sample of the texts."""
        from transformer_jax.data.token_file import sample_texts
        from transformer_jax.recipes.checks import check_extension, with_loaded_tokenizer

        run = with_loaded_tokenizer(run, given)
        check_extension(run)
        data = self.data(run)
        return Prepared(run, data, lambda: sample_texts(data.train))

    def train(
        self, run: NgramRun, directory: "RunDirectory", data: "TextSplits", fit: Fit[NgramRun]
    ) -> int:
        """Counts n-grams, evaluates the model, and writes it with its results."""
        from transformer_jax.parallel.mesh import is_main_process  # imports JAX

        if not is_main_process():
            return 0
        from transformer_jax.models.ngram import AddK, KneserNey
        from transformer_jax.recipes.language_evaluation import (
            MetricsTable,
            baselines,
            build_stores,
            evaluate_texts,
            train_ngram,
            write_sample,
        )
        from transformer_jax.runs import manifest

        began, tokenizer = time.monotonic(), directory.load_tokenizer()
        allowed = run.tokenizer.allowed
        store = build_stores(run, directory, {"train": data.train}, allowed)["train"]
        config, evaluation = run.model, run.evaluation
        smoothing = KneserNey() if config.smoothing == "kneser-ney" else AddK(config.k)
        model = train_ngram(store, tokenizer, config.order, smoothing)
        model.model.save(directory.path / "ngram.npz")
        seal: manifest.Manifest = {"schema": manifest.SCHEMA, "config": directory.read_config()}
        seal["tokenizer"] = tokenizer.sha256
        manifest.rewrite(directory.path, seal)
        stores = build_stores(run, directory, data.scored)
        report = MetricsTable(run.output or "")
        report.add(f"{config.order}-gram, {config.smoothing}", evaluate_texts(model, stores))
        for name, other in baselines(
            store, tokenizer, evaluation.ngram_orders, evaluation.ngram_tokens
        ):
            report.add(name, evaluate_texts(other, stores))
        print(report, flush=True)
        write_sample(model, run)
        seconds = round(time.monotonic() - began, 1)
        directory.write(directory.results, {"scores": report.to_dict(), "seconds": seconds})
        print(f"run: {directory.path}", flush=True)
        return 0

    def evaluate(self, request: Any, facts: "Facts") -> int:
        """Prints a row of metrics per model."""
        from transformer_jax.recipes.language_evaluation import compare_models

        return compare_models(request, facts)

    def predictor(self, facts: "Facts") -> Any:
        """Returns a function from prompts to texts."""
        from transformer_jax.inference.generation import LanguageModelPredictor
        from transformer_jax.inference.pretrained import Pretrained

        return LanguageModelPredictor(Pretrained.load(facts))
