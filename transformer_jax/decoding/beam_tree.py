"""The tree of a beam search: the continuations that it kept, ended and pruned."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.decoding.options import SpecialTokens

__all__ = ["BeamNode", "BeamTree", "LiveBeams", "beam_tree"]

# Function from prefixes of texts to log-probabilities of the token after each.
NextLogProbs = Callable[[Sequence[tuple[int, ...]]], Float[np.ndarray, "n V"]]
Fate = Literal["kept", "ended", "pruned"]


class BeamNode(NamedTuple):
    """A continuation that beam search compared with others.

    Attributes:
        token: Its last token.
        parent: Index of the node that it continues; -1 is the root.
        step: The step that added the token, from 1.
        log_prob: Log-probability of all its tokens.
        fate: ``kept`` as a beam, ``ended`` as a finished hypothesis, or ``pruned``.
        best: Whether it is on the path of the best text.
    """

    token: int
    parent: int
    step: int
    log_prob: float
    fate: Fate
    best: bool


@dataclasses.dataclass(frozen=True)
class BeamTree:
    """The continuations that a beam search compared, step by step.

    Attributes:
        num_beams: B.
        nodes: The nodes by step, and within a step by probability, most probable first.
        names: The name of each token.
    """

    num_beams: int
    nodes: tuple[BeamNode, ...]
    names: dict[int, str]

    def tokens(self, node: int) -> tuple[int, ...]:
        """Returns the tokens from the root to a node."""
        path: list[int] = []
        while node >= 0:
            path.append(self.nodes[node].token)
            node = self.nodes[node].parent
        return tuple(reversed(path))


class LiveBeams(NamedTuple):
    """The live beams of one search after each step.

    Attributes:
        tokens: The token that each beam wrote.
        parents: The beam of the previous step that it continues.
        limit: Largest number of tokens in a text.
        cut: Whether beams at the limit count as texts; otherwise only ends do.
    """

    tokens: Int[np.ndarray, "T M"]
    parents: Int[np.ndarray, "T M"]
    limit: int
    cut: bool


def beam_tree(
    live: LiveBeams,
    next_log_probs: NextLogProbs,
    special: SpecialTokens,
    best: Sequence[int],
    name: Callable[[Sequence[int]], Sequence[str]],
) -> BeamTree:
    """Returns the tree of a beam search, with the B most probable continuations of each beam.

    A step compares the B continuations of each of B beams, and keeps the best B that do not end.
    Ends among the best become finished hypotheses. Bishop and Bishop 2024, section 12.3.2.

    Args:
        live: The live beams of the search.
        next_log_probs: The model.
        special: End tokens, and tokens that are never written.
        best: Tokens of the best text.
        name: Function from a token to its name.
    """
    M = live.tokens.shape[1]
    ends, never = list(special.ends), list(special.suppress_tokens)
    nodes: list[BeamNode] = []
    beams: list[tuple[int, tuple[int, ...], float]] = [(-1, (), 0.0)]  # node, tokens, log_prob
    for t, (tokens, parents) in enumerate(zip(live.tokens, live.parents, strict=True)):
        log_probs = next_log_probs([text for _, text, _ in beams])
        log_probs[:, never] = -np.inf
        totals = log_probs + np.array([total for *_, total in beams])[:, None]
        last = t + 1 >= live.limit and not live.cut
        ways = [] if last else [*zip(parents.tolist(), tokens.tolist(), strict=True)]
        kept = {way for way in ways if way[0] < len(beams) and np.isfinite(totals[way])}
        fates = _fates(totals, kept, ends, M, last=last)
        places, beams_before, beams = {}, beams, []
        for way in sorted(fates, key=lambda way: (-totals[way], way)):
            node, text, _ = beams_before[way[0]]
            text, total = (*text, way[1]), float(totals[way])
            on_path = text == tuple(best[: t + 1])
            places[way] = len(nodes)
            nodes.append(BeamNode(way[1], node, t + 1, total, fates[way], on_path))
        # In search order, by which the next step numbers its parents.
        for way in ways:
            if way in kept:
                beams.append((places[way], (*beams_before[way[0]][1], way[1]), float(totals[way])))
    written = sorted({node.token for node in nodes})
    return BeamTree(M, tuple(nodes), dict(zip(written, name(written), strict=True)))


def _fates(
    totals: Float[np.ndarray, "n V"],
    kept: set[tuple[int, int]],
    ends: Sequence[int],
    M: int,
    *,
    last: bool,
) -> dict[tuple[int, int], Fate]:
    """Returns the fate of the ``M`` best continuations of each beam, by beam and token."""
    most = np.sort(totals, axis=None)[::-1][:M][-1]
    fates: dict[tuple[int, int], Fate] = {}
    for row, values in enumerate(totals):
        for token in np.argsort(-values, kind="stable")[:M].tolist():
            if np.isfinite(values[token]):
                ended = token in ends and values[token] >= most
                fates[row, token] = "ended" if ended else "pruned"
        if last:
            end = max(ends, key=lambda token: values[token])
            fates |= {(row, end): "ended"} if np.isfinite(values[end]) else {}
    return fates | dict.fromkeys(kept, "kept")
