"""
Readers who do what the pages say, in terminals: they save the files, type the commands, and compare
what is shown with what the page shows.
"""
import fcntl
import functools
import json
import os
import pathlib
import pty
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time

from tests.docs import snippets

ROOT = pathlib.Path(__file__).parents[2]
CERTIFICATES = ('SSL_CERT_FILE', 'SSL_CERT_DIR', 'REQUESTS_CA_BUNDLE', 'CURL_CA_BUNDLE')
TIMEOUT = 180
"""How long something can take (seconds) on a busy machine."""

SHELL = '''
import fcntl, os, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp('bash', ['bash', '--norc', '--noprofile', '--noediting', '-i'])
'''
"""A shell with a terminal to control, in which Ctrl+C interrupts what is running."""

PROMPT = re.compile(r'<<(\d+)>>$')
PORT = '8053'
"""The port of the program of the page; it can be taken where the page is played."""

STARTED = 'Watching '
"""What an operator says when it has started."""

PROGRAMS = re.compile('kopf run|python fakedns')
"""Commands that run until they are interrupted."""

KUBECTL = 1, 36
"""The version of the kubectl whose output the pages show."""

LOOKING = re.compile(r'kubectl (get|wait)|curl -s http')
"""Commands that are repeated until they show what the page shows: operators need some time."""

MASKS = {
    r'\x1b7.*?\x1b8': '',  # what is shown in between, such as progress
    r'\x1b\[[\d;?]*[A-Za-z]|\r': '',
    r'\b\d\d:\d\d:\d\d,\d{3}\b': 'TIME',
    r'https?://127\.0\.0\.1:\d+': 'URL',
    r'\(context \S+\)': '(context)',
    r'\S*/kopf-sandbox-\w+/kubeconfig': 'KUBECONFIG',
    r'\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b': 'UID',
    r'\b10\.\d+\.\d+\.\d+\b': 'ADDRESS',
    r'\b(\d+\.\d+s|\d+[smh](\d+s)?)\b': 'AGE',
    r'\b(created|unchanged|configured)$': 'applied',
    r'[ \t]+': ' ',
    r' $': '',
}
"""What differs from time to time, from place to place."""


def mask(line):
    for pattern, text in MASKS.items():
        line = re.sub(pattern, text, line)
    return line


def mask_lines(text):
    return [mask(line) for line in text.splitlines()]


@functools.cache
def find_kubectl_version():
    told = subprocess.run(
        ['kubectl', 'version', '--client', '-o', 'json'], capture_output=True, check=True).stdout
    version = json.loads(told)['clientVersion']
    return tuple(int(re.match(r'\d+', version[name])[0]) for name in ('major', 'minor'))


def adapt(shown):
    """Show what the kubectl at hand prints: older ones than that of the pages name no namespace."""
    if ' deleted from ' not in shown or find_kubectl_version() >= KUBECTL:
        return shown
    return re.sub(r'( deleted) from \S+ namespace$', r'\1', shown, flags=re.MULTILINE)


def find_free_port():
    with socket.socket() as sock:
        sock.bind(('127.0.0.1', 0))
        return sock.getsockname()[1]


class Terminal:
    """A shell in a terminal, in which one command is typed after another."""

    def __init__(self, folder, env):
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack('HHHH', 24, 80, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, '-c', SHELL], stdin=slave, stdout=slave, stderr=slave, cwd=folder,
            env={**env, 'PS1': '<<$?>>', 'PS2': '', 'TERM': 'xterm'})
        os.close(slave)
        self.command = ''
        self._output = b''
        self._begin = 0
        """Where the output of the last command begins."""
        self._seen = 0
        """Until where the output was compared with the page."""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        self.wait_prompt()
        self.do('stty -echo')

    def _read(self):
        while True:
            try:
                self._output += os.read(self._master, 65536)
            except OSError:  # the shell has ended
                return

    @property
    def text(self):
        return self._output.decode(errors='replace')

    @property
    def is_busy(self):
        return not PROMPT.search(self.text[self._begin:])

    @property
    def output(self):
        """What is shown since the last command was typed, without the prompt."""
        return PROMPT.sub('', self.text[self._begin:])

    def type(self, command):
        self.command, self._begin = command, len(self.text)
        self._seen = self._begin
        os.write(self._master, command.encode() + b'\n')

    def do(self, command):
        """Type a command, and wait until it has ended; return its exit status."""
        self.type(command)
        return self.wait_prompt()

    def wait_prompt(self):
        return int(self.wait(lambda: PROMPT.search(self.text[self._begin:]), 'prompt')[1])

    def wait(self, condition, what):
        deadline = time.monotonic() + TIMEOUT
        while not (result := condition()):
            assert time.monotonic() < deadline, f"No {what}:\n$ {self.command}\n{self.output}"
            time.sleep(0.05)
        return result

    def interrupt(self):
        os.write(self._master, b'\x03')
        return self.wait_prompt()

    def expect(self, line):
        """Wait until the line is shown, after those that were waited for before."""
        pattern = re.escape(mask(line)).replace('…', '.*')

        def find():
            shown = self.text[self._seen:]
            complete = shown[:shown.rfind('\n') + 1]
            passed = self._seen
            for each in complete.splitlines(keepends=True):
                passed += len(each)
                if re.fullmatch(pattern, mask(each.rstrip('\r\n'))):
                    return passed
            return None

        self._seen = self.wait(find, repr(line))

    def close(self):
        if self.is_busy:
            self.interrupt()
        self._process.send_signal(signal.SIGHUP)
        self._process.wait(TIMEOUT)
        os.close(self._master)
        self._thread.join()


class Reader:
    """
    Does what pages say, one page after another.

    On a cluster, the reader does what the tip of the page says instead of using a sandbox. If Kopf
    is ``installed`` in a virtual environment already, it is not installed again.
    """

    def __init__(self, home, *, installed=None, is_on_cluster=False):
        self._home = home
        self._folder = home
        self._installed = installed
        self._is_on_cluster = is_on_cluster
        self._port = str(find_free_port())
        self._terminals = {}
        self._told = ''
        tools = home / 'tools'
        tools.mkdir()
        (tools / 'python3').symlink_to(sys._base_executable)
        for name in ('kubectl', 'curl'):
            (tools / name).symlink_to(shutil.which(name))
        kept = {name: value for name, value in os.environ.items()
                if name.startswith('PIP_') or name.lower() in ('http_proxy', 'https_proxy')
                or name in CERTIFICATES}
        self._env = kept | {
            'HOME': str(home), 'PATH': f'{tools}:/usr/bin:/bin', 'LANG': 'C.UTF-8',
            'VIRTUAL_ENV_DISABLE_PROMPT': '1', 'no_proxy': '127.0.0.1,localhost'}

    def read(self, page):
        text = (snippets.DOCS / page).read_text(encoding='utf-8')
        lines, last = text.splitlines(), 0
        for snippet in snippets.read(page, text):
            self._told, last = '\n'.join(lines[last:snippet.line]), snippet.line
            if 'interrupts' in snippet.marks:
                self._interrupt(self._open(snippet.marks['interrupts']))
            if 'file' in snippet.marks:
                self._save(snippet.marks['file'], snippet.source)
            elif snippet.language == 'console':
                self._do_all(snippet, self._open(snippet.marks.get('terminal', 'other')))
            elif snippet.language == 'text':
                terminal = self._open(snippet.marks.get('terminal', 'operator'))
                for line in snippet.text.splitlines():
                    if self._is_on_cluster:  # the pages show a sandbox, which has no context
                        line = re.sub(r'(Connected to \S+)\.$', r'\1 (context admin).', line)
                    if not (self._is_on_cluster and 'sandbox' in line):
                        terminal.expect(line)

    def _open(self, name):
        if name not in self._terminals:
            self._terminals[name] = Terminal(self._home, self._env)
        return self._terminals[name]

    def _interrupt(self, terminal):
        assert 'Ctrl+C' in self._told, f"The page does not say to stop $ {terminal.command}"
        assert terminal.interrupt() == 0, terminal.output

    def _save(self, name, text):
        """Save a file in one step, as editors do; wait for an operator that reloads it."""
        operator = self._terminals.get('operator')
        is_reloading = (
            name.endswith('.py') and operator is not None and operator.is_busy
            and '--reload' in operator.command)
        known = operator.text.count(STARTED) if is_reloading else 0
        (self._home / 'saved').write_text(text.replace(PORT, self._port))
        (self._home / 'saved').replace(self._folder / name)
        if is_reloading:
            operator.wait(lambda: operator.text.count(STARTED) > known, f'reload of {name}')

    def _do_all(self, snippet, terminal):
        if terminal.is_busy:
            self._interrupt(terminal)
        commands = find_commands(snippet.text)
        statuses = [0] * (len(commands) - 1) + [int(snippet.marks.get('status', 0))]
        for (command, shown), status in zip(commands, statuses, strict=True):
            self._do(terminal, command, shown, status)
            if command.startswith('cd '):
                self._folder = self._home / command.removeprefix('cd ')

    def _do(self, terminal, command, shown='', status=0):
        command = self._adapt(terminal, command)
        if PROGRAMS.match(command):
            terminal.type(command)
            if command.startswith('kopf'):
                terminal.wait(lambda: STARTED in terminal.output, 'start')
            return
        deadline = time.monotonic() + TIMEOUT
        while (actual := terminal.do(command)) != status or (
                shown and not is_same(shown, terminal.output)):
            is_repeated = LOOKING.match(command) or (
                actual != status and command.startswith('kubectl apply'))
            assert is_repeated and time.monotonic() < deadline, (
                f'$ {command}\n{terminal.output}\nThe exit status is {actual}, and should be '
                f'{status}. The page shows:\n{shown}\nThe operator says:\n'
                f'{self._open("operator").text[-5000:]}')
            time.sleep(0.3)

    def _adapt(self, terminal, command):
        """Say what to type here, where paths and ports are others than on the page."""
        if self._installed is not None and command.startswith('python3 -m venv'):
            return f'ln -s {shlex.quote(str(self._installed))} .venv'
        if self._installed is not None and command.startswith('pip install'):
            return 'true'
        if self._is_on_cluster and command.startswith('export KUBECONFIG='):
            return 'true'
        if self._is_on_cluster and '--sandbox' in command:
            return self._leave_sandbox(terminal, command)
        if command.startswith('export KUBECONFIG=/tmp/'):  # it is copied from the other terminal
            return re.findall(r'export KUBECONFIG=\S+', self._open('operator').text)[-1]
        return command.replace('path/to/kopf', str(ROOT)).replace(PORT, self._port)

    def _leave_sandbox(self, terminal, command):
        """Apply the files that a sandbox would load; return the command without the sandbox."""
        for file in re.findall(r'--load (\S+)', command):
            self._do(terminal, f'kubectl apply -f {file}')
        return re.sub(r' --(sandbox|load \S+|kubeconfig-out \S+)', '', command)

    def close(self):
        for terminal in self._terminals.values():
            terminal.close()


def find_commands(text):
    """Get the commands of a console with what is shown after each of them."""
    return re.findall(r'^\$ ((?:\\\n|.)*)\n((?:(?!\$ ).*\n)*)', text, re.MULTILINE)


def is_same(shown, output):
    """Whether all lines are as shown. A line with an ellipsis stands for any lines."""
    pattern = ''.join(
        r'(.*\n)*?' if line == '…' else re.escape(line).replace('…', '.*') + r'\n'
        for line in mask_lines(adapt(shown)))
    return re.fullmatch(pattern, ''.join(line + '\n' for line in mask_lines(output))) is not None
