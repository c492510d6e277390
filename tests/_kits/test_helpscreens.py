import pathlib

import click
import pytest
from click.testing import CliRunner

from kopf._kits import helpscreens


@click.command(cls=helpscreens.SectionCommand)
@helpscreens.option('-a', '--alpha', section='Scope', help="Alpha.")
@helpscreens.option('-b', '--beta', section='Logging', is_flag=True, help="Beta.")
@helpscreens.option('--gamma', section='Logging', required=True, default=5, show_default=True)
@helpscreens.option('--delta/--no-delta', section='Logging', default=None)
@helpscreens.option('--file', 'files', section='Logging', multiple=True,
                    type=click.Path(path_type=pathlib.Path))
@click.argument('paths', nargs=-1)
def command(**_):
    context = click.get_current_context()
    click.echo('\n'.join(helpscreens.hand_over(context, without={'alpha'})))


def test_options_are_shown_in_sections():
    lines = CliRunner().invoke(command, ['--help']).output.splitlines()
    assert lines.index('Scope:') < lines.index('Logging:') < lines.index('Options:')
    assert lines[lines.index('Scope:') + 1].split() == ['-a,', '--alpha', 'TEXT', 'Alpha.']
    assert lines[lines.index('Options:') + 1].split()[:2] == ['-h,' if '-h' in lines else '--help',
                                                             'Show']


def test_what_has_a_default_is_not_required():
    output = CliRunner().invoke(command, ['--help']).output
    assert '[default: 5]' in output
    assert 'required' not in output


@pytest.mark.parametrize('args', [
    [], ['--beta'], ['--gamma=6'], ['--delta'], ['--no-delta'], ['--file=/a/b', '--file=c'],
    ['--beta', 'x', 'y']])
def test_commands_can_be_repeated(args):
    assert CliRunner().invoke(command, args).output.split() == args


def test_what_is_left_out_or_of_the_environment_is_not_repeated():
    runner = CliRunner(env={'X_GAMMA': '7'})
    assert not runner.invoke(command, ['-a', 'x'], auto_envvar_prefix='X').output.split()
