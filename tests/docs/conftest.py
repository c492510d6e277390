import collections

import pytest

from tests.docs import snippets


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell how many snippets there were, and what was done with them."""
    reports = [
        report for outcome in ('passed', 'failed')
        for report in terminalreporter.stats.get(outcome, ())
        if dict(report.user_properties).get('snippet')]
    if reports:
        counts = collections.Counter(
            dict(report.user_properties)['snippet'] for report in reports)
        parts = ', '.join(f'{number} {what}' for what, number in sorted(counts.items()))
        terminalreporter.write_line(
            f"Snippets of the documentation: {len(reports)} of "
            f"{len(list(snippets.collect()))} ({parts})")
