// The kernels of the peer communicator, one launcher each. All sizes fit into an area; the
// communicator cuts what does not. With one rank there is nothing to launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "device/dtype.h"
#include "ipc/group.h"
#include "kernels/pointwise/rmsnorm.h"

namespace nvllm::ipc::peer {

// A rank's receive memory: two areas that calls use in turn (peer_protocol.cuh), each so large.
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

// In device memory; kept by the kernels themselves, so that a captured graph can be replayed.
struct alignas(16) Control {
  std::uint32_t call = 0;    // how many calls were made
  std::uint32_t failed = 0;  // a wait was given up: nothing waits or sends any more
  std::uint32_t padding[2] = {};
  std::uint32_t ticket = 0;     // blocks of the running kernel that know their call's number
  std::uint64_t next_look = 0;  // %globaltimer when somebody may read host memory again
};

// In pinned host memory: what the host tells the kernels (abort) and what they tell it.
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
  Operation operation = Operation::all_reduce;  // for the report
  void* boxes[kMaxRanks] = {};  // every rank's receive memory, as this process sees it
  Control* control = nullptr;
  Report* report = nullptr;
  std::uint64_t deadline_ns = 0;  // of one wait
  // The same on all ranks, which must choose the same kernels (GpuCapabilities in algorithm.h).
  int multiprocessors = 1;  // that every GPU has
  // Whether kernels may be launched before the previous one has ended, and in clusters.
  std::uint32_t hopper = 0;
};

// Fills a rank's receive memory with the words at rest.
void launch_clear(void* box, cudaStream_t stream);

// Whether the code that runs on this GPU was compiled for compute capability 9.0 or later, and so
// can do what Links::hopper says.
bool runs_hopper_code();

// Every rank sends its whole tensor to all others: one trip, (ranks - 1) times the bytes.
std::size_t one_shot_limit(int ranks);  // bytes that fit
void launch_one_shot(const Links& links, DType type, void* data, std::int64_t elements,
                     cudaStream_t stream);

// Rank s sums slice s and sends the result to all: two trips, about twice the bytes for any number
// of ranks.
std::size_t two_shot_limit(int ranks);
void launch_two_shot(const Links& links, DType type, void* data, std::int64_t elements,
                     cudaStream_t stream);

// The first half of that. A rank's slice begins at rank * stride elements of `in`.
std::size_t reduce_scatter_limit(int ranks);  // bytes of `out`
void launch_reduce_scatter(const Links& links, DType type, void* out, const void* in,
                           std::int64_t elements, std::int64_t stride, cudaStream_t stream);

// one-shot and rms_norm in one. False, and nothing done: not for this shape (rows too long or too
// many, or not made of whole vectors). It depends on what all ranks share: shapes, and what `links`
// says of the GPUs. Tensors of whole vectors must be aligned to them, which
// check_all_reduce_rms_norm() sees to.
bool launch_one_shot_rms_norm(const Links& links, const kernels::RmsNorm& args,
                              cudaStream_t stream);

// two-shot and rms_norm in one, of as many of the first rows as a call may have: how many those
// were. What is left can be done by further calls. 0: not for this shape (fewer rows than ranks, or
// as above).
std::int64_t launch_two_shot_rms_norm(const Links& links, const kernels::RmsNorm& args,
                                      cudaStream_t stream);

// --- Overlapped sums: what copy engines bring (row_exchange.h) ---

// Where the number of each sender stands behind what it brought, kNumberStride words apart, in the
// order of ranks; and which one says that it has.
struct Arrivals {
  const std::uint32_t* numbers = nullptr;
  std::uint32_t expected = 0;
  std::uint32_t padding = 0;
};
inline constexpr std::size_t kNumberStride = 32;  // a line of 128 bytes

// Whether launch_sum_own_rows() can have such rows.
bool can_sum_rows(const TensorView& row);

// all_reduce_rms_norm of args.x, with a residual, where the others' parts are in `inbox`: of the
// sender in seat s from element s * inbox_stride on. They are waited for, also where there are no
// rows. Without norms args.out is the sum. Nothing is sent.
void launch_sum_own_rows(const Links& links, const kernels::RmsNorm& args, const void* inbox,
                         std::int64_t inbox_stride, const Arrivals& arrivals, bool norms,
                         cudaStream_t stream);

// Later work of the stream sees what has arrived.
void launch_await(const Links& links, const Arrivals& arrivals, cudaStream_t stream);

// Bytes as they are. all_gather, gather: rank r's `bytes` end up at out + r * stride; broadcast:
// the root's `in` in everyone's `out`; barrier: nothing moves. links.operation says which.
std::size_t exchange_limit(int ranks);  // of `bytes`
void launch_exchange(const Links& links, void* out, const void* in, std::size_t bytes,
                     std::size_t stride, int root, cudaStream_t stream);

}  // namespace nvllm::ipc::peer
