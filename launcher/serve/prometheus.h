// Prometheus metrics: histograms, and the text of a scrape in exposition format 0.0.4.
//
//   Histogram latency({0.1, 0.5, 1});
//   latency.observe(0.3);
//   PrometheusText text(PrometheusLabels{{"model_name", "smollm2"}});
//   text.histogram("vllm:e2e_request_latency_seconds", "Seconds of a request.", latency);
//   respond(text.take(), kPrometheusContentType);
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nvllm::launcher {

inline constexpr const char* kPrometheusContentType = "text/plain; version=0.0.4; charset=utf-8";

// Counts values by range. Thread-safe, without locks: an observation costs two atomic additions.
class Histogram {
 public:
  // bounds: the inclusive upper bound of each bucket, ascending; one more bucket counts larger
  // values.
  explicit Histogram(std::vector<double> bounds);
  Histogram(const Histogram&) = delete;
  Histogram& operator=(const Histogram&) = delete;

  // Values below 0 count as 0.
  void observe(double value);

  struct Reading {
    std::vector<std::uint64_t> cumulative;  // values up to each bound; the last one: all values
    double sum = 0;
  };
  // While other threads observe, the sum may include values that the counts do not have yet.
  Reading read() const;
  const std::vector<double>& bounds() const { return bounds_; }

 private:
  std::vector<double> bounds_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> counts_;  // bounds_.size() + 1
  std::atomic<double> sum_{0};
};

struct PrometheusLabel {
  std::string_view name;
  std::string_view value;
};
using PrometheusLabels = std::vector<PrometheusLabel>;

// Builds the text of one scrape. Used by one thread.
class PrometheusText {
 public:
  // labels: added to every sample, unless specified otherwise below.
  explicit PrometheusText(const PrometheusLabels& labels);

  void counter(std::string_view name, std::string_view help, double value);
  void gauge(std::string_view name, std::string_view help, double value);
  void histogram(std::string_view name, std::string_view help, const Histogram& histogram);

  // Starts a family, and adds a sample with labels of its own.
  void family(std::string_view name, std::string_view type, std::string_view help);
  void sample(std::string_view name, const PrometheusLabels& more, double value);
  // The same without the labels of every sample.
  void bare_sample(std::string_view name, const PrometheusLabels& labels, double value);

  std::string take() { return std::move(out_); }

 private:
  void write_sample(std::string_view name, std::string_view labels, double value);

  std::string labels_;  // as text, without braces: model_name="smollm2",engine="0"
  std::string out_;
};

// A bucket's bound as formatted by Prometheus' Python client ("0.3", "1.0", "1e+06"), so that
// queries for vLLM's buckets match ours.
std::string bucket_bound(double bound);

}  // namespace nvllm::launcher
