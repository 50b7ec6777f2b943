// Safetensors: a JSON header that says where each tensor lies in the rest of the file; and the index of a
// checkpoint of several such files. Both parsers take bytes, so that they can be fuzzed.
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

// The bytes of the header, with the length before it, as the file's first 8 bytes say. An Error unless
// they fit into the file.
std::uint64_t safetensors_header_bytes(std::span<const std::byte> first, std::uint64_t file_size,
                                       const std::string& where);

// `header`: safetensors_header_bytes() of them, or more. Every tensor returned lies in the file; they
// share no byte and leave none unused. `where`: the file's path, for errors.
std::vector<StoredTensor> parse_safetensors(std::span<const std::byte> header,
                                            std::uint64_t file_size, const std::string& where);

// model.safetensors.index.json: the file of each tensor. The files' names have no folder in them.
std::map<std::string, std::string> parse_safetensors_index(std::string_view text,
                                                           const std::string& where);

}  // namespace nvllm::model
