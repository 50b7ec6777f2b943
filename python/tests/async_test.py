#!/usr/bin/env python3
"""AsyncLLM: many requests at a time, kinds of outputs, abort and cancellation."""

import asyncio
import sys
import unittest

sys.path.insert(0, '.')  # tests run in the root of Bazel's runfiles
from python.tests.tiny_model import HELLO, KEYWORDS, MODEL
from testing import unittest_report

from nvllm import AsyncLLM, RequestError, RequestOutputKind, SamplingParams


async def collect(outputs):
    return [output async for output in outputs]


class AsyncTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = AsyncLLM(MODEL, **KEYWORDS)

    @classmethod
    def tearDownClass(cls):
        cls.llm.shutdown()

    def run_one(self, *args, **kwargs):
        return asyncio.run(collect(self.llm.generate(*args, **kwargs)))

    def test_outputs_have_everything_so_far(self):
        outputs = self.run_one('<go on>', SamplingParams(max_tokens=100), request_id='mine')
        self.assertEqual({output.request_id for output in outputs}, {'mine'})
        self.assertEqual((outputs[-1]['text'], outputs[-1].finished), (' la' * 100, True))
        self.assertTrue(all(not output.finished for output in outputs[:-1]))

    def test_outputs_may_have_what_is_new_or_come_once(self):
        params = SamplingParams(max_tokens=100, output_kind=RequestOutputKind.DELTA)
        self.assertEqual(''.join(output['text'] for output in self.run_one('<go on>', params)), ' la' * 100)
        params.output_kind = RequestOutputKind.FINAL_ONLY
        output, = self.run_one('<go on>', params)
        self.assertEqual((len(output['token_ids']), output.finished), (100, True))

    def test_many_at_a_time(self):
        async def run():
            calls = [collect(self.llm.generate('<go on>', SamplingParams(max_tokens=i % 7 + 1))) for i in range(40)]
            return [outputs[-1]['text'] for outputs in await asyncio.gather(*calls)]
        self.assertEqual(asyncio.run(run()), [' la' * (i % 7 + 1) for i in range(40)])

    def test_a_conversation(self):
        async def run():
            return await collect(self.llm.chat([{'role': 'user', 'content': 'Hi'}], SamplingParams(max_tokens=None)))
        output = asyncio.run(run())[-1]
        self.assertEqual((output.prompt, output['text']), ('<|im_start|>user\nHi', HELLO))

    def test_a_request_can_be_aborted_left_and_cancelled(self):
        async def aborted():
            last = None
            async for last in self.llm.generate('<go on>', SamplingParams(max_tokens=4000), request_id='a'):
                await self.llm.abort('a')
            return last

        async def left():
            async for _ in self.llm.generate('<go on>', SamplingParams(max_tokens=4000)):
                break

        async def cancelled():
            task = asyncio.ensure_future(collect(self.llm.generate('<go on>', SamplingParams(max_tokens=4000))))
            await asyncio.sleep(0.05)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
        last = asyncio.run(aborted())
        self.assertEqual((last.finished, last.outputs[0].finish_reason), (True, 'abort'))
        asyncio.run(left())
        asyncio.run(cancelled())
        self.assertEqual(self.run_one('Hi')[-1]['text'], HELLO)

    def test_errors_name_the_field(self):
        with self.assertRaises(RequestError) as caught:
            self.run_one('Hi', SamplingParams(stop_token_ids=[10 ** 6]))
        self.assertEqual(caught.exception.field, 'stop_token_ids')
        with self.assertRaises(RequestError) as caught:
            self.run_one(['Hi', 'Hi'])
        self.assertEqual(caught.exception.field, 'prompt')


if __name__ == '__main__':
    unittest_report.main('__main__')
