"""Files as public data sets shape them are read as what they hold, or refused with what to do."""

import pytest

from tests.doors.public import SAMPLES, outcome


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_files_of_public_data_sets_are_read_or_refused(sample, tmp_path):
    is_read, said = outcome(sample, tmp_path)
    assert is_read != sample.refused, said
    assert sample.says in said if sample.refused else said.startswith(sample.says)


def test_there_are_more_than_forty():
    assert len({sample.name for sample in SAMPLES}) == len(SAMPLES) > 60
    assert sum(not sample.refused for sample in SAMPLES) > 40
