// What loading does when something is wrong, and how it tells how far it is.
#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "device/testing/backend_under_test.h"
#include "model/loading/loader.h"
#include "model/loading/loader_fixture.h"

namespace nvllm::model {
namespace {

constexpr std::byte kUntouched{0xa5};

bool is_untouched(const std::vector<std::byte>& bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == kUntouched; });
}

std::string failure(TestParameters& model, const Checkpoint& checkpoint, Backend& backend,
                    const LoadOptions& options = {}) {
  try {
    load_parameters(model.parameters(), checkpoint, backend, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("a tensor that is missing or of another shape is reported before any is read") {
  BACKEND_OR_SKIP(backend);
  TestFiles files;
  files.add("a", Encoding::f32, {100, 8});
  files.add("b", Encoding::f32, {8, 100});
  const Checkpoint checkpoint = files.write();
  TestParameters missing, transposed;
  for (TestParameters* model : {&missing, &transposed}) {
    model->matrix("first", {rows_of("a", {100, 8}, {0, 100})});
  }
  missing.matrix("last", {rows_of("c", {5, 5}, {0, 5})});
  transposed.matrix("last", {rows_of("b", {100, 8}, {0, 100})});
  for (TestParameters* model : {&missing, &transposed}) {
    model->bind(*backend, DType::f32);
    const std::string error = failure(*model, checkpoint, *backend);
    CAPTURE(error);
    CHECK(contains(error, model == &missing ? "c [5, 5]" : "b"));
    CHECK(contains(error, model == &missing ? "" : "[8, 100]"));
    CHECK(is_untouched(model->bytes(*model->parameters().front())));
  }
}

TEST_CASE("logarithms are taken of decays, also in another order, and of nothing else") {
  BACKEND_OR_SKIP(backend);
  const auto load_decays = [&](const std::vector<float>& logs, std::string& error) {
    TestFiles files;
    files.add("a", Encoding::f32, {6});
    files.order({}, StoredOrder{.outer = 2, .inner = 3});
    files.minus_exp(logs);
    const Checkpoint checkpoint = files.write();
    TestParameters model;
    model.vector("decays", {rows_of("a", {6}, {1, 6})});
    model.bind(*backend, DType::f32);
    error = failure(model, checkpoint, *backend);
    std::vector<float> values(5);
    std::memcpy(values.data(), model.bytes(*model.parameters().front()).data(), 20);
    return values;
  };
  std::string error;
  const std::vector<float> found = load_decays({-3, 0, 1, 2, 0.5f, -8}, error);
  CHECK(error == "");
  const float right[] = {1, 0.5f, 0, 2, -8};
  for (std::size_t i = 0; i < found.size(); ++i) {
    CHECK(found[i] == doctest::Approx(right[i]).epsilon(1e-6));
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float wrong : {-kInfinity, kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    load_decays({-3, 0, 1, 2, wrong, -8}, error);
    CHECK(contains(error, "0.bin: tensor stored.a: expected numbers below 0, found "));
  }
}

TEST_CASE("a file that became shorter is an Error that says so") {
  BACKEND_OR_SKIP(backend);
  for (const Encoding encoding : {Encoding::bf16, Encoding::q4_1}) {
    for (const bool staged : {false, true}) {
      TestFiles files;
      add_decoder_tensors(files, encoding, false);
      const Checkpoint checkpoint = files.write();
      const std::uint64_t size = checkpoint.files()[0].size();
      files.truncate(0, size - 10);
      TestParameters model = decoder_of({});
      model.bind(*backend, DType::bf16);
      const std::string error = failure(model, checkpoint, *backend,
                                        {.threads = 4, .piece_bytes = 10000, .staged = staged});
      CAPTURE(error);
      CHECK(contains(error, files.path(0) + ": ends after " + std::to_string(size - 10) +
                                " bytes, in tensor stored.down"));
      CHECK(contains(error, std::to_string(size)));
    }
  }
}

TEST_CASE("after an error the same parameters can be loaded") {
  BACKEND_OR_SKIP(backend);
  TestFiles files;
  add_decoder_tensors(files, Encoding::bf16, false);
  TestParameters model = decoder_of({});
  model.bind(*backend, DType::bf16);
  {
    const Checkpoint checkpoint = files.write(2);
    files.truncate(0, 1000);
    CHECK(failure(model, checkpoint, *backend, {.threads = 8}) != "");
  }
  const Checkpoint checkpoint = files.write(2);
  CHECK(failure(model, checkpoint, *backend) == "");
  Assembly assembly;
  assembly.add(model, DType::bf16);
  CHECK(assembly.tensors().at("down") == files.values("down", DType::bf16));
}

// A load that takes some tenths of a second: one parameter as often as it takes, then another.
struct SlowLoad {
  explicit SlowLoad(Backend& backend) : checkpoint(written(files)) {
    model.matrix("again and again", {rows_of("a", {1024, 512}, {0, 1024})});
    model.matrix("last", {rows_of("z", {8, 8}, {0, 8})});
    model.bind(backend, DType::bf16);
    // How long one takes depends on the machine, on what else it does, and on sanitizers.
    constexpr std::size_t kTrial = 500;
    constexpr double kSeconds = 0.8;
    parameters.assign(kTrial, model.parameters()[0]);
    const double trial = load_parameters(parameters, checkpoint, backend, options).seconds;
    const auto times = static_cast<std::size_t>(kTrial * std::max(1.0, kSeconds / trial));
    parameters.assign(times, model.parameters()[0]);
    parameters.push_back(model.parameters()[1]);
    total = (std::uint64_t{times} << 20) + 128;
  }
  static Checkpoint written(TestFiles& files) {
    files.add("a", Encoding::bf16, {1024, 512});
    files.add("z", Encoding::bf16, {8, 8});
    return files.write();
  }

  std::uint64_t total;
  TestFiles files;
  Checkpoint checkpoint;
  TestParameters model;
  std::vector<layers::Parameter*> parameters;
  LoadOptions options{.threads = 1};
};

TEST_CASE("progress moves while a long load runs, by this thread, and ends with everything") {
  BACKEND_OR_SKIP(backend);
  SlowLoad slow(*backend);
  std::vector<std::uint64_t> seen;
  const std::thread::id loader = std::this_thread::get_id();
  bool elsewhere = false;
  slow.options.progress = [&](const LoadProgress& progress) {
    seen.push_back(progress.bytes);
    elsewhere |= std::this_thread::get_id() != loader;
    CHECK(progress.total == slow.total);
  };
  const LoadReport report =
      load_parameters(slow.parameters, slow.checkpoint, *backend, slow.options);
  CHECK_FALSE(elsewhere);
  REQUIRE(seen.size() >= 2);
  CHECK(std::is_sorted(seen.begin(), seen.end()));
  CHECK(seen.front() > 0);
  CHECK(seen.front() < seen.back());
  CHECK(seen.back() == report.bytes_loaded);
  CHECK(static_cast<double>(seen.size()) <= report.seconds * 10 + 1);
}

TEST_CASE("what progress throws ends the loading at once") {
  BACKEND_OR_SKIP(backend);
  SlowLoad slow(*backend);
  int calls = 0;
  slow.options.progress = [&](const LoadProgress&) {
    ++calls;
    throw std::runtime_error("the group was aborted");
  };
  CHECK_THROWS_WITH_AS(load_parameters(slow.parameters, slow.checkpoint, *backend, slow.options),
                       "the group was aborted", std::runtime_error);
  CHECK(calls == 1);
  CHECK(is_untouched(slow.model.bytes(*slow.parameters.back())));
}

}  // namespace
}  // namespace nvllm::model
