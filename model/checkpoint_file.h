// Opening and reading the files of a checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/checkpoint.h"

namespace nvllm::model {

bool is_there(const std::string& path);

// An Error unless it is a regular file that can be read.
CheckpointFile open_file(const std::string& path);

// Fills `to` from `offset` on; an Error if the file ends before.
void read_at(const CheckpointFile& file, std::uint64_t offset, std::span<std::byte> to);

// The whole of a file of at most `limit` bytes.
std::string read_text(const std::string& path, std::uint64_t limit);

// The text of a config.json, whose length is bounded.
std::string read_config_json(const std::string& path);

// The .gguf file of a folder that has one, or the first of the parts of one; empty if it has none. An Error
// if it has several.
std::string find_gguf(const std::string& folder);

// How the two formats are opened; open_checkpoint() chooses.
Checkpoint open_safetensors(const std::string& folder);
Checkpoint open_gguf(const std::string& path);

}  // namespace nvllm::model
