#!/usr/bin/env python3
"""Measures tokens per second: bench.py [MODEL] [NAME=VALUE...]; NAME=VALUE are keywords of LLM().

The workload is that of nano-vllm's bench.py: 256 prompts of 100 to 1024 random tokens, as many different lengths of
answers. The same program measures nano-vllm or vLLM when another line imports them. `nvllm-launch bench throughput`
does the same work without Python, after a warm-up of 256 short prompts: bench.py --warmup 256.
"""

import argparse
import os
import time
from random import randint, seed

from nvllm import LLM, SamplingParams


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument('model', nargs='?', default='~/huggingface/Qwen3-0.6B/')
    parser.add_argument('keywords', nargs='*', metavar='NAME=VALUE')
    parser.add_argument('--prompts', type=int, default=256)
    parser.add_argument('--lengths', type=int)
    parser.add_argument('--vocabulary', type=int, default=10001, help='ids are below')
    parser.add_argument('--warmup', type=int, default=0, help='so many short prompts come first')
    parser.add_argument('--repeat', type=int, default=1)
    return parser.parse_args()


def workload(options):
    def length():
        return options.lengths or randint(100, 1024)
    prompts = [[randint(0, options.vocabulary - 1) for _ in range(length())] for _ in range(options.prompts)]
    return prompts, [SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=length()) for _ in prompts]


def main():
    options = arguments()
    seed(0)
    llm = LLM(os.path.expanduser(options.model), enforce_eager=False, max_model_len=4096,
              **dict(keyword.split('=', 1) for keyword in options.keywords))
    llm.generate(['Benchmark: '], SamplingParams())
    if options.warmup:
        short = [[i % 1000 + 1] * 8 for i in range(options.warmup)]
        llm.generate(short, SamplingParams(max_tokens=32, ignore_eos=True))
    for _ in range(options.repeat):
        prompts, sampling_params = workload(options)
        started = time.time()
        llm.generate(prompts, sampling_params, use_tqdm=False)
        seconds = time.time() - started
        tokens = sum(params.max_tokens for params in sampling_params)
        print(f'{tokens} tokens in {seconds:.2f} s: {tokens / seconds:.0f} tokens/s', flush=True)


if __name__ == '__main__':
    main()
