// Safetensors checkpoints in folders: every defect is reported in one line.
#include "model/checkpoint/checkpoint.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/testing/test_folder.h"

namespace nvllm::model {
namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;

// The length, the header, and `data_bytes` bytes of data.
std::string safetensors(const std::string& header, std::size_t data_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i) & 0xff);
  file += header;
  for (std::size_t i = 0; i < data_bytes; ++i) file += static_cast<char>(i);
  return file;
}

std::string error_of_file(const std::string& bytes) {
  const TestFolder folder;
  folder.write("config.json", "{}");
  folder.write("model.safetensors", bytes);
  return error_of(folder);
}

// a: F32 [2, 3] in bytes 0..24, b: BF16 [4] in 24..32
const std::string kHeader =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})";

TEST_CASE("one file: names, shapes, encodings, offsets") {
  const TestFolder folder;
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

TEST_CASE("the language model of a multimodal one has the names that it has alone") {
  const auto stored = [](const std::string& name) {
    const TestFolder folder;
    folder.write("config.json", "{}");
    folder.write(
        "model.safetensors",
        safetensors("{\"" + name + R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4));
    const Checkpoint checkpoint = open_checkpoint(folder.path());
    const StoredTensor& tensor = checkpoint.tensors().begin()->second;
    CHECK(tensor.stored_name == name);
    return tensor.name;
  };
  CHECK(stored("language_model.model.norm.weight") == "model.norm.weight");
  CHECK(stored("model.language_model.layers.0.mlp.up_proj.weight") ==
        "model.layers.0.mlp.up_proj.weight");
  CHECK(stored("language_model.lm_head.weight") == "lm_head.weight");
  CHECK(stored("vision_tower.language_model.model.x") == "vision_tower.language_model.model.x");
  CHECK(stored("model.norm.weight") == "model.norm.weight");
}

TEST_CASE("a header that lies") {
  CHECK(error_of_file("") ==
        "DIR/model.safetensors: not a safetensors file: expected 8 bytes at least, found 0");
  CHECK(error_of_file("\x08\0\0"s) ==
        "DIR/model.safetensors: not a safetensors file: expected 8 bytes at least, found 3");
  CHECK(
      error_of_file("\x09\0\0\0\0\0\0\0{}      "s) ==
      "DIR/model.safetensors: its first 8 bytes say that the header has 9 bytes; the file has 16: "
      "not a safetensors file, or truncated");
  CHECK(error_of_file("\xff\xff\xff\xff\xff\xff\xff\xff{}"s) ==
        "DIR/model.safetensors: its first 8 bytes say that the header has 18446744073709551615 "
        "bytes; the file has 10: not a safetensors file, or truncated");
  CHECK(error_of_file(safetensors("{\"a\":", 0)) ==
        "DIR/model.safetensors: header: not JSON in UTF-8 from byte 6 of 5 on");
  CHECK(error_of_file(safetensors("{\"\xff\":1}", 0)) ==
        "DIR/model.safetensors: header: not JSON in UTF-8 from byte 3 of 7 on");
  CHECK(error_of_file(safetensors("[]", 0)) ==
        "DIR/model.safetensors: header: expected a JSON object, found array");
  CHECK(error_of_file(safetensors(R"({"a":1e999})", 0)) ==
        "DIR/model.safetensors: header: not JSON: a number that is out of range");
  CHECK(error_of_file(safetensors(R"({"a":)" + std::string(1'000'000, '['), 0)) ==
        "DIR/model.safetensors: header: nested more than 16 deep");
}

TEST_CASE("a tensor that is described wrongly") {
  const auto error_of_tensor = [](const std::string& fields, std::size_t data_bytes = 8) {
    return error_of_file(safetensors("{\"a\":{" + fields + "}}", data_bytes));
  };
  const std::string where = "DIR/model.safetensors: tensor a: ";
  CHECK(error_of_file(safetensors(R"({"a":1})", 0)) == where + "expected an object, found number");
  CHECK(error_of_tensor(R"("shape":[2],"data_offsets":[0,8])") == where + "no \"dtype\"");
  CHECK(error_of_tensor(R"("dtype":"I8","shape":[8],"data_offsets":[0,8])") ==
        where + "expected dtype F32, F16, BF16, F8_E4M3, I32, I64 or U8, found I8");
  CHECK(error_of_tensor(R"("dtype":"F32","data_offsets":[0,8])") == where + "no \"shape\"");
  CHECK(error_of_tensor(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])") ==
        where + "\"shape\": expected a list of whole numbers, found [-2]");
  CHECK(error_of_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[8])") ==
        where + "\"data_offsets\": expected [begin, end], found [8]");
  CHECK(error_of_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])") ==
        where + "\"data_offsets\": expected [begin, end], found [8, 0]");
  CHECK(error_of_tensor(R"("dtype":"F32","shape":[3],"data_offsets":[0,12])") ==
        where +
            "ends at byte 12 of the data, which has 8: the file is truncated or its header wrong");
  CHECK(error_of_tensor(R"("dtype":"F32","shape":[4],"data_offsets":[0,8])") ==
        where + "F32 [4]: expected 16 bytes, found 8");
  CHECK(error_of_tensor(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8])") ==
        where + "shape [4294967296, 4294967296] is too large to exist");
  CHECK(error_of_tensor(R"("dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8])") ==
        "DIR/model.safetensors: header: the name \"shape\" is there twice");
}

TEST_CASE("every byte of the data belongs to one tensor") {
  const auto error_of_two = [](const std::string& a, const std::string& b, std::size_t bytes) {
    return error_of_file(safetensors(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)" + a +
                                         R"(},"b":{"dtype":"F32","shape":[2],"data_offsets":)" + b +
                                         "}}",
                                     bytes));
  };
  CHECK(error_of_two("[8,16]", "[0,8]", 16) == "no error");
  CHECK(error_of_two("[0,8]", "[4,12]", 12) ==
        "DIR/model.safetensors: tensor b: begins at byte 4 of the data, inside the one before, "
        "which ends at 8");
  CHECK(error_of_two("[0,8]", "[0,8]", 8) ==
        "DIR/model.safetensors: tensor b: begins at byte 0 of the data, inside the one before, "
        "which ends at 8");
  CHECK(error_of_two("[0,8]", "[12,20]", 20) ==
        "DIR/model.safetensors: tensor b: begins at byte 12 of the data, after a hole from the end "
        "of the one before at 8");
  CHECK(error_of_two("[0,8]", "[8,16]", 17) ==
        "DIR/model.safetensors: the tensors end at byte 132 of the file, which has 133");
  CHECK(error_of_file(safetensors(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                                  R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                                  4)) ==
        "DIR/model.safetensors: header: the name \"a\" is there twice");
}

TEST_CASE("an error is short, whatever the header holds") {
  std::string shape = "[1";
  for (int i = 0; i < 10000; ++i) shape += ",1";
  const std::string name(10000, 'n');
  CHECK(error_of_file(safetensors("{\"" + name + R"(":{"dtype":"F32","shape":)" + shape +
                                      R"(],"data_offsets":[0,8]}})",
                                  8))
            .ends_with("...: F32 [of 10001 dimensions]: expected 4 bytes, found 8"));
  CHECK(error_of_file(safetensors("{\"" + name + "\":1,\"" + name + "\":1}", 0)).size() < 300);
}

TEST_CASE("empty tensors and scalars are tensors") {
  const TestFolder folder;
  folder.write("config.json", "{}");
  folder.write("model.safetensors",
               safetensors(R"({"empty":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]},)"
                           R"("scalar":{"dtype":"F16","shape":[],"data_offsets":[0,2]}})",
                           2));
  const Checkpoint checkpoint = open_checkpoint(folder.path());
  CHECK(checkpoint.get("empty", {0, 7}).bytes == 0);
  CHECK(checkpoint.get("scalar", {}).row_bytes() == 2);
}

// A file for each name, with a tensor of that name; an index that says `map`.
TestFolder sharded(const std::string& map, const std::vector<std::string>& names = {"a", "b"}) {
  TestFolder folder;
  folder.write("config.json", "{}");
  folder.write("model.safetensors.index.json", R"({"metadata":{},"weight_map":)" + map + "}");
  for (const std::string& name : names) {
    folder.write(
        name + ".safetensors",
        safetensors("{\"" + name + R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8));
  }
  return folder;
}

TEST_CASE("files with an index") {
  const TestFolder folder = sharded(R"({"b":"b.safetensors","a":"a.safetensors"})");
  const Checkpoint checkpoint = open_checkpoint(folder.path());
  CHECK(checkpoint.describe() == "2 safetensors files in " + folder.path());
  CHECK(checkpoint.files()[checkpoint.get("a", {2}).file].path() == folder.path("a.safetensors"));
  CHECK(checkpoint.files()[checkpoint.get("b", {2}).file].path() == folder.path("b.safetensors"));
}

// Their headers are read at the same time.
TEST_CASE("more files than threads read") {
  std::vector<std::string> names;
  std::string map;
  for (int i = 10; i < 60; ++i) {
    names.push_back(std::to_string(i));
    map += str(map.empty() ? "{" : ",", '"', i, "\":\"", i, ".safetensors\"");
  }
  const TestFolder folder = sharded(map + "}", names);
  const Checkpoint checkpoint = open_checkpoint(folder.path());
  CHECK(checkpoint.files().size() == names.size());
  CHECK(checkpoint.tensors().size() == names.size());
  for (const std::string& name : names) {
    const StoredTensor& tensor = checkpoint.get(name, {2});
    CHECK(checkpoint.files()[tensor.file].path() == folder.path(name + ".safetensors"));
  }
  const auto damage = [&](const std::string& name) {
    folder.write(name + ".safetensors", "short");
    return error_of(folder);
  };
  const std::string what =
      ".safetensors: not a safetensors file: expected 8 bytes at least, found 5";
  CHECK(damage("57") == "DIR/57" + what);
  CHECK(damage("23") == "DIR/23" + what);
  CHECK(damage("35") == "DIR/23" + what);  // the first of them is named
}

TEST_CASE("an index that is wrong") {
  const std::string where = "DIR/model.safetensors.index.json: ";
  CHECK(error_of(sharded("{}")) == where + "\"weight_map\" is empty");
  CHECK(error_of(sharded("[]")) == where + "no object \"weight_map\"");
  CHECK(error_of(sharded(R"({"a":7})")) ==
        where + "tensor a: expected the name of a file beside the index, found 7");
  CHECK(error_of(sharded(R"({"a":"../a.safetensors"})")) ==
        where +
            "tensor a: expected the name of a file beside the index, found \"../a.safetensors\"");
  CHECK(error_of(sharded(R"({"a":"a.safetensors","b":"b.safetensors","c":"c.safetensors"})")) ==
        where + "tensor c: DIR/c.safetensors: No such file or directory (ENOENT)");
  CHECK(error_of(sharded(R"({"a":"a.safetensors","b":"b.safetensors","c":"b.safetensors"})")) ==
        where + "tensor c should be in b.safetensors, which does not have it");
  CHECK(error_of(sharded(R"({"a":"a.safetensors","c":"b.safetensors"})")) ==
        where + "tensor b is in b.safetensors; the index says nothing of it");
  CHECK(error_of(sharded(R"({"a":"b.safetensors","b":"a.safetensors"})")) ==
        where + "tensor a is in a.safetensors; the index says b.safetensors");
  CHECK(error_of(sharded(R"({"a":"a.safetensors","a":"b.safetensors"})")) ==
        where + "the name \"a\" is there twice");
}

TEST_CASE("a tensor in two files") {
  const TestFolder folder = sharded(R"({"a":"a.safetensors","b":"b.safetensors"})");
  fs::copy_file(folder.path("a.safetensors"), folder.path("b.safetensors"),
                fs::copy_options::overwrite_existing);
  CHECK(error_of(folder) ==
        "DIR/model.safetensors.index.json: tensor a is in b.safetensors; the index says "
        "a.safetensors");
}

TEST_CASE("folders that hold no checkpoint") {
  const TestFolder folder;
  CHECK(error_of(folder, "none") == "DIR/none: no such folder or file");
  CHECK(error_of(folder) ==
        "DIR: expected model.safetensors, model.safetensors.index.json or a .gguf file, found none "
        "of them");
  folder.write("config.json", "{}");
  CHECK(error_of(folder).ends_with(
      "found none of them; for random weights of its config.json pass --load-format dummy"));
  fs::remove(folder.path("config.json"));
  folder.write("pytorch_model.bin", "x");
  CHECK(error_of(folder, "pytorch_model.bin") ==
        "DIR/pytorch_model.bin: expected a folder or a .gguf file");
  folder.write("other.safetensors", safetensors(kHeader, 32));
  CHECK(error_of(folder) == "DIR/config.json: No such file or directory (ENOENT)");
  folder.write("config.json", "{}");
  CHECK(error_of(folder) ==
        "DIR: neither model.safetensors nor model.safetensors.index.json is there");
  folder.write("model.gguf", "GGUF");
  CHECK(error_of(folder) ==
        "DIR: both other.safetensors and model.gguf are there; pass the path of the .gguf file, or "
        "move it away");
}

TEST_CASE("files that are none") {
  const TestFolder folder;
  folder.write("config.json", "{}");
  fs::create_directory(folder.path("model.safetensors"));
  CHECK(error_of(folder) == "DIR/model.safetensors: expected a file, found something else");
  fs::remove(folder.path("model.safetensors"));
  REQUIRE(::mkfifo(folder.path("model.safetensors").c_str(), 0600) == 0);
  CHECK(error_of(folder) == "DIR/model.safetensors: expected a file, found something else");
}

TEST_CASE("asking for a tensor that is not there, or has another shape") {
  const TestFolder folder;
  folder.write("config.json", "{}");
  folder.write("model.safetensors", safetensors(kHeader, 32));
  const Checkpoint checkpoint = open_checkpoint(folder.path());
  CHECK(checkpoint.find("c") == nullptr);
  const std::string where = folder.path("model.safetensors") + ": ";
  CHECK_THROWS_WITH_AS((void)checkpoint.get("c", {5, 6}),
                       (where + "expected a tensor c [5, 6], found none among 2").c_str(), Error);
  CHECK_THROWS_WITH_AS((void)checkpoint.get("a", {3, 2}),
                       (where + "tensor a: expected shape [3, 2], found [2, 3]").c_str(), Error);
}

}  // namespace
}  // namespace nvllm::model
