"""The directions of calls: one for all texts, or one per text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.data.languages import Direction

if TYPE_CHECKING:
    from transformer_jax.inference.pretrained import Pretrained

__all__ = ["DirectedPredictor", "Languages"]

Languages: TypeAlias = str | Sequence[str] | None  # one for all texts, or one per text


class DirectedPredictor:
    """Mixin: the languages of a translator."""

    tokenizer: Any
    opened: "Pretrained"

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages of a multilingual translator; empty otherwise."""
        tags = self.tokenizer.languages
        return () if tags is None else tags.languages

    def _direction(self, from_: str | None, to: str | None) -> Direction:
        return self.opened.facts.direction(self.tokenizer, Direction(from_, to))

    def directions(self, from_: Languages, to: Languages, count: int) -> list[Direction]:
        """Returns the directions of ``count`` texts.

        Raises:
            ConfigError: A list of languages has the wrong length, or a language is unknown.
        """
        sides: list[Sequence[str | None]] = []
        for name, side in (("from_", from_), ("to", to)):
            each = [side] * count if side is None or isinstance(side, str) else list(side)
            if len(each) != count:
                raise ConfigError(
                    f"{name} names {plural(len(each), 'language')} for {plural(count, 'text')}: "
                    f"give one, or one per text"
                )
            sides.append(each)
        pairs = list(zip(*sides, strict=True))
        known = {pair: self._direction(*pair) for pair in dict.fromkeys(pairs)}
        return [known[pair] for pair in pairs]
