"""SamplingParams: names, meanings and defaults are vLLM's. Each field is honoured, or refused with its name."""

import difflib
from enum import Enum

from .errors import RequestError


class RequestOutputKind(Enum):
    """What the outputs of a stream hold."""

    CUMULATIVE = 0  # everything so far
    DELTA = 1  # new output only
    FINAL_ONLY = 2  # one output, at the end


DEFAULTS = {
    'n': 1,
    'presence_penalty': 0.0,
    'frequency_penalty': 0.0,
    'repetition_penalty': 1.0,
    'temperature': 1.0,
    'top_p': 1.0,
    'top_k': 0,
    'min_p': 0.0,
    'seed': None,
    'stop': None,
    'stop_token_ids': None,
    'ignore_eos': False,
    'max_tokens': 16,
    'min_tokens': 0,
    'logprobs': None,
    'prompt_logprobs': None,
    'detokenize': True,
    'skip_special_tokens': True,
    'spaces_between_special_tokens': True,
    'include_stop_str_in_output': False,
    'bad_words': None,
    'truncate_prompt_tokens': None,
    'logit_bias': None,
    'allowed_token_ids': None,
    'output_kind': RequestOutputKind.CUMULATIVE,
}
# Fields that are not sent to the program: this package implements them, or they have no effect
# here.
OWN_FIELDS = ('detokenize', 'spaces_between_special_tokens', 'output_kind')

NO_STRUCTURE = 'structured output is not supported; leave it out, and check the text'
NO_BEAMS = 'beam search is not supported; ask for n answers'
# Fields that vLLM has or had: their neutral value, and why no other value is supported.
REFUSED = {
    'best_of': (None, 'vLLM has it no more; ask for n answers, and choose by cumulative_logprob'),
    'use_beam_search': (False, NO_BEAMS),
    'length_penalty': (1.0, NO_BEAMS),
    'early_stopping': (False, NO_BEAMS),
    'guided_decoding': (None, NO_STRUCTURE),
    'structured_outputs': (None, NO_STRUCTURE),
    'logits_processors': (None, 'Python does not run between two tokens; pass logit_bias, allowed_token_ids or '
                                'bad_words'),
    'extra_args': (None, 'there is nothing that would read them; leave it out'),
    'flat_logprobs': (False, 'log probabilities are dictionaries by token id; leave it out'),
    'logprob_token_ids': (None, 'log probabilities are those of the most likely tokens; pass logprobs=N'),
    'skip_reading_prefix_cache': (False, 'a request cannot do without; pass enable_prefix_caching=False to LLM()'),
    'thinking_token_budget': (None, 'thoughts have no limit of their own; pass max_tokens'),
    'repetition_detection': (None, 'not supported; pass repetition_penalty'),
    'max_model_length': (None, 'is the engine\'s; pass max_model_len to LLM()'),
}

MAX_LOGPROBS = 20
MAX_STOPS = 64


class SamplingParams:
    """How tokens are sampled, and when an answer ends: SamplingParams(temperature=0.6, max_tokens=256).

    max_tokens=None: as long as the model's context allows. temperature=0: always the most likely token. seed: the
    same request gives the same tokens; without one, LLM() makes one of its own seed and the request's number.
    """

    def __init__(self, n=1, **fields):
        values = dict(DEFAULTS, n=n)
        for name, value in fields.items():
            if name in DEFAULTS:
                values[name] = value
            else:
                check_refused(name, value)
        self.__dict__.update(values)
        self.check()

    def check(self):
        """Raises a RequestError for a value that no model could follow; the program checks the rest."""
        for name in ('n', 'max_tokens', 'min_tokens', 'top_k'):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not hasattr(value, '__index__')):
                refuse(name, value, 'must be a whole number')
        least('n', self.n, 1)
        least('max_tokens', self.max_tokens, 1)
        least('min_tokens', self.min_tokens, 0)
        least('top_k', self.top_k, -1)
        least('temperature', self.temperature, 0)
        for name in ('presence_penalty', 'frequency_penalty'):
            if not -2 <= getattr(self, name) <= 2:
                refuse(name, getattr(self, name), 'must be from -2 to 2')
        if not self.repetition_penalty > 0:
            refuse('repetition_penalty', self.repetition_penalty, 'must be more than 0')
        if not 0 < self.top_p <= 1:
            refuse('top_p', self.top_p, 'must be more than 0, and at most 1')
        if not 0 <= self.min_p <= 1:
            refuse('min_p', self.min_p, 'must be from 0 to 1')
        for name in ('logprobs', 'prompt_logprobs'):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= MAX_LOGPROBS:
                refuse(name, value, f'must be from 0 to {MAX_LOGPROBS}: those of the whole vocabulary are not kept')
        if self.stop and not self.detokenize:
            refuse('detokenize', False, 'stop texts are found in text; leave it out, or pass stop_token_ids')
        if isinstance(self.output_kind, int):
            self.output_kind = RequestOutputKind(self.output_kind)

    def clone(self):
        return SamplingParams(**self.__dict__)

    def to_json(self):
        """The fields as the program takes them, complete: a model's own defaults do not fill in."""
        self.check()
        body = {name: value for name, value in self.__dict__.items()
                if name in DEFAULTS and name not in OWN_FIELDS and value is not None}
        if body.get('seed') == -1:  # as in vLLM
            del body['seed']
        return body

    def __setattr__(self, name, value):
        if name not in DEFAULTS:
            check_refused(name, value)
        self.__dict__[name] = value

    def __eq__(self, other):
        return isinstance(other, SamplingParams) and self.__dict__ == other.__dict__

    __hash__ = None

    def __repr__(self):
        shown = ', '.join(f'{name}={value!r}' for name, value in self.__dict__.items() if value != DEFAULTS[name])
        return f'SamplingParams({shown})'


def least(name, value, minimum):
    if value is not None and not value >= minimum:
        refuse(name, value, f'must be at least {minimum}')


def refuse(name, value, why):
    raise RequestError(f'{name}={value!r}: {why}', field=name)


def check_refused(name, value):
    """For a name that is no field. Raises a RequestError unless its value asks for nothing."""
    if name in REFUSED:
        nothing, why = REFUSED[name]
        if value is not None and value != nothing:
            refuse(name, value, why)
        return
    near = difflib.get_close_matches(name, [*DEFAULTS, *REFUSED], 1)
    hint = f'; did you mean {near[0]}?' if near else f'; there are {", ".join(DEFAULTS)}'
    raise RequestError(f'{name}: SamplingParams has no such field{hint}', field=name)
