// What inspect prints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model/model_loading.h"
#include "runtime/model/open_model.h"

namespace nvllm::launcher {

// The memory that a KV cache would have beside the weights, if the program ran here now.
struct KvMemory {
  std::string where = "";  // "this machine's free memory", "each GPU (90% of 141 GiB)"; empty: none
  std::uint64_t bytes = 0;  // with the weights
  bool shared = true;       // by all ranks; otherwise each has as much
};

// Bytes of the KV cache for a token, of all ranks together.
std::uint64_t kv_bytes_per_token(const runtime::ModelDescription& model);
std::uint64_t state_bytes_per_sequence(const runtime::ModelDescription& model);
// Of these bytes, those in layers that keep no more than a window (ModelConfig::window_group()).
std::uint64_t kv_window_bytes_per_token(const runtime::ModelDescription& model);
// How many tokens, of one sequence, fit into the memory beside the weights.
std::uint64_t tokens_that_fit(const runtime::ModelDescription& model, const KvMemory& memory);

struct InspectReport {
  std::int64_t started_ns = 0;  // the launcher's first instruction
  runtime::ModelDescription model;
  KvMemory kv_memory = {};
  std::vector<runtime::RankLoad> loads;  // of every rank; none: nothing was loaded
};

// A table for people: the model, the ranks, and which rows or columns of which tensors they own.
std::string format_table(const InspectReport& report);
// One JSON object with all of that, and every slice of every parameter.
std::string format_json(const InspectReport& report);

// How long all ranks together took, from the first one's start to the last one's end.
struct LoadSummary {
  double seconds = 0;
  double since_start = 0;  // of the program, until all ranks had loaded
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_loaded = 0;
  double bytes_per_second = 0;
};
LoadSummary summary_of(const InspectReport& report);

// 16 hexadecimal digits.
std::string format_checksum(std::uint64_t checksum);

}  // namespace nvllm::launcher
