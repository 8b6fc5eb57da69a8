"""Using a translator: beams, scores, the probability of a translation, vectors.

Train one first: ``transformer-jax train phrasebook --output runs/pt-en``.
"""

import sys

import transformer_jax as tj


def main(path="runs/pt-en", sentences=("O livro está em cima da mesa.", "Bom dia!")):
    translate = tj.load(path)

    for sentence, translation in zip(sentences, translate(sentences), strict=True):
        print(f"{sentence} -> {translation}  ({translation.score:.2f})")

    # The three best of four beams; results are strings with a score, tokens and alternatives.
    best = translate(sentences[0], num_beams=4, num_return_sequences=3)
    for text in (best, *best.alternatives):
        print(f"{text.score:.3f}  {text}")

    log_prob = translate.score(sentences[0], best)
    print(f"log-probability of the best: {log_prob:.3f} nats")
    print("encoder vectors:", translate.embed(list(sentences)).shape)
    return best, log_prob


if __name__ == "__main__":
    main(*sys.argv[1:])
