#include "ipc/collective/auto_communicator.h"

#include <utility>

namespace nvllm::ipc {

AutoCommunicator::AutoCommunicator(Member& member, std::unique_ptr<PeerCommunicator> peer,
                                   std::unique_ptr<NcclCommunicator> nccl)
    : member_(member), peer_(std::move(peer)), nccl_(std::move(nccl)) {}

Communicator& AutoCommunicator::chosen(Collective collective, std::size_t bytes) {
  if (choose(collective, size(), bytes) == Method::nccl) return *nccl_;
  return *peer_;
}

void AutoCommunicator::all_reduce(TensorView data, Stream& stream) {
  chosen(Collective::all_reduce, data.bytes()).all_reduce(data, stream);
}

void AutoCommunicator::reduce_scatter(TensorView out, TensorView in, Stream& stream) {
  chosen(Collective::reduce_scatter, out.bytes()).reduce_scatter(out, in, stream);
}

void AutoCommunicator::all_gather(TensorView out, TensorView in, Stream& stream) {
  chosen(Collective::all_gather, in.bytes()).all_gather(out, in, stream);
}

void AutoCommunicator::gather(TensorView out, TensorView in, int root, Stream& stream) {
  chosen(Collective::gather, in.bytes()).gather(out, in, root, stream);
}

void AutoCommunicator::broadcast(TensorView data, int root, Stream& stream) {
  chosen(Collective::broadcast, data.bytes()).broadcast(data, root, stream);
}

void AutoCommunicator::barrier(Stream& stream) {
  peer_->barrier(stream);
}

void AutoCommunicator::all_reduce_rms_norm(const kernels::RmsNorm& args, Stream& stream) {
  chosen(Collective::all_reduce_rms_norm, args.x.bytes()).all_reduce_rms_norm(args, stream);
}

void AutoCommunicator::wait(Stream& stream) {
  Transport* const transports[] = {peer_.get(), nccl_.get()};
  wait_for_stream(stream, member_, transports, PeerCommunicator::wait_limit(member_.group()));
}

void AutoCommunicator::wait(const Event& event) {
  Transport* const transports[] = {peer_.get(), nccl_.get()};
  wait_for_event(event, member_, transports, PeerCommunicator::wait_limit(member_.group()));
}

void AutoCommunicator::abort(const std::string& reason) {
  peer_->abort(reason);
  nccl_->abort(reason);
}

}  // namespace nvllm::ipc
