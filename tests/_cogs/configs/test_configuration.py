import ast
import concurrent.futures
import inspect
import itertools
import json
import pathlib
import re

import pytest

import kopf
from kopf._cogs.configs import configuration

SURFACE = json.loads((pathlib.Path(__file__).parents[2] / 'surface.json').read_text())
SECTIONS = [name for name in SURFACE['settings'] if name != 'batching']
SIMPLE = [
    (section, name, spec.split(' = ', 1)[1])
    for section in SECTIONS
    for name, spec in SURFACE['settings'][section].items()
    if not re.search(r'= [<{]', spec)
    if (section, name) != ('posting', 'loggers')
]


@pytest.mark.parametrize('section', SECTIONS)
def test_sections_have_all_the_settings_of_the_release(section):
    settings = getattr(kopf.OperatorSettings(), section)
    assert set(SURFACE['settings'][section]) <= set(dir(settings))


def test_sections_are_equal_if_all_their_settings_are():
    one, two = kopf.OperatorSettings(), kopf.OperatorSettings()
    assert one.peering == two.peering
    two.peering.priority = 5
    assert one.peering != two.peering
    assert one.peering != one.posting
    assert one.peering != 'peering'


def test_sections_are_shown_with_their_settings():
    assert repr(kopf.OperatorSettings().process) == (
        'ProcessSettings(ultimate_exiting_timeout=600)')


@pytest.mark.parametrize('section, name, default', SIMPLE)
@pytest.mark.filterwarnings('ignore::DeprecationWarning')
def test_defaults_are_those_of_the_release(section, name, default):
    assert repr(getattr(getattr(kopf.OperatorSettings(), section), name)) == default


def test_log_lines_are_posted_by_default():
    assert kopf.OperatorSettings().posting.loggers is True


def test_sections_can_be_updated_as_dicts():
    settings = kopf.OperatorSettings()
    settings.posting.__dict__.update(level=30)
    assert settings.posting.level == 30


@pytest.mark.parametrize('section, name, text, expected', [
    ('posting', 'level', 'WARNING', 30), ('posting', 'level', 'debug', 10),
    ('posting', 'level', '10', 10),
    ('watching', 'server_timeout', '300', 300), ('watching', 'client_timeout', '0.5', 0.5),
    ('queueing', 'worker_limit', '5', 5), ('networking', 'error_backoffs', '3', 3)])
def test_numbers_can_be_texts_such_as_environment_variables(section, name, text, expected):
    settings = kopf.OperatorSettings()
    setattr(getattr(settings, section), name, text)
    value = getattr(getattr(settings, section), name)
    assert (value, type(value)) == (expected, type(expected))


@pytest.mark.parametrize('section, name, text', [
    ('posting', 'level', 'loud'), ('posting', 'enabled', '1'),
    ('watching', 'server_timeout', '5s'), ('watching', 'server_timeout', 'nan')])
def test_other_texts_are_no_numbers(section, name, text):
    with pytest.raises(TypeError, match=f'settings.{section}.{name} must be'):
        setattr(getattr(kopf.OperatorSettings(), section), name, text)


@pytest.mark.parametrize('section, name, value', [
    ('posting', 'worker_limit', -1), ('watching', 'chunk_size', 10 ** 20),
    ('persistence', 'finalizer', ''), ('persistence', 'finalizer', 'no slash!'),
    ('leadership', 'name', ''), ('admission', 'managed', ''), ('admission', 'managed', 'Bad Name')])
def test_values_that_cannot_work_are_refused_with_the_setting(section, name, value):
    with pytest.raises(ValueError, match=rf'settings\.{section}\.{name} must be'):
        setattr(getattr(kopf.OperatorSettings(), section), name, value)


def test_all_sequences_of_delays_can_be_one_number():
    settings = kopf.OperatorSettings()
    settings.queueing.error_delays = 5
    assert settings.queueing.error_delays == 5


def test_operators_do_not_share_settings():
    one, two = kopf.OperatorSettings(), kopf.OperatorSettings()
    one.watching.label_selectors['pods'] = 'a=b'
    one.peering.priority = 123
    assert not two.watching.label_selectors
    assert two.peering.priority == 0
    assert one.execution.executor is not two.execution.executor
    assert one.persistence.progress_storage is not two.persistence.progress_storage


def test_batching_is_a_deprecated_name_of_queueing():
    settings = kopf.OperatorSettings()
    with pytest.warns(DeprecationWarning, match='settings.queueing'):
        assert settings.batching is settings.queueing


def test_batch_window_is_deprecated_for_reading():
    settings = kopf.OperatorSettings()
    with pytest.warns(DeprecationWarning, match='batch_window'):
        assert settings.queueing.batch_window == 0.1


def test_batch_window_is_deprecated_for_writing():
    settings = kopf.OperatorSettings()
    with pytest.warns(DeprecationWarning, match='batch_window') as caught:
        settings.queueing.batch_window = 5
    assert caught[0].filename == __file__


def test_namespaced_is_the_opposite_of_clusterwide():
    peering = kopf.OperatorSettings().peering
    peering.namespaced = False
    assert peering.clusterwide
    peering.clusterwide = False
    assert peering.namespaced


def test_max_workers_resizes_the_executor_in_place():
    execution = kopf.OperatorSettings().execution
    executor = execution.executor
    execution.max_workers = 123
    assert execution.executor is executor
    assert executor._max_workers == 123


def test_max_workers_can_be_reset_to_the_default_of_python():
    execution = kopf.OperatorSettings().execution
    default = execution.executor._max_workers
    execution.max_workers = 123
    execution.max_workers = None
    assert execution.executor._max_workers == default


@pytest.mark.parametrize('value', [0, -1])
def test_max_workers_cannot_be_lower_than_one(value):
    with pytest.raises(ValueError, match='at least 1'):
        kopf.OperatorSettings().execution.max_workers = value


def test_max_workers_warns_where_it_has_no_effect():
    class CustomExecutor(concurrent.futures.Executor):
        pass

    execution = kopf.OperatorSettings().execution
    execution.executor = CustomExecutor()
    with pytest.warns(UserWarning, match='no effect'):
        execution.max_workers = 5


def test_all_settings_are_documented():
    undocumented = [
        field.target.id
        for section in ast.parse(inspect.getsource(configuration)).body
        if isinstance(section, ast.ClassDef) and section.name != 'OperatorSettings'
        for field, following in itertools.pairwise([*section.body, None])
        if isinstance(field, ast.AnnAssign) and not field.target.id.startswith('_')
        if not (isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant))
    ]
    assert undocumented == []


def test_authors_can_derive_settings_with_properties():
    class MySettings(configuration.OperatorSettings):
        def get_own(self):
            return self._own

        def set_own(self, value):
            self._own = value

        own = property(get_own, set_own)

    settings = MySettings()
    settings.own = 5
    assert settings.own == 5
    with pytest.raises(TypeError, match=r'namespaced must be True or False'):
        settings.peering.namespaced = 'false'
