"""A published translator learns a script that its vocabulary lacks, or is refused before work."""

import re

import pytest

from tests.interop import language_folders
from transformer_jax.cli import seq2seq
from transformer_jax.data.coverage import text_coverage
from transformer_jax.inference.pretrained import open_directory

TINY = [
    "--training.steps", "1", "--training.epochs", "None", "--training.max-tokens", "256",
    "--evaluation.sentences", "0", "--data.read.max-length", "48",
]  # fmt: skip
pytestmark = pytest.mark.slow  # each writes a published translator, and begins to train it

THAI = ["คนไทยกินข้าว", "แมวกินปลา", "ข้าวกับปลา", "คนกับแมว"]


@pytest.fixture
def start(tmp_path, request):
    """A folder of a family, pairs of a Thai side, and the languages of the pairs."""
    family = request.param
    known = language_folders.write(family, tmp_path / "start")
    source = {"nllb": "tha_Thai", "m2m100": "th", "mbart50": "th_TH"}[family]
    target = language_folders.FAMILIES[family][3][0]
    rows = [f"{THAI[i % 4]} {THAI[i // 4 % 4]}\t{known[i % 9]}\n" for i in range(40)]
    (tmp_path / "th.tsv").write_text("".join(rows))
    return tmp_path, f"{source}-{target}={tmp_path / 'th.tsv'}"


def train(folder, pairs, *flags):
    given = ["--data.pairs", pairs, "--init-from", str(folder / "start"), *TINY, *flags]
    return seq2seq.main(["train", "tiny", *given, "--output", str(folder / "run")])


FAMILIES = pytest.mark.parametrize("start", [*language_folders.FAMILIES], indirect=True)


@FAMILIES
def test_a_script_that_nobody_knows_is_refused(start, capfd):
    """Each line was a blank and one unknown token: half of the tokens, and all of the text."""
    folder, pairs = start
    assert train(folder, pairs) == 3
    said = capfd.readouterr().err
    assert "100.0% of the text of the source of" in said
    assert "--tokenizer.extend-by" in said


@FAMILIES
def test_a_script_that_nobody_knows_is_learned(start, capfd):
    folder, pairs = start
    assert train(folder, pairs, "--tokenizer.extend-by", "60") == 0
    said = capfd.readouterr().err
    letters = len(set("".join(THAI)))
    assert re.search(rf"tokenizer: {letters} characters and \d+ subwords learned", said)
    tokenizer = open_directory(folder / "run").load_tokenizer()
    assert text_coverage(THAI, tokenizer).share == 0
    assert [tokenizer.decode(ids) for ids in tokenizer.encode_batch(THAI)] == THAI
