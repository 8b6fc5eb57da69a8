"""Files of several pairs: which sides are read, what is held out, and what is refused."""

import gzip
import json

import pytest

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.languages import Direction
from transformer_jax.data.sources import Files, LanguageSettings, PairData, ReadOptions, load_splits

ROWS = [(f"haus {i}", f"house {i}") for i in range(60)]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    write = lambda name, lines: (folder / name).write_text("".join(f"{one}\n" for one in lines))
    write("de-en.tsv", ("\t".join(row) for row in ROWS))
    write("x.de", (row[0] for row in ROWS))
    write("x.en", (row[1] for row in ROWS))
    write("en-cs.tsv", (f"{row[1]}\tdum {i}" for i, row in enumerate(ROWS)))
    texts = [{"cs": f"dum {i}", "en": row[1], "de": row[0]} for i, row in enumerate(ROWS)]
    write("all.jsonl", (json.dumps({"translation": one}) for one in texts))
    write("empty.tsv", ())
    return folder


def pairs_of(*pairs, **more):
    read = more.pop("read", ReadOptions(validation_size=0))
    return load_splits(PairData(pairs=pairs, read=read, **more))


@pytest.mark.parametrize("name", ["de-en.tsv", "x.de,x.en", "all.jsonl"])
def test_one_file_gives_both_directions(files, name):
    path = ",".join(f"{files}/{one}" for one in name.split(","))
    for first, second in (("de-en", "en-de"), ("en-de", "de-en")):
        if name == "de-en.tsv" and first == "en-de":
            continue  # the first pair says which column comes first
        parts = pairs_of(f"{first}={path}", f"{second}={path}").train.by_direction()
        assert [*map(str, parts)] == [first, second]
        one, other = parts[Direction.parse("de-en")], parts[Direction.parse("en-de")]
        assert list(zip(one.sources, one.targets, strict=True)) == ROWS
        assert (other.sources, other.targets) == (one.targets, one.sources)


@pytest.mark.parametrize("other", ["./de-en.tsv", "{}/de-en.tsv", "de-en.tsv.gz", "link.tsv"])
def test_another_name_of_a_file_is_the_same_file(files, monkeypatch, other):
    monkeypatch.chdir(files)
    (files / "de-en.tsv.gz").write_bytes(gzip.compress((files / "de-en.tsv").read_bytes()))
    (files / "link.tsv").unlink(missing_ok=True)
    (files / "link.tsv").symlink_to("de-en.tsv")
    read = pairs_of("de-en=de-en.tsv", f"en-de={other.format(files)}").train.by_direction()
    assert read[Direction("en", "de")].targets == read[Direction("de", "en")].sources


def test_a_line_says_that_the_sides_of_a_file_are_swapped(files, capfd):
    (files / "copy.tsv").write_text((files / "de-en.tsv").read_text())
    pairs_of(f"de-en={files}/de-en.tsv", f"en-cs={files}/en-cs.tsv", f"en-de={files}/de-en.tsv")
    assert "check the order" not in capfd.readouterr().err
    pairs_of(f"de-en={files}/de-en.tsv", f"en-de={files}/copy.tsv")
    assert (
        "data.pairs: 60 of 60 sentences of en in en-de are sentences of de in de-en: check the "
        "order of the sides in the files of en-de" in capfd.readouterr().err
    )


def test_a_table_names_the_files_of_all_splits_from_its_own_folder(files):
    splits = {"train": {"de-en": ["x.de", "x.en"]}, "test": {"en-de": "de-en.tsv"}}
    (files / "table.json").write_text(json.dumps(splits))
    data = PairData(pairs=str(files / "table.json"))
    found = load_splits(data)
    assert found.train.directions[0] == Direction("de", "en")
    assert [*found.tests] == ["test en-de"]
    assert found.tests["test en-de"].sources[0] == "haus 0"  # the first pair of this setting
    (files / "plain.json").write_text(json.dumps({"de-en": "de-en.tsv"}))
    assert len(load_splits(PairData(pairs=str(files / "plain.json"))).train) > 50
    with pytest.raises(ConfigError, match=r"data\.test is given, and in"):
        load_splits(PairData(pairs=str(files / "table.json"), test=Files(pairs=("de-en=a.tsv",))))


def test_no_sentence_of_validation_is_trained_on_in_any_direction(files):
    names = ("de-en", "en-de"), ("en-cs", "cs-en")
    given = [f"{name}={files}/{pair[0]}.tsv" for pair in names for name in pair]
    splits = pairs_of(*given, read=ReadOptions(validation_size=3))
    assert len(splits.train) + len(splits.valid) == 240
    assert {str(way) for way in splits.valid.directions} == {one for pair in names for one in pair}
    trained = {*splits.train.sources, *splits.train.targets}
    assert not trained & {*splits.valid.sources, *splits.valid.targets}
    assert 4 <= len(splits.valid) <= 12
    again = pairs_of(*given[2:], *given[:2], read=ReadOptions(validation_size=3))
    assert {*again.valid.sources} == {*splits.valid.sources}


def test_a_path_with_an_equals_sign_is_a_path(files):
    (files / "a=b.tsv").write_text("um\tone\n")
    assert PairData(pairs=str(files / "a=b.tsv")).pairs == str(files / "a=b.tsv")
    assert PairData(pairs=("one.tsv",)).pairs == "one.tsv"  # of a flag that takes several
    assert PairData(pairs="de-en=one.tsv").several


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (("de-en=a.tsv", "de-en=b.tsv"), r"data\.pairs: the pair de-en is given twice"),
        (("de=a.tsv", "de-en=b.tsv"), "the pair 'de' must be two languages with a hyphen"),
        (("de-de=a.tsv",), "must be two different languages"),
        (("a.tsv", "b.tsv"), "'a.tsv' names no pair of languages"),
        (("de-en=",), "'de-en=' names no pair"),
        ((), r"data\.pairs is empty"),
        (("de-en={}/de-en.tsv", "en-cs={}/de-en.tsv"), "is given for de-en and for en-cs"),
        (("de-en={}/empty.tsv",), r"de-en \(.*empty\.tsv\): no sentence pairs: it is empty"),
        (("de-en={}/none.tsv",), r"none\.tsv"),
        (("de-en={}/de-en.txt",), r"pairs de-en .*ends in none of \.tsv, \.csv, \.jsonl and"),
        (("{}/x.de,{}/x.en",), "two aligned files are data.source and data.target, or de-en=FILE"),
    ],
)
def test_bad_pairs_are_refused_in_one_line(files, pairs, message):
    with pytest.raises((ConfigError, DataError), match=message) as error:
        pairs_of(*(one.replace("{}", str(files)) for one in pairs))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pairs": ("de-en=a.tsv",), "valid": Files(pairs="b.tsv")}, r"data\.valid: its files"),
        ({"pairs": "a.tsv", "test": Files(pairs=("de-en=b.tsv",))}, r"data\.test: its files"),
        ({"pairs": "a.tsv", "languages": LanguageSettings("none")}, "for several pairs"),
        ({"pairs": ("de-en=a.tsv",), "source": "a"}, "more than one way"),
    ],
)  # fmt: skip
def test_names_of_some_files_alone_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        PairData(**settings)


@pytest.mark.parametrize("text", ["[", "[1]", '{"de-en": 3}', '{"train": {"de": "a"}}', '"a"'])
def test_a_damaged_table_is_refused(tmp_path, text):
    (tmp_path / "table.json").write_text(text)
    with pytest.raises((DataError, ConfigError), match=r"data\.pairs .*table\.json"):
        load_splits(PairData(pairs=str(tmp_path / "table.json")))
