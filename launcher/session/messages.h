// The messages of a conversation, as clients of OpenAI's API write them, made ready for a chat
// template.
#pragma once

#include "tokenizer/chat_template.h"
#include "tokenizer/jinja/value.h"

namespace nvllm::launcher {

// A message's content is a string, null, or a list of parts of text: {"type": "text", "text": ...}.
// template_takes_parts: the template reads such lists, and gets them; otherwise it gets their texts
// with newlines between them, as in vLLM.
// Throws an Error for messages that are no such list, or an empty one, and for parts of other
// types, since models here read text only.
jinja::Value prepare_messages(const jinja::Value& messages, bool template_takes_parts);

// Throws an Error for a message of a role that is none of those that all APIs have and that the
// template does not know either: most templates leave such a message out, or write it in a way that
// the model has never seen. messages: as prepare_messages() gives them.
void check_roles(const jinja::Value& messages, const tokenizer::ChatTemplate& chat_template);

}  // namespace nvllm::launcher
