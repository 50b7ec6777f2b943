// Any bytes on a connection. The first byte determines how they are split, which must not matter:
// the requests are the same. Errors after them may be detected at different positions.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <string_view>

#include "base/text.h"
#include "launcher/serve/http/request_reader.h"

namespace {

using namespace nvllm::launcher;

constexpr std::size_t kMaxHeaderBytes = 512, kMaxBodyBytes = 1024;

void require(bool condition) {
  if (!condition) std::abort();
}

// All requests found in the bytes, when split in this way.
template <typename NextSize>
std::string parse(std::string_view bytes, NextSize next_size) {
  std::string said, buffer;
  std::optional<RequestReader> reader;
  while (!bytes.empty()) {
    const std::size_t size = std::min<std::size_t>(next_size(), bytes.size());
    buffer += bytes.substr(0, size);
    bytes.remove_prefix(size);
    while (!buffer.empty()) {
      if (!reader) reader.emplace(kMaxHeaderBytes, kMaxBodyBytes);
      const std::size_t consumed = reader->feed(buffer);
      require(consumed <= buffer.size() && reader->started());
      buffer.erase(0, consumed);
      if (reader->failed_status() != 0) {
        require(!reader->failure().empty());
        return said;
      }
      if (!reader->done()) break;
      said += nvllm::str(reader->keep_alive(), reader->is_http_1_0());
      const HttpRequest request = reader->take();
      require(request.body.size() <= kMaxBodyBytes);
      said += nvllm::str(request.method, ' ', request.path, '?', request.query, '\n');
      for (const HttpHeader& header : request.headers) {
        said += nvllm::str(header.name, ": ", header.value, '\n');
      }
      said += nvllm::str(request.body, "\n.\n");
      reader.reset();
    }
    // The bytes left for the next call are bounded.
    require(buffer.size() <= kMaxHeaderBytes + size);
  }
  return said;
}

// Whether both ways found the same requests. If one failed, at a limit or at a byte that the other
// has not reached, it may have found fewer.
bool agree(const std::string& one, const std::string& other) {
  return one.starts_with(other) || other.starts_with(one);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::minstd_rand random(data[0] + 1U);
  const std::string by_bytes = parse(bytes, [] { return 1; });
  require(agree(by_bytes, parse(bytes, [&] { return 1 + random() % 64; })));
  require(agree(by_bytes, parse(bytes, [&] { return bytes.size(); })));
  return 0;
}
