"""Generation: one prompt with its parameters, from the request's body to the output."""

from .errors import EngineDeadError, NvllmError, RequestError
from .http import encode_request
from .outputs import CompletionOutput, Logprob, RequestOutput
from .sampling_params import DEFAULTS, RequestOutputKind

# Maximum tokens that a tokenizer adds around a text.
ADDED_TOKENS = 8
MASK = (1 << 64) - 1


def mixed_seed(seed, number):
    """A seed for the request of this number: the same for the same numbers, unlike that of any other (splitmix64)."""
    value = (seed * 0x9E3779B97F4A7C15 + number * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return (value ^ (value >> 31)) >> 1


def failure(process, response, index=None):
    """The exception for a response that is an error, or a connection that was lost."""
    if not response.done or response.status is None:
        return process.death() or NvllmError('the program has closed the connection before the answer was complete')
    try:
        error = response.json()['error']
    except (KeyError, TypeError):
        error = {'message': f'the program has answered with status {response.status}'}
    return failure_of(process, error, response.status, index)


def failure_of(process, error, status, index=None):
    message = error.get('message', '')
    if status < 500:
        first = message.split(' ')[0]  # the engine's messages start with the field
        return RequestError(message, error.get('param') or (first if first in DEFAULTS else None), index)
    dead = process.death(message) if status in (500, 503) else None
    return dead or NvllmError(message)


def read_logprobs(rows):
    """Of the program's lists by token id: {"7": {"logprob": ..., "rank": ..., "decoded_token": ...}}"""
    return [None if row is None else {int(token): Logprob(**value) for token, value in row.items()} for row in rows]


class Generation:
    """`prompt` has token ids or a text. seed: for parameters without one."""

    def __init__(self, request_id, prompt, params, seed, index=None):
        self.request_id = request_id
        self.prompt = prompt
        self.params = params
        self.seed = seed
        self.index = index
        self.kind = params.output_kind if params else RequestOutputKind.CUMULATIVE
        count = params.n if params else 1
        self.answers = [CompletionOutput(i) for i in range(count)]
        self.prompt_token_ids = prompt.token_ids
        self.prompt_logprobs = None
        self.cached_tokens = None
        self.sent = [(0, 0)] * count  # for each answer, the characters and tokens in earlier
                                      # outputs of a stream

    # --- The request ---

    def needs_token_ids(self, max_model_len):
        """Whether the length of the prompt must be known, to find out how long the answer may be."""
        if self.prompt.token_ids is not None:
            return False
        if self.prompt.conversation is not None or self.prompt.text is None:
            return True
        if self.params is None:
            return False
        if self.params.max_tokens is None:
            return True
        most = len(self.prompt.text.encode('utf-8', 'surrogatepass')) + ADDED_TOKENS
        return most + self.params.max_tokens > max_model_len

    def tokenize_request(self):
        fields = self.prompt.conversation
        return encode_request('POST', '/tokenize', {'prompt': self.prompt.text} if fields is None else fields)

    def set_token_ids(self, token_ids):
        self.prompt.token_ids = token_ids
        self.prompt_token_ids = token_ids

    def max_tokens(self, max_model_len):
        """As vLLM has it: an answer ends where the context does, whatever max_tokens says."""
        wanted = self.params.max_tokens
        prompt = self.prompt.token_ids
        if prompt is None:
            return wanted
        length = len(prompt)
        cut = self.params.truncate_prompt_tokens
        if cut is not None:
            length = min(length, max_model_len if cut < 0 else cut)
        rest = max(1, max_model_len - length)
        return rest if wanted is None else min(wanted, rest)

    def body(self, max_model_len, stream):
        ids = self.prompt.token_ids
        fields = {'prompt': self.prompt.text if ids is None else ids, 'return_token_ids': True}
        if self.params is not None:
            fields.update(self.params.to_json())
            fields['max_tokens'] = self.max_tokens(max_model_len)
        fields.setdefault('seed', self.seed)
        if stream:
            fields.update(stream=True, stream_options={'include_usage': True})
        return fields

    def request(self, max_model_len, stream=False):
        return encode_request('POST', '/v1/completions', self.body(max_model_len, stream))

    # --- The output ---

    def add(self, data):
        """What the program has sent: the whole response, or an event of a stream."""
        for choice in data['choices']:
            self.add_choice(self.answers[choice['index']], choice)
        usage = data.get('usage')
        if usage:
            self.cached_tokens = usage['prompt_tokens_details']['cached_tokens']

    def add_choice(self, answer, choice):
        if self.params is None or self.params.detokenize:
            answer.text += choice['text']
        answer.token_ids += choice.get('token_ids', ())
        if choice.get('prompt_token_ids') is not None:
            self.prompt_token_ids = choice['prompt_token_ids']
        if choice.get('prompt_logprobs'):
            self.prompt_logprobs = read_logprobs(choice['prompt_logprobs'])
        if self.params is not None and self.params.logprobs is not None:
            self.add_logprobs(answer, choice)
        answer.finish_reason = choice.get('finish_reason')
        answer.stop_reason = choice.get('stop_reason')

    @staticmethod
    def add_logprobs(answer, choice):
        new = read_logprobs(choice['sample_logprobs'])
        if answer.logprobs is None:
            answer.logprobs, answer.cumulative_logprob = [], 0.0
        done = len(answer.logprobs)
        answer.logprobs += new
        for at, row in enumerate(new, done):
            answer.cumulative_logprob += row[answer.token_ids[at]].logprob

    def output(self, finished):
        result = RequestOutput(self.request_id, self.prompt.text, self.prompt_token_ids, self.answers, finished)
        result.prompt_logprobs = self.prompt_logprobs
        result.num_cached_tokens = self.cached_tokens
        return result

    # --- Streams ---

    def snapshot(self, finished):
        """An output of a stream that later ones do not change; what is new only, if DELTA is wanted."""
        sent = self.sent
        delta = self.kind == RequestOutputKind.DELTA
        result = self.output(finished)
        result.outputs = [self.copy_of(answer, *(sent[answer.index] if delta else (0, 0))) for answer in self.answers]
        for answer in self.answers:
            sent[answer.index] = (len(answer.text), len(answer.token_ids))
        return result

    @staticmethod
    def copy_of(answer, text_from, tokens_from):
        copy = CompletionOutput(answer.index, answer.text[text_from:], answer.token_ids[tokens_from:])
        copy.logprobs = None if answer.logprobs is None else answer.logprobs[tokens_from:]
        copy.cumulative_logprob = answer.cumulative_logprob
        copy.finish_reason, copy.stop_reason = answer.finish_reason, answer.stop_reason
        return copy

    def stream(self, process, events, done):
        """Yields the output of these events of a stream; raises an exception for an error in them. done: no more will
        come."""
        for event in events:
            if 'error' in event:
                raise failure_of(process, event['error'], event['error'].get('code') or 500, self.index)
            self.add(event)
        finished = all(answer.finished() for answer in self.answers)
        # The last event has the usage and no choice; it is delivered with the output that is
        # `finished`.
        is_last = done and finished
        if is_last or (events and not finished and self.kind != RequestOutputKind.FINAL_ONLY):
            yield self.snapshot(is_last)


def check_open(process):
    if process.dead():
        raise process.death() or EngineDeadError('the engine has ended')
