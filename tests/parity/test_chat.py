"""Conversations with a published model, beside transformers: the same tokens."""

import json

import pytest

from transformer_jax.data.backends import SPECIAL
from transformer_jax.data.chat.template import built_in, named_template
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.inference.loading import load

pytestmark = pytest.mark.parity
ENDS = ("<|im_start|>", "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|user|>")
SAID = ["Hi there", "yes and no", "so be it"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Llama that has learnt nothing, but is far from uniform."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("models") / "llama"
    tokenizer = train_tokenizer(
        "bpe", ["hello user assistant yes no so be it Hi there"] * 3, 400, special=(*SPECIAL, *ENDS)
    )
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=tokenizer.bos,
        eos_token_id=tokenizer.eos,
        pad_token_id=tokenizer.pad,
        initializer_range=0.4,
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save(folder / "tokenizer.json")
    return folder


@pytest.mark.parametrize("name", built_in())
def test_three_turns_are_equal_to_transformers(folder, name):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    fields = {
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "chat_template": named_template(name).text,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))
    theirs = transformers.LlamaForCausalLM.from_pretrained(folder)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    ours, messages = load(folder), []
    ours.chat([{"role": "user", "content": "so"}], max_new_tokens=1)
    encoder = ours._chat.encoder
    suppressed = {tokenizer.bos_token_id, 0, 1} - set(encoder.end_tokens)
    for text in SAID:
        messages.append({"role": "user", "content": text})
        ids = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=False
        )
        with torch.no_grad():
            written = theirs.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=20,
                eos_token_id=list(encoder.end_tokens),
                suppress_tokens=sorted(suppressed),
                pad_token_id=0,
            )
        found = ours.chat(messages, temperature=0, max_new_tokens=20)
        assert list(found.tokens) == written[0, ids.shape[1] :].tolist()
        messages.append({"role": "assistant", "content": str(found)})
