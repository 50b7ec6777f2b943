#include "launcher/hub/hub_client.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/bounded_json.h"
#include "base/error.h"
#include "launcher/net/percent.h"

namespace nvllm::launcher {
namespace {

constexpr Nanoseconds kFirstAnswer = std::chrono::milliseconds(900);

std::string value_of(const Environment& environment, const char* name) {
  const auto value = environment(name);
  return value ? *value : "";
}

std::string trimmed(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kSpace);
  return begin == std::string::npos ? ""
                                    : text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

// The folder of the hub's own files, "~/.cache/huggingface"; empty if there is no home.
std::string hub_home(const Environment& environment) {
  if (std::string home = value_of(environment, "HF_HOME"); !home.empty()) return home;
  const std::string cache = cache_folder(environment);
  return cache.empty() ? "" : cache + "/huggingface";
}

// The variables in the order in which huggingface_hub reads them.
std::string hub_cache(const Environment& environment) {
  for (const char* const name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (std::string path = value_of(environment, name); !path.empty()) return path;
  }
  const std::string home = hub_home(environment);
  return home.empty() ? "" : home + "/hub";
}

std::string token_of(const Environment& environment) {
  for (const char* const name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    const std::string token = trimmed(value_of(environment, name));
    // It becomes a part of a header.
    if (!std::ranges::all_of(token, [](char c) { return c > ' ' && c <= '~'; })) {
      fail(name,
           ": is no token, it has characters such as spaces; copy it from "
           "https://huggingface.co/settings/tokens again");
    }
    if (!token.empty()) return token;
  }
  std::string path = value_of(environment, "HF_TOKEN_PATH");
  if (path.empty()) path = hub_home(environment) + "/token";
  std::ifstream file(path);
  std::string token;
  file >> token;
  return token;
}

std::string offline_of(const Environment& environment) {
  for (const char* const name : {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}) {
    const std::string given = value_of(environment, name);
    std::string value = given;
    std::ranges::transform(value, value.begin(), [](unsigned char c) { return std::toupper(c); });
    if (value == "1" || value == "ON" || value == "YES" || value == "TRUE") {
      return str(name, '=', given);
    }
  }
  return "";
}

std::string proxy_of(const Environment& environment) {
  for (const char* const name : {"HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"}) {
    if (!value_of(environment, name).empty()) return name;
  }
  return "";
}

Nanoseconds first_answer_of(const Environment& environment) {
  const std::string given = value_of(environment, "HF_HUB_ETAG_TIMEOUT");
  if (given.empty()) return kFirstAnswer;
  char* end = nullptr;
  const double seconds = std::strtod(given.c_str(), &end);
  if (*end != '\0' || !(seconds > 0) || seconds > 3600) {
    fail("HF_HUB_ETAG_TIMEOUT=", given, ": not a number of seconds; set one such as 10");
  }
  return Nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

constexpr int kMaxRedirects = 8;
constexpr std::size_t kMaxListing = std::size_t{64} << 20;
constexpr std::size_t kMaxText = std::size_t{64} << 20;

std::optional<std::uint64_t> number_in(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// W/"abc" -> abc
std::string bare_etag(std::string_view etag) {
  if (etag.starts_with("W/")) etag.remove_prefix(2);
  if (etag.size() >= 2 && etag.starts_with('"') && etag.ends_with('"')) {
    etag = etag.substr(1, etag.size() - 2);
  }
  return std::string(etag);
}

bool is_hex(std::string_view text, std::size_t length) {
  return text.size() == length && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

void set_if_empty(std::string& text, std::string_view value) {
  if (text.empty()) text = value;
}

// "bytes 10-19/100": the first byte and the total size.
struct ContentRange {
  std::optional<std::uint64_t> begin, total;
};
ContentRange content_range(std::string_view text) {
  if (!text.starts_with("bytes ")) return {};
  text.remove_prefix(6);
  const std::size_t dash = text.find('-'), slash = text.find('/');
  if (dash == std::string_view::npos || slash == std::string_view::npos) return {};
  return {number_in(text.substr(0, dash)), number_in(text.substr(slash + 1))};
}

// Forwards the bytes of a range, wherever in the file the response starts.
class RangeFilter : public BodyReceiver {
 public:
  RangeFilter(std::uint64_t skipped, std::uint64_t wanted, BodyReceiver& receiver)
      : skipped_(skipped), wanted_(wanted), receiver_(receiver) {}

  void on_body(std::string_view piece) override {
    const std::uint64_t skip = std::min<std::uint64_t>(skipped_, piece.size());
    skipped_ -= skip;
    piece.remove_prefix(skip);
    piece = piece.substr(0, wanted_);
    wanted_ -= piece.size();
    if (!piece.empty()) receiver_.on_body(piece);
  }
  std::uint64_t wanted() const { return wanted_; }

 private:
  std::uint64_t skipped_, wanted_;
  BodyReceiver& receiver_;
};

}  // namespace

HubSettings hub_settings(const Environment& environment) {
  std::string endpoint = value_of(environment, "HF_ENDPOINT");
  while (endpoint.ends_with('/')) endpoint.pop_back();
  if (endpoint.empty()) endpoint = "https://huggingface.co";
  if (!endpoint.starts_with("https://") && !endpoint.starts_with("http://")) {
    fail("HF_ENDPOINT=", endpoint, ": is no URL; set one such as https://huggingface.co");
  }
  return {.endpoint = endpoint,
          .token = token_of(environment),
          .cache = hub_cache(environment),
          .offline = offline_of(environment),
          .proxy = proxy_of(environment),
          .first_answer = first_answer_of(environment)};
}

HubClient::Answer HubClient::ask(HttpSession& session, std::string_view method, Url url,
                                 const std::string& headers, bool until_linked) {
  const std::string hub = parse_url(settings_.endpoint).origin();
  Answer answer;
  for (int hop = 0; hop <= kMaxRedirects; ++hop) {
    const bool with_token = !settings_.token.empty() && url.origin() == hub;
    const std::string authorization =
        with_token ? "Authorization: Bearer " + settings_.token + "\r\n" : "";
    answer.head = session.begin(method, url, authorization + headers);
    answer.url = url;
    set_if_empty(answer.commit, answer.head.header("X-Repo-Commit"));
    set_if_empty(answer.linked_etag, answer.head.header("X-Linked-Etag"));
    set_if_empty(answer.linked_size, answer.head.header("X-Linked-Size"));
    if (!answer.head.is_redirect()) {
      set_if_empty(answer.etag, answer.head.header("ETag"));
      return answer;
    }
    if (until_linked && !answer.linked_etag.empty() && !answer.linked_size.empty()) return answer;
    url = redirected(url, answer.head.header("Location"));
  }
  fail("model ", name_.text(), ": ", url.origin(), " redirects in a circle");
}

void HubClient::fail_status(const HttpHead& head, const Url& url, const std::string& file) const {
  const std::string_view code = head.header("X-Error-Code");
  const std::string who = "model " + name_.text() + (file.empty() ? "" : ", file " + file);
  const std::string page = settings_.endpoint + '/' + name_.repository;
  const bool has_token = !settings_.token.empty();
  const bool elsewhere = url.origin() != parse_url(settings_.endpoint).origin();
  // URLs at other servers expire; the hub returns a new one.
  if (head.status == 429 || head.status >= 500 || elsewhere) {
    throw NetworkError(str(who, ": ", url.origin(), " answers with status ", head.status,
                           head.status == 429 && !has_token ? "; set HF_TOKEN, or wait" : "; wait",
                           " and pull it again"));
  }
  if (code == "RevisionNotFound") {
    fail(who, ": has no revision '", name_.revision, "'; see ", page);
  }
  if (code == "EntryNotFound") fail(who, ": there is no such file; see ", page, "/tree/main");
  if (code == "GatedRepo" || head.status == 403) {
    fail(who, ": is gated; accept its terms at ", page,
         has_token ? ", with the account of the token that is used (HF_TOKEN, or that of 'hf auth "
                     "login')"
                   : ", then set HF_TOKEN to a token of that account");
  }
  if (head.status == 401 || head.status == 404) {
    fail(who, ": no such model at ", settings_.endpoint, ", or a private one; check the name, ",
         has_token ? "and whether the token that is used may read it"
                   : "and set HF_TOKEN if it is private");
  }
  fail(who, ": ", url.origin(), " answers with status ", head.status, "; see ", page);
}

HubRevision HubClient::look_up(HttpSession& session) {
  // A slash in a branch's name must be escaped.
  std::string revision_name = percent_encoded_path(name_.revision);
  for (std::size_t at = 0; (at = revision_name.find('/', at)) != std::string::npos;) {
    revision_name.replace(at, 1, "%2F");
  }
  const Url url = parse_url(
      str(settings_.endpoint, "/api/models/", name_.repository, "/revision/", revision_name));
  const Answer answer = ask(session, "GET", url, "Accept: application/json\r\n");
  if (answer.head.status != 200) fail_status(answer.head, answer.url, "");
  HubRevision revision;
  try {
    const nlohmann::json listing = read_bounded_json(session.whole_body(kMaxListing),
                                                     {.max_keys = 1 << 16, .repeated_names = true});
    revision.commit = listing.at("sha").get<std::string>();
    for (const auto& sibling : listing.at("siblings")) {
      std::string file = sibling.at("rfilename").get<std::string>();
      if (is_safe_path(file)) revision.files.push_back(std::move(file));
    }
  } catch (const BadJson& error) {
    fail("model ", name_.text(), ": ", settings_.endpoint,
         " does not answer as the Hugging Face hub does (", error.what(), "); check HF_ENDPOINT");
  } catch (const nlohmann::json::exception&) {
    fail("model ", name_.text(), ": ", settings_.endpoint,
         " does not answer as the Hugging Face hub does (no \"sha\" and \"siblings\"); check "
         "HF_ENDPOINT");
  }
  if (!is_safe_component(revision.commit) || revision.commit.starts_with('.')) {
    fail("model ", name_.text(), ": ", settings_.endpoint, " names no commit; check HF_ENDPOINT");
  }
  return revision;
}

HubFile HubClient::describe(HttpSession& session, const std::string& commit,
                            const std::string& file) {
  HubFile found;
  found.name = file;
  found.url = parse_url(str(settings_.endpoint, '/', name_.repository, "/resolve/",
                            percent_encoded_path(commit), '/', percent_encoded_path(file)));
  const Answer answer = ask(session, "HEAD", found.url, "", true);
  const HttpHead& head = answer.head;
  if (head.status != 200 && !head.is_redirect()) fail_status(head, answer.url, file);
  const bool linked = !answer.linked_etag.empty();
  found.etag = bare_etag(linked ? answer.linked_etag : answer.etag);
  const auto size = number_in(!answer.linked_size.empty() ? std::string_view(answer.linked_size)
                                                          : head.header("Content-Length"));
  if (!size || !is_safe_component(found.etag) || found.etag.starts_with('.')) {
    fail("model ", name_.text(), ", file ", file, ": ", answer.url.origin(),
         " does not say its size and ETag as the Hugging Face hub does; check HF_ENDPOINT");
  }
  found.size = *size;
  if (is_hex(found.etag, 64)) found.sha256 = found.etag;
  return found;
}

HubClient::Answer HubClient::ask_for_range(HttpSession& session, const HubFile& file,
                                           const std::string& range) {
  const std::string key = file.url.text();
  std::optional<Url> known;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = locations_.find(key); found != locations_.end()) known = found->second;
  }
  if (known) {
    Answer answer = ask(session, "GET", *known, range);
    if (answer.head.status == 200 || answer.head.status == 206) return answer;
    // URLs at other servers expire.
    const std::lock_guard lock(mutex_);
    locations_.erase(key);
  }
  Answer answer = ask(session, "GET", file.url, range);
  const std::lock_guard lock(mutex_);
  locations_[key] = answer.url;
  return answer;
}

void HubClient::fetch(HttpSession& session, const HubFile& file, std::uint64_t begin,
                      std::uint64_t end, BodyReceiver& receiver) {
  if (begin == end) return;
  const Answer answer =
      ask_for_range(session, file, str("Range: bytes=", begin, '-', end - 1, "\r\n"));
  const HttpHead& head = answer.head;
  if (head.status != 200 && head.status != 206) fail_status(head, answer.url, file.name);
  if (head.status == 206) {
    const ContentRange range = content_range(head.header("Content-Range"));
    if (range.begin != begin || (range.total && range.total != file.size)) {
      fail("model ", name_.text(), ", file ", file.name, ": ", answer.url.origin(),
           " answers with other bytes than were requested (Content-Range: ",
           head.header("Content-Range"), "); pull it again");
    }
  }
  // A server without range support sends the whole file.
  RangeFilter filter(head.status == 200 ? begin : 0, end - begin, receiver);
  while (filter.wanted() > 0) {
    if (session.more(filter)) continue;
    throw NetworkError(str("model ", name_.text(), ", file ", file.name, ": ", answer.url.origin(),
                           " sends fewer bytes than it has said"));
  }
}

std::string HubClient::text(HttpSession& session, const HubFile& file) {
  if (file.size > kMaxText) {
    fail("model ", name_.text(), ", file ", file.name, ": has ", format_bytes(file.size),
         ", more than such a file can have");
  }
  return with_attempts([&] {
    std::string text;
    BodyCollector collector(text);
    fetch(session, file, 0, file.size, collector);
    return text;
  });
}

}  // namespace nvllm::launcher
