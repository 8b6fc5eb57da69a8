"""The peers' cases: PyTorch, Hugging Face transformers and CTranslate2, each at its best.

Runs in the peers' Python, so it imports only the worker from this repository.
"""

import math
import os
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.peers_steps import training_steps
from benchmarks.worker import DEVICE, Setup, serve

THREADS = int(os.environ.get("OMP_NUM_THREADS", "1"))
torch.set_num_threads(THREADS)


class TorchTransformer(nn.Module):
    """``torch.nn.Transformer`` with tied embeddings and sinusoidal positions."""

    def __init__(self, vocab: int, width: int, heads: int, layers: int, hidden: int):
        super().__init__()
        self.width = width
        self.embedding = nn.Embedding(vocab, width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.transformer = nn.Transformer(
            width, heads, layers, layers, hidden, dropout=0.0, batch_first=True
        )
        self.bias = nn.Parameter(torch.zeros(vocab))
        angle = np.arange(512)[:, None] / 10000 ** (2 * (np.arange(width) // 2) / width)[None]
        table = np.where(np.arange(width) % 2, np.cos(angle), np.sin(angle)).astype("f4")
        self.register_buffer("positions", torch.from_numpy(table))

    def embed(self, ids):
        """Returns scaled token vectors with positions."""
        return self.embedding(ids) * math.sqrt(self.width) + self.positions[: ids.shape[1]]

    def forward(self, source, target):
        """Returns the logits after each token of ``target``."""
        pad = source == 0
        size = target.shape[1]
        causal = nn.Transformer.generate_square_subsequent_mask(size, device=target.device)
        out = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=pad,
            memory_key_padding_mask=pad,
        )
        return out @ self.embedding.weight.T + self.bias


def train(vocab, width, heads, layers, hidden, batch, length, compiled=False, dtype="float32"):
    """One AdamW step with label smoothing and clipping, as in ours; bfloat16 by autocast."""
    torch.manual_seed(0)
    model = TorchTransformer(vocab, width, heads, layers, hidden).to(DEVICE).train()
    run_model = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    rng = np.random.default_rng(0)
    draw = lambda n: torch.from_numpy(rng.integers(4, vocab, (batch, n))).to(DEVICE)
    batches = [(draw(length), draw(length + 1)) for _ in range(8)]

    def loss_of(source, target):
        logits = run_model(source, target[:, :-1].contiguous())
        return nn.functional.cross_entropy(
            logits.reshape(-1, vocab),
            target[:, 1:].reshape(-1),
            ignore_index=0,
            label_smoothing=0.1,
        )

    return training_steps(list(model.parameters()), optimizer, loss_of, batches, dtype)


_models: dict[str, nn.Module] = {}


def marian(folder, vocab, width, heads, layers, hidden):
    """Creates a Marian model with random weights, once in ``folder`` for all workers."""
    from transformers import MarianConfig, MarianMTModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    where = Path(folder) / "marian"
    if not where.exists():
        torch.manual_seed(0)
        config = MarianConfig(
            vocab_size=vocab,
            d_model=width,
            encoder_layers=layers,
            decoder_layers=layers,
            encoder_attention_heads=heads,
            decoder_attention_heads=heads,
            encoder_ffn_dim=hidden,
            decoder_ffn_dim=hidden,
            activation_function="relu",
            max_position_embeddings=512,
            pad_token_id=0,
            bos_token_id=2,
            eos_token_id=3,
            forced_eos_token_id=None,
            decoder_start_token_id=2,
            scale_embedding=True,
            init_std=0.05,
        )
        model = MarianMTModel(config).eval()
        model.save_pretrained(where)
        weights = {k: v.numpy() for k, v in model.state_dict().items()}
        np.savez(Path(folder) / "marian.npz", **weights)
    if folder not in _models:
        _models[folder] = MarianMTModel.from_pretrained(where).eval()
    return _models[folder]


def _convert(weights, where, vocab, width, heads, layers):
    """Writes the same weights as a CTranslate2 model, with its specification classes."""
    from ctranslate2.specs import Activation, TransformerSpec

    spec = TransformerSpec.from_config(
        (layers, layers), heads, pre_norm=False, activation=Activation.RELU
    )
    spec.config.bos_token, spec.config.eos_token = "<bos>", "<eos>"
    spec.config.unk_token, spec.config.decoder_start_token = "<unk>", "<bos>"
    tokens = ["<pad>", "<unk>", "<bos>", "<eos>"] + [f"t{i}" for i in range(4, vocab)]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    get = lambda name: weights[f"model.{name}"]

    def linear(to, *names):
        to.weight = np.concatenate([get(f"{n}.weight") for n in names])
        to.bias = np.concatenate([get(f"{n}.bias") for n in names])

    def norm(to, name):
        to.gamma, to.beta = get(f"{name}.weight"), get(f"{name}.bias")

    for side, part in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        tables = part.embeddings if isinstance(part.embeddings, list) else [part.embeddings]
        tables[0].weight = weights["model.shared.weight"]
        part.scale_embeddings = True
        part.position_encodings.encodings = get(f"{side}.embed_positions.weight")
        for i, layer in enumerate(part.layer):
            at = f"{side}.layers.{i}"
            attention = f"{at}.self_attn"
            linear(layer.self_attention.linear[0], *(f"{attention}.{x}_proj" for x in "qkv"))
            linear(layer.self_attention.linear[1], f"{attention}.out_proj")
            norm(layer.self_attention.layer_norm, f"{at}.self_attn_layer_norm")
            if side == "decoder":
                cross = f"{at}.encoder_attn"
                linear(layer.attention.linear[0], f"{cross}.q_proj")
                linear(layer.attention.linear[1], f"{cross}.k_proj", f"{cross}.v_proj")
                linear(layer.attention.linear[2], f"{cross}.out_proj")
                norm(layer.attention.layer_norm, f"{at}.encoder_attn_layer_norm")
            linear(layer.ffn.linear_0, f"{at}.fc1")
            linear(layer.ffn.linear_1, f"{at}.fc2")
            norm(layer.ffn.layer_norm, f"{at}.final_layer_norm")
    spec.decoder.projection.weight = weights["model.shared.weight"]
    spec.decoder.projection.bias = weights["final_logits_bias"][0]
    spec.validate()
    spec.optimize(quantization="float32")
    where.mkdir(parents=True)
    spec.save(str(where))


def _source(vocab, batch, length):
    rng = np.random.default_rng(1)
    ids = rng.integers(4, vocab, (batch, length))
    ids[:, -1] = 3
    return ids


def generate(
    folder, vocab, width, heads, layers, hidden, batch, length, new, beams, dtype="float32",
    cache=None,
):  # fmt: skip
    """Hugging Face ``generate``: exactly ``new`` tokens per sentence; a static cache compiles."""
    model = marian(folder, vocab, width, heads, layers, hidden).to(DEVICE, getattr(torch, dtype))
    source = torch.from_numpy(_source(vocab, batch, length)).to(DEVICE)

    @torch.no_grad()
    def run(times):
        for _ in range(times):
            out = model.generate(
                input_ids=source,
                attention_mask=torch.ones_like(source),
                num_beams=beams,
                do_sample=False,
                min_new_tokens=new,
                max_new_tokens=new,
                cache_implementation=cache,
            )
        return out[:, 1:].tolist()

    return run, {}


def ctranslate2(
    folder, vocab, width, heads, layers, hidden, batch, length, new, beams, precision="float32"
):
    """CTranslate2 on the same weights: exactly ``new`` tokens per sentence."""
    import ctranslate2

    model, where = marian(folder, vocab, width, heads, layers, hidden), Path(folder) / "ctranslate2"
    if not where.exists():
        weights = {k: v.numpy() for k, v in model.state_dict().items()}
        _convert(weights, where, vocab, width, heads, layers)
    translator = ctranslate2.Translator(
        str(where),
        device=DEVICE,
        inter_threads=1,
        intra_threads=THREADS,
        compute_type=precision,
    )
    name = lambda i: ["<pad>", "<unk>", "<bos>", "<eos>"][i] if i < 4 else f"t{i}"
    source = [[name(i) for i in row] for row in _source(vocab, batch, length)]
    ids = {name(i): i for i in range(vocab)}

    def run(times):
        for _ in range(times):
            out = translator.translate_batch(
                source,
                beam_size=beams,
                min_decoding_length=new,
                max_decoding_length=new,
                length_penalty=1.0 if beams > 1 else 0.0,
                max_batch_size=0,
            )
        return [[ids[token] for token in hypothesis.hypotheses[0]] for hypothesis in out]

    return run, {"compute_type": translator.compute_type}


CASES: dict[str, Setup] = {"train": train, "generate": generate, "ctranslate2": ctranslate2}

if __name__ == "__main__":
    serve(CASES)
