"""No name in a file makes the program talk to another machine."""

import json
from pathlib import Path

import pytest

from transformer_jax.cli.caption import Caption
from transformer_jax.cli.support.input_lines import check_lines, given_lines, given_texts
from transformer_jax.cli.support.pictures import picture_paths
from transformer_jax.core.errors import DataError
from transformer_jax.data.files import listed_path
from transformer_jax.data.images.picture_tables import read_images
from transformer_jax.data.pair_files import read_table
from transformer_jax.data.speech.recordings import read_manifest

URLS = ("s3://bucket/x", "s3:/bucket/x", "gs://bucket/x", "https://host/x", "file:///etc/x")


def table(text):
    return lambda path, url: path.write_text(text.replace("URL", url))


def caption_input(path):
    return Caption(path.parent, (), input=path).given_pictures()


def standard_input(path):
    with pytest.MonkeyPatch.context() as patch, path.open() as file:
        patch.setattr("sys.stdin", file)
        return list(picture_paths(given_lines(()), listed=True))


# Files that name other files, each with its reader.
DOORS = {
    "pictures.csv": (table("image,label\nURL.png,x\n"), read_images),
    "pictures.tsv": (table("image\tlabel\nURL.png\tx\n"), read_images),
    "pictures.jsonl": (table('{"image": "URL.png", "label": "x"}\n'), read_images),
    "manifest.tsv": (table("URL.wav\tx\n"), read_manifest),
    "manifest.jsonl": (table('{"audio_filepath": "URL.wav", "text": "x"}\n'), read_manifest),
    "pairs.json": (table('{"de-en": "URL.tsv"}'), lambda path: read_table(path, "data.pairs")),
    "two.json": (table('{"de-en": ["a.de", "URL.en"]}'), lambda path: read_table(path, "x")),
    "input": (table("URL.png\n"), caption_input),
    "standard input": (table("URL.png\n"), standard_input),
}


@pytest.mark.parametrize("door", DOORS)
def test_an_address_in_a_file_is_refused_before_anything_is_opened(tmp_path, monkeypatch, door):
    write, read = DOORS[door]
    connected = []
    monkeypatch.setattr(
        "transformer_jax.core.storage.copies.Objects", lambda url: connected.append(url)
    )
    for url in URLS:
        path = tmp_path / door
        write(path, url)
        given = path if door in ("input", "standard input") else str(path)
        with pytest.raises(DataError, match="is on another machine, which only a command may name"):
            read(given)
    assert not connected


def test_addresses_on_the_command_line_are_followed():
    [(_, path)] = picture_paths([("picture 1", "s3://bucket/x.png")])
    assert path == "s3://bucket/x.png"


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("a.png", "s3://bucket/data/a.png"),
        ("./more/../a.png", "s3://bucket/data/a.png"),
        ("s3://bucket/data/a.png", "s3://bucket/data/a.png"),
        ("../other/a.png", None),
        ("s3://bucket/other/a.png", None),
        ("s3://bucket/data/../other/a.png", None),
        ("s3://bucket/data.old/a.png", None),
        ("s3://other/data/a.png", None),
    ],
)
def test_a_table_in_an_object_store_names_files_in_its_own_folder(name, wanted):
    if wanted is not None:
        assert listed_path(name, "s3://bucket/data", "a.csv:1") == wanted
        return
    with pytest.raises(DataError, match=r"a.csv:1: .* is (not in|on another machine)"):
        listed_path(name, "s3://bucket/data", "a.csv:1")


def test_names_on_this_machine_are_relative_to_the_file(tmp_path):
    (tmp_path / "pairs.json").write_text(json.dumps({"de-en": ["a.de", "/b/a.en"]}))
    found = read_table(str(tmp_path / "pairs.json"), "data.pairs")
    assert found == {"train": (f"de-en={tmp_path}/a.de,/b/a.en",)}


def test_the_name_of_a_file_among_texts_is_told(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("text\n")
    texts = (str(tmp_path / "a.csv"), "a dog", "x" * 5000)
    assert [text for _, text in given_texts(texts)] == [*texts]
    said = capsys.readouterr().err
    assert said == f"note: {texts[0]} is a file, but read as a text: < {texts[0]} gives its lines\n"


def test_a_folder_of_texts_is_refused_with_how_to_give_its_lines(tmp_path):
    with pytest.raises(DataError, match=r"folder; a file is needed, or - .* cat .*\*\.txt \|"):
        check_lines(tmp_path, "embed")
    check_lines(Path("-"), "embed")
