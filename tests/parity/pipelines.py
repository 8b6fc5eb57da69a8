"""Small published folders for each task of pipelines, and calls, whose results are stored.

The calls are those of chapter 1 of Hugging Face's course ("Transformers, what can they do?"), and
further ones for each argument. ``remake_pipelines.py`` stores what transformers 4.57 returns.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from tests.parity import layouts

FILE = layouts.REFERENCES / "pipelines.json"
V = 330  # tokens
LONG = 400  # positions

LIFE = "I've been waiting for a HuggingFace course my whole life."
HATE = "I hate this so much!"
COURSE = "This is a course about the Transformers library"
SYLVAIN = "My name is Sylvain and I work at Hugging Face in Brooklyn."
WORDS = ["My", "name", "is", "S", "##yl", "##va", "##in", "and", "I", "work", "at", "Hu", "##gging",
         "Face", "in", "Brooklyn", "This", "course", "will", "teach", "you", "all", "about", "the",
         "this", "models", "hate"]  # fmt: skip
MERGES = ["t h", "th e", "Ġ the", "a n", "Ġ an", "i n", "in g", "o u", "Ġ c", "Ġc ou", "r s", "Ġ a",
          "m o", "d e", "mo de", "l s", "Ġ mode", "Ġmode ls"]  # fmt: skip
AMERICA = """
    America has changed dramatically during recent years. Not only has the number of
    graduates in traditional engineering disciplines declined, but in most of the premier
    American universities engineering curricula now concentrate on engineering science.
"""
FRENCH = "Ce cours est produit par Hugging Face ."

# A layout of tests.parity.layouts for each folder, and changes of its configuration.
_NLI = {"0": "CONTRADICTION", "1": "NEUTRAL", "2": "ENTAILMENT"}
_TAGS = dict(zip("01234", ("O", "B-PER", "I-PER", "B-LOC", "I-LOC"), strict=True))
FOLDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sentiment": ("distilbert_cls", {"id2label": {"0": "NEGATIVE", "1": "POSITIVE"}}),
    "nli": ("bert_cls", {"id2label": _NLI}),
    "topics": ("bert_multi", {}),
    "ner": ("bert_tag", {"id2label": _TAGS}),
    "qa": ("bert_qa", {}),
    "masks": ("roberta", {}),
    "words": ("bert_mlm", {}),
    "stories": ("gpt2", {}),
    "summaries": ("bart", {}),
    "french": ("marian", {}),
    "prefixes": (
        "t5",
        {
            "num_decoder_layers": 2,
            "task_specific_params": {
                "summarization": {"prefix": "Ce ", "num_beams": 2, "min_length": 3},
                "translation_en_to_fr": {"prefix": "cours par ", "num_beams": 3},
            },
        },
    ),
    "pictures": ("vit", {"id2label": dict(zip("01234", "abcde", strict=True))}),
    "captions": ("vit_gpt2", {}),
}
# Further families, which random calls use.
_FIRST = {"0": "entailment", "1": "neutral", "2": "contradiction"}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "byte nli": ("roberta_cls", {"id2label": _FIRST}),
    "byte ner": ("camembert_tag", {"id2label": _TAGS}),
    "electra": ("electra_cls", {}),
    "topics of a decoder": ("gpt2_multi", {}),
    "camembert": ("camembert", {}),
    "electra masks": ("electra_mlm", {}),
    "mpnet": ("mpnet", {}),
    "modernbert": ("modernbert", {"position_embedding_type": "rope"}),
    "llama": ("llama", {}),
    "qwen2": ("qwen2", {}),
    "opt": ("opt", {}),
}
BYTES = ("masks", "stories", "summaries", "captions", "byte nli", "byte ner", "camembert", "mpnet",
         "llama", "qwen2", "opt", "topics of a decoder")  # fmt: skip
FRAMED = ("masks", "summaries", "byte nli", "byte ner", "camembert", "mpnet")  # <s> text </s>
PIECES = ("french", "prefixes")
PICTURE = "cat.png"


def write(name: str, folder: Path) -> Path:
    """Writes a folder, which transformers 4.57 reads too, with random weights."""
    from safetensors.numpy import save_file

    layout, changes = (FOLDERS | FAMILIES)[name]
    folder.mkdir(parents=True, exist_ok=True)
    fields, tensors = _sized(layout, changes)
    if "id2label" in changes:
        fields["label2id"] = {label: int(id) for id, label in changes["id2label"].items()}
    (folder / "config.json").write_text(json.dumps(fields, indent=2))
    drawn = layouts.weights(layout, tensors)
    # Clear decisions, since random models are unsure about everything.
    loud = {key: value * (2 if value.ndim == 2 else 1) for key, value in drawn.items()}
    save_file(loud, folder / "model.safetensors", {"format": "pt"})
    if "pixel" not in layout and name != "pictures":
        _write_tokenizer(name, folder)
    if name in ("pictures", "captions"):
        size = {"height": 32, "width": 32}
        kind = {"image_processor_type": "ViTImageProcessor", "size": size, "resample": 2}
        (folder / "preprocessor_config.json").write_text(json.dumps(kind))
    return folder


def write_picture(folder: Path) -> Path:
    """Writes the picture of the calls."""
    from PIL import Image

    pixels = layouts.random("cat").randint(0, 256, (6, 8, 3)).astype(np.uint8)
    Image.fromarray(np.kron(pixels, np.ones((8, 8, 1), np.uint8))).save(folder / PICTURE)
    return folder / PICTURE


def _sized(layout: str, changes: dict[str, Any]) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """Returns the configuration and the shapes of a layout, with ``V`` tokens and long texts."""
    known = layouts.LAYOUTS[layout]
    old = json.loads(json.dumps(known["config"])) | changes
    text = old.get("decoder", old)
    before = text.get("vocab_size")
    shapes = {name: [V if size == before else size for size in shape]
              for name, shape in known["tensors"].items()}  # fmt: skip
    if layout == "t5":
        shapes = {name: one for name, one in shapes.items() if "decoder.block.2." not in name}
    for name in ("max_position_embeddings", "n_positions"):
        if layout != "t5" and isinstance(text.get(name), int):
            beyond = {text[name] + extra: LONG + extra for extra in (0, 2)}
            for key, shape in shapes.items():
                if "position_embeddings" in key or "wpe" in key or "embed_positions" in key:
                    shapes[key] = [beyond.get(shape[0], shape[0]), *shape[1:]]
            text[name] = LONG
    if before is not None:
        text["vocab_size"] = V
    if "decoder_vocab_size" in text:
        text["decoder_vocab_size"] = V
    if layout == "marian":  # its last token
        text |= {"pad_token_id": V - 1, "decoder_start_token_id": V - 1, "bad_words_ids": [[V - 1]]}
    return old, shapes


def _write_tokenizer(name: str, folder: Path) -> None:
    made = _bytes(name) if name in BYTES else _pieces(name) if name in PIECES else _wordpiece(name)
    backend, fields = made
    backend.save(str(folder / "tokenizer.json"))
    fields |= {"model_max_length": 60 if name in ("ner", "qa") else LONG}
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))


Made = tuple[tokenizers.Tokenizer, dict[str, Any]]


def _wordpiece(name: str) -> Made:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [chr(i) for i in range(33, 127)]
    tokens = list(dict.fromkeys([*special, *WORDS, *letters, *(f"##{one}" for one in letters)]))
    tokens += [f"[unused{i}]" for i in range(V - len(tokens))]
    model = models.WordPiece({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]")
    found = tokenizers.Tokenizer(model)
    found.normalizer = normalizers.BertNormalizer(lowercase=False)
    found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    found.decoder = decoders.WordPiece()
    found.add_special_tokens(special)
    found.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    kind = "DistilBertTokenizerFast" if name == "sentiment" else "BertTokenizerFast"
    roles = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    named = dict(zip(roles, special, strict=True))
    return found, {"tokenizer_class": kind, "do_lower_case": False, **named}


def _bytes(name: str) -> Made:
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    merged = [merge.replace(" ", "") for merge in MERGES]
    tokens = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), *merged]
    tokens += [f"<extra{i}>" for i in range(V - len(tokens))]
    vocab = {token: i for i, token in enumerate(tokens)}
    found = tokenizers.Tokenizer(models.BPE(vocab, [tuple(one.split()) for one in MERGES]))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    found.add_special_tokens([*special[:4], tokenizers.AddedToken("<mask>", lstrip=True)])
    if name in FRAMED:
        found.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), True, False)
    names = {"model_input_names": ["input_ids", "attention_mask"]}
    return found, {"tokenizer_class": "PreTrainedTokenizerFast", **names, **_roles()}


def _pieces(name: str) -> Made:
    first, last = (["</s>", "<unk>"], ["<pad>"]) if name == "french" else (
        ["<pad>", "</s>", "<unk>"], [])  # fmt: skip
    words = [*FRENCH.split(), "the", "red", "dog", "came", "it", "saw", "a", "cat"]
    rest = [f"w{i}" for i in range(V - len(first) - len(words) - len(last))]
    tokens = [*first, *words, *rest, *last]
    vocab = {token: i for i, token in enumerate(tokens)}
    found = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    found.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    found.add_special_tokens([*first, *last])
    found.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", vocab["</s>"])]
    )
    named = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return found, {"tokenizer_class": "PreTrainedTokenizerFast", **named}


def _roles() -> dict[str, str]:
    return {
        "bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>",
        "unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>",
    }  # fmt: skip


# --- Calls ----------------------------------------------------------------------------------------


def call(task: str, folder: str, *args: Any, made: dict[str, Any] | None = None, **options: Any):
    """A call of a pipeline: its folder, and the options with which it is made."""
    return {"task": task, "folder": folder, "made": made or {}, "args": args, "options": options}


LABELS = ["education", "politics", "business"]
ASKED = {"question": "Where do I work?", "context": SYLVAIN}
TWO_MASKS = "This <mask> will teach you all about <mask>."
CHAPTER_1 = [
    call("sentiment-analysis", "sentiment", LIFE),
    call("sentiment-analysis", "sentiment", [LIFE, HATE]),
    call("zero-shot-classification", "nli", COURSE, candidate_labels=LABELS),
    call("text-generation", "stories", "In this course, we will teach you how to",
         max_new_tokens=9),
    call("text-generation", "stories", "In this course, we will teach you how to",
         max_length=48, num_return_sequences=2),
    call("fill-mask", "masks", "This course will teach you all about <mask> models.", top_k=2),
    call("ner", "ner", SYLVAIN, made={"aggregation_strategy": "simple"}),
    call("question-answering", "qa", **ASKED),
    call("summarization", "summaries", AMERICA.strip(), max_new_tokens=12),
    call("translation", "french", FRENCH, max_new_tokens=8),
    call("image-classification", "pictures", PICTURE),
]  # fmt: skip


def _more() -> Iterator[dict[str, Any]]:
    texts, pair = [LIFE, HATE], {"text": COURSE, "text_pair": HATE}
    for made, options in (
        ({}, {"top_k": 1}), ({}, {"top_k": None}), ({"top_k": None}, {}), ({"top_k": 2}, {}),
        ({"return_all_scores": True}, {}), ({}, {"function_to_apply": "none"}),
        ({}, {"function_to_apply": "sigmoid", "top_k": 2}),
    ):  # fmt: skip
        yield call("text-classification", "sentiment", LIFE, made=made, **options)
        yield call("text-classification", "sentiment", texts, made=made, **options)
    yield call("text-classification", "nli", pair)
    yield call("text-classification", "nli", [pair, pair], top_k=2)
    yield call("text-classification", "topics", HATE)
    yield call("text-classification", "topics", HATE, function_to_apply="softmax", top_k=3)
    yield call("text-classification", "nli", " ".join([LIFE] * 30), truncation=True)
    yield call("zero-shot-classification", "nli", [COURSE, HATE], "education, politics")
    yield call("zero-shot-classification", "nli", COURSE, LABELS, multi_label=True)
    yield call("zero-shot-classification", "nli", COURSE, "education",
               hypothesis_template="It is about {}.")  # fmt: skip
    yield call("zero-shot-classification", "nli", " ".join([LIFE] * 30), LABELS)
    for strategy in ("none", "simple", "first", "average", "max"):
        yield call("token-classification", "ner", SYLVAIN, aggregation_strategy=strategy)
    yield call("ner", "ner", [SYLVAIN, HATE], made={"grouped_entities": True})
    yield call("ner", "ner", SYLVAIN, made={"grouped_entities": True, "ignore_subwords": True})
    yield call("ner", "ner", f"{SYLVAIN} é", ignore_labels=["B-PER"])
    yield call("ner", "ner", SYLVAIN * 9, made={"aggregation_strategy": "first"})
    for options in (
        {"top_k": 3}, {"top_k": 3, "align_to_words": False}, {"max_answer_len": 2},
        {"handle_impossible_answer": True, "top_k": 2}, {"top_k": 4, "max_answer_len": 1},
    ):  # fmt: skip
        yield call("question-answering", "qa", **ASKED, **options)
    yield call("question-answering", "qa", ASKED)
    yield call("question-answering", "qa", [ASKED, ASKED | {"question": "Who am I?"}], top_k=2)
    yield call("question-answering", "qa", question=["Who?", "Where?"], context=SYLVAIN)
    long = {"question": "Where?", "context": " ".join([SYLVAIN, LIFE, HATE, COURSE])}
    yield call("question-answering", "qa", **long, top_k=3)
    yield call("question-answering", "qa", **long, max_seq_len=40, doc_stride=10,
               handle_impossible_answer=True, top_k=5)  # fmt: skip
    yield call("fill-mask", "masks", TWO_MASKS, top_k=2)
    yield call("fill-mask", "masks", ["I <mask> this", TWO_MASKS])
    yield call("fill-mask", "words", ["This [MASK] will teach you."], top_k=3)
    yield call("fill-mask", "words", "This [MASK] will teach you.", targets=["course", "models"])
    yield call("feature-extraction", "words", HATE)
    yield call("feature-extraction", "words", [HATE, "I"])
    for options in (
        {"do_sample": False}, {"do_sample": False, "return_full_text": False},
        {"num_beams": 3, "num_return_sequences": 2, "do_sample": False},
        {"do_sample": False, "repetition_penalty": 1.5, "no_repeat_ngram_size": 2},
        {"do_sample": False, "clean_up_tokenization_spaces": False},
    ):  # fmt: skip
        yield call("text-generation", "stories", "In this course", max_new_tokens=9, **options)
    yield call("text-generation", "stories", ["the models , they", "an"], max_new_tokens=9,
               do_sample=False)  # fmt: skip
    for options in (
        {}, {"num_return_sequences": 2}, {"num_beams": 1}, {"min_length": 5, "length_penalty": 2.0},
        {"no_repeat_ngram_size": 1, "early_stopping": True}, {"clean_up_tokenization_spaces": True},
    ):  # fmt: skip
        for texts in ("the red dog came", ["the red dog came", "it saw a cat"]):
            yield call("translation", "french", texts, max_new_tokens=6, **options)
    yield call("text2text-generation", "prefixes", "the red dog", max_new_tokens=6)
    yield call("summarization", "prefixes", "the red dog", max_new_tokens=6)
    yield call("translation_en_to_fr", "prefixes", "the red dog", max_new_tokens=6)
    yield call("translation", "prefixes", "the red dog", max_new_tokens=6)
    yield call("summarization", "summaries", "the models " * 300, truncation=True, max_new_tokens=3)
    yield call("image-classification", "pictures", [PICTURE, PICTURE], top_k=2)
    yield call("image-classification", "pictures", PICTURE, function_to_apply="none")
    yield call("image-to-text", "captions", PICTURE, max_new_tokens=9)
    search = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 5}
    yield call("image-to-text", "captions", [PICTURE, PICTURE], generate_kwargs=search)


CALLS = [*CHAPTER_1, *_more()]


def _some(draw: random.Random, **values: Any) -> dict[str, Any]:
    """Options, each with one of its values or absent."""
    return {name: draw.choice(of) for name, of in values.items() if draw.random() < 0.4}


def _text(draw: random.Random, words: int = 12) -> str:
    pool = f"{LIFE} {HATE} {COURSE} {SYLVAIN} , ! é don't ( models )".split()
    return " ".join(draw.choices(pool, k=draw.randint(1, words)))


def _classify(draw: random.Random) -> dict[str, Any]:
    folder = draw.choice(
        ["sentiment", "nli", "topics", "byte nli", "electra", "topics of a decoder"]
    )
    given: Any = [_text(draw) for _ in range(draw.randint(1, 4))]
    if folder in ("nli", "byte nli", "electra") and draw.random() < 0.4:
        given = [{"text": one, "text_pair": _text(draw)} for one in given]
    options = {"top_k": [None, 1, 2, 9], "return_all_scores": [True, False]}
    activations = {"function_to_apply": ["softmax", "sigmoid", "none"]}
    return call("text-classification", folder, draw.choice([given, given[0]]),
                made=_some(draw, **options), **_some(draw, **options, **activations))  # fmt: skip


def _zero_shot(draw: random.Random) -> dict[str, Any]:
    labels: Any = draw.sample([*LABELS, "a course", "hate"], draw.randint(1, 4))
    options = _some(draw, multi_label=[True, False], hypothesis_template=["It is {}.", "{}"])
    given = [_text(draw, 30), _text(draw)][: draw.randint(1, 2)]
    return call("zero-shot-classification", draw.choice(["nli", "byte nli"]),
                draw.choice([given, given[0]]), draw.choice([labels, ", ".join(labels)]),
                **options)  # fmt: skip


def _tag(draw: random.Random) -> dict[str, Any]:
    options = _some(
        draw, ignore_labels=[["O"], [], ["O", "I-PER", "PER"]],
        aggregation_strategy=["none", "simple", "first", "average", "max"],
    )  # fmt: skip
    grouped = _some(draw, grouped_entities=[True, False], ignore_subwords=[True, False])
    given = [_text(draw, 25), _text(draw)]
    return call("ner", draw.choice(["ner", "byte ner"]), draw.choice([given, given[0]]),
                made=grouped if draw.random() < 0.3 else {}, **options)  # fmt: skip


def _ask(draw: random.Random) -> dict[str, Any]:
    options = _some(
        draw, top_k=[1, 2, 5], max_answer_len=[1, 3, 40], handle_impossible_answer=[True, False],
        align_to_words=[True, False],
    )  # fmt: skip
    if draw.random() < 0.4:
        options |= {"max_seq_len": draw.choice([40, 50]), "doc_stride": draw.choice([0, 5, 10])}
    return call("question-answering", "qa", question=_text(draw, 6), context=_text(draw, 60),
                **options)  # fmt: skip


def _fill(draw: random.Random) -> dict[str, Any]:
    folder = draw.choice(["masks", "words", "camembert", "electra masks", "mpnet", "modernbert"])
    mask = "<mask>" if folder in BYTES else "[MASK]"
    texts = []
    for _ in range(draw.randint(1, 2)):
        words = _text(draw).split()
        for _ in range(draw.choice([1, 1, 2])):
            words.insert(draw.randint(0, len(words)), mask)
        texts.append(" ".join(words))
    options = _some(draw, top_k=[1, 3, 20], targets=[["the", "a"], "in"])
    return call("fill-mask", folder, draw.choice([texts, texts[0]]), **options)


def _features(draw: random.Random) -> dict[str, Any]:
    folder = draw.choice(["words", "masks", "sentiment", "byte ner", "electra", "mpnet"])
    return call("feature-extraction", folder, draw.choice([_text(draw), [_text(draw), "I"]]))


_SEARCH = {
    "num_beams": [1, 2, 4], "min_length": [3, 9], "length_penalty": [0.5, 2.0],
    "early_stopping": [True, False, "never"], "repetition_penalty": [1.3],
    "no_repeat_ngram_size": [1, 2], "suppress_tokens": [[20, 21]], "bad_words_ids": [[[22], [23]]],
    "renormalize_logits": [True], "clean_up_tokenization_spaces": [True, False],
}  # fmt: skip


def _write(draw: random.Random) -> dict[str, Any]:
    options = _some(draw, **_SEARCH) | {"max_new_tokens": draw.choice([5, 8])}
    if options.get("num_beams", 1) > 1 and draw.random() < 0.5:
        options["num_return_sequences"] = 2
    if draw.random() < 0.4:
        folder = draw.choice(["stories", "llama", "qwen2", "opt"])
        options |= _some(draw, return_full_text=[True, False])
        return call("text-generation", folder, _text(draw, 6), do_sample=False, **options)
    tasks = ("translation", "summarization", "text2text-generation")
    folder = draw.choice(["french", "summaries", "prefixes"])
    given = [_text(draw, 8), _text(draw, 8)]
    return call(draw.choice(tasks), folder, draw.choice([given, given[0]]), **options)


def _look(draw: random.Random) -> dict[str, Any]:
    given = draw.choice([PICTURE, [PICTURE, PICTURE]])
    if draw.random() < 0.5:
        options = _some(draw, top_k=[1, 9], function_to_apply=["none", "sigmoid", "softmax"])
        return call("image-classification", "pictures", given, **options)
    search = _some(draw, num_beams=[1, 3], length_penalty=[0.5], no_repeat_ngram_size=[1])
    return call("image-to-text", "captions", given, max_new_tokens=draw.choice([4, 6]),
                generate_kwargs=search)  # fmt: skip


def random_calls(count: int, seed: str) -> list[dict[str, Any]]:
    """Calls of random arguments."""
    draw = random.Random(seed)
    kinds = [_classify, _zero_shot, _tag, _ask, _fill, _features, _write, _look]
    return [draw.choice(kinds)(draw) for _ in range(count)]


# --- Comparison -----------------------------------------------------------------------------------


def form(value: Any) -> Any:
    """Keys and nesting, without the values."""
    if isinstance(value, dict):
        return {name: form(part) for name, part in value.items()}
    return [form(part) for part in value] if isinstance(value, list) else type(value)


def check_equal(found: Any, known: Any) -> None:
    """Compares keys, nesting and all values; numbers to 1e-5."""
    assert form(found) == form(known)
    for one, value in zip(_leaves(found), _leaves(known), strict=True):
        if isinstance(value, float):
            assert abs(one - value) <= 1e-5 * max(1, abs(value)), (one, value)
        else:
            assert one == value


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _leaves(part)
    else:
        yield value


def is_sampled(one: dict[str, Any]) -> bool:
    """Returns whether texts of a call are drawn, so that only their form is known."""
    return one["task"] == "text-generation" and one["options"].get("do_sample", True)
