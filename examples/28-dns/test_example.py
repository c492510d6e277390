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


@testing.virtual_time
async def test_the_first_object_has_the_name_until_it_is_gone(provider):
    async with run(provider) as client:
        await client.create('dnsrecords', 'first', spec=WWW)
        await client.wait('dnsrecords', 'first', is_synced)
        await asyncio.sleep(2)
        await client.create('dnsrecords', 'second', spec={**WWW, 'values': ['203.0.113.66']})
        await asyncio.sleep(200)
        [record] = provider.things('records')
        assert record['values'] == ['192.0.2.10']
        await client.delete('dnsrecords', 'first')
        await asyncio.sleep(200)
        [record] = provider.things('records')
        assert record['values'] == ['203.0.113.66']


@testing.virtual_time
async def test_a_service_has_the_records_of_its_addresses(provider):
    async with run(provider) as client:
        await client.create({
            'apiVersion': 'v1', 'kind': 'Service',
            'metadata': {'name': 'shop', 'annotations': {'example.com/dns-name': 'shop'}},
            'spec': {'type': 'LoadBalancer', 'ports': [{'port': 80, 'protocol': 'TCP'}]}})
        await asyncio.sleep(10)
        assert provider.things('records') == []
        ingress = [{'ip': '192.0.2.1'}, {'ip': '2001:db8::1'}]
        await client.patch('services', 'shop', {'status': {'loadBalancer': {'ingress': ingress}}},
                           subresource='status')
        await asyncio.sleep(10)
        assert {(record['name'], record['type'], *record['values'])
                for record in provider.things('records')} == {
            ('shop.example.org', 'A', '192.0.2.1'), ('shop.example.org', 'AAAA', '2001:db8::1')}
        await client.patch('services', 'shop', {'metadata': {'annotations': None}})
        await asyncio.sleep(30)
        assert provider.things('records') == []
