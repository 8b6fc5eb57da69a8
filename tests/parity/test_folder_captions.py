"""Captions of a folder are those of ``generate()`` with the folder's generation config."""

import json

import numpy as np
import pytest
from PIL import Image

import transformer_jax as tj
from transformer_jax.core.errors import ConfigError

pytestmark = [pytest.mark.parity, pytest.mark.slow]

CONFIGS = {
    "greedy, to max_length": {"max_length": 24},
    "beams": {"num_beams": 4, "max_length": 16, "length_penalty": 2.0, "early_stopping": True},
    "more keys": {
        "num_beams": 3, "max_new_tokens": 18, "min_length": 6, "no_repeat_ngram_size": 2,
        "repetition_penalty": 1.3, "bad_words_ids": [[7], [8, 9]], "forced_eos_token_id": 2,
        "suppress_tokens": [11], "begin_suppress_tokens": [12],
    },
    "several": {"num_beams": 4, "num_return_sequences": 3, "max_length": 12},
}  # fmt: skip
TOKENS = {"decoder_start_token_id": 1, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp("captioner")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
             "intermediate_size": 64}  # fmt: skip
    encoder = transformers.ViTConfig(**sizes, image_size=32, patch_size=8)
    decoder = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=4, vocab_size=60, n_positions=40, is_decoder=True,
        add_cross_attention=True, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    torch.manual_seed(1)
    model = transformers.VisionEncoderDecoderModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)  # texts that differ by picture
    model.generation_config = transformers.GenerationConfig(**TOKENS)
    model.save_pretrained(path)
    transformers.ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(path)
    vocab = {name: i for i, name in enumerate(["<pad>", "<s>", "</s>", *map(str, range(57))])}
    usual = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    special = [{"id": i, "content": name, "special": True, **usual}
               for name, i in [*vocab.items()][:3]]  # fmt: skip
    (path / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
        "normalizer": None, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None,
        "decoder": None, "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<pad>"},
    }))  # fmt: skip
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    (path / "tokenizer_config.json").write_text(json.dumps(names))
    draw = np.random.default_rng(0)
    for i in range(3):
        Image.fromarray(draw.integers(0, 256, (32, 32, 3), np.uint8)).save(path / f"{i}.png")
    return path, model


@pytest.mark.filterwarnings("ignore:. of 3 captions reached the length limit")
@pytest.mark.parametrize("name", CONFIGS)
def test_captions_are_those_of_generate(folder, name):
    import torch
    import transformers

    path, model = folder
    (path / "generation_config.json").write_text(json.dumps({**TOKENS, **CONFIGS[name]}))
    pictures = [path / f"{i}.png" for i in range(3)]
    processor = transformers.AutoImageProcessor.from_pretrained(path, backend="pil")
    pixels = torch.tensor(
        np.stack(processor([Image.open(one) for one in pictures])["pixel_values"])
    )
    config = transformers.GenerationConfig.from_pretrained(path)
    with torch.no_grad():
        wanted = model.generate(pixels, generation_config=config)
    count = CONFIGS[name].get("num_return_sequences", 1)
    found = tj.load(path)([str(one) for one in pictures])
    tokens = [list(one.tokens) for caption in found
              for one in (caption, *caption.alternatives)][: 3 * count]  # fmt: skip
    for row, ids in zip(wanted[:, 1:].tolist(), tokens, strict=True):
        assert row[: len(ids)] == ids
        assert set(row[len(ids) :]) <= {TOKENS["pad_token_id"]}
    assert max(map(len, tokens)) > 10


def test_a_key_that_is_not_supported_is_refused_by_name(folder):
    path, _ = folder
    refused = {"guidance_scale": 2.0, "encoder_repetition_penalty": 1.5}
    for said, value in refused.items():
        fields = {said: value}
        (path / "generation_config.json").write_text(json.dumps({**TOKENS, **fields}))
        with pytest.raises(ConfigError, match=said):
            tj.load(path)(str(path / "0.png"))
