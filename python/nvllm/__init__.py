"""nvllm in Python: from nvllm import LLM, SamplingParams. The interface is vLLM's; docs/python.md says how to use it.

The work is done by the program nvllm-launch, which LLM() starts and ends; there is no Python in it, and this package
needs nothing but Python's standard library.
"""

from .async_llm import AsyncLLM
from .errors import EngineDeadError, NvllmError, OptionError, RequestError, StartError
from .llm import LLM
from .outputs import CompletionOutput, Logprob, RequestOutput
from .sampling_params import RequestOutputKind, SamplingParams

__version__ = '0.2.0'
__all__ = ['LLM', 'AsyncLLM', 'SamplingParams', 'RequestOutputKind', 'RequestOutput', 'CompletionOutput', 'Logprob',
           'NvllmError', 'OptionError', 'RequestError', 'StartError', 'EngineDeadError']
