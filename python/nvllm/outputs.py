"""What comes back: attributes are vLLM's, and output['text'] and output['token_ids'] work as in nano-vllm."""


class Logprob:
    """Of one token: its log probability, its rank (1: the most likely), and its text."""

    __slots__ = ('logprob', 'rank', 'decoded_token')

    def __init__(self, logprob, rank=None, decoded_token=None):
        self.logprob = logprob
        self.rank = rank
        self.decoded_token = decoded_token

    def __eq__(self, other):
        return isinstance(other, Logprob) and self.__repr__() == other.__repr__()

    __hash__ = None

    def __repr__(self):
        return f'Logprob(logprob={self.logprob}, rank={self.rank}, decoded_token={self.decoded_token!r})'


class CompletionOutput:
    """One answer. token_ids has all its tokens, the one that ended it included. finish_reason: 'stop', 'length',
    'abort'; None while it is being generated. stop_reason: the stop text or the one of stop_token_ids that was met.
    logprobs: for each token a dict from token id to Logprob, the sampled token's among them."""

    def __init__(self, index, text='', token_ids=None, logprobs=None):
        self.index = index
        self.text = text
        self.token_ids = [] if token_ids is None else token_ids
        self.cumulative_logprob = None
        self.logprobs = logprobs
        self.finish_reason = None
        self.stop_reason = None
        self.lora_request = None

    def finished(self):
        return self.finish_reason is not None

    def __repr__(self):
        return (f'CompletionOutput(index={self.index}, text={self.text!r}, token_ids={self.token_ids}, '
                f'cumulative_logprob={self.cumulative_logprob}, logprobs={self.logprobs}, '
                f'finish_reason={self.finish_reason!r}, stop_reason={self.stop_reason!r})')


class RequestOutput:
    """The answers to one prompt; `outputs` has n of them. prompt is the prompt's text, None where it was token ids."""

    def __init__(self, request_id, prompt, prompt_token_ids, outputs, finished):
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.prompt_logprobs = None
        self.outputs = outputs
        self.finished = finished
        self.metrics = None
        self.lora_request = None
        self.num_cached_tokens = None

    def __getitem__(self, key):
        """nano-vllm's names: 'text' and 'token_ids' of the first answer."""
        if key in ('text', 'token_ids'):
            return getattr(self.outputs[0], key)
        raise KeyError(f"{key!r}: there are 'text' and 'token_ids', and the attributes of RequestOutput")

    def __repr__(self):
        return (f'RequestOutput(request_id={self.request_id!r}, prompt={self.prompt!r}, '
                f'prompt_token_ids={self.prompt_token_ids}, outputs={self.outputs}, finished={self.finished})')
