#include "ipc/collective/shm/shm_communicator.h"

#include <utility>

#include "device/cpu/stream.h"

namespace nvllm::ipc {
namespace {

std::byte* bytes_of(const TensorView& tensor) {
  return tensor.as<std::byte>();
}

std::size_t count_of(const TensorView& tensor) {
  return static_cast<std::size_t>(tensor.elements());
}

}  // namespace

ShmCommunicator::ShmCommunicator(Member& member, int stages)
    : member_(member),
      exchange_(member, stages),
      site_{exchange_.rank(), exchange_.size(), DeviceKind::cpu} {}

void ShmCommunicator::enqueue(Stream& stream, std::string text, std::function<void()> collective) {
  member_.check_abort();
  cpu::stream(stream).submit([this, text = std::move(text), collective = std::move(collective)] {
    run(text, collective);
  });
}

void ShmCommunicator::run(const std::string& text, const std::function<void()>& collective) {
  std::lock_guard lock(mutex_);
  member_.check_abort();
  Member::ActivityScope doing(member_, Member::Activity::collective, text);
  try {
    collective();
  } catch (const GroupAborted&) {
    throw;
  } catch (const Error& error) {
    // The steps of this rank and its peers no longer agree: no rank can continue.
    member_.group().abort(error.what());
    throw;
  }
}

void ShmCommunicator::all_reduce(TensorView data, Stream& stream) {
  check_all_reduce(site_, data, stream);
  enqueue(stream, describe_call("all_reduce", data),
          [this, data] { exchange_.all_reduce(bytes_of(data), data.dtype, count_of(data)); });
}

void ShmCommunicator::reduce_scatter(TensorView out, TensorView in, Stream& stream) {
  check_reduce_scatter(site_, out, in, stream);
  enqueue(stream, describe_call("reduce_scatter", in), [this, out, in] {
    exchange_.reduce_scatter(bytes_of(out), bytes_of(in), in.dtype, count_of(out));
  });
}

void ShmCommunicator::all_gather(TensorView out, TensorView in, Stream& stream) {
  check_all_gather(site_, out, in, stream);
  enqueue(stream, describe_call("all_gather", in),
          [this, out, in] { exchange_.all_gather(bytes_of(out), bytes_of(in), in.bytes()); });
}

void ShmCommunicator::gather(TensorView out, TensorView in, int root, Stream& stream) {
  check_gather(site_, out, in, root, stream);
  enqueue(stream, describe_call("gather", in), [this, out, in, root] {
    exchange_.gather(bytes_of(out), bytes_of(in), in.bytes(), root);
  });
}

void ShmCommunicator::broadcast(TensorView data, int root, Stream& stream) {
  check_broadcast(site_, data, root, stream);
  enqueue(stream, describe_call("broadcast", data),
          [this, data, root] { exchange_.broadcast(bytes_of(data), data.bytes(), root); });
}

void ShmCommunicator::barrier(Stream& stream) {
  check_barrier(site_, stream);
  enqueue(stream, "barrier", [this] { exchange_.barrier(); });
}

void ShmCommunicator::all_reduce_rms_norm(const kernels::RmsNorm& args, Stream& stream) {
  check_all_reduce_rms_norm(site_, args, stream);
  all_reduce(args.x, stream);
  kernels::rms_norm(args, stream);
}

void ShmCommunicator::wait(Stream& stream) {
  // The collectives themselves have deadlines: a task that waits too long ends with an Error.
  stream.synchronize();
}

void ShmCommunicator::wait(const Event& event) {
  event.synchronize();
}

void ShmCommunicator::abort(const std::string& reason) {
  member_.group().abort(reason);
}

}  // namespace nvllm::ipc
