"""Hugging Face folders where commands take a run directory, and the way there and back."""

import json
import re
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from flax import nnx
from safetensors.numpy import load_file

from tests.opened import load
from tests.parity import layouts
from transformer_jax.cli import encoder_only
from transformer_jax.data.tokenizer import BERT_SPECIAL, train_tokenizer
from transformer_jax.decoding.hf_config import GenerationConfig, from_generation_config
from transformer_jax.decoding.hf_generate import HFGenerator
from transformer_jax.decoding.requests import Continuation
from transformer_jax.inference.encoding.batching import Batches
from transformer_jax.inference.hf_generation import HFTextGenerator
from transformer_jax.models.prepare import stack_blocks
from transformer_jax.runs.checkpoint import Checkpointer
from transformer_jax.runs.run_directory import RunDirectory
from transformer_jax.training.state import TrainState

TEXT = ["i sat on the bank of the river.", "i took cash to the bank.", "rivers ran; who ran?"]
# Tokens in the places that the configurations of the layouts give them.
SPECIAL = {
    "bert": BERT_SPECIAL, "gpt2": ("<s>", "<pad>", "</s>", "<unk>"),
    "llama": ("<s>", "<pad>", "</s>", "<unk>"), "bart": ("<s>", "<pad>", "</s>", "<unk>"),
    "mpnet": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    **dict.fromkeys(("opt", "phi3", "qwen2", "gemma"), ("<s>", "<pad>", "</s>", "<unk>")),
    "t5": ("<pad>", "</s>", "<unk>", "<other>"),
    "camembert": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"), "electra": BERT_SPECIAL,
    "modernbert": BERT_SPECIAL,
}  # fmt: skip


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    root = tmp_path_factory.mktemp("published")

    def folder(name):
        if not (root / name).exists():
            layouts.write(name, root / name)
            special = SPECIAL[name.split("_")[0]]
            train_tokenizer("wordpiece", TEXT * 3, 90, special=special).save(
                root / name / "tokenizer.json"
            )
        return root / name

    return folder


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text").write_text("\n".join(TEXT) + "\n")
    return tmp_path / "text"


USES = [
    ("bert", ["fill-mask", "{}", "the [MASK]"]),
    ("bert", ["semantic-search", "{}", "{text}", "the river"]),
    ("bert", ["describe", "{}"]),
    ("bert_cls", ["classify", "{}", "{text}"]),
    ("bert_tag", ["tag", "{}", "{text}"]),
    ("camembert", ["fill-mask", "{}", "the [MASK]"]),
    ("camembert_tag", ["tag", "{}", "{text}"]),
    ("mpnet", ["fill-mask", "{}", "the [MASK]"]),
    ("mpnet_bare", ["semantic-search", "{}", "{text}", "the river"]),
    ("mpnet_cls", ["classify", "{}", "{text}"]),
    ("electra", ["tag", "{}", "{text}", "--columns"]),
    ("electra_mlm", ["fill-mask", "{}", "the [MASK]"]),
    ("electra_bare", ["semantic-search", "{}", "{text}", "the river"]),
    ("modernbert", ["fill-mask", "{}", "the [MASK]"]),
    ("modernbert", ["semantic-search", "{}", "{text}", "the river"]),
    ("modernbert_cls", ["classify", "{}", "{text}"]),
    ("modernbert_tag", ["tag", "{}", "{text}"]),
    ("t5_encoder", ["semantic-search", "{}", "{text}", "the river"]),
    ("t5_encoder", ["describe", "{}"]),
    ("bert_qa", ["answer", "{}", "who ran?", "--context", "{text}"]),
    ("gpt2", ["generate", "{}", "the ", "--max-new-tokens", "5", "--temperature", "0"]),
    ("gpt2", ["score", "{}", "{text}"]),
    ("llama", ["generate", "{}", "the ", "--max-new-tokens", "5", "--generation-config", "hf"]),
    ("phi3_short", ["describe", "{}"]),
]  # fmt: skip
SLOW = [
    ("opt", ["generate", "{}", "the ", "--max-new-tokens", "5", "--generation-config", "hf"]),
    ("opt_post", ["generate", "{}", "the ", "--max-new-tokens", "60", "--temperature", "0"]),
    ("phi3_long", ["score", "{}", "{text}"]),
    ("phi3_short", ["generate", "{}", "the ", "--max-new-tokens", "5", "--generation-config",
                    "hf"]),
    ("llama_dynamic", ["generate", "{}", "the ", "--max-new-tokens", "50", "--context", "60"]),
    ("qwen2_late", ["generate", "{}", "the ", "--temperature", "0", "--prompt-lookup-num-tokens",
                    "3"]),
    ("gemma", ["score", "{}", "{text}"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "words"),
    [*USES, *(pytest.param(*use, marks=pytest.mark.slow) for use in SLOW)],
    ids=[f"{w[0]} {n}" for n, w in (*USES, *SLOW)],
)
@pytest.mark.slow
def test_a_folder_is_used_like_the_run_made_of_it(
    published, text, tmp_path, run_command, name, words
):
    assert run_command("convert", published(name), tmp_path / "run")[0] == 0
    outputs = []
    for path in (published(name), tmp_path / "run"):
        given = [word.format(path, text=text) for word in words]
        code, out, err = run_command(*given)
        assert code == 0, err
        outputs.append([line.replace(str(path), "RUN") for line in out])
    assert outputs[0] == outputs[1]
    assert outputs[0]


def framed(source, folder, before, after):
    """A copy of a folder whose tokenizer puts other tokens around a text; the ids of tokens."""
    shutil.copytree(source, folder)
    fields = json.loads((folder / "tokenizer.json").read_text())
    part = lambda text: {"SpecialToken": {"id": text, "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    single = [*map(part, before), text, *map(part, after)]
    ids = {token["content"]: token["id"] for token in fields["added_tokens"]}
    fields["post_processor"] = {
        "type": "TemplateProcessing", "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 0}}, *map(part, after)],
        "special_tokens": {
            name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in (*before, *after)
        },
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(fields))
    return ids


@pytest.mark.parametrize("name", ["t5_encoder", "bart"])
@pytest.mark.slow
def test_vectors_are_of_what_the_tokenizer_puts_around_a_text(
    published, tmp_path, run_command, name
):
    """The encoder of T5 reads an end and no beginning, that of BART both."""
    folder, before = tmp_path / "framed", ["<s>"] if name == "bart" else []
    ids = framed(published(name), folder, before, ["</s>"])
    (tmp_path / "lines").write_text("\n".join(TEXT) + "\n")
    output = tmp_path / "vectors.npz"
    assert run_command("embed", folder, tmp_path / "lines", "--output", output)[0] == 0
    (graph, params), tokenizer = load(folder, kind=("encoder", "encoder-decoder"))
    model = nnx.merge(graph, params)
    for line, vector in zip(TEXT, np.load(output)["vectors"], strict=True):
        row = jnp.array([[*(ids[n] for n in before), *tokenizer.encode(line), ids["</s>"]]])
        length = jnp.array([row.shape[1]])
        encode = model.encode if name == "bart" else model
        [hidden] = encode(row, length)
        np.testing.assert_allclose(vector, hidden.mean(0), atol=2e-6)


@pytest.mark.parametrize(
    ("name", "words"),
    [("bert", ["fill-mask", "{}", "the [MASK]"]),
     ("bert_qa", ["answer", "{}", "who ran?", "--context", "{text}"])],
)  # fmt: skip
def test_masked_tokens_and_answers_are_predicted_within_what_the_tokenizer_puts_around(
    published, tmp_path, run_command, monkeypatch, text, name, words
):
    """Here no token before a text, and two after it."""
    folder, read = tmp_path / "framed", []
    ids = framed(published(name), folder, [], ["[SEP]", "[CLS]"])
    run = Batches.__call__

    def seen(self, params, examples):
        read.extend(row.tolist() for row in examples.store)
        return run(self, params, examples)

    monkeypatch.setattr(Batches, "__call__", seen)
    code, _, err = run_command(*(word.format(folder, text=text) for word in words))
    assert code == 0, err
    assert read
    for row in read:
        assert row[-2:] == [ids["[SEP]"], ids["[CLS]"]]
        assert row.count(ids["[CLS]"]) == (2 if name == "bert_qa" else 1)
        assert row[0] != ids["[CLS]"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bart", pytest.param("t5", marks=pytest.mark.slow)])
def test_a_converted_translator_begins_as_the_folder_does(published, tmp_path, run_command, name):
    """BART's decoder starts from ``</s>``, which no name of a token tells."""
    assert run_command("convert", published(name), tmp_path / "run")[0] == 0
    start = layouts.LAYOUTS[name]["config"]["decoder_start_token_id"]
    for path in (published(name), tmp_path / "run"):
        assert load(path, kind="encoder-decoder")[1].bos == start
    folder, run = (
        (code, lines, err.replace(str(path), "FOLDER"))
        for path in (published(name), tmp_path / "run")
        for code, lines, err in [
            run_command("translate", path, "--scores", "--max-len-b", "3", text="the bank\n")
        ]
    )
    assert folder == run
    assert folder[0] == 0


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("start", [-1, 97, 10**6])
@pytest.mark.slow
def test_a_decoder_does_not_begin_with_what_it_has_not(
    published, tmp_path, run_command, file, start
):
    folder = shutil.copytree(published("bart"), tmp_path / "folder")
    # Of a forced end it would be told first that the search does not apply it.
    config = json.loads((folder / "config.json").read_text()) | {"forced_eos_token_id": None}
    (folder / "config.json").write_text(json.dumps(config))
    kept = config if file == "config.json" else {}
    (folder / file).write_text(json.dumps(kept | {"decoder_start_token_id": start}))
    for rules in ([], ["--generation-config", "hf"]):
        code, _, err = run_command("translate", folder, *rules, text="the bank\n")
        assert (code, err.count("\n")) == (4, 1), err
        assert f"{file}: decoder_start_token_id is {start}: the decoder reads 0 to 96" in err
    assert run_command("convert", folder, tmp_path / "run")[0] == 4


@pytest.mark.slow
def test_settings_of_decoding_go_back_as_they_were(published, tmp_path, run_command):
    """In a file of their own where they had one, and in ``config.json`` alone otherwise."""
    assert run_command("export", published("bart"), tmp_path / "plain")[0] == 0
    assert not (tmp_path / "plain/generation_config.json").exists()
    shutil.copytree(published("bart"), tmp_path / "own")
    said = {"num_beams": 3, "bad_words_ids": [[7]], "max_length": 9, "decoder_start_token_id": 2}
    (tmp_path / "own/generation_config.json").write_text(json.dumps(said))
    assert run_command("convert", tmp_path / "own", tmp_path / "run")[0] == 0
    assert run_command("export", tmp_path / "run", tmp_path / "back")[0] == 0
    assert json.loads((tmp_path / "back/generation_config.json").read_text()) == said


@pytest.mark.parametrize("format", ["hf", "ctranslate2", "stablehlo"])
@pytest.mark.slow
def test_a_scanned_stack_is_exported_like_any_other(published, tmp_path, run_command, format):
    """Its parameters lie along an axis of layers, which no format has."""
    pytest.importorskip({"hf": "safetensors", "stablehlo": "flatbuffers"}.get(format, format))
    assert run_command("convert", published("gpt2"), tmp_path / "loop")[0] == 0
    (_, params), _ = load(tmp_path / "loop", kind="decoder")
    decoder = params["decoder"] | {"blocks": stack_blocks(params["decoder"]["blocks"])}
    fields = json.loads((tmp_path / "loop/config.json").read_text())
    fields["model"]["compute"]["scan_layers"] = True
    run = RunDirectory.create(tmp_path / "scan")
    shutil.copy(tmp_path / "loop/tokenizer.json", run.tokenizer)
    run.write(run.config, fields)
    checkpointer = Checkpointer(run.checkpoints)
    checkpointer.save(0, TrainState(np.int32(0), params | {"decoder": decoder}, {}))
    checkpointer.close()
    for name in ("loop", "scan"):
        flags = ["--format", format]
        code, _, err = run_command("export", tmp_path / name, tmp_path / f"{name}_out", *flags)
        assert code == 0, err
    weights = "model.bin" if format == "ctranslate2" else "model.safetensors"
    one, two = ((tmp_path / f"{name}_out" / weights).read_bytes() for name in ("loop", "scan"))
    assert one == two


@pytest.mark.parametrize(
    ("beams", "name"),
    [
        (1, "bart"),
        (3, "t5"),
        pytest.param(3, "bart", marks=pytest.mark.slow),
        pytest.param(1, "t5", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_translating_by_generation_config_equals_generating(published, run_command, name, beams):
    """The tokenizer frames a source; the rest comes from the checkpoint."""
    lines = ["the bank ran.", "", "i sat on a river to the cash"]
    flags = ["--generation-config", "hf", "--num-beams", str(beams), "--scores"]
    text = "\n".join(lines) + "\n"
    code, out, err = run_command("translate", published(name), *flags, text=text)
    assert code == 0, err
    model, tokenizer = load(published(name), kind="encoder-decoder")
    fields = layouts.LAYOUTS[name]["config"]
    rules = GenerationConfig(
        num_beams=beams, eos_token_id=(fields["eos_token_id"],),
        pad_token_id=fields["pad_token_id"],
        decoder_start_token_id=fields["decoder_start_token_id"],
        forced_eos_token_id=(fields["forced_eos_token_id"],) if name == "bart" else (),
    )  # fmt: skip
    generator = HFGenerator(model, rules)
    assert out[1] == "\t0.0000"
    for line, said in zip((lines[0], lines[2]), (out[0], out[2]), strict=True):
        ids = [*tokenizer.prefix_ids, *tokenizer.encode(line), *tokenizer.suffix_ids]
        tokens, scores = generator.generate([ids])
        words = tokenizer.decode(tokens[0][1:].tolist()).replace("\n", " ")
        assert said.split("\t")[0] == words
        assert float(said.split("\t")[1]) == pytest.approx(scores[0], abs=1e-3)


@pytest.fixture
def with_rules(published, tmp_path):
    """A Hugging Face folder whose ``generation_config.json`` says what a test wants."""

    def folder(name, **rules):
        shutil.copytree(published(name), tmp_path / "ruled", dirs_exist_ok=True)
        fields = layouts.LAYOUTS[name]["config"]
        ids = {key: fields[key] for key in fields if key.endswith("_token_id")}
        (tmp_path / "ruled/generation_config.json").write_text(json.dumps(ids | rules))
        return tmp_path / "ruled"

    return folder


@pytest.fixture
def rules_of(monkeypatch, run_command):
    """The rules that a command would write by, and its output, without writing."""
    seen = []

    def write(writer, texts, *_):
        seen.append(writer.generation_config)
        for text in texts:
            n = writer.generation_config.num_return_sequences
            yield [Continuation(f"{text} {i}", (), -1.0 - i, "end", -1.0 - i) for i in range(n)]

    monkeypatch.setattr(HFTextGenerator, "__call__", write)

    def call(command, folder, *words, **given):
        code, out, err = run_command(command, folder, "--generation-config", "hf", *words, **given)
        assert (code, out.pop()) == (0, ""), err
        return seen.pop(), out

    return call


@pytest.mark.slow
def test_what_no_flag_says_is_the_checkpoints(with_rules, rules_of):
    """An explicit flag goes before the file, even where it says what is usual."""
    said = {"max_new_tokens": 3, "num_beams": 3, "num_return_sequences": 3,
            "no_repeat_ngram_size": 1, "repetition_penalty": 3.0}  # fmt: skip
    folder = with_rules("llama", **said)
    ids = {"eos_token_id": 2, "pad_token_id": 1, "bos_token_id": 0}
    for flags, changed in (
        ("", {}),
        ("--num-return-sequences 1", {"num_return_sequences": 1}),
        (
            "--num-return-sequences 1 --num-beams 1 --temperature 0",
            {"num_return_sequences": 1, "num_beams": 1},
        ),
        ("--no-repeat-ngram-size 0", {"no_repeat_ngram_size": 0}),
        ("--repetition-penalty 1", {"repetition_penalty": 1.0}),
        # More texts than beams are no mistake where the file has beams.
        (
            "--num-return-sequences 2 --max-new-tokens 128",
            {"num_return_sequences": 2, "max_new_tokens": 128},
        ),
    ):
        rules, out = rules_of("generate", folder, "the", "--tsv", *flags.split())
        assert rules == from_generation_config(ids | said | changed)
        head, *rows = [line.split("\t") for line in out]
        assert head == ["prompt", "sequence", "score", "text"]
        assert [row[1] for row in rows] == [
            str(n) for n in range(1, rules.num_return_sequences + 1)
        ]
    rules, _ = rules_of("generate", with_rules("llama", max_length=20), "the")
    assert rules.longest(4, 64) == 20


@pytest.mark.slow
def test_translations_are_as_many_as_the_checkpoint_or_the_flag_says(with_rules, rules_of):
    folder = with_rules("t5", max_new_tokens=4, num_beams=3, num_return_sequences=3)
    several = "a 0\t-1.0000\ta 1\t-2.0000\ta 2\t-3.0000"
    for flags, wanted, beams in (
        ("", several, 3),
        ("--num-return-sequences 1", "a 0", 3),
        ("--num-return-sequences 2", several.rsplit("\t", 2)[0], 3),
        ("--num-return-sequences 1 --num-beams 1", "a 0", 1),
    ):
        rules, out = rules_of("translate", folder, *flags.split(), text="a\n")
        assert (out, rules.num_beams) == ([wanted], beams)


@pytest.mark.slow
def test_the_first_word_written_keeps_its_blank(with_rules, run_command):
    """SentencePiece drops the blank that begins a text, which what is written does not."""
    folder = with_rules("llama", max_new_tokens=2, suppress_tokens=list(range(6)))
    words = [f"▁{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(90)]
    vocab = [(piece, 0.0) for piece in (*SPECIAL["llama"], "▁a", "▁b")]
    vocab += [(word, -1.0) for word in words]
    backend = tokenizers.Tokenizer(tokenizers.models.Unigram(vocab, unk_id=3))
    backend.add_special_tokens(list(SPECIAL["llama"]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    backend.decoder = tokenizers.decoders.Metaspace()
    backend.save(str(folder / "tokenizer.json"))
    code, out, err = run_command("generate", folder, "a b", "--generation-config", "hf")
    assert code == 0, err
    assert re.fullmatch("a b( [a-z]{2}){2}", out[0])
    code, out, err = run_command("generate", folder, "", "--generation-config", "hf")
    assert re.fullmatch("[a-z]{2} [a-z]{2}", out[0]), err  # a text of its own begins without one


@pytest.mark.slow
def test_a_folder_translates_by_our_rules_too(published, run_command):
    flags = ["--max-len-b", "3"]
    code, out, err = run_command("translate", published("t5"), *flags, text="the bank ran.\n")
    assert (code, len(out)) == (0, 2), err


@pytest.mark.slow
def test_fine_tuning_begins_from_a_folder(published, tmp_path, capfd):
    """Every tensor but the new head, and the Hugging Face tokenizer."""
    rows = "".join(f"the river ran {i}\t{'ab'[i % 2]}\n" for i in range(40))
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + rows)
    code = encoder_only.main(
        ["finetune", "classify", "--init-from", str(published("bert")), "--freeze",
        "encoder",
         "--data.train", str(tmp_path / "train.tsv"), "--training.steps", "2", "--task.max-length",
         "24", "--training.max-tokens", "256", "--training.num-buckets", "1",
         "--optimizer.schedule.warmup-steps", "1", "--distributed.num-local-devices", "1",
         "--output", str(tmp_path / "run")]
    )  # fmt: skip
    err = capfd.readouterr().err
    assert code == 0, err
    assert "newly initialized: labels" in err
    (_, params), tokenizer = load(tmp_path / "run", "last", kind="encoder-task")
    there = layouts.weights("bert")["bert.encoder.layer.1.intermediate.dense.weight"]
    block = params["encoder"]["blocks"][1]
    np.testing.assert_array_equal(block["feed_forward"]["up"]["kernel"], there.T)
    assert tokenizer.sha256 == load(published("bert"), kind="encoder")[1].sha256


def test_what_is_trained_here_is_published_with_its_frame(tmp_path, run_command, published):
    """Others put around a text what we put around it by ourselves."""
    assert run_command("convert", published("gpt2"), tmp_path / "run")[0] == 0
    config = json.loads((tmp_path / "run/config.json").read_text())
    del config["published"]  # as if it had been trained here
    (tmp_path / "run/config.json").write_text(json.dumps(config))
    folders = tmp_path / "run", tmp_path / "out"
    code, _, err = run_command("export", *folders, "--allow-changed-config")
    assert code == 0, err
    framed = tokenizers.Tokenizer.from_file(str(tmp_path / "out/tokenizer.json"))
    plain = framed.encode("the bank", add_special_tokens=False).ids
    assert framed.encode("the bank").ids == [0, *plain]
    said = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert said == {
        "pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0, "max_length": 44,
    }  # fmt: skip
    there, back = (
        load_file(p / "model.safetensors") for p in (published("gpt2"), tmp_path / "out")
    )
    assert there.keys() == back.keys()
    assert all(there[name].tobytes() == back[name].tobytes() for name in there)


@pytest.mark.slow
def test_shards_and_halves(published, tmp_path, run_command):
    flags = ["--dtype", "bfloat16", "--max-shard-size", "2e-5"]
    assert run_command("export", published("llama"), tmp_path / "out", *flags)[0] == 0
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 2
    code, out, _ = run_command("verify", tmp_path / "out")
    assert (code, out) == (0, ["30 tensors\tall of them known, all finite", ""])
    assert run_command("generate", tmp_path / "out", "the ", "--generation-config", "hf")[0] == 0


MISTAKES = [
    (["describe", "{bin}"], 4, "pytorch_model.bin"),
    (["fill-mask", "{bert_bare}", "a [MASK]"], 2, "without a masked-LM head"),
    (["classify", "{bert}", "{text}"], 2, "without a head for classes"),
    (["translate", "{gpt2}"], 2, "a decoder, which this command does not support"),
    (["generate", "{gpt2}", "x", "--checkpoint", "7"], 2, "has no steps"),
    (["generate", "{bare}", "x"], 4, "tokenizer"),
    (["generate", "{gpt2}", "x", "--generation-config", "hf", "--top-k", "3"], 2,
     "--top-k does not go with"),
    (["generate", "{gpt2}", "x", "--generation-config", "hf", "--temperature", "0.5"], 2,
     "--temperature does not go with"),
    (["generate", "{gpt2}", "x", "--generation-config", "hf", "--max-new-tokens", str(10**12)], 2,
     "--max-new-tokens is 1000000000000: at most 1048576"),
    (["generate", "{phi3_long}", "x", "--generation-config", "hf", "--max-new-tokens", "60"], 3,
     "the model has positions for 36"),
    (["generate", "{llama_dynamic}", "x", "--context", "60", "--rope-interpolation"], 2,
     "--rope-interpolation does not apply"),
    (["resume", "{gpt2}"], 2, "has only weights, no training to resume"),
    (["convert", "{gpt2}", "{full}"], 2, "is not empty"),
    (["convert", "{text}", "{new}"], 4, "no such"),
    (["export", "{gpt2}", "{full}"], 2, "is not empty"),
    (["export", "{gpt2}", "{new}", "--max-shard-size", "0"], 2, "above 0"),
    (["describe", "{strange}"], 4, "model_type is \"evil\": known are bert"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "code", "said"), MISTAKES, ids=[m[2] for m in MISTAKES])
def test_a_mistake_is_one_line(published, text, tmp_path, run_command, given, code, said):
    names = {
        name: published(name)
        for name in re.findall(r"{(bert\w*|gpt2|phi3_long|llama_dynamic)}", " ".join(given))
    }
    for name in ("bin", "full", "bare", "strange"):
        (tmp_path / name).mkdir()
    (tmp_path / "full/file").write_text("x")
    shutil.copy(published("gpt2") / "config.json", tmp_path / "bin")
    (tmp_path / "bin/pytorch_model.bin").write_bytes(b"x")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(published("gpt2") / name, tmp_path / "bare")
    (tmp_path / "strange/config.json").write_text('{"model_type": "evil"}')
    (tmp_path / "strange/tokenizer.json").write_text("{}")
    places = {name: tmp_path / name for name in ("bin", "full", "bare", "strange", "new")}
    words = [word.format(**places, **names, text=text) for word in given]
    found, _, err = run_command(*words)
    assert found == code, err
    assert said in err
    assert "Traceback" not in err
    assert err.count("error:") == 1
