#include "launcher/serve/http/http_request.h"

#include <strings.h>

namespace nvllm::launcher {

const std::string* HttpRequest::header(std::string_view name) const {
  for (const HttpHeader& header : headers) {
    if (header.name.size() == name.size() &&
        ::strncasecmp(header.name.data(), name.data(), name.size()) == 0) {
      return &header.value;
    }
  }
  return nullptr;
}

}  // namespace nvllm::launcher
