"""A server for tests with other people's clients: nvllm-launch serve with the scripted model, on the CPU and a
free port. Importing this goes on in the virtual environment of tools/fetch-clients; without one the test ends
as skipped."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from launcher.serve.clients import scripted_model
from testing import unittest_report

PYTHON = os.environ.get('NVLLM_CLIENTS_PYTHON')
if not PYTHON:
    unittest_report.skip_all('needs the clients of tools/fetch-clients (NVLLM_CLIENTS_PYTHON)')
if os.path.abspath(sys.executable) != os.path.abspath(PYTHON):
    os.execv(PYTHON, [PYTHON, *sys.argv])

# Beside Bazel's runfiles, in which tests run.
LAUNCH = os.environ.get('NVLLM_LAUNCH', 'launcher/nvllm-launch')
# The processor may be shared with many others: nothing here takes a second by itself.
START_SECONDS = 300
PATIENCE = 600  # seconds, also to connect
MODEL = 'scripted'


class Server:
    """with Server('--max-num-seqs=1') as server: ... server.url ...; it must end well, and leave no process."""

    def __init__(self, *options, port=0):
        self.folder = tempfile.TemporaryDirectory()
        scripted_model.write(self.folder.name, 'tokenizer/testdata/qwen.json')
        self.log = open(os.path.join(self.folder.name, 'log'), 'w+', encoding='utf-8')
        self.process = subprocess.Popen(
            [LAUNCH, 'serve', f'--model={self.folder.name}', f'--served-model-name={MODEL}', '--device=cpu', f'--port={port}',
             '--kv-cache-memory-bytes=64M', '--max-num-seqs=8', '--enable-auto-tool-choice',
             '--tool-call-parser=hermes', '--reasoning-parser=qwen3', *options],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        self.url = self.await_address()

    def await_address(self):
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            found = re.search(r'listening on (http://[0-9.:]+)', self.text())
            if found:
                return found[1]
            time.sleep(0.02)
        self.process.kill()
        raise AssertionError('the server did not start:\n' + self.text())

    def get(self, path):
        """The body of the response, as text, and its headers."""
        with urllib.request.urlopen(self.url + path, timeout=PATIENCE) as response:
            return response.read().decode(), response.headers

    def post(self, path, body):
        """The response to a body in JSON."""
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {'Content-Type': 'application/json'})
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return json.load(response)

    def text(self):
        """What it has written to its standard error."""
        return Path(self.log.name).read_text(encoding='utf-8')

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.await_end()

    def await_end(self):
        """After a signal has asked it to end."""
        try:
            code = self.process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError('the server did not end:\n' + self.text()) from None
        finally:
            self.log.close()
        # A signal ends it well: 128 + SIGTERM, as shells have it, or 0.
        if code not in (0, 128 + signal.SIGTERM):
            raise AssertionError(f'the server ended with {code}:\n' + Path(self.log.name).read_text(encoding='utf-8'))
        self.folder.cleanup()

    def forget(self):
        """After a test has killed it."""
        self.process.wait(START_SECONDS)
        self.log.close()
        self.folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
