"""``translate``, ``score``, ``attention`` and ``verify`` with a model that knows its lesson."""

import base64
import dataclasses
import gzip
import json
import math
import re
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.opened import load
from transformer_jax.cli.output import TextOutput
from transformer_jax.cli.translate import Translate, traced
from transformer_jax.core.errors import ConfigError
from transformer_jax.decoding.generation_config import TRANSLATION
from transformer_jax.decoding.requests import Continuation, Translation
from transformer_jax.decoding.scoring import TraceStep
from transformer_jax.decoding.translator import Translator
from transformer_jax.inference.attention import translation_attention
from transformer_jax.inference.pretrained import chosen_checkpoint
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.transformer.models import TransformerEncoderDecoder

GREEDY = TRANSLATION.changed(num_beams=1)


@pytest.fixture(scope="module")
def teacher(trained_run):
    return Translator(*load(trained_run))


# translate


def test_every_line_becomes_one_line_in_order(trained_run, lesson, run_command):
    # Row L1, with an empty line, a line without its end, CRLF and a lone carriage return.
    sources = [source for source, _ in lesson]
    text = f"\ufeff{sources[3]}\r\n\n{sources[0]}\n{sources[2]}\rmore\n \n{sources[1]}"
    code, lines, err = run_command("translate", trained_run, text=text)
    assert (code, err) == (0, "")
    assert lines.pop() == ""  # the last line ends too
    assert len(lines) == 6
    targets = [target for _, target in lesson]
    assert [lines[i] for i in (0, 1, 2, 4, 5)] == [targets[3], "", targets[0], "", targets[1]]


def test_nothing_in_nothing_out(trained_run, run_command):
    assert run_command("translate", trained_run, "--num-beams", 1, text="") == (0, [""], "")
    header = "line\trank\tscore\ttext"
    assert run_command("translate", trained_run, "--tsv", text="") == (0, [header, ""], "")


def test_files_in_files_out(trained_run, lesson, run_command, tmp_path):
    """The same lines as through pipes; whole or not there, and never over what is read."""
    source, out = tmp_path / "in.pt", tmp_path / "new" / "out.en"
    source.write_text(f"{lesson[0][0]}\n\n{lesson[2][0]}\n")
    flags = ("--num-beams", 1, "--max-len-b", 20)
    piped = run_command("translate", trained_run, *flags, text=source.read_bytes())[1]
    files = ("--input", source, "--output", out)
    code, lines, err = run_command("translate", trained_run, *flags, *files)
    assert (code, lines, err) == (0, [""], f"wrote {out}: 3 lines\n")
    assert out.read_text().split("\n") == piped
    assert [path.name for path in out.parent.iterdir()] == ["out.en"]
    link = tmp_path / "link"
    link.symlink_to(source)
    for target, says in ((source, "the input file"), (link, "the input file"),
                         (tmp_path, "a folder"), (source / "x", "cannot be written")):  # fmt: skip
        command = ("translate", trained_run, "--input", source, "--output", target)
        code, lines, err = run_command(*command, *flags)
        assert (code, lines) == (2, [""])
        assert says in err
        assert err.count("\n") == 1
    assert source.read_text().count("\n") == 3


def test_what_was_written_before_a_mistake_is_kept(tmp_path, capsys):
    def interrupted():
        with TextOutput(tmp_path / "out") as out:
            out.write(b"one\n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [p.name for p in tmp_path.iterdir()] == ["out.partial"]
    assert (tmp_path / "out.partial").read_bytes() == b"one\n"
    assert "wrote " + str(tmp_path / "out.partial: 1 line, incomplete") in capsys.readouterr().err
    with TextOutput(tmp_path / "again.gz") as out:
        out.write(b"x\n")
    with gzip.open(tmp_path / "again.gz") as packed:
        assert packed.read() == b"x\n"


@pytest.mark.parametrize(("nbest", "rows"), [(1, 1), (2, 2)])
def test_a_table_of_translations(nbest, rows, capsysbinary):
    written = (
        Continuation("a\\b", (1,), -1.0, "end", -1.0),
        Continuation("c\td", (1,), -2.0, "end", -2.0),
    )
    command = Translate(run=Path("run"), num_return_sequences=nbest, tsv=True)
    table = (command.header() + command.written(1, Translation("source", written[:nbest]))).decode()
    every = ["line\trank\tscore\ttext", "1\t1\t-1.0000\ta\\\\b", "1\t2\t-2.0000\tc\\td"]
    assert table.split("\n") == [*every[: 1 + rows], ""]
    assert command.written(2, Translation("", written[:1])) == b"2\t1\t-1.0000\ta\\\\b\n"


@pytest.mark.slow
def test_n_best_are_scored_and_stay_on_their_line(trained_run, lesson, run_command):
    text = f"{lesson[0][0]}\n\n{lesson[2][0]}\n"
    code, lines, _ = run_command("translate", trained_run, "--num-return-sequences", 3, text=text)
    assert code == 0
    assert len(lines) == 4
    for line, target in ((lines[0], lesson[0][1]), (lines[2], lesson[2][1])):
        cells = line.split("\t")
        assert cells[0] == target
        scores = [float(cell) for cell in cells[1::2]]
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)
        assert len(set(cells[::2])) == 3


@pytest.mark.slow
def test_trace_shows_every_step_beside_the_translation(trained_run, lesson, run_command):
    # Row L13.
    code, lines, err = run_command(
        "translate", trained_run, "--trace", "--num-beams", 1, text=lesson[0][0] + "\n"
    )
    assert (code, lines) == (0, [lesson[0][1], ""])
    said, head, *rows, _, last = err.split("\n")
    assert said == lesson[0][0]
    assert head.split() == ["step", "written", "probability", "most", "probable"]
    assert last == ""
    table = [row.split() for row in rows]
    assert [row[0] for row in table] == [str(i) for i in range(1, len(rows) + 1)]
    assert "".join(row[1] for row in table).replace("▁", " ") == lesson[0][1] + "<eos>"
    for row in table:
        best = [float(value) for value in row[4::2]]
        assert len(best) == 5
        assert best == sorted(best, reverse=True)
        # Greedy search writes the first of them.
        assert row[3] == row[1]
        assert float(row[2]) == pytest.approx(best[0], abs=1e-3)


@pytest.mark.slow
def test_b30_every_translation_is_searched_and_b31_the_tree_of_beams_is_drawn(
    trained_run, lesson, run_command, tmp_path
):
    text, flags = "\n" + lesson[0][0] + "\n", ("--num-return-sequences", 2, "--scores")
    code, lines, _ = run_command("translate", trained_run, "--exhaustive", 2, *flags, text=text)
    assert (code, lines[0]) == (0, "\t0.0000")
    scores = [float(cell) for cell in lines[1].split("\t")[1::2]]
    assert scores == sorted(scores, reverse=True)
    limits = ("--max-len-a", 0, "--max-len-b", 2, "--num-beams", 9)
    tree = ("--beam-tree", tmp_path / "tree.html")
    code, lines, err = run_command("translate", trained_run, *limits, *flags, *tree, text=text)
    assert (code, f"wrote {tree[1]}\n" in err) == (0, True)
    assert "data:image/png;base64," in tree[1].read_text()
    assert scores[0] >= float(lines[1].split("\t")[1]) - 1e-4


def test_a_trace_is_a_table():
    steps = [
        TraceStep("Lucas", 7, math.log(0.75), (("Lucas", math.log(0.75)), (" He", math.log(0.2)))),
        TraceStep(" will", 8, math.log(0.5), ((" will", math.log(0.5)), ("\n", math.log(0.25)))),
    ]
    assert traced("Lucas irá", steps).split("\n") == [
        "Lucas irá",
        "step  written  probability  most probable",
        "1     Lucas    0.7500       Lucas 0.750  ▁He 0.200",
        "2     ▁will    0.5000       ▁will 0.500  ⏎ 0.250",
        "",
    ]


@pytest.mark.slow
def test_sampling_repeats_with_its_seed_and_ignores_neighbours(
    trained_run, lesson, run_command, teacher
):
    flags = ("--sample", "--temperature", 3.0, "--top-k", 20)
    text = "".join(f"{source}\n" for source, _ in lesson)
    found = run_command("translate", trained_run, *flags, "--seed", 2, text=text)[1]
    sources, targets = zip(*lesson, strict=True)

    def sampled(lines, seed, temperature=3.0):
        config = GREEDY.changed(do_sample=True, temperature=temperature, top_k=20, seed=seed)
        return [one.text for one in teacher.stream(lines, config)]

    assert [*sampled(sources, 2), ""] == found
    assert sampled(sources, 1) == sampled(sources, 1) != sampled(sources, 2)
    assert sampled(sources[:2], 1) == sampled(sources, 1)[:2]
    # Without heat only the likeliest is left.
    assert sampled(sources, 1, 0.0) == list(targets)


@pytest.mark.slow
def test_long_lines_are_cut_and_counted_or_refused(trained_run, run_command):
    text = "O gato dorme.\n" + "gato " * 200 + "\n"
    code, lines, err = run_command("translate", trained_run, "--num-beams", 1, text=text)
    assert (code, len(lines)) == (0, 3)
    assert "note: 1 of 2 lines exceeded 63 tokens; end truncated" in err
    flags = ("--num-beams", 1, "--too-long", "error")
    code, _, err = run_command("translate", trained_run, *flags, text=text)
    assert code == 3
    assert "line 2 has" in err


@pytest.mark.parametrize(
    ("raw", "says"),
    [(b"caf\xe9\n", "<stdin>:1: not UTF-8"), (b"a\nb\0c\n", "<stdin>:2: a NUL character")],
)
def test_what_is_not_text_exits_3(trained_run, run_command, raw, says):
    code, _, err = run_command("translate", trained_run, "--buffer-size", 8, text=raw)
    assert code == 3
    assert says in err


@pytest.mark.slow
def test_lower_cased_models_are_given_lower_case(trained_run, lesson, run_command, tmp_path):
    shutil.copytree(trained_run, tmp_path / "run")
    config = json.loads((tmp_path / "run/config.json").read_text())
    config["data"] = {"read": {"lowercase": True}}
    (tmp_path / "run/config.json").write_text(json.dumps(config))
    lower = lesson[2][0].lower()
    flags = ("--num-beams", 1, "--scores")
    expected = run_command("translate", trained_run, *flags, text=lower)[1]
    assert run_command("translate", tmp_path / "run", *flags, text=lesson[2][0])[1] == expected
    assert run_command("translate", trained_run, *flags, text=lesson[2][0])[1] != expected


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--top-k", "3"], "--top-k is for sampling"),
        (["--seed", "3"], "--seed is for sampling"),
        (["--sample", "--num-beams", "3"], "--num-beams is for beam search"),
        (["--tsv", "--scores"], "--scores is a column of --tsv already"),
        (["--sample", "--num-return-sequences", "2"], "--num-return-sequences is for beam search"),
        (["--sample", "--trace"], "--trace is for beam search"),
        (["--sample", "--exhaustive", "2"], "--exhaustive and --sample exclude each other"),
        (["--exhaustive", "9"], "sequences: at most 1000000 are searched; use beam search"),
        (["--beam-tree", "a.png", "--num-beams", "1"], "draws beam search: give --num-beams 2"),
        (["--sample", "--temperature", "-1"], "--temperature is -1.0: at least 0"),
        (["--sample", "--top-p", "1.5"], "--top-p is 1.5: above 0 and at most 1"),
        (["--sample", "--top-k", "0"], "--top-k is 0: at least 1"),
        (["--batch-size", "0"], "--batch-size 0: at least 1"),
        (
            ["--num-return-sequences", "9"],
            "num_return_sequences is 9: allowed are 1 to num_beams, 4",
        ),
        (["--checkpoint", "newest"], "checkpoint newest: must be best, last"),
    ],
)
def test_flags_without_effect_or_sense_exit_2(trained_run, run_command, flags, says):
    code, lines, err = run_command("translate", trained_run, *flags, text="x\n")
    assert (code, lines) == (2, [""])
    assert says in err


def test_checkpoints_by_name():
    assert chosen_checkpoint("last") == ("last", 1)
    assert chosen_checkpoint("average:3") == ("last", 3)
    for text in ("average", "average:0", "average:x", "first", "-1", ""):
        with pytest.raises(ConfigError, match=r"^checkpoint "):
            chosen_checkpoint(text)


def test_a_chosen_checkpoint_is_the_one_that_is_loaded(trained_run):
    first, last, both = (load(trained_run, which)[0][1] for which in ("100", "150", "average:2"))
    table = lambda params: np.asarray(params["embedding"]["table"])
    assert not np.array_equal(table(first), table(last))
    np.testing.assert_allclose(table(both), (table(first) + table(last)) / 2, atol=1e-6)


# score


@pytest.mark.slow
def test_scores_are_those_of_teacher_forcing(trained_run, lesson, run_command, tmp_path, teacher):
    sources, targets = zip(*lesson, strict=True)
    targets = (*targets[:3], "She reads.")
    (tmp_path / "s").write_text("\n".join(sources) + "\n")
    (tmp_path / "t").write_text("\n".join(targets) + "\n")
    flags = ("--source", tmp_path / "s", "--target", tmp_path / "t")
    code, lines, err = run_command("score", trained_run, *flags, "--tokens")
    assert (code, err, lines.pop()) == (0, "", "")
    head, *rows, total = [line.split("\t") for line in lines]
    assert head == [
        *("line", "log_prob", "tokens", "log_prob_per_token", "perplexity", "token_log_probs")
    ]
    forward = jax.jit(lambda params, *given: nnx.merge(teacher.graph, params)(*given))
    special = teacher.tokenizer
    sums = []
    for i, row in enumerate(rows):
        read = [*special.encode(sources[i]), special.eos]
        written = [*special.encode(targets[i]), special.eos]
        source, target = np.full((2, 1, 60), special.pad, np.int32)  # one shape for all
        source[0, : len(read)], target[0, : len(written)] = read, [special.bos, *written[:-1]]
        logits = forward(teacher.params, source, target, np.array([len(read)], np.int32))
        log_probs = np.asarray(jax.nn.log_softmax(logits)[0])
        expected = [log_probs[t, token] for t, token in enumerate(written)]
        said = [float(cell.rsplit(":", 1)[1]) for cell in row[5].split(" ")]
        np.testing.assert_allclose(said, expected, atol=2e-3)
        assert float(row[1]) == pytest.approx(sum(expected), abs=2e-3)
        assert row[0] == str(i + 1)
        assert int(row[2]) == len(written)
        assert float(row[3]) == pytest.approx(float(row[1]) / len(written), abs=1e-3)
        assert float(row[4]) == pytest.approx(math.exp(-float(row[3])), rel=1e-3)
        sums.append((float(row[1]), len(written)))
    assert total[0] == "corpus"
    assert float(total[1]) == pytest.approx(sum(p for p, _ in sums), abs=1e-3)
    assert int(total[2]) == sum(n for _, n in sums)
    assert float(total[4]) == pytest.approx(math.exp(-float(total[1]) / int(total[2])), rel=1e-3)
    # What was learnt is more probable than what was not.
    assert float(rows[0][3]) > -0.2 > float(rows[3][3])


def test_files_that_do_not_fit_exit_3(trained_run, run_command, tmp_path):
    (tmp_path / "one").write_text("a\n")
    (tmp_path / "two").write_text("a\nb\n")
    (tmp_path / "none").write_text("")
    score = lambda s, t: run_command(
        "score", trained_run, "--source", tmp_path / s, "--target", tmp_path / t
    )
    for s, t, says in (
        ("one", "two", "has 1 line "),
        ("one", "missing", "--target"),
        ("none", "one", "empty"),
    ):
        code, _, err = score(s, t)
        assert code == 3
        assert says in err


# attention


def held_kinds(path):
    data = re.findall(r'id="data" type="application/json">(.*?)</script>', path.read_text(), re.S)
    return {
        kind["label"].split("-")[0].split(" ")[0].lower(): np.frombuffer(
            base64.b64decode(kind["weights"]), "<f4"
        ).reshape(kind["shape"])
        for kind in json.loads(data[0])["kinds"]
    }


@pytest.mark.slow
def test_the_page_shows_the_weights_of_the_forward_pass(
    trained_run, lesson, run_command, tmp_path, teacher
):
    page = tmp_path / "new folder" / "map.html"
    code, lines, err = run_command(
        "attention", trained_run, lesson[1][0], "--output", page, "--json"
    )
    png, plain = page.with_suffix(".png"), page.with_suffix(".json")
    assert (code, err) == (0, f"wrote {page}, {png}, {plain}\n")
    assert lines == [lesson[1][1], ""]
    assert png.read_bytes().startswith(b"\x89PNG")
    kinds = held_kinds(page)
    maps = translation_attention(teacher, lesson[1][0]).maps
    assert list(kinds) == [each.kind for each in maps] == ["encoder", "decoder", "cross"]
    for each in maps:
        np.testing.assert_allclose(kinds[each.kind], each.weights, atol=1e-6)
        np.testing.assert_allclose(kinds[each.kind].sum(-1), 1.0, atol=1e-5)
        exact = np.float32(json.loads(plain.read_text())[each.kind]["weights"])
        np.testing.assert_array_equal(exact, kinds[each.kind])
    # A decoder sees nothing of what it is about to write.
    assert not np.triu(kinds["decoder"], 1).any()


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["xla", "chunked"])
def test_maps_reproduce_what_the_forward_pass_computed(trained_run, lesson, implementation):
    # Row U13: the encoder's output, recomputed in NumPy from the values and the maps alone, is the
    # output of the model, whichever kernel ran.
    (trained, params), tokenizer = load(trained_run)
    config = nnx.merge(trained, params).config
    config = dataclasses.replace(
        config, attention=dataclasses.replace(config.attention, implementation=implementation)
    )
    graph = nnx.split(nnx.eval_shape(lambda: TransformerEncoderDecoder(config, rngs=nnx.Rngs(0))))[
        0
    ]
    translator = Translator((graph, params), tokenizer)
    maps = translation_attention(translator, lesson[0][0]).maps
    [ids], _ = translator.encode([lesson[0][0]])
    model = nnx.merge(graph, params)
    source = jnp.array([ids])
    memory = np.asarray(model.encode(source, jnp.array([len(ids)])))[0]
    x = np.asarray(
        model.encoder.embed_inputs(model.as_decoder().embed(source), jnp.arange(len(ids))[None])
    )[0]
    np.testing.assert_allclose(
        encoder_from_maps(params["encoder"], config, x, maps[0].weights), memory, atol=1e-4
    )


def encoder_from_maps(params, config: TransformerConfig, x, maps):
    params = jax.tree.map(np.asarray, params)
    affine = lambda x, p: x @ p["kernel"] + p["bias"]

    def norm(x, p):
        x = x - x.mean(-1, keepdims=True)
        return (
            x / np.sqrt((x * x).mean(-1, keepdims=True) + config.norm.eps) * p["gain"] + p["bias"]
        )

    for layer, weights in enumerate(maps):
        block = params["blocks"][layer]
        v = affine(norm(x, block["self_attention_norm"]), block["self_attention"]["value"])
        v = v.reshape(len(x), config.attention.num_heads, -1)
        mixed = np.einsum("NTS,SNH->TNH", weights, v).reshape(len(x), -1)
        x = x + affine(mixed, block["self_attention"]["out"])
        hidden = affine(norm(x, block["feed_forward_norm"]), block["feed_forward"]["up"])
        x = x + affine(np.maximum(hidden, 0), block["feed_forward"]["down"])
    return norm(x, params["final_norm"])


def test_a_given_translation_is_what_is_looked_at(teacher, lesson):
    attention = translation_attention(teacher, lesson[0][0], "The cat.")
    maps, text = attention.maps, attention.text
    assert text == "The cat."
    written = teacher.tokenizer.convert_ids_to_tokens(
        [*teacher.tokenizer.encode("The cat."), teacher.tokenizer.eos]
    )
    assert maps[2].rows == tuple(piece.replace(" ", "▁") for piece in written)
    assert maps[1].read[0] == teacher.tokenizer.convert_ids_to_tokens([teacher.tokenizer.bos])[0]


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (["O gato", "--output", "map.png"], 2, "--output map.png: the name ends in .html"),
        (["O gato", "--layer", "0"], 2, "--layer is 0: at least 1"),
        (["O gato", "--layer", "3", "--num-beams", "1"], 2, "--layer 3: the layers are 1 to 1"),
        (["O gato", "--layer", "1", "--all-layers"], 2, "exclude each other"),
        (["  "], 2, "the sentence is empty"),
        (["O gato", "--target", " "], 2, "the target is empty"),
        (["O gato", "--target", "cat " * 99], 3, "the target has"),
        (["O gato", "--num-beams", "1", "--output", "/proc/x/y.html"], 2, "cannot be written"),
        (["O gato", "--picture", "crss"], 2, "--picture"),
    ],
)
def test_wrong_flags_of_attention(
    trained_run, run_command, tmp_path, monkeypatch, flags, code, says
):
    monkeypatch.chdir(tmp_path)
    found, _, err = run_command("attention", trained_run, *flags)
    assert found == code
    assert says in err
    assert not list(tmp_path.iterdir())


# verify


def test_a_sound_run_verifies(trained_run, run_command):
    code, lines, err = run_command("verify", trained_run)
    assert (code, err) == (0, "")
    assert lines == ["step_00000150\tok", "step_00000100\tok", ""]


@pytest.fixture
def copied_run(trained_run, tmp_path):
    shutil.copytree(trained_run, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("harm", ["flip", "cut", "remove", "manifest"])
def test_damage_is_named_and_exits_4(copied_run, run_command, harm):
    held = copied_run / "checkpoints/step_00000100"
    victim = max((held / "params").rglob("*"), key=lambda path: path.stat().st_size)
    victim = held / "manifest.json" if harm == "manifest" else victim
    raw = bytearray(victim.read_bytes())
    raw[len(raw) // 2] ^= 1
    if harm == "remove":
        victim.unlink()
    else:
        victim.write_bytes(raw[:-7] if harm == "cut" else raw)
    code, lines, err = run_command("verify", copied_run)
    assert code == 4
    assert lines[0] == "step_00000150\tok"
    assert lines[1].startswith("step_00000100\t")
    assert victim.name in lines[1]
    assert "step_00000100" in err
    assert "step_00000150" not in err


def test_another_tokenizer_is_noticed(copied_run, run_command, lesson):
    held = copied_run / "checkpoints/step_00000150"
    from transformer_jax.runs import manifest

    fields = manifest.read(held)
    manifest.rewrite(held, fields | {"tokenizer": "0" * 64})
    code, lines, err = run_command("verify", copied_run)
    assert code == 4
    assert "tokenizer.json\tnot the one that the checkpoints were made with" in lines
    assert "tokenizer.json" in err
    code, _, err = run_command("translate", copied_run, text=lesson[0][0])
    assert code == 4
    assert "tokenizer.json" in err


@pytest.mark.parametrize(
    ("width", "said"),
    [
        (36, r"parameter \S+ is \[\S.*\] in the checkpoint and \[.*\] by config.json"),
        (64, r"describes a model of [\d,]+ parameters, but the checkpoint has [\d,]+: they"),
    ],
)
def test_a_model_of_another_shape_is_refused(copied_run, run_command, width, said):
    config = json.loads((copied_run / "config.json").read_text())
    config["model"]["d_model"] = width
    (copied_run / "config.json").write_text(json.dumps(config))
    code, _, err = run_command("translate", copied_run, text="x")
    assert code == 4
    assert re.search(said, err)


def test_a_run_without_checkpoints_exits_4(copied_run, run_command):
    for path in (copied_run / "checkpoints").iterdir():
        shutil.rmtree(path)
    assert run_command("verify", copied_run)[0] == 4
    assert run_command("translate", copied_run, text="x")[0] == 4


def test_the_checkpoint_before_a_damaged_one_is_used(copied_run, run_command, lesson):
    shutil.rmtree(copied_run / "checkpoints/step_00000150/params")
    code, lines, _ = run_command(
        "translate", copied_run, "--checkpoint", "last", "--num-beams", 1, text=lesson[0][0]
    )
    assert (code, len(lines)) == (0, 2)
