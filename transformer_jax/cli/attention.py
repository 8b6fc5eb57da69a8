"""``transformer-jax attention``: attention maps of a model."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from transformer_jax.cli.output import wrote
from transformer_jax.cli.run_command import RunCommand
from transformer_jax.errors import ConfigError, DataError, plural

if TYPE_CHECKING:
    from transformer_jax.decoding.text_tokenizer import TextTokenizer
    from transformer_jax.decoding.translator import Translator
    from transformer_jax.visual.attention import AttentionMaps

__all__ = ["Attention", "attention_of", "self_attention_of"]


@dataclasses.dataclass(frozen=True)
class Attention(RunCommand):
    """Write an HTML page with the attention of every layer and head, and a PNG of one layer."""

    run: tyro.conf.Positional[Path]
    """Run directory or Hugging Face folder."""
    sentence: tyro.conf.Positional[str]
    """Sentence to translate, text of a language model or an encoder, or recording to transcribe."""
    target: str | None = None
    """Translation to score, instead of the result of beam search."""
    output: Path = Path("attention.html")
    """HTML file; the plot has the same name with the suffix .png."""
    picture: Literal["cross", "encoder", "decoder"] | None = None
    """Attention of the plot; None is cross-attention, or the only kind of the model."""
    layer: int | None = None
    """Layer of the plot, from 1; None is the last."""
    all_layers: bool = False
    """Plot all layers."""
    json: bool = False
    """Write the weights as JSON too, with the suffix .json."""
    num_beams: int = 4
    """Beam width of the translation."""
    checkpoint: str = "best"
    """Checkpoint: best, last, a step number, or average:N (mean of the last N)."""

    def __call__(self) -> int:
        """Writes the files, and prints the translation if there is one."""
        self.check()
        from transformer_jax.predictors.runs import ENCODERS, family, open_directory
        from transformer_jax.visual.attention import as_json, attention_html, plot_attention

        found = family(open_directory(self.run))
        if found == "decoder":
            maps, translation = self.of_text()
        elif found in ENCODERS:
            maps, translation = self.of_encoder()
        elif found == "speech":
            maps, translation = self.of_recording()
        else:
            maps, translation = self.of_translation()
        kind = self.picture or ("cross" if len(maps) > 1 else maps[0].kind)
        shown = next((each for each in maps if each.kind == kind), None)
        if shown is None:
            there = ", ".join(each.kind for each in maps)
            raise ConfigError(f"--picture {kind}: {self.run} has attention of {there} alone")
        L = shown.weights.shape[0]
        if self.layer is not None and self.layer > L:
            raise ConfigError(f"--layer {self.layer}: the layers are 1 to {L}")
        layer = None if self.all_layers else L - 1 if self.layer is None else self.layer - 1
        files = {".html": attention_html(maps, title=self.sentence, subtitle=translation)}
        if self.json:
            files[".json"] = as_json(maps) + "\n"
        png = self.output.with_suffix(".png")
        try:
            self.output.parent.mkdir(parents=True, exist_ok=True)
            for suffix, text in files.items():
                self.output.with_suffix(suffix).write_text(text, encoding="utf-8")
            title = f"{self.sentence} → {translation}" if translation else self.sentence
            plot_attention(shown, png, layer=layer, title=title)
        except OSError as error:
            raise ConfigError(
                f"--output {self.output}: cannot be written: {error.strerror}"
            ) from None
        if translation:
            print(translation)
        suffixes = (".html", ".png", *([".json"] if self.json else []))
        wrote(*map(self.output.with_suffix, suffixes))
        return 0

    def of_translation(self) -> "tuple[tuple[AttentionMaps, ...], str]":
        """The attention maps of a translator, and its translation."""
        from transformer_jax.decoding.options import BeamSearchConfig
        from transformer_jax.decoding.translator import Translator
        from transformer_jax.predictors.length_limits import length_limit
        from transformer_jax.predictors.runs import as_trained, load, source_as_trained

        model, tokenizer = load(self.run, self.checkpoint)
        limit = length_limit(self.run)
        search = BeamSearchConfig(num_beams=self.num_beams, **limit._asdict())
        translator = Translator(model, tokenizer, search=search)
        target = None if self.target is None else as_trained(self.run)(self.target)
        return attention_of(translator, source_as_trained(self.run)(self.sentence), target)

    def of_recording(self) -> "tuple[tuple[AttentionMaps, ...], str]":
        """The attention maps of a speech recognizer, and its transcript.

        Raises:
            DataError: The recording cannot be read, or is too long.
        """
        from transformer_jax.decoding.options import BeamSearchConfig
        from transformer_jax.predictors.runs import as_trained
        from transformer_jax.predictors.speech import load_transcriber
        from transformer_jax.speech.features import read_features
        from transformer_jax.speech.transcriber import Recording

        search = BeamSearchConfig(num_beams=self.num_beams)
        transcriber, audio = load_transcriber(self.run, self.checkpoint, search=search)
        recording = Recording(self.sentence, read_features(self.sentence, audio)[0])
        target = None if self.target is None else as_trained(self.run)(self.target)
        return attention_of(transcriber, recording, target)

    def of_text(self) -> "tuple[tuple[AttentionMaps, ...], str]":
        """The attention maps of a decoder; the translation is empty.

        Raises:
            ConfigError: A flag that is for translators.
        """
        from transformer_jax.predictors.runs import as_trained, first_token, load, open_directory

        self.check_alone("decoder", "a language model")
        model, tokenizer = load(self.run, self.checkpoint, kind="decoder")
        first = first_token(open_directory(self.run), tokenizer)
        text = as_trained(self.run, trim=False)(self.sentence)
        return (self_attention_of(model, tokenizer, text, first=first),), ""

    def of_encoder(self) -> "tuple[tuple[AttentionMaps, ...], str]":
        """The attention maps of an encoder; a tab separates the texts of a pair.

        Raises:
            ConfigError: A flag that is for translators.
            DataError: The sentence exceeds the model's context.
        """
        from transformer_jax.predictors.encoders import load_vectors

        self.check_alone("encoder", "an encoder")
        vectors, prepare = load_vectors(self.run, self.checkpoint)
        names, weights = vectors.attention(*map(prepare, self.sentence.split("\t", 1)))
        from transformer_jax.visual.attention import translation_maps

        names = [name.replace(" ", "▁").replace("\n", "⏎") for name in names]
        return translation_maps(names, [], {"encoder": weights}), ""

    def check_alone(self, kind: str, name: str) -> None:
        """Refuses flags that are for translators.

        Raises:
            ConfigError: It names the flag.
        """
        theirs = {
            "target": self.target is not None,
            "num_beams": self.num_beams != Attention.num_beams,
        }
        theirs["picture"] = self.picture not in (None, kind)
        for name, given in theirs.items():
            if given:
                flag = name.replace("_", "-")
                raise ConfigError(f"--{flag} is for translators: {self.run} is {name}")

    def check(self) -> None:
        """Refuse invalid flags before the model is loaded.

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
                raise ConfigError(f"the {name} is empty: give a text")


def attention_of(
    translator: "Translator", sentence: str, target: str | None = None
) -> "tuple[tuple[AttentionMaps, ...], str]":
    """The maps of a sentence and its translation, and the translation (row U13).

    The weights are those of the forward pass that scores the translation, in every layer and head.

    Args:
        translator: A model and its tokenizer.
        sentence: The source; of a transcriber a recording.
        target: The translation; None is the result of beam search.

    Raises:
        DataError: The target exceeds the model's context.
    """
    import jax
    import numpy as np
    from flax import nnx

    from transformer_jax.visual.attention import translation_maps

    tokenizer = translator.tokenizer
    [source], _ = translator.encode([sentence])
    if target is None:
        [found] = translator.translate([sentence])
        text, written = found.text, [*translator.begins[1:], *found.tokens]
    else:
        text, [written] = target, translator.encode_targets([target])
    if len(written) > translator.longest:
        raise DataError(
            f"--target has {plural(len(written), 'token')}: at most {translator.longest} are "
            f"read; shorten it"
        )
    inputs = [tokenizer.bos, *written[:-1]]

    def run(params: Any, source: Any, inputs: Any, lengths: Any) -> Any:
        return nnx.merge(translator.graph, params).attention_maps(source, inputs, lengths)

    read, lengths = translator.fill_sources([source], 1, len(source))
    weights = jax.jit(run)(translator.params, read, np.asarray([inputs], np.int32), lengths)
    weights = {kind: np.asarray(array) for kind, array in weights.items()}
    pieces = lambda ids: _pieces(tokenizer, ids)
    start = pieces([tokenizer.bos])[0]
    # Positions of a recording are named by the first of their frames, counted from 0.
    frames = range(0, len(source) * translator.stacked_frames, translator.stacked_frames or 1)
    columns = list(map(str, frames)) if translator.stacked_frames else pieces(source)
    return translation_maps(columns, pieces(written), weights, start=start), text


def self_attention_of(
    model: tuple[Any, Any], tokenizer: "TextTokenizer", text: str, *, first: int
) -> "AttentionMaps":
    """The attention maps of a text in a decoder (row U13).

    Args:
        model: A decoder's graph and parameters.
        tokenizer: Tokenizer used in training.
        text: The text.
        first: The start token.

    Raises:
        DataError: The text exceeds the model's context.
    """
    import jax
    import numpy as np
    from flax import nnx

    from transformer_jax.visual.attention import translation_maps

    graph, params = model
    [ids] = tokenizer.encode_batch([text])
    longest = nnx.merge(graph, params).config.positions.max_length
    if len(ids) > longest:
        raise DataError(
            f"the text has {plural(len(ids), 'token')}: at most {longest} are shown; shorten it"
        )
    run = lambda params, tokens: nnx.merge(graph, params).attention_maps(tokens)
    weights = jax.jit(run)(params, np.asarray([[first, *ids[:-1]]], np.int32))
    [start] = _pieces(tokenizer, [first])
    written = _pieces(tokenizer, ids)
    [found] = translation_maps([], written, {"decoder": np.asarray(weights)}, start=start)
    return found


def _pieces(tokenizer: "TextTokenizer", ids: Iterable[int]) -> list[str]:
    return [
        piece.replace(" ", "▁").replace("\n", "⏎") for piece in tokenizer.convert_ids_to_tokens(ids)
    ]
