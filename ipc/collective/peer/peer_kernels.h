// Launchers of the peer communicator's kernels. All tensors must fit in an area; the communicator
// splits larger ones. With one rank there is nothing to launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "device/dtype.h"
#include "ipc/group.h"
#include "kernels/pointwise/rmsnorm.h"

namespace nvllm::ipc::peer {

// A rank's receive memory has two areas of this size, which calls use alternately
// (peer_protocol.cuh).
inline constexpr std::size_t kAreaBytes = std::size_t{16} << 20;
inline constexpr int kAreas = 2;

enum class Operation : std::uint32_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  gather,
  broadcast,
  barrier,
  all_reduce_rms_norm,
};
const char* name_of(Operation operation);

// In device memory, and updated by the kernels themselves, so that a captured graph can be
// replayed.
struct alignas(16) Control {
  std::uint32_t call = 0;    // number of calls so far
  std::uint32_t failed = 0;  // a wait gave up: no kernel waits or sends any more
  std::uint32_t padding[2] = {};
  std::uint32_t ticket = 0;     // number of blocks of the running kernel that have read the call's
                                // number
  std::uint64_t next_look = 0;  // %globaltimer from which host memory may be read again
};

// In pinned host memory: the host's abort request, and the kernels' report.
struct Report {
  std::uint32_t abort = 0;
  enum State : std::uint32_t { none, timed_out, aborted };
  std::uint32_t state = none;  // written last
  std::uint32_t missing_rank = 0;
  std::uint32_t call = 0;
  Operation operation = Operation::all_reduce;
};

// Passed to each kernel by value.
struct Links {
  int rank = 0;
  int ranks = 1;
  Operation operation = Operation::all_reduce;  // for error reports
  void* boxes[kMaxRanks] = {};  // every rank's receive memory, at its address in this process
  Control* control = nullptr;
  Report* report = nullptr;
  std::uint64_t deadline_ns = 0;  // of one wait
  // Equal on all ranks, which must choose the same kernels (GpuCapabilities in algorithm.h).
  int multiprocessors = 1;  // the minimum over all GPUs
  // Whether kernels may use programmatic dependent launch, and clusters.
  std::uint32_t hopper = 0;
  // Whether a kernel that has timed out ends only when the host gives up: so that nothing later in
  // the stream sends its undefined results to other ranks, which would not notice.
  std::uint32_t holds_after_timeout = 0;
};

// Fills a rank's receive memory with empty words.
void launch_clear(void* box, cudaStream_t stream);

// Whether the code that runs on this GPU was compiled for compute capability 9.0 or later, which
// Links::hopper requires.
bool runs_hopper_code();

// One-shot all_reduce: every rank sends its tensor to all others, (ranks - 1) times the bytes.
std::size_t one_shot_limit(int ranks);  // bytes that fit
void launch_one_shot(const Links& links, DType type, void* data, std::int64_t elements,
                     cudaStream_t stream);

// Two-shot all_reduce: rank s sums slice s and sends the result to all; about twice the bytes for
// any number of ranks.
std::size_t two_shot_limit(int ranks);
void launch_two_shot(const Links& links, DType type, void* data, std::int64_t elements,
                     cudaStream_t stream);

// The first exchange of two-shot. A rank's slice starts at element rank * stride of `in`.
std::size_t reduce_scatter_limit(int ranks);  // bytes of `out`
void launch_reduce_scatter(const Links& links, DType type, void* out, const void* in,
                           std::int64_t elements, std::int64_t stride, cudaStream_t stream);

// One-shot fused with rms_norm. Returns false, without doing anything, if the shape is not
// supported (rows too long, too many, or not multiples of whole vectors). The result depends only
// on what all ranks share: shapes, and the GPU capabilities in `links`. Rows of whole vectors must
// be aligned to vectors, as check_all_reduce_rms_norm() ensures.
bool launch_one_shot_rms_norm(const Links& links, const kernels::RmsNorm& args,
                              cudaStream_t stream);

// Two-shot fused with rms_norm, for as many of the first rows as one call supports; returns their
// number. Further calls can process the rest. 0: the shape is not supported (fewer rows than ranks,
// or as above).
std::int64_t launch_two_shot_rms_norm(const Links& links, const kernels::RmsNorm& args,
                                      cudaStream_t stream);

// --- Overlapped sums: consuming what copy engines transferred (row_exchange.h) ---

// Each sender writes its call's number after its data, to a word at kNumberStride * seat, in rank
// order; `expected` is the number to wait for.
struct Arrivals {
  const std::uint32_t* numbers = nullptr;
  std::uint32_t expected = 0;
  std::uint32_t padding = 0;
};
inline constexpr std::size_t kNumberStride = 32;  // one cache line of 128 bytes

// Whether launch_sum_own_rows() supports such rows.
bool can_sum_rows(const TensorView& row);

// all_reduce_rms_norm of args.x with a residual, where the other ranks' parts are in `inbox`: those
// of the sender in seat s start at element s * inbox_stride. Waits for their arrival, even if there
// are no rows. If !norms, args.out is the sum. Sends nothing.
void launch_sum_own_rows(const Links& links, const kernels::RmsNorm& args, const void* inbox,
                         std::int64_t inbox_stride, const Arrivals& arrivals, bool norms,
                         cudaStream_t stream);

// Makes later work of the stream see the data that has arrived.
void launch_await(const Links& links, const Arrivals& arrivals, cudaStream_t stream);

// Copies bytes unchanged. all_gather, gather: rank r's `bytes` are written to out + r * stride;
// broadcast: the root's `in` to every rank's `out`; barrier: nothing is copied. links.operation
// selects the operation.
std::size_t exchange_limit(int ranks);  // of `bytes`
void launch_exchange(const Links& links, void* out, const void* in, std::size_t bytes,
                     std::size_t stride, int root, cudaStream_t stream);

}  // namespace nvllm::ipc::peer
