// HarmonyParser: the answers of gpt-oss, in OpenAI's harmony format. An answer consists of messages
// with headers; the first header starts in the prompt:
//
//   <|channel|>analysis<|message|>REASONING<|end|><|start|>assistant<|channel|>final<|message|>TEXT
//   ...<|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>JSON
//
// The recipient ("to=") may also follow the role. <|return|> and <|call|> end an answer.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "launcher/serve/parsers/output_parser.h"

namespace nvllm::launcher {

// The tags between messages and in headers.
const std::vector<std::string_view>& harmony_tags();

// Messages of the channel analysis are reasoning, those with a recipient calls, all others content,
// including text without a header. Headers are not part of any text. calls: whether messages with a
// recipient are calls; otherwise they are content. seed: for the ids of calls.
std::unique_ptr<OutputParser> make_harmony_parser(bool calls, std::uint64_t seed);

}  // namespace nvllm::launcher
