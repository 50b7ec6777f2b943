// A pass of ChunkedCache: what is stored, written out, loaded and attended to, layer by layer, as the step's plan
// has it.
#include <algorithm>

#include "kvcache/block_views.h"
#include "kvcache/chunked_cache.h"

namespace nvllm::kvcache {

void ChunkedCache::begin_pass(Stream& stream) {
  ring_.begin(loads_, repeats_, stream);
}

kernels::KvView ChunkedCache::store_view(std::int64_t layer, Stream& stream) {
  if (reuses_slots_) {
    options_.hooks.wait(OffloadWait::store_of_write, stream,
                        *written_[static_cast<std::size_t>(layer)]);
  }
  return slot_view(layer);
}

// All slots.
kernels::KvView ChunkedCache::slot_view(std::int64_t layer) const {
  auto* const keys = static_cast<unsigned char*>(slot_memory_.data()) +
                     static_cast<std::size_t>(layer) * part_bytes_;
  return block_views(keys, shape_, slots_.size(), shape_.layers * 2 * shape_.layer_elements());
}

// The blocks of these loads as one sequence.
kernels::KvView ChunkedCache::ring_view(std::size_t load, std::size_t count) const {
  kernels::KvView view =
      block_views(ring_.memory(), shape_, ring_.slots(), 2 * shape_.layer_elements());
  view.block_table = tables_.ring(ring_.slot_of(load), static_cast<std::int64_t>(count));
  return view;
}

void* ChunkedCache::slot_part(BlockId block, std::int64_t layer) const {
  const auto place = static_cast<std::size_t>(slots_.home(block) * shape_.layers + layer);
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

// Of all layers, behind the pass: a graph does the same whether a block gets full or not.
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

void ChunkedCache::attend(std::int64_t layer, const kernels::Attention& args, Stream& stream) {
  // Before this layer's write-outs, which the cores' blocks have nothing to do with.
  if (by_host()) {
    host_attention_->begin(
        layer, args, host_reads_recent_ ? written_[static_cast<std::size_t>(layer)].get() : nullptr,
        stream);
  }
  if (!repeats_) write_out_layer(layer, stream);
  if (args.q.elements() == 0) return;
  if (!quest_) return attend_all(layer, args, stream);
  kernels::Attention stored = args;
  stored.kv = slot_view(layer);
  stored.kv.block_table = args.kv.block_table;
  quest_->stored(layer, stored, stream, tables_.block_map());
  attend_quest(layer, args, stream);
}

GatheredQuest::Blocks ChunkedCache::quest_blocks(std::int64_t layer) const {
  return {.near = slot_view(layer),
          .block_map = tables_.block_map(),
          .addresses = tables_.addresses(),
          .offset = layer * static_cast<std::int64_t>(part_bytes_)};
}

// Sequences of one row by what Quest chooses, then the others.
void ChunkedCache::attend_quest(std::int64_t layer, const kernels::Attention& args,
                                Stream& stream) {
  const auto chosen = std::count_if(reads_.parts().begin(), reads_.parts().end(),
                                    [](const Part& part) { return part.kind == Kind::quest; });
  if (chosen == static_cast<std::ptrdiff_t>(reads_.parts().size())) {  // and padding
    return gathered_->attend(layer, args, args.query_start, quest_blocks(layer), stream);
  }
  attend_all(layer, args, stream);
  for (std::size_t s = 0; s < reads_.parts().size(); ++s) {
    if (reads_.parts()[s].kind != Kind::quest) continue;
    gathered_->attend(layer, rows_of(args, s), tables_.rows(s), quest_blocks(layer), stream);
  }
}

// The arguments of one sequence, but for what says how many rows it has.
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

// All rows but those that Quest chooses for, whose results are to be written over.
void ChunkedCache::attend_all(std::int64_t layer, const kernels::Attention& args, Stream& stream) {
  kernels::Attention residents = args;
  residents.kv = slot_view(layer);
  const std::int64_t sequences = args.kv_length.shape[0];
  residents.kv.block_table = tables_.table(sequences, reads_.residents());
  residents.kv_length = tables_.lengths(sequences);
  residents.only_rows_are_new = repeats_;  // prompts may attend to what others compute in this step
  const bool in_parts = !reads_.none();
  if (in_parts) {
    residents.max_kv_length = reads_.residents() * shape_.block_size;
    sums_.begin(residents, stream);
  } else {
    kernels::attention(residents, stream);
  }
  std::size_t taken = 0;
  for (std::size_t s = 0; s < reads_.parts().size(); ++s) {
    const Part& part = reads_.parts()[s];
    if (part.kind != Kind::prompt) continue;
    take_reads(layer, taken, part.reads_end, args, stream);
    taken = part.reads_end;
    attend_prompt(layer, s, rows_of(args, s), residents.kv, stream);
  }
  take_reads(layer, taken, reads_.through_ring().size(), args, stream);
  if (in_parts) finish_sums(args, stream);
}

// What comes through the ring goes where it is wanted.
void ChunkedCache::take_reads(std::int64_t layer, std::size_t first, std::size_t end,
                              const kernels::Attention& args, Stream& stream) {
  const std::vector<Read>& reads = reads_.through_ring();
  const auto most = static_cast<std::size_t>(LoadRing::at_once(ring_.slots()));
  std::size_t count = 0;
  for (std::size_t i = first; i < end; i += count) {
    count = reads_.together(i, std::min(end, i + most));
    const std::size_t load = static_cast<std::size_t>(layer) * reads.size() + i;
    ring_.take(load, count, stream);
    if (reads[i].staged != StepReads::kNotStaged) {
      staging_->put(reads[i].staged, ring_.place(load), stream);
    }
    for (const std::size_t sequence : reads[i].sequences) {
      add_part(load, count, sequence, args, stream);
    }
    ring_.done(load, count, stream);
  }
}

// Of a prompt whose other blocks are staged, or all of whose blocks are residents.
void ChunkedCache::attend_prompt(std::int64_t layer, std::size_t sequence,
                                 const kernels::Attention& args, const kernels::KvView& residents,
                                 Stream& stream) {
  const Part& part = reads_.parts()[sequence];
  kernels::Attention prompt = args;
  if (part.residents.empty()) {
    stage_slots(layer, part, stream);
    prompt.kv = staging_->view();
  } else {
    prompt.kv = residents;
    prompt.kv.block_table = residents.block_table.rows(static_cast<std::int64_t>(sequence), 1);
  }
  options_.prompts->attend(prompt_attention(prompt, part.first, part.to_come), stream);
}

void ChunkedCache::stage_slots(std::int64_t layer, const Part& part, Stream& stream) {
  for (const Part::Staged& staged : part.staged) {
    const auto place = static_cast<std::size_t>(staged.slot * shape_.layers + layer);
    staging_->put(staged.number,
                  static_cast<unsigned char*>(slot_memory_.data()) + place * part_bytes_, stream);
  }
}

// Prompts that were chosen for have their results.
void ChunkedCache::finish_sums(const kernels::Attention& args, Stream& stream) {
  const kernels::CombineAttention::Part last =
      by_host() ? host_attention_->end(stream) : kernels::CombineAttention::Part{};
  if (!reads_.any(Kind::prompt)) return sums_.finish(args, 0, stream, last);
  for (std::size_t s = 0; s < reads_.parts().size(); ++s) {
    const Part& part = reads_.parts()[s];
    if (part.kind == Kind::everything) sums_.finish(rows_of(args, s), part.begin, stream, last);
  }
}

// The attention of a sequence's rows to whole blocks of earlier tokens.
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
  sums_.add(part, own.begin, stream);
}

void ChunkedCache::end_pass(Stream& stream) {
  ring_.end(stream);
}

}  // namespace nvllm::kvcache
