// Any bytes are either a message or an Error; a message that was read is written identically.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "ipc/archive.h"
#include "ipc/registry.h"

namespace nvllm::ipc {
namespace {

struct Node {
  std::string name;
  std::vector<std::uint16_t> numbers;
  std::optional<bool> flag;
  std::vector<Node> children;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(name, numbers, flag, children);
  }
};

using Everything = std::tuple<Node, std::map<std::string, std::pair<int, double>>,
                              std::vector<bool>, std::array<std::optional<std::string>, 2>>;

void read_everything(std::span<const std::byte> bytes) {
  ArchiveReader in(bytes);
  const auto value = in.get<Everything>();
  in.finish();
  ArchiveWriter out;
  out(value);
  ArchiveReader again(out.bytes());
  again.get<Everything>();
  again.finish();
}

// Dispatches bytes from rank 0 on a worker, which must do no more than reply.
void dispatch(std::span<const std::byte> bytes) {
  Registry registry;
  registry.bind("echo", [](const std::string& text, std::vector<int> numbers) {
    return std::pair(text, std::move(numbers));
  });
  ArchiveReader message(bytes);
  ArchiveWriter reply;
  const bool good = registry.dispatch(message, reply);
  ArchiveReader in(reply.bytes());
  if (in.get<bool>() != good) std::abort();
}

}  // namespace
}  // namespace nvllm::ipc

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  for (const auto target : {nvllm::ipc::read_everything, nvllm::ipc::dispatch}) {
    try {
      target(bytes);
    } catch (const nvllm::Error&) {  // the bytes are malformed
    }
  }
  return 0;
}
