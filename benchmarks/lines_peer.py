"""One peer's part of ``lines``: a process that decodes all sentences once."""

import json
import sys
from pathlib import Path

BATCH = 32


def batches(given):
    """Yields batches of sources of similar length, and the number of tokens to generate."""
    order = sorted(range(len(given["sources"])), key=lambda i: len(given["sources"][i]))
    for start in range(0, len(order), BATCH):
        some = order[start : start + BATCH]
        yield [given["sources"][i] for i in some], max(given["lengths"][i] for i in some)


def transformers(folder, given, beams):
    """Hugging Face ``generate``."""
    import torch

    from benchmarks import peers

    model = peers.marian(folder, **given["sizes"])
    with torch.no_grad():
        for sources, new in batches(given):
            width = max(map(len, sources))
            ids = torch.zeros((len(sources), width), dtype=torch.long)
            for row, source in enumerate(sources):
                ids[row, : len(source)] = torch.tensor(source)
            model.generate(
                input_ids=ids, attention_mask=(ids > 0).long(), num_beams=beams, do_sample=False,
                min_new_tokens=new, max_new_tokens=new,
            )  # fmt: skip


def ctranslate2(folder, given, beams):
    """CTranslate2, float32; its model is created by the first run of the other peer."""
    import ctranslate2 as library

    where = Path(folder) / "ctranslate2"
    translator = library.Translator(
        str(where), device="cpu", inter_threads=1, intra_threads=1, compute_type="float32"
    )
    name = lambda i: ["<pad>", "<unk>", "<bos>", "<eos>"][i] if i < 4 else f"t{i}"
    for sources, new in batches(given):
        translator.translate_batch(
            [[name(i) for i in source] for source in sources],
            beam_size=beams,
            min_decoding_length=new,
            max_decoding_length=new,
            max_batch_size=0,
        )


if __name__ == "__main__":
    folder, path, kind, beams = sys.argv[1:]
    {"transformers": transformers, "ctranslate2": ctranslate2}[kind](
        folder, json.loads(Path(path).read_text()), int(beams)
    )
