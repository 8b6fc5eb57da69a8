"""Few-shot prompting: examples before the query, and the accuracy of answers."""

import collections
import dataclasses
import random
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, get_args

from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.decoding.requests import GenerationRequest, LanguageModel, TextScore
from transformer_jax.evaluation.answers import FewShotResult, score_answers

__all__ = [
    "Demonstrations",
    "Example",
    "Normalize",
    "Template",
    "accuracy",
    "answer",
    "make_prompt",
    "rank_choices",
    "select_demonstrations",
]

Example = Mapping[str, str]  # texts by field name
Normalize = Literal["none", "tokens", "bytes"]

_BLANKS = " \t"


@dataclasses.dataclass(frozen=True)
class Template:
    r"""The text format of an example; a query is formatted up to its answer.

    Blanks before the answer belong to the answer, since tokenizers join them with its first word:
    prompts end before these blanks, `lead`.

    Example:
        >>> template = Template("Q: {question}\nA: {reply}\n\n", answer="reply")
        >>> template.format_query({"question": "Why?"}), template.lead, template.stop
        ('Q: Why?\nA:', ' ', '\n\n')
    """

    example: str = "{input} -> {output}\n"  # {{ and }} are braces
    answer: str = "output"  # the field to predict
    header: str = ""  # text before all examples

    def __post_init__(self) -> None:
        try:
            parts = list(string.Formatter().parse(self.example))
        except ValueError as error:
            raise ConfigError(
                f"template {self.example!r}: {error}; write fields {{name}}, braces {{{{ and }}}}"
            ) from None
        for _, name, how, conversion in parts:
            if name is not None and (how or conversion or not name.isidentifier()):
                raise ConfigError(
                    f"template {self.example!r}: the field {{{name}}} must be a name and "
                    f"nothing else, such as {{input}}"
                )
        names = [name for _, name, *_ in parts if name is not None]
        if names.count(self.answer) != 1:
            raise ConfigError(
                f"template {self.example!r}: it must have the answer {{{self.answer}}} exactly once"
            )

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields, in order."""
        return tuple(name for _, name in self._parts() if name is not None)

    @property
    def lead(self) -> str:
        """The blanks between a query and its answer."""
        before = self._before()[-1][0]
        return before[len(before.rstrip(_BLANKS)) :]

    @property
    def stop(self) -> str:
        """Returns the text that ends an answer; empty if nothing follows it."""
        after = self._parts()[len(self._before()) :]
        return after[0][0] if after else ""

    def write(self, example: Example) -> str:
        """Formats an example with its answer.

        Raises:
            DataError: The example lacks a field.
        """
        return _fill(self._parts(), example)

    def format_query(self, query: Example) -> str:
        """Formats a query without its answer, which may be unknown.

        Raises:
            DataError: The query lacks a field.
        """
        *parts, (text, _) = self._before()
        return _fill([*parts, (text.rstrip(_BLANKS), None)], query)

    def prepared(self, prepare: Callable[[str], str]) -> "Template":
        """Returns the template with its own text preprocessed as in a model's training.

        Example:
            >>> Template("Q: {input} {{A}}: {output}").prepared(str.lower).example
            'q: {input} {{a}}: {output}'
        """
        braced = lambda text: prepare(text).replace("{", "{{").replace("}", "}}")
        fields = lambda name: "" if name is None else f"{{{name}}}"
        example = "".join(braced(text) + fields(name) for text, name in self._parts())
        return dataclasses.replace(self, example=example, header=prepare(self.header))

    def _parts(self) -> list[tuple[str, str | None]]:
        """Yields texts, each with the name of the following field."""
        return [(text, name) for text, name, *_ in string.Formatter().parse(self.example)]

    def _before(self) -> list[tuple[str, str | None]]:
        parts = self._parts()
        return parts[: [name for _, name in parts].index(self.answer) + 1]


def make_prompt(template: Template, examples: Sequence[Example], query: Example) -> str:
    r"""Formats examples with answers and a query without, as a prompt.

    Raises:
        DataError: An example or the query lacks a field of the template.

    Example:
        >>> make_prompt(Template(), [{"input": "ab", "output": "ba"}], {"input": "cd"})
        'ab -> ba\ncd ->'
    """
    return template.header + "".join(map(template.write, examples)) + template.format_query(query)


def select_demonstrations(
    pool: Sequence[Example],
    k: int,
    query: Example,
    template: Template | None = None,
    *,
    index: int,
    seed: int = 0,
) -> list[Example]:
    """Selects ``k`` examples of a pool for query ``index``, in random order, never the query.

    The selection depends on the pool, the seed and the index; a smaller selection is a prefix of a
    larger one.

    Args:
        pool: Examples to choose from.
        k: Number of examples.
        query: The query; examples with the same question are excluded, regardless of their answer.
        template: Template of examples and queries.
        index: Number of the query.
        seed: Random seed.

    Raises:
        ConfigError: ``k`` is negative.
        DataError: The pool has too few other examples, or a field is missing.

    Example:
        >>> pool = [{"input": a, "output": a} for a in "abcd"]
        >>> sorted(example["input"] for example in select_demonstrations(pool, 3, pool[1], index=0))
        ['a', 'c', 'd']
    """
    if k < 0:
        raise ConfigError(f"{plural(k, 'example')}: 0 or more")
    template = template or Template()
    asked = template.format_query(query)
    found: list[Example] = []
    for place in _shuffled(len(pool), random.Random(f"few-shot {seed} {index}")):
        if len(found) == k:
            break
        if template.format_query(pool[place]) != asked:
            found.append(pool[place])
    if len(found) < k:
        raise DataError(
            f"query {index}: {plural(k, 'example')} {'is' if k == 1 else 'are'} needed, but the "
            f"pool has {len(found)} besides the query itself: use fewer"
        )
    return found


def rank_choices(
    model: LanguageModel,
    prompts: Sequence[str],
    choices: Sequence[str] | Sequence[Sequence[str]],
    normalize: Normalize = "none",
) -> list[int]:
    """Returns the most probable choice after each prompt; on ties the first.

    Args:
        model: The model that scores the choices.
        prompts: The prompts.
        choices: Texts, including blanks before them: the same for all prompts, or a list per
            prompt.
        normalize: Divisor of log-probabilities: none, which prefers short choices, or the number of
            ``tokens`` or ``bytes``.

    Raises:
        ConfigError: ``normalize`` is unknown, there are no choices, or a choice is empty.
    """
    if normalize not in get_args(Normalize):
        raise ConfigError(f"normalize {normalize!r}: allowed are {', '.join(get_args(Normalize))}")
    shared = all(isinstance(choice, str) for choice in choices)
    own = [list(map(str, texts)) for texts in ([choices] * len(prompts) if shared else choices)]
    if len(own) != len(prompts):
        raise ConfigError(
            f"{plural(len(prompts), 'prompt')} but choices for {len(own)}: give choices for each"
        )
    for prompt, texts in zip(prompts, own, strict=True):
        if not texts or not all(texts):
            raise ConfigError(f"the prompt that ends {prompt[-30:]!r} has no or an empty choice")
    before = [prompt for prompt, texts in zip(prompts, own, strict=True) for _ in texts]
    scores = iter(model.score([text for texts in own for text in texts], before))
    best = []
    for texts in own:
        worth = [_worth(next(scores), normalize) for _ in texts]
        best.append(worth.index(max(worth)))
    return best


def answer(
    model: LanguageModel,
    prompts: Sequence[str],
    *,
    stop: str | Sequence[str] = "\n",
    max_new_tokens: int = 32,
) -> list[str]:
    """Generates the greedy continuation of each prompt up to a stop string, stripped.

    Args:
        model: The model that generates the answers.
        prompts: The prompts.
        stop: Stop string, in addition to the model's end token.
        max_new_tokens: Maximum length of an answer in tokens.
    """
    ends = tuple(filter(None, [stop] if isinstance(stop, str) else stop))
    asked = [
        GenerationRequest(p, max_new_tokens=max_new_tokens, temperature=0.0, stop=ends)
        for p in prompts
    ]
    return [continuations[0].text.strip() for continuations in model.generate(asked)]


@dataclasses.dataclass(frozen=True)
class Demonstrations:
    r"""The pool and the format of few-shot prompts.

    Attributes:
        pool: The examples.
        template: Template of examples and queries.
        match_field: Field that examples share with the query, such as the rule they follow.
        seed: Random seed for the choice of examples.

    Example:
        >>> pool = [{"input": a, "output": a} for a in "aa"]
        >>> Demonstrations(pool).prompts([{"input": "b"}], k=2)
        ['a -> a\na -> a\nb ->']
    """

    pool: Sequence[Example]
    template: Template = Template()
    match_field: str | None = None
    seed: int = 0

    def prompts(self, queries: Sequence[Example], k: int) -> list[str]:
        """Returns a prompt per query, with ``k`` examples chosen by `select_demonstrations`.

        Args:
            queries: The queries; their answers may be unknown.
            k: Number of examples.

        Raises:
            ConfigError: ``k`` is negative.
            DataError: There are too few examples, or a field is missing.
        """
        groups = collections.defaultdict(list)
        for example in self.pool:
            groups[self._group(example)].append(example)
        made = []
        for index, query in enumerate(queries):
            alike = groups[self._group(query)]
            shown = select_demonstrations(
                alike, k, query, self.template, index=index, seed=self.seed
            )
            made.append(make_prompt(self.template, shown, query))
        return made

    def _group(self, example: Example) -> str:
        return _field(example, self.match_field) if self.match_field else ""


def accuracy(
    model: LanguageModel,
    demonstrations: Demonstrations,
    queries: Sequence[Example],
    *,
    shots: Sequence[int] = (0, 1, 2, 4, 8),
    choices: Sequence[str] | None = None,
    normalize: Normalize = "none",
    max_new_tokens: int = 32,
) -> list[FewShotResult]:
    """Computes the fraction of queries answered correctly, for each number of examples.

    Args:
        model: The model.
        demonstrations: Pool and format of prompts.
        queries: Queries with answers.
        shots: Numbers of examples; fewer examples are a prefix of more.
        choices: The possible answers, ranked by log-probability; None generates answers.
        normalize: Normalization of choices, see `rank_choices`.
        max_new_tokens: Maximum length of a generated answer in tokens.

    Raises:
        ConfigError: A setting is invalid.
        DataError: There are no queries, an answer or field is missing, or there are too few
            examples.
    """
    template = demonstrations.template
    if not queries:
        raise DataError("there are no queries to answer")
    if not shots or min(shots) < 0:
        raise ConfigError(f"shots {tuple(shots)}: numbers from 0 are needed")
    references = [_field(query, template.answer).strip() for query in queries]
    # Format all prompts before the first answer, so that errors come early.
    asked = [demonstrations.prompts(queries, k) for k in shots]
    rows = []
    for k, made in zip(shots, asked, strict=True):
        if choices is None:
            predictions = answer(model, made, stop=template.stop, max_new_tokens=max_new_tokens)
        else:
            led = [template.lead + choice for choice in choices]
            predictions = [choices[i].strip() for i in rank_choices(model, made, led, normalize)]
        rows.append(score_answers(k, predictions, references))
    return rows


def _worth(score: TextScore, normalize: Normalize) -> float:
    if normalize == "none":
        return score.log_prob
    return score.log_prob / max(1, len(score.tokens) if normalize == "tokens" else score.bytes)


def _fill(parts: Sequence[tuple[str, str | None]], example: Example) -> str:
    return "".join(text + (_field(example, name) if name else "") for text, name in parts)


def _field(example: Example, name: str) -> str:
    if name not in example:
        raise DataError(f"an example has no field {name!r}: it has {', '.join(example) or 'none'}")
    return example[name]


def _shuffled(count: int, draw: random.Random) -> Iterator[int]:
    """Yields the numbers below ``count`` in random order, lazily."""
    moved: dict[int, int] = {}
    for i in range(count):
        j = draw.randrange(i, count)
        yield moved.get(j, j)
        moved[j] = moved.get(i, i)
