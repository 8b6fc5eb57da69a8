"""M2M100, NLLB and mBART-50: ids of text, tokens of languages, and folders that do not fit."""

import json
import random
import shutil

import pytest

import transformer_jax as tj
from tests.interop import language_folders as made
from transformer_jax.cli.main import main
from transformer_jax.core.errors import CheckpointError, DataError
from transformer_jax.data.languages import Direction, Frame
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.interop.hf_checkpoint import open_hf_checkpoint
from transformer_jax.interop.hf_run_directory import HFRunDirectory
from transformer_jax.interop.vocabularies import find_tokenizer


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("languages")
    for family in made.FAMILIES:
        made.write(family, root / family)
    return root


@pytest.mark.parametrize("family", made.FAMILIES)
def test_ids_are_those_of_sentencepiece_in_the_numbering_of_fairseq(tmp_path, family):
    """Random words of seven scripts, and letters that no piece has."""
    draw = random.Random(family)
    known = made.words(draw)
    model, pieces = made.write_vocabulary(family, tmp_path, known, draw)
    tokenizer = Tokenizer(*find_tokenizer(tmp_path))
    number = {piece: id for id, piece in enumerate(pieces)}
    for text in made.texts(draw, known, 60):
        ids = [number.get(piece, 3) for piece in model.encode(text, out_type=str)]
        assert tokenizer.encode(text) == ids, ascii(text)
        if 3 not in ids:
            assert tokenizer.decode(ids) == model.decode(model.encode(text))
    # The published ids of a few languages, counted from the first.
    _, _, count, codes = made.FAMILIES[family]
    places = {"en": 18, "de": 16, "eng_Latn": 46, "deu_Latn": 41, "en_XX": 3, "de_DE": 2}
    wrap = "__{}__".format if family == "m2m100" else str
    assert [tokenizer.token_id(wrap(code)) - len(pieces) for code in codes] == [
        places[code] for code in codes
    ]
    assert tokenizer.vocab_size == len(pieces) + count + (family != "m2m100")


def test_pieces_that_vocab_json_lacks_are_not_used(tmp_path):
    draw = random.Random(0)
    known = made.words(draw)
    _, pieces = made.write_vocabulary("m2m100", tmp_path, known, draw, lacking=1)
    tokenizer = Tokenizer(*find_tokenizer(tmp_path))
    assert max(max(tokenizer.encode(text)) for text in known) < len(pieces)
    made.write_vocabulary("m2m100", tmp_path, known, draw, lacking=30)
    with pytest.raises(DataError, match=r"pieces missing in vocab\.json"):
        find_tokenizer(tmp_path)


@pytest.mark.parametrize("family", made.FAMILIES)
def test_a_folder_has_languages(folders, family):
    tokenizer = HFRunDirectory(folders / family).load_tokenizer()
    _, _, count, (source, target) = made.FAMILIES[family]
    tags = tokenizer.languages
    assert len(tags.tags) == count
    frame = tags.frame(Direction(source, target))
    assert frame == Frame((tags.tags[source],), (2,), (tags.tags[target],))
    assert tags.sides(Direction(source)) == frame[:2]  # vectors of sources need no target
    assert (tokenizer.bos, tokenizer.eos, tokenizer.pad, tokenizer.unk) == (2, 2, 1, 3)
    assert tokenizer.target_prefix_ids == ()


DEFAULTS = [
    ({}, {}, (None, None)),
    ({"src_lang": "eng_Latn", "tgt_lang": "deu_Latn"}, {}, ("eng_Latn", "deu_Latn")),
    ({"tgt_lang": None}, {"forced_bos_token_id": "fra_Latn"}, (None, "fra_Latn")),
    ({"tgt_lang": "deu_Latn"}, {"forced_bos_token_id": "fra_Latn"}, (None, "deu_Latn")),
]


@pytest.mark.parametrize(("settings", "fields", "wanted"), DEFAULTS)
def test_the_files_give_the_default_direction(folders, tmp_path, settings, fields, wanted):
    folder = copied(folders / "nllb", tmp_path / "x")
    tags = HFRunDirectory(folder).load_tokenizer().languages.tags
    edit(folder / "tokenizer_config.json", **settings)
    edit(folder / "config.json", **{key: tags[name] for key, name in fields.items()})
    assert HFRunDirectory(folder).load_tokenizer().languages.default == Direction(*wanted)


def test_the_first_order_of_nllb(folders, tmp_path):
    folder = copied(folders / "nllb", tmp_path / "x")
    edit(folder / "tokenizer_config.json", legacy_behaviour=True)
    tags = HFRunDirectory(folder).load_tokenizer().languages
    english, german = tags.tags["eng_Latn"], tags.tags["deu_Latn"]
    frame = tags.frame(Direction("eng_Latn", "deu_Latn"))
    assert frame == Frame((), (2, english), (german,))


def test_what_a_translator_of_one_direction_has(folders, tmp_path):
    """mBART's first form begins targets with the token of their language, not with an end."""
    folder = copied(folders / "mbart50", tmp_path / "x")
    german = HFRunDirectory(folder).load_tokenizer().languages.tags["de_DE"]
    edit(folder / "config.json", decoder_start_token_id=german)
    tokenizer = HFRunDirectory(folder).load_tokenizer()
    assert (tokenizer.languages, tokenizer.bos) == (None, german)


def copied(source, folder):
    shutil.copytree(source, folder)
    return folder


def edit(path, **values):
    fields = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in fields.items() if value is not ...}))


def shorten(folder, by):
    path = folder / "vocab.json"
    numbers = json.loads(path.read_text())
    path.write_text(
        json.dumps({name: id for name, id in numbers.items() if id < len(numbers) - by})
    )


def no_pieces(folder):
    (folder / "sentencepiece.bpe.model").unlink()


WRONG = {
    "no pieces": ("m2m100", no_pieces, "has no sentencepiece.bpe.model, which M2M100 has next to"),
    "a shorter vocab.json": ("m2m100", lambda f: shorten(f, 1), "vocab_size is"),
    "no vocab.json": ("m2m100", lambda f: (f / "vocab.json").unlink(), "vocab.json: no such file"),
    "an unknown source": (
        "nllb",
        lambda f: edit(f / "tokenizer_config.json", src_lang="xx"),
        "src_lang 'xx', which is not a language token",
    ),
    "a source that is no text": (
        "m2m100",
        lambda f: edit(f / "tokenizer_config.json", src_lang=3),
        "src_lang is 3, not a text",
    ),
    "other codes": (
        "m2m100",
        lambda f: edit(f / "tokenizer_config.json", language_codes="m2m"),
        "language_codes 'm2m': known are m2m100 and wmt21",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_files_that_do_not_fit_are_refused(folders, tmp_path, case):
    family, damage, said = WRONG[case]
    folder = copied(folders / family, tmp_path / "x")
    damage(folder)
    with pytest.raises(DataError, match=r"^[^\n]*$") as error:
        HFRunDirectory(folder).load_tokenizer()
    assert said in str(error.value)
    assert str(folder) in str(error.value)


def test_mixtures_of_experts_are_refused_by_name(folders, tmp_path):
    folder = copied(folders / "nllb", tmp_path / "x")
    edit(folder / "config.json", model_type="nllb-moe")
    with pytest.raises(CheckpointError, match=r'"nllb-moe": mixtures of experts .* m2m_100$'):
        open_hf_checkpoint(folder)


def test_an_unknown_language_is_refused_in_a_line(folders, tmp_path, capfd):
    (tmp_path / "in").write_text("a b\n")
    given = ["translate", str(folders / "nllb"), "--input", str(tmp_path / "in")]
    for more, said in (
        (["--from", "eng_Latn"], "--to is missing: allowed are ace_Arab, "),
        (["--from", "eng_Latn", "--to", "klingon"], "--to: klingon is not a target language"),
    ):
        assert main([*given, *more]) == 2
        error = capfd.readouterr().err
        assert said in error
        assert error.count("\n") == 1
        assert error.endswith(" and 172 others\n")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*length limit")
@pytest.mark.parametrize("family", made.FAMILIES)
def test_a_folder_translates_between_its_languages(folders, tmp_path, family):
    folder = copied(folders / family, tmp_path / "x")
    one, two = made.FAMILIES[family][3]
    translate = tj.load(folder)
    words = {"max_len_b": 2, "max_len_a": 1.0, "num_beams": 2}
    there = translate(["abc", "abc"], from_=one, to=[one, two], **words)
    assert there[0] != there[1]
    edit(folder / "tokenizer_config.json", src_lang=one, tgt_lang=two)
    assert tj.load(folder)("abc", **words) == there[1]
    (tmp_path / "in").write_text("abc\n")
    for more in ([], ["--from", one, "--to", two]):
        given = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), *more]
        given += ["--max-len-b", "2", "--max-len-a", "1", "--num-beams", "2"]
        assert main(["translate", str(folder), *given]) == 0
        assert (tmp_path / "out").read_text() == f"{there[1]}\n"


@pytest.mark.slow
def test_runs_of_one_direction_need_a_default(folders, tmp_path, capfd):
    pytest.importorskip("rouge_score", reason="needs rouge-score")
    (tmp_path / "a.tsv").write_text("abc\td\n" * 4)
    (tmp_path / "a.jsonl").write_text('{"source": "abc", "target": "d"}\n' * 4)
    start = ["--init-from", str(folders / "nllb"), "--output", str(tmp_path / "run")]
    for given, said in (
        (["train", "small", "--data.pairs", str(tmp_path / "a.tsv")], "name the pairs"),
        (["finetune", "summarize", "--data.train", str(tmp_path / "a.jsonl")], "src_lang and"),
    ):
        assert main([*given, *start]) == 2
        error = capfd.readouterr().err.splitlines()[-1]
        assert f"{folders / 'nllb'} translates between ace_Arab, ace_Latn" in error
        assert said in error
