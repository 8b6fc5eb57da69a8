"""Our cases: texts by JAX and by CTranslate2, from lines to lines, as in the commands."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks.ours import configuration
from benchmarks.ours_language import resized
from benchmarks.worker import Setup, serve
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.decoding.generation_config import TRANSLATION
from transformer_jax.decoding.options import TranslationBatching
from transformer_jax.decoding.requests import GenerationRequest
from transformer_jax.inference.engines import EngineConfig, on_ctranslate2
from transformer_jax.inference.pretrained import Pretrained, open_pretrained, read_facts
from transformer_jax.models.build import make_model
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.presets import PRESETS
from transformer_jax.runs.checkpoint import Checkpointer
from transformer_jax.runs.run_directory import RunDirectory
from transformer_jax.training.state import TrainState, split

EOS = 3
SPECIAL = {"pad": "w0", "unk": "w1", "bos": "w2", "eos": f"w{EOS}"}


def words(size: int) -> Tokenizer:
    """Returns one word per token."""
    vocabulary = {f"w{id}": id for id in range(size)}
    parts = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    fields = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w1"},
    }
    return Tokenizer(json.dumps(parts | fields), SPECIAL)


def make_run(folder: Path, kind: Any, config: TransformerConfig) -> Path:
    """Creates a run with random weights; with head biases, texts end as early as possible."""
    if folder.exists():
        return folder
    run = RunDirectory.create(folder)
    words(config.vocab_size).save(run.tokenizer)
    fields = {"model": dataclasses.asdict(config), "first": "bos", "special": SPECIAL}
    run.write(run.config, fields)
    params = split(make_model(kind, config, rngs=nnx.Rngs(0)))[1]
    if config.head.bias:
        params["head"]["bias"] = params["head"]["bias"].at[EOS].set(20.0)
    checkpointer = Checkpointer(run.checkpoints)
    checkpointer.save(1, TrainState(jnp.int32(1), params, {}))
    checkpointer.wait()
    checkpointer.close()
    return run.path


def texts(count: int, length: int, vocab: int) -> list[str]:
    """Returns random texts of one length."""
    drawn = np.random.default_rng(1).integers(4, vocab, (count, length))
    return [" ".join(f"w{id}" for id in row) for row in drawn.tolist()]


def opened(run: Path, engine: str) -> Pretrained:
    """Opens a run on JAX, or on CTranslate2 with the data type ``engine``."""
    if engine == "jax":
        return open_pretrained(run)
    return on_ctranslate2(read_facts(run), EngineConfig(engine))


def translate(folder, engine, batch, length, new, beams, **size):
    """Translates ``batch`` lines of ``length`` words into exactly ``new`` tokens each, with EOS."""
    config = configuration(**size)
    run = make_run(Path(folder) / "translator", "encoder-decoder", config)
    search = TRANSLATION.changed(num_beams=beams, min_length=new)
    batching = TranslationBatching(source_lengths=(length + 1,), rows=(batch,))
    translator = opened(run, engine).translator(search, batching)
    lines = texts(batch, length, config.vocab_size)
    found = translator.translate(lines)
    assert {len(one.tokens) for one in found} == {new}

    def work(times):
        for _ in range(times):
            found = translator.translate(lines)
        return [list(one.tokens) for one in found]

    return work, {}


def generate(folder, engine, batch, prompt, new, **size):
    """Generates ``new`` tokens after each of ``batch`` prompts, greedily, with a GPT-2."""
    config = resized(PRESETS["gpt2_small"], **size)
    run = make_run(Path(folder) / "gpt2", "decoder", config)
    model = opened(run, engine).language()
    asked = [
        GenerationRequest(text, max_new_tokens=new, temperature=0)
        for text in texts(batch, prompt - 1, config.vocab_size)
    ]
    assert {len(found[0].tokens) for found in model.generate(asked)} == {new}

    def work(times):
        for _ in range(times):
            found = model.generate(asked)
        return [list(texts[0].tokens) for texts in found]

    return work, {}


CASES: dict[str, Setup] = {"translate": translate, "generate": generate}

if __name__ == "__main__":
    serve(CASES)
