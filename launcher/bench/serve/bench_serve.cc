// The command bench serve.
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"
#include "launcher/bench/http_client.h"
#include "launcher/bench/serve/serve_load.h"
#include "launcher/bench/serve/serve_report.h"
#include "launcher/cli/option_value.h"
#include "launcher/cli/options.h"
#include "launcher/cli/program.h"
#include "launcher/session/text_io.h"

namespace nvllm::launcher {
namespace {

constexpr std::int64_t kDefaultPrompts = 256;
constexpr std::int64_t kWarmupTokens = 16;
constexpr std::size_t kOtherFiles = 32;  // other open files of this process
constexpr std::string_view kRequestsBeginning = "{\"base_url\":";  // of format_requests()

// The base URLs without "/v1", which the endpoints include.
std::vector<HttpAddress> addresses_of(const BenchServeOptions& options) {
  std::vector<std::string> urls = options.base_urls;
  if (urls.empty()) urls.emplace_back("http://127.0.0.1:8000");
  std::vector<HttpAddress> addresses;
  for (const std::string& url : urls) {
    HttpAddress address = or_refuse(
        [&] { return with_context("--base-url", [&] { return parse_http_address(url); }); });
    if (address.prefix.ends_with("/v1")) address.prefix.resize(address.prefix.size() - 3);
    addresses.push_back(std::move(address));
  }
  return addresses;
}

std::string headers_of(const BenchServeOptions& options) {
  std::string key = options.api_key;
  if (key.empty()) {
    // Without --api-key, use the variable that clients of OpenAI's API use.
    const char* const from_environment = std::getenv("OPENAI_API_KEY");
    if (from_environment != nullptr) key = from_environment;
  }
  const auto breaks_header = [](char c) { return c == '\r' || c == '\n'; };
  if (std::any_of(key.begin(), key.end(), breaks_header)) {
    fail("OPENAI_API_KEY: has a line break; pass a key of one line");
  }
  return key.empty() ? "" : "Authorization: Bearer " + key + "\r\n";
}

// The first model that the server lists.
std::string ask_for_model(const HttpAddress& address, const std::string& headers,
                          Nanoseconds timeout) {
  const HttpReply reply =
      fetch(address, http_request("GET", address, "/v1/models", headers, ""), timeout);
  if (!reply.error.empty()) fail(reply.error);
  const auto trouble = [&](const std::string& what) {
    fail(address.text, "/v1/models: ", what, "; pass --model NAME, or the --base-url of a server ",
         "with the API of OpenAI");
  };
  if (reply.status != 200) trouble(str("HTTP ", reply.status, ": ", message_of(reply.body)));
  try {
    return parse_json(reply.body).at("data").at(0).at("id");
  } catch (const nlohmann::json::exception&) {
    trouble("lists no model");
  }
  return "";
}

// Connections need file descriptors, of which this process may have a limited number.
void check_open_files(const ServePace& pace) {
  const std::size_t limit = raise_open_files();
  const bool open_loop = !std::isinf(pace.rate) && !pace.max_concurrency;
  if (open_loop) return;  // the number of open connections depends on the server
  std::int64_t wanted = pace.max_concurrency.value_or(pace.prompts);
  if (pace.duration_s == 0) wanted = std::min(wanted, pace.prompts);
  if (static_cast<std::size_t>(wanted) + kOtherFiles > limit) {
    fail(wanted, " requests in flight need as many open files, and this process may have ", limit,
         "; pass a smaller --max-concurrency, or raise the limit (ulimit -n)");
  }
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

ServePace pace_of(const Options& options) {
  const BenchServeOptions& serve = options.bench_serve;
  return {.rate = serve.request_rate,
          .burstiness = serve.burstiness,
          .seed = options.bench.dataset_seed,
          .max_concurrency = options.bench.max_concurrency,
          .prompts = serve.prompts.value_or(kDefaultPrompts),
          .duration_s = serve.duration_s};
}

WorkloadOptions workload_of(const Options& options, const ServePace& pace) {
  WorkloadOptions workload{.sequences = pace.prompts, .seed = options.bench.dataset_seed};
  if (options.bench.input) workload.prompt = *options.bench.input;
  if (options.bench.output) workload.output = *options.bench.output;
  workload.vocabulary = options.bench_serve.vocabulary;
  return workload;
}

// Runs other prompts than the measured ones, with short answers.
void warm_up(ServeLoad& load, const ServeReport& report) {
  WorkloadOptions options = report.workload;
  options.sequences = report.warmup;
  options.seed = ~options.seed;
  options.output.max = std::min(options.output.max, kWarmupTokens);
  options.output.min = std::min(options.output.min, options.output.max);
  WorkloadStream workload(options);
  const ServePace pace{.max_concurrency = report.pace.max_concurrency, .prompts = report.warmup};
  for (const ServeRecord& record : load.run(workload, pace)) {
    if (!record.succeeded()) fail("the warm-up failed: ", record.failure, ": ", record.message);
  }
}

// The file of --save-requests. It is opened before the run, so that a path that is not writable is
// an error before the work, not after it; its content stays until write().
class RequestsFile {
 public:
  explicit RequestsFile(const std::string& path) : path_(path) {
    std::error_code ignored;
    created_ = !std::filesystem::exists(path, ignored);
    check_replaceable();
    file_.open(path, std::ios::app | std::ios::binary);
    if (!file_) fail_errno("--save-requests ", path_);
  }
  RequestsFile(const RequestsFile&) = delete;
  RequestsFile& operator=(const RequestsFile&) = delete;
  ~RequestsFile() {
    if (created_ && !written_) std::remove(path_.c_str());
  }

  void write(const std::string& requests) {
    written_ = true;
    if (std::filesystem::is_regular_file(path_)) std::filesystem::resize_file(path_, 0);
    file_ << requests << std::flush;
    if (!file_) fail_errno("--save-requests ", path_);
  }

 private:
  // Requests of an earlier run may be replaced; any other existing content may not.
  void check_replaceable() const {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(path_, ignored)) return;
    if (std::filesystem::file_size(path_, ignored) == 0) return;
    std::string beginning(kRequestsBeginning.size(), ' ');
    std::ifstream(path_, std::ios::binary).read(beginning.data(), std::ssize(beginning));
    if (beginning == kRequestsBeginning) return;
    refuse("--save-requests ", path_,
           ": is there already, and has no requests of a benchmark; pass another file");
  }

  const std::string path_;
  std::ofstream file_;
  bool created_ = false, written_ = false;
};

}  // namespace

int run_bench_serve(const Options& options, std::int64_t) {
  const BenchServeOptions& serve = options.bench_serve;
  const std::vector<HttpAddress> addresses = addresses_of(serve);
  const std::string headers = headers_of(serve);
  ServeReport report;
  report.options = serve;
  report.pace = pace_of(options);
  report.workload = workload_of(options, report.pace);
  report.warmup = options.bench.warmup.value_or(1);
  check_open_files(report.pace);
  std::optional<RequestsFile> requests;
  if (!serve.save_requests.empty()) requests.emplace(serve.save_requests);

  HttpClient client(serve.timeout);
  std::vector<ServeServer> servers;
  for (const HttpAddress& address : addresses) {
    servers.push_back({address, client.add_server(address)});
    report.base_urls.push_back(address.text);
  }
  report.model =
      serve.model.empty() ? ask_for_model(addresses.front(), headers, serve.timeout) : serve.model;
  const BodyWriter writer(serve, report.model);
  ServeLoad load(client, servers, serve.endpoint, headers, writer);
  if (report.warmup > 0) warm_up(load, report);

  WorkloadStream workload(report.workload);
  const double cpu_before = cpu_seconds();
  const std::vector<ServeRecord> records = load.run(workload, report.pace);
  report.client_cpu_s = cpu_seconds() - cpu_before;
  report.statistics = statistics_of(records, serve.goodput);
  std::exception_ptr unsaved;  // thrown at the end: the report does not depend on the file
  try {
    if (requests) requests->write(format_requests(report, records));
  } catch (const std::exception&) {
    unsaved = std::current_exception();
  }
  if (report.statistics.completed == 0) {
    const auto& [kind, failure] = *report.statistics.failures.begin();
    fail("no request succeeded; ", failure.count, " of ", records.size(), " failed with ", kind,
         ": ", failure.example);
  }
  write_results(options.json ? format_json(report) : format_table(report));
  if (unsaved) std::rethrow_exception(unsaved);
  return kExitFine;
}

}  // namespace nvllm::launcher
