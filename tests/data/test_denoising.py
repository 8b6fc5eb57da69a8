"""Laws of texts with noise in the source: row T16."""

import dataclasses

import numpy as np
import pytest

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.added_tokens import tag_languages
from transformer_jax.data.backends import SENTINEL, SPECIAL
from transformer_jax.data.denoising import DenoisingPlan, NoiseConfig, check_tokenizer
from transformer_jax.data.document_stream import DocumentStream, TextChunk
from transformer_jax.data.languages import Direction
from transformer_jax.data.loader import prefetched
from transformer_jax.data.noise import restore_spans
from transformer_jax.data.plan import Batching
from transformer_jax.data.sentences import build_sentences
from transformer_jax.data.tokenizer import Tokenizer, train_tokenizer

DOCUMENTS = [
    " ".join(f"{'abcdefghij'[(d + s) % 10] * (1 + (d * s) % 7)} {d}-{s}." for s in range(1 + d % 6))
    for d in range(40)
]
SPANS = NoiseConfig(sentence_permutation=0.0, text_infilling=0.0, span_corruption=0.25)
NONE = NoiseConfig(sentence_permutation=1e-12, text_infilling=0.0)
KINDS = {
    "bart": NoiseConfig(),
    "all": NoiseConfig(0.5, 0.5, 0.2, 0.2, 0.2),
    "everything goes": NoiseConfig(0.0, 0.0, 1.0, text_infilling=0.0),
    "insertions": NoiseConfig(text_infilling=1.0, mean_span_length=1.0),
    "t5": SPANS,
    "almost all spans": dataclasses.replace(SPANS, span_corruption=0.95, mean_span_length=1.0),
}
noisy = pytest.mark.parametrize("kind", KINDS)
TOKENIZER = train_tokenizer(
    "bytes", [], 320, special=(*SPECIAL, "<mask>", *map(SENTINEL.format, range(30)))
)
ALL = [TextChunk(text, True) for text in DOCUMENTS]
STORE = build_sentences(DocumentStream("test", "1", lambda: ALL), TOKENIZER, blanks=True)


def plan_of(noise, length=40, tokenizer=TOKENIZER, shuffle=True, seed=3):
    batching = Batching(
        max_tokens=8 * length, num_buckets=4, required_batch_size_multiple=2, seed=seed
    )
    return DenoisingPlan(STORE, tokenizer, noise, batching, length=length, shuffle=shuffle)


def rows(plan, step):
    """Sources and targets of a batch, without padding, and the numbers of their texts."""
    items = plan.batch(step)
    made = plan.make(items)
    sources, source_lengths = made["inputs"]["source"], made["inputs"]["source_lengths"]
    for i, text in enumerate(items.indices):
        if text >= 0:
            n, m = int(source_lengths[i]), int(made["lengths"][i])
            assert (sources[i, n:] == TOKENIZER.pad).all()
            assert (made["target"][i, m:] == TOKENIZER.pad).all()
            yield int(text), sources[i, :n], made["target"][i, :m]


def epoch(plan, number=0):
    begin = number * plan.steps_per_epoch
    return [row for step in range(begin, begin + plan.steps_per_epoch) for row in rows(plan, step)]


@noisy
def test_every_text_is_a_target_once_an_epoch_and_fits_its_shape(kind):
    plan = plan_of(KINDS[kind])
    made = epoch(plan)
    assert sorted(text for text, _, _ in made) == list(range(len(plan)))
    for _, source, target in made:
        assert max(len(source), len(target)) <= 40
        assert source[-1] == target[-1] == TOKENIZER.eos


def test_t16_targets_are_the_documents_whatever_the_noise():
    """Their sentences can be put together again, blanks between them included."""
    made = sorted(epoch(plan_of(KINDS["all"])), key=lambda row: row[0])
    text = "".join(TOKENIZER.decode(target.tolist()) for _, _, target in made)
    assert text == "".join(DOCUMENTS)


def test_t16_source_and_target_of_span_corruption_make_the_text():
    whole = {text: target[:-1] for text, _, target in epoch(plan_of(NONE, length=42))}
    # Two tokens more are for sentinels, so that the texts are the same.
    corrupted = epoch(plan_of(SPANS, length=44))
    assert len(whole) == len(corrupted)
    sentinels = np.array(TOKENIZER.sentinels)
    for text, source, target in corrupted:
        found = restore_spans(source[:-1], target[:-1], sentinels)
        np.testing.assert_array_equal(found, whole[text])


def test_t16_the_noise_that_is_asked_for_is_what_changes():
    of = lambda noise: {text: source[:-1] for text, source, _ in epoch(plan_of(noise))}
    plain = of(NONE)
    tokens = sum(map(len, plain.values()))
    masked = of(NoiseConfig(0.0, token_masking=0.5, text_infilling=0.0))
    count = sum(int((row == TOKENIZER.mask).sum()) for row in masked.values())
    assert abs(count - tokens / 2) <= len(plain) / 2
    deleted = of(NoiseConfig(0.0, token_deletion=0.25, text_infilling=0.0))
    assert abs(sum(map(len, deleted.values())) - 0.75 * tokens) <= len(plain) / 2
    rotated = of(NoiseConfig(0.0, document_rotation=1.0, text_infilling=0.0))
    permuted = of(NoiseConfig(1.0, text_infilling=0.0))
    for text, row in plain.items():
        assert any(np.array_equal(np.roll(rotated[text], i), row) for i in range(len(row)))
        assert sorted(permuted[text]) == sorted(row)
    changed = [text for text in plain if not np.array_equal(rotated[text], plain[text])]
    assert len(changed) > 0.8 * len(plain)
    assert any(not np.array_equal(permuted[text], plain[text]) for text in plain)
    half = of(NoiseConfig(0.0, document_rotation=0.5, text_infilling=0.0))
    changed = [text for text in plain if not np.array_equal(half[text], plain[text])]
    assert 0.25 < len(changed) / len(plain) < 0.75


@noisy
def test_a_batch_is_a_function_of_the_step(kind):
    plan, again = plan_of(KINDS[kind]), plan_of(KINDS[kind])
    steps = range(2 * plan.steps_per_epoch)
    first = [plan.make(plan.batch(step)) for step in steps]
    for step in reversed(steps):
        made = again.make(again.batch(step))
        np.testing.assert_array_equal(made["inputs"]["source"], first[step]["inputs"]["source"])
        np.testing.assert_array_equal(made["target"], first[step]["target"])
    threaded = prefetched(plan, plan.make, start=2, stop=4)
    for made, expected in zip(threaded, first[2:4], strict=True):
        np.testing.assert_array_equal(made["inputs"]["source"], expected["inputs"]["source"])


def test_a_process_makes_its_rows_as_all_do():
    plan = plan_of(NoiseConfig())
    items = plan.batch(1)
    some = np.arange(len(items))[1::2]
    made, part = plan.make(items), plan.make(items.select(some))
    np.testing.assert_array_equal(part["inputs"]["source"], made["inputs"]["source"][some])
    np.testing.assert_array_equal(part["lengths"], made["lengths"][some])


@noisy
def test_noise_is_drawn_anew_for_every_epoch_but_not_of_validation(kind):
    plan = plan_of(KINDS[kind])
    first, second = ({row[0]: row[1:] for row in epoch(plan, number)} for number in (0, 1))
    same = [np.array_equal(first[text][0], second[text][0]) for text in first]
    assert all(same) == (kind == "everything goes")
    still = plan_of(KINDS[kind], shuffle=False)
    for one, other in zip(epoch(still), epoch(still, 1), strict=True):
        assert one[0] == other[0]
        np.testing.assert_array_equal(one[1], other[1])


def test_padding_has_every_shape_and_no_tokens():
    plan = plan_of(NoiseConfig())
    shapes = {(len(items), items.S, items.T) for items in plan.padding()}
    assert shapes == {tuple(shape) for shape in plan.shapes}
    batches = {(len(b), b.S, b.T) for b in map(plan.batch, range(3 * plan.steps_per_epoch))}
    assert batches <= shapes
    for items in plan.padding():
        assert not plan.make(items)["lengths"].any()


def test_other_noise_or_another_seed_is_another_fingerprint():
    prints = {
        plan_of(NoiseConfig()).fingerprint,
        plan_of(NoiseConfig(mean_span_length=2.0)).fingerprint,
        plan_of(NoiseConfig(), seed=4).fingerprint,
        plan_of(NoiseConfig(), length=41).fingerprint,
    }
    assert len(prints) == 4
    assert plan_of(NoiseConfig()).fingerprint in prints


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"text_infilling": 1.5}, "noise.text_infilling is 1.5: at most 1"),
        ({"token_masking": float("nan")}, "noise.token_masking is nan: at least 0"),
        ({"mean_span_length": 0.5}, "noise.mean_span_length is 0.5: at least 1"),
        (
            {"span_corruption": 0.1},
            "noise.span_corruption is 0.1, together with noise.sentence",
        ),
        ({"sentence_permutation": 0.0, "text_infilling": 0.0}, "noise is 0 everywhere"),
    ],
)
def test_noise_that_cannot_be_is_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        NoiseConfig(**settings)


def test_a_tokenizer_without_the_tokens_is_refused():
    plain = train_tokenizer("bytes", [], 320)
    for noise, said in (
        (NoiseConfig(), "no mask token"),
        (SPANS, "needs 6 sentinels, and the tokenizer has 0"),
    ):
        with pytest.raises(ConfigError, match=said):
            check_tokenizer(plain, noise, 60)
    check_tokenizer(plain, NoiseConfig(text_infilling=0.0), 60)
    two = Tokenizer(plain.text, target=plain.text)
    with pytest.raises(ConfigError, match="another one for targets"):
        check_tokenizer(two, NoiseConfig(text_infilling=0.0), 60)
    tagged = tag_languages(plain, [Direction("a", "b")])
    with pytest.raises(ConfigError, match="the tokenizer has languages, like those of NLLB"):
        check_tokenizer(tagged, NoiseConfig(text_infilling=0.0), 60)
    with pytest.raises(ConfigError, match="sequence_length is 1: a text needs at least 2"):
        plan_of(NoiseConfig(), length=1)
    with pytest.raises(ConfigError, match="sequence_length is 3: a text needs at least 4"):
        plan_of(SPANS, length=3)
    assert len(plan_of(SPANS, length=4)) > 100
