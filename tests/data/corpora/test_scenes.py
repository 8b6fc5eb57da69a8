"""Drawn pictures: their captions are true by their pixels, and splits have nothing in common."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.corpora import scenes
from transformer_jax.recipes.captions import _pointing

SPLITS = ("train", "valid", "test", "test_unseen")
MEASURED = {"small": 8, "large": 16}  # what a checker measures, in pixels


def things_by_pixels(picture):
    """Things as a looker sees them: color, shape, size and box of each patch of one color."""
    shown = (picture != scenes.BACKGROUND).any(-1)
    seen, found = np.zeros_like(shown), []
    for start in zip(*np.nonzero(shown), strict=True):
        if seen[start]:
            continue
        stack, places = [start], []
        seen[start] = True
        while stack:
            y, x = stack.pop()
            places.append((y, x))
            for near in itertools.product((y - 1, y, y + 1), (x - 1, x, x + 1)):
                inside = all(0 <= place < scenes.SIDE for place in near)
                if inside and shown[near] and not seen[near]:
                    seen[near] = True
                    stack.append(near)
        ys, xs = np.array(places).T
        box = (ys.min(), xs.min(), ys.max() + 1, xs.max() + 1)
        mask = shown[box[0] : box[2], box[1] : box[3]]
        assert mask.shape[0] == mask.shape[1]
        near = {name: np.abs(np.subtract(rgb, picture[ys[0], xs[0]], dtype=int)).sum()
                for name, rgb in scenes.COLORS.items()}  # fmt: skip
        size = next(name for name, side in MEASURED.items() if side == mask.shape[0])
        found.append((min(near, key=near.get), shape_by_pixels(mask), size, box))
    return found


def shape_by_pixels(mask):
    """The shape, from corners, center, and how the widths of rows change."""
    widths, half = mask.sum(1), len(mask) // 2
    if mask.all():
        return "square"
    if not mask[half, half]:
        return "ring"
    if mask[-1].all():
        return "triangle"
    if len(set(widths.tolist())) == 2:
        return "cross"
    # A circle has the width of its box in several rows, a diamond in two.
    return "diamond" if (widths == len(mask)).sum() <= 2 else "circle"


def is_true(caption, things):
    """Returns whether a caption states the number, the kind and the place of the things."""
    words = caption.split()
    kinds = [f"{size} {color} {shape}" for color, shape, size, _ in things]
    if words[0] in ("two", "three"):
        plural = scenes.SHAPES[words[-1]] if words[-1] in scenes.SHAPES else words[-1]
        singular = next(name for name, many in scenes.SHAPES.items() if many == plural)
        return len(kinds) == {"two": 2, "three": 3}[words[0]] and set(kinds) == {
            " ".join([*words[1:-1], singular])
        }
    if len(words) == 4:
        return kinds == [" ".join(words[1:])]
    first, second = " ".join(words[1:4]), " ".join(words[-3:])
    boxes = {kind: thing[3] for kind, thing in zip(kinds, things, strict=True)}
    if set(boxes) != {first, second} or len(things) != 2:
        return False
    (top, left, bottom, right), (top_2, left_2, bottom_2, right_2) = boxes[first], boxes[second]
    beside = top < bottom_2 and top_2 < bottom
    over = left < right_2 and left_2 < right
    return {
        "left of": right <= left_2 and beside,
        "right of": right_2 <= left and beside,
        "above": bottom <= top_2 and over,
        "below": bottom_2 <= top and over,
    }[" ".join(words[4:-4])]


@pytest.fixture(scope="module")
def drawn():
    return {split: scenes.generate(split, 120, seed=3) for split in SPLITS}


@pytest.mark.slow
def test_a_caption_is_true_of_its_pixels(drawn):
    for made in drawn.values():
        for picture, caption in zip(made.pixels, made.captions, strict=True):
            assert is_true(caption, things_by_pixels(picture)), caption


def test_the_checker_refuses_captions_of_other_pictures(drawn):
    made = drawn["train"]
    for picture, caption, other in zip(
        made.pixels, made.captions, [*made.captions[1:], made.captions[0]], strict=True
    ):
        assert caption == other or not is_true(other, things_by_pixels(picture))


def test_boxes_and_masks_are_those_of_the_pixels(drawn):
    for picture, things in zip(drawn["test"].pixels, drawn["test"].things, strict=True):
        boxes = {tuple(map(int, box)) for *_, box in things_by_pixels(picture)}
        assert boxes == {thing.box for thing in things}
        whole = np.any([thing.mask for thing in things], axis=0)
        assert (whole == (picture != scenes.BACKGROUND).any(-1)).all()


@pytest.mark.slow
def test_a_word_for_a_shape_names_the_boxes_of_its_things(drawn):
    for made in drawn.values():
        for picture, caption, things in zip(made.pixels, made.captions, made.things, strict=True):
            words = [*caption.split(), "[EOS]"]
            shapes = {
                tuple(map(int, box)): shape for _, shape, *_, box in things_by_pixels(picture)
            }
            named = scenes.named_boxes(words, things)
            for place, boxes in named.items():
                one = {shapes[box] for box in boxes}
                assert words[place] in {*one, *(scenes.SHAPES[shape] for shape in one)}
            assert sorted(itertools.chain(*named.values())) == sorted(shapes)


@pytest.mark.parametrize(("shown", "share"), [("its", "100.0"), ("another", "0.0")])
def test_evaluate_compares_heat_maps_with_the_boxes(drawn, shown, share):
    made = scenes.generate("test", 8)

    def heat_maps(pixels, text):
        [i] = [i for i, one in enumerate(made.pixels) if (one == pixels).all()]
        boxes = scenes.named_boxes(text.split(), made.things[i])

        def of_word(place):
            inside = np.zeros((scenes.SIDE, scenes.SIDE))
            for top, left, bottom, right in boxes[place]:
                inside[top:bottom, left:right] = 1
            return inside if shown == "its" else 1 - inside

        return SimpleNamespace(words=text.split(), of_word=of_word)

    texts = [*made.captions[:7], "a wrong caption"]
    named = map(scenes.named_boxes, map(str.split, texts[:7]), made.things)
    words = sum(map(len, named))
    found = _pointing(SimpleNamespace(heat_maps=heat_maps), "test", texts)
    assert found == f"heat maps on the named shape {share} % of {words} words"
    assert "no caption is right" in _pointing(None, "test", ["no"])


@pytest.mark.slow
def test_held_out_combinations_are_in_their_split_alone(drawn):
    for split, made in drawn.items():
        for picture in made.pixels:
            kinds = {(color, shape) for color, shape, *_ in things_by_pixels(picture)}
            assert bool(kinds & scenes.HELD_OUT) == (split == "test_unseen")


def test_splits_share_no_picture(drawn):
    pictures = {split: {p.tobytes() for p in made.pixels} for split, made in drawn.items()}
    for one, other in itertools.combinations(SPLITS, 2):
        assert not pictures[one] & pictures[other]


@pytest.mark.slow
def test_every_word_is_learnt_from_training():
    words = {
        word for caption in scenes.generate("train", 2000).captions for word in caption.split()
    }
    unseen = {
        word for text in scenes.generate("test_unseen", 300).captions for word in text.split()
    }
    assert unseen <= words
    assert {*scenes.COLORS, *scenes.SHAPES, *scenes.SHAPES.values(), "above", "below"} <= words


def test_fewer_are_the_beginning_of_more_and_another_seed_draws_others():
    few, more = scenes.generate("train", 3), scenes.generate("train", 5)
    assert (few.pixels == more.pixels[:3]).all()
    assert few.captions == more.captions[:3]
    assert scenes.generate("train", 5, seed=1).captions != more.captions


def test_a_negative_count_is_refused():
    with pytest.raises(ConfigError, match="the splits are train, valid, test, test_unseen"):
        scenes.generate("train", -1)
