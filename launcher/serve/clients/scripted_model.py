"""A model that says what its prompt asks for, so that clients see tool calls, reasoning and endless answers
whenever a test wants them.

Its weights are made so that the last token alone decides the next one: embeddings are one-hot, attention and
MLP add nothing, and the LM head maps each token to its successor. An answer is a chain of tokens of its own;
which one is said is decided by the token with which the prompt ends.
"""

import json
import struct
from pathlib import Path

END = 702  # <|im_end|> of the tokenizer below
HIDDEN = 768  # also the vocabulary's size
HEAD = 64

# What the prompt ends with, and the tokens of the answer. A chain that ends with None goes on for ever.
TOOL_CALL = ['<tool_call>\n{"name": "get_', 'weather", "arguments": {"city": ', '"Paris", "days": 2', '}}\n', '</tool_call>']
REASONING = ['<think>\n', 'Two and two', ' are four.', '\n</think>\n\n', 'It is', ' 4.']
SCRIPTS = {
    '<call a tool>': TOOL_CALL,
    '<reason>': REASONING,
    '<go on>': [' la', None],
}
DEFAULT = ['Hello', ' there', ' friend.']

TEMPLATE = '{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}'


def make_tokenizer(path, tokenizer):
    """Writes the tokenizer with the tokens of the scripts added; returns each one's id."""
    ids = {}
    words = [*SCRIPTS, *(token for script in [*SCRIPTS.values(), DEFAULT] for token in script if token)]
    for word in words:
        ids[word] = END + 3 + len(ids)
        tokenizer['added_tokens'].append({'id': ids[word], 'content': word, 'single_word': False, 'lstrip': False,
                                          'rstrip': False, 'normalized': False, 'special': False})
    path.write_text(json.dumps(tokenizer))
    return ids


def successors(ids):
    """The next token of each token."""
    following = [ids[DEFAULT[0]]] * HIDDEN
    for trigger, script in [*SCRIPTS.items(), (None, DEFAULT)]:
        if trigger:
            following[ids[trigger]] = ids[script[0]]
        for token, after in zip(script, [*script[1:], END]):
            if token:
                following[ids[token]] = ids[token] if after is None else after if after == END else ids[after]
    return following


def matrix(rows, columns, entries=()):
    """bfloat16 zeros but for the entries (row, column, value)."""
    data = bytearray(rows * columns * 2)
    for row, column, value in entries:
        struct.pack_into('<H', data, (row * columns + column) * 2, struct.unpack('<I', struct.pack('<f', value))[0] >> 16)
    return [rows, columns], bytes(data)


def ones(size):
    return [size], matrix(1, size, [(0, i, 1.0) for i in range(size)])[1]


def write_weights(path, following):
    layer = 'model.layers.0.'
    tensors = {
        'model.embed_tokens.weight': matrix(HIDDEN, HIDDEN, [(i, i, 1.0) for i in range(HIDDEN)]),
        'lm_head.weight': matrix(HIDDEN, HIDDEN, [(to, i, 2.0) for i, to in enumerate(following)]),
        'model.norm.weight': ones(HIDDEN),
        layer + 'input_layernorm.weight': ones(HIDDEN),
        layer + 'post_attention_layernorm.weight': ones(HIDDEN),
        **{f'{layer}self_attn.{name}_proj.weight': matrix(HEAD, HIDDEN) for name in 'qkv'},
        layer + 'self_attn.o_proj.weight': matrix(HIDDEN, HEAD),
        layer + 'mlp.gate_proj.weight': matrix(HEAD, HIDDEN),
        layer + 'mlp.up_proj.weight': matrix(HEAD, HIDDEN),
        layer + 'mlp.down_proj.weight': matrix(HIDDEN, HEAD),
    }
    header, at = {}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {'dtype': 'BF16', 'shape': shape, 'data_offsets': [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    with open(path, 'wb') as file:
        file.write(struct.pack('<Q', len(text)) + text)
        for _, data in tensors.values():
            file.write(data)


CONFIG = {
    'architectures': ['LlamaForCausalLM'], 'model_type': 'llama', 'hidden_act': 'silu', 'hidden_size': HIDDEN,
    'intermediate_size': HEAD, 'num_hidden_layers': 1, 'num_attention_heads': 1, 'num_key_value_heads': 1,
    'head_dim': HEAD, 'vocab_size': HIDDEN, 'max_position_embeddings': 4096, 'rms_norm_eps': 1e-6,
    'rope_theta': 10000.0, 'tie_word_embeddings': False, 'torch_dtype': 'bfloat16', 'eos_token_id': END,
}


def write(folder, tokenizer_json):
    """Makes the model in the folder, with the vocabulary of this tokenizer.json."""
    folder = Path(folder)
    ids = make_tokenizer(folder / 'tokenizer.json', json.loads(Path(tokenizer_json).read_text()))
    assert max(ids.values()) < HIDDEN
    write_weights(folder / 'model.safetensors', successors(ids))
    (folder / 'config.json').write_text(json.dumps(CONFIG))
    (folder / 'chat_template.jinja').write_text(TEMPLATE)
