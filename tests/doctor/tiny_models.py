"""Tiny models of all families, with drawn parameters."""

import dataclasses

from flax import nnx

from tests.drawing import drawn
from transformer_jax.models.build import make_model
from transformer_jax.models.captioner import Captioner
from transformer_jax.models.config import (
    AttentionConfig,
    ComputeConfig,
    EmbeddingConfig,
    FeatureConfig,
    FeedForwardConfig,
    HeadConfig,
    ImageConfig,
    MixerConfig,
    NormConfig,
    PositionConfig,
    ScoreConfig,
    TransformerConfig,
)
from transformer_jax.models.contrast_config import ContrastConfig
from transformer_jax.models.recurrent_config import RecurrentConfig
from transformer_jax.models.two_towers import TwoTowers

LEARNED = PositionConfig(kind="learned", max_length=32)


def configuration(encoder_layers=0, decoder_layers=0, **fields):
    sizes = {
        "vocab_size": 31,
        "d_model": 16,
        "attention": AttentionConfig(num_heads=2),
        "feed_forward": FeedForwardConfig(d_ff=32),
    }
    return TransformerConfig(
        encoder_layers=encoder_layers, decoder_layers=decoder_layers, **(sizes | fields)
    )


def image_configuration(**fields):
    return configuration(2, vocab_size=0, positions=LEARNED, image=ImageConfig(8, 4), **fields)


def model(kind, config, **heads):
    return nnx.merge(*drawn(lambda: make_model(kind, config, rngs=nnx.Rngs(0), **heads)))


def modern(**fields):
    """A decoder as since Llama: rotary embeddings, RMS norm first, fewer key heads."""
    return configuration(
        0, 2, positions=PositionConfig(kind="rope"),
        attention=AttentionConfig(num_heads=4, num_kv_heads=2, bias=False, out_bias=False),
        norm=NormConfig(kind="rms", placement="pre"), **fields,
    )  # fmt: skip


BERT = {
    "head": HeadConfig(bias=True, mlm_transform=True, pooler=True),
    "embedding": EmbeddingConfig(type_vocab_size=2, layernorm_embedding=True),
    "positions": LEARNED,
}
BFLOAT16 = ComputeConfig(dtype="bfloat16")
MODELS = {
    "decoder": lambda: model("decoder", configuration(0, 2, positions=LEARNED)),
    "modern decoder": lambda: model("decoder", modern()),
    "decoder with windows": lambda: model(
        "decoder", modern(scores=ScoreConfig(sliding_window=4, sliding_window_every=2))
    ),
    "scanned decoder": lambda: model(
        "decoder", configuration(0, 3, compute=ComputeConfig(scan_layers=True))
    ),
    "bfloat16 decoder": lambda: model("decoder", modern(compute=BFLOAT16)),
    "recurrent blocks": lambda: model(
        "decoder",
        configuration(0, 2, mixer=MixerConfig("recurrent"), positions=PositionConfig("none")),
    ),
    "translator": lambda: model("encoder-decoder", configuration(2, 2)),
    "translator with relative positions": lambda: model(
        "encoder-decoder", configuration(1, 1, positions=PositionConfig(kind="relative"))
    ),
    "bfloat16 translator": lambda: model("encoder-decoder", configuration(1, 1, compute=BFLOAT16)),
    "recurrent translator": lambda: model(
        "encoder-decoder", RecurrentConfig(vocab_size=31, d_model=16)
    ),
    "speech recognizer": lambda: model(
        "encoder-decoder",
        configuration(
            1,
            1,
            features=FeatureConfig(num_features=5),
            embedding=EmbeddingConfig(share_encoder_decoder_embeddings=False),
        ),
    ),
    "encoder": lambda: model("encoder", configuration(2, 0, **BERT)),
    "classifier": lambda: model(
        "encoder-task", configuration(1, 0, **BERT), task="classify", labels=3
    ),
    "tagger": lambda: model(
        "encoder-task",
        configuration(1, 0, positions=dataclasses.replace(LEARNED, skip_padding=True)),
        task="tag",
        labels=3,
    ),
    "classifying decoder": lambda: model(
        "decoder-task", configuration(0, 1), task="classify", labels=3
    ),
    "image classifier": lambda: model("image", image_configuration(), task="classify", labels=3),
    "captioner": lambda: nnx.merge(
        *drawn(lambda: Captioner(image_configuration(), configuration(0, 1), rngs=nnx.Rngs(0)))
    ),
    "two towers": lambda: nnx.merge(
        *drawn(
            lambda: TwoTowers(
                image_configuration(),
                configuration(0, 1),
                ContrastConfig(projection_dim=8),
                rngs=nnx.Rngs(0),
            )
        )
    ),
}
