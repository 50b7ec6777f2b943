// Attention on the CPU: how its work is divided among threads. A part is a tile of packed rows and all tokens
// that they see. Where a sequence has no more rows than one tile, as in decoding, its tokens are divided too,
// into parts whose length depends on the sequence's alone, and the parts are merged; so no bit depends on the
// number of threads or on other sequences.
#include "kernels/attention/backends.h"

#include <algorithm>
#include <vector>

#include "device/cpu/stream.h"
#include "kernels/attention/cpu/attention_kernels.h"

namespace nvllm::kernels::cpu {
namespace {

using nvllm::cpu::Crew;

// Of a sequence's tokens: a part has at least so many, which take about 5 us, and there are at most so many
// parts.
constexpr std::int64_t kPartTokens = 256;
constexpr std::int64_t kMostParts = 64;

// What is planned before it is run, at most; a few MiB per stream.
constexpr std::int64_t kPlannedParts = 32768;
constexpr std::int64_t kPlannedFloats = 2 * kMostParts * partial_floats(kTileRows, kMaxHeadDim);

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

std::int64_t tokens_of_part(std::int64_t tokens) {
  const std::int64_t even = divide_up(tokens, kMostParts);
  return std::max(kPartTokens, divide_up(even, kTileTokens) * kTileTokens);
}

// The parts [first, first + count), which hold the same rows, into the result.
struct Merge {
  std::int64_t first, count;
};

template <typename T>
void merge(const Attention& args, const AttentionPart* parts, std::int64_t count) {
  const AttentionPart& part = *parts;
  const AttentionGroup group = attention_group(args, part.sequence, part.kv_head);
  const std::int64_t head_dim = args.q.shape[2];
  for (std::int64_t row = 0; row < part.rows; ++row) {
    float out[kMaxHeadDim];
    const float lse = merge_row(
        count, row, head_dim,
        [&](std::int64_t i) { return partial_rows(parts[i].partial, part.rows, head_dim); }, out);
    T* to = args.out.as<T>() + group.in_out(args, part.first_row + row);
    for (std::int64_t d = 0; d < head_dim; ++d) to[d] = from_float<T>(out[d]);
    if (args.lse.data != nullptr) {
      args.lse.as<float>()[group.in_lse(args, part.first_row + row)] = lse;
    }
  }
}

// One call. What it plans lies in the memory of the stream's thread, which keeps it for the next one.
class Run {
 public:
  Run(const Attention& args, AttendPart attend, Crew& crew)
      : args_(args), attend_(attend), crew_(crew) {}

  void operator()() {
    plan_.clear();
    const std::int64_t heads = args_.q.shape[1];
    const std::int64_t kv_heads = (args_.first_head + heads - 1) / args_.group + 1;
    for (std::int64_t s = 0; s < args_.kv_length.shape[0]; ++s) {
      for (std::int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
        plan(attention_group(args_, s, kv_head));
      }
    }
    flush();
  }

 private:
  struct Plan {
    std::vector<AttentionPart> parts;
    std::vector<Merge> merges;
    std::vector<float> floats;
    std::int64_t floats_used = 0;

    void clear() { parts.clear(), merges.clear(), floats_used = 0; }
  };

  void plan(const AttentionGroup& group) {
    const std::int64_t rows = group.packed_rows();
    if (rows == 0) return;
    AttentionPart part{.sequence = static_cast<std::int32_t>(group.sequence),
                       .kv_head = static_cast<std::int32_t>(group.kv_head),
                       .rows = static_cast<std::int32_t>(rows),
                       .first_row = 0,
                       .first_token = 0,
                       .end_token = group.tokens,
                       .partial = nullptr};
    const std::int64_t length = tokens_of_part(group.tokens);
    if (rows <= kTileRows && group.tokens > length) return plan_parts(part, length);
    // The last rows see the most tokens: they go first.
    for (std::int64_t tile = divide_up(rows, kTileRows) - 1; tile >= 0; --tile) {
      part.first_row = tile * kTileRows;
      part.rows =
          static_cast<std::int32_t>(std::min<std::int64_t>(kTileRows, rows - part.first_row));
      make_room(1, 0);
      plan_.parts.push_back(part);
    }
  }

  void plan_parts(AttentionPart part, std::int64_t length) {
    const std::int64_t tokens = part.end_token;
    const std::int64_t count = divide_up(tokens, length);
    const std::int64_t floats = partial_floats(part.rows, args_.q.shape[2]);
    make_room(count, count * floats);
    plan_.merges.push_back({static_cast<std::int64_t>(plan_.parts.size()), count});
    for (std::int64_t i = 0; i < count; ++i) {
      part.first_token = i * length;
      part.end_token = std::min(tokens, part.first_token + length);
      part.partial = plan_.floats.data() + plan_.floats_used;
      plan_.floats_used += floats;
      plan_.parts.push_back(part);
    }
  }

  void make_room(std::int64_t parts, std::int64_t floats) {
    if (plan_.floats.empty() && floats > 0) plan_.floats.resize(kPlannedFloats);
    const bool fits = static_cast<std::int64_t>(plan_.parts.size()) + parts <= kPlannedParts &&
                      plan_.floats_used + floats <= kPlannedFloats;
    if (!fits) flush();
  }

  // Runs what is planned.
  void flush() {
    const Plan& plan = plan_;
    crew_.run(
        static_cast<std::int64_t>(plan.parts.size()), [&](std::int64_t begin, std::int64_t end) {
          AttentionScratch scratch;
          for (std::int64_t i = begin; i < end; ++i) {
            const AttentionPart& part = plan.parts[i];
            attend_(args_, attention_group(args_, part.sequence, part.kv_head), part, scratch);
          }
        });
    crew_.run(static_cast<std::int64_t>(plan.merges.size()),
              [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t i = begin; i < end; ++i) merge_parts(plan.merges[i]);
              });
    plan_.clear();
  }

  void merge_parts(const Merge& merge) const {
    const AttentionPart* parts = &plan_.parts[merge.first];
    switch (args_.out.dtype) {
      case DType::f32: return cpu::merge<float>(args_, parts, merge.count);
      case DType::bf16: return cpu::merge<Bf16>(args_, parts, merge.count);
      default: return cpu::merge<F16>(args_, parts, merge.count);
    }
  }

  static Plan& plan_of_this_thread() {
    thread_local Plan plan;
    return plan;
  }

  const Attention& args_;
  const AttendPart attend_;
  Crew& crew_;
  Plan& plan_ = plan_of_this_thread();
};

}  // namespace

AttentionGroup attention_group(const Attention& args, std::int64_t sequence, std::int64_t kv_head) {
  AttentionGroup group{};
  group.sequence = sequence;
  group.kv_head = kv_head;
  const auto* start = args.query_start.as<std::int32_t>() + sequence;
  group.first_row = start[0];
  group.rows = start[1] - start[0];
  group.first_head = std::max<std::int64_t>(0, kv_head * args.group - args.first_head);
  group.group_heads =
      std::min(args.q.shape[1], (kv_head + 1) * args.group - args.first_head) - group.first_head;
  const std::int64_t length = args.kv_length.as<std::int32_t>()[sequence];
  group.first_visible = args.visible.data == nullptr ? length - group.rows + 1
                                                     : args.visible.as<std::int32_t>()[sequence];
  group.tokens = std::clamp<std::int64_t>(group.first_visible + group.rows - 1, 0, length);
  return group;
}

AttendPart attend_part(DType type, std::optional<InstructionSet> set) {
  const InstructionSet best = instruction_sets().back();
  const bool wide = std::min(set.value_or(best), best) >= InstructionSet::avx512;
  return wide ? attend_part_avx512(type) : attend_part_avx2(type);
}

void attention(const Attention& args, Stream& stream, std::optional<InstructionSet> set) {
  const AttendPart attend = attend_part(args.q.dtype, set);
  auto& queue = nvllm::cpu::stream(stream);
  queue.submit([args, attend, &crew = queue.crew()] { Run(args, attend, crew)(); });
}

}  // namespace nvllm::kernels::cpu
