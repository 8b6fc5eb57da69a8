"""Pairs from files: what is read, what is counted out, what is refused and in which words."""

import contextlib
import dataclasses
import gzip
import json
import random
import re

import pytest
import tyro

from transformer_jax.core.config_dict import from_dict
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.core.old_names import current_config
from transformer_jax.data.aligned import find_misalignment
from transformer_jax.data.corpora import phrasebook
from transformer_jax.data.images.picture_tables import read_images
from transformer_jax.data.labeled_files import read_sentences
from transformer_jax.data.sources import (
    Files,
    PairData,
    Pairs,
    ReadOptions,
    hold_out,
    load_splits,
    read_pairs,
)
from transformer_jax.data.speech.recordings import read_manifest
from transformer_jax.data.summaries import SummaryData, SummaryOptions, load_summaries
from transformer_jax.recipes.driver import create_run
from transformer_jax.recipes.explicit_settings import Given
from transformer_jax.recipes.registry import named_runs

RUNS = named_runs("translation", "recurrent_translation")


@pytest.fixture
def write(tmp_path):
    def make(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return make


def test_aligned_files_make_pairs(write):
    pairs = read_pairs(Files(write("a", " um \r\ndois\n"), write("b", "one\ntwo\t")))
    assert list(zip(pairs.sources, pairs.targets, strict=True)) == [("um", "one"), ("dois", "two")]
    assert (len(pairs), pairs[1], pairs.counts) == (2, ("dois", "two"), {})


def test_a_pair_with_an_empty_side_is_dropped_whole_and_counted(write):
    source = write("a", "um\n\ntres\n \u2003\ncinco\n")
    target = write("b", "one\ntwo\n\t\nfour\nfive")
    pairs = read_pairs(Files(source, target))
    assert pairs.sources == ["um", "cinco"]
    assert pairs.targets == ["one", "five"]
    assert pairs.counts == {"empty": 3}


def test_lowercase_is_for_both_sides(write):
    files = Files(write("a", "ÁGUA É\n"), write("b", "Water IS\n"))
    assert read_pairs(files, ReadOptions(lowercase=True))[0] == ("água é", "water is")
    assert read_pairs(files)[0] == ("ÁGUA É", "Water IS")


@pytest.mark.parametrize(("a", "b"), [("", "x\n"), ("x\n", ""), ("", "")])
def test_an_empty_file_is_refused(write, a, b):
    with pytest.raises(DataError, match="empty"):
        read_pairs(Files(write("a", a), write("b", b)))


def test_nothing_but_empty_lines_is_refused(write):
    with pytest.raises(DataError, match="all 2 of its pairs have an empty side"):
        read_pairs(Files(write("a", "\nx\n"), write("b", "y\n\n")))


@pytest.mark.parametrize("kind", ["aligned", "tsv", "jsonl"])
def test_every_line_of_what_is_scored_stays_and_training_pairs_have_both_sides(write, kind):
    rows = [("um", "one"), ("", "two"), ("tres", " "), ("\u3000", "four"), ("", "")]
    if kind == "aligned":
        sides = [write(f"{i}", "".join(f"{row[i]}\n" for row in rows)) for i in (0, 1)]
        files, train = Files(*sides), {"source": sides[0], "target": sides[1]}
    elif kind == "tsv":
        files = Files(pairs=write("a.tsv", "".join(f"{a}\t{b}\n" for a, b in rows)))
        train = {"pairs": files.pairs}
    else:
        lines = [json.dumps({"source": a, "target": b}) for a, b in rows]
        files = Files(pairs=write("a.jsonl", "\n".join(lines)))
        train = {"pairs": files.pairs}
    splits = load_splits(PairData(**train, valid=files, test=files))
    assert (len(splits.train), splits.train.counts) == (1, {"empty": 4})
    for part in (splits.valid, splits.tests["test"]):
        assert part.sources == ["um", "", "tres", "", ""]
        assert part.targets == ["one", "two", "", "four", ""]
        assert part.with_prefix("to: ").sources == ["to: um", "", "to: tres", "", ""]
        assert part.without_empty().targets == ["one"]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("missing", [1, 3])
@pytest.mark.parametrize("side", [0, 1])
def test_missing_lines_are_counted_and_located(write, seed, missing, side):
    draw = random.Random(seed)
    lengths = [draw.randint(5, 150) for _ in range(400)]
    sides = [
        ["x" * n for n in lengths],
        ["y" * max(1, int(n * draw.gauss(1.1, 0.1))) for n in lengths],
    ]
    at = draw.randint(0, 380)
    del sides[side][at : at + missing]
    files = Files(*(write(name, "\n".join(lines)) for name, lines in zip("ab", sides, strict=True)))
    with pytest.raises(DataError) as error:
        read_pairs(files)
    message = str(error.value)
    assert f"has {len(sides[0])} lines and {files.target} has {len(sides[1])}" in message
    found = int(re.search(r"near line (\d+)", message)[1])
    assert abs(found - (at + 1)) <= 3


def test_parting_line_of_short_files():
    assert find_misalignment([4], [4, 9]) in (1, 2)
    assert find_misalignment([9], [4, 9]) == 1
    assert find_misalignment([], [4, 9]) == 1


def test_tsv_takes_two_columns_and_refuses_others(write):
    path = write("pairs.tsv", 'um "x\tone\n\ndois\ttwo\n')
    pairs = read_pairs(Files(pairs=path))
    assert pairs[0] == ('um "x', "one")
    assert pairs.counts == {"empty": 1}
    path = write("pairs.tsv", "um\tone\ndois\ttwo\textra\n")
    with pytest.raises(DataError, match=r"pairs\.tsv:2: 3 columns, but 2 are needed"):
        read_pairs(Files(pairs=path))
    path = write("pairs.tsv", "um\tone\ndois two\n")
    with pytest.raises(DataError, match=r"pairs\.tsv:2: 1 column, but 2 are needed"):
        read_pairs(Files(pairs=path))


def test_tsv_columns_are_chosen_from_one_and_all_lines_are_alike(write):
    path = write("spa.txt", "one\tum\tby A\ntwo\tdois\tby B\n")
    read = ReadOptions(columns=(2, 1), format="tsv")
    assert read_pairs(Files(pairs=path), read)[1] == ("dois", "two")
    path = write("spa.txt", "one\tum\tby A\ntwo\tdois\n")
    with pytest.raises(DataError, match=r"spa\.txt:2: 2 columns, but 3 are needed"):
        read_pairs(Files(pairs=path), read)
    path = write("spa.txt", "one\n")
    with pytest.raises(DataError, match=r"spa\.txt:1: 1 column, but 2 are needed"):
        read_pairs(Files(pairs=path), read)


def test_jsonl_takes_named_fields(write):
    rows = [{"pt": "u\u2028m", "en": "one", "n": 1}, {"en": "two", "pt": "dois"}]
    text = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    path = write("pairs.jsonl.gz", gzip.compress(text.encode()))
    pairs = read_pairs(Files(pairs=path), ReadOptions(fields=("pt", "en")))
    assert pairs.sources == ["u\u2028m", "dois"]
    assert pairs.targets == ["one", "two"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"source": "a", "target": ', "not JSON"),
        ("[" * 200_000, "not JSON"),
        ('["a", "b"]', "a JSON object is needed, found a list"),
        ('{"source": "a", "tgt": "b"}', "no field 'target', only 'source', 'tgt'"),
        ('{"source": "a", "target": 3}', "field 'target' is a number; text is needed"),
        ('{"source": "a", "target": null}', "field 'target' is null"),
        (r'{"source": "a", "target": "\ud800"}', "half a character"),
        (r'{"source": "a\u0000", "target": "b"}', "holds NUL"),
        (r'{"source": "a\nb", "target": "b"}', "a line break"),
    ],
)
def test_bad_jsonl_is_named_by_file_and_line(write, line, message):
    path = write("pairs.jsonl", '{"source": "a", "target": "b"}\n' + line + "\n")
    with pytest.raises(DataError, match=r"pairs\.jsonl:2: ") as error:
        read_pairs(Files(pairs=path))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_of_pairs_needs_a_known_ending(write):
    with pytest.raises(
        ConfigError, match=r"data\.pairs .*pairs\.txt: .* none of \.tsv, \.csv, \.jsonl and"
    ):
        read_pairs(Files(pairs=write("pairs.txt", "a\tb\n")))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"corpus": "phrasebook", "tfds": "x"}, "more than one way (data.corpus, data.tfds)"),
        ({"source": "a", "target": "b", "pairs": "c"}, "more than one way"),
        ({"corpus": "phrasebook", "source": "a", "target": "b"}, "more than one way"),
        ({"source": "a"}, "data.target is missing"),
        ({"target": "a"}, "data.source is missing"),
        (
            {"source": "a", "target": "b", "valid": Files(source="c")},
            "data.valid.target is missing",
        ),
        ({"source": "a", "target": "b", "test": Files("c", "d", "e")}, "data.test.pairs is given"),
        ({"corpus": "phrasebook", "tfds_dir": "x"}, "without data.tfds"),
        ({"read": {"max_length": 1}}, "data.read.max_length is 1: at least 2"),
        ({"read": {"columns": (0, 1)}}, "data.read.columns is (0, 1): 0 in it: at least 1"),
        ({"read": {"columns": (2, 2)}}, "data.read.columns 2 2"),
        ({"read": {"validation_size": -1}}, "data.read.validation_size is -1"),
        ({"read": {"corpus_size": 0}}, "data.read.corpus_size is 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ConfigError) as error:
        PairData(**settings | {"read": ReadOptions(**settings.get("read", {}))})
    assert message in str(error.value)


def test_no_data_is_refused_when_it_is_needed():
    with pytest.raises(ConfigError, match="no training data: give"):
        load_splits(PairData())


def test_a_missing_file_names_its_setting(write):
    data = PairData(source=write("a", "x\n"), target="absent.en")
    with pytest.raises(DataError, match=r"data\.target absent\.en: no such file"):
        load_splits(data)
    data = PairData(source=write("a", "x\n"), target=write("b", "y\n"), valid=Files(pairs="v.tsv"))
    with pytest.raises(DataError, match=r"data\.valid\.pairs v\.tsv: no such file"):
        load_splits(data)


def test_settings_survive_json_and_the_command_line():
    data = tyro.cli(
        PairData,
        args=[
            *["--source", "a.de", "--target", "a.en", "--valid.pairs", "v.tsv"],
            *[
                "--read.columns",
                "2",
                "1",
                "--read.too-long",
                "truncate",
                "--read.fields",
                "de",
                "en",
            ],
        ],
    )
    assert data.valid == Files(pairs="v.tsv")
    assert data.read == ReadOptions(columns=(2, 1), too_long="truncate", fields=("de", "en"))
    assert from_dict(PairData, json.loads(json.dumps(dataclasses.asdict(data)))) == data


def numbered(count):
    return Pairs([f"s{i}" for i in range(count)], [f"t{i}" for i in range(count)], "example")


def test_held_out_pairs_are_a_function_of_the_sentences_not_of_their_order():
    pairs = numbered(500)
    train, valid = hold_out(pairs, 40)
    assert (len(train), len(valid)) == (460, 40)
    assert sorted(train.sources + valid.sources) == sorted(pairs.sources)
    assert all(source[1:] == target[1:] for source, target in (valid[i] for i in range(40)))
    order = random.Random(0).sample(range(500), 500)
    other = Pairs([pairs.sources[i] for i in order], [pairs.targets[i] for i in order], "example")
    assert set(hold_out(other, 40)[1].sources) == set(valid.sources)


def test_equal_sources_are_held_out_together():
    draw = random.Random(1)
    sources = [f"s{draw.randint(0, 60)}" for _ in range(1000)]
    train, valid = hold_out(Pairs(sources, [f"t{i}" for i in range(1000)], "example"), 70)
    assert not set(train.sources) & set(valid.sources)
    assert 35 <= len(valid) <= 70


def test_no_held_out_sentence_of_either_side_is_trained_on():
    draw = random.Random(2)
    sources = [f"s{draw.randint(0, 700)}" for _ in range(1000)]
    targets = [f"t{draw.randint(0, 700)}" for _ in range(1000)]
    train, valid = hold_out(Pairs(sources, targets, "example"), 70)
    assert not set(train.sources) & set(valid.sources)
    assert not set(train.targets) & set(valid.targets)
    assert 35 <= len(valid) <= 70
    order = draw.sample(range(1000), 1000)
    pairs = Pairs([sources[i] for i in order], [targets[i] for i in order], "example")
    assert sorted(hold_out(pairs, 70)[1].sources) == sorted(valid.sources)


def test_a_run_of_earlier_versions_holds_out_what_it_held_out():
    sources = [f"s{i // 2}" for i in range(200)]
    pairs = Pairs(sources, ["one target"] * 200, "example")
    train, valid = hold_out(pairs, 10, "source")
    assert (len(train), len(valid)) == (190, 10)
    read = {"fields": None, "lowercase": False}
    assert current_config({"data": {"read": read}})["data"]["read"] == read | {
        "normalization": "none",
        "grouped_by": "source",
    }


def test_targets_that_are_classes_leave_validation_pairs_and_are_counted(write):
    rows = [(f"s{i // 2}", ("yes", "no")[i % 2]) for i in range(200)]
    path = write("a.tsv", "".join(f"{source}\t{target}\n" for source, target in rows))
    splits = load_splits(PairData(pairs=path, read=ReadOptions(validation_size=10)))
    assert (len(splits.train), len(splits.valid)) == (190, 10)
    assert not set(splits.train.sources) & set(splits.valid.sources)
    said = "of 10 pairs, 0 sources, 10 targets and 0 whole pairs are also in the training data"
    assert splits.overlaps == (f"{path} (held out): {said}",)
    path = write("a.jsonl", "".join(json.dumps({"source": s, "target": t}) + "\n" for s, t in rows))
    splits = load_summaries(SummaryData(path, read=SummaryOptions(validation_size=10)))
    assert (len(splits.train), len(splits.valid)) == (190, 10)
    assert splits.overlaps == (f"{path} (held out): {said}",)


def test_given_sentences_that_are_trained_on_are_counted(write):
    train = write("train.tsv", "um\tone\ndois\ttwo\ntr\u00eas\tthree\n")
    valid = write("valid.tsv", "um\tone\ntre\u0302s\t3\nquatro\ttwo\nseis\tsix\n")
    splits = load_splits(PairData(pairs=train, valid=Files(pairs=valid)))
    said = "of 4 pairs, 2 sources, 2 targets and 1 whole pair are also in the training data"
    assert splits.overlaps == (f"{valid}: {said}",)
    held = PairData(pairs=train, read=ReadOptions(validation_size=1))
    assert load_splits(held).overlaps == ()


def test_translations_of_hugging_face_are_read(write):
    rows = [
        {"id": "0", "translation": {"en": "one", "fr": "un"}},
        {"translation": {"en": "two\n", "fr": "deux"}},
    ]
    path = write("books.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    pairs = read_pairs(Files(pairs=path), ReadOptions(fields=("fr", "en")))
    assert (pairs.sources, pairs.targets) == (["un", "deux"], ["one", "two"])
    # Without names the order of the first line says which is which.
    assert read_pairs(Files(pairs=path)).sources == ["one", "two"]


def test_the_training_file_says_which_language_is_the_source(write, tmp_path):
    def pairs(name, *languages):
        rows = [{"translation": {lang: f"{lang} {name} {i}" for lang in languages}} for i in "abc"]
        return write(f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    test = Files(pairs=pairs("test", "fr", "en"))
    data = PairData(pairs=pairs("train", "en", "fr"), valid=test, test=test)
    splits = load_splits(data)
    for part in (splits.train, splits.valid, splits.tests["test"]):
        assert {text[:2] for text in part.sources} == {"en"}
    named = RUNS["small"][1]
    small = dataclasses.replace(named, data=data, output=str(tmp_path / "run"))
    kept, _, _ = create_run(small, Given(named))
    assert kept.data.read.fields == ("en", "fr")  # for evaluate
    others = dataclasses.replace(data, test=Files(pairs=pairs("others", "de", "en")))
    with pytest.raises(DataError, match="no field 'fr'"):
        load_splits(others)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"translation": {"en": "one"}}, "translation holds 1 language (en)"),
        ({"translation": {"en": "one", "fr": "un", "de": "eins"}}, "data.read.fields"),
        ({"translation": {"en": "one", "fr": 3}}, "field 'fr' is a number"),
        ({"translation": "one"}, "no field 'source'"),
        ({"language": ["en", "fr"], "translation": ["one", "un"]},
         "language and translation are lists, of any number of texts, and a pair is needed"),
        ({"translation": {"language": ["en"], "translation": ["one"]}}, "one line per pair"),
    ],
)  # fmt: skip
def test_translations_that_are_no_pair_are_refused(write, line, message):
    path = write("books.jsonl", json.dumps(line) + "\n")
    with pytest.raises(DataError, match=re.escape(message)) as error:
        read_pairs(Files(pairs=path))
    assert f"{path}:1: " in str(error.value)
    assert "\n" not in str(error.value)


def test_at_most_a_tenth_is_held_out():
    assert len(hold_out(numbered(50), 1000)[1]) == 5
    train, valid = hold_out(numbered(9), 1000)
    assert len(train) == 9
    assert valid is None
    assert hold_out(numbered(50), 0)[1] is None


def test_the_built_in_corpus_has_all_its_parts_and_either_direction(monkeypatch):
    def generate(split, count, seed):
        return [(f"{split} pt {i}", f"{split} en {i}") for i in range(count)]

    monkeypatch.setattr(phrasebook, "generate", generate)
    data = PairData(corpus="phrasebook", read=ReadOptions(corpus_size=300))
    splits = load_splits(data)
    parts = [splits.train, splits.valid, *splits.tests.values()]
    assert [len(part) for part in parts] == [300, 500, 1000, 1000]
    assert list(splits.tests) == ["test", "test_unseen"]
    names = ["train", "valid", "test", "test_unseen"]
    assert [part[7] for part in parts] == [(f"{name} pt 7", f"{name} en 7") for name in names]
    swapped = load_splits(
        dataclasses.replace(data, read=ReadOptions(corpus_size=300, fields=("en", "pt")))
    )
    assert swapped.train.sources == splits.train.targets
    assert swapped.train.targets == splits.train.sources
    with pytest.raises(ConfigError, match="fields de en: phrasebook has pt and en"):
        load_splits(dataclasses.replace(data, read=ReadOptions(fields=("de", "en"))))


def test_given_validation_and_test_files_are_used(write):
    data = PairData(
        source=write("a", "\n".join(f"s{i}" for i in range(100))),
        target=write("b", "\n".join(f"t{i}" for i in range(100))),
        valid=Files(write("c", "sv\n"), write("d", "tv\n")),
        test=Files(pairs=write("e.tsv", "st\ttt\n")),
    )
    splits = load_splits(data)
    assert len(splits.train) == 100
    assert splits.valid[0] == ("sv", "tv")
    assert splits.tests["test"][0] == ("st", "tt")
    held = load_splits(dataclasses.replace(data, valid=Files()))
    assert (len(held.train), len(held.valid)) == (90, 10)


QUOTED = '"He said ""hi"""\t"oui"\na ""b""\tc\n"x"\t"y ""z"""\n'


@pytest.mark.parametrize(
    ("head", "name", "read"),
    [
        ("", "a.tsv", lambda path: read_pairs(Files(pairs=path))),
        ("text\tlabel\n", "a.tsv", lambda path: read_sentences(path, "classify")),
        ("image\tlabel\n", "a.tsv", read_images),
        ("path\ttext\n", "a.tsv", lambda path: read_manifest(path, bad_rows="skip")),
    ],
    ids=["pairs", "labels", "pictures", "recordings"],
)
def test_a_table_that_is_quoted_as_csv_is_told(tmp_path, capsys, head, name, read):
    (tmp_path / name).write_text(head + QUOTED)
    with contextlib.suppress(DataError):  # there are no recordings
        read(str(tmp_path / name))
    assert capsys.readouterr().err.count("a.tsv: 2 lines with cells in quotes") == 1


@pytest.mark.parametrize(("head", "lines"), [("Source\ttarget ", 1), ("source\tun", 0)])
def test_a_line_of_names_before_pairs_is_told(tmp_path, capsys, head, lines):
    path = tmp_path / "a.tsv"
    path.write_text(f"{head}\none\tun\nsource\ttarget\n")
    assert len(read_pairs(Files(pairs=str(path)))) == 3
    assert capsys.readouterr().err.count(f"{path}:1: 'Source' and 'target ' look like") == lines


@pytest.mark.parametrize("rows", [1, 300])
def test_a_run_without_validation_is_told(tmp_path, capsys, rows):
    path = tmp_path / "a.tsv"
    path.write_text("one\tun\n" * rows)
    assert load_splits(PairData(pairs=str(path))).valid is None
    assert capsys.readouterr().err.count(f"{path}: no validation: at most a tenth") == 1
    (tmp_path / "a.jsonl").write_text('{"source": "one", "target": "un"}\n' * rows)
    assert load_summaries(SummaryData(train=str(tmp_path / "a.jsonl"))).valid is None
    assert "a.jsonl: no validation: at most a tenth is held out" in capsys.readouterr().err
    load_splits(PairData(pairs=str(path), read=ReadOptions(validation_size=0)))
    assert "no validation" not in capsys.readouterr().err
