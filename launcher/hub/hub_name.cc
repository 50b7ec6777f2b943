#include "launcher/hub/hub_name.h"

#include <algorithm>

#include "base/error.h"
#include "launcher/net/percent.h"

namespace nvllm::launcher {
namespace {

constexpr const char* kFix =
    "pass ORG/NAME, ORG/NAME@REVISION, ORG/NAME:Q4_K_M for a GGUF file, or a link to the "
    "model's page";

bool is_word(std::string_view text) {
  const auto good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !text.empty() && text.size() <= 128 && text.front() != '.' &&
         std::ranges::all_of(text, good);
}

bool is_repository(std::string_view text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos) return is_word(text) && !text.ends_with(".gguf");
  return is_word(text.substr(0, slash)) && is_word(text.substr(slash + 1));
}

// Returns the text before the mark, and removes it and the mark; without a mark, all of it.
std::string take_until(std::string_view& text, char mark) {
  const std::size_t at = std::min(text.find(mark), text.size());
  const std::string before(text.substr(0, at));
  text.remove_prefix(std::min(at + 1, text.size()));
  return before;
}

void check_revision(const std::string& text, const std::string& revision) {
  if (is_safe_path(revision) && revision.find(':') == std::string::npos) return;
  fail("model ", text, ": '", revision, "' is no revision; pass a branch, a tag or a commit");
}

// The path of a link, "org/name/blob/main/model.gguf".
HubName name_of_path(const std::string& text, std::string_view path) {
  HubName name;
  path = path.substr(0, path.find_first_of("?#"));
  name.repository = take_until(path, '/');
  if (const std::string second = take_until(path, '/'); !second.empty()) {
    name.repository += '/' + second;
  }
  if (!is_repository(name.repository) || name.repository.starts_with("datasets/") ||
      name.repository.starts_with("spaces/")) {
    fail("model ", text, ": the link leads to no model; ", kFix);
  }
  const std::string kind = take_until(path, '/');
  if (kind.empty()) return name;
  if (kind != "tree" && kind != "blob" && kind != "resolve") {
    fail("model ", text, ": a link with /", kind, "/ is not understood; ", kFix);
  }
  if (const std::string revision = percent_decoded(take_until(path, '/')); !revision.empty()) {
    name.revision = revision;
  }
  check_revision(text, name.revision);
  if (kind != "tree" && path.ends_with(".gguf")) name.file = percent_decoded(path);
  if (!name.file.empty() && !is_safe_path(name.file)) {
    fail("model ", text, ": '", name.file, "' is no file of a repository; ", kFix);
  }
  return name;
}

std::optional<HubName> name_of_link(const std::string& text, const std::string& endpoint) {
  std::string_view rest = text;
  const bool link = rest.starts_with("https://") || rest.starts_with("http://");
  for (const std::string& hub :
       {endpoint + '/', std::string("https://huggingface.co/"), std::string("https://hf.co/"),
        std::string("huggingface.co/"), std::string("hf.co/")}) {
    if (rest.starts_with(hub)) return name_of_path(text, rest.substr(hub.size()));
  }
  if (link) fail("model ", text, ": a link to another place than ", endpoint, "; ", kFix);
  return std::nullopt;
}

}  // namespace

std::string HubName::text() const {
  return repository + (quantization.empty() ? "" : ':' + quantization) +
         (revision == "main" ? "" : '@' + revision);
}

std::optional<HubName> parse_hub_name(const std::string& text, const std::string& endpoint) {
  if (std::optional<HubName> name = name_of_link(text, endpoint)) return name;
  std::string_view rest = text;
  HubName name;
  std::string_view before = rest.substr(0, rest.find('@'));
  const bool has_revision = before.size() < rest.size();
  rest.remove_prefix(before.size() + (has_revision ? 1 : 0));
  name.repository = take_until(before, ':');
  if (!is_repository(name.repository)) return std::nullopt;
  name.quantization = before;
  if (has_revision) {
    name.revision = take_until(rest, ':');
    if (!rest.empty()) name.quantization = rest;
    check_revision(text, name.revision);
  }
  if (name.quantization.empty() && text.find(':') == std::string::npos) return name;
  if (!is_word(name.quantization)) {
    fail("model ", text, ": '", name.quantization, "' is no quantization; ", kFix);
  }
  return name;
}

bool is_safe_component(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         std::ranges::none_of(name, [](char c) {
           return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
         });
}

bool is_safe_path(std::string_view path) {
  for (;;) {
    const std::size_t slash = path.find('/');
    if (!is_safe_component(path.substr(0, slash))) return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

}  // namespace nvllm::launcher
