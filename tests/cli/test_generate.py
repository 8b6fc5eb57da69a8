"""``generate`` and what else reads language models: flags, files, notes and mistakes."""

import io
import json
import re
import shutil
import sys

import numpy as np
import pytest

from tests.opened import load, load_language
from transformer_jax.cli.main import main
from transformer_jax.cli.output import escaped, waiting
from transformer_jax.cli.prompt import unescaped
from transformer_jax.core.old_names import REQUESTS
from transformer_jax.decoding.requests import GenerationRequest
from transformer_jax.decoding.windowed_generation import TextStart
from transformer_jax.inference.attention import decoder_attention

PROMPTS = ["a cab", "", "bad dad", "fed", "a", "abc", "cafe, a"]


decoders = pytest.mark.parametrize(
    "name", ["decoder_run", pytest.param("rotary_run", marks=pytest.mark.slow)]
)


@pytest.fixture(params=["decoder", pytest.param("rotary", marks=pytest.mark.slow), "ngram"])
def any_run(request):
    return request.getfixturevalue(f"{request.param}_run")


@pytest.fixture(params=["decoder", "ngram"])
def either_run(request):
    """A neural and an n-gram run, where positions and tokenizers make no difference."""
    return request.getfixturevalue(f"{request.param}_run")


@pytest.fixture
def generate(run_command):
    """The texts of a command that succeeds, and its notes."""

    def call(run, *arguments, text=""):
        code, lines, err = run_command("generate", run, *arguments, text=text)
        assert (code, lines.pop()) == (0, ""), err
        return lines, err

    return call


@pytest.mark.quick("ngram")
def test_one_prompt_is_streamed_with_its_text(any_run, generate):
    # Row B26: the text continues the prompt, and is the same as that of the library.
    lines, err = generate(any_run, "a cab", "--max-new-tokens", 12, "--seed", 3)
    [[found]] = load_language(any_run).generate(
        [GenerationRequest("a cab", max_new_tokens=12, seed=3)]
    )
    assert "\n".join(lines) == "a cab" + found.text
    assert err == ""
    assert generate(any_run, "a cab", "--max-new-tokens", 12, "--seed", 3) == (lines, err)
    others = [
        generate(any_run, "a cab", "--max-new-tokens", 12, "--seed", seed)[0]
        for seed in range(4, 6)
    ]
    assert any(other != lines for other in others)


@pytest.mark.quick("ngram")
def test_prompts_from_anywhere_have_the_same_texts_in_any_order(any_run, generate, tmp_path):
    flags = ("--max-new-tokens", 9, "--json")
    (tmp_path / "prompts").write_text("".join(f"{prompt}\n" for prompt in PROMPTS))
    asked = [{"prompt": prompt, "max_new_tokens": 9} for prompt in PROMPTS]
    (tmp_path / "requests").write_text("\n\n".join(json.dumps(one) for one in asked))
    lines, err = generate(any_run, "--prompts", tmp_path / "prompts", *flags)
    assert err == ""
    read = [json.loads(line) for line in lines]
    assert [one["prompt"] for one in read] == PROMPTS
    for one in read:
        [text] = one["texts"]
        assert text["finish_reason"] in ("end", "length")
        assert 1 <= text["tokens"] <= 9
        assert text["log_prob"] < 0
    assert generate(any_run, "--requests", tmp_path / "requests", "--json")[0] == lines
    # Company and order leave no trace, but for the last digits of the sums; a draw goes by the
    # number of its prompt.
    numbered = [one | {"number": number} for number, one in enumerate(asked)]
    text = "".join(f"{json.dumps(one)}\n" for one in reversed(numbered))
    for more in ((), ("--batch-size", 2)):
        again, _ = generate(any_run, "--requests", "-", "--json", *more, text=text)
        for one, other in zip(read, reversed([json.loads(line) for line in again]), strict=True):
            assert other["prompt"] == one["prompt"]
            assert other["texts"][0]["text"] == one["texts"][0]["text"]
            assert other["texts"][0]["log_prob"] == pytest.approx(one["texts"][0]["log_prob"], 1e-4)


@pytest.mark.quick("ngram")
def test_prompts_come_through_a_pipe(either_run, generate):
    """A prompt a line, like those of --prompts."""
    flags, text = ("--max-new-tokens", 4, "--seed", 2, "--json"), "a cab\nbad\n"
    lines, err = generate(either_run, *flags, text=text)
    assert [json.loads(line)["prompt"] for line in lines] == ["a cab", "bad"]
    assert (lines, err) == generate(either_run, "--prompts", "-", *flags, text=text)


def test_nobody_waits_silently_at_a_terminal(decoder_run, monkeypatch, capsys):
    terminal = type("Terminal", (io.StringIO,), {"isatty": lambda self: True})
    monkeypatch.setattr(sys, "stdin", terminal())
    assert main(["generate", str(decoder_run)]) == 2
    only_line(capsys.readouterr().err, "no prompt: give one of a prompt")
    waiting("sentences")
    assert capsys.readouterr().err.startswith("note: waiting for sentences at the terminal")


@pytest.mark.quick("ngram")
def test_several_texts_are_told_apart(either_run, generate):
    """Also where they hold line ends: by a line above each, or one a row."""
    flags = ("--num-return-sequences", 2, "--max-new-tokens", 9, "--seed", 1)
    found = [json.loads(line) for line in generate(either_run, *flags, "--json", text="a\nb\n")[0]]
    plain, table = (generate(either_run, *flags, *f, text="a\nb\n")[0] for f in ((), ["--tsv"]))
    wanted, rows = [], ["prompt\tsequence\tscore\ttext"]
    for number, one in enumerate(found, 1):
        for sample, text in enumerate(one["texts"], 1):
            wanted += [f"--- prompt {number}, sample {sample} ---"]
            wanted += (one["prompt"] + text["text"]).split("\n")
            cells = (number, sample, f"{text['log_prob']:.4f}", escaped(text["text"]))
            rows.append("\t".join(map(str, cells)))
    assert plain == wanted
    assert table == rows
    assert unescaped(table[1].split("\t")[3]) == found[0]["texts"][0]["text"]
    beams = generate(
        either_run, "a", "--num-beams", 2, "--num-return-sequences", 2, "--max-new-tokens", 2
    )[0]
    assert re.fullmatch(r"--- prompt 1, rank 1, score -\d+\.\d{4} ---", beams[0])


@pytest.mark.quick("ngram")
def test_each_json_line_has_settings_of_its_own(either_run, generate):
    asked = [
        {"prompt": "a cab", "max_new_tokens": 3, "temperature": 0},
        {
            "prompt": "a cab",
            "max_new_tokens": 8,
            "num_return_sequences": 2,
            "seed": 5,
            "top_p": 0.9,
            "top_k": None,
        },
        {"prompt": "a cab", "num_beams": 2, "num_return_sequences": 2},
    ]
    text = "".join(f"{json.dumps(one)}\n" for one in asked)
    lines, _ = generate(either_run, "--requests", "-", "--max-new-tokens", 6, "--json", text=text)
    texts = [json.loads(line)["texts"] for line in lines]
    assert [len(each) for each in texts] == [1, 2, 2]
    assert [max(one["tokens"] for one in each) <= most
            for each, most in zip(texts, (3, 8, 6), strict=True)] == [True] * 3  # fmt: skip
    [greedy] = generate(either_run, "a cab", "--max-new-tokens", 3, "--temperature", 0, "--json")[0]
    assert json.loads(greedy)["texts"][0]["text"] == texts[0][0]["text"]
    assert texts[2][0]["log_prob"] >= texts[2][1]["log_prob"]


def test_earlier_names_of_request_settings_are_read_and_each_is_named_once(
    ngram_run, generate, caplog
):
    earlier = [
        {"prompt": "a", "tokens": 7, "samples": 2, "no_repeat_ngram": 3, "seed": 5},
        {"prompt": "a", "tokens": 4, "beams": 3, "nbest": 2},
    ]
    asked = [{REQUESTS.get(name, name): value for name, value in one.items()} for one in earlier]
    texts = ["".join(f"{json.dumps(one)}\n" for one in each) for each in (earlier, asked)]
    lines, _ = generate(ngram_run, "--requests", "-", "--json", text=texts[0])
    notes = [record.getMessage() for record in caplog.records]
    assert sorted(notes) == sorted(f"<stdin>: {old} is now {new}" for old, new in REQUESTS.items())
    assert generate(ngram_run, "--requests", "-", "--json", text=texts[1])[0] == lines
    assert len(caplog.records) == len(REQUESTS)


@pytest.mark.quick("ngram")
def test_equal_prompts_are_drawn_apart_whatever_the_batch(either_run, generate):
    text = "a cab\n" * 20
    lines, _ = generate(either_run, "--prompts", "-", "--max-new-tokens", 9, text=text)
    assert len(set(lines)) > 10
    for batch in (1, 2):  # windows of 8 and 16 prompts
        flags = ("--max-new-tokens", 9, "--batch-size", batch)
        assert generate(either_run, "--prompts", "-", *flags, text=text)[0] == lines


@pytest.mark.quick("ngram")
def test_samples_differ_and_each_is_the_same_whatever_their_number(either_run, generate):
    both, _ = generate(
        either_run, "a", "--num-return-sequences", 4, "--max-new-tokens", 9, "--json"
    )
    one, _ = generate(either_run, "a", "--max-new-tokens", 9, "--json")
    texts = [each["text"] for each in json.loads(both[0])["texts"]]
    assert len(set(texts)) > 1
    assert json.loads(one[0])["texts"][0]["text"] == texts[0]


@pytest.mark.quick("ngram")
def test_a_stop_string_ends_the_text_before_it(either_run, generate):
    [whole], _ = generate(either_run, "a", "--max-new-tokens", 20, "--seed", 2, "--json")
    text = json.loads(whole)["texts"][0]["text"]
    stop = text[3:5]
    [cut], err = generate(
        either_run, "a", "--max-new-tokens", 20, "--seed", 2, "--json", "--stop", stop, "§§"
    )
    assert err == ""
    [found] = json.loads(cut)["texts"]
    assert found["finish_reason"] == "stop"
    assert found["text"] == text[: text.index(stop)]
    plain, _ = generate(either_run, "a", "--max-new-tokens", 20, "--seed", 2, "--stop", stop, "§§")
    assert "\n".join(plain) == "a" + found["text"]


@pytest.mark.quick("ngram")
def test_stop_strings_that_are_never_met_are_one_note(either_run, generate):
    said = "note: none of the stop strings ('§') was met"
    _, err = generate(either_run, "a", "--max-new-tokens", 3, "--stop", "§")
    assert err == f"{said}\n"
    _, err = generate(
        either_run, "--prompts", "-", "--max-new-tokens", 3, "--stop", "§", text="a\nb\nc\n"
    )
    assert err == f"{said} after 3 of 3 prompts\n"


@decoders
@pytest.mark.parametrize("guess", [1, 4])
@pytest.mark.slow
def test_speculation_writes_the_greedy_text(name, guess, generate, request):
    run, prompt = request.getfixturevalue(name), "abc abc abc"
    flags = (prompt, "--max-new-tokens", 30, "--temperature", 0)
    assert generate(run, *flags, "--prompt-lookup-num-tokens", guess) == generate(run, *flags)


@pytest.mark.quick("ngram")
def test_beams_find_no_less_probable_texts_than_greed(either_run, generate):
    worth = []
    for flags in (("--temperature", 0), ("--num-beams", 4, "--num-return-sequences", 3)):
        [line], _ = generate(either_run, "a c", "--max-new-tokens", 4, "--json", *flags)
        worth.append([one["log_prob"] for one in json.loads(line)["texts"]])
    assert worth[1] == sorted(worth[1], reverse=True)
    assert worth[1][0] >= worth[0][0] - 1e-4
    lines, _ = generate(either_run, "a c", "--max-new-tokens", 4, "--num-beams", 4)
    texts = json.loads(line)["texts"]
    assert "\n".join(lines) == "a c" + texts[0]["text"]


@pytest.mark.slow
def test_a_trace_tells_the_steps_of_the_text(decoder_run, generate):
    # Row L13.
    plain, _ = generate(decoder_run, "ab", "--max-new-tokens", 4, "--temperature", 0)
    lines, err = generate(decoder_run, "ab", "--max-new-tokens", 4, "--temperature", 0, "--trace")
    assert lines == plain
    said, head, *rows = err.rstrip("\n").split("\n")
    assert said == "ab"
    assert head.split()[:3] == ["step", "written", "probability"]
    assert len(rows) == 4
    for row in rows:
        worth = row.split()[2]
        assert re.fullmatch(r"0\.\d{4}", worth), row


@pytest.mark.slow
def test_b30_every_text_is_searched_and_b31_the_tree_of_beams_is_drawn(
    decoder_run, generate, tmp_path
):
    flags = ("--num-return-sequences", 2, "--tsv")
    every, _ = generate(decoder_run, "ab", "--exhaustive", 2, *flags)
    scores = [float(line.split("\t")[2]) for line in every[1:]]
    assert scores == sorted(scores, reverse=True)
    beams = ("--num-beams", 9, "--max-new-tokens", 2)
    tree = tmp_path / "tree.svg"
    found, err = generate(decoder_run, "ab", *beams, *flags, "--beam-tree", tree)
    assert err == f"wrote {tree}\n"
    assert tree.read_text().lstrip().startswith("<?xml")
    best = [float(line.split("\t")[2]) for line in found[1:]]
    assert all(a >= b - 1e-4 for a, b in zip(scores, best, strict=True))


@pytest.mark.slow
@decoders
def test_long_prompts_lose_their_beginning_or_are_refused(name, generate, run_command, request):
    run, prompt = request.getfixturevalue(name), "abcd " * 9
    lines, err = generate(run, prompt, "--max-new-tokens", 3)
    assert lines[0].startswith(prompt)
    assert err == "note: 1 of 1 prompt exceeded 23 tokens; start truncated\n"
    code, lines, err = run_command("generate", run, prompt, "--too-long", "error")
    assert (code, lines) == (3, [""])
    only_line(err, "the prompt has 45 tokens, the context allows 23")


@pytest.mark.slow
def test_a_full_context_slides_or_stops(decoder_run, generate):
    for full, tokens in (("slide", 60), ("stop", 22)):
        # BOS and "ab" leave 21 places, and the last one read is followed by one more.
        [line], _ = generate(
            decoder_run, "ab", "--max-new-tokens", 60, "--on-full-context", full, "--json"
        )
        [found] = json.loads(line)["texts"]
        assert (found["tokens"], found["finish_reason"]) == (tokens, "length")


@pytest.mark.slow
def test_rotations_read_further_and_learned_positions_do_not(
    decoder_run, rotary_run, generate, run_command
):
    flags = ("abcd " * 9, "--temperature", 0, "--max-new-tokens", 8)
    cut, err = generate(rotary_run, *flags)
    assert "1 of 1 prompt exceeded 23 tokens; start truncated" in err
    longer, err = generate(rotary_run, *flags, "--context", 64)
    assert err == ""
    squeezed, err = generate(rotary_run, *flags, "--context", 64, "--rope-interpolation")
    assert err == ""
    assert len({*cut} | {*longer} | {*squeezed}) > 1
    # Within the trained context more room changes nothing.
    short = ("ab", "--temperature", 0, "--max-new-tokens", 8)
    assert generate(rotary_run, *short, "--context", 64) == generate(rotary_run, *short)
    code, _, err = run_command("generate", decoder_run, "ab", "--context", 64)
    assert code == 2
    only_line(err, "--context is 64: the model has only 24 learned positions")
    assert generate(decoder_run, "ab", "--context", 8, "--max-new-tokens", 30)[1] == ""


def test_prompts_that_look_like_flags_follow_two_dashes(decoder_run, generate):
    # The vocabulary has no dash, so the text continues from unknown tokens.
    lines, _ = generate(decoder_run, "--max-new-tokens", 2, "--", "--prompt")
    assert lines[0].startswith("--prompt")


def only_line(err, says):
    assert err.startswith("error: "), err
    assert err.count("\n") == 1
    assert says in err


MISTAKES = [
    (["{run}", "a", "--temperature", "-1"], 2, "--temperature is -1.0: at least 0"),
    (["{run}", "a", "--temperature", "nan"], 2, "--temperature is nan"),
    (["{run}", "a", "--top-p", "0"], 2, "--top-p is 0.0: above 0 and at most 1"),
    (["{run}", "a", "--min-p", "2"], 2, "--min-p is 2.0: above 0 and at most 1"),
    (["{run}", "a", "--top-k", "0"], 2, "--top-k is 0: at least 1"),
    (["{run}", "a", "--max-new-tokens", "0"], 2, "--max-new-tokens is 0: at least 1"),
    (["{run}", "a", "--num-return-sequences", "0"], 2, "--num-return-sequences is 0: at least 1"),
    (["{run}", "a", "--seed", "-1"], 2, "--seed is -1: at least 0"),
    (["{run}", "a", "--stop", ""], 2, "stop holds an empty text"),
    (["{run}", "a", "--num-beams", "2", "--temperature", "0.5"], 2, "temperature: needs sampling"),
    (["{run}", "a", "--num-beams", "2", "--num-return-sequences", "3"], 2,
     "allowed are 1 to num_beams, 2"),
    (["{run}", "a", "--trace", "--num-return-sequences", "2"], 2, "--trace shows one text"),
    (["{run}", "a", "--prompt-lookup-num-tokens", "2"], 2,
     "--prompt-lookup-num-tokens needs greedy decoding"),
    (["{run}", "a", "--batch-size", "0"], 2, "--batch-size is 0: at least 1"),
    (["{run}", "a", "--context", "1"], 2, "--context is 1: at least 2"),
    (["{run}", "a", "--rope-interpolation"], 2, "--rope-interpolation needs --context"),
    (["{run}", "a", "--rope-interpolation", "--context", "48"], 2, "needs rotary positions"),
    (["{run}", "a", "--on-full-context", "halt"], 2, "allowed are slide, stop"),
    (["{run}", "a", "--tempreture", "1"], 2, "did you mean --temperature?"),
    (["{run}", "a", "--no-jsn"], 2, "did you mean --no-json?"),
    (["{run}", "a", "--checkpoint", "8"], 4, "no checkpoint of step 8: there are 7"),
    (["{run}"], 3, "standard input: no prompts, it is empty"),
    (["{run}", "a", "--json", "--tsv"], 2, "--json and --tsv exclude each other"),
    (["{run}", "--stop", "b", "a"], 2, "a prompt stands before --stop"),
    (["{run}", "--stop", "b"], 2, "or --prompts - to read standard input; a prompt stands before"),
    (["{run}", "a", "--prompts", "-"], 2, "two kinds of prompts"),
    (["{run}", "--prompts", "-", "--requests", "-"], 2, "two kinds of prompts"),
    (["{run}", "--prompts", "-"], 3, "no prompts, it is empty"),
    (["{run}", "--requests", "{tmp}/none"], 3, "--requests {tmp}/none: no such file"),
    (["{run}", "--prompts", "{tmp}/none", "--max-new-tokens", "0"], 2, "tokens is 0"),
    (["{translator}", "a"], 2, "the run of a translator"),
    (["{tmp}", "a"], 4, "not a run directory"),
    (["{tmp}/none", "a"], 4, "no such run directory"),
    (["{ngram}", "a", "--context", "9"], 2, "--context is for neural models"),
    (["{ngram}", "a", "--trace"], 2, "--trace is for neural models"),
    (["{ngram}", "a", "--exhaustive", "2"], 2, "--exhaustive is for neural models"),
    (["{run}", "a", "--exhaustive", "99"], 2, "sequences: at most 1000000 are searched"),
    (["{run}", "a", "--exhaustive", "2", "--top-k", "3"], 2,
     "--exhaustive and --top-k exclude each other"),
    (["{run}", "a", "--exhaustive", "2", "--beam-tree", "a.png"], 2, "and --beam-tree exclude"),
    (["{run}", "a", "--beam-tree", "a.png"], 2, "--beam-tree draws beam search: give --num-beams"),
    (["{run}", "a", "--beam-tree", "a.bmp", "--num-beams", "2"], 2, "the name ends in .png"),
    (["{ngram}", "a", "--dtype", "bfloat16"], 2, "--dtype is for neural models"),
    (["{ngram}", "a", "--too-long", "error"], 2, "--too-long is for neural models"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "code", "says"), MISTAKES, ids=[" ".join(m[0][1:]) or "run" for m in MISTAKES]
)
def test_a_mistake_is_one_line_and_an_exit_code(
    decoder_run, ngram_run, trained_run, tmp_path, run_command, given, code, says
):
    places = {"run": decoder_run, "ngram": ngram_run, "translator": trained_run, "tmp": tmp_path}
    found, lines, err = run_command("generate", *(word.format(**places) for word in given))
    assert (found, lines) == (code, [""])
    only_line(err, says.format(**places))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not JSON"),
        pytest.param("[" * 100_000, "not JSON", id="nested"),
        ("[]", 'needs an object with a text "prompt", or with "messages"'),
        ('{"prompt": 3}', 'needs an object with a text "prompt"'),
        ('{"prompt": "a", "messages": []}', "the conversation has no messages"),
        ('{"messages": [{"role": "user"}]}', "message 1: content is missing; text is needed"),
        ('{"prompt": "a", "tokns": 3}', "unknown setting tokns: known are adapter, max_new"),
        ('{"prompt": "a", "max_new_tokens": 2.5}', "max_new_tokens is 2.5: a whole number"),
        ('{"prompt": "a", "max_new_tokens": true}', "max_new_tokens is True: a whole number"),
        ('{"prompt": "a", "max_new_tokens": "7"}', "max_new_tokens is '7': a whole number"),
        ('{"prompt": "a", "temperature": "0"}', "temperature is '0': a number"),
        ('{"prompt": "a", "temperature": -1}', "temperature is -1: at least 0"),
        ('{"prompt": "a", "stop": 3}', "stop is 3: a text or a list of texts"),
        ('{"prompt": "a", "stop": ["b", 3]}', "a text or a list of texts"),
        ('{"prompt": "a", "stop": [""]}', "stop holds an empty text"),
        ('{"prompt": "\\ud800"}', "prompt: holds half a character"),
        ('{"prompt": "a", "stop": "\\udfff"}', "stop: holds half a character"),
        ('{"prompt": "a", "number": 5000000000}', "number is 5000000000: at most 4294967295"),
        ('{"prompt": "a", "top_k": 3000000000}', "top_k is 3000000000: at most 2147483647"),
        (
            '{"prompt": "a", "no_repeat_ngram_size": 3000000000}',
            "no_repeat_ngram_size is 3000000000: at most",
        ),
        (
            '{"prompt": "a", "num_return_sequences": 1000000000}',
            "num_return_sequences is 1000000000: at most 10000",
        ),
        ('{"prompt": "a", "tokens": 1, "max_new_tokens": 2}', "unknown setting tokens"),
        ('{"prompt": "a", "temperature": NaN}', "temperature is nan: at least 0"),
        (
            f'{{"prompt": "a", "temperature": 1{"0" * 399}}}',
            "temperature is a number of 400 digits: at most 1e308",
        ),
        (f'{{"prompt": "a", "seed": 1{"0" * 399}}}', "seed is a number of 400 digits: at most"),
    ],
    ids=lambda value: value[:60],
)
def test_a_wrong_json_line_is_named_by_file_and_number(
    decoder_run, run_command, tmp_path, line, says
):
    path = tmp_path / "asked.jsonl"
    path.write_text(f'{{"prompt": "a"}}\n\n{line}\n')
    code, lines, err = run_command("generate", decoder_run, "--requests", path)
    assert (code, lines) == (3, [""])
    only_line(err, f"{path}:3: ")
    assert says in err
    assert run_command("generate", decoder_run, "--requests", "-", text=path.read_text())[2] == (
        err.replace(str(path), "<stdin>")
    )


def test_steps_are_told_of_one_text_alone(decoder_run, run_command):
    for more in ({"num_return_sequences": 2}, {"num_beams": 2, "num_return_sequences": 2}):
        text = "".join(json.dumps({"prompt": "a", **f}) + "\n" for f in ({}, more))
        code, lines, err = run_command(
            "generate", decoder_run, "--requests", "-", "--trace", text=text
        )
        assert (code, lines) == (3, [""])
        only_line(err, "<stdin>:2: --trace shows one text: leave out num_return_sequences")


def test_a_table_of_draws_and_searches_has_one_header(ngram_run, generate):
    text = '{"prompt": "a", "num_beams": 2, "num_return_sequences": 2}\n'
    text += '{"prompt": "a", "num_return_sequences": 2}\n'
    lines, _ = generate(ngram_run, "--requests", "-", "--max-new-tokens", 2, "--tsv", text=text)
    assert lines[0] == "prompt\tsequence\tscore\ttext"
    rows = [line.split("\t")[:2] for line in lines[1:]]
    assert rows == [["1", "1"], ["1", "2"], ["2", "1"], ["2", "2"]]


# score


def table(lines):
    assert lines.pop() == ""
    return [line.split("\t") for line in lines]


@pytest.mark.quick("ngram")
def test_scores_of_lines_of_their_tokens_and_of_the_whole(any_run, run_command, tmp_path):
    (tmp_path / "text").write_text("a cab\n\nfed cafe")
    code, lines, err = run_command("score", any_run, tmp_path / "text", "--tokens")
    assert (code, err) == (0, "")
    head, *rows, total = table(lines)
    assert head == [
        *("line", "log_prob", "tokens", "log_prob_per_token", "perplexity", "bits_per_byte"),
        "token_log_probs",
    ]
    assert [row[0] for row in rows] == ["1", "2", "3"]
    model = load_language(any_run)
    found = model.score(["a cab", "", "fed cafe"])
    for row, score in zip(rows, found, strict=True):
        assert float(row[1]) == pytest.approx(score.log_prob, abs=1e-3)
        assert int(row[2]) == len(score.tokens)
    assert rows[0][6].count(":") == 5
    assert rows[0][6].split(" ")[1].startswith("▁:")
    assert (rows[1][2], rows[1][3], rows[1][6]) == ("0", "nan", "")
    assert float(rows[0][4]) == pytest.approx(np.exp(-float(rows[0][1]) / 5), rel=1e-3)
    bits = -float(total[1]) / np.log(2) / len("a cabfed cafe")
    assert float(total[5]) == pytest.approx(bits, abs=1e-3)
    code, lines, _ = run_command("score", any_run, tmp_path / "text", "--as-one-text")
    _, whole, total = table(lines)
    assert whole[1:] == total[1:]
    [score] = model.score(["a cab\n\nfed cafe\n"])
    assert float(whole[1]) == pytest.approx(score.log_prob, abs=1e-3)


@pytest.mark.parametrize(
    ("given", "code", "says"),
    [
        (["{run}"], 2, "is a language model: give a text file (score RUN FILE)"),
        (["{run}", "--source", "{file}", "--target", "{file}"], 2, "is a language model"),
        (
            ["{ngram}", "{file}", "--source", "{file}", "--target", "{file}"],
            2,
            "is a language model",
        ),
        (["{translator}", "{file}"], 2, "is a translator: give --source and --target"),
        (["{translator}", "--source", "{file}"], 2, "--target is missing"),
        (["{translator}", "{file}", "--source", "{file}", "--target", "{file}"], 2, "translator"),
        (["{run}", "{file}.none"], 3, "no such file"),
        (["{run}", "{empty}"], 3, "no text: it is empty"),
        (["{run}", "{file}", "--as-one-tex"], 2, "did you mean --as-one-text?"),
    ],
)
def test_texts_for_language_models_and_pairs_for_translators(
    decoder_run, ngram_run, trained_run, tmp_path, run_command, given, code, says
):
    (tmp_path / "file").write_text("a\n")
    (tmp_path / "empty").write_text("")
    places = {"run": decoder_run, "ngram": ngram_run, "translator": trained_run,
              "file": tmp_path / "file", "empty": tmp_path / "empty"}  # fmt: skip
    found, lines, err = run_command("score", *(word.format(**places) for word in given))
    assert (found, lines) == (code, [""])
    only_line(err, says)


# describe, verify, attention, translate


def test_what_a_decoder_costs(decoder_run, run_command):
    code, lines, err = run_command("describe", decoder_run)
    assert (code, err) == (0, "")
    params = load(decoder_run, kind="decoder")[0][1]
    count = sum(np.size(leaf) for leaf in leaves(params))
    assert lines[0].startswith(f"{decoder_run}: {count:,} parameters")
    text = "\n".join(lines)
    assert "tokens [B, T]" in text
    for absent in ("source", "target", "cross-attention", "encoder"):
        assert absent not in text.replace(str(decoder_run), ""), absent


def leaves(tree):
    return [leaf for value in tree.values() for leaf in leaves(value)] if isinstance(
        tree, dict
    ) else [tree]  # fmt: skip


def test_ngram_run_has_file_to_verify_and_no_layers(ngram_run, run_command, tmp_path, decoder_run):
    assert run_command("verify", ngram_run) == (0, ["ngram.npz\tok", ""], "")
    assert run_command("verify", decoder_run) == (0, ["step_00000007\tok", ""], "")
    for command in (["describe"], ["attention"], ["translate"]):
        more = ["a cab"] if command == ["attention"] else []
        code, _, err = run_command(*command, ngram_run, *more)
        assert code == 2
        only_line(err, "n-gram model")
    shutil.copytree(ngram_run, tmp_path / "run")
    held = tmp_path / "run/ngram.npz"
    raw = bytearray(held.read_bytes())
    raw[len(raw) // 2] ^= 1
    held.write_bytes(raw)
    for command in (["verify"], ["generate", "a"]):
        code, _, err = run_command(command[0], tmp_path / "run", *command[1:])
        assert code == 4
        only_line(err, "ngram.npz")
    held.unlink()
    assert run_command("verify", tmp_path / "run")[0] == 4


@pytest.mark.slow
def test_the_page_of_a_text_shows_the_weights_of_the_forward_pass(
    decoder_run, run_command, tmp_path
):
    # Row U13.
    page, text = tmp_path / "map.html", "a cab, fed"
    code, lines, err = run_command("attention", decoder_run, text, "--output", page, "--json")
    files = f"{page}, {page.with_suffix('.png')}, {page.with_suffix('.json')}"
    assert (code, lines, err) == (0, [""], f"wrote {files}\n")
    assert page.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert f"<h1>{text}</h1>" in page.read_text()
    held = json.loads(page.with_suffix(".json").read_text())
    assert list(held) == ["decoder"]
    assert held["decoder"]["rows"] == list(text.replace(" ", "▁"))
    assert held["decoder"]["columns"] == ["⏎", *text.replace(" ", "▁")[:-1]]
    weights = np.float32(held["decoder"]["weights"])
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    assert not np.triu(weights, 1).any()
    model, tokenizer = load(decoder_run, kind="decoder")
    [first] = tokenizer.encode("\n")
    attention = decoder_attention(model, tokenizer, text, start=TextStart.of(first))
    np.testing.assert_allclose(attention.weights["decoder"], weights, atol=1e-6)


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (["a", "--target", "b"], 2, "--target is for translators"),
        (["a", "--picture", "cross"], 2, "--picture is for translators"),
        (["a", "--num-beams", "2"], 2, "--num-beams is for translators"),
        (["a", "--layer", "2"], 2, "--layer 2: the layers are 1 to 1"),
        (["abcd " * 9], 3, "the text has 45 tokens: at most 24 are shown"),
        (["  "], 2, "the sentence is empty"),
    ],
)
def test_wrong_flags_of_attention(
    decoder_run, run_command, tmp_path, monkeypatch, flags, code, says
):
    monkeypatch.chdir(tmp_path)
    found, _, err = run_command("attention", decoder_run, *flags)
    assert found == code
    only_line(err, says)
    assert not list(tmp_path.iterdir())
