// LayerRank: the fixture of layer tests on one rank: tensors with known values, and the two
// contexts in which a layer is compared with itself: whole on this rank, and split over all ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "device/backend.h"
#include "kernels/gemm/gemm.h"
#include "layers/context.h"
#include "layers/parameter.h"
#include "layers/partition.h"
#include "testing/device_ranks.h"

namespace nvllm::layers {

// Element i of the tensor called `name`: the same on all ranks, uniform over [-width, width).
float noise(const std::string& name, std::int64_t i, float width);

class LayerRank {
 public:
  explicit LayerRank(testing::DeviceRank& rank);

  Shard shard() const;
  Backend& backend() { return *rank_.backend; }
  Stream& stream() { return *rank_.stream; }

  Context alone() { return {stream(), *gemm_, scratch_, nullptr}; }
  Context together() { return {stream(), *gemm_, scratch_, rank_.communicator.get()}; }

  // Allocates parameters and fills them by their declared slices, which must cover them exactly: a
  // GEMM's weights preserve the magnitude of its inputs, a norm's are about 1, and those with
  // "zero" in the tensor's name are zero.
  void bind_all(const std::vector<Parameter*>& parameters, DType dtype);
  template <typename Layer>
  void bind(Layer& layer, DType dtype) {
    std::vector<Parameter*> parameters;
    layer.declare(parameters);
    bind_all(parameters, dtype);
  }

  // Device memory with these values, or with a sentinel that no layer produces; it lives as long as
  // this object.
  TensorView tensor(const std::vector<float>& values, DType dtype, std::int64_t rows,
                    std::int64_t columns);
  TensorView empty(DType dtype, std::int64_t rows, std::int64_t columns);
  TensorView noise_tensor(const std::string& name, DType dtype, std::int64_t rows,
                          std::int64_t columns);
  TensorView ids(const std::vector<std::int32_t>& values);

  // Reads a tensor [rows, columns], with any row stride. Waits for the stream.
  std::vector<float> values(TensorView tensor);

 private:
  TensorView placed(const void* data, DType dtype, std::int64_t rows, std::int64_t columns);

  testing::DeviceRank& rank_;
  std::unique_ptr<kernels::Gemm> gemm_;
  Buffer scratch_memory_;
  Scratch scratch_;
  std::vector<Buffer> memory_;
};

// Runs the body on groups of 2, 3 and 4 ranks in turn; skips groups that are not available here.
void on_groups(const std::function<void(LayerRank&)>& body);

// How far results of a split layer may be from those of the whole one.
struct Tolerance {
  int roundings;  // of values as large as the largest result, on either way, to the tensors' type
  std::int64_t length;  // of the longest sum in float32
};
// "" or which element differs, by how much, and the tolerance. Columns [begin, end) of `expected`,
// which has `columns` columns, are compared with all of `got`.
std::string difference(const std::vector<float>& got, const std::vector<float>& expected,
                       std::int64_t columns, Range range, DType dtype, const Tolerance& tolerance);
std::string difference(const std::vector<float>& got, const std::vector<float>& expected,
                       DType dtype, const Tolerance& tolerance);

}  // namespace nvllm::layers
