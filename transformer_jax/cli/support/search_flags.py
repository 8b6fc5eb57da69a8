"""Flags to study search: exhaustive search, and the tree of beam search."""

import dataclasses
from typing import TYPE_CHECKING, Annotated

from transformer_jax.cli.output import check_file, writing, wrote
from transformer_jax.core.config_fields import Configuration, OutputPath, Range
from transformer_jax.core.errors import ConfigError

if TYPE_CHECKING:
    from transformer_jax.decoding.generation_config import GenerationConfig
    from transformer_jax.decoding.inspect_search import BeamSearcher
    from transformer_jax.decoding.partial_text import GenerationSequence

__all__ = ["SearchFlags"]

_MOST_DRAWN = 16  # beams of a tree: a step has as many continuations as their square


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchFlags(Configuration, group="--"):
    """Exhaustive search, and a picture of beam search."""

    exhaustive: Annotated[int, Range(1, 1000)] | None = None
    """Search all texts of at most this many tokens (at most a million texts), instead of beam
    search."""
    beam_tree: OutputPath | None = None
    """Output file of the tree of beam search for the first text: .png, .svg or .html."""

    def check_search(self, **others: bool) -> None:
        """Refuses flags of other searches.

        Args:
            **others: Whether each other flag is given, by name.

        Raises:
            ConfigError: Two flags exclude each other, or the file has no suffix of a picture.
        """
        from transformer_jax.visual.figures import SUFFIXES

        check_file("--beam-tree", self.beam_tree, SUFFIXES)
        if self.exhaustive is not None:
            others |= {"beam_tree": self.beam_tree is not None}
            for name, given in others.items():
                if given:
                    flag = name.replace("_", "-")
                    raise ConfigError(
                        f"--exhaustive and --{flag} exclude each other: leave one out"
                    )

    def draw_tree(
        self,
        title: str,
        searcher: "BeamSearcher",
        sequence: "GenerationSequence",
        config: "GenerationConfig",
    ) -> None:
        """Draws the tree of a beam search into the file of ``--beam-tree``.

        Args:
            title: Title of the picture, such as the source.
            searcher: The model and its tokenizer.
            sequence: The prompt or the source.
            config: The beam search.

        Raises:
            ConfigError: There are more beams than a picture can show.
        """
        from transformer_jax.decoding.inspect_search import tree_of_beams
        from transformer_jax.visual.beam_tree_picture import plot_beam_tree

        assert self.beam_tree is not None
        if config.num_beams > _MOST_DRAWN:
            raise ConfigError(f"--beam-tree draws 2 to {_MOST_DRAWN} beams, not {config.num_beams}")
        tree = tree_of_beams(searcher, sequence, config)
        with writing("--beam-tree", self.beam_tree):
            plot_beam_tree(tree, self.beam_tree, title=title)
        wrote(self.beam_tree)
