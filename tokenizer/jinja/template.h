// Template: a Jinja template, limited to the language of chat templates, rendered like Hugging Face
// does (trim_blocks, lstrip_blocks, tojson as plain JSON, raise_exception, strftime_now, break and
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

// Thrown when the template calls raise_exception, with the template's own message.
class TemplateRaised : public Error {
 public:
  using Error::Error;
};

// Immutable after parsing; thread-safe.
class Template {
 public:
  // Far above those of models, so that the tree of a template takes at most some ten MB.
  static constexpr std::size_t kMaxBytes = std::size_t{1} << 20;
  static constexpr std::size_t kMaxTokens = std::size_t{1} << 16;

  // Throws an Error that starts with "line 3, column 14: ", or says that the template is too large.
  static Template parse(std::string_view source);

  // `context`: the variables. An Error contains the position of the failure; TemplateRaised is
  // rethrown unchanged.
  std::string render(const Dict& context, const Limits& limits = {}) const;
  // The same text, with marks on parts from values with marks.
  MarkedText render_marked(const Dict& context, const Limits& limits = {}) const;

 private:
  explicit Template(Block block) : block_(std::make_shared<const Block>(std::move(block))) {}
  std::shared_ptr<const Block> block_;
};

}  // namespace nvllm::jinja
