"""Masked-language-model pre-training of an encoder on any text (BERT): ``pretrain small``."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from transformer_jax.core.config_fields import Flag
from transformer_jax.core.errors import ConfigError
from transformer_jax.core.task_progress import log
from transformer_jax.data.bert_pretraining import MaskingConfig, SentenceObjective
from transformer_jax.data.documents import TextData, TextOptions
from transformer_jax.inference.facts import ENCODERS
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.presets import PRESETS, bert, modernbert
from transformer_jax.recipes.publishing import publication_of, with_heads
from transformer_jax.recipes.read_flags import FieldFlag, with_read_flags
from transformer_jax.recipes.recipe import Named, Prepared, Recipe
from transformer_jax.recipes.settings import Cached, RunConfig, TokenizerConfig
from transformer_jax.recipes.sizing import with_defaults, without_attention_dropout
from transformer_jax.recipes.texts import LengthBatches, TextEvaluation, open_texts_of, token_cache
from transformer_jax.training.settings import LoopConfig, OptimizerConfig, ScheduleConfig

if TYPE_CHECKING:
    from flax import nnx

    from transformer_jax.data.bert_pretraining import BertPretrainingPlan, PackedPretrainingPlan
    from transformer_jax.data.documents import TextSplits
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.inference.facts import Facts
    from transformer_jax.recipes.explicit_settings import Given
    from transformer_jax.recipes.plan_inputs import BatchShapes, PlanInputs
    from transformer_jax.recipes.start import Start
    from transformer_jax.runs.run_directory import RunDirectory
    from transformer_jax.training.task import Task

__all__ = ["MaskedLM", "PretrainRun"]


@dataclasses.dataclass(frozen=True)
class MaskedRows(LengthBatches):
    """Training settings: duration, tokens per batch, seed."""

    # padded: one text per row, in batches of similar lengths. packed: several per row of
    # sequence_length tokens, without attention between them.
    layout: Literal["padded", "packed"] = "padded"


@dataclasses.dataclass(frozen=True)
class PretrainRun(Cached, RunConfig):
    """One pre-training run of an encoder."""

    model: TransformerConfig = PRESETS["bert_base"]
    data: TextData = TextData(read=TextOptions(documents="blank"))
    tokenizer: TokenizerConfig = TokenizerConfig(kind="wordpiece")
    masking: MaskingConfig = MaskingConfig()
    training: MaskedRows = MaskedRows()
    evaluation: TextEvaluation = TextEvaluation()

    parts: ClassVar[tuple[str, ...]] = ("encoder",)


@dataclasses.dataclass(frozen=True)
class EvaluateEncoder(FieldFlag):
    """Print the accuracy of masked tokens and sentence pairs on a text."""

    data: Annotated[str | None, Flag(also=("data.test",))] = None
    """Text file or folder; None is the test (or else validation) text of the run."""


class MaskedLM(Recipe[PretrainRun, "TextSplits"]):
    """An encoder, trained on masked tokens and sentence pairs."""

    name = "masked_lm"
    title = "a pre-trained encoder"
    config = PretrainRun
    family = "encoder"
    starts = ENCODERS
    metrics = ("valid_mlm_accuracy",)
    evaluation = EvaluateEncoder
    has_plan = True

    @functools.cached_property
    def runs(self) -> Named:
        """The named runs."""
        return with_defaults(_NAMED)

    def data(self, run: PretrainRun) -> "TextSplits":
        """Returns the texts; those to evaluate on are truncated as settings say."""
        return open_texts_of(run)

    def prepare(
        self, run: PretrainRun, start: "Start | None", given: "Given[PretrainRun]"
    ) -> "Prepared[PretrainRun, TextSplits]":
        """Returns a run without sentence pairs if its published start has no head for them."""
        from transformer_jax.data.masking import MLMMasking
        from transformer_jax.data.token_file import sample_texts
        from transformer_jax.data.tokenizer import BERT_SPECIAL
        from transformer_jax.recipes.checks import validated

        if start is not None:
            objective = _sentence_objective(run, start, given)
            run = start.adapt(run, given, _with_heads_of(start, objective))
            run = _with_objective(run, objective)
        run = validated(run, start, given)
        if run.training.layout == "packed" and run.masking.sentence_objective != "none":
            raise ConfigError(
                f"training.layout is packed, and masking.sentence_objective "
                f"{run.masking.sentence_objective}: only none is possible in packed rows"
            )
        data = self.data(run)

        def checked(run: PretrainRun, tokenizer: "Tokenizer") -> PretrainRun:
            MLMMasking.of(tokenizer, whole_word_mask=run.masking.whole_word_mask)  # refuses it
            return run

        texts = lambda: sample_texts(data.train)
        return Prepared(run, data, texts, special=BERT_SPECIAL, with_tokenizer=checked)

    def task(
        self,
        run: PretrainRun,
        directory: "RunDirectory",
        tokenizer: "Tokenizer",
        data: "TextSplits",
    ) -> "Task":
        """Returns the task of masked tokens, which ends with a comparison with baselines."""
        from transformer_jax.recipes.tasks.masked_lm_task import masked_lm

        task = masked_lm(
            data,
            run.model,
            tokenizer,
            masking=run.masking,
            batching=run.training.batching,
            length=run.training.sequence_length,
            layout=run.training.layout,
            cache=token_cache(run, directory),
        )
        tested = lambda model, step: {"scores": score(run, directory, data, tokenizer, model)}
        return dataclasses.replace(task, test=tested)

    def evaluate(self, request: Any, facts: "Facts") -> int:
        """Prints accuracies on a text."""
        from transformer_jax.data.documents import TextSplits, read_texts
        from transformer_jax.inference.pretrained import Pretrained
        from transformer_jax.recipes.driver import settings_of
        from transformer_jax.recipes.tasks.scores import write_scores

        run = with_read_flags(settings_of(facts), request)
        texts = open_texts_of(run)
        if request.data is not None:
            parts = read_texts(request.data, run.data.read, "--data")
            texts = TextSplits(texts.train, None, {"text": parts})
        opened = Pretrained.load(facts, self.family)
        scores = score(run, facts.reader, texts, opened.tokenizer, opened.module)
        write_scores(request.output, scores)
        return 0

    def plan_inputs(self, run: PretrainRun, batch: "BatchShapes") -> "PlanInputs":
        """Returns what training and evaluation are made of."""
        import jax.numpy as jnp

        from transformer_jax.recipes.plan_inputs import PlanInputs, fresh_model
        from transformer_jax.training.objectives import masked_lm

        array, length, masking = batch.array, batch.length, run.masking
        masked = max(1, round(masking.mlm_probability * length))
        shapes = {
            **{"tokens": array(length), "types": array(length), "lengths": array()},
            "next_sentence_label": array(),
            "masked_positions": array(masked),
            "targets": array(masked),
            "weights": array(masked, dtype=jnp.float32),
        }
        if run.training.layout == "packed":
            shapes |= {"segments": array(length), "positions": array(length)}
        pairs = masking.sentence_objective
        of = lambda accuracy: masked_lm(accuracy=accuracy, sentence_objective=pairs)
        model = fresh_model("encoder", run.model, next_sentence=pairs != "none")
        return PlanInputs(
            model, of(False), of(True), shapes, scored=masking.mlm_probability, ranked=True
        )

    def predictor(self, facts: "Facts") -> Any:
        """Returns a function from texts to vectors that also fills masks."""
        from transformer_jax.inference.pretrained import Pretrained
        from transformer_jax.inference.texts import EncoderPredictor

        return EncoderPredictor(Pretrained.load(facts))

    def model(self, config: Any, fields: Mapping[str, Any], rngs: "nnx.Rngs") -> Any:
        """Returns an encoder with the heads of pre-training."""
        from transformer_jax.models.build import make_model

        masking = fields.get("masking", {})
        pairs = masking.get("sentence_objective", "nsp") if isinstance(masking, dict) else ""
        next_sentence = pairs not in ("", "none")
        return make_model(
            "encoder", config, mlm_head=masking is not None, next_sentence=next_sentence, rngs=rngs
        )


def _sentence_objective(
    run: PretrainRun, start: "Start", given: "Given[PretrainRun]"
) -> SentenceObjective:
    """Returns the given objective of sentence pairs, or one that the start has the layers for."""
    objective: SentenceObjective = run.masking.sentence_objective
    if "masking.sentence_objective" in given or objective != MaskingConfig.sentence_objective:
        return objective
    if publication_of(start) is None:
        return objective
    try:
        with_heads(start, words=True, next_sentence=True)
    except ConfigError:
        return "none"
    return objective if start.model.head.pooler else "none"


def _with_heads_of(start: "Start", objective: SentenceObjective) -> TransformerConfig:
    """Returns the model of the start with the heads of the run."""
    try:
        return with_heads(start, words=True, next_sentence=objective != "none")
    except ConfigError as error:
        raise ConfigError(
            f"masking.sentence_objective is {objective}, but {error}: give none, or start "
            f"from a BERT"
        ) from None


def _with_objective(run: PretrainRun, objective: SentenceObjective) -> PretrainRun:
    if objective != run.masking.sentence_objective:
        log(
            f"{run.init_from} has no head for pairs of texts: masked tokens alone are learned "
            f"(masking.sentence_objective none)"
        )
    masking = dataclasses.replace(run.masking, sentence_objective=objective)
    return dataclasses.replace(run, masking=masking)


def score(
    run: PretrainRun,
    directory: "RunDirectory",
    texts: "TextSplits",
    tokenizer: "Tokenizer",
    model: Any,
) -> dict[str, dict[str, float]]:
    """Prints and returns the metrics of a model on the test texts, or else on validation texts."""
    from transformer_jax.models.partition import merging
    from transformer_jax.parallel.placement import MeshProgram
    from transformer_jax.recipes.tasks.masked_lm_task import build_sentence_store, pretraining_plan
    from transformer_jax.training.objectives import masked_lm
    from transformer_jax.training.state import split
    from transformer_jax.training.step import add_sums, make_eval_step

    cache, tokenizer = token_cache(run, directory), tokenizer.allowing("unknown")
    trained = build_sentence_store(texts.train, tokenizer, cache)
    graph, params = split(model)
    pairs = run.masking.sentence_objective
    objective = masked_lm(accuracy=True, sentence_objective=pairs)
    # Process 0 only: no collectives.
    sums = MeshProgram(make_eval_step(objective, merging(graph)))
    scores = {}
    for name, text in texts.scored.items():
        plan = pretraining_plan(
            build_sentence_store(text, tokenizer, cache), tokenizer, masking=run.masking,
            batching=run.training.batching, length=run.training.sequence_length,
            layout=run.training.layout, shuffle=False,
        )  # fmt: skip
        batches = (plan.arrays(step) for step in range(plan.steps_per_epoch))
        total = add_sums(sums(params, {}, batch) for batch in batches)
        scores[name] = {what: value / max(weight, 1.0) for what, (value, weight) in total.items()}
        guess = _guesses(trained.ids, plan, run.model.vocab_size)
        scores[name] |= {"most_frequent_word": guess[0], "unigram_loss": guess[1]}
    print(_table(scores, pairs), flush=True)
    return scores


def _guesses(
    ids: np.ndarray, plan: "BertPretrainingPlan | PackedPretrainingPlan", vocab: int
) -> tuple[float, float]:
    """Returns the accuracy of the most frequent training token and the loss of a unigram model."""
    counts = np.zeros(vocab, np.int64)
    for start in range(0, len(ids), 1 << 24):
        counts += np.bincount(ids[start : start + (1 << 24)], minlength=vocab)
    first = int(np.argmax(counts))
    logs = np.log((counts + 1) / (counts.sum() + vocab))
    hits = loss = total = 0.0
    for step in range(plan.steps_per_epoch):
        batch = plan.arrays(step)
        targets, weights = batch["targets"], batch["weights"]
        hits += float(((targets == first) * weights).sum())
        loss -= float((logs[targets] * weights).sum())
        total += float(weights.sum())
    return hits / max(total, 1.0), loss / max(total, 1.0)


def _table(scores: dict[str, dict[str, float]], pairs: str) -> str:
    """Returns a table with a row per text: the model and trivial baselines."""
    from transformer_jax.core.text_tables import aligned

    head = ["text", "MLM accuracy", "most frequent word", "perplexity", "unigram perplexity"]
    with_pairs = pairs != "none"
    head += [f"{pairs.upper()} accuracy", "chance"] if with_pairs else []
    rows = [head]
    for name, row in scores.items():
        cells = [name, f"{row['mlm_accuracy']:.1%}", f"{row['most_frequent_word']:.1%}"]
        cells += [f"{math.exp(row['mlm_loss']):.1f}", f"{math.exp(row['unigram_loss']):.1f}"]
        rows.append([*cells, f"{row[f'{pairs}_accuracy']:.1%}", "50.0%"] if with_pairs else cells)
    return aligned(rows)


# A share of the masked tokens as in ModernBERT, without a second objective.
_THIRD = MaskingConfig(mlm_probability=0.3, sentence_objective="none")


def _adamw(
    peak: float, schedule: ScheduleConfig = ScheduleConfig("cosine", 10_000), decay: float = 0.01
) -> OptimizerConfig:
    return OptimizerConfig(
        name="adamw",
        learning_rate=peak,
        beta2=0.98,
        eps=1e-6,
        weight_decay=decay,
        schedule=schedule,
    )


def _muon(peak: float, warmup: int | None) -> OptimizerConfig:
    return OptimizerConfig(
        name="muon",
        learning_rate=peak,
        weight_decay=0.1,
        schedule=ScheduleConfig("cosine", warmup_steps=warmup, final_fraction=0.05),
    )


def _small(width: int, layers: int, length: int) -> TransformerConfig:
    """Returns a run of BERT with pre-norm and RoPE.

    In short runs, it learns from neighboring words much earlier.
    """
    config = bert(width, layers, max_length=length)
    return dataclasses.replace(
        config,
        positions=dataclasses.replace(config.positions, kind="rope"),
        norm=dataclasses.replace(config.norm, placement="pre"),
    )


_NAMED: dict[str, tuple[str, Callable[[], PretrainRun]]] = {
    "python-docs": (
        "The documentation that comes with Python: minutes on a laptop, no data needed.",
        lambda: PretrainRun(
            model=_small(128, 2, length=128),
            data=TextData(corpus="python-library", read=TextOptions(documents="blank")),
            tokenizer=TokenizerConfig(kind="wordpiece", vocab_size=4000),
            optimizer=_muon(5e-3, 100),
            training=MaskedRows(steps=2200, max_tokens=2048, sequence_length=64, num_buckets=2),
            loop=LoopConfig(evaluate_every=500, checkpoint_every=1000),
            evaluation=TextEvaluation(characters=100_000),
        ),
    ),
    "small": (
        "BERT for your own text on a CPU: width 256, 4 layers, up to 5.5 M parameters.",
        lambda: PretrainRun(
            model=bert(256, 4),
            tokenizer=TokenizerConfig(kind="wordpiece", vocab_size=None),
            optimizer=_adamw(1e-3, ScheduleConfig("linear", warmup_steps=None)),
            training=MaskedRows(epochs=None),
            loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
        ),
    ),
    "modern": (
        "The same size with rotary positions and pre-norm, which suit short runs.",
        lambda: PretrainRun(
            model=_small(256, 4, length=512),
            tokenizer=TokenizerConfig(kind="wordpiece", vocab_size=None),
            optimizer=_muon(8e-3, None),
            training=MaskedRows(epochs=None),
            loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
        ),
    ),
    "modernbert-small": (
        "ModernBERT for your own text on a CPU: width 256, 4 layers, up to 5.7 M parameters.",
        lambda: PretrainRun(
            model=modernbert(256, 4, 384, max_length=1024, window=64),
            tokenizer=TokenizerConfig(kind="bpe", vocab_size=None),
            masking=_THIRD,
            optimizer=_muon(8e-3, None),
            training=MaskedRows(epochs=None, layout="packed", sequence_length=256),
            loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
        ),
    ),
    "modernbert": (
        "ModernBERT base (Warner et al. 2024): 149 M parameters, packed rows of 1,024 tokens.",
        lambda: PretrainRun(
            model=PRESETS["modernbert_base"],
            tokenizer=TokenizerConfig(kind="bpe", vocab_size=50_368),
            masking=_THIRD,
            # Of a batch, 144 rows at a time; the paper's learning rate falls in a last phase.
            optimizer=_adamw(8e-4, ScheduleConfig("constant", warmup_steps=640), decay=1e-5),
            training=MaskedRows(
                steps=365_000,
                max_tokens=4608 * 1024,
                gradient_accumulation_steps=32,
                required_batch_size_multiple=32,
                sequence_length=1024,
                layout="packed",
            ),
            loop=LoopConfig(keep_last=5),
        ),
    ),
    "bert-base": (
        "BERT base (Devlin et al. 2019): 110 M parameters at 30,522 tokens.",
        lambda: PretrainRun(
            model=without_attention_dropout(PRESETS["bert_base"]),
            tokenizer=TokenizerConfig(kind="wordpiece", vocab_size=30_522),
            optimizer=_adamw(1e-4),
            training=MaskedRows(steps=1_000_000, max_tokens=131_072, sequence_length=512),
            loop=LoopConfig(keep_last=5),
        ),
    ),
    "bert-large": (
        "BERT large: 336 M parameters at 30,522 tokens.",
        lambda: PretrainRun(
            model=without_attention_dropout(PRESETS["bert_large"]),
            tokenizer=TokenizerConfig(kind="wordpiece", vocab_size=30_522),
            optimizer=_adamw(1e-4),
            training=MaskedRows(steps=1_000_000, max_tokens=131_072, sequence_length=512),
            loop=LoopConfig(keep_last=5),
        ),
    ),
}
