"""What is logged in these tests can be of any length, and can have what no encoding has."""
import pytest

MAX_SECTION = 100_000
"""How long (characters) the captured output in a report can be."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    report.sections = [
        (title, text[-MAX_SECTION:].encode(errors='backslashreplace').decode())
        for title, text in report.sections]
    return report
