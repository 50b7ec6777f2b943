// Checkpoints and models for the loader's tests: files of raw tensors, and parameters with all
// shapes of slices that layers have, for any rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/backend.h"
#include "layers/parameter.h"
#include "layers/partition.h"
#include "model/checkpoint/checkpoint.h"
#include "model/testing/test_folder.h"

namespace nvllm::model {

inline constexpr Encoding kEncodings[] = {Encoding::f32,  Encoding::f16,  Encoding::bf16,
                                          Encoding::q8_0, Encoding::q4_0, Encoding::q4_1,
                                          Encoding::q5_0, Encoding::q5_1, Encoding::q4_k,
                                          Encoding::q5_k, Encoding::q6_k, Encoding::mxfp4_blocks};

// Tensors of random values, in files of a folder.
class TestFiles {
 public:
  void add(const std::string& name, Encoding encoding, std::vector<std::int64_t> shape,
           std::int64_t rotary_heads = 0);
  // For the tensor that was added last.
  void order(std::optional<StoredOrder> rows, std::optional<StoredOrder> columns);
  // The same: it stores -exp(x), 4 bytes each.
  void minus_exp(const std::vector<float>& x);

  // Writes the tensors, distributed over `files` files. May be called again.
  Checkpoint write(int files = 1);
  // The same as safetensors, with an index if there are several files. Only F32, F16 and BF16.
  Checkpoint write_safetensors(int files) const;

  std::string path(int file) const;
  void truncate(int file, std::uint64_t size) const;  // negative counts from the end

  // All values of a tensor as decoded by decode(), rows in Hugging Face's order.
  std::vector<std::byte> values(const std::string& name, DType dtype) const;
  const std::vector<StoredTensor>& tensors() const { return tensors_; }

 private:
  TestFolder folder_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::vector<std::byte>> contents_;
  std::mt19937 random_{1};
};

// One rank's parameters with their memory, and access to it.
class TestParameters {
 public:
  void matrix(const std::string& name, const std::vector<layers::Slice>& slices);
  void vector(const std::string& name, const std::vector<layers::Slice>& slices);
  void bind(Backend& backend, DType dtype);

  std::vector<layers::Parameter*> parameters();
  // From the device.
  std::vector<std::byte> bytes(const layers::Parameter& parameter) const;
  std::vector<std::uint64_t> checksums();

 private:
  Backend* backend_ = nullptr;
  Buffer memory_;
  std::deque<layers::Parameter> parameters_;
};

// Rows (elements) of a tensor, and columns.
layers::Slice rows_of(const std::string& tensor, std::vector<std::int64_t> shape,
                      layers::Range rows, std::int64_t to_row = 0);
layers::Slice columns_of(const std::string& tensor, std::vector<std::int64_t> shape,
                         layers::Range columns);

// A small decoder: embedding, tied head, one layer. Uneven on 2, 3 and 4 ranks.
void add_decoder_tensors(TestFiles& files, Encoding encoding, bool rotary);
TestParameters decoder_of(layers::Shard shard);

// All tensors of the decoder assembled from all ranks' parameters, which must agree where they
// overlap; a byte that no rank has stays 0xa5.
class Assembly {
 public:
  void add(TestParameters& model, DType dtype);
  const std::map<std::string, std::vector<std::byte>>& tensors() const { return tensors_; }
  int disagreements() const { return disagreements_; }

 private:
  std::map<std::string, std::vector<std::byte>> tensors_;
  std::set<std::pair<std::string, std::size_t>> row_parts_;  // where parts of rows begin
  int disagreements_ = 0;
};

// The reference for load_parameters(): row by row through pageable memory, on the caller's thread.
void reference_load(std::span<layers::Parameter* const> parameters, const Checkpoint& checkpoint,
                    Backend& backend);

}  // namespace nvllm::model
