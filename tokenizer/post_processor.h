// Which special tokens go around a text: <bos> $A <eos>.
#pragma once

#include <vector>

#include "tokenizer/token_table.h"

namespace nvllm::tokenizer {

// Templates for a single text, applied one after the other, each to what the one before made.
class PostProcessor {
 public:
  struct Template {
    std::vector<TokenId> before, after;
  };
  void add(Template item) { templates_.push_back(std::move(item)); }

  std::vector<TokenId> prefix() const {
    std::vector<TokenId> ids;
    for (auto item = templates_.rbegin(); item != templates_.rend(); ++item) {
      ids.insert(ids.end(), item->before.begin(), item->before.end());
    }
    return ids;
  }
  std::vector<TokenId> suffix() const {
    std::vector<TokenId> ids;
    for (const Template& item : templates_)
      ids.insert(ids.end(), item.after.begin(), item.after.end());
    return ids;
  }

 private:
  std::vector<Template> templates_;
};

}  // namespace nvllm::tokenizer
