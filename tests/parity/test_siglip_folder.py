"""A SigLIP folder as transformers saves it is read from its files: pieces and image processor."""

import io
import random

import numpy as np
import pytest
from PIL import Image

import transformer_jax as tj

pytestmark = [pytest.mark.parity, pytest.mark.slow]

TEXT = "the quick brown fox jumps over lazy dogs a picture of cat and red square"
WORDS = TEXT.split(" ")


def pieces():
    import sentencepiece

    rng, file = random.Random(0), io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(rng.choices(WORDS, k=9)) for _ in range(200)]),
        model_writer=file, vocab_size=90, hard_vocab_limit=False, minloglevel=2,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
    )  # fmt: skip
    return file.getvalue()


@pytest.mark.filterwarnings("ignore:1 text was longer")
def test_texts_and_pictures_have_the_vectors_of_transformers(tmp_path):
    """Texts are padded and cut to the tokenizer's length, which the positions exceed."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    (tmp_path / "spiece.model").write_bytes(pieces())
    tokenizer = transformers.SiglipTokenizer(str(tmp_path / "spiece.model"), model_max_length=16)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
             "num_attention_heads": 2}  # fmt: skip
    config = transformers.SiglipConfig(
        text_config={**sizes, "vocab_size": len(tokenizer), "max_position_embeddings": 24,
                     "pad_token_id": 1, "bos_token_id": 1, "eos_token_id": 1},
        vision_config={**sizes, "image_size": 32, "patch_size": 8},
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.SiglipModel(config).eval()
    processor = transformers.SiglipProcessor(
        transformers.SiglipImageProcessorPil(size={"height": 32, "width": 32}), tokenizer
    )
    model.save_pretrained(tmp_path / "folder")
    processor.save_pretrained(tmp_path / "folder")
    assert not (tmp_path / "folder" / "tokenizer.json").exists()
    pixels = np.random.default_rng(0).integers(0, 256, (40, 70, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    texts = [
        "A picture of the Quick, brown fox!",
        "dogs",
        "zebra 12 naïve",
        "the red fox jumps over " * 9,
    ]
    inputs = processor(
        text=texts,
        images=Image.fromarray(pixels),
        padding="max_length",
        truncation=True,
        return_tensors="pt",
    )
    with torch.no_grad():
        wanted = model(input_ids=inputs["input_ids"], pixel_values=inputs["pixel_values"])
    ours = tj.load(tmp_path / "folder")
    found = ours.embed_texts(texts), ours.embed_images([tmp_path / "a.png"])
    for vectors, name in zip(found, ("text_embeds", "image_embeds"), strict=True):
        np.testing.assert_allclose(vectors, getattr(wanted, name).numpy(), atol=2e-6)
