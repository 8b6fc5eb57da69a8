"""M2M100, NLLB and mBART-50 read text, search and export as transformers does.

Every run draws new folders; ``SWEEP_SEED`` repeats those of one that prints its seed.
"""

import itertools
import json
import os
import random
import time

import jax
import numpy as np
import pytest

from tests.interop import language_folders as made
from tests.opened import load
from transformer_jax.cli.main import main
from transformer_jax.data.languages import Direction
from transformer_jax.inference.hf_generation import HFTextGenerator
from transformer_jax.inference.pretrained import open_directory, open_pretrained
from transformer_jax.interop.language_codes import language_tokens
from transformer_jax.interop.tokenizer_settings import Settings

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.parity, pytest.mark.slow]


@pytest.fixture(scope="module")
def seed():
    number = os.environ.get("SWEEP_SEED", str(time.time_ns() % 2**32))
    print(f"SWEEP_SEED={number}")
    return number


@pytest.fixture(scope="module")
def folders(seed, tmp_path_factory):
    """A folder as transformers writes it, and words of its pieces, for each family."""
    root = tmp_path_factory.mktemp("written")
    return {family: (root / family, write(seed, family, root)) for family in made.FAMILIES}


def write(seed, family, root):
    draw = random.Random(f"{seed} {family}")
    known, pieces = made.words(draw), root / f"{family} pieces"
    _, name, _, (source, target) = made.FAMILIES[family]
    made.write_vocabulary(family, pieces, known, draw)
    codes = list(language_tokens(Settings({"tokenizer_class": name})))
    more = {"additional_special_tokens": codes} if family == "nllb" else {}
    tokenizer = getattr(transformers, name).from_pretrained(
        pieces, src_lang=source, tgt_lang=target, **more
    )
    tokenizer.save_pretrained(root / family)
    extra = {"m2m100": 108, "nllb": 2, "mbart50": 0}[family]  # languages, rows that nobody uses
    sizes = {
        "vocab_size": len(tokenizer) + extra, "d_model": 32, "encoder_layers": 2,
        "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 2,
        "encoder_ffn_dim": 48, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
        "decoder_start_token_id": 2, "scale_embedding": True, "init_std": 0.3,
    }  # fmt: skip
    torch.manual_seed(draw.randrange(2**31))
    kind = "MBart" if family == "mbart50" else "M2M100"
    config = getattr(transformers, f"{kind}Config")(**sizes)
    cls = getattr(transformers, f"{kind}ForConditionalGeneration")
    cls(config).save_pretrained(root / family)
    return known


def theirs(folder, family, source, target=None):
    name = made.FAMILIES[family][1]
    tokenizer = getattr(transformers, name).from_pretrained(folder, src_lang=source)
    if target is not None:
        tokenizer.tgt_lang = target
    return tokenizer


@pytest.mark.parametrize("family", made.FAMILIES)
def test_texts_have_the_ids_of_transformers_for_every_direction(folders, seed, family):
    folder, known = folders[family]
    tokenizer = open_directory(folder).load_tokenizer()
    draw = random.Random(f"{seed} texts")
    codes = [*made.FAMILIES[family][3], *draw.sample(tokenizer.languages.languages, 4)]
    for source, target in itertools.pairwise(codes):
        other = theirs(folder, family, source, target)
        frame = tokenizer.languages.frame(Direction(source, target))
        for text in made.texts(draw, known):
            ids = tokenizer.encode(text)
            assert [*frame.before, *ids, *frame.after] == other(text).input_ids, (seed, text)
            wanted = other(text_target=text).input_ids
            assert [*frame.begins, *ids, tokenizer.eos] == wanted, (seed, text)


def plain(ids):
    """Tokens without the ends."""
    return [id for id in ids if id != 2]


@pytest.mark.parametrize("family", made.FAMILIES)
def test_translations_are_those_of_generate(folders, seed, family):
    """Greedily and with beams, in three directions; our own greedy search finds the same."""
    folder, known = folders[family]
    source, target = made.FAMILIES[family][3]
    opened = open_pretrained(folder)
    write = HFTextGenerator(opened, batch=4)
    own = opened.translator()
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    draw = random.Random(f"{seed} search")
    texts = [" ".join(draw.choices(known, k=draw.randint(1, 6))) for _ in range(4)]
    third = draw.choice([c for c in own.tokenizer.languages.languages if c not in (source, target)])
    for one, two in ((source, target), (target, source), (third, target)):
        tokenizer = theirs(folder, family, one)
        tag = own.tokenizer.languages.tags[two]
        unused = range(own.tokenizer.vocab_size, model.config.vocab_size)
        banned = sorted({1, *own.tokenizer.languages.ids, *unused})
        for beams in (1, 3):
            changes = {"num_beams": beams, "max_new_tokens": 12, "suppress_tokens": (1,)}
            with jax.default_matmul_precision("highest"):
                found = list(write(texts, changes, Direction(one, two)))
            for text, [written] in zip(texts, found, strict=True):
                given = tokenizer(text, return_tensors="pt")
                options = {"forced_bos_token_id": tag, "do_sample": False, **changes}
                options["suppress_tokens"] = [1]
                with torch.no_grad():
                    [ids] = model.generate(**given, **options).tolist()
                assert plain(written.tokens) == plain(ids), (seed, text)
        greedy = own.search.changed(num_beams=1, max_new_tokens=11)
        with jax.default_matmul_precision("highest"):
            lines = own.translate(texts, greedy, Direction(one, two))
        for text, line in zip(texts, lines, strict=True):
            given = tokenizer(text, return_tensors="pt")
            # The tag begins the target and is banned after it, as are all tags and unused rows.
            begin = torch.tensor([[2, tag]])
            options = {"do_sample": False, "max_new_tokens": 11, "suppress_tokens": banned}
            with torch.no_grad():
                [ids] = model.generate(**given, decoder_input_ids=begin, **options).tolist()
            # Ours has the end within the limit, and not the first token.
            assert plain(line.tokens)[:10] == plain(ids)[1:11], (seed, text)


@pytest.mark.parametrize("family", made.FAMILIES)
def test_an_export_is_read_with_its_languages(tmp_path, seed, family):
    """A folder with a SentencePiece model goes to transformers with ids, languages and weights."""
    known = made.write(family, tmp_path / "here", seed=seed)
    assert main(["export", str(tmp_path / "here"), str(tmp_path / "there")]) == 0
    source, target = made.FAMILIES[family][3]
    tokenizer = open_directory(tmp_path / "here").load_tokenizer()
    other = transformers.AutoTokenizer.from_pretrained(tmp_path / "there", src_lang=source)
    if family != "m2m100":
        assert type(other).__name__ == made.FAMILIES[family][1]
        frame = tokenizer.languages.frame(Direction(source, target))
        other.src_lang = source
    else:
        frame = tokenizer.languages.frame(Direction("en", target))
    for text in made.texts(random.Random(seed), known):
        ids = [*frame.before, *tokenizer.encode(text), *frame.after]
        assert other(text).input_ids == ids, (seed, text)
    wrap = "__{}__".format if family == "m2m100" else str
    for code, id in tokenizer.languages.tags.items():
        assert other.convert_tokens_to_ids(wrap(code)) == id
    again = open_directory(tmp_path / "there").load_tokenizer().languages
    assert again == tokenizer.languages
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "there")
    fields = json.loads((tmp_path / "here" / "config.json").read_text())
    assert model.config.vocab_size == fields["vocab_size"]
    table = model.get_input_embeddings().weight.detach().numpy()
    np.testing.assert_array_equal(
        table, open_directory(tmp_path / "here").load_params().params["embedding"]["table"]
    )


STILL = [
    "--training.steps", "1", "--optimizer.learning-rate", "0", "--loop.evaluate-every", "1",
    "--evaluation.num-beams", "1", "--data.read.max-length", "60", "--training.num-buckets", "1",
]  # fmt: skip


def write_pairs(path, draw, known):
    """A file of pairs; returns both sides."""
    some = lambda: " ".join(draw.choices(known, k=draw.randint(2, 5)))
    pairs = [(some(), some()) for _ in range(6)]
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    return [source for source, _ in pairs], [target for _, target in pairs]


def loss_of(model, inputs, labels):
    """The loss of transformers, by its own shift of labels."""
    rows = [torch.tensor(row) for row in labels]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)
    with torch.no_grad():
        return float(model(**inputs, labels=padded).loss)


def first_loss(run):
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return next(line["valid_loss"] for line in lines if "valid_loss" in line)


@pytest.mark.parametrize("family", made.FAMILIES)
def test_the_first_loss_is_that_of_transformers(folders, seed, tmp_path, family):
    folder, known = folders[family]
    source, target = made.FAMILIES[family][3]
    texts = write_pairs(tmp_path / "a.tsv", random.Random(seed), known)
    named = f"{source}-{target}={tmp_path / 'a.tsv'}"
    given = ["train", "small", "--init-from", str(folder), "--data.pairs", named]
    given += ["--data.valid.pairs", named, *STILL, "--output", str(tmp_path / "run")]
    assert main(given) == 0
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    other = theirs(folder, family, source, target)
    inputs = other(texts[0], padding=True, return_tensors="pt")
    expected = loss_of(model, inputs, other(text_target=texts[1])["input_ids"])
    assert first_loss(tmp_path / "run") == pytest.approx(expected, rel=3e-6), seed


NEW = [("m2m100", "xx"), ("nllb", "xxx_Latn"), ("mbart50", "xx_XX")]


@pytest.mark.parametrize(("family", "code"), NEW)
def test_a_new_language_goes_to_transformers(folders, seed, tmp_path, family, code):
    """Its row starts as that of a relative; the export has its code, and computes the same."""
    folder, known = folders[family]
    source, relative = made.FAMILIES[family][3]
    texts = write_pairs(tmp_path / "a.tsv", random.Random(seed), known)
    named = f"{source}-{code}={tmp_path / 'a.tsv'}"
    given = ["train", "small", "--init-from", str(folder), "--data.pairs", named]
    given += ["--data.valid.pairs", named, "--tokens-like", f"{code}={relative}", *STILL]
    run, out = tmp_path / "run", tmp_path / "out"
    assert main([*given, "--output", str(run)]) == 0
    assert main(["export", str(run), str(out)]) == 0
    tokenizer = open_directory(run).load_tokenizer()
    tags, table = tokenizer.languages.tags, load(run)[0][1]["embedding"]["table"]
    np.testing.assert_array_equal(table[tags[code]], table[tags[relative]])
    # Rows that no token had are taken first.
    rows = open_directory(folder).folder.model.config.vocab_size
    assert len(table) == rows + (family == "mbart50")
    other = transformers.AutoTokenizer.from_pretrained(out, src_lang=source)
    wrap = "__{}__".format if family == "m2m100" else str
    assert other.convert_tokens_to_ids(wrap(code)) == tags[code]
    plain = lambda text: other(text, add_special_tokens=False).input_ids
    for text in itertools.chain(*texts):
        assert other(text).input_ids == [tags[source], *tokenizer.encode(text), 2]
    labels = [[tags[code], *plain(text), 2] for text in texts[1]]
    if family != "m2m100":
        other.tgt_lang = code
        assert other(text_target=texts[1])["input_ids"] == labels
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(out).eval()
    inputs = other(texts[0], padding=True, return_tensors="pt")
    expected = loss_of(model, inputs, labels)
    assert first_loss(run) == pytest.approx(expected, rel=3e-6), seed
    assert open_directory(out).load_tokenizer().languages.tags == tags
