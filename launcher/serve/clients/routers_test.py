#!/usr/bin/env python3
"""Two servers behind routers that exist, HAProxy with the configuration of examples/replicas and smg: a
conversation stays where its prefix is cached, and no request is lost when a server dies, comes back or shuts down.

NVLLM_ROUTER_REQUESTS: how many requests are under way around a death (300).
"""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, '.')  # tests run in the root of Bazel's runfiles
from launcher.serve.clients.served import MODEL, PATIENCE, START_SECONDS, Server
from testing import unittest_report

REQUESTS = int(os.environ.get('NVLLM_ROUTER_REQUESTS', '300'))
CLIENTS = 16
CONVERSATIONS = 24
TURNS = 5
# Longer than what routers hash or compare, and several blocks of the KV cache.
OPENING = 'Conversation {}. ' + 'This is said at the beginning of each of them, and is long enough for a prefix. ' * 16


def free_port():
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


class HaProxy:
    """The example's configuration, with the addresses of this test."""

    def __init__(self, ports):
        program = shutil.which('haproxy') or shutil.which('haproxy', path='/usr/sbin')
        if not program:
            raise unittest.SkipTest('needs haproxy (Debian: the package haproxy)')
        self.port = free_port()
        config = Path('examples/replicas/haproxy.cfg').read_text()
        for old, new in [('bind :8000', f'bind 127.0.0.1:{self.port}'), ('node1:8000', f'127.0.0.1:{ports[0]}'),
                         ('node2:8000', f'127.0.0.1:{ports[1]}')]:
            assert config.count(old) == 1, old
            config = config.replace(old, new)
        self.file = tempfile.NamedTemporaryFile('w', suffix='.cfg')
        self.file.write(config)
        self.file.flush()
        self.command = [program, '-db', '-f', self.file.name]


class Smg:
    """The command that docs/several-boxes.md gives."""

    def __init__(self, ports):
        self.port = free_port()
        self.command = [sys.executable, '-m', 'smg', 'launch', '--host', '127.0.0.1', '--port', str(self.port),
                        '--policy', 'prefix_hash', '--health-check-interval-secs', '1', '--health-failure-threshold',
                        '1', '--health-success-threshold', '1', '--disable-circuit-breaker', '--log-level', 'warn',
                        '--prometheus-port', str(free_port()), '--worker-urls',
                        *(f'http://127.0.0.1:{port}' for port in ports)]


class Setup:
    """Two servers and a router before them."""

    def __init__(self, router):
        self.ports = [free_port(), free_port()]
        self.router = router(self.ports)
        self.servers = [self.start_server(i) for i in range(2)]
        self.log = tempfile.TemporaryFile('w+')
        self.process = subprocess.Popen(self.router.command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        try:
            self.await_answers()
        except BaseException:
            self.stop()
            raise

    def start_server(self, i):
        return Server('--shutdown-timeout=60', port=self.ports[i])

    def restart_server(self, i):
        self.servers[i] = self.start_server(i)

    def await_answers(self):
        """Waits until both servers have answered through the router."""
        end = time.monotonic() + START_SECONDS
        while not all(self.answered()) and time.monotonic() < end:
            if self.process.poll() is not None:
                break
            try:
                self.ask(f'{time.monotonic_ns()} ')
            except (OSError, http.client.HTTPException, RuntimeError):
                time.sleep(0.1)
        if not all(self.answered()):
            self.log.seek(0)
            raise AssertionError('the router does not reach both servers:\n' + self.log.read())

    def answered(self):
        """How many requests each server has answered since it started."""
        counts = []
        for server in self.servers:
            text, _ = server.get('/metrics')
            found = re.findall(r'^vllm:request_success_total\{[^}]*\} ([0-9.e+]+)$', text, re.MULTILINE)
            counts.append(sum(float(count) for count in found))
        return counts

    def await_busy(self):
        """The first server that has requests under way."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            for i, server in enumerate(self.servers):
                if json.loads(server.get('/load')[0])['server_load'] > 0:
                    return i
        raise AssertionError('no server has anything to do')

    def ask(self, text, tokens=3, **more):
        """The response to a completion, through the router; an error if it is none."""
        body = json.dumps({'model': MODEL, 'prompt': text, 'max_tokens': tokens, **more}).encode()
        connection = http.client.HTTPConnection('127.0.0.1', self.router.port, timeout=PATIENCE)
        try:
            connection.request('POST', '/v1/completions', body, {'Content-Type': 'application/json'})
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        if response.status != 200:
            raise RuntimeError(f'status {response.status}: {text[:300]}')
        return text if more.get('stream') else json.loads(text)

    def ask_many(self, on_answer=lambda count: None):
        """What went wrong of many short requests, each of its own text."""
        wrong, lock, count = [], threading.Lock(), 0

        def one(i):
            nonlocal count
            try:
                said = self.ask(f'Request {i} of many')['choices'][0]['text']
                problem = None if said == 'Hello there friend.' else f'said {said!r}'
            except (OSError, http.client.HTTPException, RuntimeError) as error:
                problem = repr(error)
            with lock:
                count += 1
                if problem:
                    wrong.append(f'request {i}: {problem}')
                on_answer(count)

        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(one, range(REQUESTS)))
        return wrong

    def stop(self):
        self.process.terminate()
        self.process.wait(START_SECONDS)
        self.log.close()
        for server in self.servers:
            server.stop()


class RouterCases:
    """What holds behind each router."""

    @classmethod
    def setUpClass(cls):
        cls.setup = Setup(cls.router)

    @classmethod
    def tearDownClass(cls):
        cls.setup.stop()

    def test_1_a_conversation_stays_where_its_prefix_is(self):
        texts = [OPENING.format(i) for i in range(CONVERSATIONS)]
        before = self.setup.answered()
        found = 0
        for turn in range(TURNS):
            with ThreadPoolExecutor(4) as pool:
                usages = [answer['usage'] for answer in pool.map(self.setup.ask, texts)]
            if turn > 0:
                found += sum(usage['prompt_tokens_details']['cached_tokens'] > 300 for usage in usages)
            texts = [text + f' And turn {turn} says more.' for text in texts]
        self.assertGreaterEqual(found, 0.95 * CONVERSATIONS * (TURNS - 1))
        counts = [after - count for after, count in zip(self.setup.answered(), before)]
        self.assertGreater(min(counts), 0, counts)  # both have some

    def test_2_no_request_is_lost_when_a_server_is_killed_and_it_serves_again_when_it_is_back(self):
        victim = self.setup.servers[0]

        def kill_once(count):
            if count == REQUESTS // 3:
                victim.process.kill()

        self.assertEqual(self.setup.ask_many(kill_once), [])
        victim.forget()
        self.setup.restart_server(0)
        self.setup.await_answers()

    def test_3_a_server_that_shuts_down_ends_its_streams_and_gets_no_more_requests(self):
        with ThreadPoolExecutor(8) as pool:
            streams = [pool.submit(self.setup.ask, f'{i} <go on>', 1500, stream=True) for i in range(8)]
            leaving = self.setup.await_busy()
            self.setup.servers[leaving].process.send_signal(signal.SIGTERM)
            self.assertEqual(self.setup.ask_many(), [])
            for stream in streams:
                text = stream.result()
                self.assertIn('"finish_reason":"length"', text)
                self.assertTrue(text.endswith('data: [DONE]\n\n'))
        self.setup.servers[leaving].await_end()
        self.setup.restart_server(leaving)
        self.setup.await_answers()


class HaProxyTest(RouterCases, unittest.TestCase):
    router = HaProxy


class SmgTest(RouterCases, unittest.TestCase):
    router = Smg


if __name__ == '__main__':
    unittest_report.main('__main__')
