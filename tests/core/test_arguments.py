"""Arguments that a function can use are admitted, whatever they are made of."""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.core.arguments import check_values
from transformer_jax.core.errors import ArgumentError

HINTS = {"items": Sequence[int], "names": Mapping[str, int]}


@pytest.mark.parametrize("items", [[1], (1,), range(3), np.array([1, 2]), jnp.zeros((2, 3))])
def test_an_array_is_a_list_of_its_rows(items):
    check_values("", HINTS, {"items": items})


@pytest.mark.parametrize("items", [3, "12", b"12", {1, 2}, {1: 2}, None, np.array(3), np.str_("a")])
def test_text_sets_and_scalars_are_no_lists(items):
    with pytest.raises(ArgumentError, match=r"^items is .*: a list is needed$"):
        check_values("", HINTS, {"items": items})
    with pytest.raises(ArgumentError, match=r"^names is .*: a dictionary is needed$"):
        check_values("", HINTS, {"names": [items]})
