// Listening sockets: TCP or unix, with errors that name the process in the way.
#pragma once

#include <cstdint>
#include <string>

#include "base/unique_fd.h"

namespace nvllm::launcher {

struct ListenSocket {
  UniqueFd fd;          // non-blocking
  std::string address;  // "127.0.0.1:8000", "[::1]:8000", "unix:/run/nvllm.sock"
  std::uint16_t port = 0;
};

// Throws an Error that names the address, and the process that listens there, if known. port 0: any
// free port.
ListenSocket listen_tcp(const std::string& host, std::uint16_t port);

// A socket file without a listening process is replaced; any other file is an Error.
ListenSocket listen_unix(const std::string& path);

// "process 4711 (python3)"; empty if unknown. port: of a listening TCP socket.
std::string owner_of_port(std::uint16_t port);

}  // namespace nvllm::launcher
