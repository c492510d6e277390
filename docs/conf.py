"""How the documentation is built: see `scripts/docs`."""
import os
import pathlib
import sys

import kopf

sys.path[:0] = [str(pathlib.Path(__file__).parents[up] / name)
                for up, name in [(0, '_ext'), (1, 'scripts')]]

project = 'Kopf'
author = 'The Kopf authors'
version = release = kopf.__version__

extensions = [
    'myst_parser',
    'sphinx.ext.autodoc',
    'sphinx.ext.viewcode',
    'sphinx_copybutton',
    'sphinx_design',
    'kopfdocs',
]
copybutton_prompt_text = '$ '
copybutton_line_continuation_character = '\\'
myst_enable_extensions = ['colon_fence', 'deflist', 'attrs_inline']
myst_heading_anchors = 3

html_theme = 'furo'
html_title = f'Kopf {release}'
html_logo = '_static/logo.svg'
html_favicon = '_static/logo.svg'
html_static_path = ['_static']
html_css_files = ['kopf.css']
templates_path = ['_templates']
html_context = {'moved': {  # where their contents are now
    'settings': ('configuration', 'all-settings'),
    'exceptions': ('troubleshooting', 'errors-to-raise'),
}}
html_additional_pages = dict.fromkeys(html_context['moved'], 'moved.html')
if repository := os.environ.get('KOPF_REPOSITORY'):  # its web address, for links to edit the pages
    html_theme_options = {
        'source_repository': repository,
        'source_branch': 'main',
        'source_directory': 'docs/',
    }
html_show_copyright = False
pygments_style = 'default'
pygments_dark_style = 'monokai'

default_role = 'kopf-name'  # docstrings name things as `this`, and code as ``that``
autodoc_member_order = 'bysource'
autodoc_preserve_defaults = True
autodoc_typehints = 'both'  # in the signatures, and beside the described parameters
autodoc_typehints_description_target = 'documented'
maximum_signature_line_length = 80  # longer signatures have a line for each parameter
linkcheck_ignore = [r'https?://(localhost|127\.0\.0\.1|0\.0\.0\.0|[\w.-]*example\.com)\b.*']
linkcheck_timeout = 20  # seconds
smartquotes = False  # options are written with two hyphens
nitpick_ignore_regex = [
    # The standard library, other libraries, and the insides are not documented here.
    ('py:.*', r'(?!kopf\.|settings\.).*'),
    ('py:.*', r'kopf\._.*'),
    ('py:class', r'kopf\.on\.\w+FnT'),  # type variables
]
