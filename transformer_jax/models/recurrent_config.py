"""The configuration of recurrent translators, from Cho and Sutskever to Bahdanau and Luong."""

import dataclasses
import functools
from typing import Annotated, Literal, TypeAlias

from transformer_jax.core.config_fields import Configuration, Range, Rate
from transformer_jax.core.errors import ConfigError
from transformer_jax.models.config import CellName, ComputeConfig, FeatureConfig, TransformerConfig
from transformer_jax.models.presets import Presets

__all__ = [
    "RECURRENT_PRESETS",
    "AlignmentConfig",
    "ModelConfig",
    "RecurrentConfig",
    "RecurrentEmbeddingConfig",
    "RecurrentHeadConfig",
    "ScoreName",
]

ScoreName = Literal["dot", "scaled_dot", "general", "concat", "location"]


@dataclasses.dataclass(frozen=True)
class RecurrentEmbeddingConfig(Configuration, group="model.embedding"):
    """Tokens to vectors."""

    # Embedding size, E; None is d_model.
    embedding_size: Annotated[int, Range(1, 1 << 20)] | None = None
    share_encoder_decoder_embeddings: bool = True  # one table for encoder and decoder
    init: str | None = None  # initial word vectors: a word2vec file


@dataclasses.dataclass(frozen=True)
class AlignmentConfig(Configuration, group="model.attention"):
    """Attention of a decoder's state over the encoded states."""

    # Score of a decoder state and an encoded state; none is no attention.
    score: Literal["none", "dot", "scaled_dot", "general", "concat", "location"] = "general"
    # State that attends: after the token, for its output only (Luong), or before the token, so that
    # the layers read the context too (Bahdanau; without a score Cho).
    query: Literal["current", "previous"] = "current"
    input_feeding: bool = False  # feed the previous hidden state to the layers (Luong)


@dataclasses.dataclass(frozen=True)
class RecurrentHeadConfig(Configuration, group="model.head"):
    """Output head: hidden states to logits."""

    tie_word_embeddings: bool = True  # the output matrix is the decoder's embedding table
    # Size of hidden states with attention.query previous; None is the size of embeddings.
    maxout_size: Annotated[int, Range(1, 1 << 20)] | None = None


@dataclasses.dataclass(frozen=True)
class RecurrentConfig(Configuration, group="model"):
    """A translator of recurrent layers; the defaults are a small one of Luong et al. 2015."""

    kind: Literal["recurrent"] = "recurrent"  # distinguishes it from other models in config.json
    # Vocabulary size, V; training sets it from the tokenizer.
    vocab_size: Annotated[int, Range(1, 1 << 26)] = 8000
    # Vocabulary size of the decoder; None is the encoder's.
    decoder_vocab_size: Annotated[int, Range(1, 1 << 26)] | None = None
    # Size of a state, D; in the encoder, of each direction.
    d_model: Annotated[int, Range(1, 1 << 17)] = 256
    num_layers: Annotated[int, Range(1, 1 << 8)] = 1  # layers of the encoder, and of the decoder
    cell: CellName = "lstm"  # cell of every layer
    bidirectional: bool = True  # the encoder reads in both directions
    reverse_source: bool = False  # the encoder reads from the last token (Sutskever et al. 2014)
    # Longest source or target; the number of columns of the location score.
    max_length: Annotated[int, Range(1, 1 << 20)] = 512
    dropout: Rate = 0.2  # dropout of embeddings, between layers and of hidden states
    # Truncated backpropagation: gradients stop at every multiple of this many positions; None goes
    # back to the first position.
    bptt_length: Annotated[int, Range(1, 1 << 20)] | None = None
    embedding: RecurrentEmbeddingConfig = RecurrentEmbeddingConfig()
    attention: AlignmentConfig = AlignmentConfig()
    head: RecurrentHeadConfig = RecurrentHeadConfig()
    features: FeatureConfig = FeatureConfig()
    compute: ComputeConfig = ComputeConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self)

    @property
    def embedding_size(self) -> int:
        """E, the size of embeddings."""
        return self.embedding.embedding_size or self.d_model

    @property
    def encoder_layers(self) -> int:
        """Layers of the encoder."""
        return self.num_layers

    @property
    def decoder_layers(self) -> int:
        """Layers of the decoder."""
        return self.num_layers

    @property
    def encoded_size(self) -> int:
        """Size of an encoded state: all directions together."""
        return (1 + self.bidirectional) * self.d_model

    @property
    def hidden_size(self) -> int:
        """Size of a hidden state, from which logits are computed."""
        if self.attention.query == "current":
            return self.d_model
        return self.head.maxout_size or self.embedding_size

    @property
    def width_beside(self) -> int:
        """Width of the input of the decoder's layers in addition to an embedding."""
        if self.attention.query == "previous":
            return self.encoded_size
        return self.d_model if self.attention.input_feeding else 0

    @property
    def places(self) -> int:
        """Columns of the location score: the longest source, padded like a batch."""
        return -(-self.max_length // 128) * 128

    def decoder(self) -> "RecurrentConfig":
        """Configuration of the decoder: its own vocabulary, and always tokens, never features."""
        vocab = self.decoder_vocab_size or self.vocab_size
        return dataclasses.replace(
            self, vocab_size=vocab, decoder_vocab_size=None, features=FeatureConfig()
        )


ModelConfig: TypeAlias = TransformerConfig | RecurrentConfig  # models trained by gradients


def _check(config: RecurrentConfig) -> None:
    for name in ("scan_layers", "remat"):
        if getattr(config.compute, name):
            raise ConfigError(
                f"model.compute.{name}: recurrent layers do not support it: leave it out"
            )
    _check_attention(config, config.attention)
    config.features.check(config.embedding.share_encoder_decoder_embeddings)
    own = config.decoder_vocab_size not in (None, config.vocab_size)
    if config.embedding.share_encoder_decoder_embeddings and own:
        raise ConfigError(
            "model.decoder_vocab_size: a decoder with its own vocabulary shares no embeddings: "
            "set model.embedding.share_encoder_decoder_embeddings to False"
        )
    tied, width = config.head.tie_word_embeddings, config.hidden_size
    if tied and width != config.embedding_size:
        raise ConfigError(
            f"model.head.tie_word_embeddings: hidden states have size {width} and embeddings "
            f"{config.embedding_size}: make them equal, or set it to False"
        )


def _check_attention(config: RecurrentConfig, attention: AlignmentConfig) -> None:
    previous = attention.query == "previous"
    if attention.input_feeding and (previous or attention.score == "none"):
        raise ConfigError(
            "model.attention.input_feeding is for attention with query current: with query "
            "previous the layers read the context, and without a score there is none"
        )
    if config.head.maxout_size is not None and not previous:
        raise ConfigError("model.head.maxout_size is for model.attention.query previous")
    if attention.score in ("dot", "scaled_dot") and config.encoded_size != config.d_model:
        raise ConfigError(
            f"model.attention.score {attention.score}: states have size {config.d_model} and "
            f"those of an encoder in both directions {config.encoded_size}: choose general or "
            f"concat, or set model.bidirectional to False"
        )


_preset = functools.partial(RecurrentConfig, dropout=0.0)

# Published sizes.
RECURRENT_PRESETS: Presets[RecurrentConfig] = Presets(
    {
        # Cho et al. 2014, appendix A: 15,000 words, embeddings of 100, 500 maxout units.
        "cho2014": _preset(
            vocab_size=15_000,
            d_model=1000,
            cell="gru",
            bidirectional=False,
            embedding=RecurrentEmbeddingConfig(100, share_encoder_decoder_embeddings=False),
            attention=AlignmentConfig("none", "previous"),
            head=RecurrentHeadConfig(False, 500),
        ),
        # Sutskever et al. 2014, 3.4: 384 M parameters, of which 64 M are recurrent.
        "sutskever2014": _preset(
            vocab_size=160_000,
            decoder_vocab_size=80_000,
            d_model=1000,
            num_layers=4,
            bidirectional=False,
            reverse_source=True,
            embedding=RecurrentEmbeddingConfig(1000, share_encoder_decoder_embeddings=False),
            attention=AlignmentConfig("none"),
            head=RecurrentHeadConfig(False),
        ),
        # Bahdanau et al. 2015, A.2: 30,000 words, embeddings of 620, 500 maxout units.
        "bahdanau2014": _preset(
            vocab_size=30_000,
            d_model=1000,
            cell="gru",
            embedding=RecurrentEmbeddingConfig(620, share_encoder_decoder_embeddings=False),
            attention=AlignmentConfig("concat", "previous"),
            head=RecurrentHeadConfig(False, 500),
        ),
        # Luong et al. 2015, 4.1: 50,000 words, sources reversed, dropout of 0.2.
        "luong2015": _preset(
            vocab_size=50_000,
            d_model=1000,
            num_layers=4,
            bidirectional=False,
            reverse_source=True,
            dropout=0.2,
            embedding=RecurrentEmbeddingConfig(1000, share_encoder_decoder_embeddings=False),
            attention=AlignmentConfig("general", input_feeding=True),
            head=RecurrentHeadConfig(False),
        ),
    }
)
