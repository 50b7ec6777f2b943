// The context of the API's endpoints, from the command line.
#pragma once

#include "launcher/cli/options.h"
#include "launcher/serve/api/api_call.h"

namespace nvllm::launcher {

// text: nullptr: the model has no tokenizer; it must outlive the context. model_defaults: the
// model's sampling defaults. Throws an Error if --default-chat-template-kwargs is not an object.
ApiContext api_context(const Options& options, const TextModel* text,
                       const runtime::SamplingParams& model_defaults, std::int64_t max_model_len);

// Throws a UsageError for unknown parsers, with which every request would be rejected.
void check_parsers(const ServeOptions& serve);

}  // namespace nvllm::launcher
