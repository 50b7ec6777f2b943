// nvllm-launch bench as a program, on the CPU, with a tiny model of random weights.
#include <doctest/doctest.h>
#include <pty.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json_text.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "launcher/testing/program.h"

namespace nvllm::launcher {
namespace {

using Json = nlohmann::json;
using testing::Program;

std::vector<std::string> arguments(const std::string& benchmark,
                                   const std::vector<std::string>& more) {
  std::vector<std::string> words = {"bench",
                                    benchmark,
                                    "--model",
                                    "tests/data/golden-models/qwen3-gqa-tied",
                                    "--load-format",
                                    "dummy",
                                    "--device",
                                    "cpu",
                                    "--kv-cache-memory-bytes",
                                    "16M",
                                    "--max-num-seqs",
                                    "8",
                                    "--max-num-batched-tokens",
                                    "256"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::string output_of(const std::string& benchmark, const std::vector<std::string>& more) {
  Program program(arguments(benchmark, more));
  const int exit_code = program.wait();
  REQUIRE_MESSAGE(exit_code == 0, program.errors());
  return program.output();
}

Json report_of(const std::string& benchmark, std::vector<std::string> more) {
  more.emplace_back("--json");
  return parse_json(output_of(benchmark, more));
}

// The events of a run's --profile.
Json trace_of(const std::string& benchmark, std::vector<std::string> more) {
  const char* folder = std::getenv("TEST_TMPDIR");
  const std::string path = str(folder != nullptr ? folder : "/tmp", "/bench_program_test.json");
  more.insert(more.end(), {"--profile", path});
  output_of(benchmark, more);
  std::ifstream file(path);
  Json events = read_json(file).at("traceEvents");
  std::filesystem::remove(path);
  return events;
}

// Track numbers by the names of process and track.
std::map<std::string, std::map<std::string, int>> tracks_of(const Json& events) {
  std::map<int, std::string> processes;
  std::map<std::string, std::map<std::string, int>> tracks;
  for (const Json& event : events) {
    const int process = event.at("pid");
    if (event.at("name") == "process_name") processes[process] = event.at("args").at("name");
    if (event.at("name") != "thread_name") continue;
    tracks[processes.at(process)][event.at("args").at("name")] = event.at("tid");
  }
  return tracks;
}

// The error text for a command line that is rejected.
std::string refusal(const std::string& benchmark, const std::vector<std::string>& more) {
  Program program(arguments(benchmark, more));
  CHECK(program.wait() == 2);
  CHECK(program.output() == "");
  return program.errors();
}

}  // namespace

TEST_CASE("throughput: every token that was asked for, nothing from a cache") {
  for (const char* ranks : {"1", "2"}) {
    const Json report =
        report_of("throughput", {"--tp", ranks, "--num-prompts", "12", "--input-len", "4:40",
                                 "--output-len", "3:9", "--max-concurrency", "5"});
    const Json& workload = report.at("workload");
    CHECK(workload.at("prompts") == 12);
    const double output = workload.at("output_tokens");
    CHECK(output >= 36);
    CHECK(output <= 108);
    CHECK(report.at("output_tokens_per_s").get<double>() ==
          doctest::Approx(output / report.at("seconds").get<double>()));
    CHECK(report.at("cached_prompt_tokens") == 0);
    CHECK(report.at("warmup").at("prompts") == 5);
    CHECK(json_text(report.at("ranks")) == ranks);
    const Json& work = report.at("work");
    CHECK(work.at("steps").get<double>() >= output / 5);
    CHECK(work.at("steps").get<double>() <= output + 12);
    CHECK(report.at("floor").at("seconds").get<double>() > 0);
    CHECK(report.at("token_ms").at("max").get<double>() <=
          report.at("seconds").get<double>() * 1e3);
    CHECK(report.at("first_token_ms").at("max").get<double>() <=
          report.at("seconds").get<double>() * 1e3);
  }
}

TEST_CASE("pipeline stages are measured, and the report says how many they are") {
  const std::vector<std::string> stages = {"--pp", "2", "--tp", "1", "--output-len", "8"};
  for (const char* benchmark : {"throughput", "latency"}) {
    std::vector<std::string> more = stages;
    if (benchmark == std::string("throughput")) {
      more.insert(more.end(), {"--num-prompts", "6", "--input-len", "4:20"});
    } else {
      more.insert(more.end(), {"--batch-size", "1,6", "--input-len", "20"});
    }
    const Json report = report_of(benchmark, more);
    CHECK(report.at("ranks") == 2);
    CHECK(report.at("stages") == 2);
    const std::string table = output_of(benchmark, more);
    CHECK(table.find("2 ranks in 2 stages on ") != std::string::npos);
    CHECK(table.find("stages that share all work evenly and never wait") != std::string::npos);
  }
  CHECK(refusal("long", {"--pp", "2"}).find("--pp") != std::string::npos);
}

TEST_CASE("throughput: the same seed asks for the same tokens") {
  const std::vector<std::string> more = {"--num-prompts", "4",   "--input-len",    "4:40",
                                         "--output-len",  "3:9", "--dataset-seed", "5"};
  const Json once = report_of("throughput", more), again = report_of("throughput", more);
  CHECK(once.at("workload") == again.at("workload"));
}

TEST_CASE("throughput: the hash is the same whatever runs at once, and another with another seed") {
  const auto hash = [](std::vector<std::string> more) {
    more.insert(more.end(), {"--num-prompts", "10", "--input-len", "4:90", "--output-len", "3:9",
                             "--dtype", "bfloat16", "--logprobs-hash"});
    return report_of("throughput", more).at("logprobs_hash").get<std::string>();
  };
  const std::string usual = hash({});
  CHECK(usual.size() == 16);
  CHECK(hash({"--max-num-seqs", "1"}) == usual);
  CHECK(hash({"--max-num-seqs", "3", "--max-num-batched-tokens", "16"}) == usual);
  CHECK(hash({"--max-concurrency", "2", "--scheduling", "prefill-first"}) == usual);
  CHECK(hash({"--dataset-seed", "1"}) != usual);
}

TEST_CASE("latency: each batch decodes as many steps as were asked, all sequences in each") {
  const Json report = report_of("latency", {"--batch-size", "1,4", "--input-len", "96",
                                            "--output-len", "12", "--warmup", "2"});
  const Json& batches = report.at("batches");
  REQUIRE(batches.size() == 2);
  for (const Json& batch : batches) {
    const double size = batch.at("batch");
    CHECK(batch.at("steps").get<double>() >= 12);
    CHECK(batch.at("mean_rows").get<double>() == doctest::Approx(size).epsilon(0.2));
    CHECK(batch.at("mean_context").get<double>() >= 96 + 6);
    CHECK(batch.at("cached_prompt_tokens") == 0);
    CHECK(batch.at("mean_step_ms").get<double>() > 0);
    CHECK(batch.at("prompts_s").get<double>() > 0);
    CHECK(batch.at("floor_ms").get<double>() > 0);
    // Most processors' caches hold the weights; then there is no share.
    const Json& share = batch.at("of_floor");
    CHECK((share.is_null() || share.get<double>() > 0));
    CHECK(batch.at("work").at("preemptions") == 0);
  }
}

TEST_CASE("latency: the measured prompts begin when no step of the warm-up is in flight") {
  constexpr std::size_t kBatch = 8;
  const Json events = trace_of("latency", {"--batch-size", str(kBatch), "--input-len", "96",
                                           "--output-len", "4", "--warmup", "3"});
  const auto times_of = [&](const char* name) {
    std::vector<double> times;
    for (const Json& event : events) {
      if (event.at("name") == name && event.at("ph") == "X") times.push_back(event.at("ts"));
    }
    std::sort(times.begin(), times.end());
    return times;
  };
  const std::vector<double> submits = times_of("submit");
  REQUIRE(submits.size() == 2 * kBatch);  // the warm-up's and the measured ones
  const auto before_prompts = [&](const char* name) {
    const std::vector<double> times = times_of(name);
    return std::lower_bound(times.begin(), times.end(), submits[kBatch]) - times.begin();
  };
  CHECK(before_prompts("send") > 3);  // of a step to the ranks
  CHECK(before_prompts("complete") == before_prompts("send"));
}

TEST_CASE(
    "long: each mode fills max_model_len twice, and moves nothing while all is on the device") {
  const Json report = report_of("long", {"--modes", "paged,contiguous", "--max-model-len", "200",
                                         "--output-len", "40", "--warmup", "16", "--link", "20"});
  CHECK(report.at("limits").at("link").at("to_host_gb_per_s") == 20);
  REQUIRE(report.at("modes").size() == 2);
  for (const Json& mode : report.at("modes")) {
    CAPTURE(json_text(mode));
    const Json &prefill = mode.at("prefill"), &decode = mode.at("decode");
    CHECK(prefill.at("tokens") == 199);
    CHECK(decode.at("steps") == 39);
    CHECK(decode.at("mean_context") == 180);
    for (const Json& part : {prefill, decode}) {
      CHECK(part.at("floor").at("compute_s").get<double>() > 0);
      CHECK(part.at("floor").at("link_s") == 0);
      CHECK(part.at("work").at("kv_bytes_to_host") == 0);
      CHECK(part.at("work").at("kv_bytes_to_device") == 0);
    }
  }
  CHECK(report.at("modes").at(0).at("kv_mode") == "paged");
  CHECK(report.at("modes").at(1).at("kv_mode") == "contiguous");
}

TEST_CASE(
    "long: one prompt is both that is timed and that is answered; the host's cores help in "
    "chunks") {
  const Json report =
      report_of("long", {"--modes", "paged,chunked", "--max-model-len", "200", "--output-len", "40",
                         "--one-prompt", "--warmup", "0", "--link", "20", "--transfer-block", "16",
                         "--kv-host-attention", "0.5"});
  CHECK(report.at("one_prompt") == true);
  for (const Json& mode : report.at("modes")) {
    CAPTURE(json_text(mode));
    CHECK(mode.at("prefill").at("tokens") == 160);
    CHECK(mode.at("prefill").at("seconds").get<double>() > 0);
    const Json &prefill = mode.at("prefill").at("work"), &decode = mode.at("decode").at("work");
    CHECK(prefill.at("rows").get<int>() >= 160);  // includes steps that ran before the request
    CHECK(prefill.at("rows").get<int>() + decode.at("rows").get<int>() < 160 + 2 * 40);
    CHECK(mode.at("decode").at("steps") == 39);
    const double by_host =
        prefill.at("kv_bytes_by_host").get<double>() + decode.at("kv_bytes_by_host").get<double>();
    CHECK((by_host > 0) == (mode.at("kv_mode") == "chunked"));
  }
}

TEST_CASE("long: what stays on the device comes back to it in no mode but chunked") {
  const Json report =
      report_of("long", {"--modes", "hybrid,chunked", "--max-model-len", "64", "--output-len", "30",
                         "--warmup", "0", "--link", "20", "--transfer-block", "16"});
  for (const int mode : {0, 1}) {
    CAPTURE(mode);
    const Json& decode = report.at("modes").at(mode).at("decode");
    const bool stays = mode == 0;
    CHECK(report.at("modes").at(mode).at("kv_mode") == (stays ? "hybrid" : "chunked"));
    CHECK((report.at("modes").at(mode).at("resident_blocks") > 0) == stays);
    CHECK((decode.at("work").at("kv_bytes_to_device") == 0) == stays);
    CHECK((decode.at("floor").at("link_s") == 0) == stays);
  }
}

TEST_CASE("long: a mode that cannot be says why, and the others are measured") {
  const Json report =
      report_of("long", {"--modes", "chunked,paged", "--max-model-len", "64", "--output-len", "4",
                         "--warmup", "0", "--link", "20", "--kv-offloading-size", "1048576"});
  CHECK(report.at("modes").at(0).at("error").get<std::string>() != "");
  CHECK(report.at("modes").at(1).at("prefill").at("tokens") == 63);
}

TEST_CASE("long: a length that the model cannot have is refused once, whatever the modes") {
  Program program(arguments("long", {"--modes", "paged,contiguous,chunked", "--max-model-len",
                                     "100000", "--output-len", "4"}));
  CHECK(program.wait() == 1);
  const std::string errors = program.errors();
  const std::size_t first = errors.find("exceeds the model's limit");
  REQUIRE(first != std::string::npos);
  CHECK(errors.find("exceeds the model's limit", first + 1) == std::string::npos);
}

TEST_CASE("long: without --max-model-len it is the model's limit where that is less than 40960") {
  const std::vector<std::string> words = {"--modes",        "paged,chunked",
                                          "--hf-overrides", R"({"max_position_embeddings": 64})",
                                          "--warmup",       "0",
                                          "--link",         "20",
                                          "--json"};
  const auto with_output = [&](const char* tokens) {
    std::vector<std::string> more = words;
    more.insert(more.end(), {"--output-len", tokens});
    return arguments("long", more);
  };
  Program program(with_output("4"));
  REQUIRE_MESSAGE(program.wait() == 0, program.errors());
  const Json report = parse_json(program.output());
  for (const Json& mode : report.at("modes")) CHECK(mode.at("prefill").at("tokens") == 63);
  CHECK(program.errors().find("max_model_len is 64, the model's limit, and not 40960\n") !=
        std::string::npos);
  Program refused(with_output("64"));
  CHECK(refused.wait() == 2);
  CHECK(refused.errors() ==
        "nvllm-launch: --output-len 64: leaves no room for a prompt in the model's limit of 64 "
        "tokens; pass a smaller one\n");
}

TEST_CASE("startup: stages in their order, again and again") {
  const Json report = report_of("startup", {"--repeat", "2", "--tp", "2"});
  REQUIRE(report.at("runs").size() == 2);
  for (const Json& run : report.at("runs")) {
    CHECK(run.at("exec_s").get<double>() > 0);
    const Json& stages = run.at("stages");
    CHECK(stages.at(0).at("after_s").get<double>() > 0);
    CHECK(stages.back().at("name") == "first token");
    for (const Json& stage : stages) CHECK(stage.at("after_s") <= stages.back().at("after_s"));
    CHECK(run.at("seconds").get<double>() ==
          doctest::Approx(run.at("exec_s").get<double>() +
                          stages.back().at("after_s").get<double>()));
  }
  CHECK(report.at("min_s") <= report.at("median_s"));
}

TEST_CASE("tables are for people") {
  const std::string table =
      output_of("latency", {"--batch-size", "2", "--input-len", "16", "--output-len", "4"});
  CHECK(table.find("of floor") != std::string::npos);
  CHECK(table.find("floor (roofline): ") != std::string::npos);
}

TEST_CASE("--profile writes a timeline of the launcher and of all ranks") {
  const Json events = trace_of(
      "throughput", {"--tp", "2", "--num-prompts", "4", "--input-len", "8", "--output-len", "8"});
  const auto tracks = tracks_of(events);
  CHECK(tracks.at("launcher").count("host") == 1);
  for (const char* rank : {"rank 0", "rank 1"}) {
    CHECK(tracks.at(rank).count("host") == 1);
    CHECK(tracks.at(rank).count("device") == 1);
  }
  CHECK(tracks.at("rank 1").count("rings") == 1);
  CHECK(tracks.size() == 3);
  for (const Json& event : events) {
    if (event.at("ph") == "X") CHECK(event.at("dur").get<double>() >= 0);
  }
}

TEST_CASE("the device computes nearly all the time: what the host does is hidden behind it") {
  // 28 MB of weights: a step of a millisecond or more.
  const Json events =
      trace_of("latency", {"--hf-overrides",
                           R"({"hidden_size": 512, "intermediate_size": 1536, "vocab_size": 8192})",
                           "--tp", "1", "--batch-size", "4", "--input-len", "16", "--output-len",
                           "64", "--warmup", "0"});
  const int device = tracks_of(events).at("rank 0").at("device");
  double begin = 1e300, end = 0, busy = 0;
  for (const Json& event : events) {
    if (event.at("ph") != "X" || event.at("name") != "step" || event.at("tid") != device) continue;
    if (event.at("args").at("step") == 1) continue;
    const double at = event.at("ts"), took = event.at("dur");
    begin = std::min(begin, at);
    end = std::max(end, at + took);
    busy += took;
  }
  REQUIRE(end > begin);
  CHECK(busy / (end - begin) >= 0.8);
}

TEST_CASE("a terminal sees how far a benchmark is, a pipe does not") {
  const std::vector<std::string> words =
      arguments("throughput", {"--num-prompts", "3000", "--input-len", "8", "--output-len", "16",
                               "--json", "--max-num-seqs", "8"});
  int ours = -1, theirs = -1;
  REQUIRE(::openpty(&ours, &theirs, nullptr, nullptr, nullptr) == 0);
  const UniqueFd our_side(ours);
  UniqueFd their_side(theirs);
  Program program(words, [&] { ::dup2(their_side.get(), STDERR_FILENO); });
  their_side.reset();
  std::string seen;
  std::array<char, 4096> piece;
  for (ssize_t got; (got = ::read(our_side.get(), piece.data(), piece.size())) > 0;) {
    seen.append(piece.data(), static_cast<std::size_t>(got));
  }
  CHECK(program.wait() == 0);
  CAPTURE(seen);
  CHECK(seen.find(" of 3000 requests done, ") != std::string::npos);
  CHECK(parse_json(program.output()).at("workload").at("prompts") == 3000);

  Program piped(words);
  CHECK(piped.wait() == 0);
  CHECK(piped.errors().find("measuring") == std::string::npos);
}

TEST_CASE("a trace that cannot be written fails the run") {
  Program program(arguments("throughput", {"--num-prompts", "1", "--input-len", "4", "--output-len",
                                           "2", "--profile", "/nowhere/trace.json"}));
  CHECK(program.wait() == 1);
  CHECK(program.output() == "");
  CHECK(program.errors().find("/nowhere/trace.json") != std::string::npos);
}

TEST_CASE("command lines that cannot be followed are refused before anything starts") {
  CHECK(refusal("latency", {"--batch-size", "9"}) ==
        "nvllm-launch: --batch-size 9: more than run at a time; pass --max-num-seqs 9\n");
  CHECK(
      refusal("latency", {"--input-len", "4:8"}) ==
      "nvllm-launch: --input-len 4:8: all sequences are of one length here; pass --input-len 8\n");
  CHECK(refusal("throughput", {"--output-len", "9:8"}) ==
        "nvllm-launch: --output-len 9:8: ends before it begins; pass 8:9\n");
  CHECK(refusal("startup", {"--repeat", "2", "--profile", "x"}) ==
        "nvllm-launch: --profile x with --repeat 2: a trace is of one run; pass --repeat 1\n");
}

TEST_CASE("a batch for which a sequence has no room is refused with the numbers") {
  Program program(arguments("latency", {"--max-model-len", "64", "--batch-size", "1"}));
  CHECK(program.wait() == 1);
  CHECK(program.errors().find("max_model_len is 64; pass a smaller --input-len") !=
        std::string::npos);
}

TEST_CASE("SIGINT ends many starts that a script runs in the background, with SIGINT ignored") {
  Program program(arguments("startup", {"--repeat", "1000"}), [] { ::signal(SIGINT, SIG_IGN); });
  const pid_t run = program.workers(1).front();
  program.signal(SIGINT);
  CHECK(program.wait(std::chrono::seconds(30)) == 1000 + SIGINT);
  for (int i = 0; i < 300 && !testing::process_gone(run); ++i) ::usleep(100'000);
  CHECK(testing::process_gone(run));
}

}  // namespace nvllm::launcher
