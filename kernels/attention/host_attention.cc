#include "kernels/attention/host_attention.h"

#include <algorithm>

#include "base/check.h"
#include "base/divide.h"
#include "kernels/attention/cpu/attention_kernels.h"

namespace nvllm::kernels {
namespace {

using cpu::AttentionGroup;
using cpu::AttentionPart;
using cpu::AttentionScratch;

// Of a block's tokens in one piece: long enough that its beginning, which nobody has foreseen, costs little, and
// short enough that the pages of a piece of all heads stay known to the processor.
constexpr std::int64_t kPieceTokens = 512;

// One call. Its parts are numbered block by block, piece by piece, KV head by KV head, and tile by tile of a
// head's rows.
class Run {
 public:
  Run(const HostAttention& args, std::vector<float>& scratch)
      : args_(args),
        head_dim_(args.q.shape[2]),
        heads_(args.q.shape[1]),
        kv_heads_(heads_ == 0 ? 0 : (args.first_head + heads_ - 1) / args.group + 1),
        pieces_(divide_up(args.block_tokens, kPieceTokens)),
        tiles_(divide_up(std::min(args.group, heads_), cpu::kTileRows)),
        tile_rows_(std::min<std::int64_t>({args.group, heads_, cpu::kTileRows})),
        part_floats_(cpu::partial_floats(tile_rows_, head_dim_)),
        parts_(static_cast<std::int64_t>(args.blocks.size()) * parts_of_block()),
        attend_(cpu::attend_part(args.q.dtype, {})) {
    const auto floats = static_cast<std::size_t>(parts_ * part_floats_);
    if (scratch.size() < floats) scratch.resize(floats);
    partials_ = scratch.data();
  }

  void operator()(nvllm::cpu::Crew& crew) const {
    crew.run(parts_, [&](std::int64_t begin, std::int64_t end) {
      AttentionScratch scratch;
      for (std::int64_t part = begin; part < end; ++part) attend(part, scratch);
    });
    crew.run(args_.q.shape[0] * heads_, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t head = begin; head < end; ++head) merge(head / heads_, head % heads_);
    });
  }

 private:
  std::int64_t parts_of_block() const { return pieces_ * kv_heads_ * tiles_; }

  // The heads of a KV head that this rank has.
  AttentionGroup group_of(std::int64_t row, std::int64_t kv_head) const {
    AttentionGroup group{};
    group.kv_head = kv_head;
    group.first_row = row;
    group.rows = 1;
    group.first_head = std::max<std::int64_t>(0, kv_head * args_.group - args_.first_head);
    group.group_heads =
        std::min(heads_, (kv_head + 1) * args_.group - args_.first_head) - group.first_head;
    group.tokens = group.first_visible = args_.block_tokens;
    return group;
  }

  void attend(std::int64_t number, AttentionScratch& scratch) const {
    const std::int64_t tile = number % tiles_, kv_head = number / tiles_ % kv_heads_,
                       piece = number / (tiles_ * kv_heads_) % pieces_;
    const HostAttentionBlock& block =
        args_.blocks[static_cast<std::size_t>(number / parts_of_block())];
    const AttentionGroup group = group_of(block.row, kv_head);
    AttentionPart part{};
    part.kv_head = static_cast<std::int32_t>(kv_head);
    part.first_row = tile * cpu::kTileRows;
    if (part.first_row >= group.group_heads) return;
    part.rows = static_cast<std::int32_t>(
        std::min<std::int64_t>(cpu::kTileRows, group.group_heads - part.first_row));
    part.first_token = piece * kPieceTokens;
    part.end_token = std::min(args_.block_tokens, part.first_token + kPieceTokens);
    part.partial = partials_ + number * part_floats_;
    attend_(attention_to(block), group, part, scratch);
  }

  // To one block, which is all of a sequence.
  Attention attention_to(const HostAttentionBlock& block) const {
    const auto tensor = [&](std::int64_t offset) {
      return TensorView(const_cast<unsigned char*>(block.data) + offset, args_.q.dtype,
                        {1, args_.block_tokens, args_.kv_heads, head_dim_});
    };
    Attention attention;
    attention.q = args_.q;
    attention.kv = {.keys = tensor(args_.keys), .values = tensor(args_.values), .block_table = {}};
    attention.group = args_.group;
    attention.first_head = args_.first_head;
    attention.scale = args_.scale;
    return attention;
  }

  void merge(std::int64_t row, std::int64_t head) const {
    const auto [first, last] =
        std::equal_range(args_.blocks.begin(), args_.blocks.end(),
                         HostAttentionBlock{static_cast<std::int32_t>(row), nullptr},
                         [](const auto& a, const auto& b) { return a.row < b.row; });
    const std::int64_t kv_head = (args_.first_head + head) / args_.group;
    const AttentionGroup group = group_of(row, kv_head);
    const std::int64_t packed = head - group.first_head, tile = packed / cpu::kTileRows;
    const std::int64_t step = kv_heads_ * tiles_;
    const std::int64_t begin =
        (first - args_.blocks.begin()) * parts_of_block() + kv_head * tiles_ + tile;
    // A part has its own number of rows, by which its memory is laid out.
    const std::int64_t rows =
        std::min<std::int64_t>(cpu::kTileRows, group.group_heads - tile * cpu::kTileRows);
    const auto part = [&](std::int64_t i) {
      return cpu::partial_rows(partials_ + (begin + i * step) * part_floats_, rows, head_dim_);
    };
    const std::int64_t at = row * heads_ + head;
    args_.lse.as<float>()[at] =
        cpu::merge_row((last - first) * pieces_, packed % cpu::kTileRows, head_dim_, part,
                       args_.out.as<float>() + at * head_dim_);
  }

  const HostAttention& args_;
  const std::int64_t head_dim_, heads_, kv_heads_, pieces_, tiles_, tile_rows_, part_floats_,
      parts_;
  const cpu::AttendPart attend_;
  float* partials_ = nullptr;
};

}  // namespace

void host_attention(const HostAttention& args, nvllm::cpu::Crew& crew,
                    std::vector<float>& scratch) {
  NVLLM_CHECK(args.out.dtype == DType::f32 && args.out.contiguous() && args.lse.contiguous());
  NVLLM_CHECK(args.out.shape == args.q.shape);
  NVLLM_CHECK(args.block_tokens > 0 || args.blocks.empty());
  if (args.q.elements() == 0) return;
  Run(args, scratch)(crew);
}

}  // namespace nvllm::kernels
