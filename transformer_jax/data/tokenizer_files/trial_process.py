"""The program of the process that tries the parts of a tokenizer, within limits of the system.

It is started by its path, without the modules of its parent, and imports only ``tokenizers``. It
reads the parts from standard input, and writes one line of JSON, unless the system ends it. See
:mod:`transformer_jax.data.tokenizer_files.opening` for the other side.
"""

import contextlib
import json
import re
import resource
import sys

__all__ = ["SECONDS", "limit_process", "main"]

# Seconds of processor time and bytes of memory, in addition to the program's.
SECONDS, _MEMORY = 2, 256 * 2**20
_LENGTHS = (30, 300, 2_000)  # characters of the texts
_USUAL = ("a", "A", "1", " ", "\t", "\n", ".", "-", "é", "漢", "ab", "a1", "a ", " \n", "'s")
_MOST_UNITS = 48


def main(folder: str) -> None:
    """Tries the parts that standard input describes.

    Args:
        folder: The folder of the package ``tokenizers``.
    """
    sys.path.append(folder)
    import tokenizers

    limit_process(SECONDS, _MEMORY)
    _set(resource.RLIMIT_NPROC, 0)
    text = sys.stdin.read()
    sys.stdout.write(json.dumps({"reason": _reason(tokenizers, json.loads(text), text)}) + "\n")


def _reason(tokenizers: object, parts: dict[str, object], text: str) -> str | None:
    """Returns the reason why the parts fail; None if they work."""
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    try:
        backend = tokenizers.Tokenizer.from_str(json.dumps({**parts, "model": model}))  # type: ignore[attr-defined]
        # Where a character that an expression needs is missing, the library does not even begin.
        needed = "!" + "".join(_expressions(parts))
        for length in _LENGTHS:
            for unit in _units(text):
                probe = (unit * length)[:length]
                for one in (probe, probe + "\0", "!" + probe + "!", probe + needed):
                    backend.encode(one, add_special_tokens=False)
                    if backend.decoder is not None:
                        backend.decoder.decode([one])
    except BaseException as error:  # panics are no Exceptions
        return " ".join(str(error).split())[:200] or type(error).__name__
    return None


def _expressions(part: object) -> list[str]:
    """Returns the regular expressions in a part of a tokenizer, as they are written."""
    if isinstance(part, list):
        return [one for inner in part for one in _expressions(inner)]
    if not isinstance(part, dict):
        return []
    own = [part["Regex"]] if isinstance(part.get("Regex"), str) else []
    return own + [one for inner in part.values() for one in _expressions(inner)]


def _units(text: str) -> list[str]:
    """Returns texts to repeat: usual ones, and the characters of the parts themselves."""
    own = re.findall(r"\w", text)
    return list(dict.fromkeys([*_USUAL, *own]))[:_MOST_UNITS]


def limit_process(seconds: int, memory: int, file_size: int = 0) -> None:
    """Limits this process, beyond what it uses already.

    Args:
        seconds: Seconds of processor time.
        memory: Bytes of memory.
        file_size: Largest size of a written file in bytes.
    """
    with contextlib.suppress(OSError), open("/proc/self/statm") as file:
        _set(resource.RLIMIT_AS, int(file.read().split()[0]) * resource.getpagesize() + memory)
    used = resource.getrusage(resource.RUSAGE_SELF)
    _set(resource.RLIMIT_CPU, seconds + int(used.ru_utime + used.ru_stime))
    _set(resource.RLIMIT_CORE, 0)
    _set(resource.RLIMIT_FSIZE, file_size)


def _set(kind: int, most: int) -> None:
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(kind, (most, most))


if __name__ == "__main__":
    main(sys.argv[1])
