"""The commands of ``transformer-jax``, in the groups of its help, and the modules to import."""

import importlib
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from transformer_jax.core.errors import ConfigError
from transformer_jax.core.runtime import admit_own_code

__all__ = [
    "COMMANDS",
    "GROUPS",
    "NOTE",
    "PROGRAM",
    "PROGRAMS",
    "import_modules",
    "load_command",
    "with_flags",
]

PROGRAM = "transformer-jax"

# Commands with a one-line description each.
GROUPS: dict[str, dict[str, str]] = {
    "train": {
        "train": "Train a translator, a language model or an image classifier.",
        "pretrain": "Pre-train an encoder or an encoder-decoder on any text.",
        "finetune": "Fine-tune an encoder on labeled examples, or a summarizer.",
        "train-speech": "Train a speech recognizer on recordings.",
        "instruct": "Train a language model on conversations.",
        "align": "Train a language model on preferences or rewards.",
        "resume": "Continue a run from its newest good checkpoint.",
        "launch": "Run a command as several processes, or write the file for a cluster.",
        "prefer": "Choose the better of two samples, to write pairs for align.",
    },
    "use": {
        "translate": "Translate lines of standard input, or of a file.",
        "generate": "Continue prompts with a language model.",
        "chat": "Talk with a language model trained on conversations.",
        "transcribe": "Transcribe recordings with a speech recognizer.",
        "caption": "Describe pictures with a captioner.",
        "classify": "Label texts or pictures, or reward texts.",
        "tag": "Tag the words of each line with a fine-tuned encoder.",
        "answer": "Extract answers to questions from a text.",
        "fill-mask": "Predict masked tokens.",
        "embed": "Write embeddings of lines, of their tokens or of pictures.",
        "semantic-search": "Find the lines of a file most similar to a query.",
    },
    "look inside": {
        "attention": "Write a page with the attention of every layer and head.",
        "explore": "Write a page that runs a model in the browser.",
        "describe": "Print architecture, parameters, FLOPs and bytes.",
        "doctor": "Check a model's invariants (laws) on this machine.",
        "verify": "Check the files of a run against their checksums.",
        "tokenize": "Print the tokens of texts, with their ids.",
        "bpe-merges": "Print and draw byte-pair encoding, merge by merge.",
        "compare-tokenizers": "Compare kinds of tokenizers on a text.",
        "probe": "Train linear probes on the embeddings of each layer.",
        "spectrum": "Print and draw the singular values of adapters.",
        "word-vectors": "Compare contextual embeddings of a word, layer by layer.",
        "word-vectors train": "Train word vectors with word2vec.",
        "word-vectors resume": "Resume the training of word vectors.",
        "analogy": "Answer a − b + c with word vectors.",
        "most-similar": "Print the words most similar to a word.",
        "laboratory": "Small experiments on recurrence, attention and rewards.",
    },
    "exchange": {
        "convert": "Convert a Hugging Face checkpoint to a run directory.",
        "export": "Export a model to Hugging Face, CTranslate2 or StableHLO.",
        "merge": "Merge adapters into weights, or extract the base model.",
    },
    "measure": {
        "evaluate": "Evaluate a run on test data, with the metrics of its task.",
        "score": "Print log-probabilities of lines or translations.",
        "score-file": "Print all metrics of a task for a file of outputs, without a model.",
        "compare": "Compare two systems by paired significance tests.",
        "prompt": "Measure few-shot accuracy with demonstrations in the prompt.",
        "win-rate": "Count which of two models' samples a rule prefers.",
        "diversity": "Compare how diverse a model's texts are.",
        "complexity": "Compare attention with recurrence and convolution.",
        "glue": "Print GLUE's table, with the scores of runs.",
        "report": "Compare published figures with those of your runs.",
    },
    "this program": {
        "check": "Check exercises: functions of a Transformer that you wrote yourself.",
        "lecture": "Print what a row of the lectures shows, with its code, test and command.",
        "completion": "Print a script that completes commands in bash, zsh or fish.",
    },
}
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}
# Commands that parse their own arguments, and the modules of their functions.
PROGRAMS = {
    **dict.fromkeys(("train", "pretrain", "finetune", "train-speech", "instruct"), "training"),
    **dict.fromkeys(("align", "resume", "evaluate"), "training"),
    "laboratory": "laboratory",
    "word-vectors train": "train_word_vectors",
    "word-vectors resume": "train_word_vectors",
}


def load_command(name: str) -> Any:
    """Returns the dataclass of a command's flags, or the function that parses its arguments.

    Args:
        name: The command.

    Example:
        >>> load_command("fill-mask").__name__
        'FillMask'
    """
    if name in PROGRAMS:
        return importlib.import_module(f"transformer_jax.cli.{PROGRAMS[name]}").run
    module = importlib.import_module(f"transformer_jax.cli.{name.replace('-', '_')}")
    return getattr(module, module.__all__[0])


def with_flags() -> Iterator[tuple[str, Any]]:
    """Yields the commands whose flags are a dataclass, each with the dataclass."""
    for name in COMMANDS:
        if name not in PROGRAMS:
            yield name, load_command(name)


# --- Modules of the user --------------------------------------------------------------------------

_FLAG = "--import"
NOTE = f"{_FLAG} MODULE imports your Python module first"


def import_modules(arguments: Sequence[str]) -> list[str]:
    """Imports the modules that ``--import`` names, such as one that registers a mixer.

    They are on Python's path or in the working directory.

    Args:
        arguments: The words of a command; words after ``--`` are left alone.

    Returns:
        The words without these flags.

    Raises:
        ConfigError: The flag has no name, or the module cannot be imported.

    Example:
        >>> import_modules(["train", "small", "--import", "json", "--overwrite"])
        ['train', 'small', '--overwrite']
    """
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            return [*rest, word, *words]
        flag, given, name = word.partition("=")
        if flag != _FLAG:
            rest.append(word)
            continue
        name = name if given else next(words, "")
        if name.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
            hint = f", such as {name[:-3]}" if name.endswith(".py") else ""
            raise ConfigError(f"{_FLAG} {name}: the name of a Python module is needed{hint}")
        _import(name)
    return rest


def _import(name: str) -> None:
    if "" not in sys.path:  # the program is no script of the working directory
        sys.path.append("")
    admit_own_code()
    try:
        importlib.import_module(name)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        missing = isinstance(error, ModuleNotFoundError) and error.name == name
        place = "" if missing else f" ({where.filename}:{where.lineno})"
        says = str(error).partition("\n")[0]
        raise ConfigError(
            f"{_FLAG} {name}: {type(error).__name__}: {says}{place}: a module of the working "
            f"directory or of Python's path is needed"
        ) from None
