#include "launcher/hub/testing/hub_server.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "launcher/hub/sha256.h"

namespace nvllm::testing {
namespace {

bool send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

std::string header_in(const std::string& head, const std::string& name) {
  const std::size_t at = head.find("\r\n" + name + ": ");
  if (at == std::string::npos) return "";
  const std::size_t begin = at + name.size() + 4;
  return head.substr(begin, head.find("\r\n", begin) - begin);
}

bool send_empty(int fd, const std::string& status, const std::string& headers = "") {
  return send_all(fd, "HTTP/1.1 " + status + "\r\nContent-Length: 0\r\n" + headers + "\r\n");
}

}  // namespace

HubServer::HubServer(std::map<std::string, Repository> repositories)
    : repositories_(std::move(repositories)),
      listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  for (auto& [name, repository] : repositories_) {
    for (auto& [path, file] : repository.files) {
      if (file.sha256.empty()) file.sha256 = launcher::sha256_of(file.bytes);
    }
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener_.get(), any, size) != 0 || ::listen(listener_.get(), 64) != 0 ||
      ::getsockname(listener_.get(), any, &size) != 0) {
    fail_errno("a test's server");
  }
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { accept_all(); });
}

HubServer::~HubServer() {
  ends_ = true;
  ::shutdown(listener_.get(), SHUT_RDWR);
  acceptor_.join();
  {
    const std::lock_guard lock(mutex_);
    for (const int fd : open_) ::shutdown(fd, SHUT_RDWR);
  }
  for (std::thread& thread : threads_) thread.join();
}

std::vector<HubServer::Request> HubServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

void HubServer::accept_all() {
  while (!ends_) {
    const int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    const std::lock_guard lock(mutex_);
    open_.push_back(fd);
    threads_.emplace_back([this, fd] { serve(fd); });
  }
}

void HubServer::serve(int fd) {
  std::string bytes;
  for (bool goes_on = true; goes_on;) {
    std::size_t end = 0;
    while ((end = bytes.find("\r\n\r\n")) == std::string::npos) {
      char buffer[4096];
      const ssize_t count = ::recv(fd, buffer, sizeof(buffer), 0);
      if (count <= 0) break;
      bytes.append(buffer, static_cast<std::size_t>(count));
    }
    if (end == std::string::npos) break;
    const std::string head = bytes.substr(0, end + 2);
    bytes.erase(0, end + 4);
    Request request;
    std::istringstream(head) >> request.method >> request.target;
    request.host = header_in(head, "Host");
    request.range = header_in(head, "Range");
    request.has_token = header_in(head, "Authorization") == "Bearer hf_good";
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    goes_on = answer(fd, request);
  }
  const std::lock_guard lock(mutex_);
  std::erase(open_, fd);
  ::close(fd);
}

bool HubServer::is_first_use(const std::string& location) {
  const std::lock_guard lock(mutex_);
  return used_.insert(location).second;
}

// False: the connection ends.
bool HubServer::answer(int fd, const Request& request) {
  if (busy > 0 && busy-- > 0) return send_empty(fd, "503 Service Unavailable");
  std::vector<std::string> parts;
  std::istringstream path(request.target.substr(1));
  for (std::string part; std::getline(path, part, '/');) parts.push_back(part);
  const auto rest_from = [&](std::size_t first) {
    std::string rest;
    for (std::size_t i = first; i < parts.size(); ++i) rest += (i > first ? "/" : "") + parts[i];
    return rest;
  };
  if (parts.size() == 6 && parts[0] == "api") {
    return answer_listing(fd, parts[2] + '/' + parts[3], parts[5]);
  }
  if (parts.size() >= 5 && parts[2] == "resolve") {
    return answer_file(fd, request, parts[0] + '/' + parts[1], rest_from(4));
  }
  if (parts.size() >= 5 && parts[0] == "bytes") {  // bytes/NUMBER/ORG/NAME/FILE
    if (drops_location && !is_first_use(parts[1])) return send_empty(fd, "403 Forbidden");
    const File& file = repositories_.at(parts[2] + '/' + parts[3]).files.at(rest_from(4));
    return send_bytes(fd, request, file, "");
  }
  return send_empty(fd, "404 Not Found", "X-Error-Code: EntryNotFound\r\n");
}

bool HubServer::answer_listing(int fd, const std::string& name, const std::string& revision) {
  const auto found = repositories_.find(name);
  if (found == repositories_.end()) {
    return send_empty(fd, "401 Unauthorized", "X-Error-Code: RepoNotFound\r\n");
  }
  if (revision != "main" && revision != found->second.commit) {
    return send_empty(fd, "404 Not Found", "X-Error-Code: RevisionNotFound\r\n");
  }
  std::string siblings;
  for (const auto& [file, content] : found->second.files) {
    siblings += (siblings.empty() ? "" : ", ") + std::string(R"({"rfilename": ")") + file + "\"}";
  }
  const std::string body = R"({"id": ")" + name + R"(", "sha": ")" + found->second.commit +
                           R"(", "siblings": [)" + siblings + "]}";
  return send_all(fd, str("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: ",
                          body.size(), "\r\n\r\n", body));
}

bool HubServer::answer_file(int fd, const Request& request, const std::string& name,
                            const std::string& path) {
  const Repository& repository = repositories_.at(name);
  if (repository.gated && !request.has_token) {
    return send_empty(fd, "401 Unauthorized", "X-Error-Code: GatedRepo\r\n");
  }
  const auto found = repository.files.find(path);
  if (found == repository.files.end()) {
    return send_empty(fd, "404 Not Found", "X-Error-Code: EntryNotFound\r\n");
  }
  const File& file = found->second;
  const std::string commit = "X-Repo-Commit: " + repository.commit + "\r\n";
  if (!file.lfs) {
    return send_bytes(
        fd, request, file,
        commit + "ETag: \"" + launcher::sha256_of(file.bytes).substr(0, 40) + "\"\r\n");
  }
  const std::uint64_t size = file.told_size != 0 ? file.told_size : file.bytes.size();
  return send_empty(fd, "302 Found",
                    str(commit, "X-Linked-Size: ", size, "\r\nX-Linked-Etag: \"", file.sha256,
                        "\"\r\nLocation: http://localhost:", port_, "/bytes/", ++locations_, '/',
                        name, '/', path, "\r\n"));
}

bool HubServer::send_bytes(int fd, const Request& request, const File& file,
                           const std::string& headers) {
  std::size_t begin = 0, end = file.bytes.size();
  const bool ranged = request.range.starts_with("bytes=") && !no_ranges;
  if (ranged) {
    begin = std::stoull(request.range.substr(6));
    end = std::min(end,
                   std::size_t{std::stoull(request.range.substr(request.range.find('-') + 1))} + 1);
  }
  std::string head =
      str("HTTP/1.1 ", ranged ? "206 Partial Content" : "200 OK",
          "\r\nAccept-Ranges: bytes\r\nContent-Length: ", end - begin, "\r\n", headers);
  if (ranged) {
    head += str("Content-Range: bytes ", begin, '-', end - 1, '/', file.bytes.size(), "\r\n");
  }
  if (!send_all(fd, head + "\r\n")) return false;
  if (request.method == "HEAD") return true;
  for (std::size_t at = begin; at < end;) {
    std::size_t count = std::min(end - at, std::size_t{16} << 10);
    if (file.lfs && cut_after >= 0) {
      count = std::min(count, static_cast<std::size_t>(cut_after) -
                                  std::min<std::size_t>(cut_after, at - begin));
      if (count == 0) return false;
    }
    if (!send_all(fd, std::string_view(file.bytes).substr(at, count))) return false;
    at += count;
    if (file.lfs) sent_ += count;
    if (file.lfs && slow) std::this_thread::sleep_for(std::chrono::milliseconds(16));
  }
  return true;
}

HubServer::Repository folder_repository(const std::string& folder) {
  HubServer::Repository repository;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    const bool lfs = entry.path().extension() == ".safetensors";
    repository.files[entry.path().filename().string()] = {.bytes = text.str(), .lfs = lfs};
  }
  return repository;
}

HubServer::Repository text_repository(const std::string& folder, std::size_t weight_bytes) {
  HubServer::Repository repository = folder_repository(folder);
  repository.files["model.safetensors"] = {.bytes = noise(weight_bytes), .lfs = true};
  repository.files["README.md"].bytes = "not needed";
  return repository;
}

std::string noise(std::size_t size, unsigned seed) {
  std::string bytes(size, '\0');
  std::uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (std::size_t at = 0; at < size; at += sizeof(state)) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(bytes.data() + at, &state, std::min(sizeof(state), size - at));
  }
  return bytes;
}

}  // namespace nvllm::testing
