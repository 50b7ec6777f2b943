#include "runtime/model_description.h"

#include "model/decoder.h"
#include "model/loading/loader.h"

namespace nvllm::runtime {
namespace {

std::uint64_t elements_of(const model::Decoder& decoder) {
  std::uint64_t sum = 0;
  for (const layers::Parameter* parameter : decoder.parameters()) {
    sum += static_cast<std::uint64_t>(parameter->elements());
  }
  return sum;
}

// The rows of a tensor that a rank owns; none: it has nothing of it.
layers::Range rows_of(const RankDescription& rank, const std::string& tensor) {
  for (const ParameterDescription& parameter : rank.parameters) {
    for (const layers::Slice& slice : parameter.slices) {
      if (slice.tensor == tensor && slice.rows.size() > 0) return slice.rows;
    }
  }
  return {};
}

layers::Range divided(layers::Range range, std::int64_t by) {
  return {range.begin / by, range.end / by};
}

RankDescription describe_rank(const OpenModel& model, layers::Shard shard) {
  const model::Decoder decoder(model.config, shard, model.dtype);
  const model::ParameterBytes bytes = model::bytes_of(decoder.parameters(), model.dtype);
  RankDescription rank;
  rank.elements = elements_of(decoder);
  rank.bytes = bytes.used;
  rank.allocated = bytes.allocated;
  for (const layers::Parameter* parameter : decoder.parameters()) {
    rank.parameters.push_back(
        {.name = parameter->name,
         .shape = parameter->shape,
         .bytes = static_cast<std::uint64_t>(parameter->elements()) * size_of(model.dtype),
         .slices = parameter->slices});
  }
  // Told by the slices themselves, so that it cannot differ from what is loaded.
  const model::TensorNames& names = model.config.names;
  const auto rows_in_layer = [&](const char* part) {
    return rows_of(rank, names.in_layer(0, part) + ".weight");
  };
  rank.heads = divided(rows_in_layer(names.q), model.config.head_dim);
  rank.kv_heads = divided(rows_in_layer(names.k), model.config.head_dim);
  rank.intermediate = rows_in_layer(names.gate);
  rank.vocabulary = rows_of(rank, names.embedding);
  return rank;
}

CheckpointDescription describe_checkpoint(const model::Checkpoint& checkpoint) {
  CheckpointDescription description;
  description.summary = checkpoint.describe();
  for (const model::CheckpointFile& file : checkpoint.files()) {
    description.files[file.path()] = file.size();
  }
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    for (StoredBytes* sum :
         {&description.encodings[model::name_of(tensor.encoding)], &description.all}) {
      sum->tensors += 1;
      sum->bytes += tensor.bytes;
    }
  }
  return description;
}

}  // namespace

const char* name_of(layers::RopeConfig::Type type) {
  using Type = layers::RopeConfig::Type;
  switch (type) {
    case Type::standard: return "default";
    case Type::linear: return "linear";
    case Type::dynamic: return "dynamic";
    case Type::yarn: return "yarn";
    case Type::llama3: return "llama3";
  }
  return "?";
}

ModelDescription describe_model(const OpenModel& model, int ranks) {
  ModelDescription description;
  description.path = model.path;
  description.config = model.config;
  description.dtype = model.dtype;
  description.dummy = model.dummy;
  description.elements = elements_of({model.config, {}, model.dtype});
  if (model.checkpoint) description.checkpoint = describe_checkpoint(*model.checkpoint);
  for (int rank = 0; rank < ranks; ++rank) {
    description.ranks.push_back(describe_rank(model, {rank, ranks}));
  }
  return description;
}

}  // namespace nvllm::runtime
