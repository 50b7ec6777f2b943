// Formats the output of inspect.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model/model_loading.h"
#include "runtime/model/open_model.h"

namespace nvllm::launcher {

// The memory that weights and KV cache would share if the program ran here now.
struct KvMemory {
  std::string where = "";   // "this machine's free memory", "each GPU (90% of 141 GiB)"; empty:
                            // unknown
  std::uint64_t bytes = 0;  // including weights
  bool shared = true;       // shared by all ranks; otherwise each has this much
};

// Bytes of the KV cache per token, for all ranks together.
std::uint64_t kv_bytes_per_token(const runtime::ModelDescription& model);
std::uint64_t state_bytes_per_sequence(const runtime::ModelDescription& model);
// The part of these bytes in layers that keep only a window (ModelConfig::window_group()).
std::uint64_t kv_window_bytes_per_token(const runtime::ModelDescription& model);
// How many tokens of one sequence fit into the memory beside the weights.
std::uint64_t tokens_that_fit(const runtime::ModelDescription& model, const KvMemory& memory);

// Where a rank has loaded, if there are several boxes (machines).
struct RankPlace {
  int box = 0;
  std::string text;  // "box 1 (node17)"
};

struct InspectReport {
  std::int64_t started_ns = 0;  // start of the launcher
  runtime::ModelDescription model;
  KvMemory kv_memory = {};
  std::vector<runtime::RankLoad> loads;  // of every rank; none: nothing was loaded
  std::vector<RankPlace> places = {};    // of every rank, too; none: there is one box
};

// A readable table: the model, the ranks, and the rows or columns of each tensor that they own.
std::string format_table(const InspectReport& report);
// One JSON object with the same data, and every slice of every parameter.
std::string format_json(const InspectReport& report);

// The time from the first rank's start to the last one's end.
struct LoadSummary {
  double seconds = 0;
  double since_start = 0;  // from the program's start until all ranks had loaded
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_loaded = 0;
  double bytes_per_second = 0;
};
LoadSummary summary_of(const InspectReport& report);

// 16 hexadecimal digits.
std::string format_checksum(std::uint64_t checksum);

}  // namespace nvllm::launcher
