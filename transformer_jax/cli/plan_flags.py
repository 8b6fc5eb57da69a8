"""The flags ``--plan`` and ``--plan-json``, which are no settings of a run."""

from collections.abc import Sequence

from transformer_jax.core.errors import ConfigError

__all__ = ["take_plan"]


def take_plan(arguments: Sequence[str]) -> tuple[str | None, bool, list[str]]:
    """The target of ``--plan``, whether ``--plan-json`` is given, and the other arguments.

    Raises:
        ConfigError: ``--plan`` without a target, twice or with ``--resume``, or ``--plan-json``
            without ``--plan``.

    Example:
        >>> take_plan(["gpt2-small", "--plan", "h200:8", "--mesh.fsdp", "8"])
        ('h200:8', False, ['gpt2-small', '--mesh.fsdp', '8'])
    """
    rest, target, as_json, words = [], None, False, iter(arguments)
    for word in words:
        if word == "--plan-json":
            as_json = True
        elif word == "--plan" or word.startswith("--plan="):
            if target is not None:
                raise ConfigError("--plan is given twice: one plan is of one kind of devices")
            target = word.partition("=")[2] or next(words, "")
            if not target or target.startswith("-"):
                raise ConfigError(
                    "--plan needs devices: --plan h200:8, a TPU slice such as --plan v5e:2x4, or "
                    "the memory of a device, such as --plan 80GiB"
                )
        else:
            rest.append(word)
    if as_json and target is None:
        raise ConfigError("--plan-json is how --plan writes: give --plan h200:8 too")
    if target is not None and "--resume" in rest:
        raise ConfigError(
            "--plan and --resume: a plan is of the settings that are given; leave --resume out"
        )
    return target, as_json, rest
