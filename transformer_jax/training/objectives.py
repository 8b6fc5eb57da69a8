"""Objectives: ``(model, batch, key) -> {"loss": (sum, weight), name: (sum, weight), ...}``."""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.core.arguments import checked_arguments
from transformer_jax.core.config_fields import Amount, Count, NotNegative, Positive, Rate
from transformer_jax.functional.contrastive import (
    cosent,
    matching_pairs,
    ranking_loss,
    sigmoid_contrast,
    softmax_contrast,
    unit_vectors,
)
from transformer_jax.functional.layers import gather_positions
from transformer_jax.functional.losses import OutputTable, cross_entropy, linear_cross_entropy
from transformer_jax.functional.mixup import mix_images
from transformer_jax.functional.partitioning import constrain
from transformer_jax.models.protocol import ArrayModel, Scorer
from transformer_jax.models.transformer.models import RowsOfTexts
from transformer_jax.training.micro_batches import Compared
from transformer_jax.training.step import Batch, Objective, Sums

if TYPE_CHECKING:
    from transformer_jax.models.heads import DecoderSequenceClassifier, EncoderForMaskedLM
    from transformer_jax.models.sentence_encoder import SentenceEncoder
    from transformer_jax.models.two_towers import TwoTowers

__all__ = [
    "contrastive",
    "encoder_inputs",
    "image_classification",
    "label_weights",
    "language_model",
    "length_weights",
    "masked_lm",
    "question_answering",
    "regression",
    "sequence_classification",
    "sequence_to_sequence",
    "shift_tokens_right",
    "similarity",
    "span_scores",
    "token_classification",
    "with_language_model",
]


def __dir__() -> list[str]:
    return sorted(__all__)


@checked_arguments
def shift_tokens_right(target: Int[Array, "B T"], bos: Amount) -> Int[Array, "B T"]:
    """Returns the decoder input that predicts ``target``: ``bos``, then all but the last token.

    This is the only place where targets are shifted. Position t reads token t - 1, so with a causal
    mask (diagonal included) it sees exactly the tokens before the predicted one.

    Example:
        >>> shift_tokens_right(jnp.array([[5, 6, 2]]), bos=1)
        Array([[1, 5, 6]], dtype=int32)
    """
    return jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=bos)


@checked_arguments
def length_weights(lengths: Int[Array, " B"], length: Count) -> Float[Array, "B T"]:
    """Returns 1 for tokens and 0 for padding; a row of length 0 has weight 0.

    Example:
        >>> length_weights(jnp.array([2, 0]), 3)
        Array([[1., 1., 0.],
               [0., 0., 0.]], dtype=float32)
    """
    return (jnp.arange(length)[None] < lengths[:, None]).astype(jnp.float32)


@checked_arguments
def sequence_to_sequence(
    bos: Amount, label_smoothing: Rate = 0.0, chunk: Amount | None = None
) -> Objective:
    """Cross-entropy of targets given encoder inputs, in nats: sum and number of tokens.

    For any encoder-decoder: translation, captions, denoising. The model is a
    :class:`~transformer_jax.models.protocol.Scorer`, such as ``EncoderDecoder(encoder, decoder)``.

    Args:
        bos: Start token of decoder inputs.
        label_smoothing: Probability spread evenly over the vocabulary (Vaswani et al. 2017: 0.1).
        chunk: Number of tokens whose logits are in memory at a time; 0 is the full batch, None is
            chosen by the loss.

    Returns:
        ``objective(model, batch, key)``. The batch has ``inputs``, the arguments of the encoder by
        name, ``target`` int32 ``[B T]`` (without BOS, with EOS) and its ``lengths`` ``[B]``.

    Raises:
        ArgumentError: Label smoothing is outside [0, 1), or the chunk is negative.
    """
    loss = _token_loss(label_smoothing, chunk)

    def objective(model: Scorer, batch: Batch, key: Array | None = None) -> Sums:
        inputs = jax.tree.map(jnp.asarray, batch["inputs"])
        target, lengths = jnp.asarray(batch["target"]), jnp.asarray(batch["lengths"])
        weights = length_weights(lengths, target.shape[1])
        hidden = model.hidden(inputs, shift_tokens_right(target, bos), key=key)
        return {"loss": loss(hidden, model.output_table(), target, weights)}

    return objective


@checked_arguments
def language_model(label_smoothing: Rate = 0.0, chunk: Amount | None = None) -> Objective:
    """Cross-entropy of texts in nats: sum and number of tokens (Radford et al. 2018).

    Args:
        label_smoothing: Probability spread evenly over the vocabulary.
        chunk: Number of tokens whose logits are in memory at a time; 0 is the full batch, None is
            chosen by the loss.

    Returns:
        ``objective(model, batch, key)``. The batch has ``tokens``, the next tokens ``targets`` and
        their ``weights``; packed rows also have ``segments`` and ``positions``.

    Raises:
        ArgumentError: Label smoothing is outside [0, 1), or the chunk is negative.
    """
    loss = _token_loss(label_smoothing, chunk)

    def objective(model: Scorer, batch: Batch, key: Array | None = None) -> Sums:
        tokens, targets, weights = (jnp.asarray(batch[n]) for n in ("tokens", "targets", "weights"))
        inputs = {"segment_ids": batch.get("segments"), "positions": batch.get("positions")}
        hidden = model.hidden(inputs, tokens, key=key)
        return {"loss": loss(hidden, model.output_table(), targets, weights)}

    return objective


def _token_loss(
    label_smoothing: float, chunk: int | None
) -> Callable[[Array, OutputTable, Array, Array], tuple[Array, Array]]:
    return functools.partial(linear_cross_entropy, label_smoothing=label_smoothing, chunk=chunk)


def encoder_inputs(batch: Batch) -> tuple[Array, Array, Array]:
    """Returns the encoder inputs of a batch: tokens, lengths and token types."""
    tokens, lengths, types = (jnp.asarray(batch[name]) for name in ("tokens", "lengths", "types"))
    return tokens, lengths, types


@checked_arguments
def masked_lm(
    *, accuracy: bool = False, sentence_objective: Literal["nsp", "sop", "none"] = "nsp"
) -> Objective:
    """Cross-entropy of masked tokens plus sentence pairs, in nats (Devlin et al. 2019).

    ``Σ_rows (Σ mlm + m · pair) / Σ m``, with ``m`` masked tokens in a row: the mean over masked
    tokens plus the mean over pairs, where weighting pairs by ``m`` makes the loss independent of
    how a batch is split. Logits are computed at masked positions only.

    Args:
        accuracy: Whether the sums include ``mlm_accuracy``, which needs all logits at once, in
            float32, however the model stores those of a loss.
        sentence_objective: ``nsp`` or ``sop``, which names the sums. With ``none``, or a model
            without a sentence-pair head, there is only the MLM loss.

    Returns:
        ``objective(model, batch, key)``. The batch has the inputs of :func:`encoder_inputs`,
        ``masked_positions``, ``targets``, ``weights`` and ``next_sentence_label``
        (``BertPretrainingPlan.make``); packed rows also have ``segments`` and ``positions``. Sums
        besides ``loss``: ``mlm_loss``, and for pairs ``nsp_loss`` and ``nsp_accuracy`` (or
        ``sop_``).
    """

    def objective(model: "EncoderForMaskedLM", batch: Batch, key: Array | None = None) -> Sums:
        targets, weights = jnp.asarray(batch["targets"]), jnp.asarray(batch["weights"])
        tokens, lengths, types = encoder_inputs(batch)
        rows = (
            lengths
            if "segments" not in batch
            else RowsOfTexts(jnp.asarray(batch["segments"]), jnp.asarray(batch["positions"]))
        )
        hidden = model(tokens, rows, types, key=key)
        positions = jnp.asarray(batch["masked_positions"])
        vectors = model.mlm_transform(gather_positions(hidden, positions))
        sums: Sums = {}
        if accuracy:
            logits = model.output_table().logits(vectors)
            total, weight = cross_entropy(logits, targets, weights)
            sums["mlm_accuracy"] = _correct(logits, targets, weights), weight
        else:
            total, weight = linear_cross_entropy(vectors, model.output_table(), targets, weights)
        sums["mlm_loss"] = total, weight
        if model.next_sentence is not None and sentence_objective != "none":
            logits = model.nsp_logits(hidden)
            follows, counts = jnp.asarray(batch["next_sentence_label"]), weights.sum(1)
            loss, _ = cross_entropy(logits, jnp.maximum(follows, 0), counts)
            sums[f"{sentence_objective}_loss"] = loss, weight
            sums[f"{sentence_objective}_accuracy"] = _correct(logits, follows, counts), weight
            total = total + loss
        return sums | {"loss": (total, weight)}

    return objective


@checked_arguments
def sequence_classification(class_weights: Sequence[float] = ()) -> Objective:
    """Cross-entropy of the class of each text, in nats, and ``accuracy`` (Devlin et al. 2019).

    The loss is ``Σ w_y l / Σ w_y`` with the weight ``w_y`` of the class of each text; accuracy has
    no weights.

    Args:
        class_weights: Weight of each class, in order; none is 1 for all.

    Returns:
        ``objective(model, batch, key)``. The batch has the inputs of :func:`encoder_inputs` and
        ``labels`` int32 ``[B]``, -1 for a row without a label.
    """
    return functools.partial(_classes, class_weights=tuple(class_weights))


@checked_arguments
def token_classification(class_weights: Sequence[float] = ()) -> Objective:
    """Cross-entropy of the tag of each word, in nats, and ``accuracy`` (Devlin et al. 2019).

    The tag belongs to the first token of a word.

    Args:
        class_weights: Weight of each tag, as in :func:`sequence_classification`.

    Returns:
        ``objective(model, batch, key)``. The batch has the inputs of :func:`encoder_inputs`, and
        ``labels`` int32 ``[B T]``, -1 at every other token.
    """
    return functools.partial(_classes, class_weights=tuple(class_weights))


def _classes(
    model: ArrayModel, batch: Batch, key: Array | None = None, *, class_weights: tuple[float, ...]
) -> Sums:
    logits = model(*encoder_inputs(batch), key=key)
    return _class_sums(logits, jnp.asarray(batch["labels"]), class_weights)


def _class_sums(logits: Array, labels: Array, class_weights: tuple[float, ...]) -> Sums:
    known = (labels >= 0).astype(jnp.float32)
    weights = label_weights(labels, class_weights)
    total, weight = cross_entropy(logits, jnp.maximum(labels, 0), weights)
    correct = _correct(logits, labels, known), known.sum()
    return {"loss": (total, weight), "accuracy": correct}


def label_weights(
    labels: Int[Array, "*rows"], class_weights: tuple[float, ...]
) -> Float[Array, "*rows"]:
    """Returns the weight of the class of each row; 0 for a row without a label.

    Example:
        >>> label_weights(jnp.array([1, 0, -1]), (0.5, 3.0)).tolist(), label_weights(
        ...     jnp.array([1, -1]), ()
        ... ).tolist()
        ([3.0, 0.5, 0.0], [1.0, 0.0])
    """
    known = (labels >= 0).astype(jnp.float32)
    if not class_weights:
        return known
    return known * jnp.asarray(class_weights, jnp.float32)[jnp.maximum(labels, 0)]


@checked_arguments
def image_classification(
    label_smoothing: Rate = 0.0, mixup: NotNegative = 0.0, cutmix: NotNegative = 0.0
) -> Objective:
    """Cross-entropy of the class of each image, in nats, with ``accuracy`` and ``top5_accuracy``.

    The batch has ``images`` float ``[B height width C]`` and ``labels`` int32 ``[B]``, -1 for a row
    without a label. With a key, images are mixed by :func:`.mix_images` within each micro-batch;
    then there is no accuracy.

    Args:
        label_smoothing: Probability spread over all classes.
        mixup: Parameter of the Beta distribution of MixUp.
        cutmix: Parameter of the Beta distribution of CutMix.
    """

    def objective(model: ArrayModel, batch: Batch, key: Array | None = None) -> Sums:
        images, labels = jnp.asarray(batch["images"]), jnp.asarray(batch["labels"])
        weights = (labels >= 0).astype(jnp.float32)
        targets = jnp.maximum(labels, 0)
        if key is None or not (mixup or cutmix):
            logits = model(images, key=key)
            total, weight = cross_entropy(logits, targets, weights, label_smoothing)
            _, best = jax.lax.top_k(logits, min(5, logits.shape[-1]))
            among = ((best == labels[:, None]).any(-1) * weights).sum()
            correct = _correct(logits, labels, weights)
            return {
                "loss": (total, weight),
                "accuracy": (correct, weight),
                "top5_accuracy": (among, weight),
            }
        key, how = jax.random.split(key)
        mixed = mix_images(images, labels >= 0, how, mixup, cutmix)
        logits = model(mixed.images, key=key)
        loss = lambda targets: cross_entropy(logits, targets, weights, label_smoothing)
        (first, weight), (second, _) = loss(targets), loss(targets[mixed.partners])
        return {"loss": (mixed.weight * first + (1 - mixed.weight) * second, weight)}

    return objective


@checked_arguments
def contrastive(loss: Literal["softmax", "sigmoid"] = "softmax") -> Compared:
    """Contrastive loss of image-text pairs among all pairs of a batch, in nats per pair.

    The batch has ``images`` float ``[B height width C]``, ``tokens`` int32 ``[B T]`` and
    ``lengths`` int32 ``[B]``, 0 for an empty row; and optionally ``captions`` int32 ``[B K]``, the
    numbers of all texts of each image, the row's own text first and -1 for none. Without them, the
    texts of other rows are negatives, even if they are equal or describe the same image. Besides
    ``loss``: ``accuracy``, the fraction of images and of texts whose nearest counterpart is a right
    one. On a mesh, every device has the vectors of all texts, and compares its images with them.

    Sources: Radford et al. 2021, including the limit of the softmax temperature; Zhai et al. 2023.

    Args:
        loss: :func:`.softmax_contrast` or :func:`.sigmoid_contrast`.
    """
    measure = {"softmax": softmax_contrast, "sigmoid": sigmoid_contrast}[loss]
    limit = 100.0 if loss == "softmax" else None

    def embed(model: "TwoTowers", batch: Batch, key: Array | None) -> dict[str, Array]:
        keys = (None, None) if key is None else jax.random.split(key)
        tokens, lengths = jnp.asarray(batch["tokens"]), jnp.asarray(batch["lengths"])
        return {
            "images": model.embed_images(jnp.asarray(batch["images"]), key=keys[0]),
            "texts": model.embed_texts(tokens, lengths, key=keys[1]),
        }

    def compare(model: "TwoTowers", vectors: dict[str, Array], batch: Batch) -> Sums:
        images = constrain(vectors["images"], ("batch", None))
        texts = constrain(vectors["texts"], (None, None))
        found, counts = model.similarities(images, texts, limit), jnp.asarray(batch["lengths"]) > 0
        weight, rows = counts.sum().astype(jnp.float32), jnp.arange(len(counts))
        matches = jnp.eye(len(counts), dtype=bool)
        if "captions" in batch:
            matches |= matching_pairs(jnp.asarray(batch["captions"]))
        near = jnp.where(counts[:, None] & counts[None], found, -jnp.inf)
        right = matches[near.argmax(0), rows] & counts, matches[rows, near.argmax(1)] & counts
        hits = jnp.stack(right).sum() / 2
        return {"loss": (measure(found, counts, matches), weight), "accuracy": (hits, weight)}

    return Compared(embed, compare)


@checked_arguments
def similarity(
    loss: Literal["cosine", "cosent", "ranking"],
    *,
    scale: Positive = 20.0,
    symmetric: bool = False,
    widths: Sequence[int] = (),
    compare: Literal["cosine", "dot"] = "cosine",
) -> Compared:
    """Loss of the similarities of texts, compared among all examples of a batch.

    - ``cosine``: squared error of the cosine of each pair, per pair.
    - ``cosent``: :func:`.cosent` of the cosines of pairs, of the batch as a whole.
    - ``ranking``: :func:`.ranking_loss` in nats per anchor, among the positives and the hard
      negatives of all examples. An example that has the same anchor or positive as another, or
      the anchor of one as its positive, is no negative of the other; neither is a text that
      ``partners`` names. Besides ``loss``: ``accuracy``, the fraction of anchors whose positive is
      the nearest.

    With ``widths``, losses of the first components of the vectors are added (Kusupati et al. 2022,
    https://arxiv.org/abs/2205.13147). On a mesh, every device compares its anchors with all texts.

    Args:
        loss: The loss.
        scale: Factor of similarities, the inverse of a temperature; ``cosine`` has none.
        symmetric: Whether ``ranking`` also finds anchors by positives.
        widths: Numbers of components; none is all components alone.
        compare: Similarity of ``ranking``; the other losses are of cosines.

    Returns:
        An objective for a :class:`.SentenceEncoder`. The batch has the texts of its ``vectors``,
        ``K`` texts for each of the ``E`` examples of a row; and ``labels`` float ``[R E]``, NaN for
        none, or for ``ranking`` ``texts`` int32 ``[R E K]``, numbers of the anchor, the positive
        and the negatives (-1 for none), and ``partners`` int32 ``[R E P]``, numbers of all texts
        that match the anchor (-1 for none).
    """

    def embed(model: "SentenceEncoder", batch: Batch, key: Array | None) -> Array:
        return model.vectors(batch, key=key)

    def compared(model: "SentenceEncoder", vectors: Array, batch: Batch) -> Sums:
        del model
        R, E = batch["labels" if loss != "ranking" else "texts"].shape[:2]
        texts = vectors.reshape(R * E, -1, vectors.shape[-1])
        parts = [texts[..., :width] for width in widths or (texts.shape[-1],)]
        if compare == "cosine" or loss != "ranking":
            parts = [unit_vectors(part) for part in parts]
        if loss == "ranking":
            numbers = jnp.asarray(batch["texts"]).reshape(R * E, -1)
            partners = jnp.asarray(batch["partners"]).reshape(R * E, -1)
            return _ranking_sums(parts, numbers, partners, scale, symmetric)
        labels = jnp.asarray(batch["labels"]).reshape(-1)
        known = jnp.isfinite(labels)
        weight, labels = known.sum().astype(jnp.float32), jnp.where(known, labels, 0.0)
        total = jnp.zeros(())
        for part in parts:
            cosines = (part[:, 0] * part[:, 1]).sum(-1)
            if loss == "cosine":
                total += jnp.where(known, jnp.square(cosines - labels), 0.0).sum()
            else:
                total += cosent(cosines, labels, known, scale) * weight
        return {"loss": (total, weight)}

    return Compared(embed, compared)


def _ranking_sums(
    parts: Sequence[Float[Array, "N K _"]],
    texts: Int[Array, "N K"],
    partners: Int[Array, "N P"],
    scale: float,
    symmetric: bool,
) -> Sums:
    """Returns the loss over all widths, and the accuracy of the first."""
    counts, pair = texts[:, 0] >= 0, texts[:, :2]
    numbers = texts[:, 1:].T.reshape(-1)  # all positives, then the negatives of all
    match = (partners[:, None] == numbers[None, :, None]).any(-1)
    shared = (pair[:, None, :, None] == pair[None, :, None]).any((-2, -1))
    match = match.at[:, : len(texts)].max(shared)
    candidates = ~match & (numbers >= 0)[None]
    total, weight, hits = jnp.zeros(()), counts.sum().astype(jnp.float32), jnp.zeros(())
    for place, part in enumerate(parts):
        anchors = constrain(part[:, 0], ("batch", None))
        others = part[:, 1:].swapaxes(0, 1).reshape(-1, part.shape[-1])
        found = scale * (anchors @ constrain(others, (None, None)).T)
        total += ranking_loss(found, counts, candidates, symmetric=symmetric)
        if place == 0:
            best = jnp.where(candidates, found, -jnp.inf).max(1)
            hits = ((jnp.diagonal(found[:, : len(texts)]) > best) & counts).sum()
    return {"loss": (total, weight), "accuracy": (hits.astype(jnp.float32), weight)}


def regression() -> Objective:
    """Squared error of the number of each text, where ``labels`` float ``[B]`` is not NaN."""

    def objective(model: ArrayModel, batch: Batch, key: Array | None = None) -> Sums:
        return _number_sums(model(*encoder_inputs(batch), key=key), jnp.asarray(batch["labels"]))

    return objective


def _number_sums(numbers: Array, labels: Array) -> Sums:
    known = jnp.isfinite(labels)
    errors = jnp.where(known, numbers[:, 0] - labels, 0.0)
    return {"loss": (jnp.square(errors).sum(), known.sum().astype(jnp.float32))}


@checked_arguments
def with_language_model(
    lm_weight: NotNegative = 0.5, *, regress: bool = False, class_weights: Sequence[float] = ()
) -> Objective:
    """The loss of classes or numbers plus ``lm_weight`` times the language-modelling loss.

    ``L(C) = L_task(C) + λ L_lm(C)`` with ``L_lm`` the mean over the tokens of each text: Radford et
    al. 2018, equation 5, and λ = 0.5 there.

    Args:
        lm_weight: λ.
        regress: Whether labels are numbers.
        class_weights: Weight of each class, with which both losses of a text count.

    Returns:
        ``objective(model, batch, key)`` for a ``DecoderSequenceClassifier`` and the batches of
        :func:`sequence_classification` or :func:`regression`. An additional sum is ``lm_loss``.
    """

    def objective(
        model: "DecoderSequenceClassifier", batch: Batch, key: Array | None = None
    ) -> Sums:
        tokens, lengths, _ = encoder_inputs(batch)
        labels, T = jnp.asarray(batch["labels"]), tokens.shape[1]
        hidden = model.states(tokens, lengths, key=key)
        scores = model.scores(hidden, lengths)
        if regress:
            sums, known = _number_sums(scores, labels), jnp.isfinite(labels)
        else:
            sums = _class_sums(scores, labels, tuple(class_weights))
            known = label_weights(labels, tuple(class_weights))
        predicted = jnp.maximum(lengths - 1, 0)
        means = length_weights(predicted, T) / jnp.maximum(predicted, 1)[:, None]
        targets = jnp.pad(tokens[:, 1:], ((0, 0), (0, 1)))
        weights = means * known[:, None]
        spoken, _ = linear_cross_entropy(hidden, model.output_table(), targets, weights)
        total, weight = sums["loss"]
        return sums | {"loss": (total + lm_weight * spoken, weight), "lm_loss": (spoken, weight)}

    return objective


def question_answering() -> Objective:
    """Mean cross-entropy of the start and the end of answers, in nats.

    Only tokens in ``allowed`` can be either: the context, and [CLS] for "unanswerable". The batch
    has the inputs of :func:`encoder_inputs`, ``allowed`` bool ``[B T]``, and ``labels`` int32
    ``[B 2]``, -1 for a row without labels. Besides ``loss``: ``accuracy``, the fraction of rows
    with correct start and end. Devlin et al. 2019, section 4.2.
    """

    def objective(model: ArrayModel, batch: Batch, key: Array | None = None) -> Sums:
        labels = jnp.asarray(batch["labels"])
        weights = (labels >= 0).astype(jnp.float32)
        scores = span_scores(model, batch, key)
        total, weight = cross_entropy(scores, jnp.maximum(labels, 0), weights)
        exact = (scores.argmax(-1) == labels).all(-1) & (labels[:, 0] >= 0)
        rows = weight / 2
        return {"loss": (total / 2, rows), "accuracy": (exact.sum().astype(jnp.float32), rows)}

    return objective


def span_scores(model: ArrayModel, batch: Batch, key: Array | None = None) -> Float[Array, "B 2 T"]:
    """Returns logits of each token as start and as end of an answer; -1e30 if not allowed."""
    allowed = jnp.asarray(batch["allowed"])
    scores = model(*encoder_inputs(batch), key=key).transpose(0, 2, 1)
    return jnp.where(allowed[:, None], scores, -1e30)


def _correct(
    logits: Float[Array, "*rows V"], targets: Int[Array, "*rows"], weights: Float[Array, "*rows"]
) -> Float[Array, ""]:
    hits = (logits.argmax(-1) == targets).astype(jnp.float32)
    return jax.lax.stop_gradient((hits * weights).sum())
