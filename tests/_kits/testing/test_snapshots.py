"""Two states of a cluster are the same if they differ only in what is different in each run."""
import copy

from kopf._kits.external import records
from kopf._kits.testing import snapshots


def make(token, *, attempt=1, key='acct-1', types=('Ready', 'Synced')):
    record = records.Record(
        phase=records.Phase.KNOWN, token=token, key=key, attempt=attempt, by=f'by-{attempt}')
    tenant = {
        'metadata': {'name': 'a', 'uid': 'uid-a', 'annotations': {
            records.make_name('billing'): record.encode(),
            records.make_name('billing', records.ADOPT): 'acct-1'}},
        'status': {'conditions': [{'type': type, 'status': 'True'} for type in types]}}
    account = {'metadata': {'name': 'a', 'uid': f'id-of-{token}'}, 'reference': token}
    return snapshots.take([
        ('tenants', copy.deepcopy(tenant)), ('accounts', copy.deepcopy(account))])


def test_tokens_and_attempts_of_externals_are_of_one_run():
    assert snapshots.compare(make('token-1'), make('token-2', attempt=2)) == []


def test_the_keys_of_externals_matter():
    [difference] = snapshots.compare(make('token-1'), make('token-1', key='acct-2'))
    assert 'tenants a differs' in difference


def test_the_order_of_conditions_means_nothing():
    assert snapshots.compare(make('token'), make('token', types=('Synced', 'Ready'))) == []
    assert snapshots.compare(make('token'), make('token', types=('Synced', 'Other'))) != []


def test_each_run_has_addresses_and_certificates_of_webhook_servers_of_its_own():
    def make(port, ca, path='/queues'):
        config = {'url': f'https://127.0.0.1:{port}{path}', 'caBundle': ca}
        return snapshots.take([
            ('customresourcedefinitions', {
                'metadata': {'name': 'queues.example.com', 'uid': 'uid-1'},
                'spec': {'conversion': {'webhook': {'clientConfig': dict(config)}}}}),
            ('validatingwebhookconfigurations', {
                'metadata': {'name': 'queues.example.com', 'uid': 'uid-2'},
                'webhooks': [{'clientConfig': dict(config)}]})])

    assert snapshots.compare(make(1234, 'YQ=='), make(4321, 'Yg==')) == []
    assert len(snapshots.compare(make(1234, 'YQ=='), make(1234, 'YQ==', path='/others'))) == 2
