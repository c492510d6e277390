import asyncio
import collections
import contextlib
import os
import pathlib

import pytest
from kopf import testing

HERE = pathlib.Path(__file__).parent
FAULTS = tuple(os.environ.get('FAULTS', 'crash call-after call-429').split())
"""Some of the faults; ``FAULTS='crash stop lose …'`` tries others."""

WWW = {'name': 'www.example.org', 'values': ['192.0.2.10']}


@pytest.fixture()
def provider(monkeypatch):
    provider = testing.FakeCloud(unique='name', rate=5)
    monkeypatch.setenv('DNS_URL', provider.url)
    return provider


@contextlib.asynccontextmanager
async def run(provider):
    """Run the operator with the least permissions; the tests get a client."""
    async with testing.open_api('sandbox') as api, provider:
        async with api.operator(HERE / 'example.py', rbac=True) as operator:
            yield api.client
        assert operator.confinement is not None and not operator.confinement.refused


def is_synced(obj):
    return ('Synced', 'True') in {(item['type'], item['status'])
                                  for item in obj['status']['conditions']}


async def live(client):
    """The life of a record and of a service."""
    await client.create('dnsrecords', 'www', spec=WWW)
    await client.wait('dnsrecords', 'www', is_synced, timeout=1000)
    await client.patch('dnsrecords', 'www', {'spec': {'name': 'web.example.org', 'ttl': 60}})
    await asyncio.sleep(300)
    await client.delete('dnsrecords', 'www')
    await client.wait_gone('dnsrecords', 'www', timeout=1000)


def test_no_fault_leaves_a_wrong_record(provider):
    explored = testing.explore(
        live, HERE / 'example.py', external=[provider], strikes=FAULTS)
    assert explored.runs > len(FAULTS)


@testing.virtual_time
async def test_what_others_change_is_corrected(provider):
    async with run(provider) as client:
        await client.create('dnsrecords', 'www', spec=WWW)
        await client.wait('dnsrecords', 'www', is_synced)
        [record] = provider.things('records')
        await provider.update('records', record['id'], {'values': ['203.0.113.66']})
        await asyncio.sleep(700)
        assert provider.things('records') == [record]


@testing.virtual_time
async def test_many_records_are_within_the_limit(provider):
    async with run(provider) as client:
        for number in range(40):
            await client.create('dnsrecords', f'r{number}', spec={**WWW, 'name': f'r{number}.org'})
        await asyncio.sleep(60)
        assert len(provider.things('records')) == 40
        seconds = collections.Counter(int(call.time) for call in provider.calls)
        assert max(seconds.values()) <= 5
        assert not [call for call in provider.calls if call.status == 429]


@testing.virtual_time
async def test_nothing_is_called_before_the_provider_allows_it(provider):
    async with run(provider) as client:
        await client.create('dnsrecords', 'www', spec=WWW)
        await client.wait('dnsrecords', 'www', is_synced)
        before = len(provider.calls)
        provider.faults.add(testing.Fault(action='refuse', status=429, count=1))  # for a second
        await client.patch('dnsrecords', 'www', {'spec': {'ttl': 60}})
        while not provider.calls[before:]:
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.8)
        assert [call.status for call in provider.calls[before:]] == [429]
        await asyncio.sleep(10)
        assert provider.things('records')[0]['ttl'] == 60


@pytest.mark.parametrize('names', ['ab', 'ba'])
@testing.virtual_time
async def test_the_first_object_has_the_name_until_it_is_gone(provider, names):
    async with run(provider) as client:
        first, second = names
        await client.create('dnsrecords', first, spec=WWW)
        await client.wait('dnsrecords', first, is_synced)
        await client.create('dnsrecords', second, spec={**WWW, 'values': ['203.0.113.66']})
        await asyncio.sleep(200)
        [record] = provider.things('records')
        assert record['values'] == ['192.0.2.10']
        await client.delete('dnsrecords', first)
        await asyncio.sleep(200)
        [record] = provider.things('records')
        assert record['values'] == ['203.0.113.66']


@testing.virtual_time
async def test_an_older_object_gets_no_name_that_is_in_use(provider):
    async with run(provider) as client:
        await client.create('dnsrecords', 'older', spec={**WWW, 'name': 'web.example.org'})
        await client.wait('dnsrecords', 'older', is_synced)
        await asyncio.sleep(2)
        await client.create('dnsrecords', 'newer', spec=WWW)
        await client.wait('dnsrecords', 'newer', is_synced)
        await client.patch('dnsrecords', 'older', {'spec': WWW})
        await asyncio.sleep(2000)
        assert sorted(record['name'] for record in provider.things('records')) == [
            'web.example.org', 'www.example.org']


@testing.virtual_time
async def test_an_object_can_go_though_its_name_is_that_of_another_one(provider):
    async with run(provider) as client:
        await client.create('dnsrecords', 'first', spec=WWW)
        await client.wait('dnsrecords', 'first', is_synced)
        provider.faults.add(testing.Fault(action='refuse', status=500, verb='create', count=1))
        await client.create('dnsrecords', 'second', spec={**WWW, 'name': 'web.example.org'})
        await asyncio.sleep(1)
        await client.patch('dnsrecords', 'second', {'spec': WWW})
        await client.delete('dnsrecords', 'second')
        await client.wait_gone('dnsrecords', 'second', timeout=1000)
        assert [record['name'] for record in provider.things('records')] == ['www.example.org']


@testing.virtual_time
async def test_nobody_gets_a_record_of_others_by_an_annotation(provider):
    async with run(provider) as client:
        record = {'name': 'example.org', 'type': 'MX', 'values': ['mail.example.org']}
        key = await provider.create('records', record)
        await client.create('dnsrecords', 'www', spec=WWW, metadata={'annotations': {
            'external.kopf.dev/record.adopt': key}})
        await asyncio.sleep(100)
        await client.delete('dnsrecords', 'www')
        await asyncio.sleep(100)
        assert provider.things('records') == [{'id': key, **record}]


@testing.virtual_time
async def test_values_that_cannot_be_served_are_refused(provider):
    async with run(provider) as client:
        for type_, values in [
                ('A', ['nonsense']), ('AAAA', ['192.0.2.10']), ('AAAA', ['2001:DB8::1']),
                ('CNAME', ['a.example.org', 'b.example.org'])]:
            with pytest.raises(testing.APIError, match=r'The values of|A CNAME has one'):
                await client.create(
                    'dnsrecords', 'www', spec={**WWW, 'type': type_, 'values': values})


@pytest.mark.parametrize('label', ['shop', 'Shop.example.org'])
@testing.virtual_time
async def test_a_service_has_the_records_of_its_addresses(provider, label):
    async with run(provider) as client:
        await client.create({
            'apiVersion': 'v1', 'kind': 'Service',
            'metadata': {'name': 'shop', 'annotations': {'example.com/dns-name': label}},
            'spec': {'type': 'LoadBalancer', 'ports': [{'port': 80, 'protocol': 'TCP'}]}})
        await asyncio.sleep(10)
        assert provider.things('records') == []
        for ingress in [{'ip': '192.0.2.1'}, {'ip': '2001:db8::1'}], []:  # they vanish
            await client.patch(
                'services', 'shop', {'status': {'loadBalancer': {'ingress': ingress}}},
                subresource='status')
            await asyncio.sleep(10)
            assert {(record['name'], record['type'], *record['values'])
                    for record in provider.things('records')} == {
                ('shop.example.org', 'A', '192.0.2.1'),
                ('shop.example.org', 'AAAA', '2001:db8::1')}
        await client.patch('services', 'shop', {'metadata': {'annotations': None}})
        await asyncio.sleep(30)
        assert provider.things('records') == []
