#!/usr/bin/env python3
"""The server as suites by others see it: schemathesis over /openapi.json, lm-eval's requests, Prometheus' parser."""

import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, '.')  # tests run in the root of Bazel's runfiles
from launcher.serve.clients.served import LAUNCH, MODEL, PYTHON, Server
from testing import unittest_report

from prometheus_client.parser import text_string_to_metric_families

# What a client may rely on whatever it sends. Not among them: that everything which fits the schema is accepted
# (what fits depends on the model's length and vocabulary).
CHECKS = ('not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,'
          'negative_data_rejection,unsupported_method')


class SuitesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def test_schemathesis_finds_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run(
                [os.path.join(os.path.dirname(PYTHON), 'schemathesis'), 'run', self.server.url + '/openapi.json',
                 f'--checks={CHECKS}', '--max-examples=8', '--phases=examples,coverage,fuzzing', '--seed=1',
                 '--generation-database=none', '--request-timeout=120', '--no-color'],
                capture_output=True, text=True, check=False, cwd=folder, timeout=3000)
        self.assertEqual(run.returncode, 0, run.stdout[-6000:] + run.stderr[-2000:])

    def test_the_log_probabilities_of_a_prompt_are_generates_bit_for_bit(self):
        # lm-eval's local-completions asks for a continuation's log probabilities so.
        ids = [39, 72, 11, 220, 64, 77, 67, 220, 83, 71, 68, 76]
        weights = '--load-format=dummy'  # random ones: the scripted model is sure of everything
        with Server(weights) as server:
            body = {'model': MODEL, 'prompt': [ids], 'echo': True, 'logprobs': 1, 'max_tokens': 1, 'temperature': 0,
                    'seed': 1234}
            choice = server.post('/v1/completions', body)['choices'][0]
            logprobs = choice['logprobs']
            run = subprocess.run(
                [LAUNCH, 'generate', f'--model={server.folder.name}', weights, '--device=cpu',
                 '--kv-cache-memory-bytes=64M', '--input=-'],
                input=json.dumps({'prompt_token_ids': ids, 'max_tokens': 1, 'temperature': 0, 'logprobs': 1,
                                  'prompt_logprobs': 1}),
                capture_output=True, text=True, check=True)
        line = json.loads(run.stdout)
        known = [None, *(each['logprob'] for each in line['prompt_logprobs'] if each), line['logprobs'][0]['logprob']]
        self.assertEqual(len(known), len(ids) + 1)
        self.assertEqual([as_float32(p) for p in logprobs['token_logprobs']], [as_float32(p) for p in known])
        self.assertIsNone(logprobs['top_logprobs'][0])
        for position in range(1, len(ids) + 1):
            self.assertGreaterEqual(max(logprobs['top_logprobs'][position].values()),
                                    logprobs['token_logprobs'][position])

    def test_prometheus_reads_the_metrics(self):
        self.server.post('/v1/completions', {'prompt': 'Hi'})
        text, headers = self.server.get('/metrics')
        self.assertTrue(headers['content-type'].startswith('text/plain; version=0.0.4'))
        families = {family.name: family for family in text_string_to_metric_families(text)}
        for name, kind in (('vllm:num_requests_running', 'gauge'), ('vllm:prompt_tokens', 'counter'),
                           ('vllm:request_success', 'counter'), ('vllm:e2e_request_latency_seconds', 'histogram'),
                           ('process_resident_memory_bytes', 'gauge')):
            self.assertEqual(families[name].type, kind)
        for family in families.values():
            if family.type == 'histogram':
                self.check_histogram(family)
        labels = families['vllm:generation_tokens'].samples[0].labels
        self.assertEqual(labels, {'model_name': MODEL, 'engine': '0'})

    def check_histogram(self, family):
        buckets = [sample.value for sample in family.samples if sample.name.endswith('_bucket')]
        count = [sample.value for sample in family.samples if sample.name.endswith('_count')]
        self.assertEqual(buckets, sorted(buckets))
        self.assertEqual([buckets[-1]], count)


def as_float32(value):
    return None if value is None else struct.pack('<f', value)


if __name__ == '__main__':
    unittest_report.main('__main__')
