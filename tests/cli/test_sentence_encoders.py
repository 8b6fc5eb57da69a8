"""Sentence encoders: pooling and length come from the files beside their weights (row H21)."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import transformer_jax as tj
from tests.parity import layouts
from transformer_jax.core.errors import CheckpointError, ConfigError, DataError
from transformer_jax.data.tokenizer import BERT_SPECIAL, train_tokenizer
from transformer_jax.inference.encoders import pools_of, vectors_of
from transformer_jax.inference.facts import Opening
from transformer_jax.inference.pretrained import open_pretrained, read_facts
from transformer_jax.interop.sentence_dense import copy_dense, read_dense
from transformer_jax.interop.sentence_encoders import sentence_fields
from transformer_jax.interop.tensor_files import open_tensors
from transformer_jax.runs.run_directory import RunDirectory

TEXT = ["i sat on the bank of the river.", "i took cash to the bank.", "rivers ran; who ran?"]
PARTS = ("Transformer", "Pooling", "Normalize")
LENGTH = 9
MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens")


def modes(*chosen):
    """The content of 1_Pooling/config.json."""
    said = {f"pooling_mode_{mode}": mode in chosen for mode in MODES}
    return {"word_embedding_dimension": 32, **said}


def describe(folder, pooling=None, sentence=None, parts=PARTS):
    """Writes the files of a sentence encoder."""
    (folder / "1_Pooling").mkdir(exist_ok=True, parents=True)
    paths = ["", "1_Pooling", "2_Normalize", "3"]
    modules = [
        {"idx": i, "name": str(i), "path": paths[i], "type": f"sentence_transformers.models.{part}"}
        for i, part in enumerate(parts)
    ]
    for name, said in (
        ("modules.json", modules),
        ("1_Pooling/config.json", pooling),
        ("sentence_bert_config.json", sentence),
    ):
        if said is not None:
            (folder / name).write_text(said if isinstance(said, str) else json.dumps(said))
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """An encoder that says nothing of sentences."""
    folder = tmp_path_factory.mktemp("published") / "plain"
    layouts.write("bert", folder)
    tokenizer = train_tokenizer("wordpiece", TEXT * 3, 90, special=BERT_SPECIAL)
    tokenizer.save(folder / "tokenizer.json")
    return folder


@pytest.fixture
def encoder(plain, tmp_path):
    """Makes a sentence encoder."""

    def make(pooling, **how):
        folder = tmp_path / "encoder"
        shutil.copytree(plain, folder)
        return describe(folder, modes(pooling), {"max_seq_length": LENGTH}, **how)

    return make


@pytest.fixture
def lines(tmp_path):
    (tmp_path / "lines").write_text("\n".join(TEXT) + "\n")
    return tmp_path / "lines"


@pytest.mark.parametrize(("pooling", "wanted"), [
    (modes("cls_token"), "cls"),
    (modes("mean_tokens"), "mean"),
    ({"pooling_mode_cls_token": False}, "mean"),
    ({"pooling_mode": "cls"}, "cls"),
    ({"pooling_mode": "mean"}, "mean"),
    ({"pooling_mode": "lasttoken"}, "lasttoken"),
    ({"pooling_mode": ["cls", "max"]}, "cls and max"),
    (modes("max_tokens"), "max"),
    (modes("weightedmean_tokens"), "weightedmean"),
    (modes("mean_sqrt_len_tokens"), "mean_sqrt_len_tokens"),
    (modes("cls_token", "mean_tokens"), "cls and mean"),
    # As its library has it: the mean is taken where nothing is chosen.
    ({"pooling_mode_cls_token": True}, "cls"),
    ({"pooling_mode_mean_tokens": False}, "mean"),
    ({}, "mean"),
    ({"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}, "lasttoken"),
])  # fmt: skip
def test_pooling_is_what_its_file_says(tmp_path, pooling, wanted):
    assert sentence_fields(describe(tmp_path, pooling)) == {"pool": wanted, "normalize": True}
    (tmp_path / "modules.json").unlink()
    assert sentence_fields(tmp_path) == {"pool": wanted}


def test_length_and_further_parts_are_told(tmp_path):
    assert sentence_fields(tmp_path) == {}
    describe(tmp_path, modes("mean_tokens"), {"max_seq_length": 256, "do_lower_case": False})
    assert sentence_fields(tmp_path) == {"pool": "mean", "normalize": True, "length": 256}
    describe(tmp_path, sentence={"max_seq_length": None}, parts=("Transformer", "Pooling"))
    assert sentence_fields(tmp_path) == {"pool": "mean"}
    (tmp_path / "sentence_bert_config.json").rename(tmp_path / "sentence_roberta_config.json")
    (tmp_path / "sentence_roberta_config.json").write_text('{"max_seq_length": 128}')
    assert sentence_fields(tmp_path) == {"pool": "mean", "length": 128}
    (tmp_path / "sentence_roberta_config.json").write_text('{"do_lower_case": true}')
    assert sentence_fields(tmp_path) == {"pool": "mean", "lowercase": True}
    describe(tmp_path, parts=(*PARTS, "Dense"))
    assert sentence_fields(tmp_path)["pool"] == "mean and Dense"


@pytest.mark.parametrize(("activation", "bias"), [("Identity", False), ("Tanh", True)])
@pytest.mark.slow
def test_a_linear_map_at_the_end_is_part_of_the_vectors(
    encoder, tmp_path, lines, run_command, activation, bias
):
    """Sentence-T5 and LaBSE have one, in folders and in runs; a given pooling leaves it out."""
    folder = encoder("mean_tokens", parts=("Transformer", "Pooling", "Dense", "Normalize"))
    draw = np.random.default_rng(3)
    tensors = {"linear.weight": draw.standard_normal((5, 32)).astype(np.float32)}
    if bias:
        tensors["linear.bias"] = draw.standard_normal(5).astype(np.float32)
    (folder / "2_Normalize").mkdir()  # where this description has its third part
    save_file(tensors, folder / "2_Normalize/model.safetensors")
    said = {"in_features": 32, "out_features": 5, "bias": bias,
            "activation_function": f"torch.nn.modules.x.{activation}"}  # fmt: skip
    (folder / "2_Normalize/config.json").write_text(json.dumps(said))
    assert run_command("convert", folder, tmp_path / "run")[0] == 0
    found = {}
    for name, path, flags in (
        ("plain", folder, ["--pool", "mean"]), ("folder", folder, []), ("run", tmp_path / "run", [])
    ):  # fmt: skip
        output = tmp_path / f"{name}.npz"
        code, _, err = run_command("embed", path, lines, "--output", output, *flags)
        assert code == 0, err
        found[name] = np.load(output)["vectors"]
    wanted = found["plain"] @ tensors["linear.weight"].T + tensors.get("linear.bias", 0)
    wanted = np.tanh(wanted) if activation == "Tanh" else wanted
    wanted /= np.linalg.norm(wanted, axis=-1, keepdims=True)
    np.testing.assert_allclose(found["folder"], wanted, atol=2e-6)
    np.testing.assert_array_equal(found["run"], found["folder"])


def dense_encoder(encoder, tensors, activation="Identity", **sentence):
    """A sentence encoder with a linear map at its end, as LaBSE."""
    folder = encoder("mean_tokens", parts=("Transformer", "Pooling", "Dense", "Normalize"))
    describe(folder, sentence={"max_seq_length": LENGTH, **sentence}, parts=())
    paths = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"),
             ("Normalize", "3_Normalize")]  # fmt: skip
    kind_of = "sentence_transformers.models.{}".format
    modules = [{"idx": i, "name": str(i), "path": path, "type": kind_of(kind)}
               for i, (kind, path) in enumerate(paths)]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "2_Dense").mkdir()
    save_file(tensors, folder / "2_Dense/model.safetensors")
    said = {"in_features": 32, "out_features": 5, "bias": "linear.bias" in tensors,
            "activation_function": f"torch.nn.modules.x.{activation}"}  # fmt: skip
    (folder / "2_Dense/config.json").write_text(json.dumps(said))
    return folder


def linear(dtype=np.float32, shape=(5, 32)):
    return {"linear.weight": np.random.default_rng(3).standard_normal(shape).astype(dtype)}


def files_of(folder):
    """The content of each file of a folder, JSON or tensors, except for its tokenizer."""
    found = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".json" and not name.startswith("tokenizer"):
            found[name] = json.loads(path.read_text())
        elif path.suffix == ".safetensors":
            found[name] = {key: (a.dtype, a.tobytes()) for key, a in load_file(path).items()}
    found["config.json"] = found["config.json"] | {"dtype": "float32"}
    return found


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.slow
def test_a_sentence_encoder_goes_out_as_it_came_in(encoder, tmp_path, lines, run_command, dtype):
    """Pooling, length, small letters and the map at the end; and so are its vectors."""
    tensors = linear(dtype) | {"linear.bias": np.ones(5, dtype)}
    folder = dense_encoder(encoder, tensors, "Tanh", do_lower_case=True)
    beside = {"prompts": {"query": "q: "}, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(beside))
    run, there = tmp_path / "run", tmp_path / "there"
    assert run_command("convert", folder, run)[0] == 0
    for source, flags in ((folder, []), (run, ["--overwrite"])):
        code, _, err = run_command("export", source, there, *flags)
        assert (code, "note" in err) == (0, False), err
        assert files_of(there) == files_of(folder)
    vectors = []
    lines.write_text("The BANK of the river\nWho ran?\n")
    for path in (folder, run):  # the export has the files of the folder
        assert run_command("embed", path, lines, "--output", tmp_path / "v.npz")[0] == 0
        vectors.append(np.load(tmp_path / "v.npz")["vectors"])
    assert vectors[0].shape == (2, 5)
    np.testing.assert_array_equal(vectors[0], vectors[1])
    code, _, err = run_command("export", run, there, "--overwrite", "--dtype", "bfloat16")
    assert code == 0, err
    said = open_tensors(there / "2_Dense").entries
    assert {entry.dtype for entry in said.values()} == {"BF16"}
    # What no export wrote stays, also within a directory of its own.
    (there / "1_Pooling/mine").write_text("mine")
    code, _, err = run_command("export", run, there, "--overwrite")
    assert (code, "contains 1_Pooling, which no export wrote" in err) == (2, True)


def test_parts_that_are_not_kept_are_said(encoder, tmp_path, run_command):
    folder = encoder("mean_tokens", parts=("Transformer", "Pooling", "LayerNorm"))
    assert run_command("convert", folder, tmp_path / "run")[0] == 0
    code, _, err = run_command("export", tmp_path / "run", tmp_path / "there")
    assert (code, f"configuration of {tmp_path / 'run'} is not exported" in err) == (0, True), err
    assert not (tmp_path / "there/modules.json").exists()


def test_weights_of_the_map_are_read_before_a_run_gives_way(encoder, tmp_path, run_command):
    folder, run = dense_encoder(encoder, linear()), tmp_path / "run"
    assert run_command("convert", folder, run)[0] == 0
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    (folder / "2_Dense/model.safetensors").rename(folder / "2_Dense/pytorch_model.bin")
    code, _, err = run_command("convert", folder, run, "--overwrite")
    assert (code, "pytorch_model.bin" in err) == (4, True), err
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_a_changed_bit_of_the_map_is_noticed(encoder, tmp_path, lines, run_command):
    folder, run = dense_encoder(encoder, linear()), tmp_path / "run"
    assert run_command("convert", folder, run)[0] == 0
    code, out, _ = run_command("verify", run)
    assert (code, "2_Dense\tok" in out) == (0, True)
    weights = run / "2_Dense/model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    for words in (["verify", run], ["embed", run, lines], ["export", run, tmp_path / "there"]):
        code, out, err = run_command(*words)
        assert (code, err.count("\n")) == (4, 1), err
        assert "differs from the converted weights" in "".join(out) + err


@pytest.mark.parametrize("parts", [("Transformer", "Dense", "Pooling"), ("Dense", "Pooling")])
def test_a_map_before_the_pooling_is_told(tmp_path, parts):
    folder = describe(tmp_path, parts=parts)
    for part in folder.iterdir():
        if part.is_dir():
            (part / "config.json").write_text("{}")
    (folder / "2_Normalize").mkdir(exist_ok=True)
    (folder / "2_Normalize/config.json").write_text("{}")
    assert sentence_fields(folder)["pool"] == "mean and Dense"


@pytest.mark.parametrize("path", ["../outside", "a/../../outside", "/tmp"])
def test_parts_lie_within_the_folder(tmp_path, path):
    folder = describe(tmp_path / "folder", modes("mean_tokens"))
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", path)]
    modules = [{"type": f"x.{kind}", "path": path} for kind, path in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(DataError, match=r"modules.json: the path .* leaves the folder"):
        sentence_fields(folder)
    for call, last in ((read_dense, 32), (copy_dense, tmp_path)):
        with pytest.raises(
            CheckpointError, match="description of its sentence encoder's dense module is missing"
        ):
            call(folder, {"path": path, "tanh": False}, last)


def test_a_linked_directory_of_shards_does_not_lead_out(tmp_path):
    """Nor does one of a single file."""
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    folder.mkdir()
    outside.mkdir()
    (folder / "2_Dense").symlink_to(outside)
    save_file(linear(), outside / "1.safetensors")
    index = {"metadata": {}, "weight_map": {"linear.weight": "1.safetensors"}}
    (outside / "model.safetensors.index.json").write_text(json.dumps(index))
    said = {"path": "2_Dense", "tanh": False}
    with pytest.raises(CheckpointError, match="leaves the folder"):
        read_dense(folder, said, 32)
    (outside / "1.safetensors").rename(outside / "model.safetensors")
    with pytest.raises(CheckpointError, match="leaves the folder"):
        read_dense(folder, said, 32)


@pytest.mark.parametrize(("tensors", "what"), [
    (linear(np.int32), "linear.weight is I32: weights are"),
    ({"linear.weight": np.full((5, 32), np.nan, np.float32)}, "has NaN or infinity"),
])  # fmt: skip
def test_weights_of_the_last_map_are_finite_numbers(encoder, tmp_path, run_command, tensors, what):
    folder = dense_encoder(encoder, tensors)
    for words in (["verify", folder], ["convert", folder, tmp_path / "run"]):
        code, _, err = run_command(*words)
        assert (code, what in err, err.count("error:")) == (4, True, 1), err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("tensors", "what"), [
    ({"linear.weight": np.ones((5, 31), np.float32)}, "wrong for vectors of size 32"),
    ({"other": np.ones(3, np.float32)}, "linear.weight and, optionally, linear.bias are needed"),
    ({}, "has neither model.safetensors"),
])  # fmt: skip
def test_weights_of_the_last_map_that_do_not_fit_are_refused(
    encoder, lines, run_command, tensors, what
):
    folder = encoder("mean_tokens", parts=("Transformer", "Pooling", "Dense"))
    (folder / "2_Normalize").mkdir()
    if tensors:
        save_file(tensors, folder / "2_Normalize/model.safetensors")
    said = {"activation_function": "torch.nn.modules.linear.Identity"}
    (folder / "2_Normalize/config.json").write_text(json.dumps(said))
    code, _, err = run_command("embed", folder, lines)
    assert (code, what in err, err.count("error:")) == (4, True, 1), err


@pytest.mark.parametrize(("files", "what"), [
    ({"modules.json": "[" * 10_000}, r"modules\.json: is damaged: not JSON"),
    ({"modules.json": "{}"}, r"modules\.json: is damaged: not a JSON list"),
    ({"modules.json": "[1]"}, r"modules\.json: is damaged: a module has no type"),
    ({"modules.json": '[{"type": "Pooling"}]'}, "a module has no type or no path"),
    ({"modules.json": '[{"type": "Pooling", "path": "2"}]'}, "no such file, although"),
    ({"modules.json": '[{"type": "Pooling", "path": "../outside"}]'}, "leaves the folder"),
    ({"modules.json": '[{"type": "Pooling", "path": "OUTSIDE"}]'}, "leaves the folder"),
    ({"1_Pooling/config.json": "[]"}, r"1_Pooling/config\.json: is damaged: not a JSON object"),
    ({"1_Pooling/config.json": b"\xff"}, r"1_Pooling/config\.json: is damaged: not JSON"),
    ({"1_Pooling/config.json": '{"pooling_mode_cls_token": 1}'}, "is '1', not true or false"),
    ({"1_Pooling/config.json": '{"pooling_mode": 3}'}, "pooling_mode is '3': not a name"),
    ({"1_Pooling/config.json": '{"pooling_mode": []}'}, "not a name"),
    ({"sentence_bert_config.json": '{"max_seq_length": 0}'}, "max_seq_length is '0'"),
    ({"sentence_bert_config.json": '{"max_seq_length": true}'}, "max_seq_length is 'True'"),
    ({"sentence_bert_config.json": '{"do_lower_case": 1}'}, "do_lower_case is '1'"),
    ({"modules.json": r'[{"type": "Pooling", "path": "a\nb"}]'}, "no type or no path"),
    ({"sentence_bert_config.json": '{"max_seq_length": "9"}'}, "max_seq_length is '9'"),
])  # fmt: skip
def test_damaged_descriptions_are_refused_in_one_line(tmp_path, files, what):
    folder = describe(tmp_path / "folder", modes("mean_tokens"), {"max_seq_length": 9})
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "config.json").write_text("{}")
    for name, said in files.items():
        raw = said if isinstance(said, bytes) else said.encode()
        (folder / name).write_bytes(raw.replace(b"OUTSIDE", str(tmp_path / "outside").encode()))
    with pytest.raises(DataError, match=what) as caught:
        sentence_fields(folder)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))


def test_a_linked_directory_does_not_lead_out(tmp_path):
    folder = describe(tmp_path / "folder", modes("mean_tokens"))
    (folder / "1_Pooling").rename(tmp_path / "outside")
    (folder / "1_Pooling").symlink_to(tmp_path / "outside")
    with pytest.raises(DataError, match="leaves the folder"):
        sentence_fields(folder)


@pytest.mark.slow
def test_vectors_are_those_that_the_folder_is_made_for(encoder, lines, tmp_path, run_command):
    """Also of the run that it is converted to; a pooling that is asked for goes before."""
    folder, run = encoder("cls_token"), tmp_path / "run"
    assert run_command("convert", folder, run)[0] == 0
    kept = RunDirectory.open(run).read_config()["sentence"]
    assert kept == {"pool": "cls", "normalize": True, "length": LENGTH}

    def vectors(path, *flags):
        output = tmp_path / "vectors.npz"
        code, _, err = run_command("embed", path, lines, "--output", output, *flags)
        assert code == 0, err
        assert f"3 lines, 1 of them truncated to {LENGTH} tokens" in err
        return np.load(output)["vectors"]

    first = vectors(folder, "--pool", "cls")
    made = first / np.linalg.norm(first, axis=-1, keepdims=True)
    np.testing.assert_allclose(vectors(folder), made, atol=1e-6)
    np.testing.assert_allclose(vectors(run, "--pool", "None"), made, atol=1e-6)
    assert np.abs(vectors(folder, "--pool", "mean") - first).max() > 1e-3


@pytest.mark.slow
def test_texts_are_searched_by_the_vectors_of_the_folder(encoder, lines, tmp_path, run_command):
    folder, run = encoder("cls_token"), tmp_path / "run"
    assert run_command("convert", folder, run)[0] == 0
    search = lambda *how: run_command("semantic-search", run, lines, "who ran", *how)[1]
    assert search() == search("--pool", "cls") != search("--pool", "mean")


@pytest.mark.slow
def test_other_ways_to_a_vector_are_refused_unless_one_is_chosen(
    encoder, lines, tmp_path, run_command
):
    folder, output = encoder("mean_tokens", parts=(*PARTS[:2], "LSTM")), tmp_path / "vectors.npz"
    run = tmp_path / "run"
    assert run_command("convert", folder, run)[0] == 0
    (tmp_path / "rows.tsv").write_text("text\tlabel\n" + "the bank\ta\na river\tb\n" * 5)
    for path in (folder, run):
        for words in (
            ("embed", path, lines, "--output", output),
            ("semantic-search", path, lines, "a"),
            ("probe", path, tmp_path / "rows.tsv"),
        ):
            code, _, err = run_command(*words)
            assert (code, err.count("\n")) == (2, 1), err
            assert f"{path}: sentence encoder with pooling 'mean and LSTM'" in err
            assert "choose the pooling mean" in err
            assert not output.exists()
    describe(folder, modes("mean_tokens"), parts=(*PARTS, "Dense"))
    with pytest.raises(ConfigError, match="'mean and Dense', which is not supported"):
        pools_of(read_facts(folder), None)
    assert pools_of(read_facts(folder), "mean") == "mean"
    code, _, err = run_command("embed", run, lines, "--output", output, "--pool", "none")
    assert code == 0, err  # none is a pooling, None no answer
    assert len(np.load(output)["offsets"]) == len(TEXT) + 1


PROMPTS = {"query": "who took ", "document": "cash ", "Other": "a BANK "}


def beside(folder, **said):
    (folder / "config_sentence_transformers.json").write_text(json.dumps(said))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("excludes", [False, True])
def test_prompts_go_before_texts(encoder, tmp_path, run_command, lines, excludes):
    """The usual one, one by name, or a text; of the folder and of the run made of it."""
    folder, run = encoder("mean_tokens"), tmp_path / "run"
    said = json.loads((folder / "1_Pooling/config.json").read_text())
    (folder / "1_Pooling/config.json").write_text(
        json.dumps(said | {"include_prompt": not excludes})
    )
    describe(folder, sentence={"max_seq_length": LENGTH + 9})
    beside(folder, prompts=PROMPTS, default_prompt_name="query")
    assert run_command("convert", folder, run)[0] == 0
    plain, texts = shutil.copytree(folder, tmp_path / "plain"), ["cash", "the river ran"]
    (plain / "config_sentence_transformers.json").unlink()
    bare = vectors_of(open_pretrained(plain))

    def wanted(prompt):
        [made] = bare.embed([prompt + text for text in texts], pool="none")
        each = np.split(made.vectors, np.cumsum(made.lengths)[:-1])
        start = bare.prompt_length(prompt) if excludes and prompt else 0
        means = np.stack([rows[start:].mean(0) for rows in each])
        return means / np.linalg.norm(means, axis=-1, keepdims=True)

    for path in (folder, run):
        model = tj.load(path)
        for how, prompt in (
            ({}, PROMPTS["query"]),
            ({"prompt_name": "Other"}, PROMPTS["Other"]),
            ({"prompt": "ran "}, "ran "),
            ({"prompt": ""}, ""),
        ):
            found = model.embed(texts, **how)
            np.testing.assert_allclose(found, wanted(prompt), atol=2e-6, err_msg=str(how))
        with pytest.raises(
            ConfigError, match=r"unknown prompt 'none': there are query, document, Other"
        ):
            model.embed(texts, prompt_name="none")
        (tmp_path / "texts").write_text("\n".join(texts) + "\n")
        output = tmp_path / "vectors.npz"
        flags = ["--prompt-name", "Other", "--output", output]
        assert run_command("embed", path, tmp_path / "texts", *flags)[0] == 0
        np.testing.assert_allclose(np.load(output)["vectors"], wanted(PROMPTS["Other"]), atol=2e-6)
        rows = run_command("semantic-search", path, tmp_path / "texts", "who ran")[1][1:]
        ask = model.embed("who ran", prompt_name="query")
        values = model.embed(texts, prompt_name="document") @ ask
        order = sorted(zip(values, texts, strict=True), reverse=True)
        assert [line.split("\t")[::2] for line in rows if line] == [
            [f"{value:.4f}", text] for value, text in order
        ]


# A file of a sentence encoder, what it says, and what the error names.
REFUSED = [
    (
        "1_Pooling/config.json",
        modes("mean_tokens") | {"gate": 1},
        "1_Pooling/config.json: gate is 1",
    ),
    ("1_Pooling/config.json", {"pooling_mode": ["mean", "attention"]}, "'mean and attention'"),
    ("sentence_bert_config.json", {"query_length": 9}, "query_length is 9"),
    ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, 'transformer_task is "fill-m'),
    ("sentence_bert_config.json", {"tokenizer_args": {"use_fast": False}}, "tokenizer_args is"),
    ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, '"SparseEncoder"'),
    ("config_sentence_transformers.json", {"truncate_dim": 8}, "truncate_dim is 8"),
    ("2_Normalize/config.json", {"module_input_name": "token_embeddings"}, "module_input_name is"),
]


@pytest.mark.parametrize(("name", "said", "what"), REFUSED)
def test_settings_that_cannot_be_applied_are_refused_by_name(encoder, name, said, what):
    folder = encoder("mean_tokens")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(said))
    with pytest.raises(ConfigError, match=what.replace("[", r"\[")):
        pools_of(read_facts(folder), None)
    assert pools_of(read_facts(folder), "cls") == "cls"


def test_parts_in_another_order_or_of_other_libraries_are_refused(encoder):
    folder = encoder("mean_tokens", parts=("Transformer", "Normalize", "Pooling"))
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"], modules[2]["path"] = "2_Normalize", "1_Pooling"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ConfigError, match="unsupported order of modules: Transformer, Normalize"):
        pools_of(read_facts(folder), None)
    for part in (modules := json.loads((folder / "modules.json").read_text())):
        part["type"] = part["type"].replace("sentence_transformers.models", "custom_code")
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ConfigError, match=r"custom_code\.Transformer and custom_code"):
        pools_of(read_facts(folder), None)


@pytest.mark.slow
def test_vectors_of_other_similarities_are_not_compared_by_cosines(encoder, lines, run_command):
    folder = beside(encoder("mean_tokens", parts=PARTS[:2]), similarity_fn_name="dot")
    describe(folder, sentence={"max_seq_length": 40}, parts=PARTS[:2])
    code, out, _ = run_command("semantic-search", folder, lines, "cash")
    model = tj.load(folder)
    best = max(TEXT, key=lambda text: float(model.embed(text) @ model.embed("cash")))
    assert (code, out[0].split("\t")[0], out[1].split("\t")[2]) == (0, "dot", best)
    beside(folder, similarity_fn_name="euclidean")
    code, _, err = run_command("semantic-search", folder, lines, "cash")
    assert (code, "the similarity 'euclidean' is not supported" in err) == (2, True)


def test_the_length_of_a_tokenizer_is_that_of_its_sentences(encoder, tmp_path):
    """Unless an older file has another length, and not without ``modules.json``."""
    folder = encoder("mean_tokens")
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 7}')
    assert sentence_fields(folder)["length"] == LENGTH
    (folder / "sentence_bert_config.json").write_text('{"transformer_task": null}')
    assert sentence_fields(folder)["length"] == 7
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 1e30}')
    assert "length" not in sentence_fields(folder)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"bias": True}, "without a bias|with a bias"),
        ({"in_features": 31}, r"config\.json has \[5, 31\]"),
    ],
)
def test_a_map_is_what_its_configuration_says(encoder, change, what):
    """A bias that is missing is not zeros."""
    tensors = linear("float32")
    folder = dense_encoder(encoder, tensors)
    file = folder / "2_Dense/config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(CheckpointError, match=what):
        _ = open_pretrained(folder).sentence_layer


def test_texts_are_read_in_small_letters_where_the_folder_says_so(encoder):
    folder = encoder("mean_tokens")
    assert vectors_of(open_pretrained(folder)).prepared("The BANK") == "The BANK"
    describe(folder, sentence={"max_seq_length": LENGTH, "do_lower_case": True})
    vectors = vectors_of(open_pretrained(folder))
    assert (vectors.length, vectors.prepared("The BANK")) == (LENGTH, "the bank")


def test_encoders_that_say_nothing_have_means_of_all_they_can_read(plain):
    assert pools_of(read_facts(plain), None) == "mean"
    vectors = vectors_of(open_pretrained(plain))
    assert vectors.length == layouts.LAYOUTS["bert"]["config"]["max_position_embeddings"]


@pytest.mark.parametrize("sentence", [[], {"pool": 3}, {"pool": "mean", "length": 0}])
def test_a_damaged_run_is_refused(plain, tmp_path, run_command, sentence):
    run = RunDirectory(tmp_path / "run")
    assert run_command("convert", plain, run.path)[0] == 0
    run.config.write_text(json.dumps(run.read_config() | {"sentence": sentence}))
    facts = read_facts(run.path, opening=Opening(allow_changed=True))
    with pytest.raises(CheckpointError, match="sentence must have a pooling and a length"):
        pools_of(facts, None)
