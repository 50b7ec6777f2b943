#!/usr/bin/env python3
"""Whoever dies: Python, the program or a worker. Nothing is left, and an exception names who it was."""

import asyncio
import os
import signal
import sys
import time
import unittest

sys.path.insert(0, '.')  # tests run in the root of Bazel's runfiles
from python.tests.tiny_model import KEYWORDS, MODEL, await_end, children, left_behind, start_python
from testing import unittest_report

from nvllm import LLM, AsyncLLM, EngineDeadError, SamplingParams

LONG = SamplingParams(max_tokens=4000)
MANY = ['<go on>'] * 50  # more than can run at the same time, so that they do not end before a
                         # process is killed


def group_of(llm):
    return [llm.process.pid, *children(llm.process.pid)]


class DeathTest(unittest.TestCase):
    def tearDown(self):
        self.assertEqual(left_behind(), [])

    def check_gone(self, pids):
        self.assertEqual(await_end(pids), [])

    # --- Python ---

    def kill_python(self, code):
        """Kills a Python that runs the code, once it has printed a line; nothing of its engine may be left."""
        python = start_python('print(llm.process.pid, flush=True)\n' + code)
        pid = int(python.stdout.readline())
        group = [pid, *children(pid)]
        self.assertEqual(len(group), 3)
        python.kill()
        self.check_gone(group)
        python.communicate()

    def test_python_is_killed_while_nothing_happens(self):
        self.kill_python('import time; time.sleep(100)')

    def test_python_is_killed_while_it_generates(self):
        self.kill_python('llm.generate(["<go on>"] * 50, SamplingParams(max_tokens=4000))')

    def test_python_is_killed_and_has_a_forked_child(self):
        code = ('import os, time\n'
                'child = os.fork()\n'
                'time.sleep(2 if child == 0 else 100)\n')
        self.kill_python(code)

    def test_python_ends_without_a_word_or_by_an_exception(self):
        for code in ('', 'raise KeyError', 'import sys; sys.exit(3)'):
            with self.subTest(code):
                # Suppresses output about the expected exception.
                python = start_python('import sys; sys.stderr = None\n'
                                      'print(llm.process.pid, flush=True)\nsys.stdin.readline()\n' + code)
                pid = int(python.stdout.readline())
                group = [pid, *children(pid)]
                python.communicate('\n', timeout=60)
                self.check_gone(group)
                self.assertEqual(left_behind(), [])

    # --- The program, a worker ---

    def failure(self, llm, victim):
        """The exception of a stream during which this process is killed."""
        stream = llm.stream(MANY, LONG)
        next(stream)
        os.kill(victim, signal.SIGKILL)
        with self.assertRaises(EngineDeadError) as caught:
            list(stream)
        with self.assertRaises(EngineDeadError) as again:
            llm.generate('Hi')
        self.assertIn(str(caught.exception), str(again.exception))
        return caught.exception

    def test_the_program_is_killed(self):
        llm = LLM(MODEL, tensor_parallel_size=2, **KEYWORDS)
        group = group_of(llm)
        error = self.failure(llm, group[0])
        self.assertEqual(str(error), f'nvllm-launch (pid {group[0]}) was killed by SIGKILL')
        self.assertEqual((error.rank, error.pid), (None, group[0]))
        self.check_gone(group)

    def test_a_worker_is_killed(self):
        llm = LLM(MODEL, tensor_parallel_size=2, **KEYWORDS)
        group = group_of(llm)
        error = self.failure(llm, group[2])
        self.assertIn(f'rank 1 (pid {group[2]}) died: killed by SIGKILL', str(error))
        self.assertEqual((error.rank, error.pid), (1, group[2]))
        self.check_gone(group)

    def test_a_worker_is_killed_while_nothing_happens(self):
        llm = LLM(MODEL, **KEYWORDS)
        group = group_of(llm)
        os.kill(group[1], signal.SIGKILL)
        self.check_gone(group)
        with self.assertRaises(EngineDeadError) as caught:
            llm.generate('Hi')
        self.assertEqual((caught.exception.rank, caught.exception.pid), (0, group[1]))

    def test_a_worker_is_stuck(self):
        llm = LLM(MODEL, tensor_parallel_size=2, step_timeout=2, **KEYWORDS)
        group = group_of(llm)
        stream = llm.stream(MANY, LONG)
        next(stream)
        os.kill(group[2], signal.SIGSTOP)
        with self.assertRaises(EngineDeadError) as caught:
            list(stream)
        self.assertEqual((caught.exception.rank, caught.exception.pid), (1, group[2]))
        self.check_gone(group)

    def test_a_worker_of_an_asynchronous_engine_is_killed(self):
        async def run():
            async with AsyncLLM(MODEL, **KEYWORDS) as llm:
                worker = children(llm.process.pid)[0]
                outputs = llm.generate('<go on>', SamplingParams(max_tokens=4000, n=50))
                await outputs.__anext__()
                os.kill(worker, signal.SIGKILL)
                with self.assertRaises(EngineDeadError) as caught:
                    async for _ in outputs:
                        pass
                return worker, caught.exception
        worker, error = asyncio.run(run())
        self.assertEqual((error.rank, error.pid), (0, worker))

    # --- Requested shutdowns ---

    def test_the_engine_ends_with_its_block_or_object(self):
        with LLM(MODEL, **KEYWORDS) as llm:
            group = group_of(llm)
        self.assertEqual(await_end(group, 0), [])
        with self.assertRaisesRegex(EngineDeadError, 'shut down'):
            llm.generate('Hi')
        llm = LLM(MODEL, **KEYWORDS)
        group = group_of(llm)
        del llm
        self.check_gone(group)

    def test_an_interrupted_call_leaves_the_engine_as_it_was(self):
        code = ('try:\n'
                '    print(llm.process.pid, flush=True)\n'
                '    llm.generate(["<go on>"] * 50, SamplingParams(max_tokens=4000))\n'
                'except KeyboardInterrupt:\n'
                '    print(llm.generate("Hi")[0]["text"], flush=True)\n')
        python = start_python(code)
        python.stdout.readline()
        time.sleep(0.1)
        python.send_signal(signal.SIGINT)
        self.assertEqual(python.communicate(timeout=60)[0], 'Hello there friend.\n')


if __name__ == '__main__':
    unittest_report.main('__main__')
