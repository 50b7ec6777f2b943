// Any bytes as a GGUF file with a vocabulary and a chat template: rejected with an Error, or
// usable.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "base/unique_fd.h"
#include "launcher/session/text_model.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

// One file for the lifetime of the process, since a model is opened by name.
class InputFile {
 public:
  InputFile() : fd_(::mkstemps(path_.data(), 5)) { require(static_cast<bool>(fd_)); }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile() { ::unlink(path_.c_str()); }

  const std::string& path() const { return path_; }
  void write(const std::uint8_t* data, std::size_t size) const {
    require(::ftruncate(fd_.get(), 0) == 0);
    require(::pwrite(fd_.get(), data, size, 0) == static_cast<ssize_t>(size));
  }

 private:
  std::string path_ = "/tmp/text_model_fuzz_XXXXXX.gguf";
  nvllm::UniqueFd fd_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const InputFile file;
  file.write(data, size);
  try {
    const auto model = nvllm::launcher::TextModel::open(file.path());
    const auto ids = model.encode_prompt("Hello, <s>wor\u00E9ld \u2581 12\n\xFF");
    for (const auto id : ids) require(id < model.tokenizer().end_id());
    (void)model.tokenizer().decode(ids, true);
  } catch (const nvllm::Error&) {
  }
  return 0;
}
