"""Laws on models of other libraries, called as they are: PyTorch through NumPy."""

import numpy as np
import pytest

from transformer_jax import laws

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity]

B, T, V = 3, 8, 40
TOKENS = np.random.default_rng(0).integers(0, V, (B, T))
REAL = np.arange(T)[None] < np.array([[T], [5], [6]])


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=V,
        bos_token_id=0,
        eos_token_id=0,
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=T,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config).eval()


def bert():
    config = transformers.BertConfig(
        vocab_size=V, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=T,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.BertModel(config).eval()


@torch.no_grad()
def logits_of(model, tokens, **how):
    how = {name: torch.as_tensor(value) for name, value in how.items()}
    return model(input_ids=torch.as_tensor(tokens), **how)[0].numpy()


def test_gpt2_of_transformers():
    model = gpt2()
    run = lambda tokens: logits_of(model, tokens)
    laws.causality(run, TOKENS).require()
    laws.batch_mates(run, TOKENS).require()
    laws.batch_of_one(run, TOKENS).require()
    laws.repeatability(run, TOKENS).require()
    model.train()  # with dropout
    assert not laws.repeatability(run, TOKENS).holds


@pytest.mark.parametrize("positions", [False, True])
def test_left_padding_of_gpt2_needs_position_ids(positions):
    """``forward`` counts padding as positions; ``generate`` passes them."""
    model = gpt2()

    def read(tokens, cache, starts=None):
        tokens = np.concatenate([cache[0], tokens], axis=1)
        starts = cache[1] if starts is None else starts
        mask = (np.arange(tokens.shape[1])[None] >= starts[:, None]).astype(int)
        how = {"position_ids": np.maximum(mask.cumsum(1) - 1, 0)} if positions else {}
        return logits_of(model, tokens, attention_mask=mask, **how)[:, -1], (tokens, starts)

    step = lambda token, cache: read(token[:, None], cache)
    empty, starts = (np.zeros((B, 0), int), np.zeros(B, int)), np.array([0, 2, 3])
    whole = lambda tokens: logits_of(model, tokens)
    found = laws.prompt_padding(whole, read, step, empty, TOKENS, starts, tolerance=1e-4)
    assert found.holds == positions
    assert positions or found.where.startswith(("row 1", "row 2"))


@pytest.mark.parametrize("mask", [True, False])
def test_bert_of_transformers_reads_padding_without_a_mask(mask):
    model = bert()
    how = lambda real: {"attention_mask": real.astype(int)} if mask else {}
    run = lambda tokens, real: logits_of(model, tokens, **how(real))
    assert laws.padding(run, TOKENS, REAL).holds == mask
    assert laws.padding_length(run, TOKENS, REAL).holds == mask


@pytest.mark.parametrize("flipped", [True, False])
def test_key_padding_mask_of_torch_is_true_at_padding(flipped):
    """``key_padding_mask`` hides keys where it is True; a mask of real positions is upside down."""
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    words = torch.nn.Embedding(V, 16)

    @torch.no_grad()
    def run(tokens, real):
        x = words(torch.as_tensor(tokens))
        hidden = torch.as_tensor(real if flipped else ~real)
        return layer(x, x, x, key_padding_mask=hidden)[0].numpy()

    real = REAL.copy()
    real[0, -1] = False  # with a mask upside down, a row without padding would see nothing
    assert laws.padding(run, TOKENS, real).holds != flipped


def test_a_fully_masked_row_of_torch_is_no_number():
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()

    @torch.no_grad()
    def kernel(q, k, v, cotangent, mask):
        x = torch.as_tensor(np.asarray(q)[:, 0])
        hidden = torch.as_tensor(~np.asarray(mask)[:, 0, 0])
        return (layer(x, x, x, key_padding_mask=hidden)[0].numpy()[:, None],)

    x = np.random.default_rng(0).standard_normal((2, 1, 4, 16), np.float32)
    mask = np.broadcast_to(np.array([True, False])[:, None, None, None], (2, 1, 4, 4))
    found = laws.masked_rows(kernel, x, x, x, mask)
    assert found.error == np.inf
    assert found.where.startswith("output: row 1")
