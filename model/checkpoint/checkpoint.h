// Checkpoint: the tensors of a model in its files, safetensors (one file, or many with an index) or
// GGUF. Opening reads headers only. Tensors have Hugging Face's names in both formats.
//
//   const Checkpoint checkpoint = open_checkpoint("models/Qwen3-0.6B");
//   const StoredTensor& q = checkpoint.get("model.layers.0.self_attn.q_proj.weight", {2048, 1024});
//   pread(checkpoint.files()[q.file].fd(), ..., q.offset + ...);  decode(q.encoding, ...);
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"
#include "device/dtype.h"

namespace nvllm::model {

// The storage format of elements. GGUF's quantized types store blocks of elements with common
// scales. I4 is eight elements in an int32, MXFP4 32 in 16 bytes; I4, MXFP4 and F8_E4M3 have
// separate scales (QuantizedWeight), except GGUF's MXFP4 blocks, which begin with theirs. I32, I64
// and U8 are not weights: INT4 and MXFP4 checkpoints use them for packed values and indices.
enum class Encoding : std::uint8_t {
  f32,
  f16,
  bf16,
  q8_0,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q4_k,
  q5_k,
  q6_k,
  f8_e4m3,
  i4,
  i32,
  i64,
  mxfp4,
  u8,
  mxfp4_blocks
};
const char* name_of(Encoding encoding);          // "F32", "Q4_K"
std::int64_t block_elements(Encoding encoding);  // 1, 8, 32 or 256
std::int64_t block_bytes(Encoding encoding);

// Dequantizes whole blocks into dense elements of float32, bfloat16 or float16 (computed in float32
// and rounded once). F8_E4M3 are decoded without their scales; I4, I32, I64, MXFP4 and U8 not at
// all. `elements` is a multiple of block_elements(); `from` need not be aligned. Thread-safe.
void decode(Encoding encoding, const std::byte* from, std::int64_t elements, DType to, void* out);

// Unpacks whole blocks of GGUF's quantized types: an element is integer x scale + offset, with one
// scale and offset per 16 elements. (MXFP4 is unpacked as twice its e2m1 value, an integer.)
void decode_integers(Encoding encoding, const std::byte* from, std::int64_t elements,
                     std::int8_t* values, float* scales, float* offsets);

struct QuantizedWeight;

// The strides, in elements, of elements that are not dense in a file: from row to row, and from
// column to column.
struct StoredStrides {
  std::int64_t rows = 0, columns = 1;
};

// A permutation of rows or columns in a file relative to Hugging Face's order. From `first` on,
// each block of period() units of `size` is a matrix [outer, inner] here and [inner, outer] in the
// file.
struct StoredOrder {
  std::int64_t first = 0;
  std::int64_t outer = 1, inner = 1, size = 1;

  std::int64_t period() const { return outer * inner * size; }
  std::int64_t stored(std::int64_t index) const;  // index in the file
  // The end of the run from there on that is contiguous in the file, in this order.
  std::int64_t run_end(std::int64_t index) const;
};

struct StoredTensor {
  std::string name;  // Hugging Face's
  Encoding encoding = Encoding::f32;
  std::vector<std::int64_t> shape;  // [rows, columns] or [elements]; rows are whole blocks
  std::size_t file = 0;             // index in files()
  std::uint64_t offset = 0;         // in the file, which is known to hold all bytes
  std::uint64_t bytes = 0;
  std::string stored_name;  // as the file calls it

  // GGUF's permutation of the rows of a matrix (llama's q and k, so that rotary pairs are adjacent;
  // value heads of linear attention), and of its columns or the elements of a vector. The part
  // after `first` consists of whole periods. nullopt: not permuted.
  std::optional<StoredOrder> row_order = std::nullopt, column_order = std::nullopt;
  // Row r of this tensor is row stored_row(r) of the file.
  std::int64_t stored_row(std::int64_t row) const {
    return row_order ? row_order->stored(row) : row;
  }
  // The file stores -exp(x) for each element x of a vector.
  bool stored_as_minus_exp = false;

  // For a slice of another tensor, of floats or U8: the strides of element (row, column) from
  // `offset`. Otherwise the elements are dense.
  std::optional<StoredStrides> strides = std::nullopt;

  // For a weight in FP8, INT4 or MXFP4: the layout of its values and scales in tensors of the
  // files, which are not in the checkpoint's list. Otherwise nullptr.
  std::shared_ptr<const QuantizedWeight> quantized = nullptr;

  // Bytes of a row along the last dimension; for a 1-D tensor, of an element.
  std::uint64_t row_bytes() const;
};

class CheckpointFile {
 public:
  CheckpointFile(std::string path, UniqueFd fd, std::uint64_t size)
      : path_(std::move(path)), fd_(std::move(fd)), size_(size) {}
  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }
  std::uint64_t size() const { return size_; }

 private:
  std::string path_;
  UniqueFd fd_;
  std::uint64_t size_;
};

// Const after it has been opened; any number of threads may then read it.
class Checkpoint {
 public:
  Checkpoint(std::vector<CheckpointFile> files, std::vector<StoredTensor> tensors,
             std::string config_json);

  const std::vector<CheckpointFile>& files() const { return files_; }
  const std::map<std::string, StoredTensor, std::less<>>& tensors() const { return tensors_; }
  const StoredTensor* find(std::string_view name) const;  // nullptr: not there
  // The scales of an FP8 KV cache, which are not weights and not among tensors().
  const std::map<std::string, StoredTensor, std::less<>>& kv_scales() const { return kv_scales_; }
  // Returns the tensor, or throws an Error that names the files, the tensor, the expected shape and
  // the actual one.
  const StoredTensor& get(std::string_view name, const std::vector<std::int64_t>& shape) const;

  // The text of config.json; for a GGUF file it is generated from the metadata.
  const std::string& config_json() const { return config_json_; }
  std::string describe() const;  // "2 safetensors files in DIR"
  std::uint64_t bytes() const;   // of all tensors

 private:
  std::vector<CheckpointFile> files_;
  std::map<std::string, StoredTensor, std::less<>> tensors_, kv_scales_;
  std::string config_json_;
};

// `path`: a folder with config.json and safetensors, a folder with one .gguf, or a .gguf file.
Checkpoint open_checkpoint(const std::string& path);

}  // namespace nvllm::model
