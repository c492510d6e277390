import pytest

from kopf._core.intents.handlererrors import (
    AdmissionError,
    HandlerChildrenRetry,
    HandlerRetriesError,
    HandlerTimeoutError,
    PermanentError,
    TemporaryError,
)


@pytest.mark.parametrize('cls', [HandlerTimeoutError, HandlerRetriesError, AdmissionError])
def test_permanent_errors(cls):
    assert issubclass(cls, PermanentError)


def test_waiting_for_children_is_temporary():
    assert issubclass(HandlerChildrenRetry, TemporaryError)


def test_temporary_errors_have_a_delay_by_default():
    assert TemporaryError("text").delay == 60


@pytest.mark.parametrize('delay', [0, 1.5, None])
def test_temporary_errors_have_the_delay_asked_for(delay):
    assert TemporaryError("text", delay=delay).delay == delay


def test_temporary_errors_show_their_text():
    assert str(TemporaryError("text", delay=1)) == 'text'


def test_temporary_errors_without_texts_show_nothing():
    assert str(TemporaryError(delay=1)) == ''


def test_admission_errors_have_a_code():
    assert AdmissionError("text", code=400).code == 400


def test_admission_errors_have_a_code_by_default():
    assert AdmissionError().code == 500


def test_admission_errors_have_a_code_in_subclasses_that_do_not_call_the_constructor():
    class CarelessError(AdmissionError):
        def __init__(self):
            pass

    assert CarelessError().code == 500
