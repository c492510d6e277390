import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip('watchfiles')

CRD = pathlib.Path(__file__).parents[2] / 'examples' / 'crd.yaml'
HANDLERS = '''
import kopf

@kopf.on.resume('kopfexamples')
@kopf.on.create('kopfexamples')
def fn(name, **_):
    print("{text} {{}}".format(name), flush=True)
'''


class Process:
    """The command line with what it says."""

    def __init__(self, *args, cwd, prefix=(), **env):
        self._process = subprocess.Popen(
            [*prefix, sys.executable, '-m', 'kopf', *args], cwd=cwd, text=True,
            env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True)
        self._lines = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        for line in self._process.stdout:
            self._lines.append(line)

    def wait_for(self, text, start=0):
        while text not in self.text[start:]:
            assert self._process.poll() is None, ''.join(self._lines)
            time.sleep(0.05)

    @property
    def text(self):
        return ''.join(self._lines)

    @property
    def pid(self):
        return self._process.pid

    def send(self, number):
        self._process.send_signal(number)

    def press_ctrl_c(self):
        os.killpg(self.pid, signal.SIGINT)

    def wait(self):
        code = self._process.wait()
        self._thread.join()
        return code

    def close(self):
        if self._process.poll() is None:
            self._process.terminate()
        self.wait()
        self._process.stdout.close()


@pytest.fixture()
def folder(tmp_path):
    (tmp_path / 'obj.yaml').write_text(
        '{apiVersion: kopf.dev/v1, kind: KopfExample, metadata: {name: obj, namespace: default}}')
    (tmp_path / 'handlers.py').write_text(HANDLERS.format(text="first"))
    return tmp_path


def test_operators_start_anew_when_their_files_change(folder):
    process = Process(
        'run', '--reload', '--sandbox', f'--load={CRD}', '--load=obj.yaml', '-A', '--verbose',
        'handlers.py', cwd=folder)
    try:
        process.wait_for("first obj")

        # The sandbox and its objects stay.
        (folder / 'handlers.py').write_text(HANDLERS.format(text="second"))
        process.wait_for("Reloading, as handlers.py has changed.")
        process.wait_for("second obj")
        assert 'watchfiles' not in process.text

        # Files that cannot be loaded are waited for.
        (folder / 'handlers.py').write_text("1/0")
        process.wait_for("Error: Cannot load handlers.py: ZeroDivisionError")
        process.wait_for("The operator has ended. It starts again when a file changes.")
        (folder / 'handlers.py').write_text(HANDLERS.format(text="third"))
        process.wait_for("third obj")

        process.send(signal.SIGINT)
        assert process.wait() == 0
    finally:
        process.close()


def test_files_that_change_twice_in_a_second_are_read_anew(folder):
    path = folder / 'handlers.py'
    times = (path.stat().st_atime, path.stat().st_mtime)
    process = Process(
        'run', '--reload', '--sandbox', f'--load={CRD}', '--load=obj.yaml', '-A', 'handlers.py',
        cwd=folder, PYTHONDONTWRITEBYTECODE='')
    try:
        process.wait_for("first obj")
        # By its size and its second, this is the file that the cached bytecode was made of.
        path.write_text(HANDLERS.format(text="other"))
        os.utime(path, times)
        process.wait_for("Reloading, as handlers.py has changed.")
        process.wait_for("obj\n", start=process.text.index("Reloading"))
        assert "other obj" in process.text
    finally:
        process.close()


@pytest.fixture()
def reloading(folder):
    """Runs ``--reload`` for a file; the process says when it has seen the object."""
    processes = []

    def run(path, **kwargs):
        processes.append(Process(
            'run', '--reload', '--sandbox', f'--load={CRD}', '--load=obj.yaml', '-A', path,
            cwd=folder, **kwargs))
        return processes[-1]

    yield run
    for process in processes:
        process.close()


def test_folders_can_be_absent_and_made_again(folder, reloading):
    process = reloading('parts/handlers.py')
    process.wait_for("The operator has ended. It starts again when a file changes.")
    for text in ["first", "second", "third"]:
        shutil.rmtree(folder / 'parts', ignore_errors=True)
        (folder / 'parts').mkdir()
        (folder / 'parts' / 'handlers.py').write_text(HANDLERS.format(text=text))
        process.wait_for(f"{text} obj")
    (folder / 'parts' / 'handlers.py').write_text(HANDLERS.format(text="fourth"))
    process.wait_for("fourth obj")


def test_files_behind_symlinks_are_seen_to_change(folder, reloading):
    (folder / 'real').mkdir()
    (folder / 'handlers.py').rename(folder / 'real' / 'handlers.py')
    (folder / 'links').mkdir()
    (folder / 'links' / 'handlers.py').symlink_to('../real/handlers.py')
    process = reloading('links/handlers.py')
    process.wait_for("first obj")
    (folder / 'real' / 'handlers.py').write_text(HANDLERS.format(text="second"))
    process.wait_for("second obj")


def test_mounted_configmaps_are_seen_to_change(folder, reloading):
    mount = folder / 'mount'
    for version, text in [('..1', "first"), ('..2', "second")]:
        (mount / version).mkdir(parents=True)
        (mount / version / 'handlers.py').write_text(HANDLERS.format(text=text))
    (mount / '..data').symlink_to('..1')
    (mount / 'handlers.py').symlink_to('..data/handlers.py')
    process = reloading('mount/handlers.py')
    process.wait_for("first obj")
    (mount / '..data_tmp').symlink_to('..2')
    (mount / '..data_tmp').rename(mount / '..data')
    process.wait_for("Reloading, as handlers.py has changed.")
    process.wait_for("second obj")


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which('setpriv'), reason="root reads all")
def test_folders_that_cannot_be_read_are_left_out(folder, reloading):
    (folder / 'locked').mkdir(mode=0)
    process = reloading('handlers.py', prefix=[] if os.geteuid() else [
        'setpriv', '--bounding-set=-dac_override,-dac_read_search', '--inh-caps=-all'])
    process.wait_for("first obj")
    (folder / 'handlers.py').write_text(HANDLERS.format(text="second"))
    process.wait_for("second obj")


WITHOUT_INOTIFY = [
    'unshare', '--user', '--map-root-user', 'sh', '-c',
    'echo 0 > /proc/sys/user/max_inotify_instances && exec "$@"', '-']


@pytest.mark.skipif(not shutil.which('unshare'), reason="there are no user namespaces")
def test_files_are_polled_if_the_system_cannot_watch_them(folder, reloading):
    tried = subprocess.run([*WITHOUT_INOTIFY, 'true'], capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"there are no user namespaces: {tried.stderr}")
    process = reloading('handlers.py', prefix=WITHOUT_INOTIFY)
    process.wait_for("The files are polled, as they cannot be watched:")
    process.wait_for("first obj")
    (folder / 'handlers.py').write_text(HANDLERS.format(text="second"))
    later = time.time() + 2  # polling compares whole seconds
    os.utime(folder / 'handlers.py', (later, later))
    process.wait_for("second obj")


@pytest.mark.parametrize('variable', ['KOPF_RUN_RELOAD', 'KOPF_RUN_SANDBOX'])
def test_process_that_reloads_starts_the_operator_itself(folder, variable):
    (folder / 'handlers.py').write_text("import os; print('PARENT', os.getppid(), flush=True)")
    options = {'KOPF_RUN_RELOAD': '--reload', 'KOPF_RUN_SANDBOX': '--sandbox'}
    del options[variable]
    process = Process(
        'run', *options.values(), '-A', 'handlers.py', cwd=folder,
        **{variable: '1', 'KOPF_RUN_LOAD': str(CRD)})
    try:
        process.wait_for(f"PARENT {process.pid}\n")
        process.send(signal.SIGINT)
        process.wait()
        assert process.text.count("The sandbox is at ") == 1
    finally:
        process.close()


@pytest.mark.parametrize('file, code', [
    ('sitecustomize.py', "if 'KOPF_LIFELINE' in os.environ: "),  # before Kopf is imported
    ('handlers.py', ""),
])
def test_ctrl_c_stops_an_operator_that_only_starts(folder, file, code):
    (folder / file).write_text(
        f'import os, time\n{code}print("starting", flush=True); time.sleep(600)\n')
    process = Process(
        'run', '--reload', '--sandbox', '-A', 'handlers.py', cwd=folder, PYTHONPATH=str(folder))
    try:
        process.wait_for("starting")
        process.press_ctrl_c()
        assert process.wait() == 0
        assert "Traceback" not in process.text and "Aborted" not in process.text
    finally:
        process.close()


def test_what_it_needs_is_said(folder):
    script = "import sys; sys.modules['watchfiles'] = None; from kopf.cli import main; main()"
    done = subprocess.run(
        [sys.executable, '-c', script, 'run', '--reload', '-A', 'handlers.py'], cwd=folder,
        capture_output=True, text=True, env=os.environ)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: --reload needs the library watchfiles")
