
#include <string>
#include <utility>

#include "launcher/serve/parsers/stream_matcher.h"
#include "launcher/serve/parsers/tool_call_parser.h"

namespace nvllm::launcher {
namespace {

constexpr std::size_t kMaxHeader = 1024;  // maximum bytes kept of a header

// The word of a header that begins with this prefix, without it; "": there is none.
std::string word_after(std::string_view header, std::string_view prefix) {
  while (!header.empty()) {
    if (is_space(header.front())) {
      header.remove_prefix(1);
      continue;
    }
    std::size_t size = 0;
    while (size < header.size() && !is_space(header[size])) ++size;
    const std::string_view word = header.substr(0, size);
    if (word.starts_with(prefix) && word.size() > prefix.size()) {
      return std::string(word.substr(prefix.size()));
    }
    header.remove_prefix(size);
  }
  return "";
}

class HarmonyParser final : public OutputParser {
 public:
  HarmonyParser(bool calls, std::uint64_t seed) : calls_enabled_(calls), ids_(seed, "call_", 24) {}

  OutputDelta push(std::string_view text) override {
    OutputDelta out;
    for (const char byte : text) push_byte(byte, out);
    return out;
  }

  OutputDelta finish() override {
    OutputDelta out;
    std::string text;
    tags_.finish(text);
    add(text, out);
    release_beginning(out);
    return out;
  }

  bool called_tools() const override { return calls_ > 0; }

 private:
  // beginning: the answer's beginning, which is a header's rest if it names a recipient, since the
  // prompt ends with the role. role, channel: the two parts of a header. content: also text without
  // a header.
  enum class Section { beginning, role, channel, reasoning, content, call };
  enum Tag { kStart, kChannel, kConstrain, kMessage, kEnd, kReturn, kCall };

  void push_byte(char byte, OutputDelta& out) {
    std::string text;
    const int tag = tags_.push(byte, text);
    add(text, out);
    if (tag != TagMatcher::kNone) end_beginning(tag, out);
    switch (tag) {
      case TagMatcher::kNone: return;
      case kStart:
        header_.clear();
        channel_.clear();
        section_ = Section::role;
        return;
      case kChannel:
        if (section_ != Section::role) header_.clear();
        channel_.clear();
        section_ = Section::channel;
        return;
      case kConstrain:  // the type of the message
        keep(" ");
        return;
      case kMessage: return begin_message(out);
      default: section_ = Section::content;
    }
  }

  // Whether the answer may start with " to=" and a name, of which there may be more.
  bool may_name_recipient() const {
    constexpr std::string_view kTo = "to=";
    if (header_.size() >= kMaxHeader) return false;
    std::string_view text = header_;
    while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
    return kTo.starts_with(text.substr(0, kTo.size()));
  }

  // What was taken for a header's rest is content.
  void release_beginning(OutputDelta& out) {
    if (section_ != Section::beginning) return;
    section_ = Section::content;
    out.content += std::exchange(header_, {});
  }

  void end_beginning(int tag, OutputDelta& out) {
    if (section_ != Section::beginning) return;
    const bool in_header = tag == kChannel || tag == kConstrain || tag == kMessage;
    if (in_header && !word_after(header_, "to=").empty()) {
      section_ = Section::role;
    } else {
      release_beginning(out);
    }
  }

  // Stores text of a header.
  void keep(std::string_view text) {
    std::string& part = section_ == Section::role ? header_ : channel_;
    if (part.size() < kMaxHeader) part += text;
  }

  void begin_message(OutputDelta& out) {
    const std::string all = header_ + ' ' + channel_;
    std::string recipient = word_after(all, "to=");
    if (calls_enabled_ && !recipient.empty()) {
      constexpr std::string_view kFunctions = "functions.";
      if (recipient.starts_with(kFunctions) && recipient.size() > kFunctions.size()) {
        recipient.erase(0, kFunctions.size());
      }
      out.tool_calls.push_back({.index = calls_++, .id = ids_.next(), .name = recipient});
      section_ = Section::call;
    } else {
      section_ = word_after(channel_, "") == "analysis" ? Section::reasoning : Section::content;
    }
    header_.clear();
    channel_.clear();
  }

  void add(std::string_view text, OutputDelta& out) {
    if (text.empty()) return;
    switch (section_) {
      case Section::beginning:
        header_ += text;
        if (!may_name_recipient()) release_beginning(out);
        return;
      case Section::role:
      case Section::channel: return keep(text);
      case Section::reasoning: out.reasoning += text; return;
      case Section::content: out.content += text; return;
      case Section::call:
        if (out.tool_calls.empty() || out.tool_calls.back().index != calls_ - 1) {
          out.tool_calls.push_back({.index = calls_ - 1});
        }
        out.tool_calls.back().arguments += text;
    }
  }

  const bool calls_enabled_;
  CallIds ids_;
  std::int32_t calls_ = 0;
  Section section_ = Section::beginning;
  TagMatcher tags_{"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>",
                   "<|end|>",   "<|return|>",  "<|call|>"};
  std::string header_, channel_;  // the header after <|start|>, and after <|channel|>
};

}  // namespace

const std::vector<std::string_view>& harmony_tags() {
  static const std::vector<std::string_view> tags = {"<|start|>", "<|channel|>", "<|constrain|>",
                                                     "<|message|>", "<|end|>"};
  return tags;
}

std::unique_ptr<OutputParser> make_harmony_parser(bool calls, std::uint64_t seed) {
  return std::make_unique<HarmonyParser>(calls, seed);
}

}  // namespace nvllm::launcher
