"""``transformer-jax attention``: attention maps of a model."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from transformer_jax.cli.output import check_file, wrote
from transformer_jax.cli.support.run_command import CheckpointCommand
from transformer_jax.core.config_fields import Count, OutputPath
from transformer_jax.core.errors import ConfigError
from transformer_jax.decoding.generation_config import TRANSLATION
from transformer_jax.recipes.generation_flags import LanguageFlags, generation_flags

if TYPE_CHECKING:
    from transformer_jax.inference.attention import TextAttention

__all__ = ["AttentionCommand"]


AttentionFlags: Any = generation_flags(TRANSLATION, "num_beams")

# Families whose decoders write in a single language, for messages.
_OTHERS = {"speech": "a speech recognizer", "captioner": "a captioner"}


@dataclasses.dataclass(frozen=True)
class AttentionCommand(AttentionFlags, LanguageFlags, CheckpointCommand):
    """Write an HTML page with the attention of every layer and head, and a PNG of one layer."""

    run: tyro.conf.Positional[Path]
    """Run directory or Hugging Face folder."""
    sentence: tyro.conf.Positional[str]
    """Sentence to translate, text of a language model or an encoder, recording to transcribe, or
    picture to describe."""
    target: str | None = None
    """Translation to score, instead of the result of beam search."""
    output: OutputPath = Path("attention.html")
    """HTML file; the plot has the same name with the suffix .png."""
    picture: Literal["cross", "encoder", "decoder"] | None = None
    """Kind of attention in the plot; None is cross-attention, or the model's only kind."""
    layer: Count | None = None
    """Layer in the plot, from 1; None is the last."""
    all_layers: bool = False
    """Plot all layers."""
    json: bool = False
    """Also write the weights as JSON, with the suffix .json."""

    def __call__(self) -> int:
        """Writes the files, and prints the translation if there is one."""
        self.check()
        from transformer_jax.visual.attention import as_json

        attention = self.compute()
        maps, translation = attention.maps, attention.text
        kind = self.picture or ("cross" if len(maps) > 1 else maps[0].kind)
        shown = next((each for each in maps if each.kind == kind), None)
        if shown is None:
            there = ", ".join(each.kind for each in maps)
            raise ConfigError(f"--picture {kind}: {self.run} has attention of {there} alone")
        L = shown.weights.shape[0]
        if self.layer is not None and self.layer > L:
            raise ConfigError(f"--layer {self.layer}: the layers are 1 to {L}")
        layer = None if self.all_layers else L - 1 if self.layer is None else self.layer - 1
        suffixes = [".html", ".png"]
        try:
            attention.html(self.output)
            attention.png(self.output.with_suffix(".png"), kind=kind, layer=layer)
            if self.json:
                suffixes.append(".json")
                self.output.with_suffix(".json").write_text(as_json(maps) + "\n", encoding="utf-8")
        except ConfigError as error:
            raise ConfigError(f"--output {error}") from None
        except OSError as error:
            raise ConfigError(
                f"--output {self.output}: cannot be written: {error.strerror}"
            ) from None
        if translation:
            print(translation)
        wrote(*map(self.output.with_suffix, suffixes))
        return 0

    def compute(self) -> "TextAttention":
        """Returns the attention weights of the model on the sentence.

        Raises:
            ConfigError: A flag for translators is given for another model.
            DataError: The recording cannot be read, or a text is too long.
        """
        from transformer_jax.inference.facts import ENCODERS
        from transformer_jax.inference.pretrained import read_facts
        from transformer_jax.recipes.registry import get_recipe

        facts = read_facts(self.run, self.checkpoint, self.opening())
        found = facts.kind
        if found == "decoder":
            self.check_alone("decoder", "a language model")
        elif found in ENCODERS:
            self.check_alone("encoder", "an encoder")
        elif found == "image":
            facts.require("encoder-decoder")
        elif found not in ("encoder-decoder", *_OTHERS):
            raise ConfigError(
                f"{self.run}: the run of {facts.title}, whose attention is not shown here"
            )
        predictor = get_recipe(facts.recipe).predictor(facts)
        if found == "decoder":
            attention = predictor.attention(self.sentence)
        elif found in ENCODERS:  # a tab separates the texts of a pair
            attention = predictor.attention(*self.sentence.split("\t", 1))
        else:
            languages = {"from_": self.from_language, "to": self.to}
            if found in _OTHERS:
                self.check_languages(_OTHERS[found])
                languages = {}
            attention = predictor.attention(self.sentence, self.target, **languages, **self.given())
        return attention  # type: ignore[no-any-return]

    def check_alone(self, kind: str, name: str) -> None:
        """Refuses flags for translators.

        Raises:
            ConfigError: It names the flag.
        """
        theirs = {"target": self.target is not None, "num_beams": self.num_beams is not None}
        theirs["picture"] = self.picture not in (None, kind)
        self.check_languages(name)
        for setting, given in theirs.items():
            if given:
                flag = setting.replace("_", "-")
                raise ConfigError(f"--{flag} is for translators: {self.run} is {name}")

    def check_languages(self, name: str) -> None:
        """Refuses language flags for a model that does not translate.

        Raises:
            ConfigError: It names the flag.
        """
        for flag, given in (("from", self.from_language), ("to", self.to)):
            if given is not None:
                raise ConfigError(f"--{flag} is for translators: {self.run} is {name}")

    def check(self) -> None:
        """Refuses invalid flags before the model is loaded.

        Raises:
            ConfigError: It names the flag.
        """
        check_file("--output", self.output, (".html",))
        if self.layer is not None and self.all_layers:
            raise ConfigError("--layer and --all-layers exclude each other: give one of them")
        for name in ("sentence", "target"):
            if getattr(self, name) is not None and not getattr(self, name).strip():
                raise ConfigError(f"the {name} is empty: give a text")
