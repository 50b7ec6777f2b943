#!/usr/bin/env python3
"""The inputs of text_model_fuzz, small GGUF files with nothing but a vocabulary and a template: make_fuzz_gguf_text.py OUT"""
import struct
import sys


def text(value):
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack('<Q', len(data)) + data


def array(kind, values, pack):
    return 9, struct.pack('<IQ', kind, len(values)) + b''.join(pack(v) for v in values)


def texts(*values):
    return array(8, values, text)


def floats(*values):
    return array(6, values, lambda v: struct.pack('<f', v))


def ints(*values):
    return array(5, values, lambda v: struct.pack('<i', v))


def write(name, **keys):
    pairs = b''
    for key, (kind, value) in keys.items():
        key = key.replace('__', '.')
        pairs += text(key) + struct.pack('<I', kind) + value
    with open(f'{sys.argv[1]}/{name}', 'wb') as file:
        file.write(b'GGUF' + struct.pack('<IQQ', 3, 0, len(keys)) + pairs)


def string(value):
    return 8, text(value)


def u32(value):
    return 4, struct.pack('<I', value)


def flag(value):
    return 7, bytes([value])


ARCHITECTURE = {'general__architecture': string('llama')}
BYTES = [chr(c) for c in [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x144)]]

write('gpt2', **ARCHITECTURE, tokenizer__ggml__model=string('gpt2'), tokenizer__ggml__pre=string('smollm'),
      tokenizer__ggml__tokens=texts(*BYTES, 'lo', 'Ġw', '<s>'), tokenizer__ggml__merges=texts('l o', 'Ġ w'),
      tokenizer__ggml__token_type=ints(*[1] * (len(BYTES) + 2), 3), tokenizer__ggml__bos_token_id=u32(len(BYTES) + 2),
      tokenizer__ggml__add_bos_token=flag(1), tokenizer__chat_template=string('{{ bos_token }}{{ messages[0].content }}'))
write('llama', **ARCHITECTURE, tokenizer__ggml__model=string('llama'),
      tokenizer__ggml__tokens=texts('<unk>', '<s>', '</s>', '<0xC3>', '<0xA9>', '▁', 'H', 'e', 'l', 'o', 'll', '▁H', 'ell'),
      tokenizer__ggml__scores=floats(0, 0, 0, 0, 0, -1, -2, -3, -4, -5, -6, -7, float('nan')),
      tokenizer__ggml__token_type=ints(2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1, 1, 1), tokenizer__ggml__unknown_token_id=u32(0),
      tokenizer__ggml__bos_token_id=u32(1), tokenizer__ggml__eos_token_id=u32(2), tokenizer__ggml__add_eos_token=flag(1),
      tokenizer__ggml__add_space_prefix=flag(0))
write('bad_text', **ARCHITECTURE, tokenizer__ggml__model=string('llama'), tokenizer__ggml__tokens=texts(b'\x80', '▁', b'\xe2\x96'),
      tokenizer__ggml__scores=floats(1, 2, 3), tokenizer__ggml__token_type=ints(4, 4, 4))
