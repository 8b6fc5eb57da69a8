"""Captioners from a table of pictures: trained, resumed, started from parts, used and refused."""

import json
import shutil
import warnings

import jax
import numpy as np
import pytest
from PIL import Image

import transformer_jax as tj
from tests.cli.conftest import language_run
from tests.recipes.captioners import DECODER, FEW, SIZES, table, train
from transformer_jax.cli.main import main
from transformer_jax.core.errors import ArgumentError, DataError
from transformer_jax.core.trees import flatten_dict
from transformer_jax.runs.run_directory import RunDirectory

pytestmark = pytest.mark.slow  # the recipe's programs are compiled; laws of parts are quick


@pytest.fixture(scope="module")
def pictures(shared):
    return shared("pictures of colors", table)


@pytest.fixture(scope="module")
def run(shared, pictures):
    return shared("run of captions", lambda folder: train(folder, pictures))


def params_of(run, which="last"):
    found = flatten_dict(RunDirectory.open(run).load_params(which).params)
    return {name: np.asarray(leaf) for name, leaf in found.items()}


def test_a_run_is_trained_described_and_scored(run, pictures, capfd, tmp_path):
    results = json.loads((run / "results.json").read_text())["tests"]
    assert {"exact", "sacrebleu", "cider"} <= next(iter(results.values())).keys()
    written = tmp_path / "texts"
    assert main(["evaluate", str(run), "--num-beams", "1", "--output", str(written)]) == 0
    assert "CIDEr-D" in capfd.readouterr().out
    assert len(written.read_text().splitlines()) == 10
    assert main(["evaluate", str(run), "--data.images", str(pictures)]) == 0
    assert "of 10 captions" in capfd.readouterr().out
    assert main(["describe", str(run)]) == 0
    assert "VisionEncoder" in capfd.readouterr().out


def test_commands_write_captions_and_heat_maps(run, pictures, capfd, tmp_path):
    page, listed = tmp_path / "page.html", tmp_path / "list.txt"
    listed.write_text(f"{pictures}/0.png\n{pictures}/1.png\n")
    search = ["--max-len-b", "6"]
    assert (
        main(
            [
                "caption",
                str(run),
                "--input",
                str(listed),
                "--heat-maps",
                str(page),
                "--num-beams",
                "1",
                *search,
            ]
        )
        == 0
    )
    assert len(capfd.readouterr().out.splitlines()) == 2
    with listed.open("a") as file:
        file.write("nowhere.png\n")
    assert main(["caption", str(run), "--input", str(listed)]) == 3
    assert f"{listed}:3: nowhere.png: No such file" in capfd.readouterr().err
    text = page.read_text()
    assert "data:image/png;base64," in text  # captions of nothing learnt may be empty
    assert "http" not in text
    assert main(["caption", str(run), str(pictures), "--tsv", "--num-return-sequences", "2",
                 *search]) == 0  # fmt: skip
    assert len(capfd.readouterr().out.splitlines()) == 21
    draws = []
    for seed in ("1", "1", "2"):
        assert main(["caption", str(run), f"{pictures}/0.png", "--sample", "--seed", seed]) == 0
        draws.append(capfd.readouterr().out)
    assert draws[0] == draws[1] != draws[2]
    output = ["--output", str(tmp_path / "attention.html"), "--num-beams", "1"]
    assert main(["attention", str(run), f"{pictures}/0.png", *output]) == 0
    assert "1,2" in (tmp_path / "attention.html").read_text()
    assert main(["attention", str(run), f"{pictures}/0.png", *output, "--to", "de"]) == 2
    assert "--to is for translators" in capfd.readouterr().err


def test_files_and_pixels_give_the_same_captions(run, pictures):
    describe = tj.load(run, "captioning")
    files = [f"{pictures}/{i}.png" for i in range(2)]
    arrays = [np.asarray(Image.open(file)) for file in files]
    texts = describe(files, num_beams=1, max_len_b=8)
    assert texts == describe(arrays, num_beams=1, max_len_b=8)
    assert texts[0] == describe(files[0], num_beams=1, max_len_b=8)
    maps = describe.heat_maps(files[0], "it is red")
    assert maps.words == ("it", "is", "red", "⏎")
    assert maps.weights.shape == (1, 2, 4, 2, 2)
    with pytest.warns(UserWarning, match="of 2 captions reached the length limit"):
        greedy = describe(files, generation_config="hf", max_new_tokens=3)
    assert [one.tokens for one in greedy] == [one.tokens[:3] for one in texts]
    for wrong in (3, [3], np.zeros((2, 2))):
        with pytest.raises((ArgumentError, DataError)):
            describe(wrong)


def test_a_resumed_run_ends_with_the_same_bits(run, tmp_path):
    stopped = tmp_path / "stopped"
    shutil.copytree(run, stopped)
    for gone in ("checkpoints/step_00000004", "results.json"):
        path = stopped / gone
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert main(["resume", str(stopped), "--distributed.num-local-devices", "1"]) == 0
    ends = [json.loads((path / "results.json").read_text()) for path in (run, stopped)]
    assert ends[0]["state_sha256"] == ends[1]["state_sha256"]


def test_a_frozen_encoder_keeps_its_bits(run, pictures, tmp_path):
    path, start = tmp_path / "frozen", ["--init-encoder", str(run), "--freeze", "encoder"]
    flags = ["train", "captions", "--data.images", str(pictures), *DECODER, *FEW, *start]
    assert main([*flags, "--output", str(path)]) == 0
    before, after = params_of(run, "best"), params_of(path)
    for name, leaf in after.items():
        if name.startswith("encoder/"):
            assert np.array_equal(leaf, before[name]), name
    assert any(not np.array_equal(after[name], before.get(name)) for name in after)


@pytest.mark.parametrize("how", ["frozen", "adapted"])
def test_a_language_model_becomes_the_decoder(run, pictures, tmp_path, how):
    decoder = language_run(tmp_path / "decoder", "characters", "learned", "bos", 64)
    flags = {"frozen": ["--freeze", "decoder"], "adapted": ["--lora.rank", "2"]}[how]
    path, start = tmp_path / how, ["--init-from", str(decoder), "--init-encoder", str(run)]
    few = [flag for flag in FEW if flag not in ("--tokenizer.kind", "characters")]
    command = ["train", "captions", "--data.images", str(pictures), *few, *start, *flags]
    assert main([*command, "--tokenizer.allow-unknown", "--output", str(path)]) == 0
    before, after = params_of(decoder), params_of(path)
    kept = {name for name in before if np.array_equal(after[name], before[name])}
    adapted = {name for name in before if "self_attention" in name and name.endswith("kernel")}
    assert kept == before.keys() - (adapted if how == "adapted" else set())
    cross = [name for name in after if "cross_attention" in name]
    assert cross
    assert all(after[name].any() for name in cross if name.endswith("kernel"))
    with warnings.catch_warnings(action="ignore"):  # what has learnt nothing does not end
        assert tj.load(path)(np.zeros((8, 8, 3), np.uint8), max_len_b=4) is not None


def test_an_exported_captioner_is_the_same_model(run, pictures, tmp_path, capfd):
    folder = tmp_path / "folder"
    assert main(["export", str(run), str(folder), "--format", "hf"]) == 0
    fields = json.loads((folder / "config.json").read_text())
    assert fields["model_type"] == "vision-encoder-decoder"
    assert json.loads((folder / "preprocessor_config.json").read_text())["do_resize"]
    here, there = (tj.load(path) for path in (run, folder))
    picture = f"{pictures}/0.png"
    assert here(picture, max_len_b=8) == there(picture, max_len_b=8)
    written = json.loads((folder / "generation_config.json").read_text())
    barred = {"suppress_tokens": [written["eos_token_id"]], "max_new_tokens": 13, "num_beams": 2}
    (folder / "generation_config.json").write_text(json.dumps(written | barred))
    with pytest.warns(UserWarning, match="1 of 1 caption reached the length limit"):
        assert len(tj.load(folder)(picture).tokens) == 13
    capfd.readouterr()
    assert main(["caption", str(folder), picture]) == 0
    assert "1 of 1 caption reached the length limit of the generation" in capfd.readouterr().err
    assert main(["caption", str(folder), picture, "--max-len-b", "4"]) == 0
    said = "its generation config (num_beams, suppress_tokens) is not applied, since transformers"
    assert f"{folder}: {said}" in capfd.readouterr().err
    converted = tmp_path / "converted"
    assert main(["convert", str(folder), str(converted)]) == 0
    trees = [params_of(path, "best") for path in (run, converted)]
    assert jax.tree.all(jax.tree.map(np.array_equal, *trees))


def bomb(folder):
    """A picture that says that it is huge."""
    Image.new("1", (20_000, 20_000)).save(folder / "1.png")


def other_mode(folder):
    """A picture of floating-point numbers, which has no colors."""
    Image.fromarray(np.zeros((4, 4), np.float32)).save(folder / "1.tif")
    text = (folder / "captions.csv").read_text().replace("1.png", "1.tif")
    (folder / "captions.csv").write_text(text)


def truncated(folder):
    """A picture whose end is missing."""
    content = (folder / "1.png").read_bytes()
    (folder / "1.png").write_bytes(content[: len(content) - 30])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (truncated, "1.png: the picture is damaged or truncated"),
        (bomb, "1.png: more than"),
        (other_mode, "1.tif: pixels are floating-point numbers"),
        (lambda folder: (folder / "1.png").unlink(), "1.png: No such file"),
        (lambda folder: (folder / "captions.csv").write_text("caption\na dog\n"), "one column"),
        (lambda folder: (folder / "captions.csv").write_text("file_name,caption\n,a dog\n"),
         "captions.csv:2: no picture: the line needs the name of a file"),
        (lambda folder: (folder / "captions.csv").write_text("file_name,caption\n0.png,\n"),
         "no text for 0.png"),
    ],
)  # fmt: skip
def test_damaged_pictures_are_refused_in_one_line(tmp_path, capfd, damage, said):
    folder = table(tmp_path / "pictures", 6)
    damage(folder)
    flags = ["train", "captions", "--data.images", str(folder), *SIZES, *DECODER, *FEW]
    assert main([*flags, "--output", str(tmp_path / "run")]) in (2, 3)
    errors = [line for line in capfd.readouterr().err.splitlines() if "error: " in line]
    assert len(errors) == 1
    assert said in errors[0]
    assert "Traceback" not in errors[0]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--freeze", "encoder"], "freeze is given without init_from"),
        (["--init-encoder", "{run}", "--freeze", "decoder"], "freeze is decoder without init_from"),
        (["--init-encoder", "{run}", "--freeze", "1"], "allowed are none, encoder and decoder"),
        (["--augmentation.mixup", "0.2"], "texts of two pictures cannot be mixed"),
        (["--data.corpus", "scenes"], "data is given in more than one way"),
        (["--training.sequence-length", "4"], "no caption has at most 4 tokens"),
        (["--model.encoder-layers", "1"], "the encoder has its own settings"),
    ],
)
def test_settings_that_do_not_fit_are_refused(run, pictures, tmp_path, capfd, flags, said):
    given = [flag.format(run=run) for flag in flags]
    base = ["train", "captions", "--data.images", str(pictures), *SIZES, *DECODER, *FEW]
    assert main([*base, *given, "--output", str(tmp_path / "run")]) in (2, 3)
    assert said in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "caption needs pictures"),
        (["{folder}"], "no pictures: their names end in"),
        (["a.png", "--heat-maps", "a.txt"], "--heat-maps a.txt: the name ends in .html"),
        (["a.png", "--seed", "1"], "--seed is for sampling: add --sample"),
        (["a.png", "--sample", "--num-beams", "2"], "exclude each other"),
        (["a.png", "--num-return-sequences", "2"], "several captions are rows of --tsv"),
        (["a.png", "--sample", "--num-return-sequences", "2"], "is for beam search: leave it or"),
        (["{folder}/none.png"], "none.png: No such file"),
    ],
)
def test_flags_of_caption_are_checked(run, tmp_path, capfd, arguments, said):
    given = [one.format(folder=tmp_path) for one in arguments]
    assert main(["caption", str(run), *given]) in (2, 3)
    assert said in capfd.readouterr().err
