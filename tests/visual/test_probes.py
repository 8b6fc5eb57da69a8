"""Pictures of probes (row H21)."""

from transformer_jax.visual.charts import BEST, LAYER, plot_probes

ROWS = {"layer 0 (embeddings)": 0.5, "layer 1": 0.9, "sum of last 1": 0.7}


def test_h21_a_bar_for_each_layer_and_the_best_is_marked(tmp_path):
    figure = plot_probes(ROWS, tmp_path / "a.svg", guess=("majority ($)", 0.4), title="a $ b")
    [ax] = figure.axes
    bars = ax.patches
    assert [bar.get_width() for bar in bars] == list(ROWS.values())
    colors = [bar.get_facecolor() for bar in bars]
    assert len({*colors}) == 3
    hexadecimal = ["#" + "".join(f"{round(255 * x):02x}" for x in c[:3]) for c in colors]
    assert hexadecimal[:2] == [LAYER, BEST]
    assert ax.lines[0].get_xdata()[0] == 0.4
    plot_probes(ROWS, tmp_path / "b.svg", guess=("majority ($)", 0.4), title="a $ b")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
