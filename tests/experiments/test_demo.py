"""The demo holds itself to row L1: the lecture's four sentences, exactly, or it fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_jax.data.corpora.phrasebook import L1_PAIRS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def demo(tmp_path):
    """The script with a stand-in for training, and a translator that says what it is told."""

    def run(answers, **environment):
        python = f'#!/bin/sh\n[ "$1" = -m ] || exec "{sys.executable}" "$@"\n'
        translator = '#!/bin/sh\n[ "$1" != translate ] || { cat > "$0.read"; cat "$0.answers"; }\n'
        for name, text in (("python", python), ("transformer-jax", translator)):
            path = tmp_path / name
            path.write_text(text)
            path.chmod(0o755)
        (tmp_path / "transformer-jax.answers").write_text("".join(f"{a}\n" for a in answers))
        variables = {k: v for k, v in os.environ.items() if not k.startswith("DEMO_")}
        done = subprocess.run(
            ["bash", "experiments/demo.sh", str(tmp_path)],
            cwd=ROOT,
            env=variables | {"PYTHONPATH": str(ROOT)} | environment,
            capture_output=True,
            text=True,
        )
        assert (tmp_path / "transformer-jax.read").read_text().splitlines() == [
            source for source, _ in L1_PAIRS
        ]
        return done

    return run


RIGHT = [target for _, target in L1_PAIRS]


def test_the_four_sentences_are_shown_with_their_translations_l1(demo):
    done = demo(RIGHT)
    assert done.returncode == 0, done.stderr
    for source, target in L1_PAIRS:
        assert f"{source}  ->  {target}\n" in done.stdout


@pytest.mark.parametrize("place", range(4))
def test_one_other_translation_is_told_and_fails_l1(demo, place):
    answers = [*RIGHT[:place], "She likes to travel.", *RIGHT[place + 1 :]]
    done = demo(answers)
    assert done.returncode == 1
    assert "demo: FAILED: 1 of the four sentences" in done.stderr
    source, target = L1_PAIRS[place]
    assert f"{source}  ->  She likes to travel.  (should be: {target})" in done.stderr
    # Everything else was shown before.
    assert "the demo took" in done.stdout


def test_a_missing_translation_fails_l1(demo):
    assert demo(RIGHT[:3]).returncode == 1


def test_a_short_demo_only_shows_them(demo):
    done = demo(["nothing"] * 4, DEMO_STEPS="60")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("->  nothing\n") == 4
