"""The exceptions of nvllm: one hierarchy, each with what it is about as an attribute."""


class NvllmError(RuntimeError):
    """Whatever goes wrong here is one of these."""


class OptionError(NvllmError, ValueError):
    """A keyword of LLM() that cannot be honoured; `option` is its name. Nothing was started."""

    def __init__(self, message, option=None):
        super().__init__(message)
        self.option = option


class RequestError(NvllmError, ValueError):
    """A prompt or a sampling parameter that cannot be honoured; `field` is its name, `index` the prompt's number
    among those of the call (None: it is about all of them)."""

    def __init__(self, message, field=None, index=None):
        super().__init__(message if index is None else f'prompt {index}: {message}')
        self.field = field
        self.index = index


class StartError(NvllmError):
    """The program was not found, or has ended before it was ready."""


class EngineDeadError(NvllmError):
    """The program or one of its workers has died or is stuck; nothing of it is left. `rank` and `pid` are those of
    the worker that the program blames; for the program itself, `rank` is None."""

    def __init__(self, message, rank=None, pid=None):
        super().__init__(message)
        self.rank = rank
        self.pid = pid
