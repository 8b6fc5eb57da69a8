"""Prompts of examples, and answers by likelihood or in writing (rows B41 and T16)."""

import inspect
import itertools
import math

import pytest

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.corpora import in_context
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.decoding.ngram import NgramLanguageModel
from transformer_jax.decoding.requests import Continuation, TextScore
from transformer_jax.evaluation.answers import FewShotResult
from transformer_jax.evaluation.few_shot import (
    Demonstrations,
    Template,
    accuracy,
    answer,
    make_prompt,
    rank_choices,
    select_demonstrations,
)

CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Peru": "Lima", "Egypt": "Cairo"}
POOL = [{"input": a, "output": b} for a, b in CAPITALS.items()]
SHOWN = Demonstrations(POOL)
LINE = Template(in_context.EXAMPLE)


class Fake:
    """Writes and scores what it is told to; each of its tokens is a word."""

    def __init__(self, reply=lambda prompt: "", likely=lambda prompt, text: 0.0):
        self.reply, self.likely, self.asked = reply, likely, []

    def generate(self, requests):
        self.asked += requests
        return [[self.continuation(request)] for request in requests]

    def continuation(self, request):
        text = self.reply(request.prompt)
        for stop in request.stop:
            text = text.split(stop)[0]
        return Continuation(text, (), 0.0, "stop", 0.0)

    def stream(self, request):
        yield self.reply(request.prompt)

    def score(self, texts, prompts=None):
        self.asked += zip(prompts, texts, strict=True)
        made = []
        for prompt, text in zip(prompts, texts, strict=True):
            words, log_prob = len(text.split()), float(self.likely(prompt, text))
            each = (log_prob / words,) * words
            made.append(TextScore(log_prob, (1,) * words, each, len(text), len(text.encode())))
        return made


def test_a_prompt_is_its_examples_and_an_open_query():
    template = Template("Q: {question}\nA: {answer}\n\n", answer="answer", header="Answer.\n\n")
    table = [{"question": "One?", "answer": "1", "id": "x"}, {"question": "Two?", "answer": "2"}]
    prompt = make_prompt(template, table, {"question": "Three?"})
    assert prompt == "Answer.\n\nQ: One?\nA: 1\n\nQ: Two?\nA: 2\n\nQ: Three?\nA:"
    assert template.fields == ("question", "answer")
    # The text continues exactly as an example does.
    assert prompt + template.lead + "3" + template.stop == template.header + "".join(
        map(template.write, [*table, {"question": "Three?", "answer": "3"}])
    )
    assert make_prompt(Template(), [], {"input": "a"}) == "a ->"


@pytest.mark.parametrize(
    ("example", "lead", "stop", "ask"),
    [
        ("{input} -> {output}\n", " ", "\n", "x ->"),
        ("{input}\n{output}\n", "", "\n", "x\n"),
        ("{input}\t {output}", "\t ", "", "x"),
        ("{{{input}}} {{{output}}}\n", "", "}", "{x} {"),
        ("{output} is {input}", "", " is ", ""),
        ("{input}={output} ({input})\n", "", " (", "x="),
    ],
)
def test_the_answer_is_found_where_the_template_has_it(example, lead, stop, ask):
    template = Template(example)
    assert (template.lead, template.stop) == (lead, stop)
    assert template.format_query({"input": "x"}) == ask
    whole = template.write({"input": "x", "output": "y"})
    assert whole.startswith(ask + lead + "y" + stop)


def test_values_with_braces_are_values():
    query = {"input": "{output}", "output": "{0}"}
    assert Template().write(query) == "{output} -> {0}\n"


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ("{input -> {output}", "write fields {name}"),
        ("{input} -> {}", "must be a name"),
        ("{input!r} -> {output}", "must be a name"),
        ("{input:>5} -> {output}", "must be a name"),
        ("{input.x} -> {output}", "must be a name"),
        ("{input} ->", "must have the answer {output} exactly once"),
        ("{output} -> {output}", "must have the answer {output} exactly once"),
    ],
)
def test_templates_are_checked(example, message):
    with pytest.raises(ConfigError, match=message) as caught:
        Template(example)
    assert "\n" not in str(caught.value)


def test_unknown_fields_are_named():
    with pytest.raises(DataError, match=r"no field 'question': it has input, output"):
        make_prompt(Template("{question} {output}"), POOL[:1], {"question": "?"})
    with pytest.raises(DataError, match=r"no field 'input': it has none"):
        Template().format_query({})


def test_examples_are_chosen_by_seed_and_index_and_never_are_the_query():
    for index, query in itertools.product(range(20), POOL):
        four = select_demonstrations(POOL, 4, query, index=index, seed=1)
        assert query not in four
        assert len({example["input"] for example in four}) == 4
        assert select_demonstrations(POOL, 2, query, index=index, seed=1) == four[:2]
    some = [
        select_demonstrations(POOL, 2, {"input": "Chad"}, index=index, seed=1)
        for index in range(20)
    ]
    assert some == [
        select_demonstrations(POOL, 2, {"input": "Chad"}, index=index, seed=1)
        for index in range(20)
    ]
    assert some != [
        select_demonstrations(POOL, 2, {"input": "Chad"}, index=index, seed=2)
        for index in range(20)
    ]
    assert len({str(pair) for pair in some}) > 5
    # Every example comes as often.
    firsts = [
        select_demonstrations(POOL, 1, {"input": "Chad"}, index=i)[0]["input"] for i in range(1000)
    ]
    assert all(150 < firsts.count(name) < 250 for name in CAPITALS)
    # Also not under another answer or with other notes.
    other = {"input": "France", "output": "Lyon", "note": "x"}
    assert POOL[0] not in select_demonstrations(POOL, 4, other, index=0)
    with pytest.raises(DataError, match="query 7: 5 examples are needed, but the pool has 4"):
        select_demonstrations(POOL, 5, POOL[0], index=7)
    with pytest.raises(DataError, match="query 0: 1 example is needed, but the pool has 0"):
        select_demonstrations([POOL[0]], 1, POOL[0], index=0)
    with pytest.raises(ConfigError, match="-1 examples"):
        select_demonstrations(POOL, -1, POOL[0], index=0)


def test_t16_normalised_likelihood_does_not_prefer_the_short():
    worth = {"no": -3.0, "quite a lot": -6.0, "überaus": -5.0}
    model = Fake(likely=lambda prompt, text: worth[text])
    choices = list(worth)
    assert rank_choices(model, ["Is it?"], choices) == [0]  # -3, -6, -5
    assert rank_choices(model, ["Is it?"], choices, "tokens") == [1]  # -3, -2, -5
    assert rank_choices(model, ["Is it?"], choices, "bytes") == [1]  # -1.5, -.55, -.625
    assert rank_choices(model, ["Is it?"], ["no", "überaus"], "bytes") == [1]
    worth["überaus"] = -8 * 6 / 11 + 1e-9  # of 8 bytes and 7 characters
    assert rank_choices(model, ["Is it?"], choices, "bytes") == [2]
    assert rank_choices(Fake(), ["a", "b"], ["x", "y"]) == [0, 0]


def test_each_prompt_may_have_choices_of_its_own():
    model = Fake(likely=lambda prompt, text: -abs(int(text) - len(prompt)))
    assert rank_choices(model, ["a", "bbb"], [["0", "1"], ["1", "2", "3"]]) == [1, 2]
    assert model.asked == [("a", "0"), ("a", "1"), ("bbb", "1"), ("bbb", "2"), ("bbb", "3")]
    assert rank_choices(model, [], ["1"]) == []
    with pytest.raises(ConfigError, match="2 prompts but choices for 1"):
        rank_choices(model, ["a", "b"], [["0", "1"]])
    with pytest.raises(ConfigError, match="no or an empty choice"):
        rank_choices(model, ["a"], [[]])
    with pytest.raises(ConfigError, match="no or an empty choice"):
        rank_choices(model, ["a"], ["x", ""])
    with pytest.raises(ConfigError, match="allowed are none, tokens, bytes"):
        inspect.unwrap(rank_choices)(model, ["a"], ["x"], "words")  # before types are checked


def test_answers_are_greedy_and_end_at_the_stop():
    model = Fake(lambda prompt: f" {prompt[-1]}!\nmore")
    assert answer(model, ["a", "b"]) == ["a!", "b!"]
    assert answer(model, ["a"], stop=("!", "?"), max_new_tokens=5) == ["a"]
    assert answer(model, ["a"], stop="") == ["a!\nmore"]
    assert all(request.temperature == 0 for request in model.asked)
    assert [request.max_new_tokens for request in model.asked] == [32, 32, 5, 32]


def test_prompts_are_made_of_examples_that_agree_with_their_query():
    pool = [example | {"kind": kind} for example in POOL for kind in "ab"]
    queries = [{"input": "France", "kind": "a"}, {"input": "Chad", "kind": "b"}]
    made = Demonstrations(pool, match_field="kind", seed=3).prompts(queries, 4)
    for index, (prompt, query) in enumerate(zip(made, queries, strict=True)):
        alike = [example for example in pool if example["kind"] == query["kind"]]
        chosen = select_demonstrations(alike, 4, query, index=index, seed=3)
        assert prompt == make_prompt(Template(), chosen, query)
    for query in ({"input": "Chad", "kind": "c"}, {"input": "Chad"}):
        with pytest.raises(DataError, match=r"the pool has 0|no field 'kind'"):
            Demonstrations(pool, match_field="kind").prompts([query], 1)


def test_accuracy_is_counted_for_each_number_of_examples():
    """A model that knows what it was shown, and of the rest only the last letter."""

    def reply(prompt):
        *shown, asked = prompt.splitlines()
        shown = {line.split(" -> ")[1] for line in shown}
        wanted = CAPITALS[asked.removesuffix(" ->")]
        return f" The {wanted.lower()}.\n" if len(shown) < 2 else f" {wanted}\nItaly -> Rome\n"

    rows = accuracy(Fake(reply), SHOWN, POOL, shots=(0, 1, 2, 4))
    assert rows == [
        FewShotResult(0, 0.0, 5, 1.0, 1.0),
        FewShotResult(1, 0.0, 5, 1.0, 1.0),
        FewShotResult(2, 1.0, 5, 1.0, 1.0),
        FewShotResult(4, 1.0, 5, 1.0, 1.0),
    ]


def test_accuracy_by_choices_scores_them_with_their_blank():
    likely = lambda prompt, text: text.strip() == CAPITALS[prompt.splitlines()[-1][:-3]]
    model = Fake(likely=likely)
    rows = accuracy(model, SHOWN, POOL, shots=(3,), choices=list(CAPITALS.values()))
    assert rows == [FewShotResult(3, 1.0, 5, 1.0, 1.0)]
    assert all(text.startswith(" ") and prompt.endswith(" ->") for prompt, text in model.asked)
    wrong = Fake(likely=lambda prompt, text: -likely(prompt, text))
    assert accuracy(wrong, SHOWN, POOL, shots=(3,), choices=["Paris", "Rome"])[0].accuracy == 0


def test_accuracy_refuses_what_cannot_be():
    with pytest.raises(DataError, match="no queries"):
        accuracy(Fake(), SHOWN, [])
    with pytest.raises(DataError, match="no field 'output'"):
        accuracy(Fake(), SHOWN, [{"input": "France"}])
    with pytest.raises(DataError, match="8 examples are needed, but the pool has 4"):
        accuracy(Fake(), SHOWN, POOL)
    for shots in ((), (1, -1)):
        with pytest.raises(ConfigError, match="numbers from 0 are needed"):
            accuracy(Fake(), SHOWN, POOL, shots=shots)


def test_b41_a_model_that_looks_letters_up_rises_with_k():
    """Over the corpus of fresh rules, examples being of the rule of their query."""

    def find_answer(prompt):
        *shown, asked = [line.split(">") for line in prompt.splitlines()]
        table = {x: y for a, b in shown for x, y in zip(a, b, strict=True)}
        return "".join(table.get(letter, "?") for letter in asked[0]) + "\n"

    pool, queries = in_context.examples("test", 300)
    queries = [query for query in queries if not query["rule"].startswith("reverse")]
    rows = accuracy(Fake(find_answer), Demonstrations(pool, LINE, "rule"), queries)
    right = [row.accuracy for row in rows]
    assert right[0] == 0
    assert right[1] > 0.1
    assert all(more > fewer + 0.05 for fewer, more in itertools.pairwise(right[:4]))
    assert right[4] > 0.97
    assert {row.count for row in rows} == {len(queries)}


@pytest.fixture(scope="module")
def learnt():
    lines = ["".join(f"{a} -> {b}\n" for a, b in CAPITALS.items())] * 3
    tokenizer = train_tokenizer("characters", lines, 60)
    return NgramLanguageModel.train(lines, tokenizer, order=8)


def test_an_n_gram_model_answers_what_it_has_read(learnt):
    rows = accuracy(learnt, SHOWN, POOL, shots=(0, 2))
    assert rows == [FewShotResult(0, 1.0, 5, 1.0, 1.0), FewShotResult(2, 1.0, 5, 1.0, 1.0)]
    for normalize in ("none", "tokens", "bytes"):
        rows = accuracy(
            learnt, SHOWN, POOL, shots=(0,), choices=[*CAPITALS.values()], normalize=normalize
        )
        assert rows[0].accuracy == 1


def test_an_n_gram_model_does_not_learn_from_its_context():
    """Fresh rules are beyond counts of training: the accuracy stays where it was."""
    texts = in_context.generate("train", 300)
    tokenizer = train_tokenizer("characters", texts, 60)
    model = NgramLanguageModel.train(texts, tokenizer, order=5)
    pool, queries = in_context.examples("test", 25)
    rows = accuracy(
        model, Demonstrations(pool, LINE, "rule"), queries, shots=(1, 8), max_new_tokens=8
    )
    assert all(row.accuracy < 0.3 for row in rows)


def test_choices_are_scored_as_the_model_does(learnt):
    prompts, choices = ["Italy ->", "Peru ->"], [" Rome", " Lima"]
    own = [learnt.score(choices, [prompt] * 2) for prompt in prompts]
    wanted = [max((0, 1), key=lambda i: pair[i].log_prob) for pair in own]
    assert rank_choices(learnt, prompts, choices) == wanted == [0, 1]
    assert math.isfinite(own[0][1].log_prob)
