#include "launcher/hub/net/network.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

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

constexpr std::size_t kMaxAddresses = 8;

template <typename... Parts>
[[noreturn]] void fail_network(const Parts&... parts) {
  throw NetworkError(str(parts...));
}

int milliseconds_until(std::int64_t deadline_ns) {
  return static_cast<int>(std::max<std::int64_t>(0, deadline_ns - now_ns() + 999'999) / 1'000'000);
}

class PlainStream : public ByteStream {
 public:
  PlainStream(UniqueFd fd, const Url& url, const NetworkLimits& limits)
      : fd_(std::move(fd)), name_(url.authority()), limits_(limits) {}

  std::size_t read(char* to, std::size_t size) override {
    for (;;) {
      const ssize_t count = ::recv(fd_.get(), to, size, 0);
      if (count >= 0) return static_cast<std::size_t>(count);
      if (errno == EINTR) continue;
      if (errno != EAGAIN) fail_network(name_, ": the connection was lost: ", errno_text(errno));
      wait_for_socket(fd_.get(), POLLIN, limits_.stop_fd, limits_.silence, name_);
    }
  }
  void write(std::string_view bytes) override {
    while (!bytes.empty()) {
      const ssize_t count = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count > 0) {
        bytes.remove_prefix(static_cast<std::size_t>(count));
      } else if (errno == EAGAIN) {
        wait_for_socket(fd_.get(), POLLOUT, limits_.stop_fd, limits_.silence, name_);
      } else if (errno != EINTR) {
        fail_network(name_, ": the connection was lost: ", errno_text(errno));
      }
    }
  }

 private:
  UniqueFd fd_;
  const std::string name_;
  const NetworkLimits limits_;
};

struct AddressList {
  addrinfo* first = nullptr;
  ~AddressList() {
    if (first != nullptr) ::freeaddrinfo(first);
  }
};

// Returns 0 or an error code.
int ask_for_addresses(const Url& url, int flags, AddressList& list) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  return ::getaddrinfo(url.host.c_str(), url.port.c_str(), &hints, &list.first);
}

UniqueFd start_connecting(const sockaddr_storage& address, socklen_t size, int& error) {
  UniqueFd fd(::socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  error = 0;
  if (!fd) {
    error = errno;
    return fd;
  }
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const auto* const to = reinterpret_cast<const sockaddr*>(&address);
  if (::connect(fd.get(), to, size) != 0 && errno != EINPROGRESS) {
    error = errno;
    fd.reset();
  }
  return fd;
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

void wait_for_socket(int fd, short events, int stop_fd, Nanoseconds limit, std::string_view what) {
  const std::int64_t deadline = now_ns() + limit.count();
  for (;;) {
    std::array<pollfd, 2> polled = {{{fd, events, 0}, {stop_fd, POLLIN, 0}}};
    const int ready = ::poll(polled.data(), polled.size(), milliseconds_until(deadline));
    if (polled[1].revents != 0 && ready > 0) throw NetworkStopped("stopped");
    if (polled[0].revents != 0 && ready > 0) return;
    if (ready < 0 && errno != EINTR) fail_errno("poll");
    if (now_ns() >= deadline) {
      fail_network(what, ": no answer within ", static_cast<double>(limit.count()) * 1e-9, " s");
    }
  }
}

void Network::sleep(Nanoseconds time) const {
  const std::int64_t deadline = now_ns() + time.count();
  do {
    pollfd polled = {limits_.stop_fd, POLLIN, 0};
    if (::poll(&polled, 1, milliseconds_until(deadline)) > 0) throw NetworkStopped("stopped");
  } while (now_ns() < deadline);
}

std::unique_ptr<ByteStream> Network::connect(const Url& url) {
  const std::int64_t started = now_ns();
  const bool first = !answered_;
  const std::vector<Address>& addresses = addresses_of(url);
  Nanoseconds limit = limits_.connect;
  if (first) limit = limits_.first_answer - Nanoseconds(now_ns() - started);
  UniqueFd socket = connect_to(addresses, url, limit);
  answered_ = true;
  if (url.https) return start_tls(std::move(socket), url, limits_);
  return std::make_unique<PlainStream>(std::move(socket), url, limits_);
}

const std::vector<Network::Address>& Network::addresses_of(const Url& url) {
  const std::string key = url.host + ':' + url.port;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = addresses_.find(key); found != addresses_.end()) return found->second;
  }
  std::vector<Address> found = look_up(url, answered_ ? limits_.connect : limits_.first_answer);
  const std::lock_guard lock(mutex_);
  return addresses_.try_emplace(key, std::move(found)).first->second;  // entries never change
}

std::vector<Network::Address> Network::look_up(const Url& url, Nanoseconds limit) const {
  const auto is_number = [&] {
    AddressList list;
    return ask_for_addresses(url, AI_NUMERICHOST, list) == 0;
  };
  // Before the first answer this process has one thread, so it may fork.
  if (!answered_ && !is_number()) return look_up_in_child(url, limit);
  AddressList list;
  if (const int error = ask_for_addresses(url, AI_ADDRCONFIG, list); error != 0) {
    fail_network(url.host, ": its address is not found: ", ::gai_strerror(error));
  }
  return first_addresses(list.first);
}

std::vector<Network::Address> Network::first_addresses(const addrinfo* list) {
  std::vector<Address> addresses;
  for (const addrinfo* at = list; at != nullptr && addresses.size() < kMaxAddresses;
       at = at->ai_next) {
    Address address;
    address.size = std::min<socklen_t>(at->ai_addrlen, sizeof(address.bytes));
    std::memcpy(&address.bytes, at->ai_addr, address.size);
    addresses.push_back(address);
  }
  return addresses;
}

// The system's resolver waits ten seconds or more for name servers that do not respond, and cannot
// be interrupted; a child process can be killed.
std::vector<Network::Address> Network::look_up_in_child(const Url& url, Nanoseconds limit) const {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail_errno("pipe");
  UniqueFd from(ends[0]), to(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) fail_errno("fork");
  if (child == 0) {
    AddressList list;
    const int error = ask_for_addresses(url, AI_ADDRCONFIG, list);
    ssize_t written = ::write(to.get(), &error, sizeof(error));
    for (const Address& address : first_addresses(list.first)) {
      written = ::write(to.get(), &address, sizeof(address));
    }
    ::_exit(written > 0 ? 0 : 1);
  }
  to.reset();
  struct Reaper {
    pid_t child;
    ~Reaper() {
      ::kill(child, SIGKILL);
      while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
  } const reaper{child};
  const auto read_whole = [&](void* into, std::size_t size) {
    wait_for_socket(from.get(), POLLIN, limits_.stop_fd, limit, "the name server for " + url.host);
    return ::read(from.get(), into, size) == static_cast<ssize_t>(size);
  };
  int error = EAI_FAIL;
  if (!read_whole(&error, sizeof(error)) || error != 0) {
    fail_network(url.host, ": its address is not found: ", ::gai_strerror(error));
  }
  std::vector<Address> addresses;
  for (Address address; read_whole(&address, sizeof(address));) addresses.push_back(address);
  return addresses;
}

// Tries all addresses concurrently: if an IPv6 address is unreachable, the IPv4 address need not
// wait for it.
UniqueFd Network::connect_to(const std::vector<Address>& addresses, const Url& url,
                             Nanoseconds limit) const {
  std::vector<UniqueFd> sockets;
  int error = ENETUNREACH;
  for (const Address& address : addresses) {
    if (UniqueFd fd = start_connecting(address.bytes, address.size, error)) {
      sockets.push_back(std::move(fd));
    }
  }
  const std::int64_t deadline = now_ns() + limit.count();
  while (!sockets.empty()) {
    std::vector<pollfd> polled = {{limits_.stop_fd, POLLIN, 0}};
    for (const UniqueFd& socket : sockets) polled.push_back({socket.get(), POLLOUT, 0});
    const int ready = ::poll(polled.data(), polled.size(), milliseconds_until(deadline));
    if (ready > 0 && polled[0].revents != 0) throw NetworkStopped("stopped");
    for (std::size_t i = sockets.size(); ready > 0 && i-- > 0;) {
      if (polled[i + 1].revents == 0) continue;
      socklen_t size = sizeof(error);
      ::getsockopt(sockets[i].get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error == 0) return std::move(sockets[i]);
      sockets.erase(sockets.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (ready <= 0 && now_ns() >= deadline) {
      error = ETIMEDOUT;
      break;
    }
  }
  fail_network(url.authority(), ": cannot be reached: ", errno_text(error));
}

}  // namespace nvllm::launcher
