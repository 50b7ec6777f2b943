// Template: a Jinja template, as chat templates use the language, rendered as Hugging Face renders
// it (trim_blocks, lstrip_blocks, tojson as plain JSON, raise_exception, strftime_now, break and
// continue).
//
//   const Template greeting = Template::parse("Hello, {{ name }}!");
//   greeting.render(Dict{...});
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "tokenizer/jinja/interpreter.h"
#include "tokenizer/jinja/value.h"

namespace nvllm::jinja {

// Thrown when the template calls raise_exception; the message is the template's own.
class TemplateRaised : public Error {
 public:
  using Error::Error;
};

// Const after it has been parsed; may be rendered by several threads at once.
class Template {
 public:
  // Far above those of models, so that the tree of a template takes some ten MB at most.
  static constexpr std::size_t kMaxBytes = std::size_t{1} << 20;
  static constexpr std::size_t kMaxTokens = std::size_t{1} << 16;

  // Throws an Error that begins with "line 3, column 14: ", or says that there is too much of it.
  static Template parse(std::string_view source);

  // `context`: the variables. An Error says where a template fails; TemplateRaised passes as it is.
  std::string render(const Dict& context, const Limits& limits = {}) const;
  // The same text, with marks where it came from values with marks.
  MarkedText render_marked(const Dict& context, const Limits& limits = {}) const;

 private:
  explicit Template(Block block) : block_(std::make_shared<const Block>(std::move(block))) {}
  std::shared_ptr<const Block> block_;
};

}  // namespace nvllm::jinja
