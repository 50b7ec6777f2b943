#include "launcher/supervise/model_hash.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <filesystem>

#include "base/error.h"
#include "base/system_files.h"
#include "launcher/hub/sha256.h"

namespace nvllm::launcher {
namespace {

// Weights of models that were trained separately differ everywhere, so samples of the files
// identify them.
void add_samples(const model::CheckpointFile& file, Sha256& hash) {
  constexpr std::uint64_t kSamples = 32, kBytes = 4096;
  hash.add(str(file.size(), ' '));
  std::array<char, kBytes> bytes;
  for (std::uint64_t i = 0; i < kSamples; ++i) {
    const std::uint64_t at = file.size() / kSamples * i;
    const ssize_t got = ::pread(file.fd(), bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (got > 0) hash.add({bytes.data(), static_cast<std::size_t>(got)});
  }
}

}  // namespace

std::string model_hash(const runtime::OpenModel& model) {
  namespace fs = std::filesystem;
  Sha256 hash;
  if (model.checkpoint) {
    for (const model::CheckpointFile& file : model.checkpoint->files()) add_samples(file, hash);
  }
  const fs::path path(model.path);
  const fs::path folder = fs::is_directory(path) ? path : path.parent_path();
  if (!fs::is_directory(path) && path.extension() == ".json") hash.add(system_text(path.string()));
  for (const char* const name :
       {"config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}) {
    hash.add(str(name, ' ', sha256_of(system_text((folder / name).string()))));
  }
  return hash.finish();
}

}  // namespace nvllm::launcher
