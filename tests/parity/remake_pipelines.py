"""Makes ``references/pipelines.json`` anew: ``python tests/parity/remake_pipelines.py``.

Needs transformers 4.57, the last version with all of these pipelines, and torch.
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


def main() -> None:
    """Writes the file, one call a line."""
    assert hf.__version__.startswith("4.57"), hf.__version__
    torch.set_num_threads(1)
    hf.logging.set_verbosity_error()
    warnings.filterwarnings("ignore")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        pipelines.write_picture(Path(folder))
        for name in pipelines.FOLDERS:
            pipelines.write(name, Path(folder, name))
        for one in pipelines.CALLS:
            made = hf.pipeline(one["task"], model=one["folder"], device="cpu", **one["made"])
            found.append(json.dumps(plain(made(*one["args"], **one["options"]))))
            print(one["task"], one["options"], found[-1][:300], flush=True)
    lines = ",\n".join(found)
    pipelines.FILE.write_text(f"[\n{lines}\n]\n")
    print(f"{len(found)} calls, {len(lines)} bytes")


if __name__ == "__main__":
    main()
