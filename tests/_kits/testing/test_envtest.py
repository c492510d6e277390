import pytest

from kopf._kits.testing import envtest


def test_the_folder_of_the_programs_can_be_relative(tmp_path, monkeypatch):
    (tmp_path / 'bin').mkdir()
    for name in ('etcd', 'kube-apiserver'):
        (tmp_path / 'bin' / name).write_text(f'#!/bin/sh\necho {name} runs')
        (tmp_path / 'bin' / name).chmod(0o700)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('KUBEBUILDER_ASSETS', 'bin')
    with pytest.raises(RuntimeError, match="not become ready:\nkube-apiserver runs"):
        envtest.start()
