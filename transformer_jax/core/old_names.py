"""Earlier names of settings, flags, request fields, metrics and checkpoint items.

Files that earlier versions wrote, and command lines written for them, stay usable: readers pass
what they read through this one table. Only current names are ever written or shown.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from transformer_jax.core.json_types import Json

__all__ = [
    "COMMANDS",
    "FLAGS",
    "ITEMS",
    "METRICS",
    "REQUESTS",
    "RUNS",
    "SETTINGS",
    "VALUES",
    "current_config",
    "current_flags",
    "current_keys",
    "current_metrics",
]

Value = TypeVar("Value")

log = logging.getLogger(__name__)

# Settings of runs, as dotted paths in config.json and as flags of training commands.
SETTINGS = {
    "model.vocab": "model.vocab_size",
    "model.width": "model.d_model",
    "model.decoder_vocab": "model.decoder_vocab_size",
    "model.decoder_heads": "model.decoder_attention_heads",
    "model.decoder_feed_forward": "model.decoder_ffn_dim",
    "model.embedding.norm": "model.embedding.layernorm_embedding",
    "model.embedding.segments": "model.embedding.type_vocab_size",
    "model.embedding.shared": "model.embedding.share_encoder_decoder_embeddings",
    "model.embedding.width": "model.embedding.embedding_size",
    "model.positions.rotary_base": "model.positions.rope_theta",
    "model.positions.rotary_dim": "model.positions.rope_dim",
    "model.positions.rotary_scaling": "model.positions.rope_scaling",
    "model.positions.rotary_yarn": "model.positions.rope_yarn",
    "model.positions.rotary_dynamic": "model.positions.rope_dynamic",
    "model.positions.rotary_short": "model.positions.rope_short_factor",
    "model.positions.rotary_long": "model.positions.rope_long_factor",
    "model.positions.rotary_short_length": "model.positions.rope_original_max_length",
    "model.positions.rotary_attention_factor": "model.positions.rope_attention_factor",
    "model.positions.rotary_interpolation": "model.positions.rope_interpolation",
    "model.positions.buckets": "model.positions.num_buckets",
    "model.attention.heads": "model.attention.num_heads",
    "model.attention.kv_heads": "model.attention.num_kv_heads",
    "model.scores.softcap": "model.scores.attn_logit_softcapping",
    "model.scores.window": "model.scores.sliding_window",
    "model.scores.window_every": "model.scores.sliding_window_every",
    "model.scores.window_layers": "model.scores.sliding_window_layers",
    "model.feed_forward.width": "model.feed_forward.d_ff",
    "model.feed_forward.dropout": "model.feed_forward.activation_dropout",
    "model.norm.place": "model.norm.placement",
    "model.norm.dropout": "model.norm.residual_dropout",
    "model.head.tied": "model.head.tie_word_embeddings",
    "model.head.softcap": "model.head.final_logit_softcapping",
    "model.head.transform": "model.head.mlm_transform",
    "model.head.transform_activation": "model.head.mlm_transform_activation",
    "model.image.size": "model.image.image_size",
    "model.image.patch": "model.image.patch_size",
    "model.image.channels": "model.image.num_channels",
    "model.compute.scan": "model.compute.scan_layers",
    "data.read.holdout": "data.read.validation_size",
    "data.read.over_long": "data.read.too_long",
    "data.read.second": "data.read.text_pair",
    "data.read.size": "data.read.corpus_size",
    "masking.share": "masking.mlm_probability",
    "masking.whole_words": "masking.whole_word_mask",
    "masking.pairs": "masking.sentence_objective",
    "training.smoothing": "training.label_smoothing",
    "training.average_decay": "training.ema_decay",
    "training.accumulation": "training.gradient_accumulation_steps",
    "training.tokens": "training.max_tokens",
    "training.rows": "training.batch_size",
    "training.length": "training.sequence_length",
    "training.rows_multiple": "training.required_batch_size_multiple",
    "training.buckets": "training.num_buckets",
    "loop.best": "loop.best_checkpoint_metric",
    "loop.max_skipped": "loop.max_nonfinite_steps",
    "optimizer.clip": "optimizer.max_grad_norm",
    "optimizer.schedule.warm_up": "optimizer.schedule.warmup_steps",
    "optimizer.schedule.final": "optimizer.schedule.final_fraction",
    "init": "init_from",
    "task.init": "task.init_from",
    "task.length": "task.max_length",
    "task.stride": "task.doc_stride",
    "evaluation.ngrams": "evaluation.ngram_orders",
    "evaluation.beams": "evaluation.num_beams",
    "distributed.coordinator": "distributed.coordinator_address",
    "distributed.processes": "distributed.num_processes",
    "distributed.process": "distributed.process_id",
    "distributed.local_devices": "distributed.num_local_devices",
    "distributed.heartbeat": "distributed.heartbeat_timeout_seconds",
}

# Values of settings: by the current name of the setting, earlier value -> current one.
VALUES: dict[str, dict[str, str]] = {
    "model.positions.kind": {"rotary": "rope"},
    "training.layout": {"blocks": "contiguous"},
    "loop.best_checkpoint_metric": {"valid_masked_accuracy": "valid_mlm_accuracy"},
    "data.read.too_long": {"cut": "truncate"},
    "masking.sentence_objective": {"next": "nsp", "order": "sop"},
    "sentence.pool": {"first": "cls"},
    "task.kind": {"span": "qa"},
}

# Settings that runs of earlier versions lack: a setting beside it that these runs have, and the
# value that keeps their results. New runs store the setting.
LATER: dict[str, tuple[str, Json]] = {
    "data.read.normalization": ("lowercase", "none"),
    "data.read.grouped_by": ("fields", "source"),
    "tokenizer.allow_unknown": ("kind", True),
    "tokenizer.allow_lossy": ("kind", True),
    "align.truncation": ("reference", "row"),
    "evaluation.max_len_a": ("sentences", 2.0),
    "evaluation.max_len_b": ("sentences", 10),
    "evaluation.tokenize": ("sentences", "13a"),
}

# Flags of commands that are no settings of a run: command -> earlier flag -> current flag.
FLAGS: dict[str, dict[str, str]] = {
    "answer": {"--best": "--top", "--top-k": "--top", "--longest": "--max-answer-len"},
    "attention": {"--beams": "--num-beams"},
    "classify": {"--read-ahead": "--buffer-size"},
    "describe": {"--batch": "--batch-size", "--target": "--plan"},
    "embed": {"--block": "--buffer-size", "--tokens": "--max-tokens"},
    "evaluate": {"--beams": "--num-beams", "--beside": "--compare"},
    "export": {"--shard-gigabytes": "--max-shard-size"},
    "finetune": {
        "--task.init": "--init-from",
        "--task.init-from": "--init-from",
        "--task.freeze": "--freeze",
        "--task.trainable-tokens": "--trainable-tokens",
        "--task.reinit-last": "--reinit-last",
        "--task.reinit-head": "--reinit-head",
    },
    "generate": {
        "--tokens": "--max-new-tokens",
        "--batch": "--batch-size",
        "--speculate": "--prompt-lookup-num-tokens",
        "--full": "--on-full-context",
        "--interpolate": "--rope-interpolation",
        "--beams": "--num-beams",
        "--samples": "--num-return-sequences",
        "--nbest": "--num-return-sequences",
        "--no-repeat-ngram": "--no-repeat-ngram-size",
        "--rules": "--generation-config",
    },
    "prompt": {"--shots": "--num-shots", "--same": "--match-field", "--tokens": "--max-new-tokens"},
    "score": {"--whole": "--as-one-text"},
    "translate": {
        "--beams": "--num-beams",
        "--alpha": "--length-penalty",
        "--nbest": "--num-return-sequences",
        "--batch": "--batch-size",
        "--read-ahead": "--buffer-size",
        "--length-ratio": "--max-len-a",
        "--length-extra": "--max-len-b",
        "--rules": "--generation-config",
    },
}

# Values of such flags: command -> current flag -> earlier value -> current value.
FLAG_VALUES: dict[str, dict[str, dict[str, str]]] = {
    command: {
        "--generation-config": {"ours": "native", "published": "hf"},
        "--too-long": {"cut": "truncate", "refuse": "error"},
    }
    for command in ("generate", "translate")
} | {command: {"--pool": {"first": "cls"}} for command in ("embed", "probe", "semantic-search")}

# Commands of ``transformer-jax``.
COMMANDS: dict[str, str] = {"similar": "semantic-search", "words": "word-vectors"}

# Named runs: command -> earlier name -> current name.
RUNS: dict[str, dict[str, str]] = {"finetune": {"span": "qa"}}

# Fields of JSON requests.
REQUESTS: dict[str, str] = {
    "tokens": "max_new_tokens",
    "samples": "num_return_sequences",
    "beams": "num_beams",
    "no_repeat_ngram": "no_repeat_ngram_size",
    "nbest": "num_return_sequences",
}

# Names in metrics.jsonl; ``{}`` is the sentence objective of the run, nsp or sop.
METRICS: dict[str, str] = {
    "masked_loss": "mlm_loss",
    "valid_masked_loss": "valid_mlm_loss",
    "valid_masked_accuracy": "valid_mlm_accuracy",
    "pair_loss": "{}_loss",
    "valid_pair_loss": "valid_{}_loss",
    "valid_pair_accuracy": "valid_{}_accuracy",
}

# Items of checkpoints: their directories, and the first part of the names of their arrays.
ITEMS: dict[str, str] = {"average": "ema_params"}


def current_config(config: Mapping[str, Json]) -> dict[str, Json]:
    """The fields of a ``config.json`` of any version as this version writes them.

    Settings have their current names and values; a setting that is newer than the file has the
    value that keeps the results of the run. A setting that is there under both names keeps the
    current one, beside the earlier one, which readers then refuse as unknown.

    Example:
        >>> current_config({"model": {"width": 8, "positions": {"kind": "rotary"}}})
        {'model': {'d_model': 8, 'positions': {'kind': 'rope'}}}
        >>> current_config({"align": {"method": "dpo", "reference": None}})["align"]["truncation"]
        'row'
        >>> current_config({"align": {"method": "grpo"}})
        {'align': {'method': 'grpo'}}
    """
    fields = _renamed(config)
    for path, (beside, value) in LATER.items():
        *groups, name = path.split(".")
        fields = _completed(fields, groups, beside, {name: value})
    return fields


def _renamed(config: Mapping[str, Json], prefix: str = "") -> dict[str, Json]:
    fields: dict[str, Json] = {}
    for name, value in config.items():
        path = prefix + name
        new = SETTINGS.get(path, path)
        last = new.removeprefix(prefix)
        if new != path and ("." in last or last in config):
            new, last = path, name
        if isinstance(value, Mapping):
            value = _renamed(value, f"{new}.")
        elif isinstance(value, str):
            value = VALUES.get(new, {}).get(value, value)
        fields[last] = value
    return fields


def _completed(
    fields: Mapping[str, Json], groups: Sequence[str], beside: str, absent: Mapping[str, Json]
) -> dict[str, Json]:
    """Returns fields with what their group lacks, if it has the field ``beside``."""
    if not groups:
        return {**absent, **fields} if beside in fields else dict(fields)
    inner = fields.get(groups[0])
    if not isinstance(inner, Mapping):
        return dict(fields)
    return {**fields, groups[0]: _completed(inner, groups[1:], beside, absent)}


def current_flags(command: str, arguments: Sequence[str], settings: Iterable[str]) -> list[str]:
    """A command's arguments with current flags and values; a warning names each that changed.

    Args:
        command: Name of the command.
        arguments: What follows it.
        settings: All flags that the command has, without dashes: an earlier name that is a flag of
            this command is left alone.

    Example:
        >>> current_flags("train", ["--model.width=8", "--model.norm.place", "pre"], [])
        ['--model.d-model=8', '--model.norm.placement', 'pre']
    """
    known, values = set(settings), dict[str, str]()
    out: list[str] = []
    for i, argument in enumerate(arguments):
        if argument == "--":
            return [*out, *arguments[i:]]
        if not argument.startswith("--"):
            out.append(values.get(argument, argument))
            values = {}
            continue
        flag, equals, value = argument.partition("=")
        new = flag if flag[2:].replace("_", "-") in known else _current_flag(command, flag)
        if new != flag:
            log.warning("%s is now %s", flag, new)
        values = FLAG_VALUES.get(command, {}).get(new) or VALUES.get(_path(new), {})
        out.append(new + equals + values.get(value, value))
    return out


def current_keys(fields: Mapping[str, Value], table: Mapping[str, str]) -> dict[str, Value]:
    """A flat mapping with each key of ``table`` under its current name.

    A key that is there under both names stays as it is.

    Example:
        >>> current_keys({"beams": 4, "text": "a"}, {"beams": "num_beams"})
        {'num_beams': 4, 'text': 'a'}
    """
    return {
        name if table.get(name) in fields else table.get(name, name): value
        for name, value in fields.items()
    }


def current_metrics(record: Mapping[str, Value], objective: str = "nsp") -> dict[str, Value]:
    """Measurements of a run under their current names.

    Args:
        record: Values by name.
        objective: The run's ``masking.sentence_objective``.

    Example:
        >>> current_metrics({"step": 3, "valid_pair_loss": 0.5}, "sop")
        {'step': 3, 'valid_sop_loss': 0.5}
    """
    return current_keys(record, {old: new.format(objective) for old, new in METRICS.items()})


def _current_flag(command: str, flag: str) -> str:
    """The flag as it is called now; switches keep their ``no-``."""
    plain = "--" + flag[2:].replace("_", "-")
    flags, positive = FLAGS.get(command, {}), plain.replace("--no-", "--", 1)
    if plain in flags:
        return flags[plain]
    if positive in flags:
        return flags[positive].replace("--", "--no-", 1)
    group, dot, last = _path(plain).rpartition(".")
    switch = last.startswith("no_") and f"{group}{dot}{last}" not in SETTINGS
    new = SETTINGS.get(f"{group}{dot}{last.removeprefix('no_') if switch else last}")
    if new is None:
        return flag
    group, dot, last = new.replace("_", "-").rpartition(".")
    return f"--{group}{dot}{'no-' if switch else ''}{last}"


def _path(flag: str) -> str:
    return flag[2:].replace("-", "_")
