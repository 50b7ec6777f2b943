#!/usr/bin/env python3
"""Asks a model some questions: example.py [MODEL [TENSOR_PARALLEL_SIZE]]

A program for nano-vllm as it is, but for the line that imports it. Where transformers is not installed, the model's
chat template is applied by nvllm itself, with the same result.
"""

import os
import sys

from nvllm import LLM, SamplingParams

QUESTIONS = ['Who are you?', 'Which prime numbers are below 100?', 'Why is the sky blue?']


def main():
    path = os.path.expanduser(sys.argv[1] if len(sys.argv) > 1 else '~/huggingface/Qwen3-0.6B/')
    llm = LLM(path, enforce_eager=True, tensor_parallel_size=int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    try:
        from transformers import AutoTokenizer
        tokenizer = AutoTokenizer.from_pretrained(path)
    except ImportError:
        tokenizer = llm.get_tokenizer()

    prompts = [tokenizer.apply_chat_template([{'role': 'user', 'content': question}], tokenize=False,
                                             add_generation_prompt=True) for question in QUESTIONS]
    outputs = llm.generate(prompts, SamplingParams(temperature=0.6, max_tokens=256))
    for prompt, output in zip(prompts, outputs):
        print(f'\nPrompt: {prompt!r}\nCompletion: {output["text"]!r}')


if __name__ == '__main__':
    main()
