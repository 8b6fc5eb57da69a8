"""Two hundred texts as people and programs write them: single lines, in any form of Unicode."""

import random

# "\r" at the end of a line and U+FEFF at the start of a file belong to the file: none is here.
BLANK = [
    "", " ", "\t", "   \t ", "\u00a0", "\u3000", "\u200b", "\u2028", "\u2029", "\u0085",
    "\x0b", "\x0c", "\x1c",
]  # fmt: skip
FORMS = [
    "un cafe\u0301 a\u0300 la carte", "un café à la carte", "e\u0301", "\u0301",
    "caf\u0301e\u0301", "\u212b \u2126 ﬁ ﬃ", "İstanbul I ı i", "ẞ ß ŒUVRE œuvre",
    "Σίσυφος ΣΊΣΥΦΟΣ", "q\u0323\u0307", "q\u0307\u0323", "a\u0327\u0301",
    "\u1100\u1161\u11a8", "각", "न\u093c", "\u0958", "\u0344", "ŉ", "ſ", "ǅ", "ﷺ", "กำ",
    "½ ² ³ ™", "Ⅳ ⅳ", "ＡＢＣ",
]  # fmt: skip
SCRIPTS = [
    "👩‍👩‍👧‍👦", "🏳️‍🌈 un café", "👍🏽 déjà", "🇫🇷 carte", "😀" * 30, "مرحبا بالعالم",
    "\u202eun café\u202c", "\u200fשלום\u200e", "日本語 テスト", "ไทย", "한국어",
    "हिन्दी",
]  # fmt: skip
MARKS = [
    "...", "!!!???", "-", "--", "—", "''\"\"", "«»", "()[]{}<>", "###", "@", "/", "\\",
    "\\n", "%s %d {}", "${HOME}", "`ls`", "[MASK]", "[CLS] un [SEP] carte",
    "<s> un </s>", "<pad>", "<unk>", "[UNK]", "<|endoftext|>", "{", "[", "null",
    "1,234.56", "a@b.org", "C:\\un",
]  # fmt: skip
CONTROLS = [
    f"un{mark}café"
    for mark in "\r\t\x01\x1b\x7f\ufffd\u00ad\u200b\u2060\ufeff\u00a0\u3000"
    "\u2028\u2029\u0085\x0b\x0c\x1c\ue000"
]
ENDS = [
    " un café", "un café ", "  un   café  ", "\tun\tcafé\t", "un café\u00a0",
    "\u3000un café", "un café\ufeff", "UN CAFÉ", "Déjà Vu", "a", "1",
]  # fmt: skip
LONG = ["a" * 400, "un café " * 60, "x" * 30 + " " + "y" * 30]


def _texts(count: int) -> list[str]:
    atoms = [*BLANK, *FORMS, *SCRIPTS, *MARKS, *CONTROLS, *ENDS]
    draw, texts = random.Random(0), dict.fromkeys([*atoms, *LONG])
    while len(texts) < count:
        parts = [draw.choice(atoms) + draw.choice(["", " ", "\t", ", "]) for _ in range(3)]
        texts["".join(["un", *parts, "."])] = None
    return list(texts)


TEXTS = _texts(200)
