"""Pictures of attention: the weights of every layer and head of a translation.

Train a translator first, see translator.py.
"""

import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import transformer_jax as tj
from transformer_jax.visual.attention import attention_html, plot_attention, translation_maps


def main(path="runs/pt-en", sentence="O livro está em cima da mesa.", output="attention"):
    translate = tj.load(path)
    tokenizer = translate.tokenizer
    source = [*tokenizer.encode(sentence), tokenizer.eos]
    target = list(translate(sentence).tokens)

    # The decoder reads BOS and all but the last token of what it wrote.
    weights = translate.model.attention_maps(
        jnp.array([source]), jnp.array([[tokenizer.bos, *target[:-1]]]), jnp.array([len(source)])
    )
    maps = translation_maps(
        tokenizer.convert_ids_to_tokens(source),
        tokenizer.convert_ids_to_tokens(target),
        {name: np.asarray(layers) for name, layers in weights.items()},
    )
    folder = Path(output)
    folder.mkdir(exist_ok=True)
    (folder / "attention.html").write_text(attention_html(maps, title=sentence))
    for one in maps:
        plot_attention(one, folder / f"{one.kind}.png", title=one.kind)
    print("written:", sorted(file.name for file in folder.iterdir()))
    return maps


if __name__ == "__main__":
    main(*sys.argv[1:])
