#include "kvcache/paged_storage.h"

#include <algorithm>

#include "base/check.h"
#include "base/math.h"
#include "base/error.h"

namespace nvllm::kvcache {
namespace {

// Large enough that its allocation takes longer than to ask for it; small enough not to hold a step up for
// long.
constexpr std::size_t kPieceBytes = std::size_t{64} << 20;

// [blocks, block_size, kv_heads, head_dim] from an address within the first block on.
TensorView cache_view(unsigned char* data, const BlockShape& shape, std::int64_t blocks) {
  TensorView view(data, shape.dtype, {blocks, shape.block_size, shape.kv_heads, shape.head_dim});
  view.stride[0] = shape.layers * 2 * shape.layer_elements();
  return view;
}

}  // namespace

std::int64_t BlockShape::layer_elements() const {
  return block_size * kv_heads * head_dim;
}

std::size_t BlockShape::layer_bytes() const {
  return static_cast<std::size_t>(2 * layer_elements()) * size_of(dtype);
}

std::size_t BlockShape::kv_bytes() const {
  return static_cast<std::size_t>(layers) * layer_bytes();
}

std::size_t BlockShape::token_bytes() const {
  return static_cast<std::size_t>(block_size) * sizeof(std::int32_t);
}

std::size_t BlockShape::bytes() const {
  return kv_bytes() + token_bytes();
}

PagedStorage::PagedStorage(Backend& backend, const BlockShape& shape, std::int64_t blocks,
                           std::int64_t host_blocks)
    : backend_(backend),
      shape_(shape),
      blocks_(blocks),
      host_blocks_(host_blocks),
      piece_blocks_(
          std::max<std::int64_t>(1, static_cast<std::int64_t>(kPieceBytes / shape.bytes()))),
      host_pieces_(static_cast<std::size_t>(divide_up(host_blocks, piece_blocks_))) {
  NVLLM_CHECK(blocks >= 0 && host_blocks >= 0, blocks, " and ", host_blocks);
  memory_ = backend.allocate(MemoryKind::device, static_cast<std::size_t>(blocks) * shape.bytes(),
                             "kv cache");
  auto* const data = static_cast<unsigned char*>(memory_.data());
  const std::size_t part = static_cast<std::size_t>(shape.layer_elements()) * size_of(shape.dtype);
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    unsigned char* const keys = data + static_cast<std::size_t>(layer) * 2 * part;
    kernels::KvView view;
    view.keys = cache_view(keys, shape, blocks);
    view.values = cache_view(keys + part, shape, blocks);
    views_.push_back(view);
  }
  tokens_ = TensorView(data + static_cast<std::size_t>(blocks) * shape.kv_bytes(), DType::i32,
                       {blocks, shape.block_size});
}

PagedStorage::Place PagedStorage::on_device(BlockId block) const {
  return {static_cast<unsigned char*>(memory_.data()), blocks_, block};
}

PagedStorage::Place PagedStorage::on_host(BlockId block) const {
  const std::int64_t piece = block / piece_blocks_;
  const Buffer& buffer = host_pieces_[static_cast<std::size_t>(piece)];
  if (!buffer) fail("swapping blocks of the KV cache: nothing was swapped to host block ", block);
  return {static_cast<unsigned char*>(buffer.data()),
          std::min(piece_blocks_, host_blocks_ - piece * piece_blocks_),
          block - piece * piece_blocks_};
}

void PagedStorage::make_host_piece(BlockId block) {
  const std::int64_t piece = block / piece_blocks_;
  Buffer& buffer = host_pieces_[static_cast<std::size_t>(piece)];
  if (buffer) return;
  const std::int64_t count = std::min(piece_blocks_, host_blocks_ - piece * piece_blocks_);
  buffer = backend_.allocate(MemoryKind::pinned, static_cast<std::size_t>(count) * shape_.bytes(),
                             "swapped kv cache");
}

void PagedStorage::check_blocks(const BlockCopy& copy, bool out) const {
  const auto require = [](BlockId block, std::int64_t blocks, const char* where) {
    if (block >= 0 && block < blocks) return;
    fail("swapping blocks of the KV cache: there is no ", where, " block ", block, ", they are ",
         blocks);
  };
  require(out ? copy.from : copy.to, blocks_, "device");
  require(out ? copy.to : copy.from, host_blocks_, "host");
}

// How many of the copies, from the first on, are one: neighbours on both sides, in one piece of the host's.
std::size_t PagedStorage::run_length(std::span<const BlockCopy> copies, bool out) const {
  const BlockCopy& first = copies.front();
  const auto inside = (out ? first.to : first.from) % piece_blocks_;
  const auto most = std::min(copies.size(), static_cast<std::size_t>(piece_blocks_ - inside));
  std::size_t count = 1;
  while (count < most && copies[count].from == first.from + static_cast<BlockId>(count) &&
         copies[count].to == first.to + static_cast<BlockId>(count)) {
    ++count;
  }
  return count;
}

void PagedStorage::copy(const Place& to, const Place& from, std::size_t count, Stream& stream) {
  const std::size_t kv = shape_.kv_bytes(), tokens = shape_.token_bytes();
  const auto kv_of = [&](const Place& place) {
    return place.memory + static_cast<std::size_t>(place.first) * kv;
  };
  const auto tokens_of = [&](const Place& place) {
    return place.memory + static_cast<std::size_t>(place.blocks) * kv +
           static_cast<std::size_t>(place.first) * tokens;
  };
  if (kv > 0) backend_.copy(kv_of(to), kv_of(from), count * kv, stream);
  backend_.copy(tokens_of(to), tokens_of(from), count * tokens, stream);
}

void PagedStorage::swap_out(std::span<const BlockCopy> copies, Stream& stream) {
  for (const BlockCopy& each : copies) {
    check_blocks(each, true);
    make_host_piece(each.to);
  }
  traffic_.to_host += copies.size() * shape_.bytes();
  while (!copies.empty()) {
    const std::size_t count = run_length(copies, true);
    copy(on_host(copies.front().to), on_device(copies.front().from), count, stream);
    copies = copies.subspan(count);
  }
}

void PagedStorage::swap_in(std::span<const BlockCopy> copies, Stream& stream) {
  for (const BlockCopy& each : copies) check_blocks(each, false);
  traffic_.to_device += copies.size() * shape_.bytes();
  while (!copies.empty()) {
    const std::size_t count = run_length(copies, false);
    copy(on_device(copies.front().to), on_host(copies.front().from), count, stream);
    copies = copies.subspan(count);
  }
}

}  // namespace nvllm::kvcache
