#include "tokenizer/jinja/template.h"

#include "tokenizer/jinja/parser.h"
#include "tokenizer/utf8.h"

namespace nvllm::jinja {

Template Template::parse(std::string_view source) {
  std::string valid;
  tokenizer::append_valid_utf8(valid, source);
  return Template(jinja::parse(valid));
}

std::string Template::render(const Dict& context, const Limits& limits) const {
  return Interpreter(context, limits).render(*block_);
}

}  // namespace nvllm::jinja
