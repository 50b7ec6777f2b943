#include "ipc/collective/peer/peer_communicator.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "base/logging.h"
#include "device/cuda/stream.h"
#include "ipc/collective/culprit.h"
#include "ipc/collective/peer/ipc_exchange.h"
#include "ipc/collective/peer/peer_kernels.h"

namespace nvllm::ipc {
namespace {

std::vector<std::byte> blob_of(const void* data, std::size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  return {begin, begin + bytes};
}

// Exchanged before the ranks open each other's memory.
struct PeerInfo {
  cudaIpcMemHandle_t handle{};
  GpuCapabilities capabilities;
};

std::byte* at(void* data, std::size_t bytes) {
  return static_cast<std::byte*>(data) + bytes;
}
const std::byte* at(const void* data, std::size_t bytes) {
  return static_cast<const std::byte*>(data) + bytes;
}

}  // namespace

const char* peer::name_of(Operation operation) {
  switch (operation) {
    case Operation::all_reduce: return "all_reduce";
    case Operation::reduce_scatter: return "reduce_scatter";
    case Operation::all_gather: return "all_gather";
    case Operation::gather: return "gather";
    case Operation::broadcast: return "broadcast";
    case Operation::barrier: return "barrier";
    case Operation::all_reduce_rms_norm: return "all_reduce_rms_norm";
  }
  return "?";
}

Nanoseconds PeerCommunicator::wait_limit() const {
  const Nanoseconds timeout = member_.group().step_timeout();
  return timeout +
         std::clamp<Nanoseconds>(timeout / 4, std::chrono::seconds(1), std::chrono::seconds(5));
}

std::unique_ptr<PeerCommunicator> PeerCommunicator::create(Member& member, Backend& backend,
                                                           int stages, int parts,
                                                           std::string& why) {
  std::unique_ptr<PeerCommunicator> communicator(
      new PeerCommunicator(member, backend, stages, parts));
  if (communicator->size() > 1) {
    why.clear();
    communicator->open_peers(why);
    if (!why.empty()) return nullptr;
  }
  return communicator;
}

void PeerCommunicator::open_peers(std::string& why) {
  // All of this must precede the exchange of handles, after which other ranks may write to the
  // memory: so it is cleared here.
  PeerInfo info;
  std::string error = error_of([&] {
    box_ = backend_.allocate(MemoryKind::device, peer::kAreas * peer::kAreaBytes, "collectives");
    control_ = backend_.allocate(MemoryKind::device, sizeof(peer::Control), "collectives");
    report_ = backend_.allocate(MemoryKind::pinned, sizeof(peer::Report), "collectives");
    new (report_.data()) peer::Report;
    const auto stream = backend_.create_stream();
    backend_.fill(control_.data(), 0, sizeof(peer::Control), *stream);
    peer::launch_clear(box_.data(), cuda::native(*stream));
    stream->synchronize();
    cuda::check(cudaIpcGetMemHandle(&info.handle, box_.data()), "sharing memory through CUDA IPC");
    info.capabilities = {cuda::device_attribute(cudaDevAttrMultiProcessorCount),
                         peer::runs_hopper_code() ? 1u : 0u};
  });
  const std::vector<std::byte> mine =
      error.empty() ? blob_of(&info, sizeof(info)) : std::vector<std::byte>{};
  const auto infos = member_.exchange(mine, "its CUDA IPC handle");
  std::vector<GpuCapabilities> capabilities;

  if (error.empty()) {
    error = error_of([&] {
      for (int peer = 0; peer < site_.size; ++peer) {
        const auto& blob = infos[static_cast<std::size_t>(first_ + peer)];
        if (blob.size() != sizeof(info)) continue;  // that rank had an error
        std::memcpy(&info, blob.data(), sizeof(info));
        capabilities.push_back(info.capabilities);
        if (peer == site_.rank) continue;
        links_.boxes[peer] = opened_[static_cast<std::size_t>(peer)] =
            open_memory(first_ + peer, info.handle);
      }
    });
  }
  why = first_error(member_, error);
  if (!why.empty()) return;

  const GpuCapabilities common = common_capabilities(capabilities);
  links_.multiprocessors = common.multiprocessors;
  links_.hopper = common.hopper;
  links_.holds_after_timeout = is_part_ ? 1 : 0;
  links_.rank = site_.rank;
  links_.ranks = site_.size;
  links_.boxes[site_.rank] = box_.data();
  links_.control = static_cast<peer::Control*>(control_.data());
  links_.report = static_cast<peer::Report*>(report_.data());
  links_.deadline_ns = static_cast<std::uint64_t>(member_.group().step_timeout().count());
}

PeerCommunicator::~PeerCommunicator() {
  for (void* opened : opened_) {
    if (opened != nullptr) cudaIpcCloseMemHandle(opened);
  }
}

Algorithm PeerCommunicator::algorithm(Collective collective, std::size_t bytes) const {
  return forced_ ? *forced_ : choose_algorithm(collective, site_.size, bytes);
}

peer::Links PeerCommunicator::begin(peer::Operation operation, std::string_view text) {
  check();
  member_.check_abort();
  note_collective(text);
  peer::Links links = links_;
  links.operation = operation;
  return links;
}

void PeerCommunicator::check() {
  if (site_.size == 1) return;
  const auto& report = *static_cast<const peer::Report*>(report_.data());
  const std::uint32_t state = __atomic_load_n(&report.state, __ATOMIC_ACQUIRE);
  if (state == peer::Report::none) return;
  if (state == peer::Report::aborted) {
    member_.check_abort();
    fail("this communicator was aborted");
  }
  const int missing = first_ + static_cast<int>(report.missing_rank);
  const int peer = find_culprit(member_.group(), member_.rank(), missing, stages_);
  const double seconds = std::chrono::duration<double>(member_.group().step_timeout()).count();
  throw PeerTimeout(
      peer, str("waited ", format_duration(seconds), " on the GPU for rank ", missing,
                "'s part of ", name_of(report.operation), " (call ", report.call,
                " of this communicator); to blame is ", member_.group().snapshot(peer).describe()));
}

void PeerCommunicator::give_up() {
  if (site_.size == 1) return;
  auto& report = *static_cast<peer::Report*>(report_.data());
  __atomic_store_n(&report.abort, 1u, __ATOMIC_SEQ_CST);
}

void PeerCommunicator::all_reduce(TensorView data, Stream& stream) {
  check_all_reduce(site_, data, stream);
  const peer::Links links = begin(peer::Operation::all_reduce, describe_call("all_reduce", data));
  if (site_.size == 1 || data.elements() == 0) return;
  const bool one_shot = algorithm(Collective::all_reduce, data.bytes()) == Algorithm::one_shot;
  const std::size_t limit =
      one_shot ? peer::one_shot_limit(site_.size) : peer::two_shot_limit(site_.size);
  for (std::size_t done = 0; done < data.bytes(); done += limit) {
    const std::size_t part = std::min(limit, data.bytes() - done);
    const auto elements = static_cast<std::int64_t>(part / size_of(data.dtype));
    const auto launch = one_shot ? peer::launch_one_shot : peer::launch_two_shot;
    launch(links, data.dtype, at(data.data, done), elements, cuda::native(stream));
  }
}

void PeerCommunicator::reduce_scatter(TensorView out, TensorView in, Stream& stream) {
  check_reduce_scatter(site_, out, in, stream);
  const peer::Links links =
      begin(peer::Operation::reduce_scatter, describe_call("reduce_scatter", in));
  if (out.elements() == 0) return;
  if (site_.size == 1) {
    if (out.data != in.data) backend_.copy(out.data, in.data, in.bytes(), stream);
    return;
  }
  const std::size_t limit = peer::reduce_scatter_limit(site_.size);
  for (std::size_t done = 0; done < out.bytes(); done += limit) {
    const std::size_t part = std::min(limit, out.bytes() - done);
    peer::launch_reduce_scatter(links, out.dtype, at(out.data, done), at(in.data, done),
                                static_cast<std::int64_t>(part / size_of(out.dtype)),
                                out.elements(), cuda::native(stream));
  }
}

void PeerCommunicator::exchange(peer::Operation operation, const TensorView& text_of, void* out,
                                const void* in, std::size_t bytes, int root, Stream& stream) {
  const peer::Links links = begin(operation, describe_call(peer::name_of(operation), text_of));
  if (bytes == 0 && operation != peer::Operation::barrier) return;
  if (site_.size == 1) {
    if (out != in) backend_.copy(out, in, bytes, stream);
    return;
  }
  const std::size_t limit = peer::exchange_limit(site_.size);
  std::size_t done = 0;
  do {
    const std::size_t part = std::min(limit, bytes - done);
    peer::launch_exchange(links, at(out, done), at(in, done), part, bytes, root,
                          cuda::native(stream));
    done += part;
  } while (done < bytes);
}

void PeerCommunicator::all_gather(TensorView out, TensorView in, Stream& stream) {
  check_all_gather(site_, out, in, stream);
  exchange(peer::Operation::all_gather, in, out.data, in.data, in.bytes(), 0, stream);
}

void PeerCommunicator::gather(TensorView out, TensorView in, int root, Stream& stream) {
  check_gather(site_, out, in, root, stream);
  exchange(peer::Operation::gather, in, out.data, in.data, in.bytes(), root, stream);
}

void PeerCommunicator::broadcast(TensorView data, int root, Stream& stream) {
  check_broadcast(site_, data, root, stream);
  exchange(peer::Operation::broadcast, data, data.data, data.data, data.bytes(), root, stream);
}

void PeerCommunicator::barrier(Stream& stream) {
  check_barrier(site_, stream);
  exchange(peer::Operation::barrier, TensorView(), nullptr, nullptr, 0, 0, stream);
}

void PeerCommunicator::all_reduce_rms_norm(const kernels::RmsNorm& args, Stream& stream) {
  check_all_reduce_rms_norm(site_, args, stream);
  if (site_.size > 1 && args.x.elements() != 0) {
    const peer::Links links =
        begin(peer::Operation::all_reduce_rms_norm, describe_call("all_reduce_rms_norm", args.x));
    if (algorithm(Collective::all_reduce_rms_norm, args.x.bytes()) == Algorithm::one_shot &&
        peer::launch_one_shot_rms_norm(links, args, cuda::native(stream))) {
      return;
    }
    if (two_shot_rms_norm(links, args, stream)) return;
  }
  all_reduce(args.x, stream);
  kernels::rms_norm(args, stream);
}

bool PeerCommunicator::open_overlap(std::int64_t slot_rows, std::int64_t columns, DType dtype) {
  rows_.reset();
  if (site_.size == 1 || !peer::can_sum_rows(TensorView(nullptr, dtype, {1, columns}))) {
    return false;
  }
  std::string why;
  rows_ = RowExchange::create(member_, backend_, links_, first_, slot_rows, columns, dtype, why);
  if (!rows_ && member_.rank() == 0) log_info("all-reduces are not overlapped: ", why);
  return rows_ != nullptr;
}

void PeerCommunicator::begin_reduce_scatter(OverlappedRows rows, TensorView x, Stream& stream) {
  if (!rows_) return CudaCommunicator::begin_reduce_scatter(rows, x, stream);
  begin(peer::Operation::reduce_scatter, describe_call("all_reduce_rms_norm", x));
  rows_->scatter(rows, x, stream);
}

void PeerCommunicator::begin_all_gather(OverlappedRows rows, const kernels::RmsNorm& args,
                                        Gathered gathered, Stream& stream) {
  if (!rows_) return CudaCommunicator::begin_all_gather(rows, args, gathered, stream);
  check_all_reduce_rms_norm(site_, args, stream);
  const peer::Links links =
      begin(peer::Operation::reduce_scatter, describe_call("all_reduce_rms_norm", args.x));
  rows_->sum_and_gather(links, rows, args, gathered, stream);
}

TensorView PeerCommunicator::finish_all_gather(OverlappedRows rows, Stream& stream) {
  if (!rows_) return CudaCommunicator::finish_all_gather(rows, stream);
  return rows_->finish(begin(peer::Operation::all_gather, "all_reduce_rms_norm of overlapped rows"),
                       rows, stream);
}

bool PeerCommunicator::two_shot_rms_norm(const peer::Links& links, const kernels::RmsNorm& args,
                                         Stream& stream) {
  kernels::RmsNorm rest = args;
  for (;;) {
    const std::int64_t done = peer::launch_two_shot_rms_norm(links, rest, cuda::native(stream));
    if (done == 0 && rest.x.data == args.x.data) return false;
    NVLLM_CHECK(done > 0, rest.x.describe(), " is left of ", args.x.describe());
    const std::int64_t left = rest.x.shape[0] - done;
    if (left == 0) return true;
    for (TensorView* tensor : {&rest.out, &rest.x, &rest.residual}) {
      if (tensor->data != nullptr) *tensor = tensor->rows(done, left);
    }
  }
}

}  // namespace nvllm::ipc
