"""Captions of pictures by an encoder of images and a decoder: ``train scenes``."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from transformer_jax.core.config_dict import from_dict
from transformer_jax.core.config_fields import Flag, Rate
from transformer_jax.core.errors import CheckpointError, ConfigError, plural
from transformer_jax.core.task_progress import log
from transformer_jax.data.images.augmentation import Augmentation
from transformer_jax.data.images.captioned_pictures import CaptionData, open_captions, own_captions
from transformer_jax.data.images.data import ImageSplits
from transformer_jax.data.images.preprocessing import Preprocessing
from transformer_jax.evaluation.word_splitting import Tokenize, check_tokenize
from transformer_jax.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    NormConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.presets import vit
from transformer_jax.recipes.pictures import (
    check_pictures,
    computed_as,
    refuse_mixtures,
    scored_pictures,
)
from transformer_jax.recipes.read_flags import PictureColumnFlags, with_read_flags
from transformer_jax.recipes.recipe import Named, Prepared, Recipe
from transformer_jax.recipes.scored_texts import SearchFlags, beam_search, write_texts
from transformer_jax.recipes.settings import Adapted, RowBatches, RunConfig, TokenizerConfig
from transformer_jax.recipes.sizing import with_defaults
from transformer_jax.recipes.tasks.settings import CaptionEvaluation
from transformer_jax.training.settings import LoopConfig, OptimizerConfig, ScheduleConfig

if TYPE_CHECKING:
    from flax import nnx
    from jaxtyping import PyTree

    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.inference.facts import Facts
    from transformer_jax.models.partition import Partition
    from transformer_jax.recipes.explicit_settings import Given
    from transformer_jax.recipes.plan_inputs import BatchShapes, PlanInputs
    from transformer_jax.recipes.start import Start
    from transformer_jax.runs.run_directory import RunDirectory
    from transformer_jax.training.task import Task

__all__ = ["CaptionRun", "Captions"]

_ENCODERS = ("image", "captioner")  # families that provide an encoder
_POINTED = 200  # pictures of the built-in corpus whose heat maps are checked


@dataclasses.dataclass(frozen=True)
class CaptionTraining(RowBatches):
    """Training settings: duration, number of captions per batch, smoothing, seed."""

    sequence_length: int = 64  # maximum length of a caption in tokens; longer ones are dropped
    label_smoothing: Rate = 0.0  # probability spread over the vocabulary


@dataclasses.dataclass(frozen=True)
class CaptionRun(Adapted, RunConfig):
    """One training run of a captioner."""

    model: TransformerConfig = TransformerConfig()  # the decoder
    encoder: TransformerConfig = vit(192, 12)  # the Vision Transformer
    # Run or Hugging Face folder of an image model or a captioner, to start the encoder from, with
    # its parameters, sizes and preprocessing; None is the encoder of init_from, if any.
    init_encoder: Annotated[str | None, Flag("init-encoder")] = None
    data: CaptionData = CaptionData()
    preprocessing: Preprocessing = Preprocessing()
    augmentation: Augmentation = Augmentation()
    training: CaptionTraining = CaptionTraining()
    evaluation: CaptionEvaluation = CaptionEvaluation()

    parts: ClassVar[tuple[str, ...]] = ("encoder", "decoder")

    @property
    def has_start(self) -> bool:
        """Returns whether some parameters come from another model."""
        return self.init_from is not None or self.init_encoder is not None


@dataclasses.dataclass(frozen=True)
class EvaluateCaptions(SearchFlags, PictureColumnFlags):  # type: ignore[misc]
    """Print exact matches, sacreBLEU, CIDEr-D and ROUGE-L of the captions of pictures."""

    images: Annotated[str | None, Flag("data.images")] = None
    """Table, folder or array of pictures and captions, read like the pictures of the run; None is
    the test (or else validation) pictures of the run."""
    tokenize: Tokenize | None = None
    """Tokenizer of sacreBLEU, part of its signature; None is the run's setting."""


class Captions(Recipe[CaptionRun, ImageSplits]):
    """A Vision Transformer and a decoder, trained on pictures with captions."""

    name = "captions"
    title = "a captioner"
    config: ClassVar[type] = CaptionRun
    family = "captioner"
    starts = ("decoder", "captioner")
    metrics = ("exact", "sacrebleu", "cider")
    decoding = "search"
    has_plan = True
    has_estimate = False
    plans_decoding = False
    evaluation = EvaluateCaptions

    @functools.cached_property
    def runs(self) -> Named:
        """The named runs."""
        return with_defaults(_NAMED)

    def data(self, run: CaptionRun) -> ImageSplits:
        """Returns the pictures and their captions."""
        return open_captions(run.data)

    def check(self, run: CaptionRun, given: "Given[CaptionRun]") -> None:
        """Refuses parts that a captioner cannot freeze, and mixtures of pictures."""
        _check_freeze(run)
        refuse_mixtures(run.augmentation)
        if run.evaluation.tokenize is not None:
            check_tokenize(run.evaluation.tokenize, "evaluation.tokenize")
        check_pictures(run, "encoder", given)

    def prepare(
        self, run: CaptionRun, start: "Start | None", given: "Given[CaptionRun]"
    ) -> Prepared[CaptionRun, ImageSplits]:
        """Returns a run whose decoder and encoder, with its preprocessing, are of its starts."""
        from transformer_jax.recipes.checks import validated

        if start is not None:
            new = "all of it is loaded"
            if start.family == "decoder":
                new = "it becomes the decoder, with new cross-attention"
            log(f"{run.init_from} is {start.name}: {new}")
            run = start.adapt(run, given)
            if run.init_encoder is None and start.family == "captioner":
                run = dataclasses.replace(run, init_encoder=run.init_from)
        run = _with_encoder(run, given)
        # A part that is frozen as a whole is no matter of the decoder's layers.
        whole = run.freeze in ("encoder", "decoder") and not run.trainable_tokens
        layers = dataclasses.replace(run, freeze="none") if whole else run
        run = validated(run, start, given, layers)
        data = self.data(run)
        return Prepared(run, data, lambda: data.train.texts)

    def task(
        self, run: CaptionRun, directory: "RunDirectory", tokenizer: "Tokenizer", data: ImageSplits
    ) -> "Task":
        """Returns the task of captions."""
        from transformer_jax.recipes.freezing import initial_of
        from transformer_jax.recipes.tasks.caption_task import (
            CaptionBatches,
            PictureSettings,
            captioning,
        )

        task = captioning(
            data,
            computed_as(run.model, run.encoder),
            run.model,
            tokenizer,
            pictures=PictureSettings(
                run.preprocessing,
                run.augmentation,
                run.data.read.max_pixels,
                run.data.read.decode_first,
                directory.path / "store",
            ),
            batches=CaptionBatches(
                run.training.batch_size, run.training.sequence_length, run.training.seed
            ),
            label_smoothing=run.training.label_smoothing,
            evaluation=run.evaluation,
        )
        initial = task.initial
        if run.init_encoder is not None:
            allowed = directory.allow_changed
            decoder = initial_of(run, self.starts, tokenizer, allowed)
            initial = functools.partial(_initial, run, decoder, allowed)
        return dataclasses.replace(task, partition=_partition(run, tokenizer), initial=initial)

    def plan_inputs(self, run: CaptionRun, batch: "BatchShapes") -> "PlanInputs":
        """Returns the parts of the programs of training and evaluation."""
        from flax import nnx

        from transformer_jax.models.captioner import Captioner
        from transformer_jax.recipes.plan_inputs import BOS, PlanInputs
        from transformer_jax.training.objectives import sequence_to_sequence

        encoder = computed_as(run.model, run.encoder)
        return PlanInputs(
            lambda: Captioner(encoder, run.model, rngs=nnx.Rngs(0)),
            sequence_to_sequence(BOS, run.training.label_smoothing),
            sequence_to_sequence(BOS),
            {
                "inputs": {"images": batch.images(encoder)},
                "target": batch.array(batch.length),
                "lengths": batch.array(),
            },
            attentions=(
                ("encoder", encoder), ("decoder", run.model), ("cross-attention", run.model)
            ),
        )  # fmt: skip

    def evaluate(self, request: Any, facts: "Facts") -> int:
        """Prints the scores of the captions of pictures."""
        from transformer_jax.data.images.captioned_pictures import references
        from transformer_jax.data.images.data import open_table
        from transformer_jax.inference.captions import CaptionPredictor
        from transformer_jax.inference.pretrained import Pretrained
        from transformer_jax.recipes.driver import settings_of
        from transformer_jax.recipes.tasks.caption_task import score_captions

        run, search = with_read_flags(settings_of(facts), request), beam_search(request, facts)
        if request.images is None:
            _, parts = scored_pictures(run, self.data, request.run)
        else:
            table = open_table(request.images, run.data.read, "--data.images")
            parts = {table.name: table}
        opened = Pretrained.load(facts)
        predictor, texts, given = CaptionPredictor(opened), [], []
        captioner = predictor.captioner
        captioner.search = search
        for name, part in parts.items():
            rows, wanted = references(part)
            tokenize = request.tokenize or run.evaluation.tokenize
            pictures = [predictor.read(part.pictures, row) for row in rows]
            scores, written = score_captions(
                captioner, pictures, wanted, tokenize, limit="--max-len-b"
            )
            print(f"{name}: {scores}", flush=True)
            if request.images is None and run.data.corpus is not None:
                print(
                    f"{name}: {_pointing(predictor, name, [done.text for done in written])}",
                    flush=True,
                )
            texts += written
            given += wanted
        return write_texts(request.output, texts, given, "picture")

    def predictor(self, facts: "Facts") -> Any:
        """Returns a function from pictures to captions."""
        from transformer_jax.inference.captions import CaptionPredictor
        from transformer_jax.inference.pretrained import Pretrained

        return CaptionPredictor(Pretrained.load(facts))

    def model(self, config: Any, fields: Mapping[str, Any], rngs: "nnx.Rngs") -> Any:
        """Returns a captioner."""
        from transformer_jax.models.captioner import Captioner

        try:
            encoder = from_dict(TransformerConfig, fields["encoder"])
        except (ConfigError, TypeError, KeyError) as error:
            raise CheckpointError(f"config.json: encoder: {error}: damaged?") from None
        return Captioner(computed_as(config, encoder), config, rngs=rngs)


def _with_encoder(run: CaptionRun, given: "Given[CaptionRun]") -> CaptionRun:
    """Returns the run with the encoder and the preprocessing of ``init_encoder``."""
    if (path := run.init_encoder) is None:
        return run
    from transformer_jax.inference.captions import encoder_of
    from transformer_jax.inference.images import pictures_of
    from transformer_jax.recipes.explicit_settings import with_given
    from transformer_jax.recipes.freezing import load_pretrained

    facts, named = load_pretrained(path, _ENCODERS).facts, given.named
    there = encoder_of(facts)
    encoder = with_given(there, run.encoder, named.encoder, given, "encoder.")
    encoder = dataclasses.replace(encoder, compute=run.encoder.compute)
    kept = pictures_of(facts.record, there.image).preprocessing
    kept = kept.scaled(there.image.image_size, encoder.image.image_size)
    usual = named.preprocessing
    kept = with_given(kept, run.preprocessing, usual, given, "preprocessing.")
    return dataclasses.replace(run, encoder=encoder, preprocessing=kept)


def _initial(
    run: CaptionRun,
    decoder: "Callable[[PyTree], PyTree] | None",
    allow_changed: bool | None,
    params: "dict[str, PyTree]",
) -> "dict[str, PyTree]":
    """Returns the parameters of step 0, including the encoder's start."""
    from transformer_jax.inference.captions import encoder_of
    from transformer_jax.recipes.freezing import load_pretrained

    if run.init_encoder == run.init_from:
        assert decoder is not None
        loaded: dict[str, PyTree] = decoder(params)
        return loaded
    rest = {name: part for name, part in params.items() if name != "encoder"}
    rest = rest if decoder is None else decoder(rest)
    assert run.init_encoder is not None
    start = load_pretrained(run.init_encoder, _ENCODERS, allow_changed)
    part = "encoder" if start.family == "captioner" else None
    start = dataclasses.replace(start, model=encoder_of(start.facts))
    encoder = start.given(params["encoder"], model=run.encoder, part=part)
    return {**rest, "encoder": encoder}


def _pointing(predictor: Any, split: Any, texts: list[str]) -> str:
    """Returns how many words for shapes have a heat map with its maximum on the shape."""
    from transformer_jax.data.corpora import scenes
    from transformer_jax.evaluation.captions import points_inside

    made, maps, boxes = scenes.generate(split, min(_POINTED, len(texts))), [], []
    for pixels, things, true, text in zip(
        made.pixels, made.things, made.captions, texts, strict=False
    ):
        if text == true:
            found = predictor.heat_maps(pixels, text)
            for place, meant in scenes.named_boxes(found.words, things).items():
                maps.append(found.of_word(place))
                boxes.append(meant)
    if not maps:
        return "no caption is right, so no heat map is checked"
    share = points_inside(maps, boxes, scenes.SIDE)
    return f"heat maps on the named shape {share:.1f} % of {plural(len(maps), 'word')}"


def _check_freeze(run: CaptionRun) -> None:
    """Refuses to freeze parts that do not exist or are not trained yet.

    Raises:
        ConfigError: The message names the setting and the allowed values.
    """
    allowed = {"none": "", "encoder": "init_encoder", "decoder": "init_from"}
    if run.freeze not in allowed:
        raise ConfigError(f"freeze is {run.freeze}: allowed are none, encoder and decoder")
    needed = allowed[run.freeze]
    if needed and getattr(run, needed) is None:
        raise ConfigError(f"freeze is {run.freeze} without {needed}: it is not trained yet")


def _partition(run: CaptionRun, tokenizer: "Tokenizer") -> "Partition":
    """Returns the partition of a run: the loaded parts are trained, frozen or adapted.

    Cross-attention and the map between widths, which connect the two parts, are always trained. So
    is an encoder that starts from scratch.
    """
    from transformer_jax.models.lora import lora
    from transformer_jax.models.partition import EVERYTHING, where
    from transformer_jax.models.trainable_tokens import trainable_tokens

    def connects(path: str) -> bool:
        return "/cross_attention" in path or path.startswith("bridge/")

    def is_new(path: str) -> bool:
        return connects(path) or (path.startswith("encoder/") and run.init_encoder is None)

    ids = [tokenizer.token_id(token) for token in run.trainable_tokens]
    if run.lora.rank:
        return trainable_tokens(lora(run.lora, is_new), ids)
    if run.freeze == "encoder":
        return where(lambda path: not path.startswith("encoder/"))
    if run.freeze == "decoder":
        rest = where(lambda path: path.startswith("encoder/") or connects(path))
        return trainable_tokens(rest, ids)
    return EVERYTHING


def _decoder(width: int, layers: int, heads: int, dropout: float, length: int) -> TransformerConfig:
    """Returns a decoder with GPT-2's layout."""
    return TransformerConfig(
        d_model=width,
        encoder_layers=0,
        decoder_layers=layers,
        embedding=EmbeddingConfig(scale=1.0, dropout=dropout),
        positions=PositionConfig(kind="learned", max_length=length),
        attention=AttentionConfig(num_heads=heads),
        feed_forward=FeedForwardConfig(d_ff=4 * width, activation="gelu_tanh"),
        norm=NormConfig(placement="pre", residual_dropout=dropout),
    )


_NAMED: dict[str, tuple[str, Callable[[], CaptionRun]]] = {
    "scenes": (
        "The built-in pictures of shapes: minutes on a laptop.",
        lambda: CaptionRun(
            # Sinusoids distinguish rows and columns from the first step on. A learned table of this
            # size needs longer, and so do relations.
            encoder=dataclasses.replace(
                vit(96, 3, image_size=48, patch_size=8),
                positions=PositionConfig("sinusoidal_2d"),
                attention=AttentionConfig(num_heads=4),
                feed_forward=FeedForwardConfig(d_ff=192, activation="gelu"),
            ),
            # No dropout, since the number of pictures is unlimited. With a third as many, fewer
            # relations of test pictures are right.
            model=_decoder(96, 2, 4, 0.0, 16),
            data=CaptionData(corpus="scenes", corpus_size=120_000),
            tokenizer=TokenizerConfig("wordpiece", vocab_size=None),
            optimizer=OptimizerConfig("adamw", 1e-3, ScheduleConfig("cosine", warmup_steps=200)),
            training=CaptionTraining(steps=5500, batch_size=64, sequence_length=12),
            loop=LoopConfig(evaluate_every=1100, checkpoint_every=1100),
            evaluation=CaptionEvaluation(num_beams=1),
        ),
    ),
    "captions": (
        "Your own pictures and captions: a ViT-Ti of 224 pixels and 4 layers of width 192.",
        lambda: CaptionRun(
            encoder=vit(192, 12, dropout=0.1),
            model=_decoder(192, 4, 3, 0.1, 128),
            data=own_captions(),
            tokenizer=TokenizerConfig(vocab_size=None),
            optimizer=OptimizerConfig(
                learning_rate=1e-3, schedule=ScheduleConfig("cosine", warmup_steps=None)
            ),
            training=CaptionTraining(epochs=None, label_smoothing=0.1),
            loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
        ),
    ),
}
