"""An opened model as a page that runs it in the browser."""

import dataclasses
import html
import json
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np
from flax import nnx

from transformer_jax.core.errors import ArgumentError, ConfigError
from transformer_jax.core.json_types import Json
from transformer_jax.core.output_files import draft_file
from transformer_jax.data.examples import default_template
from transformer_jax.data.languages import DEFAULT_DIRECTION
from transformer_jax.data.preparation import BLANKS
from transformer_jax.decoding.generation_config import TRANSLATION
from transformer_jax.decoding.options import special_tokens
from transformer_jax.decoding.text_tokenizer import frame_of
from transformer_jax.inference.encoders import read_length, template_of
from transformer_jax.inference.generation_settings import search_settings
from transformer_jax.models.costs.accounting import count_parameters
from transformer_jax.models.prepare import with_separate_blocks
from transformer_jax.visual.model_page import (
    ExploredModel,
    Kind,
    WeightType,
    check_size,
    explore_html,
    packed_tokenizer,
    page_config,
)

if TYPE_CHECKING:
    from transformer_jax.inference.facts import Facts
    from transformer_jax.inference.pretrained import Pretrained

__all__ = ["Explorable", "ExplorePage", "explored", "kind_of"]

_TASKS: dict[str, Kind] = {
    **dict.fromkeys(("classify", "multi_label", "regress"), "classifier"),
    "tag": "tagger",
}


@dataclasses.dataclass(frozen=True)
class ExplorePage:
    """A page that runs a model; a notebook shows it.

    Attributes:
        text: The HTML.
    """

    text: str = dataclasses.field(repr=False)  # megabytes

    def html(self, path: str | Path | None = None) -> str:
        """Returns the page.

        Args:
            path: File to write it to, if given.

        Raises:
            ConfigError: The file cannot be written.
        """
        if path is not None:
            try:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                with draft_file(Path(path)) as draft:
                    draft.write_text(self.text, encoding="utf-8")
            except OSError as error:
                raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
        return self.text

    def _repr_html_(self) -> str:
        inside = html.escape(self.text, quote=True)
        return f'<iframe srcdoc="{inside}" style="width:100%;height:900px;border:0"></iframe>'


class Explorable:
    """Mixin: a model that a page can run."""

    opened: "Pretrained"

    def explore(self, text: str = "", *, weights: WeightType = "float16") -> ExplorePage:
        """Returns a page that runs this model in a browser, without Python and without a network.

        Args:
            text: The first text on the page.
            weights: Type of the matrices in the page: ``float16``, or ``int8``, which halves the
                file and changes the results.

        Raises:
            ArgumentError: The text is no string.
            ConfigError: The page cannot compute the model or its tokenizer, or the model has more
                than 60 million parameters; or there is no such type.
        """
        if not isinstance(text, str):
            raise ArgumentError(f"explore: text is {type(text).__name__}: give one string")
        return ExplorePage(explore_html(explored(self.opened, text), weights))


def kind_of(facts: "Facts") -> Kind:
    """Returns what a page computes with a model, whose parameters need not be read.

    Raises:
        ConfigError: Nothing; the message names what it is instead, or that it is too large.
    """
    kind: Kind | None = None
    if facts.kind in ("encoder-decoder", "decoder"):
        kind = facts.kind  # type: ignore[assignment]
    elif facts.kind == "encoder" and facts.record.get("masking", {}) is not None:
        kind = "masked"
    elif facts.kind == "encoder-task" and not facts.head.pairs:
        kind = _TASKS.get(facts.head.kind)
    if kind is None:
        raise ConfigError(
            f"{facts.source}: {facts.title}, which no page runs: explore is for translators, "
            f"language models, encoders with a masked-LM head, and classifiers of single texts and "
            f"of their tokens"
        )
    page_config(facts.transformer, kind)
    check_size(str(facts.source), count_parameters(facts.transformer))
    return kind


def explored(opened: "Pretrained", example: str = "") -> ExploredModel:
    """Returns what a page needs of an opened model.

    Args:
        opened: The model.
        example: The first text on the page.

    Raises:
        ConfigError: The page cannot compute the model; see :func:`kind_of`.
    """
    facts, tokenizer = opened.facts, opened.tokenizer
    kind = kind_of(facts)
    if not opened.on_jax:
        raise ConfigError(f"{facts.source}: explore needs a model that runs on JAX")
    if tokenizer.languages is not None or tokenizer.targets is not tokenizer:
        several = "several languages" if tokenizer.languages else "a tokenizer for each side"
        raise ConfigError(f"{facts.source}: a model with {several}, which no page runs")
    state = nnx.to_pure_dict(nnx.state(with_separate_blocks(opened.module)))
    leaves = jax.tree_util.tree_leaves_with_path(state)
    name = lambda path: "/".join(str(part.key) for part in path)
    return ExploredModel(
        kind=kind,
        title=Path(facts.source).name or str(facts.source),
        config=facts.transformer,
        params={name(path): np.asarray(leaf, np.float32) for path, leaf in leaves},
        tokenizer=packed_tokenizer(tokenizer.text),
        ids=_ids(opened, kind),
        text=_text(opened, kind),
        search=_search(opened, kind),
        labels=facts.head.labels if kind in ("classifier", "tagger") else (),
        task=facts.head.kind if kind in ("classifier", "tagger") else None,
        example=example,
    )


def _ids(opened: "Pretrained", kind: Kind) -> dict[str, Json]:
    """Returns special ids, and those before and after texts."""
    facts, tokenizer = opened.facts, opened.tokenizer
    vocab = facts.transformer.decoder_vocab_size or facts.transformer.vocab_size
    before: tuple[int, ...]
    after: tuple[int, ...]
    begin: list[int] = []
    alone, special = None, None
    if kind == "encoder-decoder":
        translator = opened.translator()
        frame = frame_of(tokenizer, facts.direction(tokenizer, DEFAULT_DIRECTION))
        before, after, begin = frame.before, frame.after, [tokenizer.bos, *frame.begins]
        special = translator.special_tokens()
    elif kind == "decoder":
        start = facts.text_start(tokenizer)
        before, after, alone = start.before, (), start.alone
        special = special_tokens(tokenizer, vocab, facts.ends)
    else:
        before, _, after = template_of(facts, tokenizer) or default_template(tokenizer)
    ends = {*special.ends} if special is not None and facts.ends else set[int]()
    added = json.loads(tokenizer.text).get("added_tokens") or ()
    file = {one["id"] for one in added}
    return {
        "before": list(before),
        "after": list(after),
        "begin": begin,
        "alone": alone,
        "ends": [] if special is None else list(ends),
        "never": [] if special is None else sorted({*special.suppress_tokens} - ends),
        "unk": tokenizer.unk,
        "mask": tokenizer.mask if kind == "masked" else None,
        "special": sorted(tokenizer.special_ids | file),
        "never_text": sorted(tokenizer.never_text),
    }


def _text(opened: "Pretrained", kind: Kind) -> dict[str, Json]:
    """Returns how texts are prepared, and the longest."""
    facts, tokenizer = opened.facts, opened.tokenizer
    preparation = facts.preparation
    begins = ~tokenizer.is_continuation
    begins[list(tokenizer.special_ids)] = False
    return {
        "how": "text" if kind == "decoder" else "source",
        "blanks": BLANKS,
        "normalization": preparation.normalization,
        "lowercase": preparation.lowercase or "lowercase" in facts.sentence,
        "by_line": preparation.by_line,
        "inside": preparation.inside,
        "source_prefix": preparation.source_prefix,
        "masks": kind == "masked",
        "blank_is_part": bool(tokenizer.is_continuation.any() and begins.sum() > 1),
        "longest": read_length(facts) if kind in ("masked", "classifier", "tagger") else None,
    }


def _search(opened: "Pretrained", kind: Kind) -> dict[str, Json]:
    """Returns the settings of the search that the predictor uses."""
    if kind != "encoder-decoder":
        return {"max_new_tokens": 40}
    config = TRANSLATION.changed(**search_settings(opened.facts))
    return {
        "num_beams": config.num_beams,
        "normalization": config.normalization,
        "length_penalty": config.length_penalty,
        "max_len_a": config.limit.max_len_a,
        "max_len_b": config.limit.max_len_b,
    }
