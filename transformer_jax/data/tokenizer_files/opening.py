"""Opens tokenizers within limits, and turns crashes of the library into errors."""

import collections
import contextlib
import hashlib
from collections.abc import Iterator

import tokenizers

from transformer_jax.core.errors import DataError, UserError
from transformer_jax.data.tokenizer_files.limits import check_parts
from transformer_jax.data.tokenizer_files.trial import try_parts

__all__ = ["guarded", "open_backend"]

_UNUSABLE = "not a usable tokenizer.json"
_PROBE = "A probe, 1 2."
_within = collections.OrderedDict[bytes, None]()  # digests of files that were checked
_MOST_CHECKED = 32


def open_backend(text: str) -> tokenizers.Tokenizer:
    """Returns the tokenizer of a ``tokenizer.json``, without truncation and padding.

    Limits on its parts are checked first; regular expressions of an unusual form are tried in
    another process.

    Args:
        text: The content of the file.

    Raises:
        DataError: The text is not a tokenizer's, or exceeds the limits; the message does not name
            the file.
    """
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    if digest not in _within:
        try:
            parts = check_parts(text)
            if parts.try_first:
                try_parts(parts.parts)
        except DataError as error:
            raise DataError(f"{_UNUSABLE}: {error}") from None
        _within[digest] = None
        if len(_within) > _MOST_CHECKED:
            _within.popitem(last=False)
    with guarded(_UNUSABLE):
        backend = tokenizers.Tokenizer.from_str(text)
        backend.no_truncation()
        backend.no_padding()
        # It may still fail at the first text, or name ids that it cannot convert back.
        backend.decode(backend.encode(_PROBE).ids)
    return backend


@contextlib.contextmanager
def guarded(failure: str = "the tokenizer fails on a text") -> Iterator[None]:
    """A context in which errors and crashes of the library are a DataError of one line.

    Args:
        failure: The beginning of its message.
    """
    try:
        yield
    except (UserError, TypeError):
        raise
    except BaseException as error:  # the library raises bare Exceptions, and panics
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{failure}: {reason}") from None
