"""Configure Sphinx for `make docs`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "graphxai"
author = "The graphxai developers"
copyright = author
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "markdown_docstrings",
    "mathml",
    "registry_tables",
]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
add_module_names = False
html_math_renderer = "mathml"

html_theme = "furo"
html_title = "graphxai"
html_static_path = ["static"]
html_css_files = ["graphxai.css"]
html_show_sourcelink = False
html_copy_source = False
pygments_style = "friendly"
exclude_patterns = ["_build", "extensions"]
