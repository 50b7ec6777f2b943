#include "launcher/serve/http/listen_socket.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "model/testing/test_folder.h"
#include "testing/error_of.h"

namespace nvllm::launcher {
namespace {

using testing::error_of;

bool connects(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  REQUIRE(path.size() < sizeof address.sun_path);
  std::memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

TEST_CASE("a unix socket listens at its path, and is replaced when nobody listens any more") {
  const model::TestFolder folder;
  const std::string path = folder.path("socket");
  {
    const ListenSocket listening = listen_unix(path);
    CHECK(listening.address == "unix:" + path);
    CHECK(std::filesystem::is_socket(path));
    CHECK(connects(path));
    CHECK(error_of([&] { listen_unix(path); }) ==
          "--uds " + path + ": another process listens there; end it, or pass another path");
  }
  CHECK_FALSE(connects(path));
  const ListenSocket again = listen_unix(path);
  CHECK(connects(path));
}

TEST_CASE("a path that another file has, or that is too long, is refused") {
  const model::TestFolder folder;
  folder.write("file", "text");
  const std::string path = folder.path("file");
  CHECK(error_of([&] { listen_unix(path); }) ==
        "--uds " + path + ": a file is there; pass another path");
  CHECK(std::filesystem::file_size(path) == 4);
  CHECK(error_of([] {
          listen_unix("/tmp/" + std::string(103, 'x'));
        }).ends_with("is 108 bytes long; a socket's path has at most 107"));
  CHECK(error_of([&] {
          listen_unix(folder.path("none/socket"));
        }).ends_with("cannot listen there: No such file or directory (ENOENT)"));
}

}  // namespace
}  // namespace nvllm::launcher
