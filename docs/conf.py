"""How Sphinx builds the manual: `make docs`. Reads the version from the package's source and imports nothing of it."""

import re
from pathlib import Path

_SOURCE = Path(__file__).resolve().parent.parent / "src" / "evenflow" / "__init__.py"
_VERSION = re.search(r'__version__ = "(.+)"', _SOURCE.read_text("utf-8"))
assert _VERSION is not None

project = "Evenflow"
author = "The Evenflow authors"
copyright = author
version = release = _VERSION[1]

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"Evenflow {release}"
html_copy_source = False
html_show_sphinx = False
