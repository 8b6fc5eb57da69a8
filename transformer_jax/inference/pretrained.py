"""Opened models: values that no file is needed for.

:func:`read_facts` reads what is known without parameters, :meth:`Pretrained.load` adds parameters,
tokenizer and everything else that a use of the model reads.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np

from transformer_jax.core.config_dict import from_dict
from transformer_jax.core.config_fields import UnregisteredError
from transformer_jax.core.errors import CheckpointError, ConfigError, DataError, UserError, plural
from transformer_jax.decoding.generation_config import TRANSLATION, GenerationConfig
from transformer_jax.inference.facts import FAMILY_NAMES, FINE_TUNED, Facts, Opening, StoredChat
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.recurrent_config import ModelConfig, RecurrentConfig
from transformer_jax.recipes.registry import get_recipe, stored_recipe
from transformer_jax.runs.run_directory import NOT_OURS, RunDirectory

if TYPE_CHECKING:
    from transformer_jax.core.trees import Nested
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.decoding.language import DecoderLanguageModel
    from transformer_jax.decoding.line_translator import LineTranslator
    from transformer_jax.decoding.ngram import NgramLanguageModel
    from transformer_jax.decoding.options import BatchingConfig, TranslationBatching
    from transformer_jax.interop.ctranslate2_language import CTranslate2LanguageModel
    from transformer_jax.models.ngram import NgramModel

__all__ = [
    "Pretrained",
    "abstract_model",
    "chosen_checkpoint",
    "facts_of",
    "open_directory",
    "open_pretrained",
    "read_facts",
]


# The last layer of a sentence encoder, as a function of pooled vectors.
SentenceLayer: TypeAlias = Callable[[np.ndarray], np.ndarray]


def open_directory(path: str | os.PathLike[str], allow_changed: bool | None = None) -> RunDirectory:
    """Opens the run directory or Hugging Face checkpoint at ``path``; a URL is downloaded.

    Raises:
        CheckpointError: The path is neither.
    """
    from transformer_jax.core.storage.copies import fetched
    from transformer_jax.interop.config_reader import is_hf_checkpoint
    from transformer_jax.runs.manifest import is_optimizer_file

    path = fetched(path, is_optimizer_file)
    if is_hf_checkpoint(path):
        from transformer_jax.interop.hf_run_directory import HFRunDirectory

        return HFRunDirectory(path)
    return RunDirectory.open(path, allow_changed)


def read_facts(
    path: str | os.PathLike[str], checkpoint: str = "best", opening: Opening = Opening()
) -> Facts:
    """Reads what is known of a run directory or a Hugging Face folder without its parameters.

    Args:
        path: The folder, local or on an object store.
        checkpoint: Name of the checkpoint, see :func:`chosen_checkpoint`; checked when it is
            loaded.
        opening: Whether a changed ``config.json`` is allowed, and the devices of the parameters.

    Raises:
        CheckpointError: There is no model, ``config.json`` is damaged or was changed after
            training, or it does not describe a model of this library.
    """
    run = open_directory(path, opening.allow_changed)
    return dataclasses.replace(facts_of(run, checkpoint), opening=opening)


def facts_of(run: RunDirectory, checkpoint: str = "best") -> Facts:
    """Reads what is known of an opened directory, see :func:`read_facts`.

    Raises:
        CheckpointError: See :func:`read_facts`.
    """
    fields = run.read_config()
    recipe = stored_recipe(fields, run.config)
    config = None if recipe.family == "ngram" else _model_config(run.config, fields)
    stored = recipe.stored(fields)
    return Facts(
        source=run.path,
        kind=stored.family,
        recipe=recipe.name,
        title=FAMILY_NAMES.get(stored.family) or recipe.title,
        config=config,
        record=fields,
        first=stored.first,
        ends=stored.ends,
        task_fields=stored.task,
        family=run.family,
        checkpoint=checkpoint,
        opening=Opening(run.allow_changed),
        files=run,
    )


def _model_config(file: Path, fields: Mapping[str, Any]) -> ModelConfig:
    """Returns the configuration of a run's model, without the word vectors of its start."""
    if not isinstance(fields.get("model"), dict):
        raise CheckpointError(f"{file}: {NOT_OURS}")
    recurrent = fields["model"].get("kind") == "recurrent"
    try:
        kind = RecurrentConfig if recurrent else TransformerConfig
        config: ModelConfig = from_dict(kind, fields["model"])
    except UnregisteredError as error:
        raise CheckpointError(f"{file}: {error}") from None
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"{file}: {error}: written by another version?") from None
    embedding: Any = dataclasses.replace(config.embedding, init=None)
    return dataclasses.replace(config, embedding=embedding)


def chosen_checkpoint(text: str) -> tuple[int | Literal["best", "last"], int]:
    """Parses the name of a checkpoint; returns it and the number of checkpoints to average.

    Raises:
        ConfigError: The name is not ``best``, ``last``, a step or ``average:N``.

    Example:
        >>> chosen_checkpoint("best"), chosen_checkpoint("1200"), chosen_checkpoint("average:5")
        (('best', 1), (1200, 1), ('last', 5))
    """
    kind, _, number = text.partition(":")
    if text == "best":
        return "best", 1
    if text == "last":
        return "last", 1
    if text.isdecimal():
        return int(text), 1
    if kind == "average" and number.isdecimal() and int(number):
        return "last", int(number)
    raise ConfigError(
        f"checkpoint {text}: must be best, last, a step (1200) or average:N, the mean of the last N"
    )


def abstract_model(facts: Facts, config: ModelConfig | None = None) -> Any:
    """Returns the model, including its heads, with shapes instead of parameters.

    Args:
        facts: Facts of the model.
        config: A configuration with other settings; None is the model's own.

    Raises:
        CheckpointError: The task of a fine-tuned model is damaged.
        ConfigError: The model is an n-gram model.
    """
    from flax import nnx

    from transformer_jax.models.layers.parameters import Shapes

    if facts.kind in FINE_TUNED:
        _ = facts.head  # refuses damaged settings
    recipe, config = get_recipe(facts.recipe), facts.layers if config is None else config
    return nnx.eval_shape(lambda: recipe.model(config, facts.record, Shapes(0)))


@dataclasses.dataclass(frozen=True, eq=False)
class Pretrained:
    """An opened model: a value that no file is needed for.

    Attributes:
        facts: What is known without parameters; it cannot read the folder again.
        model: Graph and parameters, the counts of an n-gram model, or an engine.
        tokenizer: The tokenizer used in training; None for an image model.
        chat: The chat template of a decoder.
        dense: The function of pooled vectors of a sentence encoder, None, or the error in its
            files, which concerns only those who need it.
        adapters: Facts of the adapters from which each row chooses, by name.
    """

    facts: Facts
    model: Any
    tokenizer: Any
    chat: StoredChat = StoredChat()
    dense: SentenceLayer | UserError | None = None
    adapters: Mapping[str, Facts] = dataclasses.field(default_factory=dict)

    @classmethod
    def load(
        cls,
        facts: Facts,
        *kinds: str,
        change: Callable[[Any], Any] = lambda config: config,
    ) -> "Pretrained":
        """Loads the parameters, and everything else that uses of the model read.

        Args:
            facts: What is known without parameters.
            *kinds: The allowed families; none allows all.
            change: Function that changes the configuration; the parameters must still fit.

        Raises:
            ConfigError: The model is of another family; the message names the command for it.
            CheckpointError: The files are damaged or do not match.
        """
        if facts.kind == "ngram":
            facts.require(*(kinds or ("ngram",)))
            return cls(dataclasses.replace(facts, files=None), *_counts(facts))
        which, average = chosen_checkpoint(facts.checkpoint)
        facts.require(*(kinds or (facts.kind,)))
        config: ModelConfig = change(facts.layers)

        import jax
        from flax import nnx

        from transformer_jax.core.trees import default_device
        from transformer_jax.data.vocabulary_check import check_vocabulary
        from transformer_jax.models.layers.surgery import with_attention_kernels
        from transformer_jax.parallel.placement import shard_parameters
        from transformer_jax.runs.checkpoint_reader import check_parameters

        loaded = facts.reader.load_params(which, average=average)
        if facts.kind in FAMILY_NAMES:  # a recipe with a new family makes its own model
            _check_size(facts, config, loaded.params)
        tokenizer: Any = None if facts.kind == "image" else _tokenizer(facts, loaded.manifest)
        if tokenizer is not None:
            sizes = config.vocab_size, config.decoder().vocab_size
            check_vocabulary(tokenizer, *sizes, where=facts.source)
        model = with_attention_kernels(abstract_model(facts, config), default_device())
        graph, shapes = nnx.split(model)
        params, other = loaded.params, "by config.json: they belong to different runs"
        check_parameters(facts.source, nnx.to_pure_dict(shapes), params, other)
        mesh = facts.opening.mesh
        placed = jax.device_put(params) if mesh is None else shard_parameters(graph, params, mesh)
        return cls(
            dataclasses.replace(facts, files=None, config=config),
            (graph, placed),
            tokenizer,
            facts.chat if facts.kind in ("decoder", "decoder-task") else StoredChat(),
            _dense(facts, config.d_model, params),
        )

    @functools.cached_property
    def module(self) -> Any:
        """The Flax module, which shares the parameters; the counts of an n-gram model; or None."""
        from flax import nnx

        if self.on_jax:
            return nnx.merge(*self.model)
        return self.model if self.facts.kind == "ngram" else None

    @property
    def on_jax(self) -> bool:
        """Returns whether the model has parameters that run on JAX."""
        return isinstance(self.model, tuple)

    def translator(
        self,
        search: GenerationConfig = TRANSLATION,
        batching: "TranslationBatching | None" = None,
    ) -> "LineTranslator":
        """Returns the batched search of an encoder-decoder, as a function of lines.

        Args:
            search: Usual settings of the search.
            batching: Batch sizes.
        """
        if self.on_jax:
            from transformer_jax.decoding.translator import Translator

            return Translator(
                self.model,
                self.tokenizer,
                search=search,
                batching=batching,
                preparation=self.facts.preparation,
            )
        from transformer_jax.interop.ctranslate2_translator import CTranslate2Translator

        return CTranslate2Translator(
            self.model,
            self.tokenizer,
            self.facts.transformer,
            search=search,
            batching=batching,
            preparation=self.facts.preparation,
        )

    def language(
        self,
        shapes: "BatchingConfig | None" = None,
        *,
        prepare: Callable[[str], str] | None = None,
        **how: Any,
    ) -> "DecoderLanguageModel | NgramLanguageModel | CTranslate2LanguageModel":
        """Returns the batched search of a decoder or an n-gram model, as a function of prompts.

        Args:
            shapes: Batch shapes to compile.
            prepare: Prepares prompts and texts to score; None prepares them as in training.
            **how: ``dtype`` of weights and computation, and ``context``, its length in tokens.
        """
        facts, tokenizer, model = self.facts, self.tokenizer, self._language(shapes, how)
        model.prepare = facts.preparation.text if prepare is None else prepare
        for name, own in self.adapters.items():
            model.set_texts(name, own.text_start(tokenizer), own.ends)
        return model

    def _language(self, shapes: "BatchingConfig | None", how: dict[str, Any]) -> Any:
        facts, tokenizer = self.facts, self.tokenizer
        if facts.kind == "ngram":
            from transformer_jax.decoding.ngram import NgramLanguageModel

            return NgramLanguageModel(self.model, tokenizer)
        texts: Any = {"start": facts.text_start(tokenizer), "ends": facts.ends, "shapes": shapes}
        if not self.on_jax:
            from transformer_jax.interop.ctranslate2_language import CTranslate2LanguageModel

            return CTranslate2LanguageModel(self.model, tokenizer, facts.transformer, **texts)
        from transformer_jax.decoding.language import DecoderLanguageModel

        how = how | texts | {"adapters": tuple(self.adapters)}
        return DecoderLanguageModel(self.model, tokenizer, **how)

    @property
    def sentence_layer(self) -> SentenceLayer | None:
        """The last layer of a sentence encoder as a function of pooled vectors, or None.

        Raises:
            CheckpointError: Its files are damaged.
        """
        if isinstance(self.dense, UserError):
            raise self.dense
        return self.dense


def open_pretrained(
    path: str | os.PathLike[str],
    checkpoint: str = "best",
    *kinds: str,
    opening: Opening = Opening(),
) -> Pretrained:
    """Opens the model of a run directory or a Hugging Face folder.

    Args:
        path: The folder, local or on an object store.
        checkpoint: Name of the checkpoint, see :func:`chosen_checkpoint`.
        *kinds: The allowed families; none allows all.
        opening: Whether a changed ``config.json`` is allowed, and the devices of the parameters.

    Raises:
        ConfigError: The model is of another family; the message names the command for it.
        CheckpointError: There is no model, or its files are damaged or do not match.
    """
    return Pretrained.load(read_facts(path, checkpoint, opening), *kinds)


def _counts(facts: Facts) -> tuple["NgramModel", "Tokenizer"]:
    """Loads an n-gram model and its tokenizer."""
    from transformer_jax.data.vocabulary_check import check_vocabulary
    from transformer_jax.models.ngram import NgramModel

    if facts.checkpoint not in ("best", "last"):
        raise ConfigError(f"{facts.source}: an n-gram model has no steps: leave checkpoint out")
    if facts.opening.mesh is not None:
        raise ConfigError(f"{facts.source}: an n-gram model cannot run on a mesh: leave mesh out")
    try:
        tokenizer = facts.tokenizer
    except DataError as error:
        raise CheckpointError(str(error)) from None
    counts = NgramModel.load(facts.reader.path / "ngram.npz")
    try:
        check_vocabulary(tokenizer, counts.vocab_size, exact=True)
    except ConfigError as error:
        raise CheckpointError(f"{facts.source}: {error}") from None
    return counts, tokenizer


def _check_size(facts: Facts, config: ModelConfig, params: Any) -> None:
    """Refuses a configuration of a much larger model than the checkpoint's.

    Otherwise a model of thousands of layers would be created for minutes before shapes are
    compared.
    """
    import jax

    from transformer_jax.models.costs.accounting import count_parameters

    described, there = count_parameters(config), sum(leaf.size for leaf in jax.tree.leaves(params))
    if described > 2 * there:
        raise CheckpointError(
            f"{facts.source}: config.json describes a model of {plural(described, 'parameter')}, "
            f"but the checkpoint has {there:,}: they belong to different runs"
        )


def _tokenizer(facts: Facts, manifest: Mapping[str, Any]) -> "Tokenizer":
    """Returns the tokenizer, which must be that of the loaded checkpoint."""
    sha256 = manifest.get("tokenizer")
    try:
        found = facts.tokenizer
        if sha256 in (None, found.sha256):
            return found
        return facts.reader.load_tokenizer(sha256, facts.record)  # refuses it
    except DataError as error:
        raise CheckpointError(str(error)) from None


def _dense(facts: Facts, width: int, params: "Nested") -> SentenceLayer | UserError | None:
    """Returns the last layer of a sentence encoder, None, or the error in its files."""
    if "sentence" not in facts.record:
        return None
    from transformer_jax.interop.sentence_dense import SentenceFields, read_head, trained_head

    try:
        sentence = cast(SentenceFields, facts.sentence)
        if facts.recipe == "similarity":
            return trained_head(sentence, params)
        return read_head(facts.reader.path, sentence, width)
    except UserError as error:
        return error
