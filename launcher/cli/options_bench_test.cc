// The command lines of bench.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "launcher/cli/option_table.h"

namespace nvllm::launcher {
namespace {

Options parsed(std::vector<std::string> words) {
  words.insert(words.end(), {"--model", "somewhere", "--load-format", "dummy"});
  return parse_command_line(words);
}

std::string refusal(const std::vector<std::string>& words) {
  try {
    parsed(words);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a command may be two words, of which the first alone says what may follow") {
  CHECK(parsed({"bench", "latency"}).command == "bench latency");
  CHECK(parse_command_line({"bench", "startup", "--help"})
            .message.starts_with("nvllm-launch bench startup measures"));
  const std::string help = parse_command_line({"bench", "--help"}).message;
  for (const char* name :
       {"bench latency", "bench long", "bench serve", "bench startup", "bench throughput"}) {
    CHECK(help.find(name) != std::string::npos);
  }
  CHECK_THROWS_WITH_AS(parse_command_line({"bench"}),
                       "bench: pass latency, long, serve, startup or throughput after it",
                       UsageError);
  CHECK(refusal({"bench", "latenci"}) ==
        "unknown command 'bench latenci'; did you mean 'bench latency'?");
}

TEST_CASE("the benchmarks' own options") {
  const BenchOptions bench =
      parsed({"bench", "throughput", "--num-prompts", "7", "--input-len", "3:5", "--output-len",
              "9", "--max-concurrency", "2", "--dataset-seed", "4", "--warmup", "0", "--bandwidth",
              "1.5", "--tflops", "60", "--logprobs-hash"})
          .bench;
  CHECK(bench.prompts == 7);
  CHECK(bench.input->min == 3);
  CHECK(bench.input->max == 5);
  CHECK(bench.output->min == 9);
  CHECK(bench.output->max == 9);
  CHECK(bench.max_concurrency == 2);
  CHECK(bench.dataset_seed == 4);
  CHECK(bench.warmup == 0);
  CHECK(bench.logprobs_hash);
  CHECK(!parsed({"bench", "throughput"}).bench.logprobs_hash);
  CHECK(bench.bandwidth_tb_s == 1.5);
  CHECK(bench.tflops == 60);
  CHECK(parsed({"bench", "latency", "--batch-size", "1,16"}).bench.batch_sizes ==
        std::vector<std::int64_t>{1, 16});
  CHECK(parsed({"bench", "startup", "--repeat", "5"}).bench.repeat == 5);
}

TEST_CASE("long runs the modes that it is told, in their order") {
  CHECK(parsed({"bench", "long"}).bench.modes.size() == 5);
  const BenchOptions bench =
      parsed({"bench", "long", "--modes", "layerwise,hybrid", "--link", "50"}).bench;
  CHECK(bench.modes == std::vector{LongMode::layerwise, LongMode::hybrid});
  CHECK(bench.link_gb_s == 50);
  CHECK(refusal({"bench", "long", "--modes", "paged,"}).starts_with("--modes"));
  CHECK(refusal({"bench", "long", "--max-seq-len", "100"}) ==
        "bench long runs every mode that --modes names; pass that instead of --kv-offload or "
        "--max-seq-len");
  CHECK(refusal({"bench", "long", "--profile", "x", "--modes", "paged,chunked"}) ==
        "--profile x with 2 modes: a trace is of one run; pass --modes with one");
}

TEST_CASE("what does not go together is refused in one line with the fix") {
  CHECK(refusal({"bench", "latency", "--batch-size", "257"}) ==
        "--batch-size 257: more than run at a time; pass --max-num-seqs 257");
  CHECK(refusal({"bench", "latency", "--input-len", "4:8"}) ==
        "--input-len 4:8: all sequences are of one length here; pass --input-len 8");
  CHECK(refusal({"bench", "throughput", "--output-len", "9:8"}) ==
        "--output-len 9:8: ends before it begins; pass 8:9");
  CHECK(refusal({"bench", "startup", "--profile", "x", "--repeat", "2"}) ==
        "--profile x with --repeat 2: a trace is of one run; pass --repeat 1");
  CHECK(refusal({"bench", "latency", "--batch-size", "0"}) ==
        "--batch-size 0: a batch has at least one sequence");
}

TEST_CASE("the options of bench serve") {
  const Options options = parse_command_line({"bench",
                                              "serve",
                                              "--base-url",
                                              "http://a:1",
                                              "--base-url=unix:/b",
                                              "--endpoint",
                                              "/v1/chat/completions",
                                              "--model",
                                              "m",
                                              "--api-key",
                                              "k",
                                              "--request-rate",
                                              "2.5",
                                              "--burstiness",
                                              "0.5",
                                              "--max-concurrency",
                                              "64",
                                              "--num-prompts",
                                              "9",
                                              "--vocab-size",
                                              "500",
                                              "--no-ignore-eos",
                                              "--temperature",
                                              "0.6",
                                              "--top-p",
                                              "0.9",
                                              "--top-k",
                                              "40",
                                              "--extra-body",
                                              "{\"priority\": 1}",
                                              "--goodput",
                                              "ttft:200,e2el:5000",
                                              "--timeout",
                                              "3",
                                              "--save-requests",
                                              "f",
                                              "--warmup",
                                              "0",
                                              "--input-len",
                                              "3:5",
                                              "--json"});
  const BenchServeOptions& serve = options.bench_serve;
  CHECK(serve.base_urls == std::vector<std::string>{"http://a:1", "unix:/b"});
  CHECK(serve.chat());
  CHECK((serve.model == "m" && serve.api_key == "k"));
  CHECK((serve.request_rate == 2.5 && serve.burstiness == 0.5));
  CHECK((options.bench.max_concurrency == 64 && serve.prompts == 9 && serve.vocabulary == 500));
  CHECK(!serve.ignore_eos);
  CHECK((serve.temperature == 0.6 && serve.top_p == 0.9 && serve.top_k == 40));
  CHECK(serve.extra_body == "{\"priority\": 1}");
  CHECK((serve.goodput.ttft_ms == 200 && serve.goodput.e2el_ms == 5000));
  CHECK(!serve.goodput.tpot_ms);
  CHECK(serve.timeout == std::chrono::seconds(3));
  CHECK(serve.save_requests == "f");
  CHECK((options.bench.warmup == 0 && options.bench.input->max == 5));
  CHECK(parse_command_line({"bench", "serve", "--request-rate", "inf"}).bench_serve.request_rate ==
        BenchServeOptions().request_rate);
}

}  // namespace nvllm::launcher
