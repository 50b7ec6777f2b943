#include "launcher/hub/model_files.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "model/testing/test_folder.h"
#include "testing/error_of.h"

namespace nvllm::launcher {
namespace {

using model::TestFolder;
using testing::error_of;
using testing::has;
using Names = std::vector<std::string>;

HubName gguf(const std::string& quantization) {
  return {.repository = "a/b", .quantization = quantization};
}

const Names kFolder = {"README.md",
                       "config.json",
                       "generation_config.json",
                       "model.safetensors",
                       "original/consolidated.00.pth",
                       "pytorch_model.bin",
                       "tokenizer.json",
                       "tokenizer_config.json",
                       "chat_template.jinja",
                       "additional_chat_templates/tool_use.jinja",
                       "additional_chat_templates/rag.jinja",
                       "onnx/config.json",
                       "model.fp16.safetensors"};

TEST_CASE("of a folder in Hugging Face's form what the model needs is chosen, and no more") {
  const Names described = {"config.json",         "generation_config.json",
                           "tokenizer.json",      "tokenizer_config.json",
                           "chat_template.jinja", "additional_chat_templates/tool_use.jinja"};
  Names all = described;
  all.insert(all.begin(), "model.safetensors");
  CHECK(choose_files({.repository = "a/b"}, kFolder, true).names == all);
  CHECK(choose_files({.repository = "a/b"}, kFolder, false).names == described);
}

TEST_CASE("with an index the index says which safetensors are needed") {
  const ModelFiles files =
      choose_files({.repository = "a/b"},
                   {"config.json", kIndexName, "model-00001-of-00002.safetensors",
                    "model-00002-of-00002.safetensors", "consolidated.safetensors"},
                   true);
  CHECK(files.index);
  CHECK(files.names == Names{kIndexName, "config.json"});
  CHECK(files_of_index(R"({"weight_map": {"x": "b.safetensors", "y": "a.safetensors",
                           "z": "a.safetensors"}})") == Names{"a.safetensors", "b.safetensors"});
  CHECK(has(error_of([] { files_of_index(R"({"weight_map": {"x": "../../etc/passwd"}})"); }),
            "no file beside it"));
  CHECK(has(error_of([] { files_of_index("{}"); }), "no index"));
}

TEST_CASE("a GGUF file is chosen by its quantization, whatever the case, with all its shards") {
  const Names all = {"B-Q4_K_M.gguf",  "B-Q4_K_S.gguf",
                     "b.q8_0.gguf",    "mmproj-B-f16.gguf",
                     "imatrix_B.gguf", "F16/B-F16-00002-of-00002.gguf",
                     "B-IQ4_NL.gguf",  "F16/B-F16-00001-of-00002.gguf"};
  CHECK(choose_files(gguf("Q4_K_M"), all, true).names == Names{"B-Q4_K_M.gguf"});
  CHECK(choose_files(gguf("q4_k_s"), all, true).gguf == "B-Q4_K_S.gguf");
  CHECK(choose_files(gguf("Q8_0"), all, true).gguf == "b.q8_0.gguf");
  const ModelFiles shards = choose_files(gguf("f16"), all, true);
  CHECK(shards.names == Names{"F16/B-F16-00001-of-00002.gguf", "F16/B-F16-00002-of-00002.gguf"});
  CHECK(shards.gguf == shards.names.front());
  const std::string several = "F16, IQ4_NL, Q4_K_M, Q4_K_S, Q8_0";
  CHECK(has(error_of([&] { choose_files(gguf("Q4_K"), all, true); }), "it has " + several));
  CHECK(has(error_of([&] { choose_files(gguf("Q4_NL"), all, true); }), "it has " + several));
  CHECK(has(error_of([&] { choose_files(gguf(""), all, true); }), "pass one as a/b:"));
  CHECK(choose_files({.repository = "a/b", .file = "F16/B-F16-00002-of-00002.gguf"}, all, true)
            .names.size() == 2);
  CHECK(choose_files(gguf(""), {"only.gguf", "README.md"}, true).gguf == "only.gguf");
}

TEST_CASE("a repository without weights that can be read is named as what it is") {
  const auto refused = [](const Names& all) {
    return error_of([&] { choose_files({.repository = "a/b"}, all, true); });
  };
  CHECK(has(refused({"config.json", "pytorch_model.bin"}),
            "model a/b: its weights are PyTorch's (pytorch_model.bin), which are not read"));
  CHECK(has(refused({"config.json", "original/consolidated.00.pth"}), "are PyTorch's"));
  CHECK(has(refused({"config.json"}), "neither safetensors nor GGUF"));
  CHECK(has(refused({"model.safetensors"}), "has no config.json"));
}

TEST_CASE("a folder with pointers of git-lfs, or with PyTorch's weights alone, is refused") {
  const TestFolder folder;
  folder.write("config.json", "{}");
  folder.write("pytorch_model.bin", "x");
  const auto refused = [&](const std::string& name = "", bool weights = true) {
    return error_of([&] { check_model_path(folder.path(name), weights); });
  };
  CHECK(has(refused(), "its weights are PyTorch's (pytorch_model.bin)"));
  CHECK(refused("", false) == "");
  folder.write("model.safetensors",
               "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 1073741824\n");
  CHECK(has(refused(), "model.safetensors: is a pointer of git-lfs, and not the file of 1 GiB"));
  CHECK(has(refused("model.safetensors"), "run 'git lfs pull' in " + folder.path()));
  CHECK(refused("", false) == "");
  folder.write("model.safetensors", "weights");
  CHECK(refused() == "");
}

}  // namespace
}  // namespace nvllm::launcher
