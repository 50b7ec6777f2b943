"""AsyncLLM: requests that come and go at any time, for programs with asyncio."""

import asyncio

from .engine import Engine, check_unused, conversation_fields
from .errors import RequestError
from .generation import check_open, failure
from .http import Response, encode_request
from .prompts import read_conversations, read_prompts
from .sampling_params import RequestOutputKind

READ_BYTES = 1 << 18
# A loop that is slow to use outputs must not stop the reading: the program drops the requests of
# clients that do not read.
BUFFER_BYTES = 1 << 30


class AsyncLLM(Engine):
    """async for output in AsyncLLM('Qwen/Qwen3-0.6B').generate('Once', SamplingParams()): ...

    The constructor starts the program and waits for it, as LLM() does. SamplingParams.output_kind says whether outputs
    have everything so far (CUMULATIVE, the default), what is new (DELTA), or come once (FINAL_ONLY)."""

    def __init__(self, model=None, **keywords):
        super().__init__(model, **keywords)
        self.writers = {}  # of the requests in flight

    def generate(self, prompt, sampling_params=None, request_id=None, *, lora_request=None, priority=None):
        """Yields RequestOutputs of one prompt. Leaving the loop, or cancelling its task, ends the request."""
        check_unused({'lora_request': lora_request, 'priority': priority})
        return self.run(read_prompts(prompt), sampling_params, request_id)

    stream = generate

    def chat(self, messages, sampling_params=None, request_id=None, *, add_generation_prompt=True,
             continue_final_message=False, tools=None, chat_template_kwargs=None):
        """The same for a conversation."""
        fields = conversation_fields(add_generation_prompt, continue_final_message, tools, chat_template_kwargs)
        return self.run(read_conversations(messages, fields), sampling_params, request_id)

    async def abort(self, request_id):
        """Ends a request: its loop gets a last output with the finish reason "abort"."""
        writer = self.writers.pop(str(request_id), None)
        if writer is not None:
            writer.close()

    async def run(self, prompts, sampling_params, request_id):
        check_open(self.process)
        if len(prompts) != 1:
            raise RequestError(f'{len(prompts)} prompts: pass one, and gather several calls', 'prompt')
        generation = self.new_generation(prompts[0], sampling_params, request_id)
        if generation.request_id in self.writers:
            raise RequestError(f'request_id={request_id!r}: a request with this id is under way', 'request_id')
        if generation.needs_token_ids(self.max_model_len):
            await self.tokenize(generation)
        whole = generation.kind == RequestOutputKind.FINAL_ONLY
        async for response, over in self.exchange(generation, generation.request(self.max_model_len, not whole)):
            if over and generation.request_id not in self.writers:
                yield self.aborted(generation)
                return
            if response.status == 200 and response.done and not response.streams:
                generation.add(response.json())
                yield generation.output(True)
            elif response.status == 200:
                for output in generation.stream(self.process, response.take_events(), response.done):
                    yield output
            if over and not (response.status == 200 and response.done):
                raise await asyncio.to_thread(failure, self.process, response)

    @staticmethod
    def aborted(generation):
        for answer in generation.answers:
            answer.finish_reason = answer.finish_reason or 'abort'
        return generation.output(True)

    async def tokenize(self, generation):
        generation.set_token_ids((await self.ask_async(generation, generation.tokenize_request()))['tokens'])
        if generation.prompt.conversation is not None:
            request = encode_request('POST', '/detokenize', {'tokens': generation.prompt.token_ids})
            generation.prompt.text = (await self.ask_async(generation, request))['prompt']

    async def ask_async(self, generation, request):
        async for response, over in self.exchange(generation, request):
            if over and response.status == 200 and response.done:
                return response.json()
            if over:
                raise await asyncio.to_thread(failure, self.process, response)
        return None

    async def exchange(self, generation, request):
        """Yields (Response, over) whenever the response has got something."""
        response = Response()
        try:
            reader, writer = await asyncio.open_unix_connection(self.process.socket_path, limit=BUFFER_BYTES)
        except OSError:
            self.writers[generation.request_id] = None
            yield response, True
            return
        self.writers[generation.request_id] = writer
        try:
            writer.write(request)
            while not response.done:
                data = await read_some(reader)
                response.feed(data)
                if response.done or not data:
                    yield response, True
                    return
                if response.events:
                    yield response, False
        finally:
            self.writers.pop(generation.request_id, None)
            writer.close()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await asyncio.to_thread(self.shutdown)


async def read_some(reader):
    """b'' when the connection is over, however it ended."""
    try:
        return await reader.read(READ_BYTES)
    except OSError:
        return b''
