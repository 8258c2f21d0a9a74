"""How Sphinx builds the manual: `make docs`. The reference comes from the package itself, so the package must import."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]  # the sources beside this file, and the tools of the project

from evenflow import __version__  # noqa: E402 - found by the line above

project = "Evenflow"
author = "The Evenflow authors"
copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "tools.command_pages"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

default_role = "code"  # docstrings write `names` as Markdown does
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True}
python_use_unqualified_type_names = True
maximum_signature_line_length = 90

html_theme = "furo"
html_title = f"Evenflow {release}"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["_static"]
html_css_files = ["evenflow.css"]
