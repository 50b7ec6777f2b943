#!/usr/bin/env python3
"""The programs of examples/python, which are nano-vllm's with another import."""

import subprocess
import sys
import unittest

sys.path.insert(0, '.')  # tests run in the root of Bazel's runfiles
from python.tests.tiny_model import HELLO, MODEL
from testing import unittest_report



def run(*arguments):
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(done.stderr)
    return done.stdout


class ExamplesTest(unittest.TestCase):
    def test_example(self):
        self.assertEqual(run('examples/python/example.py', MODEL, '1').count(f'Completion: {HELLO!r}'), 3)

    def test_bench(self):
        shown = run('examples/python/bench.py', MODEL, 'device=cpu', 'kv_cache_memory_bytes=64M', '--prompts=3',
                    '--lengths=20', '--vocabulary=700')
        self.assertRegex(shown, r'^60 tokens in [0-9.]+ s: \d+ tokens/s\n$')


if __name__ == '__main__':
    unittest_report.main('__main__')
