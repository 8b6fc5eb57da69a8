"""Answers to exercises, checked: the broken law, the first wrong place and the likely cause."""

import contextlib
import dataclasses
import inspect
import os
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.core.config_fields import nearest
from transformer_jax.core.errors import ArgumentError, command
from transformer_jax.exercises import blanks
from transformer_jax.exercises.table import EXERCISES, Exercise, Function
from transformer_jax.laws.finding import Finding

__all__ = ["Verdict", "adapted", "blank", "check", "find_exercise", "line_of"]

_EXACT, _ALIKE = 1e-4, 1e-3  # relative to the largest right value
_ERRORS = Exception, SystemExit  # an answer that ends the program does not end a notebook
# Errors of operations on shapes, and calls without the function's arguments.
_MISFIT = re.compile(r"shape|broadcast|dimension|\bax[ie]s\b|unpack|tuple index")
_ARGUMENTS = re.compile(r"positional argument|required keyword-only|unexpected keyword")
_CAUSES = {
    (NameError, ImportError): "a name is not defined: import or define it",
    (SystemExit,): "the function ends the program: return the value instead",
    (RecursionError,): "the function calls itself without an end",
    (MemoryError,): "an array is far larger than the inputs",
    (OSError,): "a file: nothing has to be read or written, and little printed",
}
# Where no frame of an answer is: the package, which its clone's folder is not, and libraries.
_LIBRARIES = (
    "<frozen ",
    *(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib")),
    f"{Path(__file__).parents[1]}{os.sep}",
)
# Other names of arguments.
_NAMES = {"query": "q", "queries": "q", "key": "k", "keys": "k", "value": "v", "values": "v"}
_NAMES |= {"g": "gradient", "grad": "gradient", "grads": "gradient", "gamma": "gain"}
_NAMES |= {"beta": "bias", "epsilon": "eps", "p_drop": "p", "wq": "w_q", "wk": "w_k"}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of an answer.

    Attributes:
        exercise: Its name.
        holds: Whether the answer is right.
        law: The broken law of :mod:`transformer_jax.laws`, or the inputs that show the mistake.
        where: The first wrong place.
        value: The value there.
        right: The right value of this place.
        cause: The likely cause; "" if it is none of the known ones.
    """

    exercise: str
    holds: bool
    law: str = ""
    where: str = ""
    value: str = ""
    right: str = ""
    cause: str = ""

    def __str__(self) -> str:
        if self.holds:
            return f"{self.exercise}: all laws hold"
        shown = f": {self.value}" if self.value else ""
        instead = f" instead of {self.right}" if self.right else ""
        cause = f"; likely: {self.cause}" if self.cause else ""
        place = f", {self.where}" if self.where else ""
        return f"{self.exercise}: {self.law}{place}{shown}{instead}{cause}"

    __repr__ = __str__  # the last value of a notebook's cell


def find_exercise(name: str) -> Exercise:
    """Returns the exercise with a name.

    Raises:
        ArgumentError: There is none.

    Example:
        >>> find_exercise("attenton")
        Traceback (most recent call last):
        transformer_jax.core.errors.ArgumentError: no exercise 'attenton': did you mean attention?
    """
    if name not in EXERCISES:
        hint = nearest(name, EXERCISES) or f": {command('check')} lists them"
        raise ArgumentError(f"no exercise {name!r}{hint.replace('; did', ': did')}")
    return EXERCISES[name]


def blank(*names: str) -> str:
    """Returns a file with exercises to fill in.

    Example:
        >>> print(blank("top_p").splitlines()[4])
        def top_p(logits, p):
    """
    for name in names:
        find_exercise(name)
    sources = [inspect.getsource(getattr(blanks, name)) for name in names]
    return "\n\n".join(["import jax.numpy as jnp\nimport numpy as np\n", *sources])


def check(name: str, answer: Function) -> Verdict:
    """Checks an answer by the laws and numbers of its exercise.

    Args:
        name: The exercise.
        answer: The function, in JAX or NumPy, with the arguments of the blank in any order.

    Raises:
        ArgumentError: There is no such exercise, or the answer is no function.

    Example:
        >>> import numpy as np
        >>> check("top_p", lambda logits, p: np.where(np.exp(logits) < p, -np.inf, logits))
        top_p: probabilities 0.15, 0.5, 0.1, 0.25, [1]: -inf instead of -0.6931; likely: tokens ...
    """
    exercise = find_exercise(name)
    if not callable(answer):
        raise ArgumentError(f"check: the answer to {name} is {answer!r:.80}: a function is needed")
    called = adapted(name, answer)
    outcomes = {case: _outcome(exercise, called, inputs) for case, inputs in exercise.cases.items()}
    rights = {case: _outcome(exercise, exercise.right, ins) for case, ins in exercise.cases.items()}
    for case, outcome in outcomes.items():
        wrong = _difference(outcome, rights[case], _EXACT)
        if wrong is None:
            continue
        law = _broken_law(exercise, called)
        cause = _cause(exercise, outcomes, rights, case)
        where, value, right = wrong
        first = f"{law}; {case}" if law else case
        return Verdict(name, False, first, where, value, right, cause)
    law = _broken_law(exercise, called)
    return Verdict(name, not law, law)


def adapted(name: str, answer: Function) -> Function:
    """Returns the answer with the arguments of the blank, by name where all have names of it.

    Example:
        >>> adapted("shift_right", lambda bos, tokens: (tokens, bos))([7, 8], 1)
        ([7, 8], 1)
    """
    wanted = list(inspect.signature(getattr(blanks, name)).parameters)
    with_arrays = _arrays(answer)
    try:
        given = list(inspect.signature(answer).parameters)
    except (TypeError, ValueError):
        given = []
    plain = [one.strip("_").lower() for one in given]
    names = [one if one in wanted else _NAMES.get(one, one) for one in plain]
    if sorted(names) != sorted(wanted):
        return lambda *inputs: answer(*map(with_arrays, inputs))
    order = [wanted.index(one) for one in names]
    return lambda *inputs: answer(*(with_arrays(inputs[n]) for n in order))


def _arrays(answer: Function) -> Callable[[object], object]:
    """Copies of inputs: arrays of JAX if the answer's file imports it, for ``x.at``."""
    names = getattr(answer, "__globals__", {}).values()
    uses = any(getattr(one, "__name__", "").partition(".")[0] == "jax" for one in names)

    def convert(x: object) -> object:
        if isinstance(x, np.ndarray):
            return jnp.asarray(x) if uses else x.copy()
        if isinstance(x, dict):
            return {key: convert(one) for key, one in x.items()}
        return type(x)(map(convert, x)) if isinstance(x, list | tuple) else x

    return convert


def _outcome(exercise: Exercise, answer: Function, inputs: tuple[object, ...]) -> object:
    """The value, or the error."""
    try:
        with np.errstate(all="ignore"):
            return exercise.calls(answer, inputs)
    except _ERRORS as error:
        return error


def _broken_law(exercise: Exercise, answer: Function) -> str:
    """The first law that does not hold, with its sentence and place."""
    findings: list[Finding] = []
    with contextlib.suppress(*_ERRORS), np.errstate(all="ignore"):
        findings = exercise.laws(answer)
    for found in findings:
        if not found.error <= max(found.tolerance, _EXACT):
            return f"{found.law} does not hold ({found.sentence} {found.where})"
    return ""


def _cause(
    exercise: Exercise, outcomes: dict[str, object], rights: dict[str, object], failed: str
) -> str:
    """The mistake with the values of most inputs, among them those of the failed one."""
    general = _general(exercise, outcomes[failed])
    if general:
        return general
    best, most = "", 0
    for words, mistake in exercise.mistakes.items():
        alike = 0
        for case, inputs in exercise.cases.items():
            value = _outcome(exercise, mistake, inputs)
            same = _same(outcomes[case], value)
            if case == failed and (not same or _difference(value, rights[case], _EXACT) is None):
                alike = 0
                break
            alike += same
        if alike > most:
            best, most = words, alike
    if best or not _is_misfit(outcomes[failed]):
        return best
    return "an array has another shape than the line expects: print the shapes"


def _general(exercise: Exercise, outcome: object) -> str:
    """The cause of an answer that is none."""
    if outcome is None or outcome is ...:
        return "nothing is returned: write the function, with a return at its end"
    if isinstance(outcome, TypeError) and _ARGUMENTS.search(str(outcome)) and not line_of(outcome):
        return "the function has other arguments than the blank"
    if isinstance(outcome, TypeError) and "JAX arrays are immutable" in str(outcome):
        return "arrays of JAX are not changed in place; without import of JAX they are of NumPy"
    for kinds, cause in _CAUSES.items():
        if isinstance(outcome, kinds):
            return cause
    return ""


def _is_misfit(outcome: object) -> bool:
    """Tells if an outcome is the error of an operation on shapes that do not fit."""
    kinds = ValueError, TypeError, IndexError
    return isinstance(outcome, kinds) and _MISFIT.search(str(outcome)) is not None


def _same(outcome: object, mistake: object) -> bool:
    """Tells if an outcome is that of a mistake; "nan" stands for any with NaN or infinity."""
    if isinstance(mistake, str) and mistake == "nan":
        with contextlib.suppress(Exception):
            return any(not np.isfinite(np.asarray(one)).all() for one in _leaves(outcome))
        return False
    if isinstance(outcome, _ERRORS) or isinstance(mistake, _ERRORS):
        return _is_misfit(outcome) and _is_misfit(mistake)
    return _difference(outcome, mistake, _ALIKE) is None


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _leaves(one)
    else:
        yield value


def _difference(value: object, right: object, tolerance: float) -> tuple[str, str, str] | None:
    """The first difference: its place, the value and the right value; None without any."""
    if isinstance(value, _ERRORS):
        said = str(value).partition("\n")[0]
        return line_of(value), f"{type(value).__name__} {said:.120}".rstrip(), ""
    if isinstance(right, np.ndarray | float | int | np.generic):
        return _of_arrays(value, right, tolerance)
    pairs: list[tuple[str, object, object]]
    if isinstance(right, dict) and isinstance(value, dict):
        if value.keys() != right.keys():
            extra = [key for key in value if key not in right]
            missing = [key for key in right if key not in value]
            return "keys", _shown(extra or "none"), _shown(missing or "none")
        pairs = [(f"[{key!r}]", value[key], right[key]) for key in right]
    elif isinstance(right, list | tuple):
        value = value.tolist() if isinstance(value, np.ndarray | jax.Array) else value
        if not isinstance(value, list | tuple):
            return "", _shown(value), f"a {type(right).__name__}"
        few = len(value) != len(right)
        if few and (isinstance(right, tuple) or list(value) == right[: len(value)]):
            return "", f"{len(value)} values", f"{len(right)}"
        pairs = [(f"[{n}]", a, b) for n, (a, b) in enumerate(zip(value, right, strict=False))]
        pairs += [("", f"{len(value)} values", f"{len(right)}")] if few else []
    elif isinstance(value, type(right)):
        return None if value == right else ("", _shown(value), _shown(right))
    else:
        return "", _shown(value), f"a {type(right).__name__}"
    for path, one, other in pairs:
        found = _difference(one, other, tolerance)
        if found is not None:
            return f"{path}{found[0]}", *found[1:]
    return None


def _of_arrays(value: object, right: object, tolerance: float) -> tuple[str, str, str] | None:
    wanted = np.asarray(right)
    try:
        found = np.asarray(value)
        if found.dtype == object or isinstance(value, str) or np.iscomplexobj(found):
            raise TypeError
        numbers = found.astype(np.float64)
    except (TypeError, ValueError):
        return "", _shown(value), "an array" if wanted.ndim else "a number"
    if wanted.dtype == bool and found.dtype != bool:
        return "", f"values of {found.dtype}", "True and False"
    if wanted.dtype == bool and found.ndim == wanted.ndim == 4:  # [B 1 1 T] for [B 1 T T]
        with contextlib.suppress(ValueError):
            numbers = np.broadcast_to(numbers, wanted.shape)
    if numbers.shape != wanted.shape:
        return "", f"shape {list(found.shape)}", f"shape {list(wanted.shape)}"
    exact = wanted.astype(np.float64)
    size = np.abs(exact[np.isfinite(exact)]).max(initial=1e-3)
    with np.errstate(invalid="ignore"):
        error = np.abs(numbers - exact)
    same = (numbers == exact) | (np.isnan(numbers) & np.isnan(exact)) | (error <= tolerance * size)
    if same.all():
        return None
    at = tuple(int(n) for n in np.argwhere(~same)[0]) if same.ndim else ()
    shown = (lambda x: str(bool(x))) if wanted.dtype == bool else _shown
    return str(list(at)) if at else "", shown(numbers[at]), shown(exact[at])


def _shown(value: object) -> str:
    if isinstance(value, np.floating | float):
        return f"{value:.4g}"
    return f"{value!r:.80}"


def line_of(error: BaseException) -> str:
    """Returns the line of an answer in which an error was raised, as ``line 3``; "" if in none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    return f"line {own[-1].lineno}" if own else ""
