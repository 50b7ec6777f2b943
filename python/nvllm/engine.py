"""Engine: what LLM and AsyncLLM have in common: the program, requests to it, and its tokenizer."""

import itertools
import weakref

from .engine_process import EngineProcess
from .errors import EngineDeadError, RequestError
from .generation import Generation, check_open, failure, mixed_seed
from .http import encode_request, exchange
from .options import arguments_of, rename

REFUSED_METHODS = {
    'encode': 'nvllm generates text and computes no hidden states',
    'embed': 'nvllm generates text and computes no embeddings',
    'classify': 'nvllm generates text and does not classify',
    'reward': 'nvllm generates text and computes no rewards',
    'score': 'nvllm generates text and computes no scores',
    'beam_search': 'beam search is not supported; ask for n answers',
    'sleep': 'an engine cannot sleep; end it with shutdown(): it starts in less than a second',
    'wake_up': 'an engine cannot sleep; make another LLM',
    'collective_rpc': 'there is no Python in the workers',
    'apply_model': 'there is no Python in the workers',
    'add_request': 'pass all prompts to generate(), or iterate over stream(); AsyncLLM takes requests at any time',
    'step': 'the engine runs by itself; iterate over stream(), or use AsyncLLM',
    'is_finished': 'the engine runs by itself; iterate over stream(), or use AsyncLLM',
    'start_profile': 'pass profile="trace.json" to LLM()',
    'stop_profile': 'pass profile="trace.json" to LLM()',
}


class Tokenizer:
    """What LLM.get_tokenizer() returns: the functions of Hugging Face's tokenizers that prompts need."""

    def __init__(self, ask):
        self.ask = ask

    def encode(self, text, add_special_tokens=True):
        return self.ask('/tokenize', {'prompt': text, 'add_special_tokens': add_special_tokens})['tokens']

    def decode(self, token_ids):
        return self.ask('/detokenize', {'tokens': list(token_ids)})['prompt']

    def apply_chat_template(self, conversation, tokenize=True, add_generation_prompt=False, tools=None,
                            **chat_template_kwargs):
        fields = {'messages': list(conversation), 'add_generation_prompt': add_generation_prompt}
        if tools:
            fields['tools'] = tools
        if chat_template_kwargs:
            fields['chat_template_kwargs'] = chat_template_kwargs
        token_ids = self.ask('/tokenize', fields)['tokens']
        return token_ids if tokenize else self.decode(token_ids)


class Engine:
    """with LLM(...) as llm: ...; without `with`, the engine ends when the object is dropped, or with Python."""

    def __init__(self, model=None, **keywords):
        self.process = EngineProcess(arguments_of(model, keywords))
        self.finalizer = weakref.finalize(self, self.process.end)
        self.process.await_ready(self.is_healthy)
        self.max_model_len = self.ask('/v1/models')['data'][0]['max_model_len']
        given = rename(keywords)
        self.seed = given.get('seed') or 0
        # More than can run at the same time, so that the next requests are already queued in the
        # engine.
        self.wanted_connections = max(64, 2 * int(given.get('max_num_seqs') or 256))
        self.numbers = itertools.count()

    def is_healthy(self):
        request = encode_request('GET', '/health')
        return all(response.status == 200 for _, response, _ in exchange(self.process.socket_path, [(0, request)], 1))

    def ask(self, path, body=None):
        """One request and its response, as an object."""
        check_open(self.process)
        request = encode_request('GET' if body is None else 'POST', path, body)
        for _, response, _ in exchange(self.process.socket_path, [(0, request)], 1):
            if response.status != 200 or not response.done:
                raise failure(self.process, response)
            return response.json()
        raise EngineDeadError('the engine has ended')

    def get_tokenizer(self):
        return Tokenizer(self.ask)

    def shutdown(self):
        """Ends the engine; requests that are under way fail."""
        self.finalizer()

    exit = shutdown  # nano-vllm's name for it

    def new_generation(self, prompt, params, request_id=None, index=None):
        number = next(self.numbers)
        name = str(number) if request_id is None else str(request_id)
        return Generation(name, prompt, params, mixed_seed(self.seed, number), index)

    def __getattr__(self, name):
        if name in REFUSED_METHODS:
            raise AttributeError(f'{type(self).__name__}.{name}: {REFUSED_METHODS[name]}')
        raise AttributeError(f'{type(self).__name__} has no attribute {name}')


def check_unused(values):
    """Arguments of vLLM's methods that ask for what is not there."""
    reasons = {
        'lora_request': 'LoRA is not supported; merge the adapter into the weights',
        'priority': 'requests are served in the order of their arrival; leave it out',
        'chat_template': 'a call cannot bring a template; pass chat_template=FILE to LLM()',
        'mm_processor_kwargs': 'only text is supported; leave it out',
        'tokenization_kwargs': 'pass token ids, or SamplingParams(truncate_prompt_tokens=...)',
    }
    for name, value in values.items():
        if value in (None, 0, {}, []) or (isinstance(value, (list, tuple)) and not any(value)):
            continue
        raise RequestError(f'{name}={value!r:.60}: {reasons[name]}', name)


def conversation_fields(add_generation_prompt, continue_final_message, tools, chat_template_kwargs):
    """The fields of /tokenize that LLM.chat() and AsyncLLM.chat() share."""
    fields = {'add_generation_prompt': add_generation_prompt and not continue_final_message}
    if continue_final_message:
        fields['continue_final_message'] = True
    if tools:
        fields['tools'] = tools
    if chat_template_kwargs:
        fields['chat_template_kwargs'] = chat_template_kwargs
    return fields
