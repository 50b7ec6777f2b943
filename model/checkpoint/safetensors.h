// Safetensors: a JSON header gives the location of each tensor in the rest of the file; an index
// lists the tensors of a checkpoint of several files. Both parsers take bytes, for fuzzing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/checkpoint/checkpoint.h"

namespace nvllm::model {

inline constexpr std::size_t kSafetensorsLengthBytes = 8;

// The size of the header including its 8-byte length, with which the file begins. Throws an Error
// if the file is shorter.
std::uint64_t safetensors_header_bytes(std::span<const std::byte> first, std::uint64_t file_size,
                                       const std::string& where);

// `header`: at least the first safetensors_header_bytes() of the file. Every returned tensor is
// within the file; together they cover its data, each byte once. `where`: the file's path, for
// errors.
std::vector<StoredTensor> parse_safetensors(std::span<const std::byte> header,
                                            std::uint64_t file_size, const std::string& where);

// model.safetensors.index.json: the file of each tensor. File names contain no folder.
std::map<std::string, std::string> parse_safetensors_index(std::string_view text,
                                                           const std::string& where);

}  // namespace nvllm::model
