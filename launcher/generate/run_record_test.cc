// The record that a run stores next to its output, so that --resume does not mix results.
#include "launcher/generate/run_record.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "base/error.h"
#include "model/testing/test_folder.h"

namespace nvllm::launcher {
namespace {

const std::string kModel = "tests/data/golden-models/llama-tied";

RunRecord record_of(const std::string& model, const Options& options = {},
                    const runtime::SamplingParams& defaults = {}) {
  return run_record(options, runtime::open_model({.path = model}), defaults);
}

// Why a run may not continue another one's output; "": it may.
std::string refusal(const RunRecord& earlier, const RunRecord& now) {
  const model::TestFolder folder;
  const std::string output = folder.path("out.jsonl");
  write_run_record(output, earlier);
  try {
    CHECK(check_run_record(output, now));
    return "";
  } catch (const Error& error) {
    std::string message = error.what();
    message.replace(message.find(output), output.size(), "OUT");
    return message;
  }
}

// Copies the model, so that it can be changed.
void copy_model(const model::TestFolder& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(kModel)) {
    std::filesystem::copy_file(std::filesystem::canonical(entry.path()),
                               folder.path(entry.path().filename()));
  }
}

}  // namespace

TEST_CASE("the same model and options may continue, wherever the model lies") {
  const model::TestFolder folder;
  copy_model(folder);
  CHECK(refusal(record_of(kModel), record_of(folder.path(""))) == "");
}

TEST_CASE("one changed byte in the middle of the weights is another model") {
  const model::TestFolder folder;
  copy_model(folder);
  const RunRecord before = record_of(folder.path(""));
  const std::string path = folder.path("model.safetensors");
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(std::filesystem::file_size(path) / 32 * 16 + 100));
  file.put('\x55').put('\x56').put('\x57');
  file.close();
  CHECK(refusal(before, record_of(folder.path(""))) ==
        "--resume: OUT has answers of another model; pass that one, or another --output");
}

TEST_CASE("an option that differs is named with both values") {
  CHECK(refusal(record_of(kModel, {}, {.temperature = 0.5}),
                record_of(kModel, {}, {.temperature = 0})) ==
        "--resume: OUT was started with another --temperature (0.5, now 0.0); pass the same, or "
        "another --output");
  Options other;
  other.engine.seed = 3;
  CHECK(refusal(record_of(kModel), record_of(kModel, other)).find("another --seed (0, now 3)") !=
        std::string::npos);
  other = {};
  other.generate.stop = {"x"};
  CHECK(refusal(record_of(kModel), record_of(kModel, other)).find("another --stop") !=
        std::string::npos);
  other = {};
  other.engine.kv_cache_dtype = runtime::KvCacheDtype::fp8_e4m3;
  CHECK(refusal(record_of(kModel), record_of(kModel, other)).find("another --kv-cache-dtype") !=
        std::string::npos);
  const RunRecord quantized = run_record(
      {}, runtime::open_model({.path = kModel, .quantization = {.weight_only = true}}), {});
  CHECK(refusal(record_of(kModel), quantized).find("another --activation-quant (auto, now off)") !=
        std::string::npos);
  // Options that do not change answers may differ.
  other = {};
  other.engine.max_num_seqs = 3;
  CHECK(refusal(record_of(kModel), record_of(kModel, other)) == "");
}

TEST_CASE("no record, and a broken one") {
  const model::TestFolder folder;
  CHECK_FALSE(check_run_record(folder.path("out"), record_of(kModel)));
  folder.write("out.run", "{\"--model\": 5}");
  CHECK_THROWS_AS(check_run_record(folder.path("out"), record_of(kModel)), Error);
}

}  // namespace nvllm::launcher
