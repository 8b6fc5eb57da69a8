"""A sweep of random configurations of all families: none differs from transformers in silence."""

import os
import re

import pytest

from tests.parity.sweep.drawing import FAMILIES, Draw, draw_case, find_families

pytestmark = [pytest.mark.parity, pytest.mark.slow]

find_families()
SEED = os.environ["SWEEP_SEED"]  # given, or drawn by conftest.py for all workers
CASES = int(os.environ.get("SWEEP_CASES", "18"))  # of each family
GENERATES = 6  # one in so many cases generates texts too


@pytest.fixture(scope="module")
def checking():
    pytest.importorskip("torch", reason="the sweep compares with transformers: no torch here")
    pytest.importorskip("transformers", reason="the sweep compares with transformers")
    import jax

    from tests.parity.sweep import checking, reference

    # Every program is another: none is worth keeping on disk.
    least = jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1e9)
    with reference.quietly():
        yield checking
    jax.config.update("jax_persistent_cache_min_compile_time_secs", least)


@pytest.mark.parametrize("number", range(CASES))
@pytest.mark.parametrize("name", list(FAMILIES))
def test_a_random_configuration_gives_what_transformers_gives(checking, tmp_path, name, number):
    case = draw_case(SEED, name, number)
    draw = Draw(f"{SEED}/{name} inputs", number)
    generates = case.generates and number % GENERATES == 0
    try:
        checking.check(case, tmp_path / "published", draw, generates=generates)
    except checking.RefusedError as error:
        if any(re.search(pattern, str(error)) for pattern in FAMILIES[name].refused):
            pytest.skip(f"refused, as known: {error}".replace(str(tmp_path), ""))
        raise AssertionError(f"SWEEP_SEED={SEED}: {case}: refused: {error}") from error
    except Exception as error:
        raise AssertionError(f"SWEEP_SEED={SEED}: {case}: {error}") from error


def test_there_are_at_least_300_cases():
    assert len(FAMILIES) * 18 >= 300
