// The report of inspect as a readable table.
#include <algorithm>
#include <map>

#include "base/text.h"
#include "launcher/cli/program.h"
#include "launcher/inspect/inspect_report.h"
#include "launcher/session/load_display.h"
#include "launcher/session/text_table.h"

namespace nvllm::launcher {
namespace {

using layers::Range;
using layers::Slice;
using runtime::ModelDescription;
using runtime::RankDescription;
using runtime::RankLoad;

// "596 million"
std::string in_words(std::uint64_t count) {
  const auto value = static_cast<double>(count);
  if (count >= 1'000'000'000) return fixed(value * 1e-9, 2) + " billion";
  if (count >= 1'000'000) return fixed(value * 1e-6, 0) + " million";
  return str(count);
}

std::string stored_of(const runtime::StoredBytes& stored) {
  return str(counted(stored.tensors, "tensor"), ", ", format_bytes(stored.bytes));
}

std::string shape_of(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t size : shape) text += str(text.size() > 1 ? ", " : "", size);
  return text + "]";
}

// "0:1024", in Python's slice notation; "-": empty.
std::string range_of(Range range) {
  return range.size() == 0 ? "-" : str(range.begin, ':', range.end);
}

std::string rope_of(const layers::RopeConfig& rope) {
  std::string text = str(runtime::name_of(rope.type), ", theta ", rope.theta);
  if (rope.type == layers::RopeConfig::Type::standard) return text;
  if (rope.type == layers::RopeConfig::Type::proportional) {
    return str(text, ", ", rope.rotated, " of the frequencies");
  }
  text += str(", factor ", rope.factor);
  if (rope.original_max_position_embeddings) {
    text += str(", made for ", *rope.original_max_position_embeddings, " positions");
  }
  return text;
}

std::string biases_of(const model::ModelConfig& config) {
  std::string text;
  const auto add = [&](bool there, const char* what) {
    if (there) text += str(text.empty() ? "" : ", ", what);
  };
  add(config.qkv_bias, "q, k, v");
  add(config.output_bias, "attention's output");
  add(config.mlp_bias, "MLP");
  add(config.moe.bias, "router, experts");
  return text.empty() ? "none" : text;
}

// "1.2 M", "345 k", "678"
std::string in_short(std::uint64_t count) {
  const auto value = static_cast<double>(count);
  if (count >= 1'000'000) return fixed(value * 1e-6, count < 10'000'000 ? 1 : 0) + " M";
  if (count >= 10'000) return fixed(value * 1e-3, 0) + " k";
  return str(count);
}

std::string kv_cache_of(const InspectReport& report) {
  const KvMemory& memory = report.kv_memory;
  std::string text = format_bytes(kv_bytes_per_token(report.model)) + " per token";
  if (const std::int64_t window = report.model.config.window_group(); window > 0) {
    text += str(", ", format_bytes(kv_window_bytes_per_token(report.model)),
                " of them for the last ", window, " tokens of a sequence alone");
  }
  if (memory.where.empty()) return text;
  const std::uint64_t tokens = tokens_that_fit(report.model, memory);
  if (tokens == 0) return str(text, "; the weights alone do not fit in ", memory.where);
  return str(text, "; ", in_short(tokens), " tokens fit beside the weights in ", memory.where);
}

// Bytes of all ranks' parameters by storage format; empty if all have the model's type.
std::map<std::string, std::uint64_t> bytes_by_format(const ModelDescription& model) {
  std::map<std::string, std::uint64_t> bytes;
  for (const RankDescription& rank : model.ranks) {
    for (const runtime::ParameterDescription& parameter : rank.parameters)
      bytes[parameter.format] += parameter.bytes;
  }
  if (bytes.size() == 1) bytes.clear();
  return bytes;
}

// The size of the MLP, of the experts, or both if layers differ.
void add_mlp(const model::ModelConfig& config, TextTable& table) {
  const model::MoeConfig& mixture = config.moe;
  const std::int64_t with_experts = mixture.layer_count();
  const bool both = with_experts > 0 && with_experts < config.layers;
  const auto in_layers = [&](std::int64_t count) {
    return both ? str(", in ", counted(count, "layer")) : "";
  };
  const char* const activation = kernels::name_of(config.activation);
  if (with_experts < config.layers || mixture.beside_mlp) {
    const std::int64_t wide = config.intermediate_size_of(config.layers - 1);
    const std::int64_t with_mlp = mixture.beside_mlp ? config.layers : config.layers - with_experts;
    table.add_row({"MLP", str(config.intermediate_size,
                              wide == config.intermediate_size
                                  ? ""
                                  : str(", and ", wide, " in the last ",
                                        counted(config.kv_shared_layers, "layer")),
                              ", ", activation, in_layers(with_mlp))});
  }
  if (with_experts == 0) return;
  table.add_row(
      {"experts",
       str(mixture.experts, " of ", mixture.intermediate_size, ", ",
           kernels::name_of(mixture.activation.value_or(config.activation)), ", ",
           mixture.experts_per_token, " per token", mixture.renormalize ? ", renormalized" : "",
           mixture.beside_mlp ? ", beside the MLP" : "", in_layers(with_experts))});
  if (mixture.shared_intermediate_size == 0) return;
  table.add_row({"shared expert", str(mixture.shared_intermediate_size, in_layers(with_experts))});
}

void add_linear_attention(const model::ModelConfig& config, TextTable& table) {
  const model::LinearAttentionConfig& linear = config.linear_attention;
  if (linear.key_heads == 0) return;
  table.add_row({"linear attention",
                 str(counted(linear.key_heads, "key head"), " of ", linear.key_head_dim, ", ",
                     counted(linear.value_heads, "value head"), " of ", linear.value_head_dim,
                     ", in ", counted(linear.layer_count(), "layer"))});
}

// Describes attention in layers without a window, and what the last layers lack.
void add_other_heads(const model::ModelConfig& config, TextTable& table) {
  if (config.differs_in_heads()) {
    table.add_row({"", str("heads of ", config.global_head_dim, ", ",
                           counted(config.global_kv_heads, "KV head"),
                           config.global_values_are_keys ? ", values are keys" : "",
                           ", in layers without a window")});
  }
  if (config.kv_shared_layers > 0) {
    table.add_row({"", str("keys and values of earlier layers in the last ",
                           counted(config.kv_shared_layers, "layer"))});
  }
  if (config.per_layer_width > 0) {
    table.add_row({"inputs of layers", str(config.per_layer_width)});
  }
}

void add_windows(const model::ModelConfig& config, TextTable& table) {
  if (config.windows.empty()) return;
  const auto with_window = config.layers - std::ranges::count(config.windows, std::int64_t{0});
  table.add_row({"window", str(std::ranges::max(config.windows), " tokens, in ",
                               counted(with_window, "layer"))});
}

std::string format_model(const InspectReport& report) {
  const ModelDescription& model = report.model;
  const model::ModelConfig& config = model.config;
  TextTable table;
  table.add_row({"model", model.path});
  table.add_row({"layers", str(config.layers)});
  table.add_row({"hidden size", str(config.hidden_size)});
  add_mlp(config, table);
  table.add_row({"attention", str(counted(config.heads, "head"), " of ", config.head_dim, ", ",
                                  counted(config.kv_heads, "KV head"),
                                  config.v_norm    ? ", q, k and v normed"
                                  : config.qk_norm ? ", q and k normed"
                                                   : "",
                                  config.attention_sinks ? ", sinks" : "",
                                  config.output_gate ? ", gated" : "")});
  add_other_heads(config, table);
  add_linear_attention(config, table);
  add_windows(config, table);
  table.add_row({"biases", biases_of(config)});
  table.add_row({"norms", str("RMSNorm, epsilon ", config.rms_norm_eps)});
  table.add_row({"vocabulary", str(config.vocab_size, config.tied_embeddings
                                                          ? ", the head is the embedding (tied)"
                                                          : ", the head has weights of its own")});
  table.add_row({"positions", str(config.max_model_len())});
  table.add_row({"RoPE", rope_of(config.rope)});
  if (config.local_rope) {
    table.add_row({"", rope_of(*config.local_rope) + ", in layers with a window"});
  }
  table.add_row({"type", str(name_of(model.dtype),
                             config.dtype == model.dtype
                                 ? ""
                                 : str(", in the configuration ", name_of(config.dtype)))});
  for (const auto& [format, bytes] : bytes_by_format(model)) {
    table.add_row({"in memory", str(format, ": ", format_bytes(bytes))});
  }
  table.add_row({"parameters", str(model.elements)});
  if (config.moe.experts > 0) {
    table.add_row({"active", str(model.active_elements, " of them for each token")});
  }
  table.add_row({"KV cache", kv_cache_of(report)});
  if (const std::uint64_t bytes = state_bytes_per_sequence(model); bytes > 0) {
    table.add_row(
        {"states", format_bytes(bytes) + " per sequence, and per snapshot for prefix caching"});
  }
  const runtime::CheckpointDescription& checkpoint = model.checkpoint;
  if (model.dummy) table.add_row({"weights", "random values (--load-format dummy)"});
  if (!checkpoint.summary.empty()) {
    table.add_row({"weights", str(checkpoint.summary, ": ", stored_of(checkpoint.all))});
  }
  for (const auto& [encoding, stored] : checkpoint.encodings) {
    table.add_row({"", str(encoding, ": ", stored_of(stored))});
  }
  if (checkpoint.files.size() > 1) {
    for (const auto& [path, bytes] : checkpoint.files) {
      table.add_row({"", str(path, ", ", format_bytes(bytes))});
    }
  }
  return table.text();
}

std::string format_ranks(const std::vector<RankDescription>& ranks) {
  const bool experts = std::ranges::any_of(
      ranks, [](const RankDescription& rank) { return rank.expert_intermediate.size() > 0; });
  TextTable table;
  const bool whole = !ranks.empty() && ranks.front().experts != ranks.back().experts;
  table.add_row({"rank", "heads", "KV heads",
                 !experts ? "MLP"
                 : whole  ? "MLP, experts by number"
                          : "MLP, experts",
                 "vocabulary", "parameters", "bytes", "allocated"});
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankDescription& one = ranks[rank];
    const std::string inner = !experts
                                  ? range_of(one.intermediate)
                                  : str(range_of(one.intermediate), ", ",
                                        range_of(whole ? one.experts : one.expert_intermediate));
    table.add_row({str(rank), range_of(one.heads), range_of(one.kv_heads), inner,
                   range_of(one.vocabulary), str(one.elements), format_bytes(one.bytes),
                   format_bytes(one.allocated)});
  }
  return table.text();
}

// "rows 0:512", "columns 0:64", "all"; "-": nothing.
std::string part_of(const Slice& slice) {
  const bool matrix = slice.shape.size() == 2;
  const std::int64_t columns = matrix ? slice.shape[1] : 1;
  const bool all_rows = slice.rows == Range{0, slice.shape[0]};
  const bool all_columns = slice.columns == Range{0, columns};
  if (slice.rows.size() == 0 || slice.columns.size() == 0) return "-";
  if (all_rows && all_columns) return "all";
  if (all_columns) return "rows " + range_of(slice.rows);
  if (all_rows) return "columns " + range_of(slice.columns);
  return str("rows ", range_of(slice.rows), ", columns ", range_of(slice.columns));
}

// Joins several slices of one tensor, which may be adjacent.
std::string parts_of(std::vector<Slice> slices) {
  std::ranges::sort(slices, {}, [](const Slice& slice) { return slice.rows.begin; });
  std::vector<Slice> joined;
  for (const Slice& slice : slices) {
    const bool meets = !joined.empty() && joined.back().rows.end == slice.rows.begin &&
                       joined.back().columns == slice.columns;
    if (meets) {
      joined.back().rows.end = slice.rows.end;
    } else {
      joined.push_back(slice);
    }
  }
  std::string parts;
  for (const Slice& slice : joined) parts += (parts.empty() ? "" : ", ") + part_of(slice);
  return parts.empty() ? "-" : parts;
}

// Replaces the number that follows `prefix` by a star.
std::string with_star(const std::string& name, const std::string& prefix) {
  if (!name.starts_with(prefix)) return name;
  const std::size_t dot = name.find('.', prefix.size());
  return dot == std::string::npos ? name : str(prefix, '*', name.substr(dot));
}

// A tensor's name with stars for the numbers of layer and expert.
std::string kind_of(const std::string& tensor, const model::TensorNames& names) {
  const std::string layer = str(names.layers, "*.");
  return with_star(with_star(tensor, names.layers), layer + names.experts);
}

// The part of each tensor that every rank owns; tensors of the same kind in different layers share
// a row if their parts are equal.
std::string format_tensors(const ModelDescription& model) {
  struct Parts {
    std::string shape;
    std::vector<std::vector<Slice>> by_rank;
  };
  std::vector<std::string> order;
  std::map<std::string, Parts> tensors;
  for (std::size_t rank = 0; rank < model.ranks.size(); ++rank) {
    for (const runtime::ParameterDescription& parameter : model.ranks[rank].parameters) {
      for (const Slice& slice : parameter.slices) {
        const auto [at, is_new] = tensors.try_emplace(slice.tensor);
        if (is_new) order.push_back(slice.tensor);
        at->second.shape = shape_of(slice.shape);
        at->second.by_rank.resize(model.ranks.size());
        at->second.by_rank[rank].push_back(slice);
      }
    }
  }
  TextTable table;
  std::vector<std::string> title = {"tensor", "shape"};
  for (std::size_t rank = 0; rank < model.ranks.size(); ++rank) title.push_back(str("rank ", rank));
  table.add_row(std::move(title));
  std::vector<std::vector<std::string>> seen;
  for (const std::string& tensor : order) {
    const Parts& parts = tensors.at(tensor);
    std::vector<std::string> row = {kind_of(tensor, model.config.names), parts.shape};
    for (const std::vector<Slice>& slices : parts.by_rank) row.push_back(parts_of(slices));
    if (std::find(seen.begin(), seen.end(), row) != seen.end()) continue;
    seen.push_back(row);
    table.add_row(std::move(row));
  }
  return table.text();
}

std::string format_loads(const InspectReport& report) {
  const auto gigabytes = [](double bytes_per_second) { return fixed(bytes_per_second * 1e-9, 2); };
  TextTable table;
  // One process id may be on several boxes, so it stands beside its box.
  const auto add_row = [&](const std::string& rank, const std::string& place,
                           std::vector<std::string> cells) {
    cells.insert(cells.begin(), rank);
    if (!report.places.empty()) cells.insert(cells.begin() + 1, place);
    table.add_row(std::move(cells));
  };
  add_row("rank", "box", {"device", "pid", "bytes read", "bytes loaded", "seconds", "GB/s"});
  for (std::size_t rank = 0; rank < report.loads.size(); ++rank) {
    const RankLoad& load = report.loads[rank];
    const double seconds = load.times.seconds();
    add_row(str(rank), report.places.empty() ? "" : report.places[rank].text,
            {load.report.device, str(load.report.pid), format_bytes(load.times.bytes_read),
             format_bytes(load.times.bytes_loaded), fixed(seconds, 3),
             gigabytes(static_cast<double>(load.times.bytes_loaded) / seconds)});
  }
  const LoadSummary all = summary_of(report);
  add_row("all", "",
          {"", "", format_bytes(all.bytes_read), format_bytes(all.bytes_loaded),
           fixed(all.seconds, 3), gigabytes(all.bytes_per_second)});
  return table.text() +
         str("  all ranks had loaded ", fixed(all.since_start, 3), " s after the start\n");
}

std::string format_checksums(const std::vector<RankLoad>& loads) {
  TextTable table;
  table.add_row({"rank", "parameter", "checksum"});
  for (std::size_t rank = 0; rank < loads.size(); ++rank) {
    for (const runtime::ParameterChecksum& one : loads[rank].checksums) {
      table.add_row({str(rank), one.name, format_checksum(one.checksum)});
    }
  }
  return table.text();
}

}  // namespace

std::string format_table(const InspectReport& report) {
  const ModelDescription& model = report.model;
  std::string text =
      str("nvllm ", kVersion, " inspect: ", model.config.architecture, ", ",
          in_words(model.elements), " parameters, ", counted(model.ranks.size(), "rank"), '\n');
  text += format_model(report);
  text += "what each rank owns (a:b is from a up to, but without, b)\n";
  text += format_ranks(model.ranks);
  text += str("which part of each tensor (* stands for every layer",
              model.config.moe.experts > 0 ? ", and every expert" : "", ")\n");
  text += format_tensors(model);
  if (report.loads.empty()) return text;
  text += "loaded\n" + format_loads(report);
  text += format_memory(report.loads);
  if (!report.loads.front().checksums.empty()) {
    text += "checksums\n" + format_checksums(report.loads);
  }
  return text;
}

}  // namespace nvllm::launcher
