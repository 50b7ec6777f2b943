#include "model/loading/loader_fixture.h"

#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "model/loading/loader.h"

namespace nvllm::model {
namespace {

using layers::Parameter;
using layers::Range;
using layers::Slice;

std::int64_t element_count(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

template <typename T>
void fill_normal(std::vector<std::byte>& content, std::mt19937& random) {
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < content.size(); i += sizeof(T)) {
    const T value = from_float<T>(normal(random));
    std::memcpy(content.data() + i, &value, sizeof(T));
  }
}

std::vector<std::byte> random_content(Encoding encoding, std::size_t bytes, std::mt19937& random) {
  std::vector<std::byte> content(bytes);
  switch (encoding) {
    case Encoding::f32: fill_normal<float>(content, random); break;
    case Encoding::f16: fill_normal<F16>(content, random); break;
    case Encoding::bf16: fill_normal<Bf16>(content, random); break;
    default:
      // Without these two bits all scales are below 1/8.
      for (std::byte& byte : content) byte = std::byte(random() & 0xaf);
  }
  return content;
}

std::vector<std::byte> read_row(const Checkpoint& checkpoint, const StoredTensor& tensor,
                                std::int64_t row, std::uint64_t bytes) {
  std::vector<std::byte> stored(bytes);
  const CheckpointFile& file = checkpoint.files()[tensor.file];
  const std::uint64_t offset = tensor.offset + tensor.stored_row(row) * bytes;
  if (pread(file.fd(), stored.data(), bytes, offset) != static_cast<ssize_t>(bytes)) {
    fail(file.path(), ": cannot read tensor ", tensor.stored_name);
  }
  return stored;
}

// The slice's values, dense. A tensor of one dimension is one row here.
std::vector<std::byte> read_slice(const layers::Slice& slice, const Checkpoint& checkpoint,
                                  DType dtype) {
  const StoredTensor& tensor = checkpoint.get(slice.tensor, slice.shape);
  const bool matrix = slice.shape.size() == 2;
  const layers::Range rows = matrix ? slice.rows : layers::Range{0, 1};
  const layers::Range columns = matrix ? slice.columns : slice.rows;
  const std::int64_t whole = slice.shape.back();
  const std::size_t element = size_of(dtype);
  std::vector<std::byte> values(rows.size() * columns.size() * element);
  if (values.empty()) return values;
  std::vector<std::byte> row_values(whole * element);
  std::byte* out = values.data();
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const std::vector<std::byte> stored =
        read_row(checkpoint, tensor, row, matrix ? tensor.row_bytes() : tensor.bytes);
    decode(tensor.encoding, stored.data(), whole, dtype, row_values.data());
    std::memcpy(out, row_values.data() + columns.begin * element, columns.size() * element);
    out += columns.size() * element;
  }
  return values;
}

// Rows are whole blocks of every encoding, but columns are cut inside of blocks.
constexpr std::int64_t kHidden = 256, kHeads = 8, kKvHeads = 4, kHeadDim = 32, kMlp = 256,
                       kVocab = 131;

}  // namespace

void TestFiles::add(const std::string& name, Encoding encoding, std::vector<std::int64_t> shape,
                    std::int64_t rotary_heads) {
  StoredTensor tensor;
  tensor.name = name;
  tensor.stored_name = "stored." + name;
  tensor.encoding = encoding;
  tensor.shape = std::move(shape);
  if (rotary_heads > 0) {
    tensor.row_order = StoredOrder{.outer = 2, .inner = tensor.shape[0] / rotary_heads / 2};
  }
  tensor.bytes = element_count(tensor.shape) / block_elements(encoding) * block_bytes(encoding);
  contents_[name] = random_content(encoding, tensor.bytes, random_);
  tensors_.push_back(std::move(tensor));
}

void TestFiles::order(std::optional<StoredOrder> rows, std::optional<StoredOrder> columns) {
  tensors_.back().row_order = rows;
  tensors_.back().column_order = columns;
}

void TestFiles::minus_exp(const std::vector<float>& x) {
  tensors_.back().stored_as_minus_exp = true;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float stored = -std::exp(x[i]);
    std::memcpy(contents_[tensors_.back().name].data() + i * sizeof(float), &stored, sizeof(float));
  }
}

std::string TestFiles::path(int file) const {
  return folder_.path(str(file, ".bin"));
}

Checkpoint TestFiles::write(int count) {
  std::vector<std::uint64_t> sizes(count, 0);
  std::vector<std::ofstream> out;
  for (int i = 0; i < count; ++i) out.emplace_back(path(i), std::ios::binary | std::ios::trunc);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    StoredTensor& tensor = tensors_[i];
    tensor.file = i % count;
    const std::string gap(7 + 3 * i, '#');  // so that nothing lies aligned
    const std::vector<std::byte>& content = contents_[tensor.name];
    out[tensor.file] << gap;
    out[tensor.file].write(reinterpret_cast<const char*>(content.data()), content.size());
    tensor.offset = sizes[tensor.file] + gap.size();
    sizes[tensor.file] = tensor.offset + tensor.bytes;
  }
  std::vector<CheckpointFile> files;
  for (int i = 0; i < count; ++i) {
    out[i].close();
    UniqueFd fd(open(path(i).c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd || !out[i]) fail_errno("writing ", path(i));
    files.emplace_back(path(i), std::move(fd), sizes[i]);
  }
  return Checkpoint(std::move(files), tensors_, "{}");
}

Checkpoint TestFiles::write_safetensors(int count) const {
  std::vector<std::string> headers(count), data(count);
  std::string index;
  const auto file_name = [count](std::size_t file) {
    return count == 1 ? std::string("model.safetensors") : str("model-", file, ".safetensors");
  };
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const StoredTensor& tensor = tensors_[i];
    const std::size_t file = i % count;
    const std::vector<std::byte>& content = contents_.at(tensor.name);
    const std::size_t begin = data[file].size();
    data[file].append(reinterpret_cast<const char*>(content.data()), content.size());
    std::string shape = str(tensor.shape[0]);
    if (tensor.shape.size() == 2) shape += str(",", tensor.shape[1]);
    headers[file] += str(headers[file].empty() ? "{" : ",", R"(")", tensor.name, R"(":{"dtype":")",
                         name_of(tensor.encoding), R"(","shape":[)", shape, R"(],"data_offsets":[)",
                         begin, ",", data[file].size(), "]}");
    index += str(index.empty() ? "" : ",", R"(")", tensor.name, R"(":")", file_name(file), R"(")");
  }
  const std::string folder = str("safetensors-", count);
  std::filesystem::create_directory(folder_.path(folder));
  for (int file = 0; file < count; ++file) {
    const std::uint64_t size = headers[file].size() + 1;
    folder_.write(folder + "/" + file_name(file),
                  std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + headers[file] +
                      "}" + data[file]);
  }
  if (count > 1) {
    folder_.write(folder + "/model.safetensors.index.json", R"({"weight_map":{)" + index + "}}");
  }
  folder_.write(folder + "/config.json", "{}");
  return open_checkpoint(folder_.path(folder));
}

void TestFiles::truncate(int file, std::uint64_t size) const {
  if (::truncate(path(file).c_str(), size) != 0) fail_errno("truncating ", path(file));
}

std::vector<std::byte> TestFiles::values(const std::string& name, DType dtype) const {
  for (const StoredTensor& tensor : tensors_) {
    if (tensor.name != name) continue;
    const std::int64_t rows = tensor.shape.size() == 2 ? tensor.shape[0] : 1;
    const std::int64_t columns = tensor.shape.back();
    const std::size_t row_bytes = columns * size_of(dtype);
    const std::size_t stored_row_bytes = rows == 0 ? 0 : tensor.bytes / rows;
    std::vector<std::byte> values(rows * row_bytes), stored_row(row_bytes);
    for (std::int64_t row = 0; row < rows; ++row) {
      decode(tensor.encoding, contents_.at(name).data() + tensor.stored_row(row) * stored_row_bytes,
             columns, dtype, stored_row.data());
      for (std::int64_t column = 0; column < columns; ++column) {
        const auto& order = tensor.column_order;
        const std::int64_t there = order ? order->stored(column) : column;
        std::memcpy(values.data() + row * row_bytes + column * size_of(dtype),
                    stored_row.data() + there * size_of(dtype), size_of(dtype));
      }
    }
    return values;
  }
  fail("no tensor ", name);
}

void TestParameters::matrix(const std::string& name, const std::vector<Slice>& slices) {
  Parameter parameter;
  parameter.name = name;
  parameter.slices = slices;
  parameter.shape = {0, slices.front().columns.size()};
  for (const Slice& slice : slices) parameter.shape[0] += slice.rows.size();
  parameters_.push_back(std::move(parameter));
}

void TestParameters::vector(const std::string& name, const std::vector<Slice>& slices) {
  matrix(name, slices);
  parameters_.back().shape.pop_back();
}

std::vector<Parameter*> TestParameters::parameters() {
  std::vector<Parameter*> all;
  for (Parameter& parameter : parameters_) all.push_back(&parameter);
  return all;
}

void TestParameters::bind(Backend& backend, DType dtype) {
  backend_ = &backend;
  memory_ = bind_parameters(parameters(), dtype, backend);
  const auto stream = backend.create_stream();
  backend.fill(memory_.data(), 0xa5, memory_.bytes(), *stream);
  stream->synchronize();
}

std::vector<std::byte> TestParameters::bytes(const Parameter& parameter) const {
  std::vector<std::byte> here(parameter.view.bytes());
  const auto stream = backend_->create_stream();
  backend_->copy(here.data(), parameter.view.data, here.size(), *stream);
  stream->synchronize();
  return here;
}

std::vector<std::uint64_t> TestParameters::checksums() {
  std::vector<std::uint64_t> all;
  for (const Parameter* parameter : parameters()) all.push_back(checksum(*parameter, *backend_));
  return all;
}

Slice rows_of(const std::string& tensor, std::vector<std::int64_t> shape, Range rows,
              std::int64_t to_row) {
  Slice slice{.tensor = tensor,
              .shape = std::move(shape),
              .rows = rows,
              .columns = {0, 1},
              .to_row = to_row};
  if (slice.shape.size() == 2) slice.columns.end = slice.shape[1];
  return slice;
}

Slice columns_of(const std::string& tensor, std::vector<std::int64_t> shape, Range columns) {
  Slice slice{.tensor = tensor, .shape = std::move(shape), .rows = {}, .columns = columns};
  slice.rows.end = slice.shape[0];
  return slice;
}

void add_decoder_tensors(TestFiles& files, Encoding encoding, bool rotary) {
  files.add("embedding", encoding, {kVocab, kHidden});
  files.add("norm.weight", Encoding::f32, {kHidden});
  files.add("q", encoding, {kHeads * kHeadDim, kHidden}, rotary ? kHeads : 0);
  files.add("k", encoding, {kKvHeads * kHeadDim, kHidden}, rotary ? kKvHeads : 0);
  files.add("v", encoding, {kKvHeads * kHeadDim, kHidden});
  files.add("q.bias", Encoding::f16, {kHeads * kHeadDim});
  files.add("o", encoding, {kHidden, kHeads * kHeadDim});
  files.add("gate", encoding, {kMlp, kHidden});
  files.add("up", encoding, {kMlp, kHidden});
  files.add("down", encoding, {kHidden, kMlp});
}

TestParameters decoder_of(layers::Shard shard) {
  const Range vocab = shard_range(kVocab, shard), mlp = shard_range(kMlp, shard);
  const layers::HeadShard heads = heads_of(kHeads, kKvHeads, shard);
  const auto elements = [](Range range) {
    return Range{range.begin * kHeadDim, range.end * kHeadDim};
  };
  const Range q = elements(heads.q), kv = elements(heads.kv);
  TestParameters model;
  model.matrix("embedding", {rows_of("embedding", {kVocab, kHidden}, vocab)});
  model.vector("norm", {rows_of("norm.weight", {kHidden}, {0, kHidden})});
  model.matrix("qkv", {rows_of("q", {kHeads * kHeadDim, kHidden}, q),
                       rows_of("k", {kKvHeads * kHeadDim, kHidden}, kv, q.size()),
                       rows_of("v", {kKvHeads * kHeadDim, kHidden}, kv, q.size() + kv.size())});
  model.vector("bias", {rows_of("q.bias", {kHeads * kHeadDim}, q)});
  model.matrix("output", {columns_of("o", {kHidden, kHeads * kHeadDim}, q)});
  model.matrix("gate_up", {rows_of("gate", {kMlp, kHidden}, mlp),
                           rows_of("up", {kMlp, kHidden}, mlp, mlp.size())});
  model.matrix("down", {columns_of("down", {kHidden, kMlp}, mlp)});
  model.matrix("head", {rows_of("embedding", {kVocab, kHidden}, vocab)});
  return model;
}

void Assembly::add(TestParameters& model, DType dtype) {
  const std::size_t element = size_of(dtype);
  for (const Parameter* parameter : model.parameters()) {
    const std::vector<std::byte> values = model.bytes(*parameter);
    for (const Slice& slice : parameter->slices) {
      const std::int64_t whole_columns = slice.shape.size() == 2 ? slice.shape[1] : 1;
      std::vector<std::byte>& tensor = tensors_[slice.tensor];
      tensor.resize(element_count(slice.shape) * element, std::byte(0xa5));
      const std::size_t row_bytes = slice.columns.size() * element;
      if (row_bytes == 0) continue;
      for (std::int64_t i = 0; i < slice.rows.size(); ++i) {
        const std::byte* const from = values.data() + (slice.to_row + i) * row_bytes;
        const std::size_t to =
            ((slice.rows.begin + i) * whole_columns + slice.columns.begin) * element;
        const bool is_first = row_parts_.emplace(slice.tensor, to).second;
        disagreements_ += !is_first && std::memcmp(tensor.data() + to, from, row_bytes) != 0;
        std::memcpy(tensor.data() + to, from, row_bytes);
      }
    }
  }
}

void reference_load(std::span<layers::Parameter* const> parameters, const Checkpoint& checkpoint,
                    Backend& backend) {
  const auto stream = backend.create_stream();
  for (const layers::Parameter* parameter : parameters) {
    const TensorView& view = parameter->view;
    for (const layers::Slice& slice : parameter->slices) {
      const auto values = read_slice(slice, checkpoint, view.dtype);
      if (values.empty()) continue;
      const std::int64_t row_elements = view.rank == 2 ? view.shape[1] : 1;
      backend.copy(view.as<std::byte>() + slice.to_row * row_elements * size_of(view.dtype),
                   values.data(), values.size(), *stream);
      stream->synchronize();
    }
  }
}

}  // namespace nvllm::model
