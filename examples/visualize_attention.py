"""Pictures of attention: the weights of every layer and head of a translation.

Train a translator first, see translator.py.
"""

import sys
from pathlib import Path

import transformer_jax as tj


def main(path="runs/pt-en", sentence="O livro está em cima da mesa.", output="attention"):
    attention = tj.load(path).attention(sentence)
    folder = Path(output)
    attention.html(folder / "attention.html")
    for kind, weights in attention.weights.items():  # [layer, head, row, column]
        attention.png(folder / f"{kind}.png", kind=kind)
        print(kind, "weights of", *weights.shape[:2], "layers and heads")
    print("written:", sorted(file.name for file in folder.iterdir()))
    return attention.maps


if __name__ == "__main__":
    main(*sys.argv[1:])
