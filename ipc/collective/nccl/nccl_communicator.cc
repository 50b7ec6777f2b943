#include "ipc/collective/nccl/nccl_communicator.h"

#include <sched.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "device/cuda/stream.h"
#include "device/libraries.h"
#include "ipc/collective/culprit.h"

namespace nvllm::ipc {
namespace {

// How long a communicator waits for its peers when it ends normally.
constexpr Nanoseconds kFinalizeLimit = std::chrono::seconds(2);

ncclDataType_t nccl_type(DType type) {
  switch (type) {
    case DType::f32: return ncclFloat32;
    case DType::bf16: return ncclBfloat16;
    case DType::f16: return ncclFloat16;
    case DType::i32: return ncclInt32;
    case DType::i64: return ncclInt64;
    case DType::u8: return ncclUint8;
  }
  return ncclUint8;
}

std::size_t count_of(const TensorView& tensor) {
  return static_cast<std::size_t>(tensor.elements());
}

// The first rank of each stage makes its id. All ranks exchange whether they could load NCCL, so
// that all fail or none.
ncclUniqueId agree_on_id(Member& member, int first_of_stage) {
  // NVLink multicast has cost hosts their GPUs. A user's own setting counts.
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  ncclUniqueId id{};
  std::string problem;
  if (const char* error = load_nccl()) {
    problem = str("NCCL cannot be loaded: ", error, "; install libnccl.so.2");
  } else if (member.rank() == first_of_stage) {
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess) problem = str("NCCL gave no id: ", ncclGetErrorString(result));
  }
  std::vector<std::byte> mine(1 + sizeof(id));
  if (problem.empty()) {
    std::memcpy(mine.data() + 1, &id, sizeof(id));
  } else {
    problem.resize(std::min(problem.size(), Member::kExchangeBytes - 1));
    mine.resize(1 + problem.size());
    mine[0] = std::byte{1};
    std::memcpy(mine.data() + 1, problem.data(), problem.size());
  }
  const auto all = member.exchange(mine, "its part of NCCL's start");
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].at(0) == std::byte{0}) continue;
    fail("rank ", rank, ": ",
         std::string_view(reinterpret_cast<const char*>(all[rank].data()) + 1,
                          all[rank].size() - 1));
  }
  std::memcpy(&id, all[static_cast<std::size_t>(first_of_stage)].data() + 1, sizeof(id));
  return id;
}

}  // namespace

NcclCommunicator::NcclCommunicator(Member& member, Backend& backend, int stages)
    : CudaCommunicator(member, backend, stages),
      token_(backend.allocate(MemoryKind::device, sizeof(float), "collectives")) {
  const auto stream = backend.create_stream();
  backend.fill(token_.data(), 0, sizeof(float), *stream);
  stream->synchronize();
  start(agree_on_id(member, first_));
}

void NcclCommunicator::start(const ncclUniqueId& id) {
  const Member::ActivityScope doing(member_, Member::Activity::call, "start of NCCL");
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  try {
    finish(ncclCommInitRankConfig(&comm_, site_.size, id, site_.rank, &config), "starting NCCL");
  } catch (...) {
    give_up();
    throw;
  }
}

NcclCommunicator::~NcclCommunicator() {
  if (comm_ == nullptr) return;
  try {
    member_.check_abort();
    finish(ncclCommFinalize(comm_), "ending NCCL", kFinalizeLimit);
    ncclCommDestroy(comm_);
  } catch (const Error&) {  // a peer is gone
    give_up();
  }
}

void NcclCommunicator::fail_nccl(ncclResult_t result, const char* what) const {
  const char* detail = ncclGetLastError(comm_);
  fail(what, " failed: ", ncclGetErrorString(result),
       detail != nullptr && *detail != 0 ? str(" (", detail, ")") : "");
}

void NcclCommunicator::finish(ncclResult_t result, const char* what) {
  finish(result, what, member_.group().step_timeout());
}

void NcclCommunicator::finish(ncclResult_t result, const char* what, Nanoseconds limit) {
  if (result == ncclSuccess) return;
  WaitClock clock(limit, now_ns());
  while (result == ncclInProgress) {
    member_.check_abort();
    clock.look(now_ns());
    if (clock.expired()) {
      const int peer =
          find_culprit(member_.group(), member_.rank(), RankSnapshot::kNobody, stages_);
      throw PeerTimeout(
          peer, str(what, " did not end; to blame is ", member_.group().snapshot(peer).describe()));
    }
    sched_yield();
    const ncclResult_t query = ncclCommGetAsyncError(comm_, &result);
    if (query != ncclSuccess) result = query;
  }
  if (result != ncclSuccess) fail_nccl(result, what);
}

void NcclCommunicator::check() {
  if (comm_ == nullptr) {
    member_.check_abort();
    fail("this communicator was aborted");
  }
  ncclResult_t state = ncclSuccess;
  const ncclResult_t query = ncclCommGetAsyncError(comm_, &state);
  if (query != ncclSuccess) state = query;
  if (state != ncclSuccess && state != ncclInProgress) fail_nccl(state, "a collective of NCCL");
}

void NcclCommunicator::give_up() {
  if (comm_ == nullptr) return;
  ncclCommAbort(comm_);  // also frees it
  comm_ = nullptr;
}

void NcclCommunicator::begin(std::string_view text) {
  member_.check_abort();
  check();
  note_collective(text);
}

void NcclCommunicator::all_reduce(TensorView data, Stream& stream) {
  check_all_reduce(site_, data, stream);
  begin(describe_call("all_reduce", data));
  if (data.elements() == 0) return;
  finish(ncclAllReduce(data.data, data.data, count_of(data), nccl_type(data.dtype), ncclSum, comm_,
                       cuda::native(stream)),
         "NCCL's all_reduce");
}

void NcclCommunicator::reduce_scatter(TensorView out, TensorView in, Stream& stream) {
  check_reduce_scatter(site_, out, in, stream);
  begin(describe_call("reduce_scatter", in));
  if (out.elements() == 0) return;
  finish(ncclReduceScatter(in.data, out.data, count_of(out), nccl_type(in.dtype), ncclSum, comm_,
                           cuda::native(stream)),
         "NCCL's reduce_scatter");
}

void NcclCommunicator::all_gather(TensorView out, TensorView in, Stream& stream) {
  check_all_gather(site_, out, in, stream);
  begin(describe_call("all_gather", in));
  if (in.elements() == 0) return;
  finish(ncclAllGather(in.data, out.data, count_of(in), nccl_type(in.dtype), comm_,
                       cuda::native(stream)),
         "NCCL's all_gather");
}

void NcclCommunicator::gather(TensorView out, TensorView in, int root, Stream& stream) {
  check_gather(site_, out, in, root, stream);
  begin(describe_call("gather", in));
  if (in.elements() == 0) return;
  const cudaStream_t native = cuda::native(stream);
  if (site_.rank != root) {
    finish(ncclSend(in.data, in.bytes(), ncclUint8, root, comm_, native), "NCCL's gather");
    return;
  }
  ncclGroupStart();
  for (int from = 0; from < site_.size; ++from) {
    std::byte* to = out.as<std::byte>() + static_cast<std::size_t>(from) * in.bytes();
    if (from != root) {
      ncclRecv(to, in.bytes(), ncclUint8, from, comm_, native);
    } else if (to != in.data) {
      backend_.copy(to, in.data, in.bytes(), stream);
    }
  }
  finish(ncclGroupEnd(), "NCCL's gather");
}

void NcclCommunicator::broadcast(TensorView data, int root, Stream& stream) {
  check_broadcast(site_, data, root, stream);
  begin(describe_call("broadcast", data));
  if (data.elements() == 0) return;
  finish(ncclBroadcast(data.data, data.data, data.bytes(), ncclUint8, root, comm_,
                       cuda::native(stream)),
         "NCCL's broadcast");
}

void NcclCommunicator::barrier(Stream& stream) {
  check_barrier(site_, stream);
  begin("barrier");
  finish(ncclAllReduce(token_.data(), token_.data(), 1, ncclFloat32, ncclSum, comm_,
                       cuda::native(stream)),
         "NCCL's barrier");
}

void NcclCommunicator::all_reduce_rms_norm(const kernels::RmsNorm& args, Stream& stream) {
  check_all_reduce_rms_norm(site_, args, stream);
  all_reduce(args.x, stream);
  kernels::rms_norm(args, stream);
}

}  // namespace nvllm::ipc
