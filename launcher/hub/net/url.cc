#include "launcher/hub/net/url.h"

#include <algorithm>

#include "base/error.h"

namespace nvllm::launcher {
namespace {

void check_characters(std::string_view text) {
  if (!std::ranges::all_of(text, [](char c) { return c > ' ' && c <= '~'; })) {
    fail("URL ", text, ": has a character that no URL has; write it as %20 and the like");
  }
}

// Splits "host:port" or "[::1]:port".
void set_authority(std::string_view authority, std::string_view text, Url& url) {
  authority.remove_prefix(authority.rfind('@') + 1);  // user names are not sent
  const bool brackets = authority.starts_with('[');
  const std::size_t end = brackets ? authority.find(']') : authority.find(':');
  url.host = authority.substr(brackets ? 1 : 0, brackets ? end - 1 : end);
  std::string_view rest = authority.substr(std::min(end, authority.size()));
  if (brackets && !rest.empty()) rest.remove_prefix(1);
  url.port = url.https ? "443" : "80";
  if (rest.starts_with(':')) url.port = rest.substr(1);
  const bool number = !url.port.empty() && url.port.size() <= 5 &&
                      std::ranges::all_of(url.port, [](char c) { return c >= '0' && c <= '9'; });
  if (url.host.empty() || !number) {
    fail("URL ", text, ": has no host and port that can be read; pass one such as ",
         "https://huggingface.co");
  }
}

}  // namespace

std::string Url::authority() const {
  const std::string name = host.find(':') == std::string::npos ? host : '[' + host + ']';
  return port == (https ? "443" : "80") ? name : name + ':' + port;
}

std::string Url::origin() const {
  return (https ? "https://" : "http://") + authority();
}

Url parse_url(std::string_view text) {
  check_characters(text);
  Url url;
  std::string_view rest = text;
  if (rest.starts_with("https://")) {
    url.https = true;
    rest.remove_prefix(8);
  } else if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
  } else {
    fail("URL ", text, ": is neither http nor https");
  }
  const std::size_t path = std::min(rest.find_first_of("/?#"), rest.size());
  set_authority(rest.substr(0, path), text, url);
  url.target = rest.substr(path, rest.find('#') - path);
  if (!url.target.starts_with('/')) url.target = str('/', url.target);
  return url;
}

Url redirected(const Url& base, std::string_view location) {
  if (location.starts_with('/') && !location.starts_with("//")) {
    check_characters(location);
    Url url = base;
    url.target = location;
    return url;
  }
  const bool same_scheme = location.starts_with("//");
  Url url = parse_url(same_scheme ? str(base.https ? "https:" : "http:", location)
                                  : std::string(location));
  if (base.https && !url.https) {
    fail(base.origin(), " redirects to ", url.origin(), ", where nothing is encrypted; ",
         "set HF_ENDPOINT to another server");
  }
  return url;
}

}  // namespace nvllm::launcher
