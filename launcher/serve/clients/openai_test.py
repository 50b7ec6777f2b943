#!/usr/bin/env python3
"""The server as OpenAI's own client sees it, unmodified: sync and async, whole and streamed."""

import asyncio
import sys
import time
import unittest

sys.path.insert(0, '.')  # tests run in the root of Bazel's runfiles
from launcher.serve.clients.served import MODEL, PATIENCE, Server
from testing import unittest_report

import openai

WEATHER = {'type': 'function', 'function': {'name': 'get_weather', 'description': 'The weather of a city.', 'parameters': {
    'type': 'object', 'properties': {'city': {'type': 'string'}, 'days': {'type': 'integer'}}, 'required': ['city']}}}
HELLO = 'Hello there friend.'


def user(text):
    return [{'role': 'user', 'content': text}]


class OpenAiTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.client = openai.OpenAI(base_url=cls.server.url + '/v1', api_key='none', timeout=PATIENCE, max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.stop()

    def chat(self, text, **more):
        return self.client.chat.completions.create(model=MODEL, messages=user(text), **more)

    # --- Chats ---

    def test_models_are_listed(self):
        models = self.client.models.list().data
        self.assertEqual([model.id for model in models], [MODEL])
        self.assertEqual(models[0].max_model_len, 4096)
        self.assertEqual(self.client.models.retrieve(MODEL).id, MODEL)
        with self.assertRaisesRegex(openai.NotFoundError, f'The model "other" does not exist; this server has {MODEL}'):
            self.client.models.retrieve('other')

    def test_a_chat_is_answered(self):
        answer = self.chat('Hi')
        self.assertEqual(answer.choices[0].message.content, HELLO)
        self.assertEqual(answer.choices[0].message.role, 'assistant')
        self.assertEqual(answer.choices[0].finish_reason, 'stop')
        self.assertEqual(answer.usage.completion_tokens, 4)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + 4)

    def test_a_chat_is_streamed_with_its_usage(self):
        chunks = list(self.chat('Hi', stream=True, stream_options={'include_usage': True}))
        self.assertEqual(chunks[0].choices[0].delta.role, 'assistant')
        self.assertEqual(''.join(c.choices[0].delta.content or '' for c in chunks if c.choices), HELLO)
        self.assertEqual([c.choices[0].finish_reason for c in chunks if c.choices][-1], 'stop')
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, 4)

    def test_the_streaming_helper_puts_an_answer_together(self):
        with self.client.chat.completions.stream(model=MODEL, messages=user('Hi')) as stream:
            final = stream.get_final_completion()
        self.assertEqual(final.choices[0].message.content, HELLO)

    def test_content_may_come_in_parts(self):
        parts = [{'type': 'text', 'text': 'some'}, {'type': 'text', 'text': '<reason>'}]
        answer = self.client.chat.completions.create(model=MODEL, messages=[{'role': 'user', 'content': parts}])
        self.assertEqual(answer.choices[0].message.content.strip(), 'It is 4.')

    def test_several_answers(self):
        answer = self.chat('Hi', n=3)
        self.assertEqual([(c.index, c.message.content) for c in answer.choices], [(i, HELLO) for i in range(3)])

    def test_log_probabilities(self):
        content = self.chat('Hi', logprobs=True, top_logprobs=2).choices[0].logprobs.content
        self.assertEqual([token.token for token in content[:3]], ['Hello', ' there', ' friend.'])
        self.assertAlmostEqual(content[0].logprob, 0, places=3)
        self.assertEqual([len(token.top_logprobs) for token in content[:3]], [2, 2, 2])
        self.assertEqual(bytes(content[0].bytes), b'Hello')

    def test_max_tokens_ends_an_answer(self):
        for limit in ({'max_tokens': 5}, {'max_completion_tokens': 5}):
            choice = self.chat('<go on>', **limit).choices[0]
            self.assertEqual((choice.message.content, choice.finish_reason), (' la' * 5, 'length'))

    def test_a_stop_string_ends_an_answer(self):
        choice = self.chat('Hi', stop=[' friend']).choices[0]
        self.assertEqual((choice.message.content, choice.finish_reason), ('Hello there', 'stop'))

    def test_vllms_own_fields_pass_through_extra_body(self):
        answer = self.chat('Hi', extra_body={'top_k': 1, 'min_tokens': 1, 'return_token_ids': True})
        self.assertEqual(len(answer.choices[0].token_ids), 4)
        self.assertEqual(len(answer.prompt_token_ids), answer.usage.prompt_tokens)

    def test_reasoning_is_apart_from_the_answer(self):
        message = self.chat('<reason>').choices[0].message
        self.assertEqual(message.content.strip(), 'It is 4.')
        self.assertEqual(message.reasoning.strip(), 'Two and two are four.')
        deltas = [c.choices[0].delta for c in self.chat('<reason>', stream=True) if c.choices]
        self.assertEqual(''.join(getattr(d, 'reasoning', None) or '' for d in deltas).strip(), 'Two and two are four.')
        self.assertEqual(''.join(d.content or '' for d in deltas).strip(), 'It is 4.')

    # --- Tools ---

    def test_a_tool_is_called_and_its_result_answered(self):
        choice = self.chat('<call a tool>', tools=[WEATHER]).choices[0]
        self.assertEqual(choice.finish_reason, 'tool_calls')
        call = choice.message.tool_calls[0]
        self.assertEqual(call.function.name, 'get_weather')
        self.assertEqual(call.function.arguments.replace(' ', ''), '{"city":"Paris","days":2}')
        messages = [*user('<call a tool>'), choice.message, {'role': 'tool', 'tool_call_id': call.id, 'content': 'sun'}]
        answer = self.client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER])
        self.assertEqual(answer.choices[0].message.content, HELLO)

    def test_a_tool_call_is_streamed(self):
        with self.client.chat.completions.stream(model=MODEL, messages=user('<call a tool>'), tools=[WEATHER]) as stream:
            choice = stream.get_final_completion().choices[0]
        self.assertEqual(choice.finish_reason, 'tool_calls')
        self.assertEqual(choice.message.tool_calls[0].function.name, 'get_weather')
        self.assertEqual(choice.message.tool_calls[0].function.arguments.replace(' ', ''), '{"city":"Paris","days":2}')

    def test_without_tool_choice_a_call_is_text(self):
        choice = self.chat('<call a tool>', tools=[WEATHER], tool_choice='none').choices[0]
        self.assertIn('<tool_call>', choice.message.content)
        self.assertEqual(choice.finish_reason, 'stop')

    # --- Completions ---

    def complete(self, prompt, **more):
        return self.client.completions.create(model=MODEL, prompt=prompt, **more)

    def test_prompts_are_texts_or_ids_one_or_several(self):
        ids = self.server.post('/tokenize', {'prompt': 'Hi'})['tokens']
        for prompt, count in ('Hi', 1), (['Hi', 'Ho'], 2), (ids, 1), ([ids, ids], 2):
            with self.subTest(prompt=prompt):
                self.assertEqual([c.text for c in self.complete(prompt).choices], [HELLO] * count)

    def test_a_completion_is_streamed(self):
        chunks = list(self.complete('<go on>', max_tokens=7, stream=True))
        self.assertEqual(''.join(c.choices[0].text for c in chunks), ' la' * 7)
        self.assertEqual(chunks[-1].choices[0].finish_reason, 'length')

    def test_an_echo_with_log_probabilities(self):
        choice = self.complete('Hi', echo=True, logprobs=1, max_tokens=2).choices[0]
        self.assertEqual(choice.text, 'HiHello there')
        self.assertEqual(''.join(choice.logprobs.tokens), 'HiHello there')
        self.assertIsNone(choice.logprobs.token_logprobs[0])
        self.assertEqual(choice.logprobs.text_offset[-2:], [2, 7])

    # --- Responses ---

    def test_a_response(self):
        response = self.client.responses.create(model=MODEL, input='Hi', instructions='Be brief.')
        self.assertEqual((response.output_text, response.status), (HELLO, 'completed'))
        self.assertEqual(response.usage.output_tokens, 4)

    def test_a_response_is_streamed(self):
        with self.client.responses.stream(model=MODEL, input='<reason>') as stream:
            kinds = [event.type for event in stream]
            response = stream.get_final_response()
        self.assertEqual(kinds[0], 'response.created')
        self.assertEqual(kinds[-1], 'response.completed')
        self.assertEqual([item.type for item in response.output], ['reasoning', 'message'])
        self.assertEqual(response.output_text.strip(), 'It is 4.')

    def test_a_response_calls_a_function(self):
        tool = {'type': 'function', 'strict': False, **WEATHER['function']}
        with self.client.responses.stream(model=MODEL, input='<call a tool>', tools=[tool]) as stream:
            response = stream.get_final_response()
        call = response.output[0]
        self.assertEqual((call.type, call.name), ('function_call', 'get_weather'))
        result = {'type': 'function_call_output', 'call_id': call.call_id, 'output': 'sun'}
        items = [*user('<call a tool>'), call.model_dump(exclude_none=True, exclude={'parsed_arguments'}), result]
        self.assertEqual(self.client.responses.create(model=MODEL, input=items, tools=[tool]).output_text, HELLO)

    # --- Errors ---

    def test_a_bad_value_is_named(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat('Hi', temperature=-1)
        self.assertEqual(caught.exception.param, 'temperature')
        self.assertIn('temperature', caught.exception.message)

    def test_a_field_that_nobody_knows_is_named(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat('Hi', extra_body={'max_tokns': 3})
        self.assertIn("did you mean 'max_tokens'", caught.exception.message)

    def test_another_model_is_not_found(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model='other', messages=user('Hi'))

    def test_a_prompt_that_is_too_long_is_refused(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete('a b c ' * 5000)
        self.assertIn('max_model_len', caught.exception.message)

    def test_embeddings_are_refused_by_their_name(self):
        with self.assertRaises(openai.APIStatusError) as caught:
            self.client.embeddings.create(model=MODEL, input='Hi')
        self.assertIn('embeddings', caught.exception.message)

    # --- Many at a time, and clients that leave ---

    def test_many_at_a_time(self):
        async def run():
            async with openai.AsyncOpenAI(base_url=self.server.url + '/v1', api_key='none', timeout=PATIENCE) as client:
                return await asyncio.gather(*(self.one_of_many(client, i) for i in range(40)))
        self.assertEqual(asyncio.run(run()), [' la' * (i % 7 + 1) for i in range(40)])

    @staticmethod
    async def one_of_many(client, i):
        arguments = {'model': MODEL, 'messages': user('<go on>'), 'max_tokens': i % 7 + 1}
        if i % 2:
            return (await client.chat.completions.create(**arguments)).choices[0].message.content
        text = ''
        async for chunk in await client.chat.completions.create(stream=True, **arguments):
            text += chunk.choices[0].delta.content or ''
        return text

    def test_a_client_that_leaves_frees_its_request(self):
        stream = self.chat('<go on>', stream=True, max_tokens=4000)
        next(iter(stream))
        stream.close()
        self.await_idle()

    def await_idle(self):
        name = 'vllm:num_requests_running{'
        for _ in range(200):
            time.sleep(0.02)
            lines = self.server.get('/metrics')[0].splitlines()
            if [line.split()[-1] for line in lines if line.startswith(name)] == ['0']:
                return
        self.fail('the request goes on')


class LimitsTest(unittest.TestCase):
    def test_a_key_is_needed_where_there_is_one(self):
        with Server('--api-key=secret') as server:
            for key, good in ('secret', True), ('other', False):
                client = openai.OpenAI(base_url=server.url + '/v1', api_key=key, timeout=PATIENCE, max_retries=0)
                if good:
                    self.assertEqual(len(client.models.list().data), 1)
                else:
                    self.assertRaises(openai.AuthenticationError, client.models.list)

    def test_a_full_queue_is_503_and_the_client_tries_again(self):
        async def run(server, retries):
            async with openai.AsyncOpenAI(base_url=server.url + '/v1', api_key='none', timeout=PATIENCE, max_retries=retries) as client:
                calls = [client.chat.completions.create(model=MODEL, messages=user('<go on>'), max_tokens=300)
                         for _ in range(6)]
                return await asyncio.gather(*calls, return_exceptions=True)

        with Server('--max-num-seqs=1', '--max-num-queued-reqs=1') as server:
            refused = [each for each in asyncio.run(run(server, 0)) if isinstance(each, openai.InternalServerError)]
            self.assertGreater(len(refused), 0)
            self.assertEqual({each.status_code for each in refused}, {503})
            self.assertIn('retry-after', refused[0].response.headers)
            answers = asyncio.run(run(server, 30))
            self.assertEqual([each.usage.completion_tokens for each in answers], [300] * 6)


if __name__ == '__main__':
    unittest_report.main('__main__')
