// Opens and reads the files of a checkpoint; shared by the readers of both formats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/checkpoint/checkpoint.h"

namespace nvllm::model {

bool is_there(const std::string& path);

// Throws an Error unless it is a regular file that can be read.
CheckpointFile open_file(const std::string& path);

// Fills `to` from `offset` on; throws an Error if the file ends before.
void read_at(const CheckpointFile& file, std::uint64_t offset, std::span<std::byte> to);

// The content of a file of at most `limit` bytes.
std::string read_text(const std::string& path, std::uint64_t limit);

// The text of a config.json, whose length is bounded.
std::string read_config_json(const std::string& path);

// The path of a folder's .gguf file, or of its first part; empty: none. Throws an Error for
// several.
std::string find_gguf(const std::string& folder);

// Open one format each; open_checkpoint() chooses between them.
Checkpoint open_safetensors(const std::string& folder);
Checkpoint open_gguf(const std::string& path);

// The bytes of a tensor of this shape; nullopt: more than 2^63, or rows that are not whole blocks.
std::optional<std::uint64_t> bytes_of(Encoding encoding, std::span<const std::int64_t> shape);

// For error messages: "[2048, 1024]", and text of a file, on one line and truncated.
std::string shape_text(std::span<const std::int64_t> shape);
std::string printable(std::string_view text);

}  // namespace nvllm::model
