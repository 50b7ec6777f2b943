"""LLM: a model, and answers to prompts, with their progress shown by tqdm where it is installed."""

from .engine import Engine, check_unused, conversation_fields
from .generation import check_open, failure
from .http import encode_request, exchange, exchange_ahead
from .prompts import read_conversations, read_params, read_prompts


class LLM(Engine):
    """LLM('Qwen/Qwen3-0.6B', tensor_parallel_size=2, max_model_len=8192): starts nvllm-launch with the model, and
    returns when it is ready. Keywords are those of vLLM and nano-vllm, and the options of nvllm-launch serve; each is
    honoured, or an OptionError names it. Methods may be called by several threads."""

    def generate(self, prompts=None, sampling_params=None, use_tqdm=True, *, prompt_token_ids=None, lora_request=None,
                 priority=None, tokenization_kwargs=None):
        """The answers to one prompt or a list of some, as RequestOutputs in the order of the prompts. A prompt is a
        text, a list of token ids, or a dictionary with "prompt" or "prompt_token_ids". sampling_params: one, or one
        for each prompt; None: the model's own defaults, and 16 tokens."""
        check_unused({'lora_request': lora_request, 'priority': priority, 'tokenization_kwargs': tokenization_kwargs})
        prompts = read_prompts(prompts if prompt_token_ids is None else prompt_token_ids)
        return self.run(prompts, sampling_params, use_tqdm)

    def chat(self, messages, sampling_params=None, use_tqdm=True, *, lora_request=None, chat_template=None,
             chat_template_content_format='auto', add_generation_prompt=True, continue_final_message=False, tools=None,
             chat_template_kwargs=None, mm_processor_kwargs=None):
        """The same for a conversation, a list of {"role": ..., "content": ...}, or a list of conversations."""
        check_unused({'lora_request': lora_request, 'chat_template': chat_template,
                      'mm_processor_kwargs': mm_processor_kwargs})
        fields = conversation_fields(add_generation_prompt, continue_final_message, tools, chat_template_kwargs)
        return self.run(read_conversations(messages, fields), sampling_params, use_tqdm)

    def stream(self, prompts, sampling_params=None):
        """Yields a RequestOutput whenever there is something new of an answer; `finished` is true for the last one of
        a prompt. Which prompt it is of, the order of request_ids tells. Leaving the loop ends the requests."""
        return self.run_streams(read_prompts(prompts), sampling_params)

    def stream_chat(self, messages, sampling_params=None, *, add_generation_prompt=True, continue_final_message=False,
                    tools=None, chat_template_kwargs=None):
        """The same for conversations."""
        fields = conversation_fields(add_generation_prompt, continue_final_message, tools, chat_template_kwargs)
        return self.run_streams(read_conversations(messages, fields), sampling_params)

    def prepare(self, prompts, sampling_params):
        check_open(self.process)
        params = read_params(sampling_params, len(prompts))
        number = (lambda i: i) if len(prompts) > 1 else (lambda i: None)
        generations = [self.new_generation(prompt, each, index=number(i))
                       for i, (prompt, each) in enumerate(zip(prompts, params))]
        self.tokenize([each for each in generations if each.needs_token_ids(self.max_model_len)])
        return generations

    def tokenize(self, generations):
        """Finds the token ids of prompts that need them; and of conversations the text."""
        requests = ((each, each.tokenize_request()) for each in generations)
        for generation, response in self.responses(requests):
            generation.set_token_ids(response.json()['tokens'])
        conversations = [each for each in generations if each.prompt.conversation is not None]
        requests = ((each, encode_request('POST', '/detokenize', {'tokens': each.prompt.token_ids}))
                    for each in conversations)
        for generation, response in self.responses(requests):
            generation.prompt.text = response.json()['prompt']

    def responses(self, requests):
        """Yields each request's key, a Generation, with its response; raises an exception for an error."""
        for generation, response, _ in exchange(self.process.socket_path, requests, self.wanted_connections):
            if response.status != 200 or not response.done:
                raise failure(self.process, response, generation.index)
            yield generation, response

    def run(self, prompts, sampling_params, use_tqdm):
        generations = self.prepare(prompts, sampling_params)
        bar = progress(use_tqdm, len(generations))
        outputs = {}
        try:
            requests = ((each, each.request(self.max_model_len)) for each in generations)
            for generation, response in self.responses(requests):
                generation.add(response.json())
                output = outputs[generation] = generation.output(True)
                bar.update(output)
        finally:
            bar.close()
        return [outputs[each] for each in generations]

    def run_streams(self, prompts, sampling_params):
        generations = self.prepare(prompts, sampling_params)
        requests = ((each, each.request(self.max_model_len, stream=True)) for each in generations)
        results = exchange_ahead(self.process.socket_path, requests, self.wanted_connections)
        for generation, response, events, done, over in results:
            if response.status == 200:
                yield from generation.stream(self.process, events, done)
            if over and not (response.status == 200 and done):
                raise failure(self.process, response, generation.index)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.shutdown()


# --- Progress ---

class NoProgress:
    def update(self, output):
        pass

    def close(self):
        pass


class Progress:
    def __init__(self, bar):
        self.bar = bar
        self.tokens = 0
        self.started = None

    def update(self, output):
        self.tokens += sum(len(answer.token_ids) for answer in output.outputs)
        seconds = self.bar.format_dict.get('elapsed') or 0
        if seconds > 0:
            self.bar.set_postfix_str(f'{self.tokens / seconds:.0f} tokens/s', refresh=False)
        self.bar.update(1)

    def close(self):
        self.bar.close()


def progress(use_tqdm, count):
    """use_tqdm: True, False, or what makes a bar, as in vLLM."""
    if not use_tqdm or count == 0:
        return NoProgress()
    make = use_tqdm
    if not callable(use_tqdm):
        try:
            from tqdm.auto import tqdm as make
        except ImportError:
            return NoProgress()
    return Progress(make(total=count, desc='Processed prompts', dynamic_ncols=True))
