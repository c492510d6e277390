"""
Hostile requests, made at random; and what becomes of the others while they come.

By hand, on any server of webhooks: ``python -m tests._kits.webhooks.hostility URL COUNT``.
"""
import asyncio
import collections
import concurrent.futures
import copy
import json
import logging
import random
import ssl
import statistics
import sys
import time
import urllib.parse

from tests._kits.webhooks.clients import REVIEW, Client, build_request

JUNK = [
    None, True, -1, 1e400, 10 ** 400, '', 'x' * 10_000, '\ud800', '\x00', [], {}, [[]], [{}],
    {'': ''}, {'metadata': None}, {'metadata': []}, {'metadata': {'labels': 'x'}}, 'DELETE',
    'CONNECT', {'group': 1}, {'group': '', 'version': 'v1', 'resource': 'pods'},
]


def make_document(rng):
    """A review in which anything can be anything else."""
    review = json.loads(json.dumps(REVIEW))
    for _ in range(rng.randint(1, 4)):
        target = review
        while True:
            key = rng.choice(list(target))
            if not isinstance(target[key], dict) or not target[key] or rng.random() < 0.3:
                break
            target = target[key]
        match rng.randint(0, 3):
            case 0:
                del target[key]
            case 1:
                key = rng.choice(['x', 'metadata', 'object', 'oldObject'])
                target[key] = copy.deepcopy(rng.choice(JUNK))
            case _:
                target[key] = copy.deepcopy(rng.choice(JUNK))
        if not isinstance(review, dict) or not review:
            break
    return json.dumps(review).encode()


def make_body(rng):
    match rng.randint(0, 7):
        case 0:
            return rng.randbytes(rng.randint(0, 3000))
        case 1:
            return b'[' * rng.choice([10, 900, 100_000])
        case 2:
            depth = rng.choice([10, 300, 900, 20_000])
            return b'{"request":' * depth + b'1' + b'}' * depth
        case 3:
            raw = bytearray(json.dumps(REVIEW).encode())
            for _ in range(rng.randint(1, 5)):
                raw[rng.randrange(len(raw))] = rng.randrange(256)
            return bytes(raw)
        case 4:
            depth = rng.choice([50, 200, 400])
            deep = json.loads('{"a":' * depth + '1' + '}' * depth)
            request = {**REVIEW['request'], 'object': deep, 'oldObject': {'a': deep}}
            return json.dumps({**REVIEW, 'request': request}).encode()
        case _:
            return make_document(rng)


def make_request(rng):
    """A request as bytes; good ones are among them, too."""
    path = rng.choice(['/fn', '/', '/unknown', '/..%2f..', '/%00', '//', '/a' * 100])
    body = make_body(rng)
    match rng.randint(0, 9):
        case 0:
            return rng.randbytes(rng.randint(1, 2000)) + b'\r\n\r\n'
        case 1:
            return build_request(body, path=path, method=rng.choice(['GET', 'PUT', 'HEAD', 'X']))
        case 2:
            return build_request(body, path=path, length=rng.choice(
                [0, 1, -1, '', 'x', 10 ** 9, 10 ** 30, len(body) * 2 + 1]))
        case 3:
            raw = bytearray(build_request(body, path=path))
            for _ in range(rng.randint(1, 10)):
                raw[rng.randrange(min(len(raw), 100))] = rng.randrange(256)
            return bytes(raw)
        case 4:
            chunks = b''.join(
                b'%x\r\n%s%s' % (rng.choice([3, 4, 5]), b'abcd', rng.choice([b'\r\n', b'\n']))
                for _ in range(rng.randint(1, 5)))
            return build_request(chunks + b'0\r\n\r\n', path=path, length=...,
                                 headers=['Transfer-Encoding: chunked'])
        case 5:
            headers = [f'{rng.choice(["x", "X-Y", "Content-Length", "Host", "Expect", " "])}: '
                       f'{rng.choice(["", "1", "chunked", "é", "x" * 5000])}'
                       for _ in range(rng.randint(1, 150))]
            return build_request(body, path=path, headers=headers)
        case _:
            return build_request(body, path=path)


async def attack(port, context, rng):
    """Send one hostile request, in a hostile way; return the status, or what else came of it."""
    raw = make_request(rng)
    try:
        async with asyncio.timeout(20), Client(port, context=context) as client:
            match rng.randint(0, 9):
                case 0:
                    client.send(raw[:rng.randrange(len(raw))])
                    return 'left'
                case 1:
                    for start in range(0, len(raw), 1000):
                        client.send(raw[start:start + 1000])
                        await asyncio.sleep(0)
                case 2:
                    raw *= 3
                    client.send(raw)
                case _:
                    client.send(raw)
            async with asyncio.timeout(0.2):
                return (await client.receive())[0]
    except TimeoutError:
        return 'waited'
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as e:
        return e.__class__.__name__


async def attack_on(port, context, *, count, seed=None, attackers=20):
    """Attack so many times; return how many times each outcome was."""
    rng = random.Random(seed)
    outcomes = collections.Counter()
    left = count

    async def attack_some():
        nonlocal left
        while left > 0:
            left -= 1
            outcomes[await attack(port, context, rng)] += 1

    await asyncio.gather(*(attack_some() for _ in range(attackers)))
    return outcomes


async def live(port, context, attacking, *, pause=0.01):
    """Make good requests while there are the attacks; return how long each of them took."""
    latencies, now = [], asyncio.get_running_loop().time
    while not attacking.done():
        started = now()
        async with Client(port, context=context) as client:
            assert (await client.ask(build_request(path='/fn')))[0] == 200
        latencies.append(now() - started)
        await asyncio.sleep(pause)
    return latencies


def make_context(secure):
    if not secure:
        return None
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def attack_from_here(port, secure, count):
    logging.disable()
    return asyncio.run(attack_on(port, make_context(secure), count=count))


def main():
    url, count = urllib.parse.urlsplit(sys.argv[1]), int(sys.argv[2])
    secure = url.scheme == 'https'
    started = time.monotonic()
    with concurrent.futures.ProcessPoolExecutor(1) as executor:  # not to measure the attacker
        attacking = executor.submit(attack_from_here, url.port, secure, count)
        latencies = asyncio.run(live(url.port, make_context(secure), attacking))
        outcomes = attacking.result()
    quantiles = statistics.quantiles(latencies, n=100)
    print(f"{sum(outcomes.values())} in {time.monotonic() - started:.0f}s: {dict(outcomes)}")
    print(f"{len(latencies)} good ones: p50 {quantiles[49] * 1000:.1f} ms, "
          f"p99 {quantiles[98] * 1000:.1f} ms, max {max(latencies) * 1000:.1f} ms")


if __name__ == '__main__':
    main()
