"""The keywords of LLM(): each becomes an option of nvllm-launch, or is refused with its name and what to do.

KEYWORDS has those of nvllm-launch serve, of vLLM's LLM(), of nano-vllm and of systems made from it.
docs/from-nano-vllm.md is the same as a table for people.
"""

import difflib
import json
import os
import warnings

from .errors import OptionError


# --- Handlers of keywords: functions of (name, value) that return arguments ---

def option(text, convert=str):
    return lambda name, value: [f'{text}={convert(value)}']


def switch(on, off=None):
    """A flag, and the one that takes it back; without that one, False is what the program does anyway."""
    return lambda name, value: [on] if value else [off] if off else []


def only(*values, why):
    """Nothing is to be done for these values, and others are refused."""
    def apply(name, value):
        if not any(value is each or value == each for each in values):
            raise OptionError(f'{name}={value!r}: {why}', name)
        return []
    return apply


def no_effect(why):
    """Accepted, and explained where somebody may expect an effect."""
    def apply(name, value):
        if value:
            warnings.warn(f'{name}={value!r} changes nothing in nvllm: {why}', stacklevel=5)
        return []
    return apply


def nothing(name, value):
    """Accepted: what it says is so here anyway, or is about logs that do not exist."""
    return []


def dtype(value):
    """'torch.float16', 'half' and their like, as the program calls them."""
    text = str(value).rsplit('.', maxsplit=1)[-1]
    return {'half': 'float16', 'float': 'float32'}.get(text, text)


def load_format(name, value):
    names = {'auto': 'auto', 'dummy': 'dummy', 'safetensors': 'safetensors', 'gguf': 'gguf', 'hf': 'auto',
             'fastsafetensors': 'safetensors', 'runai_streamer': 'safetensors'}
    if value not in names:
        raise OptionError(f'{name}={value!r}: weights are read from safetensors and GGUF files; convert them, or pass '
                          'one of auto, dummy, safetensors, gguf', name)
    return [f'--load-format={names[value]}']


def quantization(name, value):
    if value == 'gguf':
        return ['--load-format=gguf']
    if value in ('auto', 'none', 'fp8', 'int8', 'int4'):
        return [f'--quantization={value}']
    if value in ('awq', 'awq_marlin', 'gptq', 'gptq_marlin', 'compressed-tensors'):
        return ['--quantization=auto']  # the checkpoint specifies it itself
    raise OptionError(f'{name}={value!r}: must be one of fp8, int8, int4, awq, gptq, compressed-tensors, gguf; '
                      'or leave it out: a quantized checkpoint says itself how it is', name)


def generation_config(name, value):
    if value in ('auto', 'vllm'):
        return ['--generation-config=' + ('auto' if value == 'auto' else 'none')]
    raise OptionError(f'{name}={value!r}: must be "auto" (the model\'s own) or "vllm" (none); pass SamplingParams',
                      name)


# --- The table ---

NO_LORA = 'LoRA is not supported; merge the adapter into the weights'
NO_IMAGES = 'only text is supported; leave it out'
IN_CONFIG = 'config.json says it; leave it out, or pass hf_overrides={...}'
ONE_REVISION = 'pass NAME@REVISION as the model'
ONE_TOKENIZER = "the tokenizer is that of the model's folder; put the other tokenizer.json there"
ONE_MACHINE = 'one machine only; the workers are processes of it'

# The options of nvllm-launch serve, except those for servers with other clients.
PROGRAM = {
    'dtype': option('--dtype', dtype),
    'load_format': load_format,
    'quantization': quantization,
    'activation_quant': option('--activation-quant'),
    'hf_overrides': option('--hf-overrides', json.dumps),
    'chat_template': option('--chat-template'),
    'special_tokens_in_messages': switch('--special-tokens-in-messages'),
    'default_chat_template_kwargs': option('--default-chat-template-kwargs', json.dumps),
    'generation_config': generation_config,
    'max_model_len': option('--max-model-len'),
    'max_seq_len': option('--max-seq-len'),
    'max_num_seqs': option('--max-num-seqs'),
    'max_num_batched_tokens': option('--max-num-batched-tokens'),
    'block_size': option('--block-size'),
    'gpu_memory_utilization': option('--gpu-memory-utilization'),
    'kv_cache_memory_bytes': option('--kv-cache-memory-bytes'),
    'kv_cache_dtype': option('--kv-cache-dtype'),
    'enable_prefix_caching': switch('--enable-prefix-caching', '--no-enable-prefix-caching'),
    'state_snapshots': option('--state-snapshots'),
    'scheduling': option('--scheduling'),
    'preemption': option('--preemption'),
    'swap_space': option('--swap-space'),
    'kv_offload': option('--kv-offload'),
    'kv_offloading_size': option('--kv-offloading-size'),
    'ring_slots': option('--ring-slots'),
    'transfer_block': option('--transfer-block'),
    'kv_resident_blocks': option('--kv-resident-blocks'),
    'kv_host_attention': option('--kv-host-attention'),
    'kv_host_threads': option('--kv-host-threads'),
    'kv_buffers': option('--kv-buffers'),
    'prefill_attention': option('--prefill-attention'),
    'decode_attention': option('--decode-attention'),
    'invariant': option('--invariant'),
    'overlap_rows': option('--overlap-rows'),
    'enforce_eager': switch('--enforce-eager', '--no-enforce-eager'),
    'async_scheduling': switch('--async-scheduling', '--no-async-scheduling'),
    'tune': option('--tune'),
    'seed': option('--seed'),
    'memory_report': switch('--memory-report'),
    'profile': option('--profile'),
    'tensor_parallel_size': option('--tensor-parallel-size'),
    'pipeline_parallel_size': option('--pipeline-parallel-size'),
    'pp': option('--pipeline-parallel-size'),
    'expert_parallel': switch('--expert-parallel'),
    'tp': option('--tensor-parallel-size'),
    'device': option('--device'),
    'step_timeout': option('--step-timeout'),
    'collectives': option('--collectives'),
    'log_level': option('--log-level'),
}

# Options of vLLM that differ.
VLLM = {
    'tokenizer_mode': only('auto', 'hf', why='the tokenizer is nvllm\'s own, for tokenizer.json; pass "auto"'),
    'skip_tokenizer_init': no_effect('the tokenizer costs milliseconds, and prompts of token ids do not use it'),
    'trust_remote_code': nothing,
    'allowed_local_media_path': only('', why=NO_IMAGES),
    'allowed_media_domains': only(why=NO_IMAGES),
    'limit_mm_per_prompt': only({}, why=NO_IMAGES),
    'mm_processor_kwargs': only({}, why=NO_IMAGES),
    'disable_mm_preprocessor_cache': nothing,
    'revision': only(why=ONE_REVISION),
    'code_revision': only(why=ONE_REVISION),
    'tokenizer_revision': only(why=ONE_REVISION),
    'download_dir': only(why='set HF_HOME or HF_HUB_CACHE in the environment to where models shall be'),
    'hf_token': only(False, why='set HF_TOKEN in the environment'),
    'hf_config_path': only(why='config.json is that of the model\'s folder; pass hf_overrides={...}'),
    'override_generation_config': only({}, why='pass SamplingParams to generate()'),
    'preemption_mode': option('--preemption'),
    'cpu_offload_gb': only(0, why='weights stay on the GPU; the KV cache may go to host memory: '
                                  'kv_offload="auto"'),
    'kv_offloading_backend': only('native', why='KV offload is nvllm\'s own; leave it out'),
    'max_seq_len_to_capture': no_effect('CUDA graphs are not bound to a length'),
    'disable_custom_all_reduce': lambda name, value: ['--collectives=nccl'] if value else [],
    'disable_async_output_proc': nothing,
    'use_v2_block_manager': nothing,
    'num_gpu_blocks_override': only(why='pass kv_cache_memory_bytes'),
    'num_lookahead_slots': only(0, why='speculative decoding is not supported; leave it out'),
    'speculative_config': only(why='speculative decoding is not supported; leave it out'),
    'calculate_kv_scales': only(False, why='scales of a KV cache in FP8 are those of the checkpoint, or 1; leave it '
                                           'out'),
    'enable_chunked_prefill': only(True, why='prompts longer than max_num_batched_tokens take several steps; raise '
                                             'that instead'),
    'max_num_partial_prefills': nothing,
    'max_long_partial_prefills': nothing,
    'long_prefill_token_threshold': only(0, why='pass max_num_batched_tokens'),
    'disable_chunked_mm_input': nothing,
    'scheduling_policy': only('fcfs', why='requests are served in the order of their arrival'),
    'scheduler_delay_factor': only(0.0, why='a prompt is scheduled as soon as there is room; leave it out'),
    'prefix_caching_hash_algo': nothing,
    'enable_lora': only(False, why=NO_LORA),
    'lora_modules': only([], why=NO_LORA),
    'max_loras': only(1, why=NO_LORA),
    'max_lora_rank': only(16, why=NO_LORA),
    'rope_scaling': lambda name, value: ['--hf-overrides=' + json.dumps({name: value})],
    'rope_theta': lambda name, value: ['--hf-overrides=' + json.dumps({name: value})],
    'max_logprobs': only(*range(21), why='at most 20 log probabilities of a token are kept'),
    'logprobs_mode': only('raw_logprobs', why='log probabilities are those of the logits as the model gave them; leave '
                                              'it out'),
    'served_model_name': nothing,
    'disable_log_stats': nothing,
    'disable_log_requests': nothing,
    'enable_log_requests': nothing,
    'task': only('auto', 'generate', why='nvllm generates text, and nothing else'),
    'runner': only('auto', 'generate', why='nvllm generates text, and nothing else'),
    'convert': only('auto', 'none', why='nvllm generates text, and nothing else'),
    'disable_sliding_window': nothing,
    'disable_cascade_attn': nothing,
    'enable_sleep_mode': only(False, why='an engine cannot sleep; end it with shutdown(): it starts in less than a '
                                         'second'),
    'model_impl': only('auto', 'vllm', why='models are nvllm\'s own'),
    'compilation_config': no_effect('nothing is compiled; enforce_eager=True runs without CUDA graphs'),
    'cuda_graph_sizes': no_effect('the sizes of CUDA graphs are chosen by max_num_seqs'),
    'data_parallel_size': only(1, why='data parallelism is not supported; start several LLMs, each with its '
                                      'CUDA_VISIBLE_DEVICES'),
    'enable_expert_parallel': switch('--expert-parallel'),
    'distributed_executor_backend': only('mp', why=ONE_MACHINE),
    'worker_cls': only('auto', why='workers are nvllm\'s own'),
    'ray_workers_use_nsight': nothing,
    'guided_decoding_backend': only('auto', why='structured output is not supported; leave it out'),
    'structured_outputs_config': only({}, why='structured output is not supported; leave it out'),
    'reasoning_parser': only('', why='text comes as the model writes it; nvllm-launch serve --reasoning-parser tells '
                                     'thoughts from answers'),
    'attention_backend': no_effect('attention kernels are chosen by the GPU'),
    'attention_config': no_effect('attention kernels are chosen by the GPU'),
    'kv_transfer_config': only(why='the KV cache stays in the workers; leave it out'),
    'additional_config': only({}, why='there is nothing that would read it; leave it out'),
    'logits_processors': only([], why='Python does not run between two tokens; pass SamplingParams(logit_bias=...)'),
    'use_tqdm_on_load': nothing,
}

# More options of vLLM, by the reason why they are ignored or rejected.
VLLM_GROUPS = (
    (nothing, 'tokenizer_pool_size tokenizer_pool_type tokenizer_pool_extra_config max_parallel_loading_workers '
              'ignore_patterns model_loader_extra_config safetensors_load_strategy num_scheduler_steps '
              'multi_step_stream_outputs disable_hybrid_kv_cache_manager show_hidden_metrics_for_version '
              'kv_cache_metrics mm_processor_cache_gb mm_encoder_tp_mode interleave_mm_strings skip_mm_profiling '
              'stream_interval guided_decoding_disable_fallback guided_decoding_disable_any_whitespace '
              'guided_decoding_disable_additional_properties all2all_backend data_parallel_backend '
              'kv_sharing_fast_prefill'),
    (no_effect('the sizes of CUDA graphs are chosen by max_num_seqs; enforce_eager=True runs without them'),
     'cudagraph_capture_sizes max_cudagraph_capture_size optimization_level'),
    (only('auto', 'hf', why='config.json is read, or a GGUF file; pass "auto"'), 'config_format'),
    (only(False, '', {}, why=NO_LORA),
     'enable_lora_bias fully_sharded_loras lora_dtype lora_extra_vocab_size max_cpu_loras long_lora_scaling_factors '
     'default_mm_loras qlora_adapter_name_or_path enable_prompt_adapter max_prompt_adapters max_prompt_adapter_token'),
    (only(False, {}, why=NO_IMAGES), 'enable_mm_embeds enable_prompt_embeds media_io_kwargs'),
    (only({}, why='nvllm generates text, and nothing else'), 'pooler_config override_pooler_config '
                                                             'override_neuron_config'),
    (only(False, 0, {}, why='ranks have the experts that they have, each once'),
     'enable_eplb eplb_config enable_dbo num_redundant_experts enable_return_routed_experts'),
    (only(1, why='pass tensor_parallel_size'), 'decode_context_parallel_size prefill_context_parallel_size'),
    (only(0, why='data parallelism is not supported; start several LLMs, each with its CUDA_VISIBLE_DEVICES'),
     'data_parallel_rank data_parallel_size_local data_parallel_address data_parallel_rpc_port'),
    (only(0, why='speculative decoding is not supported; leave it out'),
     'speculative_model num_speculative_tokens speculative_max_model_len'),
    (only('auto', why='the models that nvllm runs have no such state; leave it out'),
     'mamba_cache_dtype mamba_ssm_cache_dtype mamba_block_size'),
    (only(why='there is no Python in the workers; leave it out'),
     'scheduler_cls worker_extension_cls io_processor_plugin logits_processor_pattern'),
    (only(why='pass profile="trace.json", or see the metrics of nvllm-launch serve'),
     'profiler_config otlp_traces_endpoint collect_detailed_traces kv_events_config'),
)
VLLM.update((name, apply) for apply, names in VLLM_GROUPS for name in names.split())

# Options of nano-vllm and of its fork for long prompts.
NANO = {
    'num_kvcache_blocks': only(-1, why='pass kv_cache_memory_bytes'),
    'hf_config': only(why='it is read from the model\'s folder; pass hf_overrides={...}'),
    'eos': only(-1, why='config.json and generation_config.json say it; pass SamplingParams(stop_token_ids=[...])'),
    'offload_policy': only('lru', why='which blocks stay on the device is decided by kv_resident_blocks'),
    'num_transfer_streams': no_effect('copies have streams of their own'),
    'num_cpu_kvcache_blocks': only(-1, why='pass kv_offloading_size, in GiB'),
    'num_gpu_kvcache_blocks': only(-1, why='pass kv_cache_memory_bytes'),
    'sparse_topk_blocks': no_effect('quest reads the 128 pages of 16 tokens with the highest estimated scores'),
    'sparse_threshold_blocks': no_effect('quest is for sequences of more than 128 pages'),
    'sparse_block_size': only(128, why='the tiles of xattention have 128 tokens; leave it out'),
    'sparse_samples_per_chunk': no_effect('xattention looks at the whole prompt'),
    'sparse_threshold': only(0.95, why='the threshold of xattention is 0.95; leave it out'),
    'sparse_stride': only(8, why='the stride of xattention is fixed; leave it out'),
    'sparse_use_triton': nothing,
    'sparse_chunk_size': nothing,
    'minference_adaptive_budget': only(0.3, why='the budget of minference is 0.3 of the prompt; leave it out'),
    'minference_vertical_size': no_effect('minference has an adaptive budget'),
    'minference_slash_size': no_effect('minference has an adaptive budget'),
    'minference_num_sink_tokens': only(30, why='minference keeps 30 of them; leave it out'),
    'minference_num_recent_diags': only(100, why='minference keeps 100 of them; leave it out'),
}

# MinivLLM's names for the same options.
SAME = {
    'model_name_or_path': 'model',
    'max_num_sequences': 'max_num_seqs',
    'max_num_batch_tokens': 'max_num_batched_tokens',
    'max_model_length': 'max_model_len',
    'world_size': 'tensor_parallel_size',
    'max_cached_blocks': 'num_kvcache_blocks',
}
SHAPES = ('vocab_size', 'hidden_size', 'num_heads', 'head_dim', 'num_kv_heads', 'intermediate_size', 'num_layers',
          'tie_word_embeddings', 'base', 'rms_norm_epsilon', 'qkv_bias', 'scale', 'max_position', 'ffn_bias')

KEYWORDS = {**PROGRAM, **VLLM, **NANO, **{name: only(why=IN_CONFIG) for name in SHAPES}}
# Options whose meanings depend on each other; see offload_arguments().
TOGETHER = ('enable_cpu_offload', 'num_gpu_blocks', 'kvcache_block_size', 'num_kv_buffers', 'sparse_policy')
# Also those that are not options of the program: arguments_of() handles `tokenizer` and `config`.
ALL_NAMES = (*KEYWORDS, *TOGETHER, *SAME, 'model', 'tokenizer', 'config')

SPARSE = {
    'FULL': [], 'MINFERENCE': ['--prefill-attention=minference'],
    'XATTENTION': ['--prefill-attention=xattention'], 'XATTN': ['--prefill-attention=xattention'],
    'XATTN_BSA': ['--prefill-attention=xattention'], 'QUEST': ['--decode-attention=quest'],
}


def offload_arguments(given):
    """Those of TOGETHER, whose meaning depends on whether the KV cache goes to host memory."""
    offload, buffers = given.get('enable_cpu_offload'), given.get('num_kv_buffers')
    blocks, block = given.get('num_gpu_blocks'), given.get('kvcache_block_size')
    arguments = []
    if offload:
        arguments.append('--kv-offload=' + ('layerwise' if buffers else 'chunked'))
        if buffers:
            arguments.append(f'--kv-buffers={buffers}')
    if blocks not in (None, -1):
        if not offload or buffers:
            raise OptionError(f'num_gpu_blocks={blocks}: counts slots of the ring of enable_cpu_offload=True; for the '
                              'size of the KV cache pass kv_cache_memory_bytes', 'num_gpu_blocks')
        arguments.append(f'--ring-slots={blocks}')
    if block is not None:
        arguments.append(f'--{"transfer-block" if offload else "block-size"}={block}')
    policy = given.get('sparse_policy')
    if policy is not None:
        name = str(getattr(policy, 'name', policy)).upper()
        if name not in SPARSE:
            raise OptionError(f'sparse_policy={policy!r}: must be FULL, MINFERENCE, XATTENTION or QUEST',
                              'sparse_policy')
        arguments += SPARSE[name]
    return arguments


def check_tokenizer(model, tokenizer):
    if tokenizer is not None and os.path.realpath(str(tokenizer)) != os.path.realpath(str(model)):
        raise OptionError(f'tokenizer={tokenizer!r}: {ONE_TOKENIZER}', 'tokenizer')


def merge_overrides(arguments):
    """Several --hf-overrides as one: the program takes the last."""
    prefix = '--hf-overrides='
    merged = {}
    for argument in arguments:
        if argument.startswith(prefix):
            merged.update(json.loads(argument[len(prefix):]))
    rest = [argument for argument in arguments if not argument.startswith(prefix)]
    return [*rest, prefix + json.dumps(merged)] if merged else rest


def unknown(name):
    near = difflib.get_close_matches(name, ALL_NAMES, 1)
    hint = f'did you mean {near[0]}?' if near else 'docs/from-nano-vllm.md has a table of all keywords'
    return OptionError(f'{name}: LLM() has no such keyword; {hint}', name)


def rename(keywords):
    """The keywords by the names of KEYWORDS; None means that one was not given."""
    given = {}
    config = keywords.get('config')
    if config is not None and not isinstance(config, dict):
        raise OptionError(f'config={config!r:.60}: must be a dictionary of keywords', 'config')
    for name, value in {**(config or {}), **keywords}.items():
        if name != 'config' and value is not None:
            given[SAME.get(name, name)] = value
    return given


def arguments_of(model, keywords):
    """The arguments of nvllm-launch serve. Raises an OptionError for a keyword that cannot be honoured."""
    given = rename(keywords if model is None else {**keywords, 'model': model})
    model = given.pop('model', None)
    check_tokenizer(model, given.pop('tokenizer', None))
    arguments = [] if model is None else [f'--model={os.path.expanduser(str(model))}']
    arguments += offload_arguments(given)
    for name, value in given.items():
        if name in TOGETHER:
            continue
        if name not in KEYWORDS:
            raise unknown(name)
        arguments += KEYWORDS[name](name, value)
    if 'log_level' not in given:
        arguments.append('--log-level=warning')
    return merge_overrides(arguments)
