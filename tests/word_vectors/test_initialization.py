"""Word vectors as initial embeddings, of every model that reads tokens."""

import dataclasses
import json
import logging
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from transformer_jax.cli import decoder_only, seq2seq
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.core.trees import flatten_dict
from transformer_jax.data.tokenizer import BERT_SPECIAL, train_tokenizer
from transformer_jax.inference.pretrained import open_directory, read_facts
from transformer_jax.models.build import make_model
from transformer_jax.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.recurrent_config import RecurrentConfig, RecurrentEmbeddingConfig
from transformer_jax.recipes import driver, tasks
from transformer_jax.recipes.checks import validated_settings
from transformer_jax.recipes.explicit_settings import Given
from transformer_jax.recipes.freezing import load_pretrained
from transformer_jax.recipes.registry import named_runs
from transformer_jax.runs.checkpoint_reader import load_params
from transformer_jax.runs.run_directory import RunDirectory
from transformer_jax.word_vectors.embeddings import WordEmbeddings
from transformer_jax.word_vectors.formats import load_embeddings, save_embeddings, size_of_vectors
from transformer_jax.word_vectors.initialization import (
    check_size,
    initial_embeddings,
    vectors_of_tokens,
    words_of_tokens,
)

PRETRAIN_RUNS = named_runs("masked_lm")
TASK_RUNS = named_runs("finetuning")
INSTRUCT_RUNS = named_runs("instruct")
RUNS = named_runs("translation", "recurrent_translation")

TEXT = ["the house and the mouse", "a mouse in the house", "the café and a house"] * 4
WORDS = ("house", "mouse", "café", "the", "nowhere")
E = 16


@pytest.fixture(autouse=True)
def iv_quiet():
    yield
    logging.getLogger().handlers.clear()


def vectors(size=E, words=WORDS):
    """Vectors of another scale than that of any embedding."""
    numbers = np.random.default_rng(0).normal(3.0, 7.0, (len(words), size))
    return WordEmbeddings(tuple(words), numbers.astype(np.float32))


@pytest.fixture
def file(tmp_path):
    save_embeddings(vectors(), tmp_path / "vectors.bin", binary=True)
    return str(tmp_path / "vectors.bin")


def tokenizer_of(kind="wordpiece", size=60):
    special = {"special": BERT_SPECIAL} if kind == "wordpiece" else {}
    return train_tokenizer(kind, TEXT, size, **special)


def transformer(file, **fields):
    """A small Transformer; ``embedding`` adds settings."""
    embedding = EmbeddingConfig(init=file, **fields.pop("embedding", {}))
    sizes = {"vocab_size": 70, "d_model": E, "encoder_layers": 1, "decoder_layers": 1}
    return TransformerConfig(
        **sizes | fields,
        embedding=embedding,
        attention=AttentionConfig(num_heads=2),
        feed_forward=FeedForwardConfig(d_ff=16),
    )


APART = {"share_encoder_decoder_embeddings": False}
PLAIN = {"head": HeadConfig(tie_word_embeddings=False)}
# Kind of model, its configuration from a file, and its tables of token embeddings.
MODELS = {
    "translator": ("encoder-decoder", transformer, ["embedding/table"]),
    "two tables": (
        "encoder-decoder",
        lambda file: transformer(file, embedding=APART, **PLAIN),
        ["decoder_embedding/table", "embedding/table"],
    ),
    "decoder": (
        "decoder",
        lambda file: transformer(file, encoder_layers=0, positions=PositionConfig("learned")),
        ["embedding/table"],
    ),
    "encoder": (
        "encoder",
        lambda file: transformer(
            file,
            d_model=32,
            decoder_layers=0,
            embedding={"embedding_size": E, "type_vocab_size": 2, "scale": 1.0},
            head=HeadConfig(pooler=True, mlm_transform=True),
        ),
        ["embedding/table"],
    ),
    "tagger": ("encoder-task", lambda file: transformer(file, decoder_layers=0),
               ["embedding/table"]),
    "recurrent": (
        "encoder-decoder",
        lambda file: RecurrentConfig(d_model=E, embedding=RecurrentEmbeddingConfig(init=file)),
        ["decoder/embedding/table"],
    ),
    "two recurrent tables": (
        "encoder-decoder",
        lambda file: RecurrentConfig(
            d_model=E, embedding=RecurrentEmbeddingConfig(init=file, **APART)
        ),
        ["decoder/embedding/table", "encoder/embedding/table"],
    ),
}  # fmt: skip


def drawn(name, config):
    kind = MODELS[name][0]
    more = {"task": "tag", "labels": 3} if kind == "encoder-task" else {}
    return nnx.to_pure_dict(nnx.state(make_model(kind, config, rngs=nnx.Rngs(0), **more)))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.quick("encoder")
def test_tokens_that_are_words_take_their_vector_and_all_else_stays(file, name):
    """Row L5: a row of the table is the vector of a token."""
    config, tokenizer = MODELS[name][1](file), tokenizer_of()
    before, table = drawn(name, config), load_embeddings(file)
    after = flatten_dict(initial_embeddings(config, tokenizer)(before))
    before = flatten_dict(before)
    changed = [path for path in before if not np.array_equal(before[path], after[path])]
    assert changed == MODELS[name][2]
    ids = {word: id for id, word in words_of_tokens(tokenizer).items()}
    found = [word for word in WORDS if word in ids]
    assert {"house", "mouse", "the"} <= set(found)
    rows = [ids[word] for word in found]
    for path in changed:
        was, now = np.asarray(before[path]), np.asarray(after[path])
        others = np.delete(np.arange(len(was)), rows)
        np.testing.assert_array_equal(now[others], was[others])
        # One factor for all, which gives the vectors the root mean square of the drawn table.
        factors = now[rows] / [table.vector(word) for word in found]
        np.testing.assert_allclose(factors, factors[0, 0], rtol=1e-5)
        np.testing.assert_allclose(np.square(now[rows]).mean(), np.square(was).mean(), rtol=1e-5)
        assert now.dtype == was.dtype


def test_without_a_file_nothing_is_initialized():
    assert initial_embeddings(transformer(None), tokenizer_of()) is None


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_words_are_tokens_that_begin_a_word(kind):
    tokenizer = tokenizer_of(kind, 300)
    words = words_of_tokens(tokenizer)
    for word in ("house", "mouse", "café"):
        *_, last = tokenizer.encode(f"a {word}")
        assert words[last] == word
    for id in words:
        assert not tokenizer.is_continuation[id]
        assert id not in tokenizer.special_ids
    inside = tokenizer.encode("a warehouse")[-1]
    assert inside not in words


def test_in_a_vocabulary_without_marks_every_token_is_a_word():
    words = words_of_tokens(tokenizer_of("characters", 60))
    assert {"a", "é", "h"} <= set(words.values())


def test_vectors_that_are_zero_stay_zero(tmp_path):
    save_embeddings(
        WordEmbeddings(("house",), np.zeros((1, E), np.float32)), tmp_path / "v", binary=True
    )
    config = transformer(str(tmp_path / "v"))
    after = initial_embeddings(config, tokenizer_of())({"embedding": {"table": jnp.ones((70, E))}})
    assert np.isfinite(after["embedding"]["table"]).all()
    assert (after["embedding"]["table"] == 0).all(1).sum() == 1


@pytest.mark.parametrize("binary", [False, True])
def test_other_words_of_a_file_are_not_kept(tmp_path, binary):
    save_embeddings(vectors(), tmp_path / "v", binary=binary)
    whole = load_embeddings(tmp_path / "v")
    found = load_embeddings(tmp_path / "v", only={"the", "mouse", "none"})
    assert found.words == ("mouse", "the")
    np.testing.assert_array_equal(found.vectors, whole.vectors[[1, 3]])
    assert found.vectors.base is None or len(found.vectors.base) == 3
    assert size_of_vectors(tmp_path / "v") == E


def test_a_file_that_does_not_fit_is_refused(tmp_path, file):
    config = transformer(file, d_model=32)
    with pytest.raises(
        ConfigError, match=r"16 numbers and the .* embeddings 32: set model\.d_model"
    ):
        check_size(config)
    factored = transformer(file, d_model=16, decoder_layers=0, embedding={"embedding_size": 8})
    with pytest.raises(ConfigError, match=r"set model\.embedding\.embedding_size to 16"):
        check_size(factored)
    save_embeddings(vectors(words=("xyz",)), tmp_path / "other", binary=False)
    with pytest.raises(ConfigError, match="none of the 42 tokens is a word of the file"):
        vectors_of_tokens(str(tmp_path / "other"), tokenizer_of())
    with pytest.raises(DataError, match="no such file"):
        check_size(transformer(str(tmp_path / "none")))


def test_library_tasks_begin_with_word_vectors(file):
    """The same setting from Python: every task that makes a model of tokens."""
    tokenizer, pairs = tokenizer_of(), [(line, line) for line in TEXT]
    both = transformer(file)
    decoder = transformer(file, encoder_layers=0)
    encoder = transformer(file, decoder_layers=0, head=HeadConfig(pooler=True))
    for task in (
        tasks.translation(pairs, both, tokenizer),
        tasks.language_model(TEXT, decoder, tokenizer),
        tasks.masked_lm(TEXT, encoder, tokenizer),
    ):
        before = nnx.to_pure_dict(nnx.state(task.model(nnx.Rngs(0))))
        after = task.initial(before)
        assert not np.array_equal(before["embedding"]["table"], after["embedding"]["table"])


def test_runs_of_every_kind_begin_with_word_vectors(folder, file):
    """A run that starts from nothing keeps what its task begins with."""
    tokenizer = tokenizer_of()
    chat = [{"role": "user", "content": "the mouse"}, {"role": "assistant", "content": "a house"}]
    (folder / "chats.jsonl").write_text(json.dumps({"messages": chat}) + "\n")
    encoder = PRETRAIN_RUNS["small"][1]
    encoder = dataclasses.replace(
        encoder,
        data=dataclasses.replace(encoder.data, text=f"{folder}/text.txt"),
        model=transformer(file, decoder_layers=0, head=HeadConfig(mlm_transform=True)),
        masking=dataclasses.replace(encoder.masking, sentence_objective="none"),
    )
    answers = INSTRUCT_RUNS["sft-cpu"][1]
    answers = dataclasses.replace(
        answers,
        data=dataclasses.replace(answers.data, train=f"{folder}/chats.jsonl", validation_size=0.0),
        model=transformer(file, encoder_layers=0),
        chat=dataclasses.replace(answers.chat, template="vicuna"),
    )
    directory = RunDirectory.create(str(folder / "run"))
    tokenizer.save(directory.tokenizer)
    made = [driver.make_task(encoder, directory, tokenizer, driver.open_data(encoder))]
    lenient = tokenizer.allowing("unknown")  # the words of the template
    made.append(driver.make_task(answers, directory, lenient, None))
    for task in made:
        before = nnx.to_pure_dict(nnx.state(task.model(nnx.Rngs(0))))
        after = task.initial(before)
        assert not np.array_equal(before["embedding"]["table"], after["embedding"]["table"])


# --- commands -----------------------------------------------------------------------------------

SIZES = [
    "--model.d-model", str(E), "--model.attention.num-heads", "2", "--model.feed-forward.d-ff",
    "16", "--training.steps", "2", "--optimizer.schedule.warmup-steps", "1",
    "--loop.evaluate-every", "2", "--loop.checkpoint-every", "1",
    "--distributed.num-local-devices", "1",
]  # fmt: skip
DECODER = [
    *SIZES, "--model.decoder-layers", "1", "--tokenizer.kind", "bpe", "--tokenizer.vocab-size",
    "300", "--training.batch-size", "2", "--training.sequence-length", "8",
    "--evaluation.ngram-orders", "--evaluation.sample", "0",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "text.txt").write_text("\n\n".join(TEXT) + "\n")
    (tmp_path / "pairs.tsv").write_text("".join(f"{line}\t{line}\n" for line in TEXT))
    return tmp_path


def train(folder, run, *more):
    text = ["--data.text", f"{folder}/text.txt", "--data.read.documents", "blank"]
    return decoder_only.main(["train", "char-cpu", *DECODER, *text, "--output", str(run), *more])


@pytest.mark.slow
def test_a_run_begins_with_word_vectors_and_resumes_without_their_file(folder, file, capfd):
    run = folder / "run"
    # At a learning rate of 0 the parameters stay.
    assert train(folder, run, "--optimizer.learning-rate", "0", "--model.embedding.init", file) == 0
    err = capfd.readouterr().err
    [line] = [line for line in err.splitlines() if "begin with the vector" in line]
    tokenizer = open_directory(str(run)).load_tokenizer()
    found = vectors_of_tokens(file, tokenizer)
    assert f"word vectors: {len(found.ids)} of {tokenizer.vocab_size} tokens" in line
    table = np.asarray(flatten_dict(load_params(run, "last").params)["embedding/table"])
    unit = lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(unit(table[found.ids]), unit(found.vectors), atol=1e-5)
    assert json.loads((run / "config.json").read_text())["model"]["embedding"]["init"] == file
    # What is loaded has nothing to initialize; so neither has a run that starts from this one.
    assert read_facts(run).layers.embedding.init is None
    (folder / "vectors.bin").unlink()
    shutil.rmtree(run / "checkpoints/step_00000002")
    assert decoder_only.main(["resume", str(run), "--distributed.num-local-devices", "1"]) == 0
    after = np.asarray(flatten_dict(load_params(run, "last").params)["embedding/table"])
    np.testing.assert_array_equal(after, table)


def test_a_run_that_starts_from_another_does_not_inherit_its_word_vectors(tmp_path):
    run = RunDirectory.create(str(tmp_path / "run"))
    encoder = dataclasses.asdict(transformer("gone.bin", decoder_layers=0))
    run.write(run.config, {"model": encoder})
    tokenizer_of().save(run.tokenizer)
    assert load_pretrained(str(run.path)).model.embedding.init is None


MISTAKES = [
    (["--model.embedding.init", "{folder}/none.bin"], 3, "none.bin: no such file"),
    (["--model.embedding.init", "{folder}/text.txt"], 3, "not a file of word vectors"),
    (["--model.embedding.init", "{file}", "--model.d-model", "32"], 2, "16 numbers"),
    (["--model.embedding.init", "{folder}/other"], 2, "is a word of the file"),
    (["--model.embedding.init", "{folder}/cut"], 3, "the file is cut"),
    (["--model.embedding.init", ""], 2, "needs a file"),
]


@pytest.mark.parametrize(("given", "code", "said"), MISTAKES, ids=[m[2] for m in MISTAKES])
def test_a_mistake_is_one_line_before_anything_is_written(folder, file, capfd, given, code, said):
    save_embeddings(vectors(words=("xyz",)), folder / "other", binary=False)
    save_embeddings(vectors(), folder / "cut", binary=True)
    (folder / "cut").write_bytes((folder / "cut").read_bytes()[:-9])
    words = [word.format(folder=folder, file=file) for word in given]
    assert train(folder, folder / "run", *words) == code
    err = capfd.readouterr().err
    [line] = [line for line in err.splitlines() if line.startswith("error:")]
    assert said in line
    assert not (folder / "run").exists()


def test_word_vectors_and_another_run_do_not_go_together(file):
    """Refused before any text is read."""
    run = RUNS["small"][1]
    run = dataclasses.replace(run, model=transformer(file), init_from="runs/a")
    with pytest.raises(ConfigError, match="init_from runs/a: both initialize"):
        validated_settings(run, Given(run))
    tagger = TASK_RUNS["tag"][1]
    task = dataclasses.replace(tagger.task, init_from="runs/a")
    tagger = dataclasses.replace(tagger, model=transformer(file, decoder_layers=0), task=task)
    with pytest.raises(ConfigError, match=r"task\.init_from runs/a: both initialize"):
        validated_settings(tagger, Given(tagger))


@pytest.mark.slow
def test_a_recurrent_translator_begins_with_word_vectors(folder, file, capfd):
    code = seq2seq.main(
        ["train", "luong", "--data.pairs", f"{folder}/pairs.tsv", "--data.read.format", "tsv",
         "--model.d-model", str(E), "--model.embedding.init", file, "--tokenizer.vocab-size", "300",
         "--optimizer.learning-rate", "0", "--training.steps", "1", "--evaluation.sentences", "0",
         "--evaluation.num-beams", "1", "--distributed.num-local-devices", "1",
         "--output", f"{folder}/run"]
    )  # fmt: skip
    assert code == 0
    assert "begin with the vector of their word" in capfd.readouterr().err
    found = vectors_of_tokens(file, open_directory(f"{folder}/run").load_tokenizer())
    table = flatten_dict(load_params(folder / "run", "last").params)["decoder/embedding/table"]
    cosines = jax.vmap(lambda a, b: a @ b / jnp.sqrt(a @ a * (b @ b)))(
        jnp.asarray(table)[found.ids], jnp.asarray(found.vectors)
    )
    np.testing.assert_allclose(cosines, 1.0, atol=1e-5)
