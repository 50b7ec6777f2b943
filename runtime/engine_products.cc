#include "runtime/engine_products.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "runtime/product_file.h"
#include "runtime/product_tuning.h"

namespace nvllm::runtime {
namespace {

// Ranks have the same kinds of products, or nearly so, and the same GPU: one choice is kept of each.
std::string keep(const std::string& path, const std::vector<ProductReport>& reports) {
  if (path.empty()) return "kept nowhere: neither XDG_CACHE_HOME nor HOME is an absolute path";
  kernels::ProductChoices all;
  for (const ProductReport& report : reports) {
    all.insert(report.measured.begin(), report.measured.end());
  }
  try {
    if (!all.empty()) ProductFile(path).add(all);
  } catch (const Error& error) {
    return str("not kept: ", error.what());
  }
  return "kept in " + path;
}

}  // namespace

std::string products_to_read(const EngineOptions& options, DeviceKind device) {
  // On the CPU there is nothing to choose.
  const bool any = options.tuning != Tuning::off && device == DeviceKind::cuda;
  return any ? options.products_file : "";
}

EngineProducts choose_products(const EngineOptions& options, const RunnerOptions& runner,
                               DeviceKind device, ipc::GroupCaller& caller) {
  EngineProducts products;
  if (options.tuning == Tuning::off || device == DeviceKind::cpu) return products;
  const std::int64_t start = now_ns();
  if (options.tuning == Tuning::full) {
    const std::int64_t rows = std::max(runner.max_num_batched_tokens, runner.max_num_seqs);
    const std::int64_t at_once = runner.part_rows == 0 ? rows : std::min(rows, runner.part_rows);
    for (const TunedSize& size : tuned_sizes(runner.max_num_seqs, at_once)) {
      caller.call<void>("tune_products", size);
    }
  }
  const double seconds = seconds_since(start);
  const auto reports = caller.call<ProductReport>("product_report");
  const ProductReport& first = reports.front();
  if (!first.problem.empty()) products.notes.push_back(first.problem);
  products.known = first.known;
  products.measured = first.measured.size();
  if (options.tuning == Tuning::full) {
    products.notes.push_back(str("products: ", products.known, " measurements of earlier runs, ",
                                 products.measured, " new ones in ",
                                 std::lround(seconds * 10) / 10.0, " s, ",
                                 keep(options.products_file, reports)));
  }
  return products;
}

}  // namespace nvllm::runtime
