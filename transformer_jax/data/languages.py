"""Languages of a translator: directions, and the special tokens around both sides."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.core.json_types import Json

__all__ = ["DEFAULT_DIRECTION", "Direction", "Frame", "LanguageTags"]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class Direction(NamedTuple):
    """A source language and a target language; None is the translator's default.

    Example:
        >>> Direction.parse("de-en"), str(Direction("eng_Latn", "deu_Latn"))
        (Direction(source='de', target='en'), 'eng_Latn-deu_Latn')
    """

    source: str | None = None
    target: str | None = None

    def __str__(self) -> str:
        return f"{self.source or '?'}-{self.target or '?'}"

    @classmethod
    def parse(cls, name: str, where: str = "") -> "Direction":
        """Parses a direction such as ``de-en``.

        Args:
            name: Two different languages, each of letters, digits and underscores.
            where: Name of the setting, for messages.

        Raises:
            ConfigError: The name is malformed.
        """
        languages = name.split("-")
        if len(languages) != 2 or not all(map(_NAME.fullmatch, languages)):
            problem = "must be two languages with a hyphen between them, such as de-en or pt_BR-en"
        elif languages[0] == languages[1]:
            problem = "must be two different languages"
        else:
            return cls(*languages)
        raise ConfigError(f"{where}{': ' * bool(where)}the pair {name!r} {problem}")


DEFAULT_DIRECTION = Direction()


class Frame(NamedTuple):
    """The special tokens of one direction.

    Attributes:
        before: Ids before the text of a source.
        after: Ids after it, including EOS.
        begins: First ids of the target, after the decoder's start token.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    begins: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class LanguageTags:
    """The languages of a translator, and the special tokens of each direction.

    The three templates hold ids; ``"from"`` stands for the tag of the source language and ``"to"``
    for the tag of the target language:

    ============================  ==============  =================  ==========
    translator                    ``before``      ``after``          ``begins``
    ============================  ==============  =================  ==========
    tag on the source             ``("to",)``     ``(eos,)``         ``()``
    tag as first target token     ``()``          ``(eos,)``         ``("to",)``
    no tag                        ``()``          ``(eos,)``         ``()``
    mBART-50, M2M100, NLLB        ``("from",)``   ``(eos,)``         ``("to",)``
    NLLB, legacy order            ``()``          ``(eos, "from")``  ``("to",)``
    ============================  ==============  =================  ==========

    Attributes:
        tags: The id of each language's tag, in the order used in messages.
        before: Template of the tokens before a source.
        after: Template of the tokens after a source.
        begins: Template of the first tokens of a target.
        sources: Source languages; None is all of them.
        targets: Target languages; None is all of them.
        directions: The trained directions; None if unknown.
        default: The languages to use if a call names none.
        form: The pattern of the tokens of languages, such as ``<2de>`` for ``de``.

    Sources: Johnson et al. 2017 (the tag on the source), Fan et al. 2021 (M2M100).

    Example:
        >>> tags = LanguageTags({"de": 7, "en": 8}, ("from",), (2,), ("to",))
        >>> tags.frame(Direction("de", "en"))
        Frame(before=(7,), after=(2,), begins=(8,))
    """

    tags: Mapping[str, int]
    before: tuple[str | int, ...]
    after: tuple[str | int, ...]
    begins: tuple[str | int, ...] = ()
    sources: tuple[str, ...] | None = None
    targets: tuple[str, ...] | None = None
    directions: frozenset[Direction] | None = None
    default: Direction = DEFAULT_DIRECTION
    form: str = "<2{}>"

    @property
    def languages(self) -> tuple[str, ...]:
        """The names of all languages."""
        return tuple(self.tags)

    @property
    def ids(self) -> frozenset[int]:
        """The ids of all tags, which never occur in encoded text."""
        return frozenset(self.tags.values())

    @property
    def size_of_begins(self) -> int:
        """The number of first ids of a target, the same for all directions."""
        return len(self.begins)

    @property
    def size_of_sides(self) -> int:
        """The number of tokens before and after a source, the same for all directions."""
        return len(self.before) + len(self.after)

    def token(self, language: str) -> str:
        """Returns the name of the token of a language, known or new."""
        return self.form.format(language)

    def trained_on(
        self, directions: Iterable[Direction], tags: Mapping[str, int]
    ) -> "LanguageTags":
        """Returns the languages after training on further directions.

        Args:
            directions: The directions. One from a language to itself, for copies, makes it a
                language of both sides, but is not a direction of translation.
            tags: The ids of the tags of all languages.

        Example:
            >>> tags = LanguageTags({"de": 7}, ("to",), (2,), (), ("de",), ("de",), frozenset())
            >>> grown = tags.trained_on([Direction("de", "en")], {"de": 7, "en": 8})
            >>> grown.targets, [str(direction) for direction in grown.directions]
            (('de', 'en'), ['de-en'])
        """
        ways = list(directions)
        named = (way for way in ways if way.source != way.target)
        more = lambda old, new: None if old is None else tuple(dict.fromkeys((*old, *new)))
        return dataclasses.replace(
            self,
            tags=dict(tags),
            sources=more(self.sources, (way.source for way in ways if way.source)),
            targets=more(self.targets, (way.target for way in ways if way.target)),
            directions=None if self.directions is None else self.directions.union(named),
        )

    def complete(self, direction: Direction) -> Direction:
        """Fills in the defaults of a direction; a language that is not needed may stay None.

        A side has a default if the translator names one, or knows only one language.

        Raises:
            ConfigError: A language is unknown, or is missing but needed for a tag.
        """
        templates = (*self.before, *self.after, *self.begins)
        return Direction(
            self._side("from", direction.source, self.default.source, "from" in templates),
            self._side("to", direction.target, self.default.target, "to" in templates),
        )

    def frame(self, direction: Direction) -> Frame:
        """Returns the tokens of a direction.

        Raises:
            ConfigError: A language is unknown, or is missing but needed for a tag.
        """
        direction = self.complete(direction)
        return Frame(*(self._filled(t, direction) for t in (self.before, self.after, self.begins)))

    def sides(self, direction: Direction) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the tokens around a source; languages needed only for targets may be missing.

        Raises:
            ConfigError: A language is unknown, or is missing but needed in a source.

        Example:
            >>> tags = LanguageTags({"de": 7, "en": 8}, ("from",), (2,), ("to",))
            >>> tags.sides(Direction("de"))
            ((7,), (2,))
        """
        before, after, _ = dataclasses.replace(self, begins=()).frame(direction)
        return before, after

    def is_trained(self, direction: Direction) -> bool:
        """Returns whether a direction was trained, as far as known; False means zero-shot."""
        if self.directions is None or None in direction:
            return True
        return direction in self.directions

    def to_dict(self, name: Callable[[int], str]) -> dict[str, Json]:
        """Returns the form to store, in which ids are replaced by token names.

        Args:
            name: Function from an id to its name.
        """

        def named(item: str | int) -> str | dict[str, str]:
            return {"language": item} if isinstance(item, str) else name(item)

        templates = {key: [*map(named, getattr(self, key))] for key in _TEMPLATES}
        tags = {language: name(id) for language, id in self.tags.items()}
        rest: dict[str, Json] = {
            key: list(value)
            for key in ("sources", "targets")
            if (value := getattr(self, key)) is not None
        }
        if self.directions is not None:
            rest["directions"] = sorted(map(str, self.directions))
        if self.default != DEFAULT_DIRECTION:
            rest["default"] = list(self.default)
        return {"tags": tags, **templates, **rest, "form": self.form}

    @classmethod
    def of(cls, fields: Any, token_id: Callable[[str], int]) -> "LanguageTags":
        """Restores the tags from their stored form.

        Args:
            fields: The result of :meth:`to_dict`.
            token_id: Function from a name to its id; raises DataError if there is none.

        Raises:
            DataError: The form is damaged, or names a token that does not exist.

        Example:
            >>> tags = LanguageTags({"de": 7, "en": 8}, ("to",), (2,), (), directions=frozenset())
            >>> stored = tags.to_dict(str)
            >>> stored["before"], stored["after"], LanguageTags.of(stored, int) == tags
            ([{'language': 'to'}], ['2'], True)
        """

        def read(item: Any) -> str | int:
            if isinstance(item, dict):
                if item.get("language") not in ("from", "to"):
                    raise ValueError
                return str(item["language"])
            return token_id(item)

        def names(key: str) -> tuple[str, ...] | None:
            return None if fields.get(key) is None else tuple(map(str, fields[key]))

        try:
            tags = {str(k): token_id(v) for k, v in fields["tags"].items()}
            templates = {key: tuple(map(read, fields[key])) for key in _TEMPLATES}
            trained = names("directions")
            return cls(
                tags,
                **templates,
                sources=names("sources"),
                targets=names("targets"),
                directions=None if trained is None else frozenset(map(Direction.parse, trained)),
                default=Direction(*fields.get("default", ())),
                form=str(fields.get("form", cls.form)),
            )
        except (AttributeError, ConfigError, KeyError, TypeError, ValueError):
            raise DataError("the stored languages of the tokenizer are damaged") from None

    def _side(self, flag: str, name: str | None, default: str | None, needed: bool) -> str | None:
        """Returns the language of one side."""
        known = (self.sources if flag == "from" else self.targets) or self.languages
        name = name or default or (known[0] if len(known) == 1 else None)
        if name in known or (name is None and not needed):
            return name
        side = "source" if flag == "from" else "target"
        problem = f": {name} is not a {side} language of this model" if name else " is missing"
        raise ConfigError(f"--{flag}{problem}: allowed are {listed(known)}")

    def _filled(self, template: Sequence[str | int], direction: Direction) -> tuple[int, ...]:
        names = {"from": direction.source, "to": direction.target}
        return tuple(self.tags[names[i] or ""] if isinstance(i, str) else i for i in template)


_TEMPLATES = ("before", "after", "begins")
_MOST_LISTED = 30


def listed(languages: Iterable[str]) -> str:
    """Returns languages for a message, limited in number.

    Example:
        >>> listed(["de", "en"]), listed(map(str, range(200)))[-21:]
        ('de, en', '28, 29 and 170 others')
    """
    names = list(languages)
    more = len(names) - _MOST_LISTED
    return ", ".join(names[:_MOST_LISTED]) + (f" and {more} others" if more > 0 else "")
