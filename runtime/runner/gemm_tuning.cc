#include "runtime/runner/gemm_tuning.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "kvcache/kv_cache.h"
#include "layers/context.h"
#include "runtime/runner/decode_graphs.h"

namespace nvllm::runtime {
namespace {

// With fewer rows GEMMs are bound by reading weights, so there is nothing to tune.
constexpr std::int64_t kMinRows = 17;
constexpr std::int64_t kMinPromptRows = 512;

// A KV cache without memory: keys and values are discarded, and attention leaves its output
// unchanged.
class NoCache final : public kvcache::ViewCache {
 public:
  explicit NoCache(const model::Decoder& decoder) {
    const kvcache::BlockShape shape = decoder.block_shape(/*block_size=*/1, decoder.dtype());
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      const kvcache::BlockShape::Heads heads = shape.heads_of(layer);
      kernels::KvView& none = views_.emplace_back();
      none.keys = none.values =
          TensorView(nullptr, decoder.dtype(), {0, 1, heads.kv_heads, heads.head_dim});
    }
  }
  void run_attention(std::int64_t, const kernels::Attention&, std::int64_t, Stream&) override {}
};

}  // namespace

std::vector<TunedSize> tuned_sizes(std::int64_t max_num_seqs, std::int64_t rows_at_once) {
  std::vector<TunedSize> sizes;
  for (std::int64_t rows = rows_at_once, next = 0; rows >= kMinPromptRows; rows = next) {
    sizes.push_back({rows, false});
    for (next = kMinPromptRows; 2 * next < rows; next *= 2) continue;
    if (next == rows) break;
  }
  const std::int64_t largest = std::min(max_num_seqs, rows_at_once);
  for (std::int64_t rows = largest; rows >= kMinRows; --rows) {
    const bool is_padded = padded_sequences(rows, max_num_seqs) == rows;
    if (is_padded) sizes.push_back({rows, true});
  }
  return sizes;
}

void tune_gemms(const TunedSize& size, const model::Decoder& decoder, model::DecoderMemory& memory,
                const model::ForwardResources& device, Backend& backend) {
  const auto bytes = static_cast<std::size_t>(size.rows) * sizeof(std::int64_t);
  const Buffer zeros = backend.allocate(MemoryKind::device, bytes, "tuning");
  const Buffer nowhere = backend.allocate(MemoryKind::device, bytes, "tuning");
  backend.fill(zeros.data(), 0, bytes, device.stream);
  backend.fill(nowhere.data(), 0xff, bytes, device.stream);  // -1
  layers::Batch batch;
  batch.tokens = batch.positions = TensorView(zeros.data(), DType::i32, {size.rows});
  batch.slot_mapping = TensorView(nowhere.data(), DType::i64, {size.rows});
  // For layers with linear attention: one sequence, of padding.
  batch.query_start = TensorView(zeros.data(), DType::i32, {2});
  batch.kv_length = TensorView(zeros.data(), DType::i32, {1});
  batch.state_slots = TensorView(nowhere.data(), DType::i32, {1});
  if (!size.decodes) batch.logit_rows = TensorView(zeros.data(), DType::i32, {1});
  NoCache cache(decoder);
  decoder.tune(batch, cache, memory, device);
}

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kHeader = "nvllm GEMM tuning, version 1\n";
// Name and header of the file in earlier versions.
constexpr const char* kOldName = "products.txt";
constexpr std::string_view kOldHeader = "nvllm products, version 1\n";
constexpr std::uintmax_t kMaxBytes = 64 << 20;

bool is_text(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

// Parses a line (without newline) and adds its configuration. False: it is malformed.
bool parse_line(std::string_view line, kernels::GemmConfigurations& configurations) {
  const std::size_t tab = line.find('\t');
  if (tab == std::string_view::npos) return false;
  const std::string_view key = line.substr(0, tab), configuration = line.substr(tab + 1);
  if (!is_text(key) || !is_text(configuration)) return false;
  configurations.insert_or_assign(std::string(key), std::string(configuration));
  return true;
}

// The file's text; empty if there is no such file.
std::string text_of(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return {};
  if (error || !fs::is_regular_file(status)) fail("not a file that can be read");
  if (fs::file_size(path) > kMaxBytes) fail("larger than a file of GEMM tuning can be");
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) fail("not a file that can be read");
  return text;
}

GemmTuningCache::Contents parse(std::string_view text) {
  GemmTuningCache::Contents contents;
  if (text.empty()) return contents;
  const std::string_view header = text.starts_with(kOldHeader) ? kOldHeader : kHeader;
  if (!text.starts_with(header)) {
    contents.problem = "not a file of GEMM tuning, or of another version; it is ignored";
    return contents;
  }
  text.remove_prefix(header.size());
  std::int64_t number = 1, first_bad = 0, bad = 0;
  while (!text.empty()) {
    ++number;
    const std::size_t end = text.find('\n');
    const bool whole = end != std::string_view::npos;  // otherwise it was truncated
    if (!whole || !parse_line(text.substr(0, end), contents.configurations)) {
      if (bad++ == 0) first_bad = number;
    }
    text.remove_prefix(whole ? end + 1 : text.size());
  }
  if (bad > 0) {
    contents.problem =
        str("line ", first_bad, " is no GEMM configuration",
            bad > 1 ? str(", and ", bad - 1, " more are none") : "", "; the others count");
  }
  return contents;
}

std::string format(const kernels::GemmConfigurations& configurations) {
  std::string text(kHeader);
  for (const auto& [key, configuration] : configurations)
    text.append(key).append("\t").append(configuration).append("\n");
  return text;
}

// Waits for the lock. On file systems without locks, concurrent writers may lose each other's
// entries.
UniqueFd lock(const std::string& path) {
  constexpr int kTries = 500;
  constexpr useconds_t kBetweenUs = 10'000;
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!file) fail_errno(path);
  for (int i = 0; ::flock(file.get(), LOCK_EX | LOCK_NB) != 0; ++i) {
    if (errno != EWOULDBLOCK && errno != EINTR) break;
    if (i == kTries) fail(path, ": another run has held this lock for seconds");
    ::usleep(kBetweenUs);
  }
  return file;
}

}  // namespace

GemmTuningCache::Contents GemmTuningCache::read() const {
  Contents contents;
  try {
    std::string text = text_of(path_);
    if (text.empty() && !fs::exists(path_))
      text = text_of(fs::path(path_).replace_filename(kOldName));
    contents = parse(text);
  } catch (const std::exception& error) {
    contents.problem = error.what();
  }
  if (!contents.problem.empty()) contents.problem = path_ + ": " + contents.problem;
  return contents;
}

void GemmTuningCache::add(const kernels::GemmConfigurations& configurations) const {
  std::error_code error;
  const fs::path folder = fs::path(path_).parent_path();
  fs::create_directories(folder, error);
  if (error) fail(folder.string(), ": ", error.message());
  const UniqueFd locked = lock(path_ + ".lock");
  kernels::GemmConfigurations all = read().configurations;
  for (const auto& [key, configuration] : configurations) all.insert_or_assign(key, configuration);
  replace(format(all));
}

void GemmTuningCache::replace(const std::string& text) const {
  std::string written = path_ + ".XXXXXX";
  UniqueFd file(::mkostemp(written.data(), O_CLOEXEC));
  if (!file) fail_errno(written);
  try {
    for (std::size_t at = 0; at < text.size();) {
      const ssize_t some = ::write(file.get(), text.data() + at, text.size() - at);
      if (some < 0 && errno != EINTR) fail_errno(written);
      if (some > 0) at += static_cast<std::size_t>(some);
    }
    if (::fchmod(file.get(), 0644) != 0) fail_errno(written);
    if (std::rename(written.c_str(), path_.c_str()) != 0) fail_errno(path_);
  } catch (...) {
    ::unlink(written.c_str());
    throw;
  }
}

}  // namespace nvllm::runtime
