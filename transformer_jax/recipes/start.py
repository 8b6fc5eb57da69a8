"""Starts of runs: the model, tokenizer and parameters of another run or a published model.

A run that starts from another model goes through these steps:

1. Its settings, or the ``task`` among them, derive from :class:`.StartConfig`; its recipe names the
   families that it can start from.
2. :func:`transformer_jax.recipes.driver.create_run` loads the start, and the recipe's ``prepare``
   adopts its model, ``run = start.adapt(run, given)``.
3. ``validated`` (:mod:`transformer_jax.recipes.checks`) refuses layers that the model does not
   have.
4. The driver adds to the task, unless the recipe did, the partition that selects the trained
   parameters, and the function that computes the parameters at step 0
   (:mod:`transformer_jax.recipes.freezing`).

The start is not needed afterwards: checkpoints store trained parameters, the run stores frozen
parameters once, and has its own ``config.json`` and ``tokenizer.json``.
"""

import dataclasses
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Shaped

from transformer_jax.core.errors import CheckpointError, ConfigError, command, plural
from transformer_jax.core.task_progress import log
from transformer_jax.core.trees import flatten_dict
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.inference.facts import Facts
from transformer_jax.models.build import Kind, make_model
from transformer_jax.models.image_positions import image_positions, resized_positions
from transformer_jax.models.layers.parameters import Shapes
from transformer_jax.models.recurrent_config import ModelConfig, RecurrentConfig
from transformer_jax.recipes.explicit_settings import Given, with_given, with_normalization
from transformer_jax.recipes.settings import Run, Trained, start_config
from transformer_jax.runs.config_guard import leaves

__all__ = ["Start", "parameter_shapes", "with_new_rows"]

# Parameters with a row for each token; the last ones are for recurrent translators.
_BY_TOKEN = {
    "embedding/table", "decoder_embedding/table", "head/table", "head/bias",
    "encoder/embedding/table", "decoder/embedding/table", "decoder/table/table",
    "text/embedding/table",
}  # fmt: skip

# The start of a run of each family, for messages.
_WANTED = {
    "image": "an image model",
    "two-tower": f"a model of images and texts: train one, such as with "
    f"{command('train', 'clip-scenes')}",
    "captioner": f"a captioner: train one, such as with {command('train', 'scenes')}",
    "encoder": f"an encoder: pre-train one, such as with {command('pretrain', 'python-docs')}",
    "decoder": f"a language model: train one, such as with {command('train', 'python-docs')}",
    "encoder-decoder": "a translator of attention: train one, such as with "
    f"{command('train', 'phrasebook')}",
    "recurrent": "a recurrent translator: train one, such as with "
    f"{command('train', 'luong', '--data.corpus', 'phrasebook')}",
}


@dataclasses.dataclass(frozen=True)
class Start:
    """A trained model whose parameters initialize another run, matched by name.

    Attributes:
        facts: Its facts.
        model: Its configuration.
        family: Its family, one of :data:`.FAMILY_NAMES`, or ``recurrent``.
    """

    facts: Facts
    model: Any  # a TransformerConfig, or a RecurrentConfig
    family: str

    @classmethod
    def of(cls, facts: Facts, families: Sequence[str], path: str) -> "Start":
        """Returns a model as a start.

        Args:
            facts: Facts of the model.
            families: Those that the run can start from.
            path: The folder, for messages.

        Raises:
            ConfigError: The model is of another family; the message names the allowed ones.
        """
        model, family = facts.config, facts.kind
        if isinstance(model, RecurrentConfig) and family == "encoder-decoder":
            family = "recurrent"
        if family not in families or model is None:
            wanted = " or of ".join(said for kind, said in _WANTED.items() if kind in families)
            raise ConfigError(f"{path}: the run of {_name(facts, family)}, not of {wanted}")
        return cls(facts, model, family)

    @property
    def name(self) -> str:
        """Returns the name for messages."""
        return _name(self.facts, self.family)

    @property
    def lowercase(self) -> bool:
        """Returns whether it was trained on lower-cased text."""
        return self.facts.preparation.lowercase

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the start.

        Raises:
            DataError: There is no usable tokenizer.
        """
        return self.facts.tokenizer

    def adapt(self, run: Run, given: Given[Run], base: ModelConfig | None = None) -> Run:
        """Returns the run with the model and the text of the start, changed by given settings.

        Args:
            run: The settings of a run.
            given: What the command gave.
            base: The model that given settings change; None is the model of the start.

        Raises:
            ConfigError: A setting changes sizes, or the run has its own tokenizer or lower-cases
                text for a cased model.
        """
        own, named = start_config(run), given.named
        flag = f"{own.prefix}init_from"
        if run.tokenizer is not None:
            self._check_text(run, named, own.init_from, flag)
        base = self.model if base is None else base
        model: Any
        # The configuration of a run with the same start includes the settings given then.
        if own.init_from == start_config(named).init_from:
            vocabulary = base.vocab_size, base.decoder_vocab_size  # which may grow again
            model = dataclasses.replace(
                run.model, vocab_size=vocabulary[0], decoder_vocab_size=vocabulary[1]
            )
        else:
            model = with_given(base, run.model, named.model, given)
        self._check_sizes(base, model, flag)
        # Compute settings depend on this machine, not on the other run.
        run = dataclasses.replace(run, model=dataclasses.replace(model, compute=run.model.compute))
        if run.tokenizer is None:
            return run
        read = dataclasses.replace(run.data.read, lowercase=self.lowercase)
        run = dataclasses.replace(
            run,
            # Use the tokenizer of the start; a configuration may name the file of another.
            tokenizer=dataclasses.replace(run.tokenizer, path=None),
            data=dataclasses.replace(run.data, read=read),
        )
        return with_normalization(run, self.tokenizer.normalization, given)

    def _check_text(self, run: Trained, named: Trained, path: str | None, flag: str) -> None:
        """Refuses settings of a tokenizer or of text that differ from the start.

        Raises:
            ConfigError: The message names the setting.
        """
        if run.tokenizer.learnt != named.tokenizer.learnt:
            raise ConfigError(
                f"tokenizer: a run with {flag} has the tokenizer of its start: leave this out, or "
                f"add tokens with --tokenizer.add-tokens or --tokenizer.extend-by"
            )
        if run.data.read.lowercase and not self.lowercase:
            raise ConfigError(
                f"data.read.lowercase: {path} was trained on cased text: leave it out"
            )
        if self.lowercase and not run.data.read.lowercase:
            log(f"{path} reads lower-cased text, and so does this run")

    def _check_sizes(self, base: ModelConfig, model: ModelConfig, flag: str) -> None:
        """Refuses settings that change the shape of a parameter.

        Raises:
            ConfigError: The message names the parameter and the changed settings.
        """
        if model == base:
            return
        old, new = parameter_shapes(base), parameter_shapes(model)
        resized = image_positions(model)  # positions are interpolated to any size
        for name in old.keys() & new.keys():
            if old[name] != new[name] and name not in resized:
                before, after = (leaves(dataclasses.asdict(config)) for config in (base, model))
                given = [f"model.{key}" for key in after if after[key] != before.get(key)]
                raise ConfigError(
                    f"{', '.join(given)}: {name} is {list(old[name])} in {self.facts.source} and "
                    f"would be {list(new[name])}: a run with {flag} keeps the sizes of its start: "
                    f"leave these settings out"
                )

    def given(
        self,
        params: Any,
        anew: Callable[[str], bool] = lambda name: False,
        tokens: int = 0,
        like: Mapping[int, Sequence[int]] | None = None,
        model: Any = None,
        part: str | None = None,
    ) -> Any:
        """Returns ``params`` with parameters of the start by name, and a summary line.

        Scanned and separate layers match each other. Rows of new tokens come from
        :func:`with_new_rows`; positions are interpolated for images of another size.

        Args:
            params: Nested dictionaries of arrays.
            anew: Whether a parameter, by path, stays newly initialized. Paths have layer numbers.
            tokens: Size of the run's tokenizer; tokens beyond the start's tokenizer are new. 0 is a
                run without texts.
            like: Known tokens whose mean row initializes a new token, by new token.
            model: Configuration of the run's model, if it reads images.
            part: The part of the start that ``params`` belong to, such as ``encoder``; None is all.

        Raises:
            CheckpointError: No name matches, or a parameter of the same name has another shape.
        """
        path = self.facts.source
        stored = self.facts.reader.load_params("best").params
        known = _apart(flatten_dict(stored if part is None else stored[part]))
        taken, fresh = [], []
        old, like = self.tokenizer.vocab_size if tokens else 0, like or {}
        for name in known.keys() & image_positions(model):
            known[name] = resized_positions(np.asarray(known[name]), self.model.image, model.image)
        if tokens > old:
            for name in known.keys() & _BY_TOKEN:
                rows = with_new_rows(np.asarray(known[name]), old, tokens, name)
                for new, parts in like.items():
                    rows[new] = rows[[*parts]].mean(0, dtype=np.float32)
                known[name] = rows

        def value(name: str, here: Any) -> Any:
            if name not in known or anew(name):
                fresh.append(name)
                return here
            if known[name].shape != here.shape:
                raise CheckpointError(
                    f"{path}: parameter {name} is {list(known[name].shape)} there and "
                    f"{list(here.shape)} in this run: leave out model settings that change sizes"
                )
            taken.append(name)
            return np.asarray(known[name], here.dtype)

        def whole(name: str, here: Any) -> Any:
            layers = _apart({name: here})
            if name in layers:
                return value(name, here)
            return np.stack([value(*layer) for layer in layers.items()])

        leaves, tree = jax.tree_util.tree_flatten_with_path(params)
        words = ["/".join(str(getattr(k, "key", k)) for k in where) for where, _ in leaves]
        values = [whole(w, leaf) for w, (_, leaf) in zip(words, leaves, strict=True)]
        if not taken:
            raise CheckpointError(f"{path}: has no parameter of this run's model")
        unused, mean = known.keys() - {*taken, *fresh}, tokens - old - len(like)
        log(
            f"loaded {len(taken)} of {plural(len(taken) + len(fresh), 'parameter')} from {path}; "
            f"newly initialized: {_parts(fresh) or 'none'}"
            + (f"; not used: {_parts(sorted(unused))}" if unused else "")
            + (f"; {plural(mean, 'new token')} initialized near the mean" if mean > 0 else "")
            + (f"; {plural(len(like), 'new token')} initialized from others" if like else "")
        )
        return jax.tree.unflatten(tree, values)


def _name(facts: Facts, family: str) -> str:
    return "a recurrent translator" if family == "recurrent" else facts.title


def with_new_rows(
    table: Shaped[np.ndarray, "V ..."], old: int, new: int, name: str = ""
) -> Shaped[np.ndarray, "W ..."]:
    """Returns a table of tokens, or a bias, with rows for new tokens; ``W = max(V, new)``.

    A new row is the mean of the old rows plus noise: ``μ + 0.01 σ ε`` with the mean ``μ`` and the
    standard deviation ``σ`` of each component and ``ε ~ N(0, 1)``. At the mean, a new token has
    at most the average probability, so the probabilities of old tokens hardly change; rows
    drawn as for a new model may have far larger logits (Hewitt 2021, "Initializing New Word
    Embeddings for Pretrained Language Models"). The noise distinguishes new tokens, and is
    determined by ``name``, ``old`` and ``new``.

    Args:
        table: Rows of tokens, possibly more than tokens.
        old: Number of old tokens.
        new: Number of tokens, including new ones.
        name: Name of the parameter.

    Example:
        >>> grown = with_new_rows(np.array([[1.0, 0.0], [3.0, 0.0]]), 2, 3)
        >>> grown.shape, abs(grown[2] - [2.0, 0.0]).max() < 0.05
        ((3, 2), np.True_)
    """
    there = table[:old].astype(np.float64)
    rng = np.random.default_rng([zlib.crc32(name.encode()), old, new])
    noise = rng.standard_normal((new - old, *table.shape[1:]))
    rows = there.mean(0) + 0.01 * there.std(0) * noise
    return np.concatenate([table[:old], rows.astype(table.dtype), table[new:]])


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a model's parameters by path, from a single layer of each stack."""
    if isinstance(config, RecurrentConfig):
        compute = dataclasses.replace(config.compute, dtype="float32")
        return _shapes("encoder-decoder", dataclasses.replace(config, compute=compute))
    kind: Kind = "decoder" if config.decoder_layers else "encoder"
    kind = "encoder-decoder" if config.encoder_layers and config.decoder_layers else kind
    kind = "image" if config.image.image_size else kind
    few = dataclasses.replace(
        config,
        encoder_layers=min(1, config.encoder_layers),
        decoder_layers=min(1, config.decoder_layers),
        scores=dataclasses.replace(config.scores, sliding_window_layers=None),
        compute=dataclasses.replace(config.compute, dtype="float32", scan_layers=False),
    )
    return _shapes(kind, few)


def _shapes(kind: Kind, config: ModelConfig) -> dict[str, tuple[int, ...]]:
    model = nnx.eval_shape(lambda: make_model(kind, config, mlm_head=False, rngs=Shapes(0)))
    state = nnx.to_pure_dict(nnx.state(model))
    return {name: leaf.shape for name, leaf in flatten_dict(state).items()}


def _apart(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns parameters by path; scanned layers are split into single layers.

    Example:
        >>> found = _apart({"decoder/blocks/norm/gain": np.ones((2, 3)), "head/bias": np.ones(4)})
        >>> {name: leaf.shape for name, leaf in found.items()}
        {'decoder/blocks/0/norm/gain': (3,), 'decoder/blocks/1/norm/gain': (3,), 'head/bias': (4,)}
    """
    found: dict[str, Any] = {}
    for name, leaf in params.items():
        side, inside, rest = name.partition("/blocks/")
        if inside and not rest.partition("/")[0].isdecimal():
            found |= {f"{side}/blocks/{i}/{rest}": row for i, row in enumerate(np.asarray(leaf))}
        else:
            found[name] = leaf
    return found


def _parts(names: Sequence[str]) -> str:
    """Returns the short names of the model parts of some parameters."""
    return ", ".join(dict.fromkeys(map(_part, names)))


def _part(name: str) -> str:
    """Returns the short name of the model part of a parameter."""
    parts = name.split("/")
    return "/".join(parts[:3]) if parts[1:2] == ["blocks"] else parts[0]
