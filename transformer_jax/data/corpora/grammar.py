"""Synchronous grammars, whose rules write a sentence in two languages at once."""

import random
from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

__all__ = ["Derivation", "Grammar", "Rule"]

Words = tuple[str, ...]
Pair = tuple[str, str]


class Rule(NamedTuple):
    """One expansion of a symbol; a part is a word, or the index of a child."""

    children: Words
    source: tuple[str | int, ...]
    target: tuple[str | int, ...]
    weight: float
    tag: str  # "kind:word", or "" for a word whose combinations do not matter
    join: str  # two kinds; words with these tags in the rule and its children form a pair


class Derivation(NamedTuple):
    """A derivation of a symbol in both languages, with the words that it uses."""

    source: Words
    target: Words
    tags: Words
    pairs: tuple[Pair, ...]


_Found = list[tuple[int, Derivation]]
_Memo = dict[tuple[str, int], _Found]


def _join(kinds: str, tags: Words) -> tuple[Pair, ...]:
    """All pairs of tags of the two kinds."""
    first, second = kinds[0], kinds[1]
    return tuple((a, b) for a in tags if a[0] == first for b in tags if b[0] == second)


def _numbered(text: str, children: Words) -> tuple[str | int, ...]:
    """Words unchanged, and symbols as their index among the children."""
    return tuple(
        children.index(word[1:-1]) if word[0] == "<" and word[1:-1] in children else word
        for word in text.split()
    )


@dataclass
class Grammar:
    """Rules by symbol; symbols are written ``<like this>``, and may not be recursive.

    Example:
        >>> grammar = Grammar()
        >>> grammar.rule("np", "o <n> <a>", "the <a> <n>")
        >>> for pt, en in [("carro", "car"), ("livro", "book")]:
        ...     grammar.rule("n", pt, en)
        >>> grammar.rule("a", "novo", "new")
        >>> grammar.count("np"), grammar.distinct("np")
        (2, 2)
        >>> [" ".join(d.target) for d in grammar.parse("np", ("o", "carro", "novo"))]
        ['the new car']
    """

    rules: dict[str, list[Rule]] = field(default_factory=dict)
    _choices: dict[str, tuple[list[float], list[Derivation | Rule]]] = field(default_factory=dict)
    _index: dict[str, dict[str, list[Rule]]] = field(default_factory=dict)

    def rule(
        self,
        symbol: str,
        source: str,
        target: str,
        weight: float = 1.0,
        *,
        tag: str = "",
        join: str = "",
    ) -> None:
        """Adds a rule; both sides must contain the same symbols, in any order."""
        children = tuple(word[1:-1] for word in source.split() if word[0] == "<")
        if not source or len(set(children)) < len(children):
            raise ValueError(f"{symbol}: empty source or a symbol twice in {source!r}")
        left, right = _numbered(source, children), _numbered(target, children)
        named = sorted(word[1:-1] for word in target.split() if word[0] == "<")
        if named != sorted(children):
            raise ValueError(f"{symbol}: the symbols of {source!r} and {target!r} differ")
        self.rules.setdefault(symbol, []).append(Rule(children, left, right, weight, tag, join))

    def copy(self, symbol: str, weights: Mapping[str, float]) -> None:
        """Adds, for each named symbol, a rule that expands ``symbol`` to it."""
        for child, weight in weights.items():
            if child in self.rules:
                self.rule(symbol, f"<{child}>", f"<{child}>", weight)

    @staticmethod
    def _combine(rule: Rule, children: list[Derivation]) -> Derivation:
        if rule.source == rule.target == (0,) and not rule.tag and not rule.join:
            return children[0]
        source: list[str] = []
        for part in rule.source:
            source.extend((part,) if isinstance(part, str) else children[part].source)
        target: list[str] = []
        for part in rule.target:
            target.extend((part,) if isinstance(part, str) else children[part].target)
        tags: Words = (rule.tag,) if rule.tag else ()
        pairs: tuple[Pair, ...] = ()
        for child in children:
            tags += child.tags
            pairs += child.pairs
        if rule.join:
            pairs += _join(rule.join, tags)
            tags = tuple(tag for tag in tags if tag[0] == rule.join[0] and rule.join == "na")
        return Derivation(tuple(source), tuple(target), tags, pairs)

    def sample(self, symbol: str, draw: random.Random) -> Derivation:
        """Samples a derivation: at every symbol, a rule in proportion to its weight."""
        ready = self._choices.get(symbol)
        if ready is None:  # rules of words only are combined once
            rules = self.rules[symbol]
            sums = list(accumulate(rule.weight for rule in rules))
            options = [rule if rule.children else self._combine(rule, []) for rule in rules]
            ready = self._choices[symbol] = sums, options
        sums, options = ready
        last = len(options) - 1
        chosen = options[min(bisect(sums, draw.random() * sums[-1]), last) if last else 0]
        if isinstance(chosen, Derivation):
            return chosen
        return self._combine(chosen, [self.sample(child, draw) for child in chosen.children])

    def _first(self, symbol: str) -> dict[str, list[Rule]]:
        """The rules of a symbol, by the first word that they write."""
        if symbol not in self._index:
            table: dict[str, list[Rule]] = {}
            for rule in self.rules[symbol]:
                head = rule.source[0]
                words = [head] if isinstance(head, str) else self._first(rule.children[head])
                for word in words:
                    table.setdefault(word, []).append(rule)
            self._index[symbol] = table
        return self._index[symbol]

    def parse(self, symbol: str, words: Words) -> list[Derivation]:
        """All derivations of exactly these words; one, if the grammar is unambiguous."""
        memo: _Memo = {}
        found = self._symbol_at(symbol, 0, words, memo)
        return [derivation for end, derivation in found if end == len(words)]

    def _symbol_at(self, symbol: str, start: int, words: Words, memo: _Memo) -> _Found:
        """Returns the possible ends of a symbol that starts here, with their derivations."""
        found = memo.get((symbol, start))
        if found is None:
            word = words[start] if start < len(words) else ""
            found = memo[symbol, start] = []
            for rule in self._first(symbol).get(word, ()):
                states: list[tuple[int, list[Derivation]]] = [(start, [])]
                for part in rule.source:
                    if isinstance(part, str):
                        states = [
                            (at + 1, before)
                            for at, before in states
                            if at < len(words) and words[at] == part
                        ]
                    else:
                        child = rule.children[part]
                        states = [
                            (end, [*before, derivation])
                            for at, before in states
                            for end, derivation in self._symbol_at(child, at, words, memo)
                        ]
                    if not states:
                        break
                found += [(end, self._combine(rule, children)) for end, children in states]
        return found

    def count(self, symbol: str) -> int:
        """Counts derivations: a sum over rules of products over children."""
        memo: dict[str, int] = {}

        def ways(name: str) -> int:
            if name not in memo:
                memo[name] = 0
                for rule in self.rules[name]:
                    product = 1
                    for child in rule.children:
                        product *= ways(child)
                    memo[name] += product
            return memo[name]

        return ways(symbol)

    def distinct(self, symbol: str) -> int:
        """Counts distinct sources without listing them.

        A deterministic automaton reads the sources word by word; its state is the set of everything
        that may follow. The result equals :meth:`count` if and only if no source has two
        derivations, and then each source has one translation.
        """
        memo: dict[frozenset[Words], int] = {}

        def after(state: frozenset[Words]) -> dict[str, set[Words]]:
            found: dict[str, set[Words]] = {}
            stack = list(state)
            while stack:
                head, *rest = stack.pop()
                if head[0] != "<":
                    found.setdefault(head, set()).add(tuple(rest))
                    continue
                for rule in self.rules[head[1:]]:
                    written = (
                        p if isinstance(p, str) else f"<{rule.children[p]}" for p in rule.source
                    )
                    stack.append((*written, *rest))
            return found

        def size(state: frozenset[Words]) -> int:
            if state not in memo:
                ends = () in state
                memo[state] = ends + sum(
                    size(frozenset(following)) for following in after(state - {()}).values()
                )
            return memo[state]

        return size(frozenset({(f"<{symbol}",)}))

    def words(self, symbol: str) -> tuple[set[str], set[str]]:
        """The words of either language that may occur in expansions of a symbol."""
        seen, new = {symbol}, [symbol]
        source: set[str] = set()
        target: set[str] = set()
        while new:
            for rule in self.rules[new.pop()]:
                source.update(part for part in rule.source if isinstance(part, str))
                target.update(part for part in rule.target if isinstance(part, str))
                new.extend(set(rule.children) - seen)
                seen.update(rule.children)
        return source, target
