// nvllm-launch inspect as a program, on the CPU.
#include <doctest/doctest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"
#include "launcher/testing/program.h"
#include "testing/ranks.h"
#include "testing/sanitizers.h"

namespace nvllm::launcher {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing::Program;

constexpr const char* kModels = "tests/data/golden-models";

std::string golden(const std::string& name) {
  return str(kModels, '/', name);
}

std::vector<std::string> arguments(const std::string& model, int ranks,
                                   const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = {
      "inspect", "--model", model, "--device", "cpu", "--tp", std::to_string(ranks)};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Whether it is one line saying that some tensors are not loaded.
bool is_about_skipped_tensors(const std::string& errors) {
  return errors.ends_with(" are not loaded\n") &&
         std::count(errors.begin(), errors.end(), '\n') == 1;
}

Json inspect(const std::string& model, int ranks, std::vector<std::string> more = {}) {
  more.emplace_back("--json");
  Program program(arguments(model, ranks, more));
  const int exit_code = program.wait();
  REQUIRE_MESSAGE(exit_code == 0, program.errors());
  CHECK((program.errors().empty() || is_about_skipped_tensors(program.errors())));
  return parse_json(program.output());
}

// The error of a run that fails, which must be exactly one line.
std::string refusal(const std::vector<std::string>& words, int expected_exit_code) {
  Program program(words);
  CHECK(program.wait() == expected_exit_code);
  CHECK(program.output() == "");
  const std::string errors = program.errors();
  CHECK(std::count(errors.begin(), errors.end(), '\n') == 1);
  CHECK(errors.starts_with("nvllm-launch: "));
  return errors;
}

std::int64_t area(const Json& range_of_rows, const Json& range_of_columns) {
  const auto size = [](const Json& range) {
    return range[1].get<std::int64_t>() - range[0].get<std::int64_t>();
  };
  return size(range_of_rows) * size(range_of_columns);
}

// A temporary copy of a golden model that can be modified.
class Copy {
 public:
  explicit Copy(const std::string& name) {
    path = (fs::temp_directory_path() / "inspect_XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) fail_errno("mkdtemp ", path);
    for (const auto& entry : fs::directory_iterator(golden(name))) {
      const fs::path to = fs::path(path) / entry.path().filename();
      fs::copy_file(entry.path(), to);
      fs::permissions(to, fs::perms::owner_write, fs::perm_options::add);
    }
  }
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;
  ~Copy() { fs::remove_all(path); }

  std::string path;
};

bool has_quantized(const Json& encodings) {
  return encodings.contains("F8_E4M3") || encodings.contains("I4") || encodings.contains("MXFP4");
}

// Loads four gigabytes of random values, which takes a while.
std::vector<std::string> long_load(int ranks) {
  return arguments(
      golden("llama-tied"), ranks,
      {"--load", "--load-format", "dummy", "--hf-overrides",
       R"({"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 160})"});
}

}  // namespace

TEST_CASE("every golden model at 1 to 4 ranks: bytes add up, and nothing is owned by nobody") {
  for (const auto& entry : fs::directory_iterator(kModels)) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      const std::string model = entry.path().filename().string();
      CAPTURE(model);
      CAPTURE(ranks);
      const Json json = inspect(golden(model), ranks);
      REQUIRE(json.at("ranks").size() == static_cast<std::size_t>(ranks));
      std::map<std::string, std::int64_t> owned, whole;
      for (const Json& rank : json.at("ranks")) {
        std::uint64_t bytes = 0, as_floats = 0;
        for (const Json& parameter : rank.at("tensors")) {
          bytes += parameter.at("bytes").get<std::uint64_t>();
          std::uint64_t float_bytes = parameter.at("format") == "float32" ? 4 : 2;
          for (const Json& size : parameter.at("shape")) float_bytes *= size.get<std::uint64_t>();
          as_floats += float_bytes;
          for (const Json& slice : parameter.at("slices")) {
            const std::string tensor = slice.at("tensor");
            owned[tensor] += area(slice.at("rows"), slice.at("columns"));
            whole[tensor] = 1;
            for (const Json& size : slice.at("shape")) whole[tensor] *= size.get<std::int64_t>();
          }
        }
        CHECK(rank.at("bytes") == bytes);
        const auto& encodings = json.at("checkpoint").at("encodings");
        const bool quantized = has_quantized(encodings);
        CHECK((quantized ? rank.at("bytes") <= as_floats : rank.at("bytes") == as_floats));
        CHECK(rank.at("allocated_bytes") >= rank.at("bytes"));
      }
      // Some tensors of hybrids and of Gemma 4 are skipped; if Gemma 4's values are its keys, their
      // tensor is loaded twice.
      const bool is_gemma4 = model.starts_with("gemma4");
      const bool skips = json.at("config").contains("linear_attention") || is_gemma4;
      const std::int64_t max_copies = is_gemma4 ? 2 : 1;
      const auto tensors = json.at("checkpoint").at("tensors").get<std::size_t>();
      CHECK((skips ? whole.size() <= tensors : whole.size() == tensors));
      for (const auto& item : whole) {
        const std::string& tensor = item.first;
        const std::int64_t elements = item.second;
        const std::int64_t copies = tensor.ends_with("k_proj.weight") ? max_copies : 1;
        const bool enough = owned[tensor] >= elements && owned[tensor] <= copies * ranks * elements;
        CHECK_MESSAGE(enough, tensor);
        if (ranks == 1 && copies == 1) CHECK(owned[tensor] == elements);
      }
      const auto& stored = json.at("checkpoint");
      const auto& encodings = stored.at("encodings");
      const bool quantized = has_quantized(encodings);
      // Scales have 32 bits in memory, one per group, but fewer in files; 4-bit rows are padded to
      // 128 inputs.
      if (ranks == 1 && quantized)
        CHECK(stored.at("bytes") < 2 * json.at("ranks")[0].at("bytes").get<std::uint64_t>());
      if (ranks == 1 && !quantized && !skips)
        CHECK(stored.at("bytes") == json.at("ranks")[0].at("bytes"));
    }
  }
}

TEST_CASE("every rank loads what it owns, to the byte, and its memory holds as much") {
  for (const char* model : {"qwen3-uneven", "qwen2-bias"}) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      CAPTURE(std::string(model));
      CAPTURE(ranks);
      const Json json = inspect(golden(model), ranks, {"--load"});
      std::uint64_t sum = 0;
      for (const Json& rank : json.at("ranks")) {
        const Json& load = rank.at("load");
        CHECK(load.at("bytes_loaded") == rank.at("bytes"));
        CHECK(load.at("bytes_read") > 0);
        CHECK(load.at("begun_s") < load.at("loaded_s"));
        CHECK(load.at("loaded_s") <= json.at("load").at("since_start_s"));
        sum += rank.at("bytes").get<std::uint64_t>();
        std::uint64_t weights = 0;
        for (const Json& line : load.at("memory")) {
          if (line.at("purpose") == "weights") weights += line.at("bytes").get<std::uint64_t>();
        }
        CHECK(weights == rank.at("allocated_bytes"));
      }
      CHECK(json.at("load").at("bytes_loaded") == sum);
    }
  }
  CHECK(testing::lingering_shm_names().empty());
}

TEST_CASE("checksums are the same in every run, and others for other values") {
  const auto checksums = [](const std::vector<std::string>& how, int ranks = 1) {
    std::vector<std::string> more = {"--load", "--checksums"};
    more.insert(more.end(), how.begin(), how.end());
    return inspect(golden("qwen3-uneven"), ranks, more).at("ranks")[0].at("load").at("checksums");
  };
  const Json first = checksums({});
  CHECK(first.size() == 19);
  CHECK(first == checksums({}));
  CHECK(first != checksums({"--dtype", "float16"}));
  const Json dummy = checksums({"--load-format=dummy"});
  CHECK(dummy == checksums({"--load-format=dummy"}));
  CHECK(dummy != first);
  // Tensors that every rank owns entirely do not depend on the number of ranks.
  for (const char* name : {"norm.weight", "layers.1.attention.q_norm.weight"}) {
    CHECK(dummy.at(name) == checksums({"--load-format=dummy"}, 2).at(name));
    CHECK(first.at(name) == checksums({}, 2).at(name));
  }
}

TEST_CASE("--dtype float32 takes twice the bytes") {
  const Json half = inspect(golden("mistral-hd128"), 2, {"--load"});
  const Json full = inspect(golden("mistral-hd128"), 2, {"--load", "--dtype", "float32"});
  CHECK(full.at("load").at("bytes_loaded") ==
        2 * half.at("load").at("bytes_loaded").get<std::uint64_t>());
  CHECK(full.at("dtype") == "float32");
}

TEST_CASE("the table goes to standard output, and tells what was loaded") {
  Program program(arguments(golden("llama-llama3"), 2, {"--load"}));
  CHECK(program.wait() == 0);
  CHECK(program.errors() == "");
  const std::string text = program.output();
  INFO(text);
  CHECK(text.starts_with("nvllm 0.2.0 inspect: LlamaForCausalLM, "));
  CHECK(text.find("llama3, theta 10000, factor 8, made for 64 positions") != std::string::npos);
  CHECK(text.find("all ranks had loaded ") != std::string::npos);
}

TEST_CASE("a config.json alone is enough for a dummy, and to be looked at") {
  const std::string config = golden("qwen2-bias") + "/config.json";
  CHECK(inspect(config, 2).at("checkpoint").is_null());
  CHECK(inspect(config, 2, {"--load", "--load-format", "dummy"}).at("load").at("bytes_loaded") > 0);
  CHECK(refusal(arguments(config, 2, {"--load"}), 2).find("--load-format dummy") !=
        std::string::npos);
}

TEST_CASE("what is wrong with a file is told in one line, with and without --load") {
  const Copy copy("qwen2-bias");
  const std::string file = copy.path + "/model.safetensors";
  fs::resize_file(file, fs::file_size(file) - 100);
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--load"}}) {
    CHECK(refusal(arguments(copy.path, 2, more), 1).find(file) != std::string::npos);
    CHECK(refusal(
              arguments(golden("qwen2-bias"), 2, {"--hf-overrides", R"({"num_hidden_layers": 3})"}),
              1)
              .find("model.layers.2.") != std::string::npos);
  }
  CHECK(refusal(arguments("/nowhere", 1), 1).find("/nowhere: no such folder") != std::string::npos);
}

TEST_CASE("what this program cannot compute is refused by name") {
  const auto with = [](const char* overrides) {
    return refusal(arguments(golden("qwen2-bias"), 1, {"--hf-overrides", overrides}), 1);
  };
  CHECK(with(R"({"architectures": ["MambaForCausalLM"]})").find("MambaForCausalLM") !=
        std::string::npos);
  CHECK(with(R"({"num_experts": 8})").find("num_experts 8") != std::string::npos);
  CHECK(with(R"({"rope_scaling": {"rope_type": "longrope"}})").find("longrope") !=
        std::string::npos);
}

TEST_CASE("bad overrides are a wrong command line") {
  refusal(arguments(golden("qwen2-bias"), 1, {"--hf-overrides", "{"}), 2);
}

TEST_CASE("a worker that is killed while it loads is named, and nothing is left") {
  Program program(long_load(2));
  const std::vector<pid_t> workers = program.workers(2);
  ::usleep(30'000);
  ::kill(workers[1], SIGKILL);
  CHECK(program.wait() == 3);
  CHECK(program.output() == "");
  CHECK(program.errors().find(str("rank 1 (pid ", workers[1], ") died: killed by SIGKILL")) !=
        std::string::npos);
  for (const pid_t pid : workers) CHECK(testing::process_gone(pid));
  CHECK(testing::lingering_shm_names().empty());
}

TEST_CASE("SIGINT ends a load within 2 s") {
  Program program(long_load(2));
  const std::vector<pid_t> workers = program.workers(2);
  ::usleep(30'000);
  const std::int64_t start = now_ns();
  program.signal(SIGINT);
  CHECK(program.wait() == 130);
  CHECK(seconds_since(start) < 2 * testing::kLoad);
  for (const pid_t pid : workers) CHECK(testing::process_gone(pid));
}

}  // namespace nvllm::launcher
