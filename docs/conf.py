"""Configure Sphinx for `make docs`."""

import re
import shutil
import sys
from pathlib import Path

import torch_geometric.data

import graphxai
import graphxai.learning.run
from graphxai.learning.graphs.reading import TaskLike
from graphxai.runtime.version import VERSION

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "extensions"))

# Sphinx reads what lies in its folder alone.
shutil.copytree(
    DOCS.parent / "notebooks",
    DOCS / "notebooks",
    ignore=shutil.ignore_patterns("*.py", "__pycache__", ".*"),
    dirs_exist_ok=True,
)

# Five of the benchmarks are pages; their links to other files of the repository become names.
BENCHMARKS = ("reproduce", "faithfulness", "hybrids", "ground_truth", "moleculeace", "intervals")
(DOCS / "benchmarks").mkdir(exist_ok=True)
for name in BENCHMARKS:
    text = (DOCS.parent / "benchmarks" / f"{name}.md").read_text(encoding="utf-8")
    text = text.replace("](../docs/", "](../")
    text = re.sub(r"\[([^\]]*)\]\((?:(?:results|ground_truth)/[^)]*|[^)/]*\.csv)\)", r"\1", text)
    (DOCS / "benchmarks" / f"{name}.md").write_text(text, encoding="utf-8")

project = "graphxai"
version = release = VERSION
author = "The graphxai developers"
copyright = author
language = "en"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "markdown_docstrings",
    "parameter_lists",
    "mathml",
    "moved_pages",
    "registry_tables",
]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # pages show the outputs that the notebooks store

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
# Training on a table imports no PyG, so two types in its signatures would stay text.
graphxai.learning.run.Data = torch_geometric.data.Data
graphxai.learning.run.TaskLike = TaskLike
# Their sources do not list all keywords that their signatures show (see `with_keywords`), and
# autodoc would look for the defaults there.
for function in (graphxai.evaluate, graphxai.wrap):
    del function.__wrapped__
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
add_module_names = False
html_math_renderer = "mathml"

html_theme = "furo"
html_title = f"graphxai {VERSION}"
html_static_path = ["static"]
html_css_files = ["graphxai.css"]
html_js_files = ["accessible.js"]
html_show_sourcelink = False
html_copy_source = False
pygments_style = "a11y-high-contrast-light"  # at least 4.5:1 for every colour
pygments_dark_style = "a11y-high-contrast-dark"
exclude_patterns = ["_build", "extensions"]
