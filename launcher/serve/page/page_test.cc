#include "launcher/serve/page/page.h"

#include <doctest/doctest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

namespace nvllm::launcher {
namespace {

std::string text_of(std::string_view tag) {
  std::string open = "<", close = "</";
  open.append(tag).append(">");
  close.append(tag).append(">");
  const std::string_view html = chat_page().html;
  const std::size_t begin = html.find(open), end = html.find(close);
  REQUIRE(begin != std::string_view::npos);
  REQUIRE(end != std::string_view::npos);
  CHECK(html.find(open, begin + 1) == std::string_view::npos);
  return std::string(html.substr(begin + open.size(), end - begin - open.size()));
}

// What a shell command prints, given `input` as the file $FILE.
std::string run(const std::string& input, const std::string& command) {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/input";
  std::ofstream(path, std::ios::binary) << input;
  setenv("FILE", path.c_str(), 1);
  std::FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string output;
  std::array<char, 4096> buffer{};
  while (const std::size_t size = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.append(buffer.data(), size);
  }
  CHECK(pclose(pipe) == 0);
  return output;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

TEST_CASE("the page is small") {
  CHECK(chat_page().html.size() > 10'000);
  CHECK(chat_page().html.size() <= 60 * 1024);
  CHECK(chat_page().gzip.size() <= 20 * 1024);
}

TEST_CASE("the compressed page is the page") {
  CHECK(run(std::string(chat_page().gzip), "gzip -dc < \"$FILE\"") == chat_page().html);
}

TEST_CASE("the policy allows this script and this style by their hashes, and no other") {
  for (const char* tag : {"script", "style"}) {
    CAPTURE(tag);
    const std::string hex = run(text_of(tag), "sha256sum < \"$FILE\" | cut -c 1-64");
    std::string directive = tag;
    directive += "-src 'sha256-";
    const std::string_view policy = chat_page().content_security_policy;
    const std::size_t at = policy.find(directive);
    REQUIRE(at != std::string_view::npos);
    const std::string_view hash = policy.substr(at + directive.size(), 44);
    CHECK(run(std::string(hash), "base64 -d < \"$FILE\" | od -An -v -tx1 | tr -d ' \\n'") + "\n" ==
          hex);
    CHECK(policy.substr(at + directive.size() + 44, 2) == "';");
  }
}

TEST_CASE("the policy allows connections to this server alone") {
  const std::string_view policy = chat_page().content_security_policy;
  CHECK(policy.starts_with("default-src 'none'; script-src '"));
  CHECK(contains(policy,
                 "; connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
                 "form-action 'none'; frame-ancestors 'none'"));
  CHECK(!contains(policy, "unsafe"));
  CHECK(!contains(policy, "\n"));
}

TEST_CASE("the entity tag is a quoted word") {
  const std::string_view etag = chat_page().etag;
  CHECK(etag.size() == 34);
  CHECK(etag.front() == '"');
  CHECK(etag.back() == '"');
  CHECK(etag.find_first_not_of("0123456789abcdef", 1) == etag.size() - 1);
}

TEST_CASE("text never becomes markup or code") {
  for (const char* word : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write",
                           "eval(", "new Function", "DOMParser", "setHTML"}) {
    CAPTURE(word);
    CHECK(!contains(chat_page().html, word));
  }
}

TEST_CASE("the markup has no inline handlers and no style attributes, which the policy forbids") {
  std::string_view markup = chat_page().html;
  markup = markup.substr(0, markup.find("<script>"));  // behind the script there is nothing
  CHECK(chat_page().html.ends_with("</script>\n</body>\n</html>\n"));
  for (std::size_t at = 0; (at = markup.find(" on", at)) != std::string_view::npos;) {
    at = markup.find_first_not_of("abcdefghijklmnopqrstuvwxyz", at + 1);
    CHECK(markup[at] != '=');
  }
  CHECK(!contains(markup, " style="));
  CHECK(!contains(markup, "javascript:"));
}

TEST_CASE("the page loads nothing from elsewhere") {
  std::string html(chat_page().html);
  const std::string name_space = "http://www.w3.org/2000/svg";  // a name, which nobody fetches
  for (std::size_t at = 0; (at = html.find(name_space)) != std::string::npos;) {
    html.erase(at, name_space.size());
  }
  CHECK(!contains(html, "http://"));
  CHECK(!contains(html, "https://"));
  CHECK(!contains(html, "src="));
  CHECK(!contains(html, "@import"));
  CHECK(!contains(html, "url("));
}

}  // namespace
}  // namespace nvllm::launcher
