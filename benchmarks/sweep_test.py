#!/usr/bin/env python3
"""benchmarks/sweep against a stand-in for nvllm-launch."""

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path

SWEEP = Path('benchmarks/sweep').absolute()

# Fails or hangs at the concurrency given in a file next to it; records every run.
STAND_IN = '''#!/usr/bin/env python3
import json, os, pathlib, sys, time
here = pathlib.Path(__file__).parent
words = sys.argv[1:]
of = lambda name: words[words.index(name) + 1]
with open(here / 'runs', 'a') as file:
    print(*words, file=file)
many, ranks = int(of('--max-concurrency')), int(of('--tp'))
if (here / f'fail-{many}').exists():
    sys.exit('nvllm-launch: no such device')
if (here / f'hang-{many}').exists():
    (here / 'pid').write_text(str(os.getpid()))
    time.sleep(600)
rate = 100.0 * many * ranks
print(json.dumps({
    'model': of('--model'), 'dtype': 'bfloat16', 'device': 'CPU, 2 cores', 'seconds': 2.0, 'output_tokens_per_s': rate,
    'total_tokens_per_s': 2 * rate, 'first_token_ms': {'p50': 3.0, 'p99': 4.0}, 'token_ms': {'mean': 1.0 + many / 10, 'p99': 5.0},
    'mean_batch': many, 'work': {'host_s': 0.1, 'device_busy_s': 1.5}, 'floor': {'seconds': 1.0, 'of_floor': 0.5},
    'workload': {'output_tokens': 2 * rate}}))
'''


# The same for bench serve.
SERVE_STAND_IN = '''#!/usr/bin/env python3
import json, pathlib, sys
words = sys.argv[1:]
of = lambda name: words[words.index(name) + 1]
with open(pathlib.Path(__file__).parent / 'runs', 'a') as file:
    print(*words, file=file)
load = float(of('--request-rate')) if of('--request-rate') != 'inf' else float(of('--max-concurrency'))
result = {name: load for name in (
    'duration', 'completed', 'failed', 'request_throughput', 'output_throughput', 'total_token_throughput')}
result |= {f'{which}_{what}_ms': load for which in ('median', 'p99') for what in ('ttft', 'tpot', 'itl', 'e2el')}
print(json.dumps(result | {'model_id': 'a-model', 'request_goodput': load if '--goodput' in words else None}))
'''


class SweepTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get('TEST_TMPDIR'))
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.out = self.folder / 'out'
        launch = self.folder / 'nvllm-launch'
        launch.write_text(STAND_IN)
        launch.chmod(0o755)

    def sweep(self, *more, model='a-model'):
        return subprocess.run([SWEEP, '--launch', self.folder / 'nvllm-launch', '--model', model, '--out', self.out, '--tp', '1,2',
                               '--concurrency', '1,4', '--input-len', '16', '--output-len', '8:9', *more], text=True, capture_output=True)

    def runs(self):
        file = self.folder / 'runs'
        return file.read_text().splitlines() if file.exists() else []

    def rows(self):
        with open(self.out / 'results.csv', encoding='utf-8', newline='') as file:
            return list(csv.DictReader(file))

    def test_every_setting_is_run_once_with_its_options(self):
        done = self.sweep('--', '--load-format', 'dummy')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(self.runs()), 4)
        self.assertTrue(all(run.startswith('bench throughput --model a-model') for run in self.runs()))
        self.assertTrue(all('--output-len 8:9' in run and run.endswith('--load-format dummy') for run in self.runs()))
        rates = {(row['tp'], row['concurrency']): float(row['output_tokens_per_s']) for row in self.rows()}
        self.assertEqual(rates, {('1', '1'): 100, ('1', '4'): 400, ('2', '1'): 200, ('2', '4'): 800})

    def test_the_same_command_again_runs_nothing(self):
        self.sweep()
        again = self.sweep()
        self.assertEqual(again.returncode, 0)
        self.assertEqual(len(self.runs()), 4)
        self.assertIn('is there', again.stderr)

    def test_what_failed_is_told_and_tried_again(self):
        (self.folder / 'fail-4').touch()
        done = self.sweep()
        self.assertEqual(done.returncode, 1)
        self.assertIn('exit code 1: nvllm-launch: no such device', done.stderr)
        self.assertEqual([row['error'] != '' for row in self.rows()], [False, True, False, True])
        (self.folder / 'fail-4').unlink()
        self.assertEqual(self.sweep().returncode, 0)
        self.assertEqual(len(self.runs()), 6)
        self.assertEqual([row['error'] for row in self.rows()], [''] * 4)

    def test_a_run_that_hangs_is_ended(self):
        (self.folder / 'hang-1').touch()
        done = self.sweep('--tp', '1', '--time-limit', '3')
        self.assertEqual(done.returncode, 1)
        self.assertIn('took longer than 3 s', done.stderr)
        pid = (self.folder / 'pid').read_text()
        self.assertFalse(Path(f'/proc/{pid}').exists())

    def test_runs_of_another_model_are_not_mixed_in(self):
        self.sweep()
        done = self.sweep(model='another')
        self.assertNotEqual(done.returncode, 0)
        self.assertIn('holds runs of a-model', done.stderr)

    def test_variants_are_values_of_the_grid(self):
        self.sweep('--variant=', '--variant=--enforce-eager')
        self.assertEqual(len(self.runs()), 8)
        self.assertEqual(sum('--enforce-eager' in run for run in self.runs()), 4)

    def test_plots_are_drawn_with_the_floor_dashed(self):
        self.sweep()
        for name in ('throughput-latency', 'batch', 'scaling'):
            drawn = xml.parse(self.out / f'{name}.svg').getroot()
            lines = drawn.findall('{http://www.w3.org/2000/svg}polyline')
            self.assertGreaterEqual(len(lines), 2)
        batch = xml.parse(self.out / 'batch.svg').getroot().findall('{http://www.w3.org/2000/svg}polyline')
        self.assertEqual([line.get('stroke-dasharray') is not None for line in batch], [False, True] * 2)

    def serve_sweep(self, *more):
        (self.folder / 'nvllm-launch').write_text(SERVE_STAND_IN)
        return subprocess.run([SWEEP, '--launch', self.folder / 'nvllm-launch', '--out', self.out, '--input-len', '16',
                               '--output-len', '8', *more], text=True, capture_output=True)

    def test_servers_are_measured_one_beside_the_other(self):
        done = self.serve_sweep('--base-url', 'ours=http://a:1', '--base-url', 'http://b:2', '--concurrency', '1,4')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([run.split()[:4] for run in self.runs()],
                         [['bench', 'serve', '--base-url', url] for url in ['http://a:1'] * 2 + ['http://b:2'] * 2])
        self.assertEqual([(row['server'], row['concurrency'], row['output_throughput']) for row in self.rows()],
                         [('ours', '1', '1.0'), ('ours', '4', '4.0'), ('http://b:2', '1', '1.0'), ('http://b:2', '4', '4.0')])
        for name in ('throughput-latency', 'ttft', 'tpot'):
            lines = xml.parse(self.out / f'{name}.svg').getroot().findall('{http://www.w3.org/2000/svg}polyline')
            self.assertEqual(len(lines), 2 if name == 'throughput-latency' else 4)
        self.assertFalse((self.out / 'goodput.svg').exists())

    def test_request_rates_are_values_of_the_grid(self):
        done = self.serve_sweep('--base-url', 'http://a:1', '--concurrency', '64', '--request-rate', '2,8', '--',
                                '--duration', '5', '--goodput', 'ttft:200')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(all('--num-prompts' not in run for run in self.runs()))
        self.assertEqual([row['request_goodput'] for row in self.rows()], ['2.0', '8.0'])
        self.assertTrue((self.out / 'goodput.svg').exists())

    def test_without_a_model_or_a_server_nothing_runs(self):
        done = subprocess.run([SWEEP, '--out', self.out], text=True, capture_output=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn('pass --model, or --base-url of a server', done.stderr)


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1])
