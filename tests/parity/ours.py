"""Outputs of our models, by the names of the outputs of transformers."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from transformer_jax.functional.masks import Mask
from transformer_jax.interop.hf_checkpoint import abstract_model


def outputs(model, module, inputs):
    """The outputs of a model.

    Args:
        model: The description of a Hugging Face model.
        module: It, with parameters.
        inputs: Arrays by the names of transformers.
    """
    given = {key: jnp.asarray(value) for key, value in inputs.items()}
    if model.kind == "image":
        out = module(jnp.moveaxis(given["pixel_values"], 1, -1))
        if model.task:
            return {"logits": out}
        return {"last_hidden_state": out, "pooler_output": module.pooled(out)}
    if model.kind == "captioner":
        pixels = jnp.moveaxis(given["pixel_values"], 1, -1)
        return {"logits": module(pixels, given["decoder_input_ids"])}
    if model.kind == "two-tower":
        images = module.embed_images(jnp.moveaxis(given["pixel_values"], 1, -1))
        ids = given["input_ids"]
        texts = module.embed_texts(ids, given.get("attention_mask", jnp.ones_like(ids)).sum(1))
        matches = module.similarities(images, texts)
        return {"image_embeds": images, "text_embeds": texts, "logits_per_image": matches}
    ids, real = given["input_ids"], given["attention_mask"].astype(bool)
    if model.kind == "encoder-decoder":
        return {"logits": module(ids, given["decoder_input_ids"], real)}
    if model.kind == "decoder":
        # Queries that are padding see what transformers lets them see.
        seen = Mask(dense=real[:, None, None])
        hidden = module.decoder(module.embed(ids), seen, positions=given["position_ids"])
        return {"logits": module.logits(hidden)}
    out = module(ids, real, given.get("token_type_ids"))
    if model.task == "qa":
        return {"start_logits": out[..., 0], "end_logits": out[..., 1]}
    if model.task:
        return {"logits": out[..., 0] if model.task == "replaced" else out}
    if not model.words:
        pooled = {"pooler_output": module.pooled(out)} if model.config.head.pooler else {}
        return {"last_hidden_state": out, **pooled}
    if not model.next_sentence:
        return {"logits": module.mlm_logits(out)}
    return {
        "prediction_logits": module.mlm_logits(out),
        "seq_relationship_logits": module.nsp_logits(out),
    }


def compute(model, params, inputs):
    """The outputs as NumPy arrays, from one compiled program, in full precision."""
    graph = nnx.split(abstract_model(model))[0]
    run = jax.jit(lambda params, inputs: outputs(model, nnx.merge(graph, params), inputs))
    with jax.default_matmul_precision("highest"):
        found = run(params, dict(inputs))
    return {name: np.asarray(value) for name, value in found.items()}
