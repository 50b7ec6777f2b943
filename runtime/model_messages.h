// What the launcher, rank 0 and the other ranks tell each other while a model is loaded.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/rank_report.h"

namespace nvllm::runtime {

// Of one rank, in bytes of its parameters.
struct LoadState {
  std::uint64_t bytes = 0;
  std::uint64_t total = 0;
  bool done = false;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(bytes, total, done);
  }
};

// One rank's load, from its first step until its parameters could be used. Times in now_ns().
struct LoadTimes {
  std::int64_t begun_ns = 0;
  std::int64_t loaded_ns = 0;
  std::uint64_t bytes_read = 0;    // from files
  std::uint64_t bytes_loaded = 0;  // of parameters

  double seconds() const { return static_cast<double>(loaded_ns - begun_ns) * 1e-9; }
  template <class Archive>
  void serialize(Archive& archive) {
    archive(begun_ns, loaded_ns, bytes_read, bytes_loaded);
  }
};

struct ParameterChecksum {
  std::string name;
  std::uint64_t checksum = 0;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(name, checksum);
  }
};

struct RankLoad {
  RankReport report;
  LoadTimes times;
  std::vector<ParameterChecksum> checksums;  // none unless asked for

  template <class Archive>
  void serialize(Archive& archive) {
    archive(report, times, checksums);
  }
};

struct LoadRequest {
  bool checksums = false;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(checksums);
  }
};

}  // namespace nvllm::runtime
