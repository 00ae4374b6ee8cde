"""Settings of the documentation site. `make docs` builds it, without the network."""

from __future__ import annotations

import os
import re
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
# Pictures are drawn without a display, and a deep example compiles for the processor.
os.environ.setdefault("MPLBACKEND", "Agg")

from sphinx.domains.python import PyObject  # noqa: E402

import pickmix  # noqa: E402

project = "pickmix"
author = "The pickmix developers"
project_copyright = "The pickmix developers"
version = release = pickmix.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
    "command_line",
    "mathml",
    "repository_files",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "_templates", "_ext", "**/GALLERY_HEADER.rst"]
# In docstrings, `name` is code, and a link where the site has the name.
default_role = "py:obj"

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 4

# Signatures are long; a parameter per line is readable.
maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"
autodoc_typehints = "none"
autodoc_member_order = "alphabetical"
autodoc_default_options = {
    "members": True,
    "inherited-members": True,
    # What scikit-learn adds to every estimator: routing of metadata, and the kind of its output,
    # whose text refers to scikit-learn's pages.
    "exclude-members": ", ".join(
        [
            "get_metadata_routing",
            "set_output",
            *(
                f"set_{name}_request"
                for name in ("fit", "partial_fit", "predict", "predict_proba", "score", "transform")
            ),
        ]
    ),
}
autosummary_generate = True
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_preprocess_types = False

# References to our own names must be there. Types such as "(N, D) array" are words, not names.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"^(?!pickmix\.).*")]

sphinx_gallery_conf = {
    "examples_dirs": ["../examples"],
    "gallery_dirs": ["auto_examples"],
    "filename_pattern": r"/plot_",
    # Longer scripts, whose pictures the tutorial and the cookbook show.
    "ignore_pattern": r"^(choosing|deep_uci|galaxy_colours|idea_in_2d)\.py$",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    # A display at the end of a block is drawn; its name in memory says nothing.
    "capture_repr": (),
    "remove_config_comments": True,
    "download_all_examples": False,
    "show_memory": False,
    "write_computation_times": False,
    "show_signature": False,
    "min_reported_time": 0,
    "plot_gallery": "True",
    "backreferences_dir": None,
}
# Shown in the pages otherwise, and errors with -W.
warnings.filterwarnings("ignore", message=".*FigureCanvasAgg is non-interactive.*")

html_theme = "pydata_sphinx_theme"
html_title = "pickmix"
html_static_path = ["_static"]
html_css_files = ["pickmix.css"]
html_favicon = "_static/pickmix.svg"
html_logo = "_static/pickmix.svg"
html_copy_source = False
html_show_sourcelink = False
html_last_updated_fmt = None
html_math_renderer = "mathml"
html_theme_options = {
    "logo": {"text": "pickmix"},
    "show_prev_next": True,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "tango",
    "pygments_dark_style": "github-dark",
}
html_sidebars = {"quickstart": [], "glossary": [], "install": []}


def _escape_initials(app, what, name, obj, options, lines):
    """References that begin with an initial, and "K." alone, are no items of a list.

    Labels of scikit-learn's pages, in what is inherited from it, become their titles.
    """
    for number in range(len(lines) - 1, -1, -1):
        lines[number] = re.sub(r":ref:`([^`<]+?) *<[^`]*>`", r"\1", lines[number])
        if re.match(r"[A-Z]\. [A-Z]", lines[number]):
            lines[number : number + 1] = ["", lines[number].replace(". ", "\\. ", 1)]
        elif re.fullmatch(r" +[A-Z]\.", lines[number]):
            lines[number] = lines[number].replace(".", "\\.")


# Sphinx calls them variables.
for _field in PyObject.doc_field_types:
    if _field.name == "variable":
        _field.label = "Attributes"


def setup(app):
    """Change docstrings as they are read, before Napoleon does."""
    app.connect("autodoc-process-docstring", _escape_initials, priority=400)
