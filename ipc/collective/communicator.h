// Communicator: the collectives of a group's ranks on device tensors. Every rank calls the same
// operations in the same order with the same shapes and types; each call only enqueues on the
// stream.
//
//   auto comm = create_communicator(member, *backend, {});
//   comm->all_reduce(hidden, *stream);
//   comm->wait(*stream);            // or simply go on enqueueing
//
// Sums are computed in rank order in float32 and rounded once, so every rank gets the same bits in
// every run, whichever algorithm of shm or peer is used. (NCCL chooses its own order, which is the
// same on all ranks. With two-level each box's sum is rounded once, and NCCL adds these.)
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/backend.h"
#include "device/tensor_view.h"
#include "ipc/group.h"
#include "kernels/pointwise/rmsnorm.h"

namespace nvllm::ipc {

// Rows of a tensor whose all-reduce overlaps with other work of the streams.
struct OverlappedRows {
  static constexpr int kSlots = 2;

  int slot = 0;                // index of the sum among those in flight
  std::int64_t first_row = 0;  // within the rows of all slots, which are contiguous
};
// The result on all ranks: the normalized rows, or the sum including the residual.
enum class Gathered { norm, sum };

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name() const = 0;  // "shm", "nccl", "peer", "two-level"
  // Whether all_reduce() always adds in the same order: then an element's bits depend on its parts
  // alone, not on the number of elements.
  virtual bool order_is_fixed() const { return true; }

  // data[i] = sum over ranks of data[i], in place.
  virtual void all_reduce(TensorView data, Stream& stream) = 0;
  // out = slice `rank` of the sum of `in`; in has size() times the elements of out.
  virtual void reduce_scatter(TensorView out, TensorView in, Stream& stream) = 0;
  // out = the ranks' `in`, in rank order; out has size() times the elements of in.
  virtual void all_gather(TensorView out, TensorView in, Stream& stream) = 0;
  // The same, but on the root only; on other ranks `out` is not read and may be empty.
  virtual void gather(TensorView out, TensorView in, int root, Stream& stream) = 0;
  // data = the root's data.
  virtual void broadcast(TensorView data, int root, Stream& stream) = 0;
  // Later work in the stream runs after every rank's stream has reached this point.
  virtual void barrier(Stream& stream) = 0;

  // Sums args.x over the ranks, then applies kernels::rms_norm with its residual: exactly the bits
  // of all_reduce(args.x) followed by rms_norm(args), fused if that is faster. args.x may be
  // overwritten. If rows are multiples of 16 bytes, tensors must start at such multiples.
  virtual void all_reduce_rms_norm(const kernels::RmsNorm& args, Stream& stream) = 0;

  // all_reduce_rms_norm, split into three calls so that communication overlaps with other work
  // enqueued between them. Rows are first sent to the rank that owns them (reduce-scatter), which
  // sums and normalizes them, then to all ranks (all-gather).
  //
  //     comm->begin_reduce_scatter(rows, x, stream);
  //     ... other work ...
  //     comm->begin_all_gather(rows, args, Gathered::norm, stream);  // args.x is x
  //     ... other work ...
  //     const TensorView normed = comm->finish_all_gather(rows, stream);
  //
  // The bits are those of all_reduce_rms_norm(args). The tensors in args must not be modified until
  // finish_all_gather(). The three calls of a slot must be made in this order, then again.
  // args.residual is up to date only in rows that this rank owns, which are the same ones for the
  // same slot, first row and shape; with Gathered::sum all rows are. The result is in args.out, in
  // args.residual, or in memory of the communicator, where the next sums of these rows overwrite
  // it; the results of all slots are contiguous.
  //
  // If overlapping is not supported, the second call does all the work.
  virtual void begin_reduce_scatter(OverlappedRows rows, TensorView x, Stream& stream);
  virtual void begin_all_gather(OverlappedRows rows, const kernels::RmsNorm& args,
                                Gathered gathered, Stream& stream);
  virtual TensorView finish_all_gather(OverlappedRows rows, Stream& stream);
  // A collective call: allocates memory (at most overlap_bytes()) for overlapping, for slots of at
  // most slot_rows rows. Returns false on all ranks if overlapping is not supported.
  virtual bool open_overlap(std::int64_t /*slot_rows*/, std::int64_t /*columns*/, DType /*dtype*/) {
    return false;
  }

  // Waits for the stream's work as Stream::synchronize does, but for at most the group's step
  // timeout for a peer: after that, or when the group is aborted, throws an Error that names the
  // culprit.
  virtual void wait(Stream& stream) = 0;
  // The same for the work before an event, regardless of work enqueued after it.
  virtual void wait(const Event& event) = 0;

  // Ends collectives in flight and makes all later ones fail with this reason, on all ranks.
  virtual void abort(const std::string& reason) = 0;

 private:
  std::array<TensorView, OverlappedRows::kSlots> gathered_;  // set by begin_all_gather()
};

// Maximum device memory that open_overlap() allocates on each GPU.
std::size_t overlap_bytes(int ranks, std::int64_t slot_rows, std::int64_t columns, DType dtype);

struct CommunicatorOptions {
  // The implementation: "auto" or "shm" on the CPU; "auto", "peer", "nccl" or "two-level" on CUDA.
  // Anything else is an Error, and so is one that cannot be had.
  std::string implementation = "auto";
  // The number of pipeline stages, each of as many consecutive ranks; a communicator connects the
  // ranks of one stage. If more than one, a StageLink (stage_link.h) is used besides.
  int stages = 1;
};

// A collective call of all ranks of the group. The result's rank() and size() are those within the
// stage. On CUDA, "auto" is peer memory, whose kernels are faster than NCCL's and start 0.4 s
// earlier; without peer access or CUDA IPC it falls back to NCCL and logs that. If a stage has
// ranks on several boxes, "auto" is two-level, which adds by peer memory within a box and by NCCL
// between boxes; it falls back likewise, and is NCCL alone where boxes have one rank each, or
// unequal numbers of them (two_level_ranks() in ipc/stage_boxes.h).
std::unique_ptr<Communicator> create_communicator(Member& member, Backend& backend,
                                                  const CommunicatorOptions& options);

}  // namespace nvllm::ipc
