#include "ipc/collective/arguments.h"

#include <cstdint>
#include <utility>

#include "base/error.h"

namespace nvllm::ipc {
namespace {

constexpr std::size_t kVectorBytes = 16;  // size of a kernel's vector load

bool summable(DType type) {
  return type == DType::f32 || type == DType::bf16 || type == DType::f16;
}

void check_stream(const CallSite& site, const char* operation, const Stream& stream) {
  if (stream.kind() != site.device) {
    fail(operation, ": the stream is one of ", name_of(stream.kind()),
         ", this communicator works on ", name_of(site.device));
  }
}

void check_tensor(const char* operation, const char* argument, const TensorView& tensor) {
  require_contiguous(tensor, operation, argument);
  if (tensor.data == nullptr && tensor.elements() != 0) {
    fail(operation, ": ", argument, " ", tensor.describe(), " has no data");
  }
}

void check_summable(const char* operation, const char* argument, const TensorView& tensor) {
  if (!summable(tensor.dtype)) {
    fail(operation, ": ", argument, " ", tensor.describe(),
         " cannot be summed; pass float32, bfloat16 or float16");
  }
}

void check_root(const CallSite& site, const char* operation, int root) {
  if (root < 0 || root >= site.size) {
    fail(operation, ": root ", root, " is no rank; pass 0 to ", site.size - 1);
  }
}

// `large` holds size() parts of the shape and type of `small`.
void check_parts(const CallSite& site, const char* operation, const char* large_name,
                 const TensorView& large, const char* small_name, const TensorView& small) {
  if (large.dtype != small.dtype) {
    fail(operation, ": ", large_name, " ", large.describe(), " and ", small_name, " ",
         small.describe(), " must have one type");
  }
  if (large.elements() != small.elements() * site.size) {
    fail(operation, ": ", large_name, " ", large.describe(), " must have ", site.size,
         " times the elements of ", small_name, " ", small.describe());
  }
}

// The small tensor may be part `rank` of the large one (in place); otherwise they must not overlap.
void check_overlap(const CallSite& site, const char* operation, const TensorView& large,
                   const TensorView& small) {
  const auto large_begin = reinterpret_cast<std::uintptr_t>(large.data);
  const auto small_begin = reinterpret_cast<std::uintptr_t>(small.data);
  const bool apart =
      small_begin + small.bytes() <= large_begin || large_begin + large.bytes() <= small_begin;
  const bool in_place =
      small_begin == large_begin + static_cast<std::size_t>(site.rank) * small.bytes();
  if (!apart && !in_place) {
    fail(operation, ": in and out overlap; pass separate tensors, or part ", site.rank,
         " of the larger one as the smaller");
  }
}

}  // namespace

void check_all_reduce(const CallSite& site, const TensorView& data, const Stream& stream) {
  check_stream(site, "all_reduce", stream);
  check_tensor("all_reduce", "data", data);
  check_summable("all_reduce", "data", data);
}

void check_reduce_scatter(const CallSite& site, const TensorView& out, const TensorView& in,
                          const Stream& stream) {
  check_stream(site, "reduce_scatter", stream);
  check_tensor("reduce_scatter", "out", out);
  check_tensor("reduce_scatter", "in", in);
  check_summable("reduce_scatter", "in", in);
  check_parts(site, "reduce_scatter", "in", in, "out", out);
  check_overlap(site, "reduce_scatter", in, out);
}

void check_all_gather(const CallSite& site, const TensorView& out, const TensorView& in,
                      const Stream& stream) {
  check_stream(site, "all_gather", stream);
  check_tensor("all_gather", "out", out);
  check_tensor("all_gather", "in", in);
  check_parts(site, "all_gather", "out", out, "in", in);
  check_overlap(site, "all_gather", out, in);
}

void check_gather(const CallSite& site, const TensorView& out, const TensorView& in, int root,
                  const Stream& stream) {
  check_stream(site, "gather", stream);
  check_root(site, "gather", root);
  check_tensor("gather", "in", in);
  if (site.rank != root) return;
  check_tensor("gather", "out", out);
  check_parts(site, "gather", "out", out, "in", in);
  check_overlap(site, "gather", out, in);
}

void check_broadcast(const CallSite& site, const TensorView& data, int root, const Stream& stream) {
  check_stream(site, "broadcast", stream);
  check_root(site, "broadcast", root);
  check_tensor("broadcast", "data", data);
}

void check_barrier(const CallSite& site, const Stream& stream) {
  check_stream(site, "barrier", stream);
}

void check_all_reduce_rms_norm(const CallSite& site, const kernels::RmsNorm& args,
                               const Stream& stream) {
  check_stream(site, "all_reduce_rms_norm", stream);
  check_tensor("all_reduce_rms_norm", "x", args.x);
  check_summable("all_reduce_rms_norm", "x", args.x);
  kernels::check_rms_norm(args);
  if (args.weight_offset != 0) {
    fail("all_reduce_rms_norm: weight_offset is ", args.weight_offset, "; it must be 0");
  }
  if (args.x.rows(0, 1).bytes() % kVectorBytes != 0) return;
  const std::pair<const char*, const TensorView*> tensors[] = {
      {"out", &args.out}, {"x", &args.x}, {"residual", &args.residual}, {"weight", &args.weight}};
  for (const auto& [name, tensor] : tensors) {
    if (tensor->aligned(kVectorBytes)) continue;
    fail("all_reduce_rms_norm: ", name, " ", tensor->describe(), " has rows of whole vectors of ",
         kVectorBytes, " bytes, and must begin at a multiple of that");
  }
}

std::string describe_call(const char* operation, const TensorView& tensor) {
  return str(operation, " ", tensor.elements(), " ", name_of(tensor.dtype));
}

}  // namespace nvllm::ipc
