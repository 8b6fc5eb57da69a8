"""Our case for sentence encoders: steps of ``finetune similarity`` on pairs with scores."""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from benchmarks.ours_steps import training_steps
from benchmarks.worker import serve
from transformer_jax.data.text_similarities import (
    SimilarityData,
    SimilarityOptions,
    open_similarities,
)
from transformer_jax.inference.pretrained import open_pretrained
from transformer_jax.recipes.tasks.similarity_task import (
    ExampleBatching,
    SimilarityLoss,
    similarity,
)


def steps_case(
    folder: str, train: str, count: int
) -> tuple[Callable[[int], object], dict[str, Any]]:
    """Returns a function that trains any number of steps, on so many batches in turn."""
    opened = open_pretrained(folder)
    read = SimilarityOptions(validation_size=0)
    data = open_similarities(SimilarityData(train, read=read), "scores")
    task = similarity(
        data,
        opened.facts.transformer,
        opened.tokenizer,
        loss=SimilarityLoss("cosine", label_range=(0.0, 5.0)),
        sentence=opened.facts.sentence,
        batching=ExampleBatching(32),
        template=opened.tokenizer.template,
    )
    plan: Any = task.train.plan
    batches = [task.train.make_batch(plan.batch(step)) for step in range(count)]
    with_dropout = lambda model, batch, key: task.objective(model, batch, jax.random.key(0))
    width = opened.facts.transformer.d_model
    run, facts = training_steps(task.model(nnx.Rngs(0)), with_dropout, width, batches)
    return run, {**facts, "non_padding": round(plan.non_padding_fraction, 3)}


if __name__ == "__main__":
    serve({"steps": steps_case})
