#!/usr/bin/env python3
"""benchmarks/compare_llama with stand-ins for nvllm-launch, llama.cpp and gguf."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

COMPARE = Path('benchmarks/compare_llama').absolute()

# 100 prompt tokens and 50 decode steps per second and rank; the second batch is the best one.
LAUNCH = '''#!/usr/bin/env python3
import json, os, pathlib, sys
words = sys.argv[1:]
value = lambda name: words[words.index(name) + 1]
ranks, length = int(value('--tp')), int(value('--input-len'))
with open(pathlib.Path(__file__).parent / 'order', 'a') as file:
    print('nvllm', value('--model').rsplit('/')[-1], ranks, length, len(os.sched_getaffinity(0)), file=file)
print(json.dumps({'batches': [{'prompts_s': length / 100 / ranks * factor, 'mean_step_ms': 20 / ranks * factor,
                               'step_ms': {'p50': 10 / ranks * factor}} for factor in (2, 1, 3)]}))
'''

LLAMA = '''import ctypes, pathlib, time
__version__ = '1.2.3'
llama_token = ctypes.c_int32
class Llama:
    def __init__(self, model_path, n_threads, n_threads_batch, **options):
        self.ctx = 0
        with open(pathlib.Path(__file__).parent / 'order', 'a') as file:
            print('llama.cpp', model_path.rsplit('/')[-1], n_threads, n_threads_batch, file=file)
    def n_vocab(self):
        return 10
def llama_get_memory(context):
    return 0
def llama_memory_clear(memory, data):
    pass
def llama_batch_get_one(tokens, count):
    return count
def llama_decode(context, count):
    time.sleep(0.01)
    return 0
def llama_get_logits_ith(context, i):
    return [0.0]
'''

GGUF = '''import enum, pathlib
class GGUFValueType(enum.Enum):
    STRING = 8
    ARRAY = 9
class GGMLQuantizationType(enum.Enum):
    F32 = 0
    Q4_1 = 3
    BF16 = 30
class LlamaFileType(enum.Enum):
    MOSTLY_BF16 = 32
class Field:
    def __init__(self, value, *types):
        self.value, self.types = value, types
    def contents(self):
        return self.value
class Tensor:
    def __init__(self, name, tensor_type):
        self.name, self.tensor_type, self.data = name, tensor_type, name + ' data'
class GGUFReader:
    def __init__(self, path):
        self.fields = {'GGUF.version': Field(3, GGUFValueType.STRING), 'general.architecture': Field('llama', GGUFValueType.STRING),
                       'words': Field(['a'], GGUFValueType.ARRAY, GGUFValueType.STRING)}
        self.tensors = [Tensor('norm', GGMLQuantizationType.F32), Tensor('head', GGMLQuantizationType.Q4_1)]
class quants:
    dequantize = staticmethod(lambda data, kind: f'floats of {data}')
    quantize = staticmethod(lambda data, kind: f'{kind.name} of {data}')
class GGUFWriter:
    def __init__(self, path, architecture):
        self.file = open(pathlib.Path(__file__).parent / 'written', 'w')
        self.note(architecture)
    def note(self, *words):
        print(*words, file=self.file)
    def add_key_value(self, name, value, kind, element):
        self.note(name, value, kind.name, element and element.name)
    def add_file_type(self, kind):
        self.note(kind.name)
    def add_tensor(self, name, data, raw_dtype=None):
        self.note(name, '=', data, raw_dtype and raw_dtype.name)
    def write_header_to_file(self):
        pass
    write_kv_data_to_file = write_tensors_to_file = write_header_to_file
    def close(self):
        self.file.close()
'''


class CompareLlamaTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get('TEST_TMPDIR'))
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / 'llama_cpp.py').write_text(LLAMA)
        (self.folder / 'gguf.py').write_text(GGUF)
        launch = self.folder / 'nvllm-launch'
        launch.write_text(LAUNCH)
        launch.chmod(0o755)

    def compare(self, *more):
        return subprocess.run([sys.executable, COMPARE, '--launch', self.folder / 'nvllm-launch', '--model', 'a/model.gguf', '--threads', '1',
                               '--prompt-len', '20', '--context', '8', '--steps', '4', '--rounds', '2', '--out', self.folder / 'out.json',
                               *more], text=True, capture_output=True, env={**os.environ, 'PYTHONPATH': str(self.folder)})

    def test_engines_take_turns_on_the_same_cores(self):
        done = self.compare()
        self.assertEqual(done.returncode, 0, done.stderr)
        own = [f'nvllm {model} {tp} {length} 1' for model in ('bf16.gguf', 'model.gguf') for tp in (1, 2) for length in (20, 8)]
        one_round = [*own, 'llama.cpp bf16.gguf 1 1', 'llama.cpp model.gguf 1 1']
        self.assertEqual((self.folder / 'order').read_text().splitlines(), one_round * 2)

    def test_the_best_try_counts_and_ratios_are_told(self):
        self.assertEqual(self.compare().returncode, 0)
        result = json.loads((self.folder / 'out.json').read_text())
        self.assertAlmostEqual(result['figures']['prefill']['nvllm bf16, TP 2']['best'], 200)
        self.assertAlmostEqual(result['figures']['decode']['nvllm bf16, TP 1']['median'], 50)
        self.assertAlmostEqual(result['figures']['decode, median step']['nvllm bf16, TP 1']['best'], 100)
        llama = result['figures']['decode']['llama.cpp bf16']
        self.assertLess(llama['best'], 100)  # 10 ms a step, at least
        self.assertAlmostEqual(result['ratios']['decode']['nvllm bf16, TP 1 / llama.cpp bf16']['best'], 50 / llama['best'])
        self.assertEqual(len(llama['all']), 2)
        self.assertIn('nvllm as it is, TP 1 / llama.cpp as it is', result['ratios']['decode'])
        self.assertNotIn('nvllm as it is, TP 1 / llama.cpp bf16', result['ratios']['decode'])
        self.assertEqual(result['llama_cpp_python'], '1.2.3')

    def test_quantized_tensors_become_bfloat16_and_metadata_stay(self):
        self.assertEqual(self.compare('--rounds', '1').returncode, 0)
        self.assertEqual((self.folder / 'written').read_text().splitlines(), [
            'llama', "words ['a'] ARRAY STRING", 'MOSTLY_BF16', 'norm = norm data None', 'head = BF16 of floats of head data BF16'])

    def test_an_engine_that_fails_is_told(self):
        (self.folder / 'nvllm-launch').write_text('#!/bin/sh\nexit 3\n')
        done = self.compare()
        self.assertEqual(done.returncode, 1)
        self.assertIn('compare_llama: nvllm ended with exit code', done.stderr)


if __name__ == '__main__':
    unittest.main()
