"""Makes ``references/pipelines.json`` anew: ``python tests/parity/remake_pipelines.py``.

Needs transformers 4.57, the last version with all of these pipelines, and torch. With a folder, it
calls what ``calls.json`` there says on models there, and writes ``results.json``.
"""

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import transformers as hf

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.parity import pipelines


def plain(value):
    """Numbers with seven digits, without types of NumPy and torch."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return list(map(plain, value))
    value = value.item() if hasattr(value, "item") else value
    return float(f"{value:.7g}") if isinstance(value, float) else value


def results(calls):
    """Results of calls, one line of JSON each; errors by their message."""
    for one in calls:
        try:
            made = hf.pipeline(one["task"], model=one["folder"], device="cpu", **one["made"])
            yield json.dumps(plain(made(*one["args"], **one["options"])))
        except BaseException as error:  # of any call; panics of Rust are no Exception
            yield json.dumps({"error": f"{type(error).__name__}: {error}"})


def main(folder: str | None = None) -> None:
    """Writes the file, one call a line."""
    assert hf.__version__.startswith("4.57"), hf.__version__
    torch.set_num_threads(1)
    hf.logging.set_verbosity_error()
    warnings.filterwarnings("ignore")
    if folder is not None:
        os.chdir(folder)
        found = list(results(json.loads(Path("calls.json").read_text())))
        Path("results.json").write_text(f"[{','.join(found)}]")
        return
    with tempfile.TemporaryDirectory() as made:
        os.chdir(made)
        pipelines.write_picture(Path(made))
        for name in pipelines.FOLDERS:
            pipelines.write(name, Path(made, name))
        found = list(results(pipelines.CALLS))
    lines = ",\n".join(found)
    pipelines.FILE.write_text(f"[\n{lines}\n]\n")
    print(f"{len(found)} calls, {len(lines)} bytes, errors: {[x for x in found if 'error' in x]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
