"""How the documentation is built: see `scripts/docs`."""
import pathlib
import sys

import kopf

sys.path.insert(0, str(pathlib.Path(__file__).parent / '_ext'))

project = 'Kopf'
author = 'The Kopf authors'
version = release = kopf.__version__

extensions = ['myst_parser', 'sphinx.ext.autodoc', 'kopfdocs']
myst_enable_extensions = ['colon_fence', 'deflist', 'attrs_inline']
myst_heading_anchors = 3

html_theme = 'furo'
html_title = 'Kopf'
html_static_path = ['_static']
html_css_files = ['kopf.css']
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
pygments_style = 'default'
pygments_dark_style = 'monokai'

default_role = 'kopf-name'  # docstrings name things as `this`, and code as ``that``
autodoc_member_order = 'bysource'
autodoc_preserve_defaults = True
autodoc_typehints = 'none'
smartquotes = False  # options are written with two hyphens
nitpick_ignore_regex = [
    # The standard library, other libraries, and the insides are not documented here.
    ('py:.*', r'(?!kopf\.|settings\.).*'),
    ('py:.*', r'kopf\._.*'),
]
