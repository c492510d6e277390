"""
Takes screenshots of the documentation in three widths, light and dark, and reports what overflows.
"""
import pathlib
import sys

from playwright import sync_api

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [
    'index', 'quickstart', 'handlers', 'reconciliation', 'deployment', 'configuration',
    'guarantees', 'troubleshooting', 'architecture', 'api',
]
WIDTHS = [390, 820, 1440]  # a phone, a tablet, a desktop
HEIGHT = 900

OVERFLOWING = """() => {
    const width = document.documentElement.clientWidth;
    const scrolls = (node) => node && (
        ['auto', 'scroll', 'hidden'].includes(getComputedStyle(node).overflowX)
        || scrolls(node.parentElement));
    return [...document.querySelectorAll('main *, article *')]
        .filter((node) => node.getBoundingClientRect().right > width + 1)
        .filter((node) => !scrolls(node.parentElement))
        .map((node) => node.tagName + ': ' + node.textContent.trim().slice(0, 60));
}"""
"""What sticks out of the window, unless the reader can scroll it by itself."""


def main(program: str) -> int:
    folder = ROOT / 'build' / 'screenshots'
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        for scheme in ('light', 'dark'):
            for width in WIDTHS:
                context = browser.new_context(
                    color_scheme=scheme, viewport={'width': width, 'height': HEIGHT})
                page = context.new_page()
                for name in PAGES:
                    page.goto((ROOT / 'build' / 'docs' / f'{name}.html').as_uri())
                    page.screenshot(path=folder / f'{name}-{width}-{scheme}.png')
                    if scheme == 'light':
                        wide = page.evaluate(OVERFLOWING)
                        found += [f'{name} at {width}: {what}' for what in wide]
                context.close()
        browser.close()
    print('\n'.join(found) or f"Nothing overflows. See {folder.relative_to(ROOT)}")
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1]))
