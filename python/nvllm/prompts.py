"""Prompts in the shapes that vLLM and nano-vllm take."""

import operator

from .errors import RequestError
from .sampling_params import SamplingParams

SHAPES = 'a text, a list of token ids, or {"prompt": text} or {"prompt_token_ids": ids}'


class Prompt:
    """text and token_ids: one of them, or both. conversation: the fields of /tokenize that give the token ids."""

    __slots__ = ('text', 'token_ids', 'conversation')

    def __init__(self, text=None, token_ids=None, conversation=None):
        self.text = text
        self.token_ids = token_ids
        self.conversation = conversation


def is_number(value):
    return hasattr(value, '__index__')


def read_ids(value, index):
    try:
        return [operator.index(each) for each in value]
    except TypeError:
        raise RequestError(f'{value!r:.60}: must be {SHAPES}', 'prompt', index) from None


def read_prompt(value, index):
    if isinstance(value, str):
        return Prompt(text=value)
    if isinstance(value, dict):
        return read_dictionary(value, index)
    if value is None or not hasattr(value, '__iter__') or isinstance(value, bytes):
        raise RequestError(f'{value!r:.60}: must be {SHAPES}', 'prompt', index)
    return Prompt(token_ids=read_ids(value, index))


def read_dictionary(value, index):
    for name, item in value.items():
        if item is None or name in ('prompt', 'prompt_token_ids'):
            continue
        raise RequestError(f'{name}: a prompt may have "prompt" and "prompt_token_ids"; only text is supported',
                           name, index)
    text, ids = value.get('prompt'), value.get('prompt_token_ids')
    if ids is None:
        return read_prompt(text, index)
    if text is not None and not isinstance(text, str):
        raise RequestError(f'{text!r:.60}: must be a text', 'prompt', index)
    return Prompt(text=text, token_ids=read_ids(ids, index))


def read_prompts(prompts):
    """A list of Prompts, of one prompt or several."""
    one = isinstance(prompts, (str, dict))
    if not one:
        prompts = list(prompts)
        one = bool(prompts) and is_number(prompts[0])
    if one:
        return [read_prompt(prompts, None)]
    return [read_prompt(each, index) for index, each in enumerate(prompts)]


def read_conversations(messages, fields):
    """A list of Prompts, of one conversation or a list of some. fields: more of /tokenize."""
    messages = list(messages)
    one = not messages or isinstance(messages[0], dict)
    return [Prompt(conversation=dict(fields, messages=list(each))) for each in ([messages] if one else messages)]


def read_params(sampling_params, count):
    """One SamplingParams (or None) for each prompt."""
    if sampling_params is None or isinstance(sampling_params, SamplingParams):
        return [sampling_params] * count
    params = list(sampling_params)
    if len(params) != count:
        raise RequestError(f'{len(params)} sampling_params for {count} prompts; pass one, or one for each',
                           'sampling_params')
    for index, each in enumerate(params):
        if each is not None and not isinstance(each, SamplingParams):
            raise RequestError(f'{each!r:.60}: must be a SamplingParams', 'sampling_params', index)
    return params
