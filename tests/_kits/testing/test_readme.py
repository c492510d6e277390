import pathlib
import re
import subprocess
import sys

README = (pathlib.Path(__file__).parents[3] / 'README.md').read_text()


def get_block(language):
    block, = re.findall(rf'^```{language}\n(.*?)^```$', README, re.MULTILINE | re.DOTALL)
    return block


def test_the_test_of_the_first_operator_passes(tmp_path):
    (tmp_path / 'crd.yaml').write_text(get_block('yaml'))
    (tmp_path / 'handlers.py').write_text(get_block('python'))
    (tmp_path / 'test_it.py').write_text(get_block('py'))
    process = subprocess.run(
        [sys.executable, '-m', 'pytest', '-p', 'no:cacheprovider', 'test_it.py'],
        cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert process.returncode == 0, process.stdout
