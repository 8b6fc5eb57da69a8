"""A model as one self-contained page that runs it: parameters, tokenizer and the code to compute.

The page computes in the browser, in JavaScript (``visual/javascript/``): ``engine.js`` is the model
and its search, ``answers.js`` a Worker that answers with them, ``tokenizer.js`` the tokenizer,
``page.js`` what one sees. It requests nothing.
"""

import base64
import copy
import dataclasses
import hashlib
import html
import importlib.resources
import json
import re
from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np

from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.core.json_types import Json
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.transformer.layers import frequencies_of

__all__ = [
    "MOST_PARAMETERS",
    "ExploredModel",
    "WeightType",
    "check_size",
    "explore_html",
    "pack_parameters",
    "packed_tokenizer",
    "page_config",
]

WeightType = Literal["float16", "int8"]
Kind = Literal["encoder-decoder", "decoder", "masked", "classifier", "tagger"]

MOST_PARAMETERS = 60_000_000  # a page of 160 MB in float16, of 80 MB in int8

_LARGEST_HALF = 65_504.0
_POSITIONS = ("none", "learned", "sinusoidal", "sinusoidal_halves", "sinusoidal_fairseq", "rope")


@dataclasses.dataclass(frozen=True)
class ExploredModel:
    """The parts of a model that a page needs.

    Attributes:
        kind: What the model computes: texts from texts, continuations, masked tokens, labels of a
            text or of each token.
        title: Heading of the page.
        config: Configuration of the model.
        params: Parameters by path, such as ``encoder/blocks/0/self_attention/query/kernel``.
        tokenizer: See :func:`packed_tokenizer`.
        ids: Special ids, and those around texts.
        text: How texts are prepared.
        search: Settings of the search.
        labels: Names of classes or tags.
        task: The task of a fine-tuned model, which decides how logits become shares.
        example: The first text on the page.
    """

    kind: Kind
    title: str
    config: TransformerConfig
    params: Mapping[str, np.ndarray]
    tokenizer: dict[str, Json]
    ids: dict[str, Json]
    text: dict[str, Json]
    search: dict[str, Json]
    labels: tuple[str, ...] = ()
    task: str | None = None
    example: str = ""


def page_config(config: TransformerConfig, kind: Kind) -> dict[str, Json]:
    """Returns the settings that the page's formulas read.

    Raises:
        ConfigError: The page does not have a formula of the model; the message names the setting.
    """
    places, decoder = config.positions, config.decoder()
    if config.mixer.kind != "attention":
        raise ConfigError(
            f"mixer.kind is {config.mixer.kind}: the page computes attention alone, not other "
            f"mixers: look at the model in Python, with capture"
        )
    if places.kind not in _POSITIONS:
        raise ConfigError(
            f"positions.kind is {places.kind}: the page computes {', '.join(_POSITIONS)}: look at "
            f"the model in Python, with capture"
        )
    layers = max(config.encoder_layers, config.decoder_layers)
    head = config.head
    if not config.norm.first or places.rope_local_theta is not None or config.labels.transform:
        raise ConfigError(
            "norm.first is False, positions.rope_local_theta is set, or labels.transform is True: "
            "the page does not compute ModernBERT: look at the model in Python, with capture"
        )
    frequencies: list[float] = []
    if places.kind == "rope":
        frequencies = frequencies_of(places, config.head_dim).tolist()
    return {
        "d_model": config.d_model,
        "head_dim": {"encoder": config.head_dim, "decoder": decoder.head_dim},
        "embedding_size": config.embedding_size,
        "embedding_scale": config.embedding_scale,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "vocab_out": config.decoder_vocab_size or config.vocab_size,
        "norm": {
            "kind": config.norm.kind,
            "placement": config.norm.placement,
            "eps": config.norm.eps,
            "gain_offset": config.norm.gain_offset,
        },
        "positions": {
            "kind": places.kind,
            "offset": places.offset,
            "max_length": places.max_length,
            "frequencies": frequencies,
            "rope_attention_factor": places.rope_attention_factor,
        },
        "attention": {"qk_norm": config.attention.qk_norm},
        "scores": {
            "scale": config.scores.scale,
            "attn_logit_softcapping": config.scores.attn_logit_softcapping,
        },
        "windows": [config.scores.window_of(i) for i in range(layers)],
        "feed_forward": {
            "activation": config.feed_forward.activation,
            "gated": config.feed_forward.gated,
        },
        "head": {
            "scale": head.scale,
            "final_logit_softcapping": head.final_logit_softcapping,
            "transform_activation": head.mlm_transform_activation or config.feed_forward.activation,
            "pooler_activation": head.pooler_activation,
        },
    }


# Names of the parameters that the page reads; others belong to parts that it does not compute.
_READ = re.compile(
    r"((decoder_)?embedding/table|(encoder|decoder)/(positions/table|segments/table|"
    r"embedding_norm/(gain|bias)|projection/(kernel|bias)|final_norm/(gain|bias)|"
    r"blocks/\d+/((self|cross)_attention/((query|key|value|out)/(kernel|bias)|"
    r"(query|key)_norm/(gain|bias))|feed_forward/(up|gate|down)/(kernel|bias)|"
    r"(self_attention|cross_attention|feed_forward)_norm(_after)?/(gain|bias)))|"
    r"head/(table|bias)|transform(_norm)?/(kernel|gain|bias)|pooler/(kernel|bias)|"
    r"labels/(kernel|bias))"
)
_UNREAD = re.compile(r"next_sentence/(kernel|bias)")  # no view of the page asks for them


def pack_parameters(
    params: Mapping[str, np.ndarray], weights: WeightType = "float16"
) -> tuple[dict[str, Json], bytes]:
    """Returns where each parameter lies, and the bytes of all of them.

    Matrices are float16, or int8 with a float32 scale for each row; vectors are float32.

    Args:
        params: Parameters by path.
        weights: The type of matrices.

    Raises:
        ConfigError: A parameter belongs to a part that the page does not compute, or is not finite.

    Example:
        >>> kernel = np.ones((2, 2), np.float32)
        >>> pack_parameters({"labels/kernel": kernel, "labels/bias": np.zeros(2)})[0]
        {'labels/kernel': [0, [2, 2], 'f16'], 'labels/bias': [8, [2], 'f32']}
    """
    arrays: dict[str, Json] = {}
    blob = bytearray()
    for name, value in params.items():
        if _UNREAD.fullmatch(name):
            continue
        if not _READ.fullmatch(name):
            raise ConfigError(
                f"the parameter {name}: the page does not compute its part of the model: merge "
                f"adapters first, or look at the model in Python, with "
                f"capture"
            )
        array = np.asarray(value, np.float32)
        if not np.isfinite(array).all():
            raise ConfigError(f"the parameter {name} is not finite: train again")
        kind, data = _encoded(array, weights)
        arrays[name] = [len(blob), list(array.shape), kind]
        blob += data + bytes(-len(data) % 4)
    return arrays, bytes(blob)


def _encoded(array: np.ndarray, weights: WeightType) -> tuple[str, bytes]:
    """Returns the type and the bytes of an array, little-endian."""
    largest = np.abs(array).max(initial=0.0)
    if array.ndim != 2 or (weights == "float16" and largest > _LARGEST_HALF):
        return "f32", array.astype("<f4").tobytes()
    if weights == "float16":
        return "f16", array.astype("<f2").tobytes()
    scales = np.abs(array).max(1, keepdims=True) / 127
    rounded = np.rint(array / np.where(scales > 0, scales, 1)).astype(np.int8)
    return "i8", scales.astype("<f4").tobytes() + rounded.tobytes()


# --- the tokenizer --------------------------------------------------------------------------------

# The parts of a tokenizer.json that tokenizer.js computes, by the field that names their types.
_PARTS = {
    "normalizer": {
        *("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Replace", "Prepend"),
        *("Strip", "Sequence", "BertNormalizer", "Precompiled"),
    },
    "pre_tokenizer": {
        *("ByteLevel", "Split", "Metaspace", "Whitespace", "WhitespaceSplit"),
        *("BertPreTokenizer", "Punctuation", "Digits", "Sequence"),
    },
    "model": {"BPE", "WordPiece", "WordLevel", "Unigram"},
    "decoder": {
        *("ByteLevel", "WordPiece", "Metaspace", "Replace", "Fuse", "Strip", "ByteFallback"),
        *("BPEDecoder", "Sequence"),
    },
}
_INSIDE = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
# Of regular expressions: possessive and atomic groups, inline flags, and escapes that differ.
_FOREIGN = re.compile(r"[*+?]\+|\{[\d,]+\}\+|\(\?(?![:!=<])|\(\?<(?![=!])|\\[hHGAzZKRX]|&&|\[\[:")


def packed_tokenizer(text: str) -> dict[str, Json]:
    """Returns the parts of a ``tokenizer.json`` that the page reads.

    Raises:
        ConfigError: It has a part that the page does not compute; the message names it.

    Example:
        >>> file = {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}
        >>> file["pre_tokenizer"] = {"type": "UnicodeScripts"}
        >>> packed_tokenizer(json.dumps(file))
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ConfigError: the tokenizer's pre_tokenizer UnicodeScripts: ...
    """
    file = json.loads(text)
    packed: dict[str, Json] = {}
    for name, known in _PARTS.items():
        part = copy.deepcopy(file.get(name))
        if part is not None:
            _check_part(name, part, known)
        packed[name] = part
    if file["model"].get("dropout"):
        raise _unsupported("model", "BPE with dropout")
    added = file.get("added_tokens") or []
    if plain := [one["content"] for one in added if not one.get("special")]:
        raise _unsupported("added_tokens", f"{plain[0]!r}, which is not special")
    packed["added_tokens"] = [{"id": one["id"], "content": one["content"]} for one in added]
    return packed


def _check_part(name: str, part: dict[str, Json], known: set[str]) -> None:
    kind = part["type"] = str(part.get("type", "BPE" if "merges" in part else "WordPiece"))
    if kind not in known:
        raise _unsupported(name, kind)
    inside = part.get(_INSIDE.get(name, ""))
    for inner in inside if kind == "Sequence" and isinstance(inside, list) else ():
        _check_part(name, inner, known)
    pattern = part.get("pattern")
    if isinstance(pattern, dict) and "Regex" in pattern:
        pattern["Regex"] = _without_flags(pattern["Regex"])
        if _FOREIGN.search(pattern["Regex"]):
            raise _unsupported(name, f"{kind} with the pattern {pattern['Regex']!r}")


def _without_flags(pattern: str) -> str:
    """Spells out ``(?i:...)``, which JavaScript does not have, for letters."""

    def both(letter: re.Match[str]) -> str:
        one = letter[0]
        return f"[{one.lower()}{one.upper()}{'ſ' if one in 'sS' else ''}]"

    spelled = lambda group: "(?:" + re.sub("[A-Za-z]", both, group[1]) + ")"
    return re.sub(r"\(\?i:([A-Za-z'|]*)\)", spelled, pattern)


def _unsupported(name: str, what: str) -> ConfigError:
    return ConfigError(
        f"the tokenizer's {name} {what}: the page does not compute it: look at the model in "
        f"Python, with capture"
    )


# --- the page -------------------------------------------------------------------------------------


def explore_html(model: ExploredModel, weights: WeightType = "float16") -> str:
    """Returns a self-contained HTML page that runs the model in the browser.

    Args:
        model: The model.
        weights: The type of matrices: ``float16``, or ``int8`` with a scale for each row, which
            halves the file and changes the results.

    Raises:
        ConfigError: The page cannot compute the model, it is too large (see
            :data:`MOST_PARAMETERS`), or there is no such type.
    """
    if weights not in get_args(WeightType):
        allowed = ", ".join(get_args(WeightType))
        raise ConfigError(f"weights is {weights!r}: allowed are {allowed}")
    size = sum(value.size for value in model.params.values())
    check_size(model.title, size)
    config = page_config(model.config, model.kind)
    arrays, blob = pack_parameters(model.params, weights)
    data = {
        "kind": model.kind,
        "title": model.title,
        "config": config,
        "arrays": arrays,
        "tokenizer": model.tokenizer,
        "ids": model.ids,
        "text": model.text,
        "search": model.search,
        "labels": list(model.labels),
        "task": model.task,
        "example": model.example,
        "precision": weights,
        "size": size,
    }
    folder = importlib.resources.files(__package__)
    read = lambda name: folder.joinpath(name).read_text(encoding="utf-8")
    scripts = lambda *names: "".join(read(f"javascript/{name}.js") for name in names)
    engine, shown = scripts("engine", "answers"), scripts("tokenizer", "page")
    hashes = [base64.b64encode(hashlib.sha256(one.encode()).digest()) for one in (engine, shown)]
    parts = {
        "TITLE": html.escape(model.title),
        # The browser runs no other script.
        "HASHES": " ".join(f"'sha256-{one.decode('ascii')}'" for one in hashes),
        "DATA": _in_script(json.dumps(data, ensure_ascii=False, separators=(",", ":"))),
        "WEIGHTS": base64.b64encode(blob).decode("ascii"),
        "ENGINE": engine,
        "PAGE": shown,
    }
    # In one pass: inserted text may look like a placeholder.
    return re.sub(
        "__(TITLE|HASHES|DATA|WEIGHTS|ENGINE|PAGE)__",
        lambda place: parts[place[1]],
        read("explore.html"),
    )


def check_size(title: str, size: int) -> None:
    """Refuses a model that is too large for a page.

    Raises:
        ConfigError: It has more than :data:`MOST_PARAMETERS`.
    """
    if size > MOST_PARAMETERS:
        raise ConfigError(
            f"{title}: a model with {plural(size, 'parameter')}: a page runs at most "
            f"{MOST_PARAMETERS:,}: explore a smaller model, or look at this one in Python, with "
            f"capture"
        )


def _in_script(data: str) -> str:
    """Escapes JSON for a script element, which no text may end."""
    # These two are line ends in older JavaScript.
    return data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
