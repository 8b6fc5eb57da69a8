"""Synthetic speech: each letter is a vector of features, held for a while, with noise."""

import numpy as np

LETTERS, WIDTH = "abcd", 8
SOUNDS = np.random.default_rng(7).standard_normal((len(LETTERS), WIDTH))


def speak(text, draw, noise=0.2):
    """The frames of a text: 3 to 7 for each letter, after one of silence."""
    frames = []
    for letter in text:
        frames.append(np.zeros((1, WIDTH)))
        frames.append(np.repeat(SOUNDS[LETTERS.index(letter), None], draw.integers(3, 8), axis=0))
    clean = np.concatenate(frames)
    # Features are far from 0 and of different sizes, as log-mel frames are.
    return (
        (clean + noise * draw.standard_normal(clean.shape)) * (1 + np.arange(WIDTH)) - 5
    ).astype(np.float32)


def write_speech(folder, name, count, seed=0, letters=(2, 5)):
    """A manifest of recordings as .npy files; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    draw, lines = np.random.default_rng(seed), []
    for i in range(count):
        text = "".join(draw.choice(list(LETTERS), draw.integers(*letters)))
        np.save(folder / f"{name}{i}.npy", speak(text, draw))
        lines.append(f"{name}{i}.npy\t{text}\n")
    (folder / f"{name}.tsv").write_text("".join(lines))
    return str(folder / f"{name}.tsv")
