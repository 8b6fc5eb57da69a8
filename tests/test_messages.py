"""One of a thing has its name in the singular, in whatever message: ``plural`` makes it so."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Functions of arrays and files of other libraries are for developers.
APART = {"functional", "interop", "models"}
FILES = [
    path
    for path in (ROOT / "transformer_jax").rglob("*.py")
    if path.relative_to(ROOT / "transformer_jax").parts[0] not in APART
]
FILES += (ROOT / "experiments").glob("*.py")
THINGS = re.findall(
    r"\w+",
    "tokens lines steps rows pairs examples sentences queries questions documents characters "
    "texts prompts tensors parameters checkpoints shapes layers devices evaluations records "
    "columns tabs windows references translations sources targets",
)
COUNTED = re.compile(r"\{[^{}]+\} (?:[a-z]+ )?(?:" + "|".join(THINGS) + r")\b(?![/a-z])")
# Where the number is of any size but 1, or what is said is for developers.
NOT_COUNTED = re.compile(
    r"plural|all \{|M parameters|sorted\(|_count|len\(missed\)|steps an epoch|ValueError"
)


def test_counts_go_through_plural():
    for path in FILES:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(r"\bf[\"']", line) and not NOT_COUNTED.search(line):
                assert not COUNTED.search(line), f"{path}:{number}: {line.strip()}"
