#include "launcher/serve/page/page.h"

#include <cstddef>

namespace nvllm::launcher {
namespace {

#include "launcher/serve/page/page.inc"  // made by embed.sh

template <std::size_t size>
std::string_view view(const unsigned char (&bytes)[size]) {
  return {reinterpret_cast<const char*>(bytes), size};
}

}  // namespace

const ChatPage& chat_page() {
  static const ChatPage page{view(kHtml), view(kGzip), kEtag, kPolicy};
  return page;
}

}  // namespace nvllm::launcher
