"""``transformer-jax attention``: what a model looks at while it translates a sentence."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from transformer_jax.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transformer_jax.decoding.translator import Translator
    from transformer_jax.visual.attention import Maps

__all__ = ["Attention", "attention_of"]


@dataclasses.dataclass(frozen=True)
class Attention:
    """Write the attention of every layer and head as an HTML page and a PNG."""

    run: tyro.conf.Positional[Path]
    """A run directory."""
    sentence: tyro.conf.Positional[str]
    """What is translated."""
    target: str | None = None
    """A given translation, instead of the model's own."""
    output: Path = Path("attention.html")
    """The page; the picture lies beside it with the suffix .png."""
    picture: Literal["cross", "encoder", "decoder"] = "cross"
    """Which attention the picture shows."""
    layer: int | None = None
    """Which layer it shows, from 1; None is the last."""
    all_layers: bool = False
    """Show all layers in the picture."""
    json: bool = False
    """Write the weights as JSON too, with the suffix .json."""
    beams: int = 4
    """Of the search for a translation."""
    checkpoint: str = "best"
    """best, last, a step, or average:N for the mean of the last N."""

    def __call__(self) -> int:
        """Writes the files and prints their names."""
        self.check()
        from transformer_jax.cli.loading import as_trained, load
        from transformer_jax.decoding.options import Search
        from transformer_jax.decoding.translator import Translator
        from transformer_jax.visual.attention import as_json, page, picture

        model, tokenizer = load(self.run, self.checkpoint)
        translator = Translator(model, tokenizer, search=Search(beams=self.beams))
        prepare = as_trained(self.run)
        target = None if self.target is None else prepare(self.target)
        maps, translation = attention_of(translator, prepare(self.sentence), target)
        shown = next(each for each in maps if each.kind == self.picture)
        L = shown.weights.shape[0]
        if self.layer is not None and self.layer > L:
            raise ConfigError(f"--layer {self.layer}: the layers are 1 to {L}")
        layer = None if self.all_layers else L - 1 if self.layer is None else self.layer - 1
        files = {".html": page(maps, title=self.sentence, subtitle=translation)}
        if self.json:
            files[".json"] = as_json(maps) + "\n"
        png = self.output.with_suffix(".png")
        try:
            self.output.parent.mkdir(parents=True, exist_ok=True)
            for suffix, text in files.items():
                self.output.with_suffix(suffix).write_text(text, encoding="utf-8")
            picture(shown, png, layer=layer, title=f"{self.sentence} → {translation}")
        except OSError as error:
            raise ConfigError(
                f"--output {self.output}: cannot be written: {error.strerror}"
            ) from None
        print(translation)
        for suffix in (".html", ".png", *([".json"] if self.json else [])):
            print(self.output.with_suffix(suffix))
        return 0

    def check(self) -> None:
        """Refuses what cannot be, before anything is loaded.

        Raises:
            ConfigError: It names the flag.
        """
        if self.output.suffix != ".html":
            raise ConfigError(f"--output {self.output}: the name of a page ends in .html")
        if self.layer is not None and self.layer < 1:
            raise ConfigError(f"--layer {self.layer}: layers are counted from 1")
        if self.layer is not None and self.all_layers:
            raise ConfigError("--layer and --all-layers exclude each other: give one of them")
        for name in ("sentence", "target"):
            if getattr(self, name) is not None and not getattr(self, name).strip():
                raise ConfigError(f"the {name} is empty: there is nothing to look at")


def attention_of(
    translator: "Translator", sentence: str, target: str | None = None
) -> "tuple[tuple[Maps, ...], str]":
    """The maps of a sentence and its translation, and the translation (row U13).

    The weights are those of the forward pass that scores the translation, in every layer and head.

    Args:
        translator: A model and its tokenizer.
        sentence: The source.
        target: The translation; None is what the translator finds.

    Raises:
        DataError: The target is longer than the model can read.
    """
    import jax
    import numpy as np
    from flax import nnx

    from transformer_jax.visual.attention import translation_maps

    tokenizer = translator.tokenizer
    [source], _ = translator.encode([sentence])
    if target is None:
        [found] = translator.translate([sentence])
        text, written = found.text, list(found.tokens)
    else:
        [ids] = tokenizer.encode_batch([target])
        text, written = target, [*ids, tokenizer.eos]
    if len(written) > translator.longest:
        raise DataError(
            f"--target has {len(written)} tokens: at most {translator.longest} are read; shorten it"
        )
    inputs = [tokenizer.bos, *written[:-1]]

    def run(params: Any, source: Any, inputs: Any, lengths: Any) -> Any:
        return nnx.merge(translator.graph, params).attention_maps(source, inputs, lengths)

    row = lambda ids: np.asarray([ids], np.int32)
    weights = jax.jit(run)(
        translator.params, row(source), row(inputs), np.asarray([len(source)], np.int32)
    )
    weights = {kind: np.asarray(array) for kind, array in weights.items()}
    pieces = lambda ids: [piece.replace(" ", "▁") for piece in tokenizer.pieces(ids)]
    start = pieces([tokenizer.bos])[0]
    return translation_maps(pieces(source), pieces(written), weights, start=start), text
