"""A sweep of random configurations of all families: none differs from transformers in silence."""

import dataclasses
import os
import re

import pytest

from tests.parity.sweep.drawing import FAMILIES, Draw, draw_case, find_families

pytestmark = [pytest.mark.parity, pytest.mark.slow, pytest.mark.apart]

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


# Mistakes of the kind that are made: a family that shows each, and what is put wrong.


def _eps(patch):
    from transformer_jax.interop.families import bart

    patch.setattr(bart, "_EPS", 1e-3)


def _rope(patch):
    from transformer_jax.interop.families import llama

    right = llama.rope_positions
    still = {"rope_scaling": None, "rope_interpolation": 1.0}
    patch.setattr(
        llama, "rope_positions", lambda fields: dataclasses.replace(right(fields), **still)
    )


def _padding(patch):
    from transformer_jax.interop.families import bert

    right = bert.config_of

    def wrong(fields, settings):
        return right(fields, settings | {"positions.skip_padding": False})

    patch.setattr(bert, "config_of", wrong)


def _distances(patch):
    from transformer_jax.interop.families import mpnet

    right = mpnet._config_of
    wrong = {"positions.max_distance": 64}
    patch.setattr(mpnet, "_config_of", lambda fields, settings: right(fields, settings | wrong))


def _number(key, change):
    def apply(patch):
        from transformer_jax.interop.config_reader import ConfigReader

        for kind in ("whole", "number", "flag"):
            right = getattr(ConfigReader, kind)

            def wrong(self, name, *names, right=right, **more):
                found = right(self, name, *names, **more)
                return change(found) if name == key else found

            patch.setattr(ConfigReader, kind, wrong)

    return apply


def _activation(patch):
    from transformer_jax.interop.key_table import ACTIVATIONS

    for name in ACTIVATIONS:
        patch.setitem(ACTIVATIONS, name, "gelu")


def _bits(patch):
    from tests.parity.sweep import checking

    right = checking.hf_tensors

    def wrong(*given):
        found = right(*given)
        name = min(found)
        return found | {name: found[name] + 1e-7}

    patch.setattr(checking, "hf_tensors", wrong)


FAULTS = {
    "activation of all": ("bert", _activation),
    "eps of BART": ("marian", _eps),
    "RoPE without scaling": ("llama", _rope),
    "positions that count padding": ("roberta", _padding),
    "distances of MPNet that end too early": ("mpnet", _distances),
    "distances that end too early": (
        "t5", _number("relative_attention_max_distance", lambda n: n // 2 + 5)),
    "window one too wide": ("mistral", _number("sliding_window", lambda n: n + 1)),
    "scale of scores": ("gpt2", _number("scale_attn_weights", lambda flag: not flag)),
    "cap of logits": ("gemma2", _number("final_logit_softcapping", lambda cap: 2 * cap)),
    "a bit on the way back": ("vit", _bits),
}  # fmt: skip


@pytest.mark.parametrize("fault", list(FAULTS))
def test_the_sweep_finds_mistakes(checking, tmp_path, monkeypatch, fault):
    """Each in one of the first few cases of a family that shows it."""
    name, apply = FAULTS[fault]
    apply(monkeypatch)
    for number in range(9):
        case = draw_case("faults", name, number)
        try:
            checking.check(case, tmp_path / str(number) / "published", Draw("inputs", number))
        except checking.RefusedError:  # when it is read back
            continue
        except AssertionError:
            return
    pytest.fail(f"no case of {name} shows it: {fault}")
