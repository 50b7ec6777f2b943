#include "launcher/testing/bad_command_lines.h"

namespace nvllm::testing {
namespace {

// An option that `generate` rejects, with a prompt.
BadCommandLine bad(const std::string& option, const std::string& message) {
  return {{"generate", "--prompt-ids=1", option}, message};
}

std::vector<BadCommandLine> engine_lines() {
  return {
      bad("--max-model-len=0", "--max-model-len 0: out of range; pass 1 to 1073741824"),
      bad("--max-model-len=-5", "--max-model-len -5: out of range; pass 1 to 1073741824"),
      bad("--max-model-len=long",
          "--max-model-len 'long': not a number such as 4096, 32k, 512M or 4G"),
      bad("--max-model-len=", "--max-model-len '': not a number such as 4096, 32k, 512M or 4G"),
      bad("--max-model-len=k", "--max-model-len 'k': not a number such as 4096, 32k, 512M or 4G"),
      bad("--max-model-len=1.0005k",
          "--max-model-len '1.0005k': not a number such as 4096, 32k, 512M or 4G"),
      bad("--max-model-len=8T", "--max-model-len 8T: out of range; pass 1 to 1073741824"),
      bad("--max-seq-len=-1", "--max-seq-len -1: out of range; pass 0 to 1073741824"),
      bad("--max-seq-len=8T", "--max-seq-len 8T: out of range; pass 0 to 1073741824"),
      {{"generate", "--prompt-ids=1", "--max-seq-len=4K", "--max-model-len=5000"},
       "--max-model-len 5000: --max-seq-len 4096 holds no sequence as long; pass a larger "
       "--max-seq-len, or a smaller --max-model-len"},
      {{"generate", "--prompt-ids=1", "--max-seq-len=4K", "--kv-offload=layerwise"},
       "--max-seq-len 4096: keeps one sequence on the device, and --kv-offload keeps them in host "
       "memory; pass one of the two"},
      bad("--invariant=ep", "--invariant 'ep': no such kind of invariance; pass off, batch or tp"),
      {{"generate", "--prompt-ids=1", "--invariant=batch", "--prefill-attention=xattention"},
       "--invariant batch: --prefill-attention chooses tokens by the chunk that a row is in; pass "
       "--prefill-attention full, or --invariant off"},
      {{"generate", "--prompt-ids=1", "--invariant=tp", "--kv-offload=chunked",
        "--kv-host-attention=0.5"},
       "--invariant tp: --kv-host-attention combines the host's results with the device's; pass "
       "--kv-host-attention off, or --invariant off"},
      {{"generate", "--prompt-ids=1", "--invariant=batch", "--decode-attention=quest"},
       "--invariant batch: --decode-attention quest attends to other tokens than prefill does; "
       "pass --decode-attention full, or --invariant off"},
      {{"generate", "--prompt-ids=1", "--invariant=batch", "--kv-offload=auto",
        "--kv-host-attention=auto"},
       "--invariant batch: --kv-host-attention combines the host's results with the device's; pass "
       "--kv-host-attention off, or --invariant off"},
      bad("--kv-buffers=1",
          "--kv-buffers 1: a buffer cannot be loaded while it is read, and nothing would be loaded "
          "ahead; pass 2 or more"),
      bad("--ring-slots=1",
          "--ring-slots 1: a slot cannot be loaded while it is read, and nothing would be loaded "
          "ahead; pass 2 or more"),
      bad("--kv-resident-blocks=most",
          "--kv-resident-blocks 'most': not a number of blocks; pass auto, or 0 or more"),
      bad("--kv-resident-blocks=-1", "--kv-resident-blocks -1: out of range; pass 0 to 1073741824"),
      bad("--state-snapshots=many",
          "--state-snapshots 'many': not a number of snapshots; pass auto, or 0 or more"),
      bad("--state-snapshots=-1", "--state-snapshots -1: out of range; pass 0 to 1073741824"),
      bad("--kv-host-attention=some",
          "--kv-host-attention 'some': not a share; pass off, auto, or 0 to 1"),
      bad("--kv-host-attention=1.5", "--kv-host-attention 1.5: out of range; pass 0 to 1"),
      bad("--kv-host-threads=0", "--kv-host-threads 0: out of range; pass 1 to 1024"),
      bad("--kv-host-attention=auto",
          "--kv-host-attention auto: keys and values are paged, which the host's cores cannot "
          "attend to; pass --kv-offload chunked, or --kv-host-attention off"),
      {{"generate", "--prompt-ids=1", "--kv-host-attention=0.5", "--kv-offload=layerwise"},
       "--kv-host-attention 0.5: keys and values are layerwise, which the host's cores cannot "
       "attend to; pass --kv-offload chunked, or --kv-host-attention off"},
      {{"generate", "--prompt-ids=1", "--kv-host-attention=0.5", "--max-seq-len=4K"},
       "--kv-host-attention 0.5: keys and values are contiguous, which the host's cores cannot "
       "attend to; pass --kv-offload chunked, or --kv-host-attention off"},
      {{"bench", "long", "--modes=paged,layerwise", "--kv-host-attention=0.5"},
       "--kv-host-attention 0.5: keys and values are paged, which the host's cores cannot "
       "attend to; pass --kv-offload chunked, or --kv-host-attention off"},
      {{"generate", "--prompt-ids=1", "--kv-host-attention=0.5", "--kv-offload=chunked",
        "--decode-attention=quest"},
       "--kv-host-attention 0.5: --decode-attention quest gathers what it chooses; pass "
       "--decode-attention full, or --kv-host-attention off"},
      bad("--ring-slots=4",
          "--ring-slots 4: only --kv-offload chunked has a use for it, and it is off; pass that, "
          "or "
          "leave --ring-slots out"),
      bad("--transfer-block=64",
          "--transfer-block 64: only --kv-offload chunked or layerwise has a use for it, and it is "
          "off; pass that, or leave --transfer-block out"),
      bad("--kv-offloading-size=1",
          "--kv-offloading-size 1: only --kv-offload chunked or layerwise has a use for it, and it "
          "is off; pass that, or leave --kv-offloading-size out"),
      {{"generate", "--prompt-ids=1", "--kv-buffers=2", "--kv-offload=chunked"},
       "--kv-buffers 2: only --kv-offload layerwise has a use for it, and it is chunked; pass "
       "that, "
       "or leave --kv-buffers out"},
      {{"generate", "--prompt-ids=1", "--kv-resident-blocks=2", "--kv-offload=layerwise"},
       "--kv-resident-blocks 2: only --kv-offload chunked has a use for it, and it is layerwise; "
       "pass that, or leave --kv-resident-blocks out"},
      {{"generate", "--prompt-ids=1", "--kv-host-threads=2", "--kv-offload=chunked"},
       "--kv-host-threads 2: only --kv-host-attention has a use for them, and it is off; pass "
       "--kv-host-attention auto, or leave --kv-host-threads out"},
      bad("--kv-buffers=0", "--kv-buffers 0: out of range; pass 2 to 1024"),
      bad("--ring-slots=0", "--ring-slots 0: out of range; pass 2 to 1024"),
      bad("--transfer-block=100", "--transfer-block 100: not a multiple of 16; pass 96 or 112"),
      bad("--transfer-block=24", "--transfer-block 24: not a multiple of 16; pass 16 or 32"),
      bad("--transfer-block=8", "--transfer-block 8: out of range; pass 16 to 1073741824"),
      bad("--kv-offloading-size=0", "--kv-offloading-size 0: out of range; pass 0.001 to 1048576"),
      bad("--prefill-attention=sparse",
          "--prefill-attention 'sparse': no such kind of prefill attention; pass full, minference, "
          "xattention or auto"),
      bad("--decode-attention=minference",
          "--decode-attention 'minference': no such kind of decode attention; pass full or quest"),
      {{"generate", "--prompt-ids=1", "--decode-attention=quest", "--block-size=8"},
       "--decode-attention quest: --block-size is 8; it must be a multiple of 16"},
      bad("--max-num-seqs=0", "--max-num-seqs 0: out of range; pass 1 to 65536"),
      bad("--max-num-seqs=many", "--max-num-seqs 'many': not a whole number; pass 1 to 65536"),
      bad("--max-num-seqs=1e3", "--max-num-seqs '1e3': not a whole number; pass 1 to 65536"),
      bad("--max-num-batched-tokens=0",
          "--max-num-batched-tokens 0: out of range; pass 1 to 1073741824"),
      bad("--max-num-batched-tokens=nan",
          "--max-num-batched-tokens 'nan': not a number such as 4096, 32k, 512M or 4G"),
      bad("--max-num-batched-tokens=64",
          "--max-num-batched-tokens 64: less than --max-num-seqs 256, and every running sequence "
          "takes one token of a step; pass 256 or more, or a smaller --max-num-seqs"),
      bad("--block-size=0", "--block-size 0: out of range; pass 1 to 1024"),
      bad("--block-size=24", "--block-size 24: not a power of two; pass 16, 32, 64 or the like"),
      bad("--block-size=16.0", "--block-size '16.0': not a whole number; pass 1 to 1024"),
      bad("--gpu-memory-utilization=1.5",
          "--gpu-memory-utilization 1.5: out of range; pass 0.01 to 1"),
      bad("--gpu-memory-utilization=0", "--gpu-memory-utilization 0: out of range; pass 0.01 to 1"),
      bad("--gpu-memory-utilization=90%",
          "--gpu-memory-utilization '90%': not a number; pass 0.01 to 1"),
      bad("--kv-cache-memory-bytes=0",
          "--kv-cache-memory-bytes 0: out of range; pass 1 to 1125899906842624"),
      bad("--kv-cache-memory-bytes=4GB",
          "--kv-cache-memory-bytes '4GB': not a number such as 4096, 32k, 512M or 4G"),
      bad("--kv-cache-memory-bytes=inf",
          "--kv-cache-memory-bytes 'inf': not a number such as 4096, 32k, 512M or 4G"),
      bad("--enable-prefix-caching=yes", "--enable-prefix-caching takes no value; pass it alone"),
      bad("--no-enable-prefix-caching=1",
          "--no-enable-prefix-caching takes no value; pass it alone"),
      bad("--no-prefix-caching",
          "unknown option '--no-prefix-caching'; did you mean '--enable-prefix-caching'?"),
      bad("--scheduling=fair", "--scheduling 'fair': no such policy; pass prefill-first or mixed"),
      bad("--scheduling=Mixed",
          "--scheduling 'Mixed': no such policy; pass prefill-first or mixed"),
      bad("--preemption=drop",
          "--preemption 'drop': no such way to preempt; pass swap or recompute"),
      bad("--swap-space=-1", "--swap-space -1: out of range; pass 0 to 1048576"),
      bad("--swap-space=4G", "--swap-space '4G': not a number; pass 0 to 1048576"),
      bad("--enforce-eager=true", "--enforce-eager takes no value; pass it alone"),
      bad("--enforce-eagre", "unknown option '--enforce-eagre'; did you mean '--enforce-eager'?"),
      bad("--tune=on", "--tune 'on': no such way to tune; pass off, cached or full"),
      bad("--async-scheduling=off", "--async-scheduling takes no value; pass it alone"),
      bad("--seed=-1", "--seed -1: out of range; pass 0 to 9223372036854775807"),
      bad("--seed=random", "--seed 'random': not a whole number; pass 0 to 9223372036854775807"),
      bad("--profile=", "--profile '': pass a file for the trace, such as trace.json"),
  };
}

std::vector<BadCommandLine> sampling_lines() {
  return {
      bad("--max-tokens=0", "--max-tokens 0: out of range; pass 1 to 2147483647"),
      bad("--max-tokens=all", "--max-tokens 'all': not a whole number; pass 1 to 2147483647"),
      bad("--min-tokens=-1", "--min-tokens -1: out of range; pass 0 to 2147483647"),
      bad("--n=0", "--n 0: out of range; pass 1 to 16384"),
      bad("--n=16385", "--n 16385: out of range; pass 1 to 16384"),
      bad("--temperature=-0.1", "--temperature -0.1: out of range; pass 0 to 1000000"),
      bad("--temperature=hot", "--temperature 'hot': not a number; pass 0 to 1000000"),
      bad("--temperature=inf", "--temperature 'inf': not a number; pass 0 to 1000000"),
      bad("--top-p=0", "--top-p 0: leaves no token; pass more than 0, or --temperature 0"),
      bad("--top-p=1.1", "--top-p 1.1: out of range; pass 0 to 1"),
      bad("--top-k=-2", "--top-k -2: out of range; pass -1 to 2147483647"),
      bad("--min-p=2", "--min-p 2: out of range; pass 0 to 1"),
      bad("--repetition-penalty=0",
          "--repetition-penalty 0: is divided by; pass more than 0, 1 for none"),
      bad("--presence-penalty=3", "--presence-penalty 3: out of range; pass -2 to 2"),
      bad("--frequency-penalty=-3", "--frequency-penalty -3: out of range; pass -2 to 2"),
      bad("--stop-token-ids=1,,2",
          "--stop-token-ids '1,,2': '' is no token id; pass ids such as 1,2,3"),
      bad("--logprobs=-1", "--logprobs -1: out of range; pass 0 to 20"),
      bad("--logprobs=21", "--logprobs 21: out of range; pass 0 to 20"),
      bad("--prompt-logprobs=21", "--prompt-logprobs 21: out of range; pass 0 to 20"),
      bad("--prompt-logprobs=x", "--prompt-logprobs 'x': not a whole number; pass 0 to 20"),
      bad("--max_tokens=0", "--max_tokens 0: out of range; pass 1 to 2147483647"),
      bad("--ignore-eos=1", "--ignore-eos takes no value; pass it alone"),
  };
}

std::vector<BadCommandLine> prompt_lines() {
  return {
      {{"generate"},
       "generate needs a prompt: --prompt TEXT, --prompt-ids 1,2,3 or --input FILE.jsonl"},
      {{"generate", "--prompt-ids"}, "--prompt-ids needs a value: --prompt-ids ID,ID..."},
      {{"generate", "--prompt-ids="}, "--prompt-ids '': '' is no token id; pass ids such as 1,2,3"},
      {{"generate", "--prompt-ids=1, 2"},
       "--prompt-ids '1, 2': ' 2' is no token id; pass ids such as 1,2,3"},
      {{"generate", "--prompt-ids=-1"},
       "--prompt-ids '-1': '-1' is no token id; pass ids such as 1,2,3"},
      {{"generate", "--prompt-ids=hello"},
       "--prompt-ids 'hello': 'hello' is no token id; pass ids such as 1,2,3"},
      {{"generate", "--prompt-ids=99999999999"},
       "--prompt-ids '99999999999': '99999999999' is no token id; pass ids such as 1,2,3"},
      {{"generate", "--prompt-ids=1", "--input=a"},
       "--prompt-ids with --input a: pass one of them"},
      {{"generate", "--prompt=a", "--input=b"}, "--prompt with --input b: pass one of them"},
      {{"generate", "--prompt="}, "--prompt '': an empty prompt; pass a text"},
      {{"generate", "--prompt=a", "--stop="}, "--stop '': pass the text that ends an answer"},
      {{"generate", "--input="}, "--input '': pass a file of JSON lines, or - for standard input"},
      {{"generate", "--input=a", "--output="},
       "--output '': pass a file, or leave it out for standard output"},
      {{"generate", "--input=a", "--output=a"}, "--output a: is the input; pass another file"},
      {{"generate", "--input=a", "--resume"},
       "--resume: needs the file that an earlier run wrote; pass --output FILE.jsonl"},
      {{"generate", "--input=a", "--resume=b"}, "--resume takes no value; pass it alone"},
      {{"generate", "--input=a", "--overwrite"},
       "--overwrite: needs the file to begin anew; pass --output FILE.jsonl"},
      {{"generate", "--input=a", "--output=b", "--resume", "--overwrite"},
       "--overwrite with --resume: one throws away what the other keeps; pass one of them"},
      {{"generate", "--input=a", "--output=b", "--stream", "--resume"},
       "--stream with --resume: an output with pieces cannot be resumed; pass one of them"},
      bad("--generation-config=file",
          "--generation-config 'file': no such source; pass auto, none or vllm"),
      bad("--outptu=a", "unknown option '--outptu'; did you mean '--output'?"),
      bad("1,2,3", "'1,2,3': not an option; see nvllm-launch generate --help"),
      bad("--json", "unknown option '--json'; see nvllm-launch generate --help"),
  };
}

std::vector<BadCommandLine> chat_lines() {
  return {
      {{""}, "'': an empty prompt; pass a text"},
      {{"selftets"},
       "unknown command 'selftets'; did you mean 'selftest'? As a prompt: nvllm-launch -- "
       "selftets"},
      {{"caht"}, "unknown command 'caht'; did you mean 'chat'? As a prompt: nvllm-launch -- caht"},
      {{"generat", "--prompt=a"},
       "unknown command 'generat'; did you mean 'generate'? As a prompt: nvllm-launch -- generat"},
      {{"tokenise", "a"},
       "unknown command 'tokenise'; did you mean 'tokenize'? As a prompt: nvllm-launch -- "
       "tokenise"},
      {{"bnech", "latency"},
       "unknown command 'bnech'; did you mean 'bench'? As a prompt: nvllm-launch -- bnech"},
      {{"--tp=2", "selftest"},
       "'selftest': a command comes first: nvllm-launch selftest [OPTIONS]"},
      {{"--tp=2", "bench", "serve"},
       "'bench': a command comes first: nvllm-launch bench [OPTIONS]"},
      {{"Hi there", "and", "--tp=2"}, "'and': is a second prompt; put one with spaces in quotes"},
      {{"chat", "a", "b"}, "'b': is a second prompt; put one with spaces in quotes"},
      {{"--vresion"}, "unknown option '--vresion'; did you mean '--version'?"},
      {{"-v"}, "-v: pass --log-level debug to see more, or --version"},
      {{"a prompt", "--ttp=2"}, "unknown option '--ttp'; did you mean '--tp'?"},
      {{"chat", "--n=2"}, "unknown option '--n'; see nvllm-launch chat --help"},
      {{"chat", "--sytsem=a"}, "unknown option '--sytsem'; did you mean '--system'?"},
      {{"chat", "--chat-template="}, "--chat-template '': pass a file with a Jinja template"},
      {{"chat", "--temperature=hot"}, "--temperature 'hot': not a number; pass 0 to 1000000"},
      {{"chat", "--seed"}, "--seed needs a value: --seed N"},
  };
}

std::vector<BadCommandLine> bench_lines() {
  return {
      {{"bench"}, "bench: pass latency, long, serve, startup or throughput after it"},
      {{"bench", "--json"}, "bench: pass latency, long, serve, startup or throughput after it"},
      {{"bench", "latncy"}, "unknown command 'bench latncy'; did you mean 'bench latency'?"},
      {{"bench", "latency", "--batch-size=0"}, "--batch-size 0: a batch has at least one sequence"},
      {{"bench", "latency", "--batch-size=1,x"},
       "--batch-size '1,x': 'x' is no number of sequences; pass some such as 1,8,64"},
      {{"bench", "latency", "--batch-size=8", "--max-num-seqs=4"},
       "--batch-size 8: more than run at a time; pass --max-num-seqs 8"},
      {{"bench", "latency", "--input-len=1:2"},
       "--input-len 1:2: all sequences are of one length here; pass --input-len 2"},
      {{"bench", "throughput", "--input-len=9:3"},
       "--input-len 9:3: ends before it begins; pass 3:9"},
      {{"bench", "throughput", "--num-prompts=0"},
       "--num-prompts 0: out of range; pass 1 to 1000000"},
      {{"bench", "throughput", "--max-concurrency=-1"},
       "--max-concurrency -1: out of range; pass 1 to 1000000"},
      {{"bench", "throughput", "--warmup=some"},
       "--warmup 'some': not a whole number; pass 0 to 100000"},
      {{"bench", "throughput", "--prompts=3"},
       "unknown option '--prompts'; see nvllm-launch bench throughput --help"},
      {{"bench", "long", "--output-len=600", "--max-model-len=512"},
       "--output-len 600: leaves no room for a prompt in --max-model-len 512; pass a smaller one, "
       "or a larger --max-model-len"},
      {{"bench", "long", "--max-model-len=128"},
       "--output-len 128: leaves no room for a prompt in --max-model-len 128; pass a smaller one, "
       "or a larger --max-model-len"},
      {{"bench", "startup", "--repeat=0"}, "--repeat 0: out of range; pass 1 to 1000"},
      {{"bench", "startup", "--repeat=2", "--profile=t"},
       "--profile t with --repeat 2: a trace is of one run; pass --repeat 1"},
      {{"bench", "startup", "--output-len=3"},
       "unknown option '--output-len'; did you mean '--input-len'?"},
  };
}

std::vector<BadCommandLine> bench_serve_lines() {
  return {
      {{"bench", "serve", "--base-url=localhost:8000"},
       "--base-url 'localhost:8000': pass http://HOST:PORT or unix:/PATH of a server"},
      {{"bench", "serve", "--base-url=https://a"},
       "--base-url 'https://a': pass http://HOST:PORT or unix:/PATH of a server"},
      {{"bench", "serve", "--endpoint=/v1/embeddings"},
       "--endpoint '/v1/embeddings': pass /v1/completions or /v1/chat/completions"},
      {{"bench", "serve", "--request-rate=0"},
       "--request-rate 0: out of range; pass 0.000001 to 1000000"},
      {{"bench", "serve", "--api-key="}, "--api-key: is sent in a header; pass printable ASCII"},
      {{"bench", "serve", "--goodput=ttft"},
       "--goodput 'ttft': 'ttft' is no limit; pass some such as ttft:200,tpot:20,e2el:5000, in "
       "milliseconds"},
      {{"bench", "serve", "--goodput=itl:20"},
       "--goodput 'itl:20': 'itl:20' is no limit; pass some such as ttft:200,tpot:20,e2el:5000, in "
       "milliseconds"},
      {{"bench", "serve", "--extra-body=[]"}, "--extra-body '[]': pass an object of fields"},
      {{"bench", "serve", "--extra-body={"}, "--extra-body '{': no valid JSON"},
      {{"bench", "serve", "--extra-body={\"stream\": false}"},
       "--extra-body: stream is set by the benchmark; leave it out"},
      {{"bench", "serve", "--duration=5"},
       "--duration 5: sends without end; pass --max-concurrency or --request-rate, too"},
      {{"bench", "serve", "--duration=5", "--num-prompts=3"},
       "--duration 5 with --num-prompts 3: pass one of them"},
      {{"bench", "serve", "--tp=2"}, "unknown option '--tp'; see nvllm-launch bench serve --help"},
  };
}

std::vector<BadCommandLine> group_lines() {
  return {
      {{"selftest", "--tp", "0"}, "--tp 0: out of range; pass 1 to 8"},
      {{"selftest", "--tp=9"}, "--tp 9: out of range; pass 1 to 8"},
      {{"selftest", "--tp", "two"}, "--tp 'two': not a whole number; pass 1 to 8"},
      {{"selftest", "--tp", "2x"}, "--tp '2x': not a whole number; pass 1 to 8"},
      {{"selftest", "--tp", ""}, "--tp '': not a whole number; pass 1 to 8"},
      {{"selftest", "--tp", "-3"}, "--tp -3: out of range; pass 1 to 8"},
      {{"selftest", "--tp", "99999999999"}, "--tp 99999999999: out of range; pass 1 to 8"},
      {{"selftest", "--tp"}, "--tp needs a value: --tp N"},
      {{"selftest", "--tensor-paralel-size=2"},
       "unknown option '--tensor-paralel-size'; did you mean '--tensor-parallel-size'?"},
      {{"selftest", "--frobnicate"},
       "unknown option '--frobnicate'; see nvllm-launch selftest --help"},
      {{"selftest", "--device=gpu"},
       "--device 'gpu': no such kind of device; pass auto, cpu or cuda"},
      {{"selftest", "--step-timeout=0"},
       "--step-timeout 0: out of range; pass 0.001 to 1000000 seconds"},
      {{"selftest", "--step-timeout=soon"},
       "--step-timeout 'soon': not a number of seconds; pass one such as 2 or 0.5"},
      {{"selftest", "--step-timeout", "nan"},
       "--step-timeout 'nan': not a number of seconds; pass one such as 2 or 0.5"},
      {{"selftest", "--collectives=mpi"},
       "--collectives 'mpi': no such implementation; pass auto, shm, peer, nccl or two-level"},
      {{"selftest", "--log-level=loud"},
       "--log-level 'loud': no such level; pass debug, info, warning, error or off"},
      {{"selftest", "--seconds=-1"}, "--seconds -1: out of range; pass 0 to 1000000000"},
      {{"selftest", "--json=yes"}, "--json takes no value; pass it alone"},
      {{"selftest", "two"}, "'two': not an option; see nvllm-launch selftest --help"},
      {{"selftest", "--model=a"}, "unknown option '--model'; see nvllm-launch selftest --help"},
  };
}

std::vector<BadCommandLine> inspect_lines() {
  return {
      {{"inspect", "--model="},
       "--model '': pass a model's folder, its config.json, a .gguf file or a Hugging Face id"},
      {{"inspect", "--checksums"},
       "--checksums: are of weights that were loaded; pass --load, too"},
      {{"inspect", "--dtype=int8"},
       "--dtype 'int8': no such type; pass auto, bfloat16, float16, half, float32 or float"},
      {{"inspect", "--load-format=pt"},
       "--load-format 'pt': no such format; pass auto, dummy, safetensors or gguf"},
      {{"inspect", "--hf-overrides={vocab: 1}"},
       "--hf-overrides \"{vocab: 1}\": no valid JSON at line 1, column 2"},
      {{"inspect", "--hf-overrides=[]"},
       "--hf-overrides \"[]\": holds array, not an object such as {\"vocab_size\": 1000}"},
      {{"inspect", "a", "b"}, "'b': the model is a already; pass one of them"},
      {{"pull"}, "pull needs a model: pass its name, as Qwen/Qwen3-0.6B"},
      {{"pull", ""}, "pull '': pass the name of a model"},
      {{"pull", "a/b", "c/d"}, "'c/d': is a second model; pull one at a time"},
      {{"pull", "--model=a/b"}, "unknown option '--model'; see nvllm-launch pull --help"},
      {{"doctor", "--jsno"}, "unknown option '--jsno'; did you mean '--json'?"},
      {{"doctor", "now"}, "'now': not an option; see nvllm-launch doctor --help"},
      {{"doctor", "--tp=2"}, "unknown option '--tp'; see nvllm-launch doctor --help"},
  };
}

std::vector<BadCommandLine> serve_lines() {
  return {
      {{"serve", "--served-model-name", "a", "m", "b"},
       "'b': the model is m already; pass it before --served-model-name NAME NAME..."},
      {{"serve", "--default-chat-template-kwargs", "{bad"},
       "--default-chat-template-kwargs '{bad': no valid JSON at line 1, column 2; pass an object "
       "such as '{\"enable_thinking\": false}'"},
      {{"generate", "--prompt=a", "--default-chat-template-kwargs=[1]"},
       "--default-chat-template-kwargs '[1]': holds array; pass an object such as "
       "'{\"enable_thinking\": false}'"},
      {{"serve", "--default-chat-template-kwargs="},
       "--default-chat-template-kwargs '': no valid JSON at line 1, column 1; pass an object such "
       "as '{\"enable_thinking\": false}'"},
  };
}

std::vector<BadCommandLine> text_lines() {
  return {
      {{"tokenize"},
       "tokenize needs something to work on: --input FILE.jsonl, --input -, or a text"},
      {{"detokenize", "--model=a"},
       "detokenize needs something to work on: --input FILE.jsonl, --input -, or token ids"},
      {{"template", "hi", "--input=a"}, "'hi' with --input a: pass one of them"},
      {{"tokenize", "--input="}, "--input '': pass a file of JSON lines, or - for standard input"},
      {{"tokenize", "a", "--ad-special-tokens"},
       "unknown option '--ad-special-tokens'; did you mean '--add-special-tokens'?"},
      {{"tokenize", "--tp", "2"}, "unknown option '--tp'; see nvllm-launch tokenize --help"},
      {{"detokenize", "1", "--skip-special-tokens=1"},
       "--skip-special-tokens takes no value; pass it alone"},
      {{"template", "--chat-template="}, "--chat-template '': pass a file with a Jinja template"},
      {{"completion"}, "completion needs a shell: pass bash, zsh or fish"},
      {{"completion", "tcsh"}, "completion 'tcsh': no such shell; pass bash, zsh or fish"},
      {{"completion", "bash", "zsh"}, "'zsh': is a second shell; pass one of them"},
      {{"completion", "--shell=bash"},
       "unknown option '--shell'; see nvllm-launch completion --help"},
  };
}

std::vector<BadCommandLine> config_lines() {
  return {
      {{"doctor", "--config"}, "--config needs a value: --config FILE"},
      {{"selftest", "--config="}, "--config '': pass a file of options, as YAML or JSON"},
      {{"--config=/nowhere/c.json"},
       "--config /nowhere/c.json: No such file or directory (ENOENT); pass a file of options, as "
       "YAML or JSON"},
      {{"chat", "--config=a", "--config", "b"}, "--config a, --config b: pass one of them"},
  };
}

}  // namespace

std::vector<BadCommandLine> bad_command_lines() {
  std::vector<BadCommandLine> all;
  for (const auto& lines : {engine_lines(), sampling_lines(), prompt_lines(), chat_lines(),
                            bench_lines(), bench_serve_lines(), group_lines(), inspect_lines(),
                            serve_lines(), text_lines(), config_lines()}) {
    all.insert(all.end(), lines.begin(), lines.end());
  }
  return all;
}

}  // namespace nvllm::testing
