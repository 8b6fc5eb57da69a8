"""CSV is read as RFC 4180 says, and columns with usual names are found and named."""

import csv
import io
import json
import random

import pytest

from tests.doors.readers import write_picture
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.bad_rows import BadRows
from transformer_jax.data.images.columns import Columns
from transformer_jax.data.images.picture_tables import read_images
from transformer_jax.data.labeled_files import LabeledOptions, read_sentences
from transformer_jax.data.sources import Files, ReadOptions, read_pairs
from transformer_jax.data.speech.recordings import read_manifest
from transformer_jax.data.tables import cell_rows, json_rows


@pytest.fixture
def write(tmp_path):
    def make(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return make


def rows_of(path):
    return [cells for _, cells in cell_rows(path, "csv")]


@pytest.mark.parametrize("seed", range(20))
def test_what_a_writer_of_csv_wrote_comes_back(seed, write):
    rng = random.Random(seed)
    cell = lambda: "".join(rng.choices('ab ,";\n\t\u00e9\u2028', k=rng.randrange(1, 9))) + "x"
    wanted = [[cell() for _ in range(rng.randrange(1, 5))] for _ in range(30)]
    text = io.StringIO()
    quoting = rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    end = rng.choice(["\n", "\r\n"])
    csv.writer(text, quoting=quoting, lineterminator=end).writerows(wanted)
    assert rows_of(write("a.csv", "\ufeff" * (seed % 2) + text.getvalue())) == wanted


def test_a_row_has_the_number_of_its_first_line(write):
    path = write("a.csv", 'one,"two\nlines"\n\n,\nthree,four\n')
    assert [*cell_rows(path, "csv")] == [
        (1, ["one", "two\nlines"]), (3, []), (4, []), (5, ["three", "four"]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('a,"b\nc,d\n', "a.csv:1: not CSV: a quote that begins a cell is not closed in the lines"),
        ('a,b\n"c"d,e\n', "a.csv:2: not CSV: .* those inside are doubled"),
        (b'a,"b\n\xff\nc",d\n', "a.csv:2: not UTF-8"),
    ],
)
def test_what_is_not_csv_is_refused_with_its_line(content, message, write):
    with pytest.raises(DataError, match=message):
        rows_of(write("a.csv", content))


def test_skipping_loses_no_row_and_makes_none(write):
    bad = BadRows("a.csv", "skip")
    path = write("a.csv", b'one,1\n"two"2,2\n"thr\n\xff\nee",3\nfour,4\n')
    assert [*cell_rows(path, "csv", rows=bad)] == [(1, ["one", "1"]), (6, ["four", "4"])]
    assert bad.count == 3  # the quote, the line that is not text, and the row around it


def test_an_open_quote_is_not_skipped(write):
    bad = BadRows("a.csv", "skip")
    with pytest.raises(DataError, match=r"a\.csv:2: not CSV: a quote"):
        [*cell_rows(write("a.csv", 'one,1\n"two,2\nthree,3\n'), "csv", rows=bad)]


def test_usual_columns_are_found_and_named(write, capsys):
    path = write("a.csv", 'id,Review,sentiment\n1,"Good, ""very"" good",pos\n')
    found = read_sentences(path, "classify")
    assert (found.texts, found.labels) == (['Good, "very" good'], ["pos"])
    said = capsys.readouterr().err
    assert "a.csv: the column of text is 'Review' and of label is 'sentiment'\n" in said
    assert "a.csv: column not read: 1 (id)" in said


def test_a_choice_is_never_a_guess(write):
    path = write("a.csv", "review,sentiment,rating\nGood,pos,5\n")
    with pytest.raises(DataError, match="'label' is not in the header, which has 'review', 'sent"):
        read_sentences(path, "classify")
    assert read_sentences(path, "classify", LabeledOptions(label="rating")).labels == ["5"]


@pytest.mark.parametrize(
    ("header", "options"),
    [
        ("source,target\n", {}),
        ("Target,id,SRC\n", {}),
        ("en,id,fr\n", {"fields": ("fr", "en")}),
        ("", {"columns": (3, 1)}),
        ("", {}),
    ],
)
def test_pairs_are_named_numbered_or_two(header, options, write):
    row = {"source,target\n": '"un, deux",one', "": 'one,7,"un, deux"'}
    line = row.get(header, 'one,7,"un, deux"')
    if header == "" and not options:
        line = '"un, deux",one'
    pairs = read_pairs(Files(pairs=write("a.csv", header + line + "\n")), ReadOptions(**options))
    assert (pairs.sources, pairs.targets) == (["un, deux"], ["one"])


def test_languages_name_the_columns_of_a_direction(write):
    path = write("a.csv", "en,de\none,eins\n")
    pairs = read_pairs(Files(pairs=(f"de-en={path}", f"en-de={path}")))
    assert pairs.sources == ["eins", "one"]
    with pytest.raises(DataError, match="the first line does not have the columns 'de' and 'fr'"):
        read_pairs(Files(pairs=path), ReadOptions(fields=("de", "fr")))
    with pytest.raises(DataError, match=r"a\.csv:2: a cell holds a line break"):
        read_pairs(Files(pairs=write("a.csv", 'source,target\n"a\nb",c\n')))


def test_manifests_of_others_are_read(write, tmp_path):
    for name in ("a.wav", "b.wav"):
        (tmp_path / name).touch()
    common_voice = "client_id\tpath\tsentence\tup_votes\nx\ta.wav\tOne.\t2\n"
    assert read_manifest(write("train.tsv", common_voice)).texts == ["One."]
    deep_speech = "wav_filename,wav_filesize,transcript\nb.wav,4,two\n"
    assert read_manifest(write("train.csv", deep_speech)).texts == ["two"]
    nemo = {"audio_filepath": "a.wav", "text": "one", "duration": 1.5, "offset": 0.5}
    assert read_manifest(write("train.json", json.dumps(nemo) + "\n")).texts == ["one"]
    with pytest.raises(ConfigError, match=r"ends in \.tsv, \.csv, \.jsonl or \.json"):
        read_manifest(write("train.txt", nemo["text"]))


@pytest.mark.parametrize("header", ["premise,hypothesis,label", "question1,Question2,is_duplicate"])
def test_half_of_a_pair_is_never_taken_for_a_text(header, write):
    path = write("a.csv", f"{header}\none,two,yes\n")
    with pytest.raises(ConfigError, match=r"a\.csv:1: has a second text, '[hQ]"):
        read_sentences(path, "classify")
    assert read_sentences(path, "pair").text_pairs == ["two"]


CAPTIONS = [("a.png", "A red square, small."), ("a.png", "A square."), ("b.png", "Another | one.")]
PUBLIC = {
    "Flickr8k, first form": ("Flickr8k.token.txt", "Flicker8k_Dataset", "".join(
        f"{name}#{i}\t{text}\n" for i, (name, text) in enumerate(CAPTIONS))),
    "Flickr8k, captions.txt": ("captions.txt", "Images", "image,caption\n" + "".join(
        f'{name},"{text}"\n' for name, text in CAPTIONS)),
    "Flickr30k": ("results.csv", "flickr30k_images", "image_name| number| comment\n" + "".join(
        f"{name}| {i}| {text}\n" for i, (name, text) in enumerate(CAPTIONS))),
    "COCO": ("annotations/captions_val2017.json", "val2017", json.dumps({
        "info": {}, "images": [{"id": 7, "file_name": "a.png"}, {"id": 9, "file_name": "b.png"}],
        "annotations": [{"id": i, "image_id": {"a": 7, "b": 9}[name[0]], "caption": text}
                        for i, (name, text) in enumerate(CAPTIONS)]})),
    "next to the table": ("captions.txt", "", "image,caption\n" + "".join(
        f'{name},"{text}"\n' for name, text in CAPTIONS)),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLIC)
def test_captions_of_public_data_sets_are_read_where_they_lie(name, tmp_path):
    file, folder, text = PUBLIC[name]
    for picture in ("a.png", "b.png"):
        write_picture(tmp_path / folder / picture)
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    table = read_images(str(path), Columns(text_kind="caption"))
    assert [
        (table.keys[row], text) for row, text in zip(table.rows, table.texts, strict=True)
    ] == CAPTIONS
    assert table.pictures.where(0)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("a.txt", "a.png#0\tone\nb.png\ttwo\n", r"a.txt:2: NAME#NUMBER, a tab and a caption"),
        ("a.json", '{"images": []}', "a.json: not COCO's captions"),
        ("a.json", '{"images": [', "a.json: not JSON"),
        ("a.json", '{"images": [], "annotations": [{"image_id": [1], "caption": "a"}]}',
         "a.json: not COCO's captions"),
        ("a.json", '{"images": [], "annotations": [{"image_id": 1, "caption": "a"}]}',
         "a.json: annotation 1: no picture 1"),
    ],
)  # fmt: skip
def test_captions_that_are_none_are_refused(file, text, message, write):
    with pytest.raises(DataError, match=message):
        read_images(write(file, text), Columns(text_kind="caption"))


def test_of_two_columns_with_one_name_neither_is_read(write):
    path = write("a.csv", "text,id,text\none,1,two\n")
    [(_, row)] = json_rows(path)
    assert row.text("id", "name another") == "1"
    with pytest.raises(DataError, match=r"a.csv:2: field 'text' is in two columns; text is needed"):
        row.text("text", "name another")
