"""Settings in the files of a folder are applied whatever head stands above them, or refused."""

import json

import numpy as np
import pytest
import tokenizers
from safetensors.numpy import save_file
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

import transformer_jax
from tests.interop import published_starts as starts
from tests.parity import layouts
from transformer_jax.cli.main import main
from transformer_jax.core.errors import CheckpointError, DataError
from transformer_jax.interop.folder_keys import GENERATION, SENTENCES, TABLES, TOKENIZER
from transformer_jax.interop.hf_run_directory import HFRunDirectory
from transformer_jax.recipes import driver
from transformer_jax.runs.run_directory import RunDirectory

WORDPIECE = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
FIRST = tuple(WORDPIECE.values())
IDENTITY = "torch.nn.modules.linear.Identity"
LONG = "a b c " * 8


def write_tokenizer(folder, *, lowercase=True, first=FIRST, **settings):
    """A WordPiece ``tokenizer.json`` and ``tokenizer_config.json``."""
    names = [*first, "a", "b", "c", "A", "B", "é", "e", "中", "文", "##b"]
    made = tokenizers.Tokenizer(
        models.WordPiece({name: id for id, name in enumerate(names)}, unk_token="[UNK]")
    )
    made.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    made.pre_tokenizer, made.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, names.index(name)) for name in ("[CLS]", "[SEP]")],
    )
    made.add_special_tokens(names[:5])
    made.save(str(folder / "tokenizer.json"))
    said = {"tokenizer_class": "BertTokenizer", **WORDPIECE, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))


def scorer(folder, fields=None, **settings):
    """A BERT with one score, and settings of its tokenizer."""
    layouts.write("bert_cls", folder)
    one = {
        name: array[:1] if name.startswith("classifier") else array
        for name, array in layouts.weights("bert_cls").items()
    }
    save_file(one, folder / "model.safetensors", {"format": "pt"})
    config = layouts.LAYOUTS["bert_cls"]["config"] | {"id2label": {"0": "score"}, "label2id": {}}
    (folder / "config.json").write_text(json.dumps({**config, **(fields or {})}))
    write_tokenizer(folder, **settings)
    return folder


def encoder(folder, layout="bert", **settings):
    layouts.write(layout, folder)
    write_tokenizer(folder, **settings)
    return folder


def same(one, two):
    return np.allclose(np.asarray(one), np.asarray(two), atol=1e-6)


# Length


@pytest.mark.slow
def test_a_score_reads_no_more_than_the_tokenizer_says(tmp_path):
    """sentence-transformers#3304: a cross-encoder whose tokenizer says 16."""
    short = transformer_jax.load(scorer(tmp_path / "short", model_max_length=16))
    whole = transformer_jax.load(scorer(tmp_path / "whole"))
    cut = ("a b c a b c a", "c b a c b a")  # 13 tokens with three special ones, 16
    with pytest.warns(UserWarning, match="1 text was longer than the model reads"):
        assert same(short(LONG, "c b a " * 4), whole(*cut))
    assert not same(whole(LONG, "c b a " * 4), whole(*cut))


@pytest.mark.slow
@pytest.mark.parametrize("key", ["model_max_length", "max_len"])
def test_every_encoder_reads_no_more_than_the_tokenizer_says(tmp_path, key):
    short = transformer_jax.load(encoder(tmp_path / "short", **{key: 8}))
    whole = transformer_jax.load(encoder(tmp_path / "whole"))
    with pytest.warns(UserWarning, match="1 text was longer than the model reads"):
        assert same(short.embed(LONG), whole.embed("a b c a b c"))


@pytest.mark.parametrize("length", [None, int(1e30), 1e30, 512])
def test_a_length_beyond_the_positions_is_none(tmp_path, length):
    run = HFRunDirectory(encoder(tmp_path, "bert_cls", model_max_length=length))
    most = run.folder.model.config.positions.max_length
    assert run.read_config()["task"]["max_length"] == most


@pytest.mark.parametrize("length", [0, -1, True, "16", [16]])
def test_a_length_that_is_none_is_refused(tmp_path, length):
    with pytest.raises(DataError, match=r"tokenizer_config\.json: the setting model_max_length"):
        HFRunDirectory(encoder(tmp_path, model_max_length=length)).read_config()


@pytest.mark.slow
def test_an_export_keeps_the_length(tmp_path):
    folder = scorer(tmp_path / "folder", model_max_length=16)
    assert main(["export", str(folder), str(tmp_path / "out")]) == 0
    said = json.loads((tmp_path / "out/tokenizer_config.json").read_text())
    assert said["model_max_length"] == 16


def test_texts_that_lose_their_starts_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="truncation_side is left, but long texts lose"):
        HFRunDirectory(encoder(tmp_path, truncation_side="left")).read_config()


# Tokens


@pytest.mark.slow
def test_a_class_sets_its_normalizer(tmp_path):
    """The key of the folder counts, not that of the file, as in transformers 5."""
    ids = lambda folder: transformer_jax.load(folder).tokenizer.encode("A É 中")
    cased, lower = (encoder(tmp_path / str(one), lowercase=one) for one in (False, True))
    for folder, file in (("x", True), ("y", False)):
        changed = encoder(tmp_path / folder, lowercase=file, do_lower_case=not file)
        assert ids(changed) == ids(cased if file else lower)
    assert ids(cased) != ids(lower)
    plain = encoder(tmp_path / "z", tokenizer_class="PreTrainedTokenizerFast", do_lower_case=False)
    assert ids(plain) == ids(lower)  # this class reads the file alone


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "typed"),
    [
        ({}, True),
        ({"model_input_names": ["input_ids", "attention_mask"]}, False),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, False),
        (
            {
                "tokenizer_class": "TokenizersBackend",
                "model_input_names": ["input_ids", "token_type_ids"],
            },
            True,
        ),
    ],
    ids=["BERT", "names", "plain", "plain with names"],
)
def test_the_second_text_has_its_type_if_the_tokenizer_gives_types(tmp_path, settings, typed):
    known = transformer_jax.load(scorer(tmp_path / "known"))
    found = transformer_jax.load(scorer(tmp_path / "found", **settings))
    assert same(found("a b", "c"), known("a b", "c")) == typed


# Scores


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "apply"),
    [
        ({}, lambda x: x),
        ({"sentence_transformers": {"activation_fn": IDENTITY}}, lambda x: x),
        (
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}},
            lambda x: 1 / (1 + np.exp(-x)),
        ),
        ({"sbert_ce_default_activation_function": "torch.nn.Tanh"}, np.tanh),
    ],
    ids=["none", "identity", "sigmoid", "tanh"],
)
def test_the_activation_of_a_score(tmp_path, fields, apply):
    plain = np.asarray(transformer_jax.load(scorer(tmp_path / "plain"))("a", "b"))
    found = transformer_jax.load(scorer(tmp_path / "found", fields))("a", "b")
    assert same(found, apply(plain))


@pytest.mark.slow
def test_a_cross_encoder_says_its_activation_in_its_own_file_first(tmp_path, capsys):
    folder = scorer(tmp_path, {"sentence_transformers": {"activation_fn": IDENTITY}})
    own = {"model_type": "CrossEncoder", "activation_fn": "torch.nn.Tanh", "prompts": {}}
    beside = folder / "config_sentence_transformers.json"
    beside.write_text(json.dumps(own))
    assert -1 <= transformer_jax.load(folder)("a", "b") <= 1
    assert main(["classify", str(folder), "a\tb"]) == 0  # a tab separates the texts of a pair
    found = float(np.asarray(transformer_jax.load(folder)("a", "b")).item())
    assert float(capsys.readouterr().out) == pytest.approx(found, abs=1e-4)
    beside.write_text(json.dumps(own | {"default_prompt_name": "query"}))
    with pytest.raises(CheckpointError, match="cross-encoders with a prompt are not supported"):
        HFRunDirectory(folder).read_config()


LOGITS = {"method": "forward", "method_output_name": "logits"}
SCORES = {
    "transformer_task": "sequence-classification",
    "modality_config": {"text": LOGITS},
    "module_output_name": "scores",
}


@pytest.mark.parametrize(
    ("changes", "kinds", "what"),
    [({}, ["Transformer"], None),
     ({"max_seq_length": 9, "unpad_inputs": True}, ["Transformer"], None),
     ({}, ["Transformer", "Dense"], r"modules\.json: its modules are Transformer in '', Dense in"),
     ({"transformer_task": "fill-mask"}, ["Transformer"], 'transformer_task is "fill-mask"'),
     ({"query_length": 9}, ["Transformer"], "query_length is 9"),
     ({"modality_config": {"text": LOGITS, "message": LOGITS}}, ["Transformer"],
      r"sentence_bert_config\.json: modality_config is .*without a chat template")],
    ids=["as saved", "length", "module", "task", "query", "chat"],
)  # fmt: skip
def test_modules_of_a_cross_encoder_are_those_of_a_classifier_or_refused(
    tmp_path, changes, kinds, what
):
    """A chat template would rewrite the pairs, and a further module their scores."""
    files = {
        "config_sentence_transformers.json": {"model_type": "CrossEncoder"},
        "sentence_bert_config.json": SCORES | changes,
        "modules.json": [
            {"type": f"sentence_transformers.base.modules.{kind}", "path": f"{i}_{kind}" * (i > 0)}
            for i, kind in enumerate(kinds)
        ],
    }
    scorer(tmp_path)
    for name, said in files.items():
        (tmp_path / name).write_text(json.dumps(said))
    if what is None:
        length = HFRunDirectory(tmp_path).read_config()["task"]["max_length"]
        assert length == changes.get("max_seq_length", 44)
        return
    with pytest.raises(CheckpointError, match=what):
        HFRunDirectory(tmp_path).read_config()


@pytest.mark.slow
def test_a_cross_encoder_that_names_no_activation_has_a_sigmoid(tmp_path):
    plain = np.asarray(transformer_jax.load(scorer(tmp_path / "plain"))("a", "b"))
    folder = scorer(tmp_path / "found", {"sentence_transformers": {"version": "4.1.0"}})
    assert same(transformer_jax.load(folder)("a", "b"), 1 / (1 + np.exp(-plain)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Identity", "Sigmoid", "Tanh"])
def test_an_export_keeps_the_activation_and_the_pairs(tmp_path, name, capsys):
    """sentence-transformers reads the file beside only with a ``modules.json``."""
    folder = scorer(tmp_path / "folder")
    own = {"model_type": "CrossEncoder", "activation_fn": f"torch.nn.{name}"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(own))
    score = transformer_jax.load(folder)("a", "b")
    assert main(["export", str(folder), str(tmp_path / "out")]) == 0
    said = json.loads((tmp_path / "out/config.json").read_text())["sentence_transformers"]
    assert said.keys() == {"activation_fn"}
    assert said["activation_fn"].endswith(f".{name}")
    assert same(transformer_jax.load(tmp_path / "out")("a", "b"), score)
    capsys.readouterr()
    assert main(["classify", str(tmp_path / "out"), "a\tb"]) == 0
    assert float(capsys.readouterr().out) == pytest.approx(np.asarray(score).item(), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [False, True], ids=["texts", "pairs"])
def test_a_score_trained_here_says_that_it_has_no_activation(tmp_path, pairs, shared, capsys):
    """sentence-transformers would put a sigmoid on it."""
    data, run = shared("published_starts", starts.write_data), tmp_path / "run"
    start = starts.write("bert_mlm", tmp_path / "start")
    more = ["--data.train", f"{data}/pair.tsv"] if pairs else []
    task = "finetune pair" if pairs else "finetune regress"
    assert starts.begin("bert_mlm", task, start, data, run, *more) == 0
    starts.draw_parameters(run)
    assert main(["export", str(run), str(tmp_path / "out")]) == 0
    said = json.loads((tmp_path / "out/config.json").read_text())["sentence_transformers"]
    assert said == {"activation_fn": IDENTITY} | ({} if pairs else {"pairs": False})
    given, outputs = "um dois\ta" if pairs else "um dois", []
    for folder in (run, tmp_path / "out"):
        capsys.readouterr()
        assert main(["classify", str(folder), given]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("name", ["torch.nn.ReLU6", "my_code.Sigmoid", "os.system", 3])
def test_an_unknown_activation_is_refused(tmp_path, name):
    with pytest.raises(CheckpointError, match="supported are Identity, Sigmoid, Tanh of torch"):
        HFRunDirectory(
            scorer(tmp_path, {"sbert_ce_default_activation_function": name})
        ).read_config()


# Keys


def test_an_unknown_key_is_told_and_not_applied(tmp_path, capsys):
    folder = encoder(tmp_path, window_of_the_moon=3)
    (folder / "generation_config.json").write_text('{"moonlight": 1, "use_cache": true}')
    HFRunDirectory(folder).read_config()
    err = capsys.readouterr().err
    assert "tokenizer_config.json: not applied: 1 unknown key: 'window_of_the_moon'" in err
    assert "generation_config.json: not applied: 1 unknown key: 'moonlight'" in err


def test_sampling_of_subwords_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r'sp_model_kwargs is {"enable_sampling": true}'):
        HFRunDirectory(encoder(tmp_path, sp_model_kwargs={"enable_sampling": True})).read_config()


def test_sampling_of_subwords_may_be_turned_off(tmp_path):
    off = encoder(tmp_path, sp_model_kwargs={"enable_sampling": False})
    assert HFRunDirectory(off).read_config()["published"]


def test_every_key_of_the_tables_has_a_reason():
    assert TABLES.keys() == {
        "tokenizer_config.json", "generation_config.json", "config_sentence_transformers.json"
    }  # fmt: skip
    for table in (TOKENIZER, GENERATION, SENTENCES):
        assert all(len(use.why) > 10 for use in table.values())


@pytest.mark.slow
def test_fine_tuning_reads_no_more_than_its_start_unless_it_is_told_to(tmp_path, shared, capsys):
    """transformers cuts training examples at the length of the tokenizer, too."""
    data = shared("published_starts", starts.write_data)
    folder = starts.write("bert_cls", tmp_path / "bert")
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": 12}))
    command = ["finetune", "classify", "--data.train", f"{data}/classify.tsv", "--reinit-head"]
    command += ["--init-from", str(folder), "--distributed.num-local-devices", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "train", lambda *_: 0)
        assert main([*command, "--output", str(tmp_path / "a")]) == 0
        assert "task.max_length 12: the longest text" in capsys.readouterr().err
        given = ["--task.max-length", "20", "--output", str(tmp_path / "b")]
        assert main([*command, *given]) == 0
    lengths = [
        RunDirectory.open(tmp_path / run).read_config()["task"]["max_length"] for run in "ab"
    ]
    assert lengths == [12, 20]
