"""
The metadata of the package that depend on where the repository is: the description, which is made
from the README, and the links to the project.

The links of the README are relative, as Git hosts want them. A package index has no such files.
With ``KOPF_REPOSITORY=https://…`` in the environment, the links lead to this repository; without
it, only their texts remain, and no images.
"""
import os
import pathlib
import re
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r'(!?)\[((?:\[[^]]*\]|[^][])*)\]\((?!https?:|mailto:)([^)\s]+)\)')


class Hook(MetadataHookInterface):

    def update(self, metadata: dict[str, Any]) -> None:
        repository = os.environ.get('KOPF_REPOSITORY', '').removesuffix('.git').rstrip('/')
        text = (pathlib.Path(self.root) / 'README.md').read_text(encoding='utf-8')
        metadata['readme'] = {
            'content-type': 'text/markdown', 'text': describe(text, repository)}
        metadata['urls'] = get_urls(repository) if repository else {}


def get_urls(repository: str) -> dict[str, str]:
    files = f'{repository}/blob/main'
    return {
        'Source': repository,
        'Documentation': f'{files}/docs/index.md',
        'Changelog': f'{files}/CHANGELOG.md',
        'Security': f'{files}/SECURITY.md',
    }


def describe(text: str, repository: str) -> str:
    """Make the description for a package index from the README."""
    def replace(match: re.Match[str]) -> str:
        image, shown, target = match.groups()
        if not repository:
            return '' if image else shown
        if target.startswith('#'):  # an index makes no anchors of headings
            return f'[{shown}]({repository}{target})'
        kind = 'raw' if image else 'blob'
        return f'{image}[{shown}]({repository}/{kind}/main/{target})'

    blocks = re.split(r'(^```.*?^```$)', text, flags=re.MULTILINE | re.DOTALL)
    blocks[::2] = [LINK.sub(replace, block) for block in blocks[::2]]
    return ''.join(blocks)
