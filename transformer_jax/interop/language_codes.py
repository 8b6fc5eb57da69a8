"""Languages of published translators: codes, and the tags of a folder."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.core.errors import DataError
from transformer_jax.core.json_types import Json
from transformer_jax.data.languages import Direction, LanguageTags
from transformer_jax.interop.tokenizer_settings import Settings, read_ids

if TYPE_CHECKING:
    import tokenizers

__all__ = ["check_dictionary", "find_languages", "language_tokens", "tokenizer_fields"]

# In the order of their ids: M2M100 (WMT 2021 separately), NLLB-200, mBART-50.
_CODES: Mapping[str, str] = {
    "m2m100": """
        af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu
        ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr
        ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk
        ur uz vi wo xh yi yo zh zu
    """,
    "wmt21": """
        en ha is ja cs ru zh de
    """,
    "nllb": """
        ace_Arab ace_Latn acm_Arab acq_Arab aeb_Arab afr_Latn ajp_Arab aka_Latn amh_Ethi apc_Arab
        arb_Arab ars_Arab ary_Arab arz_Arab asm_Beng ast_Latn awa_Deva ayr_Latn azb_Arab azj_Latn
        bak_Cyrl bam_Latn ban_Latn bel_Cyrl bem_Latn ben_Beng bho_Deva bjn_Arab bjn_Latn bod_Tibt
        bos_Latn bug_Latn bul_Cyrl cat_Latn ceb_Latn ces_Latn cjk_Latn ckb_Arab crh_Latn cym_Latn
        dan_Latn deu_Latn dik_Latn dyu_Latn dzo_Tibt ell_Grek eng_Latn epo_Latn est_Latn eus_Latn
        ewe_Latn fao_Latn pes_Arab fij_Latn fin_Latn fon_Latn fra_Latn fur_Latn fuv_Latn gla_Latn
        gle_Latn glg_Latn grn_Latn guj_Gujr hat_Latn hau_Latn heb_Hebr hin_Deva hne_Deva hrv_Latn
        hun_Latn hye_Armn ibo_Latn ilo_Latn ind_Latn isl_Latn ita_Latn jav_Latn jpn_Jpan kab_Latn
        kac_Latn kam_Latn kan_Knda kas_Arab kas_Deva kat_Geor knc_Arab knc_Latn kaz_Cyrl kbp_Latn
        kea_Latn khm_Khmr kik_Latn kin_Latn kir_Cyrl kmb_Latn kon_Latn kor_Hang kmr_Latn lao_Laoo
        lvs_Latn lij_Latn lim_Latn lin_Latn lit_Latn lmo_Latn ltg_Latn ltz_Latn lua_Latn lug_Latn
        luo_Latn lus_Latn mag_Deva mai_Deva mal_Mlym mar_Deva min_Latn mkd_Cyrl plt_Latn mlt_Latn
        mni_Beng khk_Cyrl mos_Latn mri_Latn zsm_Latn mya_Mymr nld_Latn nno_Latn nob_Latn npi_Deva
        nso_Latn nus_Latn nya_Latn oci_Latn gaz_Latn ory_Orya pag_Latn pan_Guru pap_Latn pol_Latn
        por_Latn prs_Arab pbt_Arab quy_Latn ron_Latn run_Latn rus_Cyrl sag_Latn san_Deva sat_Beng
        scn_Latn shn_Mymr sin_Sinh slk_Latn slv_Latn smo_Latn sna_Latn snd_Arab som_Latn sot_Latn
        spa_Latn als_Latn srd_Latn srp_Cyrl ssw_Latn sun_Latn swe_Latn swh_Latn szl_Latn tam_Taml
        tat_Cyrl tel_Telu tgk_Cyrl tgl_Latn tha_Thai tir_Ethi taq_Latn taq_Tfng tpi_Latn tsn_Latn
        tso_Latn tuk_Latn tum_Latn tur_Latn twi_Latn tzm_Tfng uig_Arab ukr_Cyrl umb_Latn urd_Arab
        uzn_Latn vec_Latn vie_Latn war_Latn wol_Latn xho_Latn ydd_Hebr yor_Latn yue_Hant zho_Hans
        zho_Hant zul_Latn
    """,
    "mbart50": """
        ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT
        lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN af_ZA az_AZ bn_IN fa_IR he_IL
        hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN te_IN
        th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI
    """,
}
# The token of a language, by model type.
_PATTERNS = {
    "m2m_100": r"__(?P<fairseq>[a-z]{2,3})__|(?P<flores>[a-z]{3}_[A-Z][a-z]{3})",
    "mbart": r"(?P<xlm>[a-z]{2}_[A-Z]{2})",
}
# The classes of transformers that need only tokenizer.json.
_CLASSES = {"flores": "NllbTokenizer", "xlm": "MBart50Tokenizer"}


def language_tokens(settings: Settings) -> tuple[str, ...]:
    """Returns the language tokens after the pieces of a published vocabulary.

    Args:
        settings: Settings of a tokenizer of M2M100, NLLB or mBART-50.

    Raises:
        DataError: ``language_codes`` is not a list of M2M100.

    Example:
        >>> language_tokens(Settings({"tokenizer_class": "M2M100Tokenizer"}))[:2]
        ('__af__', '__am__')
    """
    if settings.family != "m2m100":
        return tuple(_CODES[settings.family].split())
    chosen = settings.text("language_codes") or "m2m100"
    if chosen not in ("m2m100", "wmt21"):
        raise DataError(f"has language_codes {chosen[:40]!r}: known are m2m100 and wmt21")
    return tuple(f"__{code}__" for code in _CODES[chosen].split())


def find_languages(
    backend: "tokenizers.Tokenizer", settings: Settings, kind: str, roles: Mapping[str, Any]
) -> LanguageTags | None:
    """Returns the languages of a folder; None for a model with one direction.

    Targets begin with their language tag, after the start token ``</s>``; sources begin with their
    tag, or in the first version of NLLB, end with it.

    Args:
        backend: The tokenizer of the folder.
        settings: The settings of the tokenizer.
        kind: The type of the model.
        roles: The names of special tokens by role.

    Raises:
        DataError: The folder does not have the default language; the message does not name the
            folder.
    """
    known = backend.get_vocab()
    pattern, listed = _PATTERNS.get(kind), set(settings.listed())
    # mBART's first version starts targets with the tag itself.
    if pattern is None or roles.get("bos") != roles.get("eos"):
        return None
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    tags = {
        token.strip("_"): known[token]
        for token in sorted((added | listed) & known.keys(), key=lambda token: known[token])
        if re.fullmatch(pattern, token) or (token in listed and token.isidentifier())
    }
    if not tags:
        return None
    forced = known.get(roles.get("forced_bos", ""))
    default = Direction(
        _default(settings, "src_lang", tags),
        _default(settings, "tgt_lang", tags)
        or next((name for name, id in tags.items() if id == forced), None),
    )
    end, usual = known[roles["eos"]], next(iter(tags))
    form = "__{}__" if f"__{usual}__" in known else "{}"
    if settings.flag("legacy_behaviour", False):
        return LanguageTags(tags, (), (end, "from"), ("to",), default=default, form=form)
    return LanguageTags(tags, ("from",), (end,), ("to",), default=default, form=form)


def _default(settings: Settings, key: str, tags: Mapping[str, int]) -> str | None:
    name = settings.text(key)
    if name is not None and name not in tags:
        raise DataError(f"has {key} {name[:40]!r}, which is not a language token")
    return name


def check_dictionary(
    folder: Path, settings: Settings, backend: "tokenizers.Tokenizer", rows: int
) -> None:
    """Refuses a ``vocab.json`` that does not match a multilingual model.

    Language tokens follow the tokens of the file, so they would be different.

    Args:
        folder: The folder.
        settings: The settings of the tokenizer.
        backend: The tokenizer created from the file.
        rows: Number of tokens of the model.

    Raises:
        DataError: The sizes differ; the message does not name the folder.
    """
    if settings.family != "m2m100" or os.path.lexists(folder / "tokenizer.json"):
        return
    size = len(read_ids(folder / "vocab.json"))
    codes, spare = len(language_tokens(settings)), settings.count("num_madeup_words", 8)
    # The table has spare rows, unless it was resized for the tokenizer.
    if rows not in (size + codes + spare, backend.get_vocab_size()):
        raise DataError(
            f"does not match the model: vocab.json has {size:,} tokens, and with {codes} languages "
            f"and num_madeup_words {spare} make {size + codes + spare:,}, but vocab_size is "
            f"{rows:,}: use both files of one checkpoint"
        )


def tokenizer_fields(tags: LanguageTags, names: Mapping[str, str]) -> dict[str, Json]:
    """Returns the keys of ``tokenizer_config.json`` about languages, for transformers.

    Args:
        tags: The languages.
        names: The token of each language.

    Returns:
        The keys; empty for tags unlike those of published translators.

    Example:
        >>> tags = LanguageTags({"eng_Latn": 7}, ("from",), (2,), ("to",))
        >>> tokenizer_fields(tags, {"eng_Latn": "eng_Latn"})["tokenizer_class"]
        'NllbTokenizer'
    """
    matches = [re.fullmatch(p, token) for p in _PATTERNS.values() for token in names.values()]
    kinds = {str(match.lastgroup) for match in matches if match}
    if len(kinds) != 1 or tags.begins != ("to",):
        return {}
    found: dict[str, Json] = {"additional_special_tokens": list(names.values())}
    for key, name in zip(("src_lang", "tgt_lang"), tags.default, strict=True):
        found |= {} if name is None else {key: name}
    if (kind := kinds.pop()) in _CLASSES:
        found["tokenizer_class"] = _CLASSES[kind]
    return found if tags.before else found | {"legacy_behaviour": True}
