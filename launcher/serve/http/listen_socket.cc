#include "launcher/serve/http/listen_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <vector>

#include "base/error.h"

namespace nvllm::launcher {
namespace {

namespace fs = std::filesystem;

constexpr int kBacklog = 4096;

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

AddressList resolve(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    fail("--host ", host, ": ", ::gai_strerror(error),
         "; pass an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all of them");
  }
  return {found, ::freeaddrinfo};
}

std::uint16_t bound_port(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    fail_errno("getsockname");
  }
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

std::string shown_address(const std::string& host, std::uint16_t port) {
  const bool six = host.find(':') != std::string::npos;
  return six ? str('[', host, "]:", port) : str(host, ':', port);
}

// Reports the failure at the address, with its fix.
[[noreturn]] void fail_bind(const std::string& host, std::uint16_t port, int error) {
  const std::string address = shown_address(host, port);
  if (error == EADDRINUSE) {
    const std::string owner = owner_of_port(port);
    fail("cannot listen on ", address, ": ", owner.empty() ? "another program" : owner,
         " listens there; end it, or pass another --port (0: any that is free)");
  }
  if (error == EACCES) {
    fail("cannot listen on ", address, ": ports below 1024 are for root; pass --port 8000");
  }
  if (error == EADDRNOTAVAIL) {
    fail("cannot listen on ", address,
         ": this machine has no such address; pass --host 127.0.0.1, "
         "or 0.0.0.0 for all of its addresses");
  }
  fail("cannot listen on ", address, ": ", errno_text(error));
}

// The inode of the socket that listens on the port, from a table in /proc/net; empty: none.
std::string listening_inode(const char* table, std::uint16_t port) {
  std::ifstream lines(table);
  std::string line;
  std::getline(lines, line);  // the heading
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::string number, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
    fields >> number >> local >> remote >> state >> queues >> timer >> retransmits >> uid >>
        timeout >> inode;
    constexpr const char* kListening = "0A";
    const std::size_t colon = local.rfind(':');
    if (state != kListening || colon == std::string::npos) continue;
    unsigned found = 0;
    std::from_chars(local.data() + colon + 1, local.data() + local.size(), found, 16);
    if (found == port) return inode;
  }
  return "";
}

bool process_has_socket(const fs::path& process, const std::string& link) {
  std::error_code error;
  for (fs::directory_iterator file(process / "fd", error), end; !error && file != end;
       file.increment(error)) {
    std::error_code unreadable;
    if (fs::read_symlink(file->path(), unreadable) == link) return true;
  }
  return false;
}

}  // namespace

std::string owner_of_port(std::uint16_t port) {
  std::string inode = listening_inode("/proc/net/tcp", port);
  if (inode.empty()) inode = listening_inode("/proc/net/tcp6", port);
  if (inode.empty()) return "";
  const std::string link = "socket:[" + inode + "]";
  std::error_code error;
  for (fs::directory_iterator process("/proc", error), end; !error && process != end;
       process.increment(error)) {
    const std::string pid = process->path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    if (!process_has_socket(process->path(), link)) continue;
    std::string name;
    std::getline(std::ifstream(process->path() / "comm"), name);
    return str("process ", pid, " (", name, ")");
  }
  return "";
}

ListenSocket listen_tcp(const std::string& host, std::uint16_t port) {
  const AddressList addresses = resolve(host, port);
  int error = 0;
  for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
    UniqueFd fd(::socket(each->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd) {
      error = errno;
      continue;
    }
    const int on = 1;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(fd.get(), each->ai_addr, each->ai_addrlen) != 0 ||
        ::listen(fd.get(), kBacklog) != 0) {
      error = errno;
      continue;
    }
    const std::uint16_t bound = bound_port(fd.get());
    return {std::move(fd), shown_address(host, bound), bound};
  }
  fail_bind(host, port, error);
}

ListenSocket listen_unix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    fail("--uds ", path, ": is ", path.size(), " bytes long; a socket's path has at most ",
         sizeof address.sun_path - 1);
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const auto* const name = reinterpret_cast<const sockaddr*>(&address);

  struct stat found {};
  if (::lstat(path.c_str(), &found) == 0) {
    if (!S_ISSOCK(found.st_mode)) fail("--uds ", path, ": a file is there; pass another path");
    const UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(probe.get(), name, sizeof address) == 0) {
      fail("--uds ", path, ": another process listens there; end it, or pass another path");
    }
    ::unlink(path.c_str());
  }
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd || ::bind(fd.get(), name, sizeof address) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    fail_errno("--uds ", path, ": cannot listen there");
  }
  return {std::move(fd), "unix:" + path, 0};
}

}  // namespace nvllm::launcher
