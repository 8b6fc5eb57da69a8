"""Makes ``references/generation.json`` anew: ``python tests/parity/remake_generation.py [NAME…]``.

With names of layouts, only theirs; what is stored of others stays. Needs torch and transformers,
and ``layouts.json``. Every case is what ``generate()`` gives in float32, of a tiny model, random
prompts and random rules. A case is drawn again where float64 gives other tokens: there two
hypotheses are so near to one another that rounding decides. The seeds of such cases are told under
``redrawn``; there was none when the file was made.
"""

import json
import random
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
import transformers as hf

sys.path.insert(0, str(Path(__file__).parent))
import layouts
from exact import exact

# The numbers of beams of each beside greedy search: few, as each is a program to compile.
GENERATING = {
    "bart": (5,), "mbart": (3,), "m2m_100": (4,), "marian": (2, 5), "marian_unshared": (4,),
    "t5": (2,), "t5_gated": (3,), "gpt2": (2, 4), "llama": (3,), "llama3": (2,), "mistral": (5,),
    "qwen2": (4,), "qwen3": (3,), "gemma2": (2, 5), "gemma2_full": (3,), "gemma": (3,),
    "qwen2_late": (4,), "qwen3_mixed": (2,), "llama_yarn": (3,), "llama_dynamic": (2,),
    "phi3": (3,), "phi3_long": (4,), "opt": (5,), "opt_post": (2,),
}  # fmt: skip
CASES = 42  # of each of the first
FEWER = 30  # of those that are much like another
LIKE = ("gemma2_full", "gemma", "qwen2_late", "qwen3_mixed", "llama_yarn", "llama_dynamic", "phi3",
        "phi3_long", "opt", "opt_post")  # fmt: skip
OUT = -1e8  # scores below are of hypotheses that do not exist


def rules(draw: random.Random, fields: dict, num_beams: int) -> dict:
    """Options of ``generate``, each absent more often than not."""
    vocab = fields.get("decoder_vocab_size") or fields["vocab_size"]
    pad = fields["pad_token_id"] or 0
    maybe = lambda chance, value: value() if draw.random() < chance else None
    some = lambda n: sorted(draw.sample(range(5, 80), n))
    words = lambda: [some(1), some(2), some(2)[::-1]]
    ends = draw.sample([i for i in range(2, vocab) if i != pad], draw.choice([1, 2, 8, 20]))
    most = 2 if num_beams == 1 else 1  # two forced at once would be equal, in any order
    others = lambda n: [token for token in some(n) if token not in (7, *ends)]
    found = {
        "eos_token_id": sorted(ends),
        "max_new_tokens": draw.choice([1, 5, 12, 18]),
        "num_beams": num_beams,
        "no_repeat_ngram_size": maybe(0.25, lambda: draw.choice([1, 2, 3])),
        "repetition_penalty": maybe(0.25, lambda: draw.choice([1.3, 0.8, 2.0])),
        "min_new_tokens": maybe(0.2, lambda: draw.choice([2, 4])),
        "min_length": maybe(0.1, lambda: draw.choice([3, 12])),
        "forced_eos_token_id": maybe(0.2, lambda: ends[:most]),
        "forced_bos_token_id": maybe(0.15, lambda: 7),
        "bad_words_ids": maybe(0.2, lambda: [*words(), [pad], [ends[0]]]),
        "sequence_bias": maybe(0.15, lambda: [[w, draw.choice([-4.0, 2.5])] for w in words()]),
        "encoder_no_repeat_ngram_size": maybe(0.2, lambda: draw.choice([1, 2])),
        "encoder_repetition_penalty": maybe(0.15, lambda: draw.choice([1.5, 0.7])),
        "suppress_tokens": maybe(0.15, lambda: others(10)),
        "begin_suppress_tokens": maybe(0.15, lambda: some(10)),
        "exponential_decay_length_penalty": maybe(0.15, lambda: [2, 1.1]),
        "renormalize_logits": maybe(0.15, lambda: True),
        "remove_invalid_values": maybe(0.1, lambda: True),
    }
    if draw.random() < 0.2:  # another way to tell the length, or none: 20 tokens
        found |= {"max_new_tokens": None, "max_length": draw.choice([14, 18, None])}
    if fields["model_type"] in layouts.NO_POSITION_FOR_PAD:
        found["suppress_tokens"] = sorted({pad, *(found["suppress_tokens"] or ())})
    if num_beams > 1:
        found["length_penalty"] = draw.choice([-1.0, 0.0, 0.6, 1.0, 2.0])
        found["early_stopping"] = draw.choice([False, True, "never"])
        found["num_return_sequences"] = draw.randint(1, num_beams)
    return {name: value for name, value in found.items() if value is not None}


def case(name: str, seed: str) -> dict:
    """Prompts and rules."""
    fields, draw = layouts.LAYOUTS[name]["config"], random.Random(f"{name} {seed}")
    rows, length = draw.choice([1, 2, 3]), draw.choice([3, 6, 9, 12])
    pads = [0, *(draw.randint(0, length - 2) for _ in range(rows - 1))]
    ids = [[draw.randrange(5, 75) for _ in range(length)] for _ in pads]
    fill = fields["pad_token_id"] or 0
    mask = [[1] * length for _ in pads]
    for row, real, n in zip(ids, mask, pads, strict=True):
        # Encoders may be given it anywhere: mostly on the right, as tokenizers do.
        start = draw.choice([length - n] * 3 + [0, 1]) if fields.get("is_encoder_decoder") else 0
        row[start : start + n], real[start : start + n] = [fill] * n, [0] * n
    asked = rules(draw, fields, draw.choice((1, *GENERATING[name] * 2)))
    return {"ids": ids, "mask": mask, "rules": asked}


def generate(model, name: str, what: dict) -> tuple[np.ndarray, np.ndarray | None]:
    """Tokens that are written, and the scores of beams."""
    ids, encodes = torch.tensor(what["ids"]), model.config.is_encoder_decoder
    options = dict(what["rules"], do_sample=False, use_cache="t5" not in name)
    with torch.no_grad():
        out = model.generate(
            ids,
            attention_mask=torch.tensor(what["mask"]),
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
    scores = getattr(out, "sequences_scores", None)
    written = out.sequences[:, 1 if encodes else ids.shape[1] :].numpy()
    return written, None if scores is None else scores.double().numpy()


def same(one: tuple, other: tuple) -> bool:
    """Returns whether two results are of the same tokens, as far as hypotheses exist."""
    if one[1] is None:
        return np.array_equal(one[0], other[0])
    real = one[1] > OUT
    width = min(one[0].shape[1], other[0].shape[1])
    alike = np.array_equal(one[0][real, :width], other[0][real, :width])
    return alike and np.array_equal(real, other[1] > OUT)


def main() -> None:
    """Writes the file, one case a line."""
    torch.set_num_threads(1)
    hf.logging.set_verbosity_error()
    warnings.filterwarnings("ignore", "Unfeasible length|Using the model-agnostic")
    file = layouts.REFERENCES / "generation.json"
    asked = sys.argv[1:] or list(GENERATING)
    kept = json.loads(file.read_text()) if sys.argv[1:] else {"cases": [], "redrawn": {}}
    kept["cases"] = [case for case in kept["cases"] if case["layout"] not in asked]
    found = [json.dumps(case, separators=(",", ":")) for case in kept["cases"]]
    missing = total = 0
    redrawn: dict[str, list[str]] = {
        name: seeds for name, seeds in kept["redrawn"].items() if name not in asked
    }
    for name in asked:
        encodes = layouts.LAYOUTS[name]["config"].get("is_encoder_decoder")
        cls = hf.AutoModelForSeq2SeqLM if encodes else hf.AutoModelForCausalLM
        with tempfile.TemporaryDirectory() as folder:
            layouts.write(name, Path(folder))
            usual, wide = (
                cls.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
                .eval()
                .to(dtype)
                for dtype in (torch.float32, torch.float64)
            )
        for n in range(FEWER if name in LIKE else CASES):
            for attempt in range(9):
                what = case(name, f"{n}.{attempt}")
                out = generate(usual, name, what)
                with exact():
                    true = generate(wide, name, what)
                if same(out, true):
                    break
                redrawn.setdefault(name, []).append(f"{n}.{attempt}")
            tokens, scores = out
            what |= {"layout": name, "tokens": tokens.tolist()}
            if scores is not None:
                what["scores"] = [float(f"{score:.7g}") for score in scores]
                missing, total = missing + int((scores <= OUT).sum()), total + len(scores)
            found.append(json.dumps(what, separators=(",", ":")))
        print(name, redrawn.get(name), flush=True)
    told = {"transformers": hf.__version__, "redrawn": redrawn}
    lines = ",\n".join(found)
    text = json.dumps(told)[:-1] + f', "cases": [\n{lines}\n]}}\n'
    file.write_text(text)
    print(f"{len(found)} cases, {missing} of {total} hypotheses do not exist, {len(text)} bytes")


if __name__ == "__main__":
    main()
