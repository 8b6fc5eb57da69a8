"""Losses of sentence-transformers and their gradients, on drawn vectors.

python -m tests.parity.sentence_losses   # stores them, needs sentence-transformers
"""

import json
import pathlib
from typing import Any

import numpy as np

STORED = pathlib.Path(__file__).with_name("sentence_losses.json")
WIDTHS = (8, 4, 2)
# Name: the loss here with its settings, the number of texts of an example, and whether labels.
CASES: dict[str, tuple[dict[str, Any], int, bool]] = {
    "cosine": ({"loss": "cosine"}, 2, True),
    "cosent": ({"loss": "cosent"}, 2, True),
    "ranking": ({"loss": "ranking"}, 2, False),
    "hard negatives": ({"loss": "ranking"}, 4, False),
    "symmetric": ({"loss": "ranking", "symmetric": True}, 2, False),
    "products": ({"loss": "ranking", "compare": "dot", "scale": 1.0}, 3, False),
    "Matryoshka of cosine": ({"loss": "cosine", "widths": WIDTHS}, 2, True),
    "Matryoshka of cosent": ({"loss": "cosent", "widths": WIDTHS}, 2, True),
    "Matryoshka of ranking": ({"loss": "ranking", "widths": WIDTHS}, 3, False),
}


def drawn(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns vectors ``[6 K 8]`` and labels ``[6]`` of a case."""
    rng = np.random.default_rng([*CASES].index(name))
    vectors = rng.normal(size=(6, CASES[name][1], 8)).astype(np.float32)
    return vectors, np.round(rng.uniform(size=6), 1).astype(np.float32)


def theirs(name: str) -> tuple[float, np.ndarray]:
    """Returns the loss of sentence-transformers, and its gradient with respect to the vectors."""
    import torch
    from sentence_transformers import losses, util

    class Given(torch.nn.Module):
        """Returns the vectors of its input, as an encoder that reads none."""

        def forward(self, features):
            return {"sentence_embedding": features["vectors"]}

        __getitem__ = lambda self, index: self
        get_sentence_embedding_dimension = get_embedding_dimension = lambda self: 8

    settings, model = CASES[name][0], Given()
    made = {
        "cosine": lambda: losses.CosineSimilarityLoss(model),
        "cosent": lambda: losses.CoSENTLoss(model),
        "ranking": lambda: (
            losses.MultipleNegativesSymmetricRankingLoss(model)
            if settings.get("symmetric")
            else losses.MultipleNegativesRankingLoss(
                model,
                scale=settings.get("scale", 20.0),
                similarity_fct=util.dot_score if settings.get("compare") else util.cos_sim,
            )
        ),
    }
    loss = made[settings["loss"]]()
    if widths := settings.get("widths"):
        loss = losses.MatryoshkaLoss(model, loss, list(widths))
    vectors, labels = drawn(name)
    leaf = torch.tensor(vectors, requires_grad=True)
    features = [{"vectors": leaf[:, place]} for place in range(leaf.shape[1])]
    value = loss(features, torch.tensor(labels))
    value.backward()
    return value.item(), leaf.grad.numpy()


def main() -> None:
    """Stores all cases."""
    found = [(name, theirs(name)) for name in CASES]
    kept = {name: [value, slope.astype(float).round(9).tolist()] for name, (value, slope) in found}
    STORED.write_text(json.dumps(kept) + "\n", "utf-8")


if __name__ == "__main__":
    main()
