#include "ipc/collective/nccl/nccl_communicator.h"

#include "device/cuda/stream.h"

namespace nvllm::ipc {
namespace {

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

}  // namespace

NcclCommunicator::NcclCommunicator(Member& member, Backend& backend, int stages)
    : CudaCommunicator(member, backend, stages),
      token_(backend.allocate(MemoryKind::device, sizeof(float), "collectives")),
      comm_(member, {.first = first_, .size = site_.size}, stages) {
  const auto stream = backend.create_stream();
  backend.fill(token_.data(), 0, sizeof(float), *stream);
  stream->synchronize();
  if (member.group().boxes() == 1) return;
  // Connects the boxes, so that connection errors occur now and not in the first step.
  NcclCommunicator::barrier(*stream);
  wait(*stream);
}

void NcclCommunicator::begin(std::string_view text) {
  member_.check_abort();
  check();
  note_collective(text);
}

void NcclCommunicator::sum_over(NcclComm& comm, TensorView data, Stream& stream) {
  comm.finish(ncclAllReduce(data.data, data.data, count_of(data), nccl_type(data.dtype), ncclSum,
                            comm.get(), cuda::native(stream)),
              "NCCL's all_reduce");
}

void NcclCommunicator::all_reduce(TensorView data, Stream& stream) {
  check_all_reduce(site_, data, stream);
  begin(describe_call("all_reduce", data));
  if (data.elements() != 0) sum_over(comm_, data, stream);
}

void NcclCommunicator::reduce_scatter(TensorView out, TensorView in, Stream& stream) {
  check_reduce_scatter(site_, out, in, stream);
  begin(describe_call("reduce_scatter", in));
  if (out.elements() == 0) return;
  comm_.finish(ncclReduceScatter(in.data, out.data, count_of(out), nccl_type(in.dtype), ncclSum,
                                 comm_.get(), cuda::native(stream)),
               "NCCL's reduce_scatter");
}

void NcclCommunicator::all_gather(TensorView out, TensorView in, Stream& stream) {
  check_all_gather(site_, out, in, stream);
  begin(describe_call("all_gather", in));
  if (in.elements() == 0) return;
  comm_.finish(ncclAllGather(in.data, out.data, count_of(in), nccl_type(in.dtype), comm_.get(),
                             cuda::native(stream)),
               "NCCL's all_gather");
}

void NcclCommunicator::gather(TensorView out, TensorView in, int root, Stream& stream) {
  check_gather(site_, out, in, root, stream);
  begin(describe_call("gather", in));
  if (in.elements() == 0) return;
  const cudaStream_t native = cuda::native(stream);
  if (site_.rank != root) {
    comm_.finish(ncclSend(in.data, in.bytes(), ncclUint8, root, comm_.get(), native),
                 "NCCL's gather");
    return;
  }
  ncclGroupStart();
  for (int from = 0; from < site_.size; ++from) {
    std::byte* to = out.as<std::byte>() + static_cast<std::size_t>(from) * in.bytes();
    if (from != root) {
      ncclRecv(to, in.bytes(), ncclUint8, from, comm_.get(), native);
    } else if (to != in.data) {
      backend_.copy(to, in.data, in.bytes(), stream);
    }
  }
  comm_.finish(ncclGroupEnd(), "NCCL's gather");
}

void NcclCommunicator::broadcast(TensorView data, int root, Stream& stream) {
  check_broadcast(site_, data, root, stream);
  begin(describe_call("broadcast", data));
  if (data.elements() == 0) return;
  comm_.finish(ncclBroadcast(data.data, data.data, data.bytes(), ncclUint8, root, comm_.get(),
                             cuda::native(stream)),
               "NCCL's broadcast");
}

void NcclCommunicator::barrier(Stream& stream) {
  check_barrier(site_, stream);
  begin("barrier");
  comm_.finish(ncclAllReduce(token_.data(), token_.data(), 1, ncclFloat32, ncclSum, comm_.get(),
                             cuda::native(stream)),
               "NCCL's barrier");
}

void NcclCommunicator::all_reduce_rms_norm(const kernels::RmsNorm& args, Stream& stream) {
  check_all_reduce_rms_norm(site_, args, stream);
  all_reduce(args.x, stream);
  kernels::rms_norm(args, stream);
}

}  // namespace nvllm::ipc
