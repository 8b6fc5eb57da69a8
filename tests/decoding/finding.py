"""A search in one call, for tests of models and of search."""

from transformer_jax.decoding.generation_config import GenerationConfig
from transformer_jax.decoding.search import search
from transformer_jax.decoding.search_plan import search_settings
from transformer_jax.decoding.search_state import PromptContext, SearchRows

GREEDY = GenerationConfig(normalization="none")


def find(model, cache, rows, special, config=GREEDY, *, length, sizes=(), **values):
    """Returns the texts that a search finds; ``values`` replace those of the configuration."""
    vocab = values.pop("vocab")
    settings = search_settings(
        config, special, vocab=vocab, length=length, sampled=rows.keys is not None
    )
    plan, settings = settings[0], settings[1]._replace(**values)
    if plan.reads_text and rows.context is None:  # no prompt: the text alone counts
        zeros = 0 * rows.last
        rows = rows._replace(context=PromptContext(zeros[:, None][:, :0], 0, zeros))
    return search(model, cache, rows, plan, settings, length=length, sizes=sizes)


__all__ = ["GREEDY", "SearchRows", "find"]
