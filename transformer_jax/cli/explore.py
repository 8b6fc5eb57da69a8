"""``transformer-jax explore``: a page that runs a model in the browser."""

import dataclasses
from pathlib import Path

import tyro

from transformer_jax.cli.output import check_file, wrote
from transformer_jax.cli.support.run_command import CheckpointCommand
from transformer_jax.core.config_fields import OutputPath
from transformer_jax.visual.model_page import WeightType

__all__ = ["ExploreCommand"]


@dataclasses.dataclass(frozen=True)
class ExploreCommand(CheckpointCommand):
    """Write one HTML file that runs a model in the browser: translators, language models, encoders.

    It computes with this model's parameters and tokenizer, without Python and without a network.
    """

    run: tyro.conf.Positional[Path]
    """Run directory or Hugging Face folder, of up to 60 million parameters."""
    output: OutputPath = Path("explore.html")
    """HTML file."""
    text: str = ""
    """First text on the page."""
    weights: WeightType = "float16"
    """Type of the matrices in the file; int8 halves it and changes the results."""

    def __call__(self) -> int:
        """Writes the file."""
        check_file("--output", self.output, (".html",))
        from transformer_jax.inference.exploring import ExplorePage, explored, kind_of
        from transformer_jax.inference.pretrained import Pretrained, read_facts
        from transformer_jax.visual.model_page import explore_html

        facts = read_facts(self.run, self.checkpoint, self.opening())
        kind_of(facts)
        page = ExplorePage(explore_html(explored(Pretrained.load(facts), self.text), self.weights))
        page.html(self.output)
        wrote(self.output)
        return 0
