"""Keys of the files of Hugging Face folders: which are applied, and why others have no effect.

A value that would change results, but is not supported, is refused; a key that no table knows is
told. The tables hold the keys of transformers 5 and sentence-transformers 6, and of older files.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from transformer_jax.core.errors import CheckpointError, DataError, plural
from transformer_jax.core.json_types import Json
from transformer_jax.core.task_progress import log
from transformer_jax.interop.tokenizer_settings import read_json

__all__ = ["GENERATION", "SENTENCES", "TABLES", "TOKENIZER", "KeyUse", "check_keys"]


class KeyUse(NamedTuple):
    """The use of a key.

    Attributes:
        applied: Whether the value is used; otherwise it has no effect here.
        why: Where it is used, or why it has no effect.
        only: The supported values, if there are others; None among them stands for a missing key.
    """

    applied: bool
    why: str
    only: tuple[Json, ...] | None = None


def _keys(
    applied: bool, why: str, names: str, only: tuple[Json, ...] | None = None
) -> dict[str, KeyUse]:
    return dict.fromkeys(names.split(), KeyUse(applied, why, only))


_BOOKKEEPING = "names of files, versions and classes"
TOKENIZER: Mapping[str, KeyUse] = {
    **_keys(
        True,
        "special tokens by role",
        "bos_token eos_token unk_token pad_token mask_token cls_token sep_token "
        "additional_special_tokens extra_special_tokens added_tokens_decoder",
    ),
    **_keys(True, "the way in which a vocabulary is used", "tokenizer_class vocab_type"),
    **_keys(
        True,
        "the normalizer of BERT's classes",
        "do_lower_case tokenize_chinese_chars strip_accents do_basic_tokenize",
    ),
    **_keys(True, "the pre-tokenizer of byte-level vocabularies", "add_prefix_space"),
    **_keys(
        True,
        "tokens around a text, without a tokenizer.json, as in transformers",
        "add_bos_token add_eos_token",
    ),
    **_keys(True, "conversations", "chat_template default_chat_template"),
    **_keys(
        True,
        "languages of translators",
        "src_lang tgt_lang language_codes legacy_behaviour num_madeup_words languages",
    ),
    **_keys(
        True, "conversion of vocabularies", "extra_ids separate_vocabs source_lang target_lang"
    ),
    **_keys(True, "the longest text of encoders and classifiers", "model_max_length max_len"),
    **_keys(True, "token types of pairs", "model_input_names"),
    **_keys(True, "the side where long texts end", "truncation_side"),
    **_keys(
        False,
        "texts are padded so that padding is invisible",
        "padding_side pad_to_multiple_of pad_token_type_id padding max_length stride "
        "truncation_strategy truncation pad_token_id padding_strategy",
    ),
    **_keys(
        False,
        "texts are written as their tokens say",
        "clean_up_tokenization_spaces spaces_between_special_tokens "
        "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
    ),
    **_keys(
        False,
        "special tokens that a text spells out are text",
        "split_special_tokens never_split add_special_tokens legacy image_token boi_token "
        "eoi_token audio_token video_token model_specific_special_tokens fix_mistral_regex",
    ),
    **_keys(False, "offsets into a text", "trim_offsets"),
    **_keys(
        False,
        "conversion is that of the class",
        "do_split_on_punc max_input_chars_per_word mask_token_sent offset target_vocab_file "
        "from_slow use_fast clean_text remove_space "
        "keep_accents wordpieces_prefix errors add_dummy_prefix_space bos_id eos_id cls_token_type "
        "additional_special_tokens_ids cls_token_box sep_token_box pad_token_box pad_token_label "
        "only_label_first_subword apply_ocr do_clean_text return_token_type_ids verbose",
    ),
    **_keys(
        True,
        "sampling of SentencePiece",
        "sp_model_kwargs",
        ({}, {"enable_sampling": False}, None),
    ),
    **_keys(
        False,
        _BOOKKEEPING,
        "name_or_path tokenizer_file special_tokens_map_file vocab_file merges_file backend "
        "is_local local_files_only processor_class feature_extractor_type image_processor_type "
        "auto_map trust_remote_code device_map transformers_version _commit_hash files_loaded "
        "tokenizer_type tokenizers_version max_model_input_sizes response_schema "
        "response_template unk_token_type use_default_system_prompt cache_dir token revision "
        "use_auth_token show_progress_bar task model_type",
    ),
}  # fmt: skip

_SEARCH = "the search of transformers (generation config hf)"
_SAMPLING = "transformers' greedy and beam search do not sample"
_SPEED = "speed, memory and further outputs"
GENERATION: Mapping[str, KeyUse] = {
    **_keys(
        True,
        _SEARCH,
        "max_length max_new_tokens min_length min_new_tokens num_beams num_return_sequences "
        "early_stopping length_penalty repetition_penalty no_repeat_ngram_size "
        "encoder_repetition_penalty encoder_no_repeat_ngram_size bad_words_ids sequence_bias "
        "suppress_tokens begin_suppress_tokens forced_bos_token_id forced_eos_token_id "
        "exponential_decay_length_penalty renormalize_logits remove_invalid_values eos_token_id "
        "pad_token_id decoder_start_token_id bos_token_id force_bos_token_to_be_generated",
    ),
    **_keys(
        True,
        f"{_SEARCH} refuses it",
        "assistant_ensemble_weight constraints dola_layers force_words_ids guidance_scale "
        "low_memory "
        "max_time num_beam_groups penalty_alpha stop_strings token_healing watermarking_config",
    ),
    **_keys(
        False,
        _SAMPLING,
        "do_sample temperature top_k top_p min_p top_h typical_p epsilon_cutoff eta_cutoff "
        "diversity_penalty",
    ),
    **_keys(
        False,
        _SPEED,
        "use_cache cache_implementation cache_config max_cache_len return_legacy_cache "
        "return_dict_in_generate output_attentions output_hidden_states output_scores "
        "output_logits compile_config disable_compile continuous_batching_config "
        "prefill_chunk_size use_mtp speculation_type is_assistant num_assistant_tokens "
        "num_assistant_tokens_schedule assistant_confidence_threshold prompt_lookup_num_tokens "
        "max_matching_ngram_size assistant_early_exit assistant_lookbehind target_lookbehind",
    ),
    **_keys(
        False,
        _BOOKKEEPING,
        "transformers_version _from_model_config generation_kwargs _commit_hash trust_remote_code",
    ),
}
SENTENCES: Mapping[str, KeyUse] = {
    **_keys(True, "prompts before texts", "prompts default_prompt_name"),
    **_keys(True, "search by similarity", "similarity_fn_name"),
    **_keys(True, "vectors, if it is not null they are refused", "truncate_dim"),
    **_keys(True, "the kind of model", "model_type"),
    **_keys(True, "scores of pairs", "activation_fn"),
    **_keys(False, "numbers are computed in float32", "keep_in_fp32_modules"),
    **_keys(False, _BOOKKEEPING, "__version__ backend"),
}
TABLES: Mapping[str, Mapping[str, KeyUse]] = {
    "tokenizer_config.json": TOKENIZER,
    "generation_config.json": GENERATION,
    "config_sentence_transformers.json": SENTENCES,
}


def check_keys(folder: Path) -> None:
    """Checks the keys of the files of a folder; logs those that no table knows.

    Raises:
        CheckpointError: A key has a value that would change results and is not supported.
    """
    for name, table in TABLES.items():
        try:
            fields = read_json(folder, name, dict) or {}
        except DataError:
            continue  # its reader has a better message
        for key, reason in _refused(fields, table):
            raise CheckpointError(f"{folder / name}: {key} is {reason}")
        if unknown := [key for key in fields if key not in table]:
            shown = ", ".join(f"{key[:40]!r}" for key in unknown[:5])
            more = ", ..." if len(unknown) > 5 else ""
            log(
                f"{folder / name}: not applied: {plural(len(unknown), 'unknown key')}: "
                f"{shown}{more}"
            )


def _refused(fields: Mapping[str, Json], table: Mapping[str, KeyUse]) -> Iterator[tuple[str, str]]:
    """Yields keys with unsupported values, and what is supported."""
    for key, value in fields.items():
        only = table[key].only if key in table else None
        if only is not None and value not in only:
            yield key, f"{json.dumps(value)[:60]}: only {json.dumps(only[0])} is supported"
