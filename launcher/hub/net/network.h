// Network: connections to the servers of URLs, with TLS for https. Every wait has a time limit, and
// all waits end when a signal arrives.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/unique_fd.h"

struct addrinfo;

namespace nvllm::launcher {

// An http or https address, in its parts.
struct Url {
  bool https = false;
  std::string host;    // without the brackets of an IPv6 address
  std::string port;    // "443"
  std::string target;  // path and query, "/api/models/gpt2?blobs=true"

  std::string authority() const;  // "huggingface.co", "127.0.0.1:8000": for the header Host
  std::string origin() const;     // "https://huggingface.co"
  std::string text() const { return origin() + target; }
};

// Throws an Error that names the URL.
Url parse_url(std::string_view text);

// Resolves a response's Location relative to `base`. Throws an Error if it cannot be followed, for
// example if it leads from https to http.
Url redirected(const Url& base, std::string_view location);

// A connection failed or was lost: another attempt may succeed.
class NetworkError : public Error {
 public:
  using Error::Error;
};

// The stop descriptor became readable.
class NetworkStopped : public Error {
 public:
  using Error::Error;
};

struct NetworkLimits {
  int stop_fd = -1;  // all waits end when it is readable; -1: none
  // Until the first connection succeeds: after that, a network is known to exist.
  Nanoseconds first_answer = std::chrono::milliseconds(900);
  Nanoseconds connect = std::chrono::seconds(10);
  Nanoseconds silence = std::chrono::seconds(30);  // maximum time without any byte in either
                                                   // direction
};

// One connection. Used by one thread at a time. All functions throw NetworkError or NetworkStopped.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  virtual std::size_t read(char* to, std::size_t size) = 0;  // waits; 0: the peer has closed it
  virtual void write(std::string_view bytes) = 0;            // all of them
};

// Thread-safe.
class Network {
 public:
  explicit Network(const NetworkLimits& limits) : limits_(limits) {}

  // Connects, with TLS for https. Throws NetworkError, or an Error if the server is not trusted.
  std::unique_ptr<ByteStream> connect(const Url& url);
  // Waits, unless stopped.
  void sleep(Nanoseconds time) const;
  void fail_if_stopped() const { sleep(Nanoseconds{0}); }
  // Whether any connection has succeeded.
  bool answered() const { return answered_; }

 private:
  struct Address {
    sockaddr_storage bytes{};
    socklen_t size = 0;
  };
  const std::vector<Address>& addresses_of(const Url& url);
  static std::vector<Address> first_addresses(const addrinfo* list);
  std::vector<Address> look_up(const Url& url, Nanoseconds limit) const;
  std::vector<Address> look_up_in_child(const Url& url, Nanoseconds limit) const;
  UniqueFd connect_to(const std::vector<Address>& addresses, const Url& url,
                      Nanoseconds limit) const;

  const NetworkLimits limits_;
  std::atomic<bool> answered_ = false;
  std::mutex mutex_;
  std::map<std::string, std::vector<Address>> addresses_;  // by "host:port"; guarded by mutex_
};

// Waits until the descriptor is ready for POLLIN or POLLOUT. what: for the error, "huggingface.co".
void wait_for_socket(int fd, short events, int stop_fd, Nanoseconds limit, std::string_view what);

// tls_client.cc: TLS over a connected socket, which it owns. The certificate must be valid for the
// host and issued by an authority that this system trusts. Throws an Error that describes a failed
// check.
std::unique_ptr<ByteStream> start_tls(UniqueFd socket, const Url& url, const NetworkLimits& limits);

}  // namespace nvllm::launcher
