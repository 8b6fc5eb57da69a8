"""Writes translators and language models as folders for CTranslate2.

https://opennmt.net/CTranslate2. The export depends only on the configuration, so any architecture
that its layers support can be exported, regardless of its original family.
"""

import contextlib
import os
import types
from pathlib import Path
from typing import TYPE_CHECKING

from jaxtyping import PyTree

from transformer_jax.core.errors import CheckpointError, ConfigError, DataError, install
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.decoding.windowed_generation import TextStart
from transformer_jax.interop.ctranslate2_layers import LayerSpecs
from transformer_jax.interop.family import Model

if TYPE_CHECKING:
    import ctranslate2.specs

__all__ = [
    "check_ctranslate2",
    "import_ctranslate2",
    "never_written",
    "refusal",
    "vocabulary",
    "write_ctranslate2",
]

_MOST_BYTES = 2**32 - 1  # of one tensor, whose size is stored in 32 bits
_WAITING = "OMP_WAIT_POLICY"
_VOCABULARIES = ("vocabulary", "shared_vocabulary", "source_vocabulary", "target_vocabulary")


def check_ctranslate2(model: Model) -> None:
    """Refuses models that :func:`write_ctranslate2` would refuse, before parameters are loaded.

    Raises:
        ConfigError: The package is missing, or does not support the model; the message has the
            reason.
    """
    reason = refusal(model)
    if reason is not None:
        raise ConfigError(f"CTranslate2 cannot run this model: {reason}")
    import_ctranslate2()


def write_ctranslate2(
    output: Path,
    model: Model,
    params: PyTree,
    tokenizer: Tokenizer,
    *,
    start: TextStart | None = None,
) -> str:
    """Writes a model with its tokenizer as a folder for CTranslate2; returns a summary line.

    The caller must add special tokens to texts, as described in the summary line. In a translator,
    tokens that never occur in translations (:func:`never_written`) get a score that is never
    chosen, as in JAX; published models use settings for that (Marian's ``bad_words_ids``), which
    CTranslate2 lacks. Beam search finds the same texts as in JAX unless a text may be empty:
    ``min_decoding_length`` is 1 by default.

    Args:
        output: The folder.
        model: The model.
        params: The parameters of the model.
        tokenizer: The tokenizer, whose tokens become the vocabulary.
        start: The tokens before a text of a language model; None is its BOS.

    Raises:
        ConfigError: The package is missing, or does not support the model; the message has the
            reason.
        CheckpointError: The folder cannot be written.
    """
    check_ctranslate2(model)
    start = TextStart.of(tokenizer.bos) if start is None else start
    specs = import_ctranslate2().specs
    config, both = model.config, model.kind == "encoder-decoder"
    layers = LayerSpecs(params, specs)
    decoder = layers.decoder(config)
    names = lambda size: vocabulary(tokenizer, size)
    if both:
        layers.hide(decoder, never_written(tokenizer, config.decoder().vocab_size))
        spec = specs.TransformerSpec(layers.encoder(config), decoder)
        spec.register_source_vocabulary(names(config.vocab_size))
        spec.register_target_vocabulary(names(config.decoder().vocab_size))
        spec.config.decoder_start_token = tokenizer.name(tokenizer.bos)
    else:
        spec = specs.TransformerDecoderModelSpec(decoder)
        spec.register_vocabulary(names(config.vocab_size))
    spec.config.bos_token = tokenizer.name(start.alone)
    spec.config.eos_token = tokenizer.name(tokenizer.eos)
    spec.config.unk_token = "" if tokenizer.unk is None else tokenizer.name(tokenizer.unk)
    spec.config.layer_norm_epsilon = config.norm.eps
    _save(spec, output)
    tokenizer.save(output / "tokenizer.json")
    said = f"ctranslate2: {spec.name}, float32; {_framing(tokenizer, both, start)}"
    window = config.scores.sliding_window
    near = window is not None and window < config.positions.max_length
    # CTranslate2 reads longer prompts at once, without a window.
    return f"{said}; exact for prompts of at most {window} tokens" if near else said


def refusal(model: Model) -> str | None:
    """Returns the reason why CTranslate2 does not support a model; None if it does.

    Example:
        >>> from transformer_jax.models.presets import PRESETS
        >>> refusal(Model("decoder", PRESETS["gpt2_small"]))
        >>> refusal(Model("encoder", PRESETS["bert_base"])).partition(",")[0]
        'it is an encoder'
    """
    config, both = model.config, model.kind == "encoder-decoder"
    if model.kind not in ("decoder", "encoder-decoder"):
        name = "a classifier" if model.kind == "decoder-task" else "an encoder"
        return f"it is {name}, whose head is not supported: use --format hf or stablehlo"
    places, scores = config.positions, config.scores
    reasons = {
        f"mixer.kind {config.mixer.kind}: only attention is supported": (
            config.mixer.kind != "attention"
        ),
        "scores.attn_logit_softcapping is not supported": (
            scores.attn_logit_softcapping is not None
        ),
        "scores.sliding_window is not supported in encoders": (
            both and scores.sliding_window is not None
        ),
        "positions.rope_local_theta is not supported": places.rope_local_theta is not None,
        "norm.first False is not supported": not config.norm.first,
        "attention.qk_norm is not supported with an encoder": both and config.attention.qk_norm,
        f"positions.kind {places.kind} is not supported": (
            places.kind in ("concatenated", "learned_relative")
        ),
        "positions.kind relative needs an encoder": not both and places.kind == "relative",
        "norm.placement sandwich is not supported with an encoder": (
            both and config.norm.placement == "sandwich"
        ),
        "embedding.type_vocab_size needs an encoder": config.embedding.type_vocab_size > 0,
        "attention.value_dim must be attention.head_dim": (
            config.attention.value_dim not in (None, config.head_dim)
        ),
        "positions.kind alibi is not supported in encoders": both and places.kind == "alibi",
        f"positions.{places.rope_method} is not supported in encoders": (
            both and places.kind == "rope" and places.rope_method is not None
        ),
        "positions.rope_attention_factor is not supported with partial rotary dimensions": (
            places.rope_attention_factor != 1.0 and places.rope_dim not in (None, config.head_dim)
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def never_written(tokenizer: Tokenizer, size: int) -> tuple[int, ...]:
    """Returns the tokens that never occur in translations: padding, BOS, and ids without text.

    Args:
        tokenizer: The tokenizer.
        size: The size of the model's output vocabulary.

    Example:
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> never_written(train_tokenizer("bytes", []), 262)
        (0, 2, 260, 261)
    """
    found = {tokenizer.pad, tokenizer.bos, *range(tokenizer.vocab_size, size)}
    return tuple(sorted(token for token in found - set(tokenizer.end_tokens) if token < size))


def vocabulary(tokenizer: Tokenizer, size: int) -> list[str]:
    """Returns the names of the first ``size`` tokens; ids without a token get unused names.

    Example:
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> names = vocabulary(train_tokenizer("bytes", []), 262)
        >>> names[:3], names[260:]
        (['<pad>', '<unk>', '<bos>'], ['<unused260>', '<unused261>'])
    """
    found: list[str | None] = []
    for id in range(size):
        try:
            found.append(tokenizer.name(id))
        except DataError:
            found.append(None)
    known = {name for name in found if name is not None}

    def unused(id: int) -> str:
        name = f"<unused{id}>"
        while name in known:
            name = f"<{name}>"
        return name

    return [unused(id) if name is None else name for id, name in enumerate(found)]


def _framing(tokenizer: Tokenizer, both: bool, start: TextStart) -> str:
    """Describes the tokens that the caller must add around a text."""
    name = tokenizer.name
    several = tokenizer.end_tokens[1:]
    ends = f"; texts end with any of {[*map(name, tokenizer.end_tokens)]}, to be given as end_token"
    more = ends if several else ""
    if not both:
        first = " ".join(map(name, start.before))
        return f"prompts begin with {first!r}{more}" if first else f"prompts are tokens{more}"
    tags = tokenizer.languages
    before: tuple[str | int, ...] = tags.before if tags else tokenizer.prefix_ids
    after: tuple[str | int, ...] = tags.after if tags else tokenizer.suffix_ids
    begins = tags.begins if tags else ()
    sides = {"from": "<source language>", "to": "<target language>"}
    shown = lambda part: sides[part] if isinstance(part, str) else name(part)
    framed = " ".join([*map(shown, before), "…", *map(shown, after)])
    prefix = f", with {' '.join(map(shown, begins))} as target_prefix" if begins else ""
    return f"sources are tokens framed as {framed}{prefix}{more}"


def _save(spec: "ctranslate2.specs.ModelSpec", output: Path) -> None:
    spec.validate()
    largest = max(variable.num_bytes() for variable in spec.variables().values())
    if largest > _MOST_BYTES:
        raise ConfigError(f"CTranslate2 cannot run this model: a tensor of {largest:,} bytes")
    spec.optimize()
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name in _VOCABULARIES:
            with contextlib.suppress(FileNotFoundError):
                (output / f"{name}.json").unlink()
        spec.save(str(output))
    except OSError as error:
        raise CheckpointError(f"{output}: cannot be written: {error.strerror}") from None


def import_ctranslate2() -> types.ModuleType:
    """Imports the package, with threads that sleep while they wait.

    Otherwise they spin, which is many times slower on shared processors. ``OMP_WAIT_POLICY`` and
    ``GOMP_SPINCOUNT`` in the environment take precedence.

    Raises:
        ConfigError: The package is not installed; the message tells how to install it.
    """
    spins = _WAITING in os.environ or "GOMP_SPINCOUNT" in os.environ
    if not spins:
        os.environ[_WAITING] = "PASSIVE"  # read when the library is loaded
    try:
        import ctranslate2
        import ctranslate2.specs
    except ImportError:
        raise ConfigError(f"CTranslate2 is not installed: {install('ctranslate2')}") from None
    finally:
        if not spins:
            del os.environ[_WAITING]
    return ctranslate2
