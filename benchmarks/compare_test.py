#!/usr/bin/env python3
"""benchmarks/compare with stand-ins for nvllm-launch and for nano-vllm."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

COMPARE = Path('benchmarks/compare').absolute()

LAUNCH = '''#!/usr/bin/env python3
import json, pathlib, sys
here = pathlib.Path(__file__).parent
words = sys.argv[1:]
with open(here / 'order', 'a') as file:
    print('nvllm', words[1], file=file)
if (here / 'broken').exists():
    sys.exit('nvllm-launch: no such device')
if words[1] == 'throughput':
    print(json.dumps({'seconds': 2.0, 'output_tokens_per_s': 500.0}))
else:
    sizes = words[words.index('--batch-size') + 1].split(',')
    print(json.dumps({'batches': [{'batch': int(size), 'prompts_s': 0.1, 'mean_step_ms': 0.001} for size in sizes]}))
'''

# A mock engine; the first token that it records is the workload's first.
NANO = '''import pathlib, time
here = pathlib.Path(__file__).parent
class SamplingParams:
    def __init__(self, temperature, ignore_eos, max_tokens):
        self.max_tokens = max_tokens
class LLM:
    def __init__(self, model, **options):
        with open(here / 'order', 'a') as file:
            print('nano-vllm', options.get('tensor_parallel_size', 1), file=file)
    def generate(self, prompts, params, use_tqdm):
        time.sleep(0.01 + 0.001 * max(param.max_tokens for param in params))
        with open(here / 'batches', 'a') as file:
            print(len(prompts), sum(map(len, prompts)), sum(param.max_tokens for param in params), file=file)
        return [{'token_ids': [1] * param.max_tokens} for param in params]
'''


class CompareTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get('TEST_TMPDIR'))
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / 'nanovllm.py').write_text(NANO)
        launch = self.folder / 'nvllm-launch'
        launch.write_text(LAUNCH)
        launch.chmod(0o755)

    def compare(self, *more):
        return subprocess.run([COMPARE, '--launch', self.folder / 'nvllm-launch', '--model', 'a-model', '--batch-size', '1,2', '--prompt-len',
                               '8', '--steps', '4', '--out', self.folder / 'out.json', *more], text=True, capture_output=True,
                              env={**os.environ, 'PYTHONPATH': str(self.folder)})

    def lines(self, name):
        return (self.folder / name).read_text().splitlines()

    def result(self):
        return json.loads((self.folder / 'out.json').read_text())

    def test_engines_take_turns_and_what_is_not_installed_is_said(self):
        done = self.compare('--engines', 'nvllm,vllm,nano-vllm', '--rounds', '2')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([line.split()[0] for line in self.lines('order')], ['nvllm', 'nvllm', 'nano-vllm'] * 2)
        self.assertIn('vllm: not installed', done.stderr)
        self.assertEqual(self.result()['left_out'], {'vllm': 'not installed'})

    def test_the_workload_is_nano_vllms(self):
        self.compare('--engines', 'nano-vllm', '--tasks', 'throughput', '--rounds', '1')
        self.assertEqual(self.lines('batches')[1], '256 142827 133966')

    def test_ratios_say_how_many_times_faster_nvllm_is(self):
        done = self.compare('--engines', 'nvllm,nano-vllm', '--rounds', '2')
        self.assertEqual(done.returncode, 0, done.stderr)
        figures, ratios = self.result()['figures'], self.result()['ratios']
        step = figures['decode step of 2, ms']
        self.assertEqual(step['nvllm']['all'], [0.001, 0.001])
        self.assertAlmostEqual(ratios['decode step of 2, ms']['nano-vllm']['best'], step['nano-vllm']['best'] / 0.001)
        rate = figures['throughput tokens/s']
        self.assertEqual(rate['nano-vllm']['best'], max(rate['nano-vllm']['all']))
        self.assertAlmostEqual(ratios['throughput tokens/s']['nano-vllm']['best'], 500 / rate['nano-vllm']['best'])

    def test_an_engine_that_fails_is_left_out_and_the_others_go_on(self):
        (self.folder / 'broken').touch()
        done = self.compare('--engines', 'nvllm,nano-vllm', '--rounds', '2')
        self.assertEqual(done.returncode, 0)
        self.assertIn('nvllm: exit code 1: nvllm-launch: no such device; left out', done.stderr)
        self.assertEqual([line.split()[0] for line in self.lines('order')], ['nvllm', 'nano-vllm', 'nano-vllm'])

    def test_arguments_of_an_engine_reach_it(self):
        self.compare('--engines', 'nano-vllm', '--rounds', '1', '--set', 'nano-vllm:tensor_parallel_size=2')
        self.assertEqual(self.lines('order'), ['nano-vllm 2'])


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1])
