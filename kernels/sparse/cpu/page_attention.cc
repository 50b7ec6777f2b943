// Attention to pages on the CPU: the heads of a KV head of a sequence at a time, to the list of their tokens.
#include "kernels/sparse/cpu/page_attention.h"

#include <algorithm>
#include <vector>

#include "device/cpu/stream.h"
#include "kernels/attention/cpu/attention_kernels.h"

namespace nvllm::kernels::cpu {
namespace {

class Run {
 public:
  Run(const PageAttention& args, AttendPart attend)
      : args_(args), shared_(args.shared()), attend_(attend) {}

  void operator()(nvllm::cpu::Crew& crew) const {
    const std::int64_t kv_heads = args_.kv_heads();
    crew.run(args_.q.shape[0] * kv_heads, [&](std::int64_t begin, std::int64_t end) {
      AttentionScratch scratch;
      std::vector<std::int32_t> tokens;
      for (std::int64_t i = begin; i < end; ++i) {
        attend(i / kv_heads, i % kv_heads, tokens, scratch);
      }
    });
  }

 private:
  void attend(std::int64_t sequence, std::int64_t kv_head, std::vector<std::int32_t>& tokens,
              AttentionScratch& scratch) const {
    find_tokens(sequence, kv_head, tokens);
    AttentionGroup group{};
    group.sequence = sequence;
    group.kv_head = kv_head;
    group.first_row = sequence;
    group.rows = 1;
    group.first_head = std::max<std::int64_t>(0, kv_head * args_.group - args_.first_head);
    group.group_heads = std::min(args_.q.shape[1], (kv_head + 1) * args_.group - args_.first_head) -
                        group.first_head;
    group.tokens = group.first_visible = args_.kv_length.as<std::int32_t>()[sequence];
    AttentionPart part{.sequence = static_cast<std::int32_t>(sequence),
                       .kv_head = static_cast<std::int32_t>(kv_head),
                       .rows = 0,
                       .first_row = 0,
                       .first_token = 0,
                       .end_token = static_cast<std::int64_t>(tokens.size()),
                       .partial = nullptr,
                       .list = tokens.data()};
    for (; part.first_row < group.packed_rows(); part.first_row += kTileRows) {
      part.rows = static_cast<std::int32_t>(
          std::min<std::int64_t>(kTileRows, group.packed_rows() - part.first_row));
      attend_(shared_, group, part, scratch);
    }
  }

  // The tokens of the pages, ascending.
  void find_tokens(std::int64_t sequence, std::int64_t kv_head,
                   std::vector<std::int32_t>& tokens) const {
    tokens.clear();
    const std::int64_t length = args_.kv_length.as<std::int32_t>()[sequence];
    const std::int64_t list = sequence * args_.kv_heads() + kv_head;
    const auto* pages = args_.pages.as<std::int32_t>() + list * args_.pages.shape[2];
    for (int i = 0; i < args_.page_counts.as<std::int32_t>()[list]; ++i) {
      const std::int64_t begin = pages[i] * args_.page_tokens;
      for (std::int64_t t = begin; t < std::min(length, begin + args_.page_tokens); ++t) {
        tokens.push_back(static_cast<std::int32_t>(t));
      }
    }
  }

  const PageAttention& args_;
  const Attention shared_;
  const AttendPart attend_;
};

}  // namespace

void page_attention(const PageAttention& args, Stream& stream) {
  const AttendPart attend = attend_part(args.q.dtype, {});
  auto& queue = nvllm::cpu::stream(stream);
  queue.submit([args, attend, &crew = queue.crew()] { Run(args, attend)(crew); });
}

}  // namespace nvllm::kernels::cpu
