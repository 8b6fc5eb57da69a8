"""The check of a built site finds what a browser would load from elsewhere, and dead links."""

import pytest

from docs._ext import check_site

GOOD = """<html><head><link rel="canonical" href="https://example.org/a.html">
<link rel="stylesheet" href="a.css"></head><body><h1 id="top-of-it">A</h1>
<p>seeds 1\u20133, words \u2013 and more</p>
<a href="https://example.org">other</a> <a href="#top-of-it">up</a> <a href="b/c.html#x">c</a>
<img src="data:image/png;base64,AA=="></body></html>"""


def site(folder, html=GOOD, css="p { color: red }"):
    (folder / "b").mkdir()
    (folder / "a.html").write_text(html)
    (folder / "a.css").write_text(css)
    (folder / "b" / "c.html").write_text('<p id="x">C</p>')
    return [*check_site.faults(folder.resolve())]


def test_a_good_site_has_no_faults(tmp_path):
    assert site(tmp_path) == []


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://cdn.example.org/a.js"></script>',
        '<script src="//cdn.example.org/a.js"></script>',
        '<link rel="stylesheet" href="https://fonts.example.org/a.css">',
        '<link rel="preconnect" href="https://fonts.example.org">',
        '<img src="http://example.org/a.png">',
        '<img srcset="a.css 1x, https://example.org/a.png 2x">',
        "<style>@import 'https://example.org/a.css';</style>",
        '<p style="background: url(https://example.org/a.png)">a</p>',
        '<iframe src="https://example.org"></iframe>',
        '<svg><image href="https://example.org/a.png"/></svg>',
        '<meta http-equiv="refresh" content="0; url=https://example.org">',
        '<img src="nowhere.png">',
        '<a href="nowhere.html">a</a>',
        '<a href="b/c.html#nowhere">a</a>',
        '<a href="#nowhere">a</a>',
        "<p>the same without \u2013task.init-from</p>",
    ],
)
def test_a_fault_is_found(tmp_path, html):
    assert len(site(tmp_path, GOOD + html)) == 1


@pytest.mark.parametrize(
    "css",
    ['@import "https://example.org/a.css";', "a { src: url('https://example.org/a.woff2') }"],
)
def test_a_fault_of_a_style_sheet_is_found(tmp_path, css):
    assert len(site(tmp_path, css=css)) == 1


def test_the_exit_code_says_whether_there_are_faults(tmp_path, capsys):
    assert check_site.main(str(tmp_path)) == 1  # no page at all
    site(tmp_path)
    assert check_site.main(str(tmp_path)) == 0
    assert "2 pages: no faults" in capsys.readouterr().out
