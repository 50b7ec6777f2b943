#!/usr/bin/env python3
"""LLM: prompts of all shapes, parameters, outputs, streams, conversations, and errors by name."""

import sys
import time
import unittest

sys.path.insert(0, '.')  # tests run in the root of Bazel's runfiles
from python.tests.tiny_model import HELLO, HELLO_IDS, KEYWORDS, MODEL
from testing import unittest_report

from nvllm import LLM, CompletionOutput, OptionError, RequestError, RequestOutput, SamplingParams
from nvllm.sampling_params import DEFAULTS, REFUSED


class LlmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = LLM(MODEL, **KEYWORDS)

    @classmethod
    def tearDownClass(cls):
        cls.llm.shutdown()

    def texts(self, prompts, *args, **kwargs):
        return [output.outputs[0].text for output in self.llm.generate(prompts, *args, **kwargs)]

    def refusal(self, prompts='Hi', params=None, **kwargs):
        with self.assertRaises(RequestError) as caught:
            self.llm.generate(prompts, params, **kwargs)
        return caught.exception

    def test_an_output_has_vllms_attributes(self):
        output, = self.llm.generate('Hi', SamplingParams())
        self.assertIsInstance(output, RequestOutput)
        self.assertEqual((output.prompt, output.prompt_token_ids, output.finished), ('Hi', [39, 72], True))
        self.assertTrue(output.request_id.isdigit())
        answer, = output.outputs
        self.assertIsInstance(answer, CompletionOutput)
        self.assertEqual((answer.index, answer.text, answer.token_ids), (0, HELLO, HELLO_IDS))
        self.assertEqual((answer.finish_reason, answer.stop_reason), ('stop', None))
        self.assertEqual((answer.cumulative_logprob, answer.logprobs), (None, None))

    def test_an_output_has_nano_vllms_keys(self):
        output, = self.llm.generate(['Hi'])
        self.assertEqual((output['text'], output['token_ids']), (HELLO, HELLO_IDS))
        with self.assertRaisesRegex(KeyError, 'token_ids'):
            output['logits']

    def test_prompts_may_have_any_of_the_shapes(self):
        self.assertEqual(self.texts([39, 72]), [HELLO])
        self.assertEqual(self.texts({'prompt': 'Hi'}), [HELLO])
        mixed = ['Hi', [39, 72], {'prompt_token_ids': (39, 72)}, {'prompt': 'Hi'}]
        self.assertEqual(self.texts(mixed), [HELLO] * 4)
        self.assertEqual(self.texts(None, prompt_token_ids=[[39, 72], [39]]), [HELLO] * 2)
        self.assertEqual(self.texts([]), [])

    def test_outputs_come_in_the_order_of_the_prompts(self):
        params = [SamplingParams(max_tokens=1 + i * 37 % 50) for i in range(100)]
        lengths = [len(output['token_ids']) for output in self.llm.generate(['<go on>'] * 100, params, use_tqdm=False)]
        self.assertEqual(lengths, [each.max_tokens for each in params])

    def test_n_answers(self):
        output, = self.llm.generate('Hi', SamplingParams(n=3))
        self.assertEqual([(answer.index, answer.text) for answer in output.outputs], [(i, HELLO) for i in range(3)])

    def test_stops(self):
        answer = self.llm.generate('Hi', SamplingParams(stop=' friend'))[0].outputs[0]
        self.assertEqual((answer.text, answer.finish_reason, answer.stop_reason), ('Hello there', 'stop', ' friend'))
        params = SamplingParams(stop=[' friend'], include_stop_str_in_output=True)
        self.assertEqual(self.texts('Hi', params), ['Hello there friend'])
        answer = self.llm.generate('Hi', SamplingParams(stop_token_ids=[HELLO_IDS[1]]))[0].outputs[0]
        self.assertEqual((answer.token_ids, answer.stop_reason), (HELLO_IDS[:2], HELLO_IDS[1]))
        self.assertEqual(len(self.llm.generate('Hi', SamplingParams(ignore_eos=True, max_tokens=9))[0]['token_ids']), 9)

    def test_an_answer_ends_where_the_context_does(self):
        room = 300
        with LLM(MODEL, max_model_len=room, **KEYWORDS) as llm:
            self.assertEqual(llm.max_model_len, room)
            for params in (SamplingParams(max_tokens=None), SamplingParams(max_tokens=10 ** 6)):
                for output in llm.generate(['Hi ' * 30 + '<go on>', [707] * (room - 7)], params):
                    self.assertEqual(len(output.prompt_token_ids) + len(output['token_ids']), room)
                    self.assertEqual(output.outputs[0].finish_reason, 'length')
            for prompt in ('Hi<go on>', [39, 72, 707]):
                output, = llm.generate(prompt, SamplingParams(truncate_prompt_tokens=1, max_tokens=None))
                self.assertEqual((output.prompt_token_ids, len(output['token_ids'])), ([707], room - 1))
            with self.assertRaises(RequestError) as caught:
                llm.generate([707] * room)
            self.assertEqual(caught.exception.field, 'prompt')

    def test_log_probabilities_are_by_token_id(self):
        output, = self.llm.generate('Hi', SamplingParams(logprobs=2, prompt_logprobs=0))
        answer = output.outputs[0]
        self.assertEqual(len(answer.logprobs), 4)
        first = answer.logprobs[0]
        self.assertEqual(len(first), 2)
        self.assertEqual((first[720].rank, first[720].decoded_token), (1, 'Hello'))
        self.assertAlmostEqual(answer.cumulative_logprob, sum(row[token].logprob for row, token in
                                                              zip(answer.logprobs, answer.token_ids)))
        self.assertIsNone(output.prompt_logprobs[0])
        self.assertEqual(output.prompt_logprobs[1][72].decoded_token, 'i')

    def test_tokens_can_be_forbidden_and_text_left_out(self):
        self.assertNotEqual(self.texts('Hi', SamplingParams(logit_bias={720: -100}, temperature=0)), [HELLO])
        self.assertNotEqual(self.texts('Hi', SamplingParams(bad_words=['Hello'], temperature=0)), [HELLO])
        allowed = SamplingParams(allowed_token_ids=[HELLO_IDS[2]], max_tokens=2)
        self.assertEqual(self.llm.generate('Hi', allowed)[0]['token_ids'], [HELLO_IDS[2]] * 2)
        output, = self.llm.generate('Hi', SamplingParams(detokenize=False))
        self.assertEqual((output['text'], output['token_ids']), ('', HELLO_IDS))

    def test_a_conversation(self):
        question = [{'role': 'user', 'content': '<reason>'}]
        output, = self.llm.chat(question, SamplingParams(max_tokens=None))
        self.assertEqual(output.prompt, '<|im_start|>user\n<reason>')
        self.assertTrue(output['text'].startswith('<think>\nTwo and two'))
        self.assertEqual(len(self.llm.chat([question] * 3)), 3)

    def test_a_stream_has_everything_so_far(self):
        outputs = list(self.llm.stream('<go on>', SamplingParams(max_tokens=1000)))
        self.assertGreater(len(outputs), 1)
        for before, after in zip(outputs, outputs[1:]):
            self.assertTrue(after['text'].startswith(before['text']))
        self.assertEqual([output.finished for output in outputs], [False] * (len(outputs) - 1) + [True])
        self.assertEqual((len(outputs[-1]['token_ids']), outputs[-1].outputs[0].finish_reason), (1000, 'length'))

    def test_several_streams_in_pieces(self):
        params = SamplingParams(max_tokens=50, output_kind=1, n=2)
        texts = {}
        for output in self.llm.stream(['<go on>', 'Hi'], params):
            for answer in output.outputs:
                key = output.request_id, answer.index
                texts[key] = texts.get(key, '') + answer.text
        self.assertEqual(sorted(texts.values()), [' la' * 50] * 2 + [HELLO] * 2)

    def test_a_stream_may_be_read_slowly(self):
        stream = self.llm.stream(['<go on>'] * 2, SamplingParams(max_tokens=4000, output_kind=1))
        texts = {}
        for output in stream:
            if not texts:
                time.sleep(1)
            texts[output.request_id] = texts.get(output.request_id, '') + output['text']
        self.assertEqual(list(texts.values()), [' la' * 4000] * 2)

    def test_a_stream_can_be_left(self):
        for _ in self.llm.stream('<go on>', SamplingParams(max_tokens=4000)):
            break
        self.assertEqual(self.texts('Hi'), [HELLO])
        self.assertEqual(len(list(self.llm.stream_chat([{'role': 'user', 'content': 'Hi'}])).pop()['token_ids']), 4)

    def test_the_tokenizer(self):
        tokenizer = self.llm.get_tokenizer()
        self.assertEqual(tokenizer.encode('Hi'), [39, 72])
        self.assertEqual(tokenizer.decode([39, 72]), 'Hi')
        text = tokenizer.apply_chat_template([{'role': 'user', 'content': 'Hi'}], tokenize=False)
        self.assertEqual(text, '<|im_start|>user\nHi')

    def test_errors_name_the_field_and_the_prompt(self):
        error = self.refusal(['Hi', [10 ** 6]])
        self.assertEqual(error.index, 1)
        self.assertIn('1000000', str(error))
        self.assertEqual(self.refusal(params=SamplingParams(stop_token_ids=[10 ** 6])).field, 'stop_token_ids')
        self.assertEqual(self.refusal(params=SamplingParams(min_tokens=9, max_tokens=3)).field, 'min_tokens')
        self.assertEqual(self.refusal(['Hi'], [SamplingParams()] * 2).field, 'sampling_params')
        self.assertEqual(self.refusal([{'multi_modal_data': 1}]).field, 'multi_modal_data')
        self.assertEqual(self.refusal([None]).field, 'prompt')
        self.assertEqual(self.refusal(lora_request='x').field, 'lora_request')
        self.assertEqual(self.texts('Hi'), [HELLO])  # it goes on

    def test_methods_that_are_not_there_say_why(self):
        with self.assertRaisesRegex(AttributeError, 'embeddings'):
            self.llm.embed(['Hi'])
        with self.assertRaisesRegex(AttributeError, 'stream'):
            self.llm.step()


class ParamsTest(unittest.TestCase):
    def test_every_field_is_told_to_the_program_or_seen_to_here(self):
        values = {'stop': ['x'], 'stop_token_ids': [1], 'seed': 5, 'logprobs': 1, 'prompt_logprobs': 1,
                  'bad_words': ['x'], 'truncate_prompt_tokens': 3, 'logit_bias': {1: 1}, 'allowed_token_ids': [1]}
        body = SamplingParams(**values).to_json()
        own = {'detokenize', 'spaces_between_special_tokens', 'output_kind'}
        self.assertEqual(set(body), set(DEFAULTS) - own)

    def test_fields_that_cannot_be_honoured_are_refused_by_name(self):
        for name, (harmless, _) in REFUSED.items():
            with self.subTest(name), self.assertRaises(RequestError) as caught:
                SamplingParams(**{name: object()})
            self.assertEqual(caught.exception.field, name)
            SamplingParams(**{name: harmless})
        for name, value in {'temperature': -1, 'top_p': 0, 'n': 0, 'max_tokens': 0, 'logprobs': -1, 'min_p': 2,
                            'presence_penalty': 3, 'repetition_penalty': 0, 'max_token': 4, 'top_k': 1.5}.items():
            with self.subTest(name), self.assertRaises(RequestError) as caught:
                SamplingParams(**{name: value})
            self.assertEqual(caught.exception.field, name)
        with self.assertRaisesRegex(RequestError, 'did you mean max_tokens'):
            SamplingParams(max_token=4)

    def test_they_can_be_changed_and_copied(self):
        params = SamplingParams(temperature=0.5)
        params.max_tokens = 3
        self.assertEqual(params.clone(), params)
        self.assertEqual(repr(params), 'SamplingParams(temperature=0.5, max_tokens=3)')


class RandomTest(unittest.TestCase):
    def sample(self, **keywords):
        params = SamplingParams(max_tokens=8, ignore_eos=True, n=2)
        with LLM(MODEL, load_format='dummy', **KEYWORDS, **keywords) as llm:
            return [answer.token_ids for output in llm.generate(['Hi'] * 3, params) for answer in output.outputs]

    def test_the_same_run_gives_the_same_tokens(self):
        tokens = self.sample()
        self.assertEqual(self.sample(), tokens)
        self.assertEqual(len(set(map(tuple, tokens))), 6)
        seeded = self.sample(seed=1)
        self.assertNotEqual(seeded, tokens)
        self.assertEqual(self.sample(config={'seed': 1}), seeded)


class StartTest(unittest.TestCase):
    def test_what_cannot_be_started_is_an_error_with_the_option(self):
        for keywords, option in (({'model': '/nowhere'}, 'model'), ({'max_model_len': 10 ** 8}, 'max_model_len'),
                                 ({'dtype': 'int3'}, 'dtype')):
            with self.subTest(option), self.assertRaises(OptionError) as caught:
                LLM(**{'model': MODEL, **KEYWORDS, **keywords})
            self.assertEqual(caught.exception.option, option)


if __name__ == '__main__':
    unittest_report.main('__main__')
