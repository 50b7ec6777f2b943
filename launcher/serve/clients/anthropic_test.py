#!/usr/bin/env python3
"""The server as Anthropic's own client sees it, unmodified: sync and async, whole and streamed."""

import asyncio
import sys
import unittest

sys.path.insert(0, '.')  # tests run in the root of Bazel's runfiles
from launcher.serve.clients.served import MODEL, PATIENCE, Server
from testing import unittest_report

import anthropic

WEATHER = {'name': 'get_weather', 'description': 'The weather of a city.', 'input_schema': {
    'type': 'object', 'properties': {'city': {'type': 'string'}, 'days': {'type': 'integer'}}}}
HELLO = 'Hello there friend.'


def user(content):
    return [{'role': 'user', 'content': content}]


class AnthropicTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.client = anthropic.Anthropic(base_url=cls.server.url, api_key='none', timeout=PATIENCE, max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.stop()

    def ask(self, content, **more):
        return self.client.messages.create(**{'model': MODEL, 'max_tokens': 100, 'messages': user(content), **more})

    def stream(self, content, **more):
        return self.client.messages.stream(**{'model': MODEL, 'max_tokens': 100, 'messages': user(content), **more})

    def test_a_message_is_answered(self):
        message = self.ask('Hi', system='Be brief.')
        self.assertEqual([(block.type, block.text) for block in message.content], [('text', HELLO)])
        self.assertEqual((message.role, message.stop_reason, message.stop_sequence), ('assistant', 'end_turn', None))
        self.assertEqual(message.usage.output_tokens, 4)

    def test_a_message_is_streamed(self):
        with self.stream('Hi') as stream:
            self.assertEqual(''.join(stream.text_stream), HELLO)
            message = stream.get_final_message()
        self.assertEqual(message.content[0].text, HELLO)
        self.assertEqual((message.stop_reason, message.usage.output_tokens), ('end_turn', 4))

    def test_the_events_of_a_stream_are_anthropics(self):
        kinds = [event.type for event in self.ask('Hi', stream=True)]
        self.assertEqual(kinds, ['message_start', 'content_block_start', *['content_block_delta'] * 3,
                                 'content_block_stop', 'message_delta', 'message_stop'])

    def test_max_tokens_and_stop_sequences_end_an_answer(self):
        self.assertEqual(self.ask('<go on>', max_tokens=5).stop_reason, 'max_tokens')
        message = self.ask('Hi', stop_sequences=[' friend'])
        self.assertEqual((message.content[0].text, message.stop_reason, message.stop_sequence),
                         ('Hello there', 'stop_sequence', ' friend'))

    def test_thinking_is_a_block_of_its_own(self):
        thinking = {'type': 'enabled', 'budget_tokens': 1024}
        message = self.ask('<reason>', thinking=thinking, max_tokens=2000)
        self.assertEqual([block.type for block in message.content], ['thinking', 'text'])
        self.assertEqual(message.content[0].thinking.strip(), 'Two and two are four.')
        self.assertEqual(message.content[1].text.strip(), 'It is 4.')
        with self.stream('<reason>', thinking=thinking, max_tokens=2000) as stream:
            streamed = stream.get_final_message()
        self.assertEqual([block.to_dict() for block in streamed.content], [block.to_dict() for block in message.content])

    def test_a_tool_is_used_and_its_result_answered(self):
        message = self.ask('<call a tool>', tools=[WEATHER])
        self.assertEqual(message.stop_reason, 'tool_use')
        call = message.content[0]
        self.assertEqual((call.type, call.name, call.input), ('tool_use', 'get_weather', {'city': 'Paris', 'days': 2}))
        result = {'type': 'tool_result', 'tool_use_id': call.id, 'content': 'sun'}
        messages = [*user('<call a tool>'), {'role': 'assistant', 'content': message.content}, *user([result])]
        self.assertEqual(self.ask('', messages=messages, tools=[WEATHER]).content[0].text, HELLO)

    def test_a_tool_use_is_streamed(self):
        with self.stream('<call a tool>', tools=[WEATHER]) as stream:
            call = stream.get_final_message().content[0]
        self.assertEqual((call.name, call.input), ('get_weather', {'city': 'Paris', 'days': 2}))

    def test_tokens_are_counted(self):
        counted = self.client.messages.count_tokens(model=MODEL, messages=user('Hi'), system='Be brief.')
        usage = self.ask('Hi', system='Be brief.').usage
        self.assertEqual(counted.input_tokens, usage.input_tokens + usage.cache_read_input_tokens)

    def test_a_bad_value_is_named(self):
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.ask('Hi', extra_body={'temperature': -1})
        self.assertEqual(caught.exception.body['error']['type'], 'invalid_request_error')
        self.assertIn('temperature', caught.exception.body['error']['message'])

    def test_another_model_is_not_found(self):
        with self.assertRaises(anthropic.NotFoundError) as caught:
            self.ask('Hi', model='other')
        self.assertEqual(caught.exception.body['error']['type'], 'not_found_error')

    def test_pictures_are_refused(self):
        source = {'type': 'base64', 'media_type': 'image/png', 'data': ''}
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.ask([{'type': 'image', 'source': source}])
        self.assertIn('image', caught.exception.body['error']['message'])

    def test_many_at_a_time(self):
        async def run():
            async with anthropic.AsyncAnthropic(base_url=self.server.url, api_key='none', timeout=PATIENCE) as client:
                calls = [client.messages.create(model=MODEL, max_tokens=i % 7 + 1, messages=user('<go on>'))
                         for i in range(30)]
                return [message.content[0].text for message in await asyncio.gather(*calls)]
        self.assertEqual(asyncio.run(run()), [' la' * (i % 7 + 1) for i in range(30)])


class KeyTest(unittest.TestCase):
    def test_a_key_is_needed_where_there_is_one(self):
        with Server('--api-key=secret') as server:
            arguments = {'model': MODEL, 'max_tokens': 5, 'messages': user('Hi')}
            client = anthropic.Anthropic(base_url=server.url, api_key='secret', timeout=PATIENCE, max_retries=0)
            self.assertEqual(client.messages.create(**arguments).content[0].text, HELLO)
            client = anthropic.Anthropic(base_url=server.url, api_key='other', timeout=PATIENCE, max_retries=0)
            with self.assertRaises(anthropic.AuthenticationError):
                client.messages.create(**arguments)


if __name__ == '__main__':
    unittest_report.main('__main__')
