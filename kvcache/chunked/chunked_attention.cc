// ChunkedCache during a pass: stores, writes out, loads and computes attention, layer by layer, as
// planned for the step, and combines the parts of attention.
#include <algorithm>
#include <initializer_list>

#include "base/check.h"
#include "kvcache/chunked/chunked_cache.h"
#include "kvcache/kv_cache.h"

namespace nvllm::kvcache {
namespace {

std::size_t floats(std::int64_t count) {
  return Arena::rounded(static_cast<std::size_t>(count) * sizeof(float));
}

}  // namespace

PartialAttention::PartialAttention(Backend& backend, const Limits& limits)
    : limits_(limits),
      memory_(backend.allocate(MemoryKind::device, bytes(limits), "kv partials")) {}

std::size_t PartialAttention::bytes(const Limits& limits) {
  const std::int64_t heads = limits.rows * limits.heads;
  return 2 * (floats(heads * limits.head_dim) + floats(heads));
}

PartialAttention::Sums PartialAttention::sums() const {
  auto* data = static_cast<unsigned char*>(memory_.data());
  const auto next = [&](std::int64_t max_floats, std::initializer_list<std::int64_t> shape) {
    const TensorView tensor(data, DType::f32, shape);
    data += floats(max_floats);
    return tensor;
  };
  const std::int64_t heads = limits_.heads, max_heads = limits_.rows * heads;
  Sums all;
  all.sum = next(max_heads * limits_.head_dim, {rows_, heads, limits_.head_dim});
  all.sum_lse = next(max_heads, {rows_, heads});
  all.part = next(max_heads * limits_.head_dim, {rows_, heads, limits_.head_dim});
  all.part_lse = next(max_heads, {rows_, heads});
  return all;
}

void PartialAttention::compute_first_part(kernels::Attention args, Stream& stream) {
  rows_ = args.q.shape[0];
  beside_.clear();
  NVLLM_CHECK(rows_ <= limits_.rows, rows_, " rows of ", limits_.rows);
  const Sums all = sums();
  args.out = all.sum;
  args.lse = all.sum_lse;
  kernels::attention(args, stream);
}

void PartialAttention::compute_part(kernels::Attention args, std::int64_t first_row,
                                    Stream& stream) {
  const std::int64_t rows = args.q.shape[0], end = first_row + rows;
  std::erase_if(beside_, [&](const Range& range) {
    const bool there = range.first < end && first_row < range.end;
    if (there) sum_up(range, stream);
    return there;
  });
  const Sums all = sums();
  args.sinks = {};  // the first part has them
  args.out = all.part.rows(first_row, rows);
  args.lse = all.part_lse.rows(first_row, rows);
  kernels::attention(args, stream);
  if (!beside_.empty() && beside_.back().end == first_row) {
    beside_.back().end = end;
  } else {
    beside_.push_back({first_row, end});
  }
}

void PartialAttention::sum_up(const Range& rows, Stream& stream) {
  const Sums all = sums();
  const std::int64_t count = rows.end - rows.first;
  kernels::CombineAttention call;
  call.out = all.sum.rows(rows.first, count);
  call.lse = all.sum_lse.rows(rows.first, count);
  call.parts[0] = {call.out, call.lse};
  call.parts[1] = {all.part.rows(rows.first, count), all.part_lse.rows(rows.first, count)};
  call.count = 2;
  kernels::combine_attention(call, stream);
}

// Runs one combine per range of rows with the same parts.
void PartialAttention::combine(const kernels::Attention& args, std::int64_t first_row,
                               Stream& stream, const kernels::CombineAttention::Part& last) {
  const Sums all = sums();
  const std::int64_t last_end = last.out.data == nullptr ? 0 : last.out.shape[0];
  const std::int64_t end = first_row + args.q.shape[0];
  std::int64_t next = 0;
  for (std::int64_t row = first_row; row < end; row = next) {
    bool beside = false;
    next = row < last_end ? std::min(end, last_end) : end;
    for (const Range& range : beside_) {
      beside |= range.first <= row && row < range.end;
      for (const std::int64_t edge : {range.first, range.end}) {
        if (row < edge) next = std::min(next, edge);
      }
    }
    const std::int64_t rows = next - row;
    kernels::CombineAttention call;
    const auto add = [&](const TensorView& out, const TensorView& lse) {
      call.parts[static_cast<std::size_t>(call.count++)] = {out.rows(row, rows),
                                                            lse.rows(row, rows)};
    };
    call.out = args.out.rows(row - first_row, rows);
    if (args.lse.data != nullptr) call.lse = args.lse.rows(row - first_row, rows);
    add(all.sum, all.sum_lse);
    if (beside) add(all.part, all.part_lse);
    if (row < last_end) add(last.out, last.lse);
    kernels::combine_attention(call, stream);
  }
}

void ChunkedCache::begin_pass(Stream& stream) {
  ring_.begin_pass(loads_, capturable_, stream);
}

kernels::KvView ChunkedCache::store_view(std::int64_t layer, Stream& stream) {
  if (reuses_slots_) {
    options_.hooks.wait(OffloadWait::store_of_write, stream,
                        *written_[static_cast<std::size_t>(layer)]);
  }
  return slot_view(layer);
}

// A view of all slots.
kernels::KvView ChunkedCache::slot_view(std::int64_t layer) const {
  auto* const keys = static_cast<unsigned char*>(slot_memory_.data()) +
                     static_cast<std::size_t>(layer) * part_bytes_;
  return block_views(keys, shape_, layer, slots_.size(),
                     shape_.layers * 2 * shape_.layer_elements());
}

// A view of the blocks of these loads as one sequence.
kernels::KvView ChunkedCache::ring_view(std::size_t load, std::size_t count) const {
  kernels::KvView view =
      block_views(ring_.memory(), shape_, 0, ring_.slots(), 2 * shape_.layer_elements());
  view.block_table = tables_.ring(ring_.slot_of(load), static_cast<std::int64_t>(count));
  return view;
}

void* ChunkedCache::slot_part(BlockId block, std::int64_t layer) const {
  const auto place = static_cast<std::size_t>(slots_.slot_of(block) * shape_.layers + layer);
  return static_cast<unsigned char*>(slot_memory_.data()) + place * part_bytes_;
}

void ChunkedCache::write_out_layer(std::int64_t layer, Stream& stream) {
  if (!writes_out()) return;
  stored_->record(stream);
  options_.hooks.wait(OffloadWait::write_of_store, *writes_, *stored_);
  for (const BlockId block : filled_) {
    options_.hooks.delay(Transfer::to_host, *writes_);
    backend_.copy(host_.part(block, layer), slot_part(block, layer), part_bytes_, *writes_);
  }
  written_[static_cast<std::size_t>(layer)]->record(*writes_);
}

// Writes out all layers after the pass, outside the graph, so that the graph does not depend on
// whether a block becomes full.
void ChunkedCache::write_out_blocks(Stream& stream) {
  if (!writes_out()) return;
  stored_->record(stream);
  options_.hooks.wait(OffloadWait::write_of_store, *writes_, *stored_);
  for (const BlockId block : filled_) {
    options_.hooks.delay(Transfer::to_host, *writes_);
    backend_.copy(host_.part(block, 0), slot_part(block, 0), shape_.kv_bytes(), *writes_);
  }
  for (const auto& written : written_) written->record(*writes_);
}

void ChunkedCache::run_attention(std::int64_t layer, const kernels::Attention& args,
                                 std::int64_t /*decode_sequences*/, Stream& stream) {
  // Host attention starts before this layer's write-outs: it does not read the blocks that they
  // write.
  if (by_host()) {
    host_attention_->launch(
        layer, args, host_reads_recent_ ? written_[static_cast<std::size_t>(layer)].get() : nullptr,
        stream);
  }
  if (!capturable_) write_out_layer(layer, stream);
  if (args.q.elements() == 0) return;
  if (!quest_) return attend_to_everything(layer, args, stream);
  kernels::Attention stored = args;
  stored.kv = slot_view(layer);
  stored.kv.block_table = args.kv.block_table;
  quest_->update_bounds(layer, stored, stream, tables_.block_map());
  attend_by_quest(layer, args, stream);
}

GatheredQuest::Blocks ChunkedCache::block_locations(std::int64_t layer) const {
  return {.on_device = slot_view(layer),
          .block_map = tables_.block_map(),
          .addresses = tables_.addresses(),
          .offset = layer * static_cast<std::int64_t>(part_bytes_)};
}

// Computes the sequences of one row with Quest, then the others.
void ChunkedCache::attend_by_quest(std::int64_t layer, const kernels::Attention& args,
                                   Stream& stream) {
  const auto chosen = std::count_if(reads_.parts().begin(), reads_.parts().end(),
                                    [](const Part& part) { return part.kind == Kind::quest; });
  if (chosen == static_cast<std::ptrdiff_t>(reads_.parts().size())) {  // and padding
    return gathered_->run_attention(layer, args, args.query_start, block_locations(layer), stream);
  }
  attend_to_everything(layer, args, stream);
  for (std::size_t s = 0; s < reads_.parts().size(); ++s) {
    if (reads_.parts()[s].kind != Kind::quest) continue;
    gathered_->run_attention(layer, rows_of(args, s), tables_.rows(s), block_locations(layer),
                             stream);
  }
}

// The arguments for one sequence, except those that say how many rows it has.
kernels::Attention ChunkedCache::rows_of(const kernels::Attention& args,
                                         std::size_t sequence) const {
  const Part& part = reads_.parts()[sequence];
  const auto number = static_cast<std::int64_t>(sequence);
  kernels::Attention own = args;
  own.q = args.q.rows(part.begin, part.rows);
  own.out = args.out.rows(part.begin, part.rows);
  if (args.lse.data != nullptr) own.lse = args.lse.rows(part.begin, part.rows);
  own.kv_length = args.kv_length.rows(number, 1);
  own.kv.block_table = args.kv.block_table.rows(number, 1);
  return own;
}

// Computes all rows. The results of sequences that Quest serves are overwritten afterwards, and
// those of staged sequences here.
void ChunkedCache::attend_to_everything(std::int64_t layer, const kernels::Attention& args,
                                        Stream& stream) {
  kernels::Attention residents = args;
  residents.kv = slot_view(layer);
  const std::int64_t sequences = args.kv_length.shape[0];
  residents.kv.block_table = tables_.table(sequences, reads_.residents());
  residents.kv_length = tables_.lengths(sequences);
  // Prompts may attend to tokens that other sequences compute in this step.
  residents.history_is_visible = capturable_;
  const bool in_parts = !reads_.none() && !options_.whole_sequences;
  if (in_parts) {
    residents.max_kv_length = reads_.residents() * shape_.block_size;
    sums_.compute_first_part(residents, stream);
  } else {
    kernels::attention(residents, stream);
  }
  std::size_t taken = 0;
  for (std::size_t s = 0; s < reads_.parts().size(); ++s) {
    const Part& part = reads_.parts()[s];
    if (!part.is_staged()) continue;
    consume_reads(layer, taken, part.reads_end, args, stream);
    taken = part.reads_end;
    if (part.kind == Kind::whole) {
      attend_to_whole(layer, s, rows_of(args, s), stream);
    } else {
      attend_by_policy(layer, s, rows_of(args, s), residents.kv, stream);
    }
  }
  consume_reads(layer, taken, reads_.through_ring().size(), args, stream);
  if (in_parts) finish_sums(args, stream);
}

// Passes the blocks that arrive in the ring to the staged layer or to the sequences that read them.
void ChunkedCache::consume_reads(std::int64_t layer, std::size_t first, std::size_t end,
                                 const kernels::Attention& args, Stream& stream) {
  const std::vector<Read>& reads = reads_.through_ring();
  const auto at_once = static_cast<std::size_t>(LoadRing::at_once(ring_.slots()));
  std::size_t count = 0;
  for (std::size_t i = first; i < end; i += count) {
    count = reads_.run_length(i, std::min(end, i + at_once));
    const std::size_t load = static_cast<std::size_t>(layer) * reads.size() + i;
    ring_.await_loads(load, count, stream);
    if (reads[i].staged != StepReads::kNotStaged) {
      staging_->put(reads[i].staged, ring_.place(load), stream);
    }
    for (const std::size_t sequence : reads[i].sequences) {
      add_part(load, count, sequence, args, stream);
    }
    ring_.release_slots(load, count, stream);
  }
}

// For a prompt whose other blocks are staged, or all of whose blocks are resident.
void ChunkedCache::attend_by_policy(std::int64_t layer, std::size_t sequence,
                                    const kernels::Attention& args,
                                    const kernels::KvView& residents, Stream& stream) {
  const Part& part = reads_.parts()[sequence];
  kernels::Attention prompt = args;
  if (part.residents.empty()) {
    stage_slots(layer, part, stream);
    prompt.kv = staging_->view();
  } else {
    prompt.kv = residents;
    prompt.kv.block_table = residents.block_table.rows(static_cast<std::int64_t>(sequence), 1);
  }
  options_.prompts->run_attention(prompt_attention(prompt, part.first, part.later_rows), stream);
}

// For a sequence whose other blocks are staged.
void ChunkedCache::attend_to_whole(std::int64_t layer, std::size_t sequence,
                                   const kernels::Attention& args, Stream& stream) {
  const Part& part = reads_.parts()[sequence];
  stage_slots(layer, part, stream);
  kernels::Attention whole = args;
  whole.kv = staging_->view();
  whole.query_start = tables_.rows(sequence);
  whole.max_query_rows = part.rows;
  whole.history_is_visible = false;
  kernels::attention(whole, stream);
}

void ChunkedCache::stage_slots(std::int64_t layer, const Part& part, Stream& stream) {
  for (const Part::Staged& staged : part.staged) {
    const auto place = static_cast<std::size_t>(staged.slot * shape_.layers + layer);
    staging_->put(staged.number,
                  static_cast<unsigned char*>(slot_memory_.data()) + place * part_bytes_, stream);
  }
}

// Finishes all sequences except the prompts of a policy, which already have their results.
void ChunkedCache::finish_sums(const kernels::Attention& args, Stream& stream) {
  const kernels::CombineAttention::Part last =
      by_host() ? host_attention_->result(stream) : kernels::CombineAttention::Part{};
  if (!reads_.any(Kind::prompt)) return sums_.combine(args, 0, stream, last);
  for (std::size_t s = 0; s < reads_.parts().size(); ++s) {
    const Part& part = reads_.parts()[s];
    if (part.kind == Kind::everything) sums_.combine(rows_of(args, s), part.begin, stream, last);
  }
}

// Adds the attention of a sequence's rows over whole blocks of earlier tokens.
void ChunkedCache::add_part(std::size_t load, std::size_t count, std::size_t sequence,
                            const kernels::Attention& args, Stream& stream) {
  const Part& own = reads_.parts()[sequence];
  const auto blocks = static_cast<std::int64_t>(count);
  kernels::Attention part = args;
  part.q = args.q.rows(own.begin, own.rows);
  part.kv = ring_view(load, count);
  part.query_start = tables_.rows(sequence);
  part.kv_length = part.visible = tables_.whole(blocks);
  part.max_query_rows = own.rows;
  part.max_kv_length = blocks * shape_.block_size;
  sums_.compute_part(part, own.begin, stream);
}

void ChunkedCache::end_pass(Stream& stream) {
  ring_.end_pass(stream);
}

}  // namespace nvllm::kvcache
