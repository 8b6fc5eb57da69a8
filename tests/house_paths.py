"""Files and functions on a path through the package: ``python tests/house_paths.py PATH FOLDER``.

Prints JSON. A path runs in a process of its own: a second one finds modules and programs ready.
"""

import ast
import collections
import contextlib
import inspect
import io
import json
import os
import pathlib
import re
import sys

ONE_STEP = ("training/loop.py", "fit")  # is called with a complete state, step and data
SETTINGS = ("parallel/mesh.py", "<module>")  # is imported once the settings are complete


class Reached(BaseException):
    """The path ends."""


class Trail:
    """The functions of the package that run within ``with``, up to one of them.

    Attributes:
        seen: File, name and first line of each function, with the number of its calls.
        openings: How often each file was opened, by its name.
    """

    def __init__(self, end=None):
        import transformer_jax

        self.root, self.end = os.path.dirname(transformer_jax.__file__) + "/", end
        self.seen, self.openings = collections.Counter(), collections.Counter()
        self.runs = False
        sys.addaudithook(self._opened)

    def __enter__(self):
        self.runs = True
        sys.setprofile(self._called)
        return self

    def __exit__(self, kind, error, trace):
        sys.setprofile(None)
        self.runs = False
        assert self.end is None or kind is Reached, f"{self.end} was not called: {error!r}"
        return kind is Reached

    def _called(self, frame, event, _):
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(self.root):
            return
        file = code.co_filename.removeprefix(self.root)
        if (file, code.co_qualname) == self.end:
            raise Reached
        if code.co_flags & inspect.CO_OPTIMIZED:  # no body of a module or class
            self.seen[file, code.co_qualname, code.co_firstlineno] += 1

    def _opened(self, event, arguments):
        if self.runs and event == "open" and isinstance(arguments[0], str):
            self.openings[os.path.basename(arguments[0])] += 1

    @property
    def files(self):
        return len({file for file, _, _ in self.seen})

    @property
    def functions(self):
        return sum(not name.endswith(">") for _, name, _ in self.seen)

    @property
    def bodies(self):
        """Lines of the functions, without signature and docstring."""
        lines = {(file, line) for file, _, line in self.seen}
        return sum(
            body(node)
            for file in {file for file, _ in lines}
            for node in ast.walk(ast.parse(pathlib.Path(self.root + file).read_text("utf-8")))
            if isinstance(node, ast.FunctionDef | ast.Lambda) and (file, first(node)) in lines
        )


def first(node):
    """The line that Python calls the first one of a function."""
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])


def body(node):
    """Lines of a function without signature and docstring; a lambda is all body."""
    if isinstance(node, ast.Lambda):
        return node.end_lineno - node.lineno + 1
    rest = node.body[ast.get_docstring(node) is not None :]
    return node.end_lineno - rest[0].lineno + 1 if rest else 0


def loss(_):
    """From ids to the loss of an encoder-decoder."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    import transformer_jax as tj

    config = tj.TransformerConfig(
        vocab_size=100,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        attention=tj.AttentionConfig(num_heads=2),
        feed_forward=tj.FeedForwardConfig(d_ff=64),
    )
    model = nnx.eval_shape(lambda: tj.TransformerEncoderDecoder(config, rngs=nnx.Rngs(0)))
    graph, parameters = nnx.split(model)
    objective = tj.objectives.sequence_to_sequence(1)
    source = {"source": jnp.ones((2, 5), int), "source_lengths": jnp.array([5, 3])}
    batch = {"inputs": source, "target": jnp.ones((2, 6), int), "lengths": jnp.array([6, 4])}
    with Trail() as path:
        jax.eval_shape(lambda given: objective(nnx.merge(graph, given), batch, None), parameters)
    return {"ids to loss: files": path.files, "ids to loss: lines of bodies": path.bodies}


def arguments(folder):
    """The command that trains a small translator on a corpus in a folder."""
    for name, line in (("a.pt", "o gato numero {} come\n"), ("a.en", "the cat number {} eats\n")):
        (folder / name).write_text("".join(line.format(i) for i in range(200)))
    files = {
        "data.source": folder / "a.pt",
        "data.target": folder / "a.en",
        "output": folder / "run",
    }
    sizes = {"d-model": 32, "encoder-layers": 1, "decoder-layers": 1, "attention.num-heads": 2,
             "feed-forward.d-ff": 64}  # fmt: skip
    flags = files | {f"model.{name}": size for name, size in sizes.items()} | {"training.steps": 2}
    return ["train", "small", *(str(word) for name in flags for word in (f"--{name}", flags[name]))]


def train(folder):
    """From a command line to settings, and to the first step."""
    from transformer_jax.cli import main

    words = arguments(folder)
    with Trail(SETTINGS) as path:
        main.main(words)
    counts = {
        "command line to settings: files": path.files,
        "command line to settings: functions": path.functions,
    }
    with Trail(ONE_STEP):
        main.main(words)
    modules = [name for name in sys.modules if name.partition(".")[0] == "transformer_jax"]
    return counts | {"modules at the first step of train small": len(modules)}


def load(folder):
    """From a folder to a translator, and from text to its translation."""
    import transformer_jax as tj
    from transformer_jax.cli import main

    assert main.main([*arguments(folder), "--overwrite"]) == 0
    with Trail() as path:
        translator = tj.load(str(folder / "run"))
    with Trail() as call:
        translator("o gato numero 3 come")
    return {
        "tj.load: files": path.files,
        "tj.load: openings of config.json": path.openings["config.json"],
        "text to translation: files": call.files,
        "text to translation: openings of config.json": call.openings["config.json"],
    }


def flags(_):
    """The flags that a shell completes."""
    from transformer_jax.cli import main

    with contextlib.redirect_stdout(io.StringIO()) as script:
        assert main.main(["completion", "bash"]) == 0
    return {"distinct flags": len(set(re.findall(r"(?<![\w-])--[a-z][\w.-]*", script.getvalue())))}


if __name__ == "__main__":
    run = {"loss": loss, "train": train, "load": load, "flags": flags}[sys.argv[1]]
    with contextlib.redirect_stdout(sys.stderr):
        counts = run(pathlib.Path(sys.argv[2]))
    print(json.dumps(counts))
