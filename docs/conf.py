"""Sphinx configuration. ``make docs`` builds the site into ``site/``; nothing in it needs a network to be read."""

import os
import sys
from pathlib import Path

import fmcpe

os.environ.setdefault("PYTHONWARNINGS", "ignore:IProgress not found")  # of tqdm, in the kernels of notebooks
sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project, author, release = "fmcpe", "The fmcpe developers", fmcpe.__version__
copyright = author  # a date would make every build different
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "house_style"]

html_theme = "furo"
html_title = f"fmcpe {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["llms.txt"]
html_copy_source = html_show_sourcelink = False
html_math_renderer = "mathml"  # MathJax would come from the network
pygments_style = "friendly"

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_timeout = 600
nb_execution_in_temp = True  # sbi writes logs, tutorials write files
nb_execution_raise_on_error = nb_execution_show_tb = True
nb_merge_streams = True

default_role = "py:obj"  # docstrings write names in single backticks
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # an attribute is listed once, by its class
