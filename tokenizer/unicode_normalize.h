// Unicode normalization forms.
#pragma once

#include <string>
#include <string_view>

namespace nvllm::tokenizer {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// Time is linear in the text, but for sorting runs of combining marks (n log n in the run's
// length).
std::string normalize_unicode(std::string_view text, NormalForm form);

}  // namespace nvllm::tokenizer
