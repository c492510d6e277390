"""
The pages for the first hour, to the letter: all files and all commands, in a bare environment.

The terminals of the reader are shells, in which ``kopf run`` and ``kopf sandbox`` go on in the
background. Where the page says to start the operator again, it is started by the same command.
"""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.docs import snippets

ROOT = pathlib.Path(__file__).parents[2]
CERTIFICATES = ('SSL_CERT_FILE', 'SSL_CERT_DIR', 'REQUESTS_CA_BUNDLE', 'CURL_CA_BUNDLE')
TIMEOUT = 180
"""How long something can take (seconds) on a busy machine, but for the installation."""

SEEN = {
    '"500M"': "field can not be less than status.capacity",
    '"3G"': "The volume claim is resized to 3G.",  # with the next attempt, after a minute
}
"""What the reader waits for in the log after commands with these parts, before going on."""

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which('kubectl') is None, reason="There is no kubectl."),
]


class Program:
    """What runs in a terminal until it is interrupted."""

    def __init__(self, shell, command, log):
        self.command = command
        self.log = log
        with log.open('wb') as file:
            self._process = subprocess.Popen(
                ['bash', '-c', shell + f'exec {command}'], stdout=file, stderr=file)

    @property
    def text(self):
        return self.log.read_text()

    def wait_for(self, pattern):
        deadline = time.monotonic() + TIMEOUT
        while not re.search(pattern, self.text):
            assert time.monotonic() < deadline, f"No {pattern!r} in:\n{self.text}"
            assert self._process.poll() is None, self.text
            time.sleep(0.1)
        return re.search(pattern, self.text)

    def stop(self):
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        return self._process.wait(TIMEOUT)


class Reader:
    """Does what a page says."""

    def __init__(self, folder):
        self.folder = folder
        self.operators = []
        self._logs = folder.parent / 'logs'
        self._logs.mkdir()
        self._sandbox = None
        self._is_outdated = False
        self._exported = ''
        tools = folder.parent / 'tools'
        tools.mkdir()
        (tools / 'python3').symlink_to(sys._base_executable)
        (tools / 'kubectl').symlink_to(shutil.which('kubectl'))
        kept = {name: value for name, value in os.environ.items()
                if name.startswith('PIP_') or name.lower().endswith('_proxy')
                or name in CERTIFICATES}
        kept |= {'HOME': str(folder.parent), 'PATH': f'{tools}:/usr/bin:/bin', 'LANG': 'C.UTF-8'}
        self._state = [f'cd {folder}', *(f'export {key}={val!r}' for key, val in kept.items())]

    @property
    def operator(self):
        return self.operators[-1]

    @property
    def text(self):
        return ''.join(operator.text for operator in self.operators)

    @property
    def _shell(self):
        return 'unset PYTHONPATH VIRTUAL_ENV; ' + '; '.join(self._state) + '; '

    def read(self, page):
        place = self.folder
        for snippet in snippets.read(page, (snippets.DOCS / page).read_text(encoding='utf-8')):
            name = snippet.marks.get('file') or self._find_name(snippet, page)
            if name:
                (place / name).write_text(snippet.source)
                self._is_outdated |= name.endswith('.py') and not name.startswith('test_')
            elif snippet.language == 'console':
                if 'kopf run' in snippet.text and '--sandbox' not in snippet.text:
                    self._forget_sandbox()
                for command in re.findall(r'^\$ ((?:\\\n|.)*)', snippet.text, re.MULTILINE):
                    self.do(command.replace('path/to/kopf', str(ROOT)))
                    if command.startswith('cd '):
                        place = place / command.removeprefix('cd ')

    def _find_name(self, snippet, page):
        """Tests have no mark of their files: their names are in the text before them."""
        if 'test' not in snippet.marks:
            return None
        lines = (snippets.DOCS / page).read_text(encoding='utf-8').splitlines()[:snippet.line]
        return re.findall(r'`(test_\w+\.py)`', '\n'.join(lines))[-1]

    def do(self, command):
        if command.startswith(('cd ', 'source ', 'export ')):
            self._state.append(command)
            if command.startswith('export KUBECONFIG=') and self._sandbox is not None:
                self._sandbox.wait_for('export KUBECONFIG=')
        elif command.startswith('kopf sandbox'):
            self._sandbox = Program(self._shell, command, self._logs / 'sandbox')
        elif command.startswith('kopf run'):
            self.run(command)
        elif command.startswith('kubectl'):
            if self._is_outdated and self.operators:
                self.run(self.operator.command)
            self.insist(command)
            for part, text in SEEN.items():
                if part in command:
                    self.operator.wait_for(text)
        else:
            self.call(command, timeout=500)

    def run(self, command):
        if self.operators:
            assert self.operator.stop() == 0, self.operator.text
        self._is_outdated = False
        self._forget_sandbox()
        self.operators.append(
            Program(self._shell, command, self._logs / f'operator{len(self.operators)}'))
        self.operator.wait_for("Watching |Unresolved resources")
        if '--sandbox' in command:
            self._exported = self.operator.wait_for("export KUBECONFIG=.+")[0]
            self._state.append(self._exported)

    def _forget_sandbox(self):
        """Go on in a terminal where the kubeconfig of the operator's sandbox was not exported."""
        if self._exported in self._state:
            self._state.remove(self._exported)

    def call(self, command, *, timeout=TIMEOUT):
        done = subprocess.run(
            ['bash', '-c', self._shell + command], capture_output=True, text=True, timeout=timeout)
        assert done.returncode == 0, f'{command}\n{done.stdout}\n{done.stderr}'

    def insist(self, command):
        """People are slower than operators: what is not there yet comes soon."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                return self.call(command)
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def close(self):
        for program in [*self.operators, *([self._sandbox] if self._sandbox else [])]:
            program.stop()


@pytest.fixture()
def reader(tmp_path):
    folder = tmp_path / 'home'
    folder.mkdir()
    reader = Reader(folder)
    yield reader
    reader.close()


@pytest.fixture()
def cluster(tmp_path):
    """What the reader's current kubeconfig is for."""
    path = tmp_path / '.kube' / 'config'
    path.parent.mkdir()
    program = Program('', f'{sys.executable} -m kopf sandbox --kubeconfig-out {path}',
                      tmp_path / 'cluster')
    program.wait_for('export KUBECONFIG=')
    yield path
    program.stop()


def test_quick_start(reader, cluster):
    reader.read('quickstart.md')
    for text in ["hello greets world.", "Hello again, world!", "world is not greeted anymore"]:
        assert text in reader.operators[0].text
    reader.operator.wait_for("hello greets world.")
    assert 'ERROR' not in reader.text


def test_walkthrough(reader):
    reader.read('walkthrough.md')
    for text in ["Here it is: {'apiVersion'", "The volume claim exists: my-claim",
                 "The volume claim is resized to 2G.", "field can not be less than status.capacity",
                 "The volume claim is resized to 3G."]:
        assert text in reader.text
