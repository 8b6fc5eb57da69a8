"""Configuration of the documentation site, which ``make docs`` builds."""

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

os.environ.setdefault("JAX_PLATFORMS", "cpu")
BUILD = Path(__file__).parent / "_build"
# Programs of code cells, so that only what has changed in a page is compiled again.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(BUILD / "programs"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
# Each kernel would warn that its messages, on this machine, are not encrypted.
os.environ["IPYTHONDIR"] = str(BUILD / "ipython")
PROFILE = BUILD / "ipython" / "profile_default"
PROFILE.mkdir(parents=True, exist_ok=True)
(PROFILE / "ipython_kernel_config.py").write_text("c.IPKernelApp.log_level = 40\n")
sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "transformer_jax"
root_doc = "index"
exclude_patterns = ["_build", "_ext"]
extensions = [
    "commands",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "mathml",
    "notebooks",
    "repository_links",
    "result_pages",
    "signatures",
]

# Markdown: headings have the anchors of GitHub, so that links hold in the repository too.
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
smartquotes_action = "qe"  # quotes and ellipses; -- begins a flag and is no dash
highlight_language = "text"  # of blocks that name no language, which are commands and output

# Pages with code cells are executed, unless nothing in them has changed. A cell has time on the
# busiest machine: its limit is for one that hangs, and the whole build has a limit of its own.
nb_execution_mode = "off" if os.environ.get("DOCS_EXECUTE") == "off" else "cache"
nb_execution_cache_path = str(BUILD / "executed")
nb_execution_raise_on_error = True
nb_execution_timeout = 3600  # seconds
BUILD_LIMIT = 6 * 3600  # seconds
nb_merge_streams = True  # one block of output for each cell
nb_output_stderr = "remove"

# Docstrings are of Google's style; code in them has single or double backticks.
default_role = "code"
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False  # types are in the signature, in short

html_theme = "sphinx_book_theme"
html_title = project
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_show_sphinx = False
html_show_copyright = False
html_context = {"default_mode": "auto"}  # light or dark, as the browser prefers
html_theme_options = {
    "footer_content_items": "",
    "home_page_in_toc": True,
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "use_fullscreen_button": False,
    "navbar_persistent": [],  # the search in the sidebar is enough
}


def _stop(signum: int, frame: object) -> None:
    raise TimeoutError(f"the site takes longer than {BUILD_LIMIT // 3600} hours to build")


def setup(app: "Sphinx") -> None:
    """Limits the time of a build."""
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(BUILD_LIMIT)
