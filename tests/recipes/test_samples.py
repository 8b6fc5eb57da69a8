"""Samples of validation in the log."""

from transformer_jax.recipes.tasks import speech_task, translation_task


def test_each_text_of_a_sample_is_on_a_line_of_its_own(capsys):
    translation_task.log_sample(recording="a.wav", reference="one", hypothesis="o" * 200)
    lines = capsys.readouterr().err.split("\n")
    assert lines == ["  recording   a.wav", "  reference   one", f"  hypothesis  {'o' * 160} …", ""]
    assert speech_task.log_sample is translation_task.log_sample
