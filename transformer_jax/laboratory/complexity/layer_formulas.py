"""Formulas of a layer's operations, sequential depth and path length: Vaswani et al. 2017, table 1.

The layers are those of table 1 of Vaswani et al. 2017, on one text of ``n`` vectors of size ``d``.
Attention is ``softmax(q kᵀ / √d) v`` with one head: the table counts no projections, which would
add ``4 n d²`` multiply-adds. Convolutions are causal and have no bias.
"""

import dataclasses
from typing import Literal, NamedTuple

from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional.local_attention import local_blocks

__all__ = ["GROWTH", "KINDS", "Growth", "Kind", "Layer"]

Kind = Literal[
    "self-attention", "restricted self-attention", "recurrent", "convolution", "dilated convolution"
]


class Growth(NamedTuple):
    """The growth of a kind of layer, as in table 1 and exactly.

    Attributes:
        operations: Operations of a layer.
        multiply_adds: The same, exactly.
        sequential: Number of operations that wait for one another.
        path: Longest path between two positions.
        path_length: The same, exactly.
    """

    operations: str
    multiply_adds: str
    sequential: str
    path: str
    path_length: str


GROWTH: dict[Kind, Growth] = {
    "self-attention": Growth("O(n² d)", "2 n² d", "O(1)", "O(1)", "1"),
    "restricted self-attention": Growth(
        "O(r n d)", "2 d (r n - w (w + 1)), w = (r - 1) / 2", "O(1)", "O(n / r)", "⌈(n - 1) / w⌉"
    ),
    "recurrent": Growth("O(n d²)", "2 n d²", "O(n)", "O(n)", "n - 1"),
    "convolution": Growth(
        "O(k n d²)", "d² (k n - k (k - 1) / 2)", "O(1)", "O(n / k)", "⌈(n - 1) / (k - 1)⌉"
    ),
    # The second layer of a stack; layer i has dilation kⁱ.
    "dilated convolution": Growth(
        "O(k n d²)", "d² (k n - k² (k - 1) / 2)", "O(1)", "O(log_k n)", "⌈log_k n⌉"
    ),
}
KINDS = tuple(GROWTH)
ATTENTION = ("self-attention", "restricted self-attention")
CONVOLUTIONS = ("convolution", "dilated convolution")

# Work on one pair of a query and a key, in addition to the products, as XLA lists it: maximum,
# subtract, sum, divide; with a window, its comparisons and the choice between score and mask, some
# of which XLA does twice.
SOFTMAX, WINDOW, BLOCKS = 4, 8, 5


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer and its sizes.

    Attributes:
        kind: One of :data:`KINDS`.
        n: Number of positions of the text.
        d: Size of each vector.
        extent: Kernel width ``k`` of a convolution, or neighbourhood ``r`` of restricted
            self-attention, centered on the position itself; None for the other kinds.

    Raises:
        ArgumentError: A size that the layer does not allow.

    Example:
        >>> layer = Layer("restricted self-attention", 64, 512, 9)
        >>> layer.multiply_adds, layer.path_length
        (569344, 16)
    """

    kind: Kind
    n: int
    d: int
    extent: int | None = None

    def __post_init__(self) -> None:
        kind, extent = self.kind, self.extent
        restricted, convolution = kind == "restricted self-attention", kind in CONVOLUTIONS
        for wrong, problem in (
            (self.n < 1, f"n is {self.n}: at least 1"),
            (self.d < 1, f"d is {self.d}: at least 1"),
            ((extent is None) == (restricted or convolution), f"extent is {extent}: only "
             "restricted self-attention and convolutions have one"),
            (convolution and extent is not None and extent < 2,
             f"k is {extent}: at least 2, or a layer reads only one position"),
            (restricted and extent is not None and (extent < 3 or extent % 2 == 0),
             f"r is {extent}: an odd number from 3 on, with the position itself in the middle"),
        ):  # fmt: skip
            if wrong:
                raise ArgumentError(f"{kind}: {problem}")

    @property
    def name(self) -> str:
        """The kind with ``k`` or ``r``.

        Example:
            >>> Layer("convolution", 64, 512, 3).name
            'convolution, k = 3'
        """
        letter = "k" if self.kind in CONVOLUTIONS else "r"
        return self.kind if self.extent is None else f"{self.kind}, {letter} = {self.extent}"

    @property
    def reach(self) -> int:
        """Returns the reach ``w`` of restricted self-attention on either side."""
        return ((self.extent or 1) - 1) // 2

    @property
    def dilation(self) -> int:
        """Distance between the taps of a kernel, as in the second layer of a dilated stack.

        If one layer sees the complete text, there is no second one.
        """
        dilated = self.kind == "dilated convolution" and self.path_length > 1
        return (self.extent or 1) if dilated else 1

    @property
    def multiply_adds(self) -> int:
        """Multiply-add operations that the definition of the layer requires.

        Positions before the text do not count.
        """
        n, d, k = self.n, self.d, self.extent or 1
        if self.kind == "self-attention":
            return 2 * n * n * d
        if self.kind == "restricted self-attention":
            w = min(self.reach, n - 1)
            return 2 * d * ((2 * w + 1) * n - w * (w + 1))
        if self.kind == "recurrent":
            return 2 * n * d * d
        return d * d * sum(max(0, n - j * self.dilation) for j in range(k))

    @property
    def flops(self) -> int:
        """Operations of the program, as XLA counts them: two per multiply-add, and the rest.

        Restricted self-attention computes blocks of queries, and some scores that are not used;
        convolutions multiply the positions before the text, which are zeros.
        """
        n, d = self.n, self.d
        if self.kind == "recurrent":
            return 2 * self.multiply_adds + n * d
        if self.kind in CONVOLUTIONS:
            return 2 * (self.extent or 1) * n * d * d
        pairs, each, rows = n * n, SOFTMAX, n
        if self.kind == "restricted self-attention":
            blocks, queries, keys = local_blocks(n, self.reach)
            pairs, rows = blocks * queries * keys, blocks * queries
            each += BLOCKS if blocks > 1 else WINDOW
        return 4 * pairs * d + each * pairs + rows * d

    @property
    def sequential_depth(self) -> int:
        """Products that wait for one another: those of scores and values, or one per position."""
        return {"recurrent": self.n}.get(self.kind, 2 if self.kind in ATTENTION else 1)

    @property
    def path_length(self) -> int:
        """Layers until every output depends on every (for causal layers, every earlier) input.

        A recurrent layer counts its steps. The result is at least 1.
        """
        n, k = self.n, self.extent or 1
        if self.kind == "self-attention":
            return 1
        if self.kind == "dilated convolution":
            layers, seen = 1, k
            while seen < n:
                layers, seen = layers + 1, seen * k
            return layers
        step = {"recurrent": 1, "convolution": k - 1}.get(self.kind, self.reach)
        return max(1, -(-(n - 1) // step))

    @property
    def numbers(self) -> int:
        """Smallest number of values in memory while both passes are timed.

        Inputs, parameters and their gradients; for attention also the weights, twice, and their
        gradient.
        """
        n, d, k = self.n, self.d, self.extent or 1
        if self.kind == "recurrent":
            return 6 * n * d + 4 * d * d
        if self.kind in CONVOLUTIONS:
            return 4 * n * d + 2 * k * (n + d) * d
        pairs = n * n
        if self.kind == "restricted self-attention":
            blocks, queries, keys = local_blocks(n, self.reach)
            pairs = blocks * queries * keys
        return 8 * n * d + 3 * pairs
