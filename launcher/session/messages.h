// Prepares the messages of a conversation, in the format of OpenAI's API, for a chat template.
#pragma once

#include "tokenizer/chat_template.h"
#include "tokenizer/jinja/value.h"

namespace nvllm::launcher {

// A message's content is a string, null, or a list of text parts: {"type": "text", "text": ...}.
// template_takes_parts: the template supports such lists, and gets them; otherwise it gets their
// texts joined by newlines, as in vLLM. Throws an Error if messages is not such a list, or empty,
// and for parts of other types, since models here support text only.
jinja::Value prepare_messages(const jinja::Value& messages, bool template_takes_parts);

// Throws an Error for a message whose role is neither one that all APIs have nor one that the
// template supports: most templates omit such a message, or render it in a way that the model has
// never seen. messages: the result of prepare_messages().
void check_roles(const jinja::Value& messages, const tokenizer::ChatTemplate& chat_template);

}  // namespace nvllm::launcher
