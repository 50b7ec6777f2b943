#include "kvcache/chunked/host_attention.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/math.h"

namespace nvllm::kvcache {
namespace {

// The device's work between two layers' attention takes some hundred microseconds, and on virtual
// machines waking a pool takes as long.
constexpr Nanoseconds kSpin = std::chrono::milliseconds(1);

std::size_t bytes_of(std::int64_t elements, DType dtype) {
  return static_cast<std::size_t>(elements) * size_of(dtype);
}

}  // namespace

HostAttention::HostAttention(Backend& backend, const Limits& limits, const OffloadHooks& hooks)
    : backend_(backend),
      limits_(limits),
      hooks_(hooks),
      part_bytes_(2 * limits.shape.layer_elements() *
                  static_cast<std::int64_t>(size_of(limits.shape.dtype))),
      max_row_stride_((limits.heads + 2 * limits.shape.kv_heads) * limits.shape.head_dim),
      queries_(backend.allocate(MemoryKind::pinned,
                                bytes_of(limits.sequences * max_row_stride_, limits.queries()),
                                "host attention")),
      out_(backend.allocate(
          MemoryKind::pinned,
          bytes_of(limits.sequences * limits.heads * limits.shape.head_dim, DType::f32),
          "host attention")),
      lse_(backend.allocate(MemoryKind::pinned,
                            bytes_of(limits.sequences * limits.heads, DType::f32),
                            "host attention")),
      stream_(backend.create_stream()),
      queries_ready_(backend.create_event()),
      results_ready_(backend.create_event()),
      pool_(limits.threads, kSpin) {}

HostAttention::~HostAttention() {
  try {
    stream_->synchronize();
  } catch (
      // already reported to the user of the results, or no longer relevant
      const std::exception&) {
  }
}

void HostAttention::plan(std::vector<kernels::HostAttentionBlock> blocks, std::int64_t rows) {
  NVLLM_CHECK_LE(rows, limits_.sequences);
  plan_ = blocks.empty() ? nullptr : std::make_shared<const Plan>(Plan{std::move(blocks), rows});
}

kernels::HostAttention HostAttention::attention(std::int64_t rows) const {
  const BlockShape& shape = limits_.shape;
  kernels::HostAttention args;
  args.out = TensorView(out_.data(), DType::f32, {rows, limits_.heads, shape.head_dim});
  args.lse = TensorView(lse_.data(), DType::f32, {rows, limits_.heads});
  args.q = TensorView(queries_.data(), limits_.queries(), {rows, limits_.heads, shape.head_dim});
  args.block_tokens = shape.block_size;
  args.kv_heads = shape.kv_heads;
  args.of_e4m3 = shape.dtype == DType::u8;
  return args;
}

// Copies at once, including K/V that lie between the queries; if more lies there, row by row.
void HostAttention::take_queries(const TensorView& q, TensorView* taken) {
  const std::int64_t rows = taken->shape[0], row = limits_.heads * limits_.shape.head_dim;
  if (q.stride[0] <= max_row_stride_) {
    taken->stride[0] = q.stride[0];
    backend_.copy(taken->data, q.data, bytes_of((rows - 1) * q.stride[0] + row, q.dtype), *stream_);
    return;
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    backend_.copy(taken->rows(i, 1).data, q.rows(i, 1).data, bytes_of(row, q.dtype), *stream_);
  }
}

void HostAttention::launch(std::int64_t layer, const kernels::Attention& args, const Event* written,
                           Stream& stream) {
  NVLLM_CHECK(planned());
  NVLLM_CHECK_LE(plan_->rows, args.q.shape[0]);
  queries_ready_->record(stream);
  hooks_.wait(OffloadWait::queries_of_host, *stream_, *queries_ready_);
  if (written != nullptr) hooks_.wait(OffloadWait::host_of_write, *stream_, *written);
  kernels::HostAttention call = attention(plan_->rows);
  hooks_.delay(Transfer::by_host, *stream_);
  take_queries(args.q, &call.q);
  call.blocks = plan_->blocks;
  call.keys = layer * part_bytes_;
  call.values = call.keys + part_bytes_ / 2;
  call.group = args.group;
  call.first_head = args.first_head;
  call.scale = args.scale;
  call.kv_scales = scales_.on_host(layer);
  // Only these calls use pool and scratch, and they never overlap.
  stream_->host_call(
      [this, call, plan = plan_] { kernels::host_attention(call, pool_, scratch_); });
  results_ready_->record(*stream_);
}

kernels::CombineAttention::Part HostAttention::result(Stream& stream) {
  hooks_.wait(OffloadWait::combine_of_host, stream, *results_ready_);
  const kernels::HostAttention results = attention(plan_->rows);
  return {results.out, results.lse};
}

HostAttention::Speeds HostAttention::measure(std::span<const unsigned char* const> parts,
                                             void* device) {
  constexpr std::int64_t kCopied = std::int64_t{1} << 30, kMaxCopies = 4096;
  std::vector<kernels::HostAttentionBlock> blocks;
  for (const unsigned char* part : parts) blocks.push_back({0, part});
  kernels::HostAttention call = attention(1);
  call.values = part_bytes_ / 2;
  call.group = divide_up(limits_.heads, limits_.shape.kv_heads);
  call.blocks = std::span(blocks).first(1);
  std::fill_n(static_cast<unsigned char*>(queries_.data()), queries_.bytes(), 0);
  kernels::host_attention(call, pool_, scratch_);  // wakes the threads
  call.blocks = blocks;

  const std::int64_t copies = std::clamp<std::int64_t>(kCopied / part_bytes_, 1, kMaxCopies);
  const auto started = backend_.create_event(true), copied = backend_.create_event(true);
  const std::int64_t start = now_ns();
  started->record(*stream_);
  for (std::int64_t i = 0; i < copies; ++i) {
    backend_.copy(device, parts[static_cast<std::size_t>(i) % parts.size()],
                  static_cast<std::size_t>(part_bytes_), *stream_);
  }
  copied->record(*stream_);
  double read = 0;
  do {
    kernels::host_attention(call, pool_, scratch_);
    read += static_cast<double>(part_bytes_) * static_cast<double>(blocks.size());
  } while (!copied->reached());
  const double seconds = static_cast<double>(now_ns() - start) * 1e-9;
  stream_->synchronize();
  return {.cores = read / seconds,
          .link = static_cast<double>(part_bytes_ * copies) / copied->seconds_since(*started)};
}

void choose_for_host(std::span<const std::int32_t> readers, double share,
                     std::vector<bool>& taken) {
  taken.assign(readers.size(), false);
  auto loaded = static_cast<double>(readers.size());
  double read = 0;
  for (const bool shared : {false, true}) {
    for (std::size_t i = readers.size(); i-- > 0;) {
      if (readers[i] < 1 || (readers[i] > 1) != shared) continue;
      const double before = std::max(read * (1 - share), loaded * share);
      const double after = std::max((read + readers[i]) * (1 - share), (loaded - 1) * share);
      if (after >= before) continue;
      taken[i] = true;
      read += readers[i];
      loaded -= 1;
    }
  }
}

}  // namespace nvllm::kvcache
