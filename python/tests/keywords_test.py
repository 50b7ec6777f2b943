#!/usr/bin/env python3
"""The keywords of LLM(): each becomes an option that the program has, or is refused by name; the docs have them all."""

import re
import subprocess
import sys
import unittest
import warnings
from pathlib import Path

sys.path.insert(0, '.')  # tests run in the root of Bazel's runfiles
from python.tests import tiny_model
from testing import unittest_report

from nvllm import OptionError
from nvllm.engine_process import find_program
from nvllm.options import ALL_NAMES, KEYWORDS, NANO, PROGRAM, SAME, SHAPES, TOGETHER, VLLM, arguments_of
from nvllm.sampling_params import DEFAULTS, REFUSED

# Options of serve about its clients and its connection.
OF_SERVERS = {'host', 'port', 'uds', 'ssl_certfile', 'ssl_keyfile', 'api_key', 'api_key_file', 'allowed_origins',
              'root_path', 'served_model_name', 'reasoning_parser', 'tool_call_parser', 'enable_auto_tool_choice',
              'trust_remote_code', 'max_num_queued_reqs', 'max_num_queued_tokens', 'max_request_bytes',
              'max_unsent_bytes', 'request_timeout', 'shutdown_timeout', 'restart_workers', 'exit_when_stdin_closes',
              'enable_log_requests', 'config', 'model'}
# Request defaults, which are in SamplingParams.
OF_REQUESTS = {'max_tokens', 'min_tokens', 'n', 'temperature', 'top_p', 'top_k', 'min_p', 'repetition_penalty',
               'presence_penalty', 'frequency_penalty', 'ignore_eos', 'stop_token_ids', 'logprobs', 'prompt_logprobs'}


def arguments(**keywords):
    return [each for each in arguments_of('m', keywords) if each not in ('--model=m', '--log-level=warning')]


class KeywordsTest(unittest.TestCase):
    def refusal(self, **keywords):
        with self.assertRaises(OptionError) as caught:
            arguments(**keywords)
        return caught.exception

    def test_every_option_of_the_program_is_a_keyword(self):
        shown = subprocess.run([find_program(), 'serve', '--help'], capture_output=True, text=True, check=True).stdout
        names = {name.replace('-', '_') for name in re.findall(r'^  --([a-z0-9-]+)', shown, re.MULTILINE)}
        self.assertGreater(len(names), 60)
        self.assertEqual(names - OF_SERVERS - OF_REQUESTS - set(PROGRAM), set())
        aliases = {'tensor_parallel_size', 'pipeline_parallel_size'}
        self.assertEqual(set(PROGRAM) - names - aliases, set())

    def test_options_are_told_to_the_program(self):
        for keywords, expected in (
                ({'tensor_parallel_size': 2}, ['--tensor-parallel-size=2']),
                ({'pipeline_parallel_size': 2}, ['--pipeline-parallel-size=2']),
                ({'max_model_len': 4096, 'max_num_seqs': None}, ['--max-model-len=4096']),
                ({'enforce_eager': True}, ['--enforce-eager']),
                ({'enable_prefix_caching': False}, ['--no-enable-prefix-caching']),
                ({'dtype': 'half'}, ['--dtype=float16']), ({'dtype': 'torch.bfloat16'}, ['--dtype=bfloat16']),
                ({'hf_overrides': {'a': 1}, 'rope_theta': 2}, ['--hf-overrides={"a": 1, "rope_theta": 2}']),
                ({'generation_config': 'vllm'}, ['--generation-config=none']),
                ({'swap_space': 4}, ['--swap-space=4']), ({'quantization': 'gguf'}, ['--load-format=gguf']),
                ({'quantization': 'fp8'}, ['--quantization=fp8']), ({'quantization': 'awq'}, ['--quantization=auto']),
                ({'disable_custom_all_reduce': True}, ['--collectives=nccl']),
                ({'config': {'max_num_sequences': 3}, 'world_size': 2},
                 ['--max-num-seqs=3', '--tensor-parallel-size=2']),
        ):
            with self.subTest(keywords):
                self.assertEqual(arguments(**keywords), expected)

    def test_keywords_of_the_fork_for_long_prompts(self):
        self.assertEqual(arguments(kvcache_block_size=256), ['--block-size=256'])
        self.assertEqual(arguments(enable_cpu_offload=True, num_gpu_blocks=8, kvcache_block_size=1024),
                         ['--kv-offload=chunked', '--ring-slots=8', '--transfer-block=1024'])
        self.assertEqual(arguments(kv_cache_dtype='fp8'), ['--kv-cache-dtype=fp8'])
        self.assertEqual(arguments(enable_cpu_offload=True, num_kv_buffers=4),
                         ['--kv-offload=layerwise', '--kv-buffers=4'])
        self.assertEqual(arguments(sparse_policy='QUEST', num_gpu_blocks=-1), ['--decode-attention=quest'])
        self.assertEqual(self.refusal(num_gpu_blocks=8).option, 'num_gpu_blocks')
        self.assertEqual(self.refusal(sparse_policy='HALF').option, 'sparse_policy')

    def test_what_cannot_be_honoured_is_refused_by_name(self):
        for name, value in {'quantization': 'exl2', 'enable_lora': True, 'tokenizer': 'x',
                            'calculate_kv_scales': True, 'speculative_config': {'model': 'x'}, 'cpu_offload_gb': 4,
                            'revision': 'main', 'distributed_executor_backend': 'ray', 'load_format': 'pt',
                            'vocab_size': 3, 'sparse_stride': 4}.items():
            with self.subTest(name):
                error = self.refusal(**{name: value})
                self.assertEqual(error.option, name)
                self.assertIn(name, str(error))
        self.assertIn('did you mean tensor_parallel_size', str(self.refusal(tensor_paralel_size=2)))

    def test_what_changes_nothing_is_explained(self):
        given = {'trust_remote_code': True, 'disable_log_stats': True, 'tokenizer': 'm', 'runner': 'generate'}
        self.assertEqual(arguments(**given), [])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            self.assertEqual(arguments(compilation_config=3), [])
        self.assertIn('enforce_eager', str(caught[0].message))

    def test_every_keyword_takes_the_value_that_asks_for_nothing(self):
        for name in [*KEYWORDS, *TOGETHER, *SAME]:
            self.assertEqual(arguments(**{name: None}), [], name)

    def test_the_docs_have_every_name(self):
        page = Path('docs/from-nano-vllm.md').read_text(encoding='utf-8')
        told = set(re.findall(r'`([a-z0-9_]+)`', page))
        self.assertEqual({*ALL_NAMES, *DEFAULTS, *REFUSED} - told, set())
        self.assertEqual(len(ALL_NAMES), len({*PROGRAM, *VLLM, *NANO, *SHAPES, *TOGETHER, *SAME}) + 3)
        self.assertTrue(tiny_model.MODEL)


if __name__ == '__main__':
    unittest_report.main('__main__')
