// The context of the API's endpoints, as the command line asks for it.
#pragma once

#include "launcher/cli/options.h"
#include "launcher/serve/api/api_call.h"

namespace nvllm::launcher {

// text: null: the model has no tokenizer; it must outlive the context. model_defaults: of requests,
// as the model says them. Throws an Error for --default-chat-template-kwargs that are no object.
ApiContext api_context(const Options& options, const TextModel* text,
                       const runtime::SamplingParams& model_defaults, std::int64_t max_model_len);

// Throws a UsageError for parsers that do not exist: every request would be refused.
void check_parsers(const ServeOptions& serve);

}  // namespace nvllm::launcher
