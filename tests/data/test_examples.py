"""Examples for fine-tuning lose no word, no answer and no special token (B36, H18, H19)."""

import json
import random

import numpy as np
import pytest

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.examples import collate, default_template, encode_sentences
from transformer_jax.data.question_examples import encode_questions, locate_answers
from transformer_jax.data.squad import SquadAnswer
from transformer_jax.data.tagged_examples import encode_tagged
from transformer_jax.data.tokenizer import (
    BERT_SPECIAL,
    SpecialTokensTemplate,
    Tokenizer,
    train_tokenizer,
)

TEXTS = [
    "The  schöner Hund saw 12 figs, didn't it?",
    "日本 and 😀 in a café [SEP] of Łódź.",
    "naïve",
    "a b c d e f g h i j k l m n o p",
    " low lower\tlowest ",
]
KINDS = ("wordpiece", "bpe", "unigram", "bytes", "characters")
TOKENIZERS = {kind: train_tokenizer(kind, TEXTS * 5, 400, special=BERT_SPECIAL) for kind in KINDS}


@pytest.fixture(params=KINDS)
def tokenizer(request):
    return TOKENIZERS[request.param]


def rows(examples):
    return [row.tolist() for row in examples.store]


# Spans of characters


def test_spans_are_those_of_the_ids(tokenizer):
    encoded = tokenizer.encode_spans(TEXTS)
    assert [ids for ids, _ in encoded] == tokenizer.encode_batch(TEXTS)
    for text, (ids, spans) in zip(TEXTS, encoded, strict=True):
        assert len(ids) == len(spans)
        assert spans == sorted(spans)
        covered = {i for start, end in spans for i in range(start, end)}
        assert covered >= {i for i, character in enumerate(text) if not character.isspace()}
        for start, end in spans:
            assert start < end
            # A word's token is without the blank before it.
            assert text[start:end].isspace() or text[start:end] == text[start:end].lstrip()


def test_the_text_of_a_span_is_that_of_its_token():
    for kind in KINDS:
        tokenizer, text = TOKENIZERS[kind], TEXTS[0]
        ((ids, spans),) = tokenizer.encode_spans([text])
        for id, (start, end) in zip(ids, spans, strict=True):
            piece = tokenizer.convert_ids_to_tokens([id])[0].removeprefix("##")
            if piece.isascii() and text[start:end].isascii() and not text[start:end].isspace():
                assert piece.strip() == text[start:end]
    assert TOKENIZERS["bytes"].encode_spans(["é😀"])[0][1] == [(0, 1)] * 2 + [(1, 2)] * 4


def test_special_tokens_that_text_spells_out_are_text(tokenizer):
    ((ids, spans),) = tokenizer.encode_spans(["a [SEP] b"])
    assert ids == tokenizer.encode("a [SEP] b")
    assert len(ids) == len(spans)
    assert not {tokenizer.bos, tokenizer.eos, tokenizer.pad} & set(ids)


# Sentences and pairs


def test_h19_a_pair_is_cls_first_sep_second_sep(tokenizer):
    first, second = TEXTS, TEXTS[::-1]
    examples, cut = encode_sentences(first, second, tokenizer, 1000)
    assert cut == 0
    bos, eos = [tokenizer.bos], [tokenizer.eos]
    sides = zip(map(tokenizer.encode, first), map(tokenizer.encode, second), strict=True)
    assert rows(examples) == [[*bos, *a, *eos, *b, *eos] for a, b in sides]
    assert examples.pair_starts.tolist() == [len(tokenizer.encode(text)) + 2 for text in first]
    alone, _ = encode_sentences(first, None, tokenizer, 1000)
    assert rows(alone) == [[*bos, *tokenizer.encode(text), *eos] for text in first]
    assert alone.pair_starts.tolist() == alone.store.lengths.tolist()


def cut_by_steps(a, b, room):
    """Truncation of Devlin et al.: the longer side loses its last token, the second of equals."""
    a, b = list(a), list(b)
    while len(a) + len(b) > room:
        (a if len(a) > len(b) else b).pop()
    return a, b


def test_h19_pairs_are_cut_from_the_longer_side():
    tokenizer = TOKENIZERS["characters"]
    sizes = [(m, n) for m in range(1, 12) for n in range(1, 12)]
    first = ["abcdefghijklmnop"[:m] for m, _ in sizes]
    second = ["ponmlkjihgfedcba"[:n] for _, n in sizes]
    for length in range(5, 26):
        examples, cut = encode_sentences(first, second, tokenizer, length)
        wanted = []
        for a, b in zip(first, second, strict=True):
            a, b = cut_by_steps(tokenizer.encode(a), tokenizer.encode(b), length - 3)
            assert a
            assert b
            wanted.append([tokenizer.bos, *a, tokenizer.eos, *b, tokenizer.eos])
        assert rows(examples) == wanted
        assert cut == sum(m + n > length - 3 for m, n in sizes)


def test_sentences_are_cut_at_their_end_and_keep_their_marks(tokenizer):
    whole, _ = encode_sentences(TEXTS, None, tokenizer, 1000)
    for length in (3, 7, 20):
        examples, cut = encode_sentences(TEXTS, None, tokenizer, length)
        for row, full in zip(rows(examples), rows(whole), strict=True):
            assert row == (full if len(full) <= length else [*full[: length - 1], full[-1]])
        assert cut == sum(len(full) > length for full in rows(whole))


def test_lengths_without_room_are_refused():
    tokenizer = TOKENIZERS["bytes"]
    for length, call in (
        (2, lambda n: encode_sentences(["a"], None, tokenizer, n)),
        (4, lambda n: encode_sentences(["a"], ["b"], tokenizer, n)),
        (3, lambda n: encode_tagged([["a"]], tokenizer, n)),
        (83, lambda n: encode_questions(["a"], ["b"], tokenizer, n, 60, 20)),
    ):
        with pytest.raises(ConfigError, match=f"max_length (is )?{length}"):
            call(length)
        call(length + 1)


@pytest.mark.parametrize("special", [0, 1, 5])
def test_words_have_room_for_two_tokens_beside_those_of_any_frame(special):
    tokenizer = TOKENIZERS["bytes"]
    template = default_template(tokenizer)._replace(
        prefix_ids=(tokenizer.bos,) * special, suffix_ids=()
    )
    with pytest.raises(ConfigError, match=rf"at least {special + 2}, {special} of them special"):
        encode_tagged([["a"]], tokenizer, special + 1, template)
    assert len(encode_tagged([["a"]], tokenizer, special + 2, template)) == 1


# Batches


def test_types_mark_the_second_part_and_only_it(tokenizer):
    examples, _ = encode_sentences(TEXTS, TEXTS[::-1], tokenizer, 40)
    batch = collate(examples, np.arange(len(TEXTS)), 44, tokenizer.pad)
    for tokens, types, length in zip(*(batch[k] for k in ("tokens", "types", "lengths")),
                                     strict=True):  # fmt: skip
        middle = tokens.tolist().index(tokenizer.eos) + 1
        assert types.tolist() == [0] * middle + [1] * (length - middle) + [0] * (44 - length)
        assert (tokens[length:] == tokenizer.pad).all()
    alone, _ = encode_sentences(TEXTS, None, tokenizer, 40)
    assert not collate(alone, np.arange(len(TEXTS)), 40, tokenizer.pad)["types"].any()


def test_any_batch_is_rows_of_the_whole(tokenizer):
    examples, _ = encode_sentences(TEXTS, TEXTS[::-1], tokenizer, 40)
    whole = collate(examples, np.arange(len(TEXTS)), 40, tokenizer.pad)
    batch = collate(examples, np.array([3, -1, 0, 3]), 40, tokenizer.pad)
    assert {name: array.dtype for name, array in batch.items()} == dict.fromkeys(batch, np.int32)
    for name, array in batch.items():
        for row, index in zip(array, [3, None, 0, 3], strict=True):
            if index is not None:
                assert (row == whole[name][index]).all()
    assert (batch["tokens"][1] == tokenizer.pad).all()
    assert not batch["types"][1].any()
    assert batch["lengths"].tolist()[1] == 0
    with pytest.raises(ValueError, match="does not fit"):
        collate(examples, np.array([3]), 10, tokenizer.pad)


# Words


def sentences(seed=0):
    draw = random.Random(seed)
    words = ["low", "lowest", "schöner", "日本", "didn't", "😀", "\u200b", "supercalifragilistic"]
    made = [[draw.choice(words) for _ in range(draw.randint(1, 40))] for _ in range(20)]
    return [*made[:10], [], *made[10:]]


@pytest.mark.parametrize("length", [4, 5, 9, 64, 1000])
def test_b36_every_word_has_one_place_whatever_the_length(tokenizer, length):
    given = sentences()
    tagged = encode_tagged(given, tokenizer, length)
    assert tagged.examples.store.lengths.max() <= length
    seen = []
    for i, row in enumerate(rows(tagged.examples)):
        places = tagged.word_starts[i].tolist()
        assert (row[0], row[-1]) == (tokenizer.bos, tokenizer.eos)
        assert places == sorted(set(places))
        assert all(0 < place < len(row) - 1 for place in places)
        seen += [(int(tagged.sentence[i]), int(tagged.firsts[i]) + k) for k in range(len(places))]
    assert seen == [(i, k) for i, sentence in enumerate(given) for k in range(len(sentence))]
    if length != 64:
        assert (len(tagged) == len(given)) == (length == 1000)


def test_b36_a_place_is_the_first_token_of_its_word(tokenizer):
    given = sentences()
    tagged = encode_tagged(given, tokenizer, 1000)
    for words, row, places in zip(given, rows(tagged.examples), tagged.word_starts, strict=True):
        for k, (word, place) in enumerate(zip(words, places.tolist(), strict=True)):
            ids, spans = tokenizer.encode_spans([f" {word}" if k else word])[0]
            visible = [id for id, (_, end) in zip(ids, spans, strict=True) if end > (k > 0)]
            assert row[place : place + len(visible)] == (visible or [tokenizer.unk])[: len(visible)]
            if not visible:
                assert row[place] == tokenizer.unk


def test_b36_words_of_byte_level_bpe_join_to_text():
    tokenizer = TOKENIZERS["bpe"]
    words = ["The", "lower", "schöner", "日本"]
    tagged = encode_tagged([words], tokenizer, 100)
    assert tokenizer.decode(rows(tagged.examples)[0]) == " ".join(words)


def test_b36_a_word_without_tokens_is_unknown_and_keeps_its_place():
    tokenizer = TOKENIZERS["wordpiece"]
    assert tokenizer.encode("\u3000") == []
    tagged = encode_tagged([["low", "\u3000", "low"]], tokenizer, 100)
    places = tagged.word_starts[0]
    assert rows(tagged.examples)[0][places[1]] == tokenizer.unk
    assert (len(places), len(set(places.tolist()))) == (3, 3)


# Questions


def story(words=60, seed=1):
    draw = random.Random(seed)
    vocabulary = ["figs,", "Łódź", "didn't", "schöner", "日本", "low", "a", "lower."]
    return " ".join(draw.choice(vocabulary) for _ in range(words))


@pytest.mark.parametrize("stride", [0, 3, 8])
def test_windows_hold_every_token_and_overlap_by_the_stride(tokenizer, stride):
    contexts = [story(), "low", story(20), story()]
    asked = ["What is low?", "low? " * 30, "a?", "b?"]
    made = encode_questions(asked, contexts, tokenizer, 40, stride, 12)
    texts = tokenizer.encode_spans(contexts)
    for number, (question, (ids, spans)) in enumerate(zip(asked, texts, strict=True)):
        mine = np.flatnonzero(made.question == number)
        begin = tokenizer.encode(question)[:12]
        joined, joined_spans = [], []
        for k, i in enumerate(mine.tolist()):
            row, at = rows(made.examples)[i], int(made.examples.pair_starts[i])
            assert row[:at] == [tokenizer.bos, *begin, tokenizer.eos]
            assert row[-1] == tokenizer.eos
            assert len(row) == 40 or (k == len(mine) - 1 and len(row) < 40)
            assert (made.row_spans(i)[:at] == -1).all()
            assert (made.row_spans(i)[-1] == -1).all()
            window = [tuple(span) for span in made.row_spans(i)[at:-1].tolist()]
            shared = stride if k else 0
            assert len(window) > shared or not k  # each continues where the last one ended
            if k:
                assert joined_spans[len(joined_spans) - stride :] == window[:stride]
            joined += row[at + shared : -1]
            joined_spans += window[shared:]
        assert (joined, joined_spans) == (ids, spans)


def answers_in(context, seed=2):
    """Answers of one to three words of a text."""
    draw = random.Random(seed)
    words = context.split(" ")
    for _ in range(12):
        size = draw.randint(1, 3)
        first = draw.randrange(len(words) - size)
        start = len(" ".join([*words[:first], ""]))
        yield SquadAnswer(" ".join(words[first : first + size]), start)


def test_an_answer_is_found_where_the_window_holds_it_and_only_there(tokenizer):
    context = story(120)
    answers = list(answers_in(context))
    assert all(context.startswith(answer.text, answer.start) for answer in answers)
    given = [[answer, SquadAnswer("a", 0)] for answer in answers]
    made = encode_questions(["What?"] * 12, [context] * 12, tokenizer, 100, 70, 10)
    spans = locate_answers(made, given)
    found = set()
    for i, (first, last) in enumerate(spans.tolist()):
        answer = answers[made.question[i]]
        stop = answer.start + len(answer.text)
        inside = made.row_spans(i)[made.examples.pair_starts[i] : -1]
        held = inside[0, 0] <= answer.start and stop <= inside[-1, 1]
        assert (first > 0) == held
        if held:
            found.add(int(made.question[i]))
            begin, end = made.row_spans(i)[first, 0], made.row_spans(i)[last, 1]
            assert context[begin:end] == answer.text
    assert found == set(range(12))  # each fits into what windows share
    assert len(spans) > 12


def test_questions_without_answer_point_at_cls():
    tokenizer = TOKENIZERS["bytes"]
    made = encode_questions(["a", "b"], ["low lower"] * 2, tokenizer, 40, 4, 10)
    spans = locate_answers(made, [[], [SquadAnswer(" lower ".rstrip(), 3)]])
    assert spans[0].tolist() == [0, 0]
    # Blanks at the ends of an answer are no part of it.
    first, last = spans[1].tolist()
    assert made.row_spans(1)[[first, last]].tolist() == [[4, 5], [8, 9]]


def test_an_answer_within_a_word_is_found_with_the_word():
    tokenizer = TOKENIZERS["wordpiece"]
    context = "The lowest low"
    made = encode_questions(["What?"], [context], tokenizer, 60, 4, 10)
    ((first, last),) = locate_answers(made, [[SquadAnswer("owes", 5)]]).tolist()
    begin, end = made.row_spans(0)[first, 0], made.row_spans(0)[last, 1]
    assert begin <= 5
    assert end >= 9


# Tokenizers of others


def framed(single, pair):
    """The WordPiece tokenizer with what its file then says to put around texts."""
    fields = json.loads(TOKENIZERS["wordpiece"].text)
    names = {"[CLS]": 2, "[SEP]": 3}
    part = lambda name, side: (
        {"Sequence": {"id": name, "type_id": side}}
        if name in "AB"
        else {"SpecialToken": {"id": name, "type_id": side}}
    )
    fields["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [part(name, 0) for name in single],
        "pair": [part(name, 0) for name in pair],
        "special_tokens": {
            name: {"id": name, "ids": [id], "tokens": [name]} for name, id in names.items()
        },
    }
    return Tokenizer(json.dumps(fields))


def test_what_stands_around_a_text_is_told_by_the_file():
    """RoBERTa has two ends between the texts of a pair, BERT one, Marian nothing in front."""
    plain = TOKENIZERS["wordpiece"]
    cls, sep = plain.bos, plain.eos
    assert (plain.prefix_ids, plain.suffix_ids, plain.num_separators) == ((), (sep,), 1)
    bert = framed(["[CLS]", "A", "[SEP]"], ["[CLS]", "A", "[SEP]", "B", "[SEP]"])
    assert (bert.prefix_ids, bert.suffix_ids, bert.num_separators) == ((cls,), (sep,), 1)
    roberta = framed(["[CLS]", "A", "[SEP]"], ["[CLS]", "A", "[SEP]", "[SEP]", "B", "[SEP]"])
    assert (roberta.prefix_ids, roberta.suffix_ids, roberta.num_separators) == ((cls,), (sep,), 2)
    marian = framed(["A", "[SEP]"], ["A", "B", "[SEP]"])
    assert (marian.prefix_ids, marian.suffix_ids, marian.num_separators) == ((), (sep,), 1)


def test_h19_pairs_are_parted_as_the_file_says():
    roberta = framed(["[CLS]", "A", "[SEP]"], ["[CLS]", "A", "[SEP]", "[SEP]", "B", "[SEP]"])
    bos, eos = [roberta.bos], [roberta.eos]
    first, second = roberta.encode_batch(["low lower", "a b c d e f g h"])
    examples, cut = encode_sentences(["low lower"], ["a b c d e f g h"], roberta, 99)
    assert rows(examples) == [bos + first + eos + eos + second + eos]
    assert (examples.pair_starts.tolist(), cut) == ([len(first) + 3], 0)
    for length in range(7, 16):
        examples, _ = encode_sentences(["low lower"], ["a b c d e f g h"], roberta, length)
        [row] = rows(examples)
        assert len(row) <= length
        assert (row.count(roberta.bos), row.count(roberta.eos)) == (1, 3)
    spans = encode_questions(["low"], ["a b c d e f g h"], roberta, 12, 2)
    assert all(len(row) <= 12 and row.count(roberta.eos) == 3 for row in rows(spans.examples))
    assert max(map(len, rows(spans.examples))) == 12
    template = SpecialTokensTemplate((), (eos[0],) * 3, (eos[0], bos[0]))
    spans = encode_questions(["low"], ["a b c d e f g h"], roberta, 12, 2, template=template)
    ids, _ = roberta.encode_batch(["low", "a"])
    for row in rows(spans.examples):
        assert row[: len(ids) + 3] == [*ids, *eos * 3]
        assert row[-2:] == eos + bos
    assert max(map(len, rows(spans.examples))) == 12
