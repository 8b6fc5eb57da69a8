"""Converts tokenizers of Hugging Face checkpoints to ``tokenizer.json``."""

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from transformer_jax.core.errors import DataError
from transformer_jax.data.tokenizer_files.opening import guarded, open_backend
from transformer_jax.data.tokenizer_parts import target_file
from transformer_jax.interop.language_codes import language_tokens
from transformer_jax.interop.sentencepiece import PieceModel, parse_model, piece_tokenizer
from transformer_jax.interop.siglip_tokenizer import canonical_tokenizer
from transformer_jax.interop.tokenizer_classes import BYTE_LEVEL, WORDPIECE, with_class_settings
from transformer_jax.interop.tokenizer_settings import (
    Settings,
    read_bytes,
    read_ids,
    read_settings,
    read_text,
)

__all__ = ["find_target_tokenizer", "find_tokenizer"]

_Convert = Callable[[], tokenizers.Tokenizer]

# Tokenizer classes and model types that use each kind of file in the standard way.
_LEFT_TO_RIGHT = ("gpt2", "gpt_neo", "codegen", "opt")
_EXTRA = ("t5", "mt5", "umt5", "longt5", "switch_transformers")
_PLAIN = ("llama", "codellama", "code_llama", "mistral", "mixtral")
# MPNet's names for special tokens of a WordPiece vocabulary.
_MPNET = {"pad": "<pad>", "unk": "[UNK]", "bos": "<s>", "eos": "</s>", "mask": "<mask>"}
# Special tokens before the pieces, and the number of pieces that they replace, by family.
_NUMBERED = {
    "camembert": (("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"), ("<unk>",)),
    "xlm-roberta": (("<s>", "<pad>", "</s>", "<unk>"), ("<unk>", "<s>", "</s>")),
}
_NUMBERED |= dict.fromkeys(("xlmroberta", "nllb", "mbart50"), _NUMBERED["xlm-roberta"])
_LANGUAGES = ("m2m100", "nllb", "mbart50")  # vocabularies that end with language tokens
_SPM = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "spm.model")
_HELP = (
    "let transformers write its tokenizer.json:  "
    'python -c "from transformers import AutoTokenizer as T; '
    "T.from_pretrained('FOLDER').save_pretrained('FOLDER')\""
)


def find_tokenizer(
    folder: Path, side: Literal["source", "target"] = "source"
) -> tuple[str, dict[str, str]]:
    """Returns the ``tokenizer.json`` of a Hugging Face folder, and its special tokens by role.

    This is the file itself, or a conversion of ``vocab.txt``, of ``vocab.json`` with
    ``merges.txt``, or of SentencePiece models. A classifier's ``cls`` and ``sep`` are used for
    missing ``bos`` and ``eos``; roles that the vocabulary lacks are omitted.

    Args:
        folder: The folder of the weights.
        side: Source or target, if their tokenizers differ (Marian); ids are shared.

    Raises:
        DataError: The tokenizer is missing or damaged, or cannot be converted exactly.
    """
    settings = read_settings(folder)
    ready = folder / "tokenizer.json"
    target = find_target_tokenizer(folder) if side == "target" else None
    if target is not None:
        text, backend = target, open_backend(target)
    elif os.path.lexists(ready):
        text, backend = _opened(ready)
        if (changed := with_class_settings(text, settings)) != text:
            text, backend = changed, open_backend(changed)
    else:
        backend = _converted(*_source(folder, settings), settings)
        text = backend.to_str()
    vocab = backend.get_vocab()
    return text, {role: name for role, name in settings.names.items() if name in vocab}


def find_target_tokenizer(folder: Path) -> str | None:
    """Returns the ``tokenizer.json`` of targets; None if it is the same as for sources.

    The ids are the same. Marian has a SentencePiece model per side; a folder that was exported here
    has the file.

    Args:
        folder: The folder of the weights.

    Raises:
        DataError: The tokenizer is damaged, or cannot be converted exactly.
    """
    ready = target_file(folder / "tokenizer.json")
    if os.path.lexists(ready):
        return _opened(ready)[0]
    names = ("source.spm", "target.spm", "vocab.json")
    source, target, vocabulary = (folder / name for name in names)
    complete = os.path.lexists(folder / "tokenizer.json") and not os.path.lexists(target)
    if complete or not os.path.lexists(source) or read_bytes(source) == read_bytes(target):
        return None
    settings = read_settings(folder)
    convert = lambda: _marian(read_bytes(target), read_ids(vocabulary), settings)
    return str(_converted(target, convert, settings).to_str())


def _opened(path: Path) -> tuple[str, tokenizers.Tokenizer]:
    """Reads a ``tokenizer.json``; returns its content and the tokenizer."""
    text = read_text(path)
    try:
        return text, open_backend(text)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _converted(path: Path, convert: _Convert, settings: Settings) -> tokenizers.Tokenizer:
    """Returns a working tokenizer by ``convert``; errors are one line with the name of the file."""
    try:
        with guarded("is damaged or not a tokenizer"):
            backend = _surround(_complete(convert(), settings), settings)
            backend.decode(backend.encode("A probe, 1 2.").ids)
            return backend
    except DataError as error:
        named = str(error).startswith(str(path.parent))
        raise DataError(str(error) if named else f"{path}: {error}; {_HELP}") from None


def _source(folder: Path, settings: Settings) -> tuple[Path, _Convert]:
    """Returns the file to convert a tokenizer from, and the converter."""
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    if os.path.lexists(folder / "source.spm"):
        sided = folder / "source.spm"
        return sided, lambda: _marian(read_bytes(sided), read_ids(vocabulary), settings)
    if settings.family == "m2m100":
        pieces = folder / "sentencepiece.bpe.model"
        if not os.path.lexists(pieces):
            raise DataError(f"{folder}: has no {pieces.name}, which M2M100 has next to vocab.json")
        return pieces, lambda: _many_languages(read_bytes(pieces), read_ids(vocabulary), settings)
    for name in _SPM:
        if os.path.lexists(path := folder / name):
            return path, lambda: _sentencepiece(read_bytes(path), settings)
    lines = folder / "vocab.txt"
    if os.path.lexists(lines):
        return lines, lambda: _wordpiece(read_text(lines), settings)
    if os.path.lexists(merges):
        return merges, lambda: _byte_level(read_ids(vocabulary), read_text(merges), settings)
    raise DataError(
        f"{folder}: has no tokenizer.json, vocabulary or SentencePiece model: copy the files "
        f"of its tokenizer into the folder"
    )


def _complete(backend: tokenizers.Tokenizer, settings: Settings) -> tokenizers.Tokenizer:
    """Returns the tokenizer with the tokens that the folder adds."""
    for name, id in sorted(settings.added_tokens.items(), key=lambda item: item[1]):
        if name in settings.special:
            backend.add_special_tokens([_token(name)])
        if backend.token_to_id(name) is None:
            raise DataError(f"lacks {name[:40]!r}, which was added and is not special")
        if backend.token_to_id(name) != id:
            raise DataError(f"gives {name[:40]!r} an id other than {id}, the id in its folder")
    return backend


def _surround(backend: tokenizers.Tokenizer, settings: Settings) -> tokenizers.Tokenizer:
    """Returns the tokenizer with its special-tokens template, if settings define it."""
    if backend.post_processor is not None:
        return backend
    first, last = settings.around(settings.family in _PLAIN)
    for name in (*first, *last):
        if backend.token_to_id(name) is None:
            raise DataError(f"lacks {name[:40]!r}, which is added before or after every text")
    if first or last:
        _frame(backend, first, last, again=True)
    return backend


def _wordpiece(text: str, settings: Settings) -> tokenizers.Tokenizer:
    _demand(settings, WORDPIECE)
    if settings.flag("do_basic_tokenize", True) is False:
        raise DataError("is used without splitting words, which is not supported")
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    vocab = {token: id for id, token in enumerate(lines)}
    if len(vocab) != len(lines):
        raise DataError("has a duplicate line")
    mpnet = settings.family == "mpnet"
    if mpnet:
        settings.names = _MPNET | settings.names
    names = {"unk": "[UNK]", "bos": "[CLS]", "eos": "[SEP]"} | settings.names
    if names["unk"] not in vocab:
        raise DataError(f"has no {names['unk']}")
    backend = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=names["unk"]))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.flag("tokenize_chinese_chars", True) is not False,
        strip_accents=settings.flag("strip_accents", None),
        lowercase=settings.flag("do_lower_case", True) is not False,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece("##")
    _mark(backend, [*names.values(), *(() if mpnet else ("[PAD]", "[MASK]"))])
    between = (names["eos"],) * (2 if mpnet else 1)
    _frame(backend, (names["bos"],), (names["eos"],), between=between)
    return backend


def _byte_level(vocab: dict[str, int], merges: str, settings: Settings) -> tokenizers.Tokenizer:
    if settings.family == "clip":
        return _whole_words(vocab, _pairs(merges), settings)
    _demand(settings, BYTE_LEVEL)
    pairs, prefixed = _pairs(merges), settings.flag("add_prefix_space", False) is True
    backend = tokenizers.Tokenizer(models.BPE(vocab, pairs, fuse_unk=False))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefixed)
    backend.decoder = decoders.ByteLevel()
    usual = ["<s>", "</s>", "<unk>", "<pad>", "<mask>", "<|endoftext|>"]
    _mark(backend, [*settings.names.values(), *usual])
    classifier = settings.family not in _LEFT_TO_RIGHT and "<|endoftext|>" not in vocab
    if classifier and {"<s>", "</s>"} <= vocab.keys():
        last, first_token = ("</s>", vocab["</s>"]), ("<s>", vocab["<s>"])
        backend.post_processor = processors.RobertaProcessing(last, first_token, True, prefixed)
    return backend


def _whole_words(
    vocab: dict[str, int], pairs: list[tuple[str, str]], settings: Settings
) -> tokenizers.Tokenizer:
    """Converts byte-pair encoding of lower-cased words, which end in ``</w>`` (CLIP)."""
    names = {"bos": "<|startoftext|>", "eos": "<|endoftext|>"} | settings.names
    if not {names["bos"], names["eos"]} <= vocab.keys():
        raise DataError(f"lacks {names['bos'][:40]} or {names['eos'][:40]}")
    unknown = names.get("unk", names["eos"])
    model = models.BPE(vocab, pairs, end_of_word_suffix="</w>", fuse_unk=False, unk_token=unknown)
    backend = tokenizers.Tokenizer(model)
    blanks = normalizers.Replace(tokenizers.Regex(r"\s+"), " ")
    parts = [normalizers.NFC(), blanks, normalizers.Lowercase()]
    backend.normalizer = normalizers.Sequence(parts)  # type: ignore[arg-type]
    words = tokenizers.Regex(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+")
    split = pre_tokenizers.Split(words, behavior="removed", invert=True)
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, level])  # type: ignore[list-item]
    backend.decoder = decoders.ByteLevel()
    _mark(backend, [*names.values()])
    first, last = ((names[role], vocab[names[role]]) for role in ("bos", "eos"))
    backend.post_processor = processors.RobertaProcessing(last, first, False, False)
    return backend


def _pairs(merges: str) -> list[tuple[str, str]]:
    """Reads the merges of a file, in order."""
    lines = merges.split("\n")
    if lines[0].startswith("#version"):
        lines = lines[1:]
    pairs = []
    for line in filter(None, (line.removesuffix("\r") for line in lines)):
        first, _, second = line.partition(" ")
        if not first or not second or " " in second:
            raise DataError(f"has a line without exactly two parts: {line[:40]!r}")
        pairs.append((first, second))
    return pairs


def _sentencepiece(data: bytes, settings: Settings) -> tokenizers.Tokenizer:
    _demand(settings, (*_EXTRA, *_PLAIN, *_NUMBERED, "siglip"))
    model = parse_model(data)
    if settings.family == "siglip":
        settings.names = {"pad": "</s>", "eos": "</s>", "unk": "<unk>"} | settings.names
        return canonical_tokenizer(model, lowercase=bool(settings.flag("do_lower_case", True)))
    if settings.family in _LANGUAGES:
        codes = language_tokens(settings)
        backend = _numbered(model, *_NUMBERED[settings.family], codes)
        _frame_language(backend, settings, codes)
        return backend
    if settings.family in _NUMBERED:
        return _numbered(model, *_NUMBERED[settings.family])
    if settings.family not in _EXTRA:
        prefixed = settings.flag("add_prefix_space", None)
        first = model.dummy_prefix if prefixed is None else prefixed
        return piece_tokenizer(model._replace(dummy_prefix=first))
    sentinels = sum("<extra_id_" in name for name in settings.listed())
    count = settings.count("extra_ids", sentinels or 100)
    backend = piece_tokenizer(model, extra=[f"<extra_id_{i}>" for i in reversed(range(count))])
    _frame(backend, (), ("</s>",))
    return backend


def _numbered(
    model: PieceModel,
    first: tuple[str, ...],
    replaced: tuple[str, ...],
    codes: tuple[str, ...] = (),
) -> tokenizers.Tokenizer:
    """Converts pieces after special tokens as in fairseq, which renumbers them."""
    own = tuple(piece.text for piece in model.pieces[: len(replaced)])
    if own != replaced:
        raise DataError(f"begins with {', '.join(own)[:60]}, not with {', '.join(replaced)}")
    last = () if codes else ("<mask>",)
    names = [*first, *(piece.text for piece in model.pieces[len(replaced) :]), *last]
    if len(set(names)) != len(names) or not {"<s>", "</s>"} <= set(names):
        raise DataError("repeats a special token of its family, or lacks <s> or </s>")
    numbers = {name: id for id, name in enumerate(names)}
    backend = piece_tokenizer(model, numbers=numbers, extra=codes)
    _mark(backend, [*first, "<s>", "</s>", *last])
    if codes:
        backend.add_special_tokens([_token("<mask>")])
    _frame(backend, ("<s>",), ("</s>",), between=("</s>", "</s>"))
    return backend


def _many_languages(
    data: bytes, numbers: dict[str, int], settings: Settings
) -> tokenizers.Tokenizer:
    """Converts pieces numbered by ``vocab.json``, followed by language tokens (M2M100)."""
    codes = language_tokens(settings)
    backend = _by_dictionary(data, numbers, codes)
    _mark(backend, ["<s>", "<pad>", "</s>", "<unk>"])
    _frame_language(backend, settings, codes)
    return backend


def _frame_language(
    backend: tokenizers.Tokenizer, settings: Settings, codes: tuple[str, ...]
) -> None:
    """Sets the tokens around a source of the default language, English if unset."""
    names = {code.strip("_"): code for code in codes}
    wanted = (settings.text("src_lang"), "en", "eng_Latn", "en_XX")
    first = next(names[name] for name in wanted if name in names)
    if settings.flag("legacy_behaviour", False):
        _frame(backend, (), ("</s>", first), between=())
    else:
        _frame(backend, (first,), ("</s>",), between=())


def _marian(data: bytes, numbers: dict[str, int], settings: Settings) -> tokenizers.Tokenizer:
    if settings.flag("separate_vocabs", False):
        raise DataError("belongs to a model with two vocabularies, which is not supported")
    backend = _by_dictionary(data, numbers)
    _mark(backend, [*settings.names.values(), "</s>", "<pad>"])
    # The target language is part of the text, so these are not special tokens.
    codes = [name for name in numbers if re.fullmatch(r">>[^<>]+<<", name)]
    backend.add_tokens([tokenizers.AddedToken(name, normalized=False) for name in codes])
    _frame(backend, (), ("</s>",))
    return backend


def _by_dictionary(
    data: bytes, numbers: dict[str, int], more: tuple[str, ...] = ()
) -> tokenizers.Tokenizer:
    """Converts the pieces of a model with the ids of ``vocab.json``, followed by further tokens."""
    model = parse_model(data)
    numbers = dict(sorted(numbers.items(), key=lambda item: item[1]))
    unknown = model.pieces[model.unknown].text
    if unknown not in numbers or list(numbers.values()) != list(range(len(numbers))):
        raise DataError(f"is numbered by vocab.json, which lacks {unknown} or an id")
    text = [piece.text for piece in model.pieces if piece.kind == 1]
    absent = sum(name not in numbers for name in text)
    if absent > len(text) / 100:
        raise DataError(f"has {absent} of {len(text)} pieces missing in vocab.json")
    return piece_tokenizer(model, numbers=numbers, extra=more)


def _frame(
    backend: tokenizers.Tokenizer,
    first: tuple[str, ...],
    last: tuple[str, ...],
    *,
    again: bool = False,
    between: tuple[str, ...] | None = None,
) -> None:
    """Sets the special tokens around a text and between two texts.

    Args:
        backend: The tokenizer to change.
        first: Tokens before a text.
        last: Tokens after a text, and after the second of two.
        again: Whether the second text begins like the first.
        between: Tokens between two texts; None is the tokens after a text.
    """
    middle = last if between is None else between
    more = [f"{name}:1" for name in first] if again else []
    names = {name: backend.token_to_id(name) for name in (*first, *last)}
    backend.post_processor = processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A:0", *middle, *more, "$B:1", *(f"{name}:1" for name in last)],
        special_tokens=[(name, id) for name, id in names.items() if id is not None],
    )


def _mark(backend: tokenizers.Tokenizer, names: Iterable[str]) -> None:
    """Marks names in the vocabulary as special tokens."""
    known = backend.get_vocab()
    backend.add_special_tokens([_token(name) for name in names if name in known])


def _token(name: str) -> tokenizers.AddedToken:
    # The blank before a mask belongs to it.
    return tokenizers.AddedToken(name, lstrip=name == "<mask>", normalized=False, special=True)


def _demand(settings: Settings, families: tuple[str, ...]) -> None:
    if settings.family and settings.family not in families:
        raise DataError(
            f"is the vocabulary of {settings.family[:40]!r}, which uses it differently: "
            f"supported are {', '.join(families)}"
        )
