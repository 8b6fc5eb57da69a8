"""Runs that start from trained weights: what they take over, what they train, what they need.

Row B38. Those of encoders are in ``test_encoder_only.py``.
"""

import dataclasses
import json
import logging
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tokenizers.processors import TemplateProcessing

from tests.experiments.language_runs import (
    ALONE,
    LANGUAGE,
    SHORT,
    WIDTHS,
    WORDS,
    run_of,
    write_texts,
)
from tests.opened import load
from tests.parity import layouts
from transformer_jax.cli import decoder_only, encoder_only, seq2seq
from transformer_jax.core.trees import flatten_dict
from transformer_jax.data.examples import DECODER_TOKENS
from transformer_jax.data.tokenizer import load_tokenizer, train_tokenizer
from transformer_jax.inference.loading import load as load_predictor
from transformer_jax.recipes.explicit_settings import Given
from transformer_jax.recipes.freezing import load_pretrained
from transformer_jax.recipes.registry import named_runs
from transformer_jax.recipes.start import with_new_rows
from transformer_jax.runs.checkpoint_reader import load_params, load_parts

LANGUAGE_RUNS = named_runs("language_model", "ngram")

STILL = ["--optimizer.learning-rate", "0"]
PROGRAMS = {"decoder": decoder_only, "encoder-decoder": seq2seq}
COMMANDS = {
    "decoder": LANGUAGE,
    "encoder-decoder": [
        "train", "small", *SHORT, "--data.source", "{texts}/all.txt", "--data.target",
        "{texts}/all.txt", "--data.read.max-length", "40", "--training.max-tokens", "256",
        "--training.num-buckets", "1", "--evaluation.sentences", "0", "--evaluation.num-beams", "1",
    ],
}  # fmt: skip
SIZES = {
    "decoder": WIDTHS,
    "encoder-decoder": [
        *WIDTHS, "--model.encoder-layers", "2", "--tokenizer.kind", "characters",
        "--model.norm.residual-dropout", "0.0",
    ],
}  # fmt: skip
FAMILIES = ["decoder", pytest.param("encoder-decoder", marks=pytest.mark.slow)]
# Names of the tokens to pad, begin and end of each published model, by its configuration's ids.
PUBLISHED = {
    "gpt2": ("<start>", "<pad>", "<stop>", "<unk>", "</s>"),
    "llama": ("<start>", "<pad>", "<stop>", "<unk>", "</s>"),
    "bart": ("<start>", "<pad>", "<stop>", "<unk>", "</s>"),
    "t5": ("<pad>", "<stop>", "<unk>", "</s>"),
}


@pytest.fixture(autouse=True)
def st_quiet():
    yield
    logging.getLogger().handlers.clear()


@pytest.fixture(scope="module")
def texts(shared):
    def write(folder):
        write_texts(folder)
        rows = [f"{a}\t{b}\t{int(a == b)}\n" for a in WORDS[:6] for b in WORDS[:6]]
        (folder / "pairs.tsv").write_text("text\tsecond\tlabel\n" + "".join(rows))

    return shared("starts_texts", write)


@pytest.fixture(scope="module")
def train(texts):
    """The run of a family that a command made, which must succeed."""

    def made(family, output, *more):
        return run_of(PROGRAMS[family], COMMANDS[family], texts, output, *map(str, more))

    return made


@pytest.fixture(scope="module")
def start(train, shared):
    """A run of a family to start from: two layers a stack."""
    return lambda family: shared(f"starts_{family}", lambda run: train(family, run, *SIZES[family]))


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A published model whose special tokens have unusual names."""
    root = tmp_path_factory.mktemp("published")

    def folder(name):
        if not (root / name).exists():
            layouts.write(name, root / name)
            special = PUBLISHED[name]
            tokenizer = train_tokenizer("wordpiece", [" ".join(WORDS)] * 3, 90, special=special)
            backend = tokenizer._backend
            tokenizer.save(root / name / "tokenizer.json")
            if name == "llama":  # whose prompts begin with a start token, as texts of runs do
                backend.post_processor = TemplateProcessing(
                    single="<start> $A", special_tokens=[("<start>", 0)]
                )
                backend.save(str(root / name / "tokenizer.json"))
        return root / name

    return folder


def parameters(run, which="last"):
    return flatten_dict(load_params(run, which).params)


def results(run):
    return json.loads((run / "results.json").read_text())


def model_of(run):
    return json.loads((run / "config.json").read_text())["model"]


def same(one, other):
    return np.asarray(one).tobytes() == np.asarray(other).tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("family", PROGRAMS)
def test_a_run_goes_on_from_another(start, train, tmp_path, capfd, family):
    """At rate 0 nothing moves; settings of its own change no size."""
    there = start(family)
    run = train(
        family, tmp_path / "run", "--init-from", there, *STILL, "--model.norm.residual-dropout",
        "0.3", "--training.seed", "5",
    )  # fmt: skip
    assert f"parameters from {there}; newly initialized: none\n" in capfd.readouterr().err
    before, after = parameters(there, "best"), parameters(run)
    assert before.keys() == after.keys()
    assert all(same(before[name], after[name]) for name in before)
    own, other = model_of(run), model_of(there)
    assert own["norm"].pop("residual_dropout") == 0.3
    assert other["norm"].pop("residual_dropout") == 0.0
    assert own == other
    tokenizers = [(path / "tokenizer.json").read_bytes() for path in (run, there)]
    assert tokenizers[0] == tokenizers[1]


FROZEN = [
    ("decoder", "1", ("embedding/", "decoder/positions/", "decoder/blocks/0/")),
    ("decoder", "embeddings", ("embedding/", "decoder/positions/")),
    ("encoder-decoder", "encoder", ("embedding/", "encoder/")),
    ("encoder-decoder", "decoder", ("embedding/", "decoder/")),
    ("encoder-decoder", "1", ("embedding/", "encoder/blocks/0/", "decoder/blocks/0/")),
]


@pytest.mark.parametrize(
    ("family", "freeze", "below"), FROZEN, ids=[f"{case[0]} {case[1]}" for case in FROZEN]
)
@pytest.mark.slow
def test_frozen_parameters_stay_and_have_no_optimizer_state(
    start, train, tmp_path, family, freeze, below
):
    """Resumed without the run that it started from, it ends with the same bits."""
    there = shutil.copytree(start(family), tmp_path / "start")
    run = train(family, tmp_path / "run", "--init-from", there, "--freeze", freeze)
    shutil.rmtree(there)
    before, after = parameters(start(family), "best"), parameters(run)
    frozen = flatten_dict(load_parts(run, "last").frozen)
    assert frozen.keys() == {name for name in before if name.startswith(below)}
    for name in before:
        # A key's bias has no gradient.
        assert same(before[name], after[name]) == (name in frozen) or "key/bias" in name, name
    stored = json.loads((run / "checkpoints/step_00000004/manifest.json").read_text())["tree"]
    moments = [name for name in stored if name.startswith("optimizer/state") and "/mu/" in name]
    assert len(moments) == len(before) - len(frozen)
    assert not [name for name in stored for still in frozen if name.endswith(f"/{still}")]
    shutil.rmtree(run / "checkpoints/step_00000004")
    whole = results(run)["state_sha256"]
    (run / "results.json").unlink()
    assert PROGRAMS[family].main(["resume", str(run), *ALONE]) == 0
    assert results(run)["state_sha256"] == whole


@pytest.mark.slow
@pytest.mark.parametrize("family", PROGRAMS)
def test_last_layers_and_the_head_are_drawn_anew(start, train, tmp_path, capfd, family):
    untied = "--model.head.no-tie-word-embeddings"
    first = train(family, tmp_path / "first", "--init-from", start(family), untied, *STILL)
    assert "newly initialized: head" in capfd.readouterr().err
    run = train(
        family, tmp_path / "run", "--init-from", first, "--reinit-last", "1", "--reinit-head",
        "--training.seed", "7", *STILL,
    )  # fmt: skip
    assert "newly initialized: decoder/blocks/1, head\n" in capfd.readouterr().err
    before, after = parameters(first, "best"), parameters(run)
    fresh = [name for name in before if name.startswith(("decoder/blocks/1/", "head/"))]
    kernels = [name for name in fresh if name.endswith(("kernel", "table"))]
    assert kernels
    assert not any(np.allclose(before[name], after[name]) for name in kernels)
    assert all(same(before[name], after[name]) for name in before.keys() - {*fresh})


@pytest.mark.slow
@pytest.mark.parametrize("family", PROGRAMS)
def test_a_scanned_stack_starts_from_one_of_layers_and_back(start, train, tmp_path, family):
    scanned = train(
        family, tmp_path / "one", "--init-from", start(family), "--model.compute.scan-layers",
        *STILL,
    )  # fmt: skip
    assert any("/blocks/self_attention" in name for name in parameters(scanned))
    back = train(
        family, tmp_path / "two", "--init-from", scanned, "--model.compute.no-scan-layers", *STILL
    )
    before, after = parameters(start(family), "best"), parameters(back)
    assert before.keys() == after.keys()
    assert all(same(before[name], after[name]) for name in before)


@pytest.mark.slow
@pytest.mark.parametrize("family", PROGRAMS)
def test_lower_layers_learn_more_slowly(start, train, tmp_path, family):
    """Row B38: with plain descent the first step of each depth is so much that of full rate."""
    flags = (
        "--init-from", start(family), "--optimizer.name", "sgd", "--optimizer.learning-rate", "0.1",
        "--optimizer.beta2", "None", "--optimizer.weight-decay", "0",
        "--optimizer.schedule.final-fraction", "0", "--optimizer.schedule.kind", "constant",
        "--optimizer.schedule.warmup-steps", "0",
        "--training.steps", "1",
    )  # fmt: skip
    before = parameters(start(family), "best")
    plain = parameters(train(family, tmp_path / "a", *flags))
    decayed = parameters(train(family, tmp_path / "b", *flags, "--optimizer.layer-decay", "0.5"))
    blocks = {"decoder": 1, "encoder": 1}
    top = 5 if family == "encoder-decoder" else 3  # embeddings 0, blocks, and what is above them
    blocks["decoder"] = 3 if family == "encoder-decoder" else 1
    for name in before:
        parts = name.split("/")
        depth = top
        if parts[1] == "blocks":
            depth = blocks[parts[0]] + int(parts[2])
        elif parts[0] == "embedding" or parts[1] == "positions":
            depth = 0
        moved, slower = plain[name] - before[name], decayed[name] - before[name]
        np.testing.assert_allclose(slower, moved * 0.5 ** (top - depth), atol=2e-7, err_msg=name)


PUBLISHED_STARTS = [
    ("gpt2", "decoder"), ("llama", "decoder"), ("bart", "encoder-decoder"),
    ("t5", "encoder-decoder"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*length limit")  # untrained models do not end their texts
@pytest.mark.parametrize(("name", "family"), PUBLISHED_STARTS, ids=[c[0] for c in PUBLISHED_STARTS])
@pytest.mark.slow
def test_a_run_goes_on_from_a_published_model(published, train, tmp_path, name, family):
    """At rate 0 it writes what the folder writes, with its tokens to begin and end."""
    run = train(family, tmp_path / "run", "--init-from", published(name), *STILL)
    (_, there), tokenizer = load(published(name), kind=family)
    (_, here), own = load(run, "last", kind=family)
    jax.tree.map(np.testing.assert_array_equal, here, there)
    roles = ("bos", "eos", "pad", "unk")
    assert [getattr(own, r) for r in roles] == [getattr(tokenizer, r) for r in roles]
    assert tokenizer.name(tokenizer.eos) == "<stop>"
    models = [load_predictor(path) for path in (published(name), run)]
    if family == "decoder":
        written = [model.generate("um", max_new_tokens=6, temperature=0.0) for model in models]
    else:
        written = [model(["um dois", "três"], num_beams=1) for model in models]
    assert written[0] == written[1]
    assert load_parts(run).manifest["config"]["special"]["eos"] == "<stop>"


@pytest.mark.slow
def test_sources_have_the_special_tokens_of_a_template(published, train, texts, tmp_path):
    """In training as in translation: an encoder reads ``<start> um <stop>``."""
    from transformer_jax.data.sources import Pairs
    from transformer_jax.data.store import build_store

    folder = shutil.copytree(published("bart"), tmp_path / "bart")
    tokenizer = load_tokenizer(folder / "tokenizer.json", special={"eos": "<stop>"})
    backend = tokenizer._backend
    backend.post_processor = TemplateProcessing(
        single="<start> $A <stop>", special_tokens=[("<start>", 0), ("<stop>", 2)]
    )
    backend.save(str(folder / "tokenizer.json"))
    framed = load_tokenizer(folder / "tokenizer.json", special={"eos": "<stop>"})
    store = build_store(Pairs(["um dois"], ["um dois"], "one"), framed)
    ids = framed.encode("um dois")
    assert store.source[0].tolist() == [0, *ids, 2]
    assert store.target[0].tolist() == [*ids, 2]


LABELED = [
    "finetune", "pair", *SHORT, "--data.train", "{texts}/pairs.tsv", "--training.max-tokens", "256",
    "--training.num-buckets", "1", "--task.max-length", "24",
]  # fmt: skip


@pytest.mark.slow
def test_a_decoder_learns_to_classify(start, texts, tmp_path, capfd):
    """Row H24: start, delimiter and extract are new tokens, and the text is learnt beside."""
    there = start("decoder")
    command = [word.format(texts=texts) for word in LABELED]
    given = ["--init-from", str(there), "--output", f"{tmp_path}/run"]
    assert encoder_only.main([*command, *given]) == 0
    err = capfd.readouterr().err
    assert "newly initialized: labels; 3 new tokens initialized near the mean" in err
    assert "training, with 0.5 x language modelling" in err
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["task"]["lm_loss_weight"] == 0.5
    assert config["tokenizer"]["add_special_tokens"] == list(DECODER_TOKENS)
    [found] = load_predictor(tmp_path / "run")(["um dois"], text_pairs=["três"])
    (graph, params), tokenizer = load(tmp_path / "run", kind="decoder-task")
    first, second, last = map(tokenizer.token_id, DECODER_TOKENS)
    ids = [first, *tokenizer.encode("um dois"), second, *tokenizer.encode("três"), last]
    logits = nnx.merge(graph, params)(jnp.array([ids], jnp.int32), jnp.array([len(ids)]))
    shares = np.asarray(jax.nn.softmax(logits[0]))
    assert max(found.probabilities.values()) == pytest.approx(shares.max(), rel=1e-5)
    whole = results(tmp_path / "run")["state_sha256"]
    shutil.rmtree(tmp_path / "run/checkpoints/step_00000004")
    (tmp_path / "run/results.json").unlink()
    assert encoder_only.main(["resume", str(tmp_path / "run"), *ALONE]) == 0
    assert results(tmp_path / "run")["state_sha256"] == whole
    assert encoder_only.main(["evaluate", str(tmp_path / "run")]) == 0


@pytest.mark.slow
def test_layers_of_a_decoder_of_classes_are_frozen(start, texts, tmp_path):
    there = start("decoder")
    command = [word.format(texts=texts) for word in LABELED]
    given = ["--init-from", str(there), "--freeze", "1", "--output", f"{tmp_path}/run"]
    assert encoder_only.main([*command, *given]) == 0
    before, after = parameters(there, "best"), parameters(tmp_path / "run")
    assert same(before["embedding/table"], after["embedding/table"][:-3])
    name = "decoder/blocks/{}/feed_forward/up/kernel"
    assert same(before[name.format(0)], after[name.format(0)])
    assert not same(before[name.format(1)], after[name.format(1)])


@pytest.mark.slow
def test_adapters_of_a_decoder_of_classes_are_trained_with_its_head(start, texts, tmp_path):
    """Rows H24, B39: and so are its start, delimiter and extract, which are new tokens."""
    there = start("decoder")
    command = [word.format(texts=texts) for word in LABELED]
    given = ["--init-from", str(there), "--lora.rank", "2", "--output", f"{tmp_path}/run"]
    assert encoder_only.main([*command, *given]) == 0
    names = flatten_dict(load_parts(tmp_path / "run", "last").params)
    own = {"labels/kernel", "embedding/table_rows"}
    assert {name for name in names if "/lora_" not in name} == own
    before, after = parameters(there, "best"), parameters(tmp_path / "run")
    assert same(before["embedding/table"], after["embedding/table"][:-3])
    begun = flatten_dict(load_parts(tmp_path / "run", "last").frozen)["embedding/table"]
    assert (after["embedding/table"] != begun).any(1).nonzero()[0].tolist() == [21, 22, 23]
    [found] = load_predictor(tmp_path / "run")(["um dois"], text_pairs=["três"])
    assert found


@pytest.mark.slow
def test_the_same_command_resumes_a_run_whose_template_added_tokens(start, texts, tmp_path, capfd):
    command = [word.format(texts=texts) for word in LABELED]
    given = ["--init-from", str(start("decoder")), "--output", str(tmp_path / "run")]
    added = ["--tokenizer.add-special-tokens"]
    assert encoder_only.main([*command, *given, *added, "<|user|>"]) == 0
    assert encoder_only.main([*command, *given, *added, "<|user|>", "--resume"]) == 0
    assert encoder_only.main([*command, *given, *added, "<|other|>", "--resume"]) == 2
    assert "add-special-tokens ('<|other|>',): the run" in capfd.readouterr().err


OF_CLASSES = [
    (["--freeze", "encoder"], "has no such part"),
    (["--task.kind", "tag"], "task.kind is tag: a decoder sees no words to the right"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("more", "said"), OF_CLASSES, ids=[case[1] for case in OF_CLASSES])
def test_a_mistake_about_a_decoder_of_classes_is_one_line(
    start, texts, tmp_path, capfd, more, said
):
    command = [word.format(texts=texts) for word in LABELED]
    given = ["--init-from", str(start("decoder")), "--output", str(tmp_path / "run")]
    assert encoder_only.main([*command, *given, *more]) == 2
    [line] = [line for line in capfd.readouterr().err.splitlines() if "error:" in line]
    assert said in line
    alone = {
        "task.lm_loss_weight is for decoders": ["--task.lm-loss-weight", "0.5"],
        "decoder_layers is 1: a decoder that classifies starts from": [
            "--model.decoder-layers", "1", "--model.encoder-layers", "0",
            "--model.head.no-mlm-transform", "--model.head.no-pooler",
        ],
    }  # fmt: skip
    for said, more in alone.items():
        assert encoder_only.main([*command, *more, "--output", str(tmp_path / "run")]) == 2
        assert said in capfd.readouterr().err


ADDED = ["--tokenizer.add-tokens", "quatro", "--tokenizer.add-special-tokens", "<|user|>"]


@pytest.mark.slow
def test_a_setting_that_is_given_counts_also_where_it_is_usual(published, train, tmp_path):
    """The named run has no dropout, the published model has."""
    run = train("decoder", tmp_path / "run", "--init-from", published("gpt2"), *STILL)
    assert model_of(run)["norm"]["residual_dropout"] == 0.1
    flag = ("--model.norm.residual-dropout", "0.0")
    run = train("decoder", tmp_path / "own", "--init-from", published("gpt2"), *STILL, *flag)
    assert model_of(run)["norm"]["residual_dropout"] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_new_tokens_begin_near_the_mean(start, train, tmp_path, capfd, family):
    there = start(family)
    run = train(family, tmp_path / "run", "--init-from", there, *ADDED, *STILL)
    assert "2 new tokens initialized near the mean" in capfd.readouterr().err
    before, after = parameters(there, "best"), parameters(run)
    old, new = before.pop("embedding/table"), after.pop("embedding/table")
    assert new.shape[0] == old.shape[0] + 2 == model_of(run)["vocab_size"]
    assert same(new[:-2], old)
    assert np.abs(new[-2:] - old.mean(0)).max() < 0.05 * old.std()
    assert not np.array_equal(new[-2], new[-1])
    assert all(same(before[name], after[name]) for name in before)
    again = train(family, tmp_path / "again", "--init-from", run, *STILL, *ADDED)
    assert "0 tokens added" in capfd.readouterr().err
    assert same(parameters(again)["embedding/table"], new)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_new_tokens_begin_as_others(start, train, tmp_path, capfd, family):
    there = start(family)
    like = ("--tokens-like", "<|user|>=a")
    run = train(family, tmp_path / "run", "--init-from", there, *ADDED, *like, *STILL)
    assert (
        "1 new token initialized near the mean; 1 new token initialized from others"
        in capfd.readouterr().err
    )
    tokenizer = load_tokenizer(run / "tokenizer.json")
    table = parameters(run)["embedding/table"]
    assert same(table[tokenizer.token_id("<|user|>")], table[tokenizer.token_id("a")])
    assert not same(table[tokenizer.token_id("quatro")], table[tokenizer.token_id("a")])


@pytest.mark.slow
@pytest.mark.parametrize("still", [["--lora.rank", "2"], ["--freeze", "encoder"]], ids=" ".join)
def test_new_tokens_of_a_translator_are_trained_in_its_shared_table(start, train, tmp_path, still):
    """Row B39: beside adapters, and where the table is frozen with one of its stacks."""
    there = start("encoder-decoder")
    run = train("encoder-decoder", tmp_path / "run", "--init-from", there, *ADDED, *still)
    before, after = parameters(there, "best"), parameters(run)
    begun = flatten_dict(load_parts(run, "last").frozen)["embedding/table"]
    assert same(after["embedding/table"][:-2], before["embedding/table"])
    assert (after["embedding/table"][-2:] != begun[-2:]).any(1).all()
    with pytest.warns(UserWarning, match="reached the length limit"):  # it hardly learnt to end
        assert load_predictor(run)(["um dois"])


@pytest.mark.slow
def test_new_tokens_take_rows_that_no_token_has(published, train, tmp_path):
    """Tables of published models have more rows than their tokenizers have tokens."""
    old = load(published("gpt2"), kind="decoder")[0][1]["embedding"]["table"]
    tokens = load_tokenizer(published("gpt2") / "tokenizer.json").vocab_size
    assert tokens < len(old)
    run = train("decoder", tmp_path / "run", "--init-from", published("gpt2"), *ADDED, *STILL)
    new = parameters(run)["embedding/table"]
    count = load_tokenizer(run / "tokenizer.json").vocab_size - tokens
    assert len(new) == len(old)
    expected = with_new_rows(np.asarray(old), tokens, tokens + count, "embedding/table")
    assert same(new, expected)
    assert same(new[tokens + count :], old[tokens + count :])


def test_new_rows_are_at_the_mean_of_tokens_alone():
    rng = np.random.default_rng(0)
    table = np.concatenate([rng.standard_normal((50, 8)), np.full((6, 8), 99.0)]).astype("f")
    grown = with_new_rows(table, 50, 60)
    assert grown.shape == (60, 8)
    assert grown.dtype == table.dtype
    assert same(grown[:50], table[:50])
    assert np.abs(grown[50:] - table[:50].mean(0)).max() < 0.06
    far = (grown[50:] - table[:50].mean(0)) / table[:50].std(0)
    assert 0.007 < far.std() < 0.013
    bias = with_new_rows(np.zeros(50), 50, 52, "head/bias")
    assert same(bias, np.zeros(52))


MISTAKES = [
    ("decoder", ["--model.d-model", "32"], "model.d_model: "),
    ("decoder", ["--tokenizer.kind", "bpe"], "a run with init_from has the tokenizer of its start"),
    ("decoder", ["--data.read.lowercase"], "was trained on cased text"),
    ("decoder", ["--freeze", "3"], "freeze is 3: there are 2 layers"),
    ("decoder", ["--freeze", "encoder"], "allowed are none, embeddings, decoder, or the number"),
    ("decoder", ["--freeze", "decoder"], "nothing is left to train"),
    ("decoder", ["--lora.rank", "2", "--trainable-tokens", "onze"], "has no token 'onze': add it"),
    ("decoder", ["--trainable-tokens", "<eos>"], "all token rows are trained anyway: leave it"),
    ("decoder", ["--tokens-like", "onze=<eos>"], "'onze' is not a new token of this run: add it"),
    ("decoder", ["--tokens-like", "<eos>=<pad>"], "has '<eos>' already: leave it out"),
    ("decoder", [*ADDED, "--tokens-like", "quatro=onze"], "has no token 'onze'"),
    ("decoder", [*ADDED, "--tokens-like", "quatro"], "'quatro' is not NEW=OLD, such as"),
    ("decoder", ["--reinit-last", "3"], "reinit_last is 3: there are 2 layers"),
    ("decoder", ["--reinit-last=-1"], "--reinit-last is -1"),
    ("decoder", ["--reinit-head"], "the output layer of this model is its embedding table"),
    ("decoder", ["--freeze", "1", "--reinit-last", "2"], "never be trained"),
    ("decoder", ["--freeze", "1", "--model.compute.scan-layers"], "no-scan-layers"),
    ("decoder", ["--tokenizer.add-tokens", "a", "a"], "'a' appears twice"),
    ("decoder", ["--tokenizer.extend-by", "9"], "and unigram vocabularies can be extended"),
    ("decoder", ["--tokenizer.add-tokens", " "], "' ' is blank"),
    ("encoder-decoder", ["--freeze", "decoder", "--reinit-last", "1"], "never be trained"),
    ("encoder-decoder", ["--freeze", "3"], "freeze is 3: there are 2 layers"),
    ("encoder-decoder", ["--model.attention.num-heads", "4", "--model.d-model", "64"],
     "model.d_model, model.attention.num_heads: "),
]  # fmt: skip


def refused(family, texts, output, capfd, *more):
    """The line of a command that is refused before it makes a run."""
    given = [word.format(texts=texts) for word in COMMANDS[family]]
    capfd.readouterr()
    code = PROGRAMS[family].main([*given, "--output", str(output), *map(str, more)])
    [line] = [line for line in capfd.readouterr().err.splitlines() if "error:" in line]
    assert not (output / "config.json").exists()
    return code, line


@pytest.mark.parametrize(
    ("family", "more", "said"),
    [  # a start of a translator is trained for slow tests alone
        pytest.param(*case, id=case[2], marks=[pytest.mark.slow] * (case[0] != "decoder"))
        for case in MISTAKES
    ],
)
def test_a_mistake_about_a_start_is_one_line(start, texts, tmp_path, capfd, family, more, said):
    there = start(family)
    code, line = refused(family, texts, tmp_path / "run", capfd, "--init-from", there, *more)
    assert code == 2
    assert said in line


def test_a_configuration_that_names_a_tokenizer_gives_way_to_that_of_the_start(start):
    """Tokens have the ids of the start, also where ``--config`` is that of another run."""
    named = LANGUAGE_RUNS["char-cpu"][1]
    tokenizer = dataclasses.replace(named.tokenizer, path="other/tokenizer.json")
    named = dataclasses.replace(named, tokenizer=tokenizer)
    there = str(start("decoder"))
    run = dataclasses.replace(named, init_from=there)
    assert load_pretrained(there, ("decoder",)).adapt(run, Given(named)).tokenizer.path is None


def test_starts_of_other_families_are_refused(start, published, texts, tmp_path, capfd):
    language = start("decoder")
    code, line = refused("encoder-decoder", texts, tmp_path / "run", capfd, "--init-from", language)
    assert (code, "the run of a decoder, not of an encoder" in line) == (2, True), line
    for start_from, number, said in (
        (published("bart"), 2, "the run of a translator, not of a language model"),
        (tmp_path, 4, "not a run directory"),
        (tmp_path / "none", 4, "no such run"),
    ):
        code, line = refused("decoder", texts, tmp_path / "run", capfd, "--init-from", start_from)
        assert (code, said in line) == (number, True), line
    code, line = refused("decoder", texts, tmp_path / "run", capfd, "--freeze", "1")
    assert (code, "freeze is given without init_from" in line) == (2, True), line


@pytest.mark.slow
def test_a_start_that_vanished_before_the_first_step_is_named(start, train, tmp_path, capfd):
    """A run that has no checkpoint yet needs its start."""
    there = shutil.copytree(start("decoder"), tmp_path / "start")
    run = train("decoder", tmp_path / "run", "--init-from", there, "--training.steps", "2")
    for path in ("checkpoints", "frozen"):
        shutil.rmtree(run / path, ignore_errors=True)
    shutil.rmtree(there)
    capfd.readouterr()
    assert decoder_only.main(["resume", str(run), *ALONE]) == 4
    told = capfd.readouterr().err.splitlines()
    assert any("no checkpoint yet: training begins at step 0" in line for line in told)
    [line] = [line for line in told if "error:" in line]
    assert "init_from" in line
    assert str(there) in line
