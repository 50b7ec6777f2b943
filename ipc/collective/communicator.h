// Communicator: the collectives of a group's ranks on device tensors. Every rank calls the same
// operations in the same order with the same shapes and types; each call only enqueues on the
// stream.
//
//   auto comm = create_communicator(member, *backend, {});
//   comm->all_reduce(hidden, *stream);
//   comm->wait(*stream);            // or simply go on enqueueing
//
// Sums are taken in rank order in float32 and rounded once, so every rank gets the same bits, in
// every run, whichever shm or peer path is taken. (NCCL chooses its own order; it is the same on
// all ranks.)
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

// Some rows of a tensor that ranks sum up while their streams do other work.
struct OverlappedRows {
  static constexpr int kSlots = 2;

  int slot = 0;                // which of the sums under way it is
  std::int64_t first_row = 0;  // of the rows of all slots, which lie one behind the other
};
// What all ranks have of such rows in the end: the norm, or the sum with its residual.
enum class Gathered { norm, sum };

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name() const = 0;  // "shm", "nccl", "peer"

  // data[i] = sum over ranks of data[i], in place.
  virtual void all_reduce(TensorView data, Stream& stream) = 0;
  // out = slice `rank` of the sum of `in`; in has size() times the elements of out.
  virtual void reduce_scatter(TensorView out, TensorView in, Stream& stream) = 0;
  // out = the ranks' `in`, in rank order; out has size() times the elements of in.
  virtual void all_gather(TensorView out, TensorView in, Stream& stream) = 0;
  // The same on the root only; elsewhere `out` is not read and may be empty.
  virtual void gather(TensorView out, TensorView in, int root, Stream& stream) = 0;
  // data = the root's data.
  virtual void broadcast(TensorView data, int root, Stream& stream) = 0;
  // Later work of the stream runs after every rank's stream has come this far.
  virtual void barrier(Stream& stream) = 0;

  // args.x summed over the ranks, then kernels::rms_norm of it with its residual: exactly the bits
  // of all_reduce(args.x) followed by rms_norm(args), in one pass where that is faster. args.x may
  // be overwritten. Tensors whose rows are multiples of 16 bytes begin at such a multiple.
  virtual void all_reduce_rms_norm(const kernels::RmsNorm& args, Stream& stream) = 0;

  // all_reduce_rms_norm in three calls, with other work of the stream between them, beside which
  // rows travel: first to the rank that owns them (reduce-scatter), which sums and norms them, then
  // to all (all-gather).
  //
  //   comm->begin_reduce_scatter(rows, x, stream);
  //   ... other work ...
  //   comm->begin_all_gather(rows, args, Gathered::norm, stream);  // args.x is x
  //   ... other work ...
  //   const TensorView normed = comm->finish_all_gather(rows, stream);
  //
  // The bits are those of all_reduce_rms_norm(args). Until finish_all_gather() nobody writes what
  // args name. Each slot goes through the three calls in turn. args.residual is up to date only in
  // rows that this rank owns, the same ones for the same slot, first row and shape; Gathered::sum
  // gives all of it. The result lies in args.out or args.residual or in memory of the communicator,
  // where the next sums of these rows overwrite it; slots' results lie one behind the other.
  //
  // Where nothing can be overlapped the second call does it all.
  virtual void begin_reduce_scatter(OverlappedRows rows, TensorView x, Stream& stream);
  virtual void begin_all_gather(OverlappedRows rows, const kernels::RmsNorm& args,
                                Gathered gathered, Stream& stream);
  virtual TensorView finish_all_gather(OverlappedRows rows, Stream& stream);
  // A collective call: makes the memory for that, for slots of at most so many rows. False on all
  // ranks: nothing can be overlapped here. Memory of overlap_bytes().
  virtual bool open_overlap(std::int64_t /*slot_rows*/, std::int64_t /*columns*/, DType /*dtype*/) {
    return false;
  }

  // Waits for the stream's work as Stream::synchronize does, but never longer than the group's step
  // timeout for a peer: then, or when the group is aborted, an Error that names the culprit.
  virtual void wait(Stream& stream) = 0;
  // The same for the work that leads to an event, whatever was enqueued behind it.
  virtual void wait(const Event& event) = 0;

  // Ends collectives in flight and makes all later ones fail with the reason, here and on all
  // ranks.
  virtual void abort(const std::string& reason) = 0;

 private:
  std::array<TensorView, OverlappedRows::kSlots> gathered_;  // by begin_all_gather()
};

// Device memory that open_overlap() takes at most, on each of so many GPUs.
std::size_t overlap_bytes(int ranks, std::int64_t slot_rows, std::int64_t columns, DType dtype);

struct CommunicatorOptions {
  // Which implementation. On the CPU "auto" and "shm"; on CUDA "auto", "peer", "nccl". Anything
  // else is an Error.
  std::string implementation = "auto";
  // The group's ranks are in so many stages of equally many neighbours, and a communicator is of
  // those of one stage. More than one: beside a StageLink (stage_link.h).
  int stages = 1;
};

// A collective call of all ranks of the group. The result's rank() and size() are those within the
// stage. On CUDA "auto" is peer memory, whose kernels measured faster than
// NCCL's and start 0.4 s earlier; without peer access or CUDA IPC it falls back to NCCL and says so
// in the log. Where a stage has ranks on several boxes it is NCCL.
std::unique_ptr<Communicator> create_communicator(Member& member, Backend& backend,
                                                  const CommunicatorOptions& options);

}  // namespace nvllm::ipc
