// Checkpoints of safetensors in folders: whatever is wrong with one is said in one line.
#include "model/checkpoint.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"

namespace nvllm::model {
namespace {

namespace fs = std::filesystem;

// A folder of files that goes away with the test.
class Folder {
 public:
  Folder() {
    std::string name = fs::temp_directory_path() / "checkpoint_test_XXXXXX";
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string path(const std::string& name = "") const {
    return name.empty() ? path_ : path_ + "/" + name;
  }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
  }

 private:
  std::string path_;
};

// The length, the header, and so many bytes of data.
std::string safetensors(const std::string& header, std::size_t data_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i) & 0xff);
  file += header;
  for (std::size_t i = 0; i < data_bytes; ++i) file += static_cast<char>(i);
  return file;
}

// What opening the folder says, with its path taken out.
std::string error_of(const Folder& folder, const std::string& name = "") {
  try {
    (void)open_checkpoint(folder.path(name));
  } catch (const Error& error) {
    std::string text = error.what();
    for (std::size_t at; (at = text.find(folder.path())) != std::string::npos;) {
      text.replace(at, folder.path().size(), "DIR");
    }
    return text;
  }
  return "no error";
}

std::string error_of_file(const std::string& bytes) {
  const Folder folder;
  folder.write("config.json", "{}");
  folder.write("model.safetensors", bytes);
  return error_of(folder);
}

// a: F32 [2, 3] in bytes 0..24, b: BF16 [4] in 24..32
const std::string kHeader =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})";

std::string one_tensor(const std::string& fields) {
  return R"({"a":{)" + fields + "}}";
}

TEST_CASE("one file: names, shapes, encodings, offsets") {
  const Folder folder;
  folder.write("config.json", R"({"hidden_size": 3})");
  folder.write("model.safetensors", safetensors(kHeader, 32));
  const Checkpoint checkpoint = open_checkpoint(folder.path());
  CHECK(checkpoint.config_json() == R"({"hidden_size": 3})");
  CHECK(checkpoint.bytes() == 32);
  CHECK(checkpoint.describe() == folder.path("model.safetensors"));
  REQUIRE(checkpoint.tensors().size() == 2);
  const StoredTensor& a = checkpoint.get("a", {2, 3});
  CHECK(a.encoding == Encoding::f32);
  CHECK(a.offset == 8 + kHeader.size());
  CHECK(a.bytes == 24);
  CHECK(a.row_bytes() == 12);
  CHECK(a.stored_row(1) == 1);
  const StoredTensor& b = checkpoint.get("b", {4});
  CHECK(b.encoding == Encoding::bf16);
  CHECK(b.row_bytes() == 2);
  char bytes[8];
  REQUIRE(::pread(checkpoint.files()[b.file].fd(), bytes, 8, static_cast<off_t>(b.offset)) == 8);
  CHECK(bytes[0] == 24);
}

}  // namespace
}  // namespace nvllm::model
