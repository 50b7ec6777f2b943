#include "launcher/serve/prometheus.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>
#include <utility>

#include "base/check.h"

namespace nvllm::launcher {

namespace {

// The shortest text that parses to the same number.
std::string shortest(double value, std::chars_format format = std::chars_format::general) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  char text[32];
  const auto end = std::to_chars(std::begin(text), std::end(text), value, format);
  NVLLM_CHECK(end.ec == std::errc{}, "a number of more than ", sizeof(text), " characters");
  return {text, end.ptr};
}

// Appends the text with backslashes and newlines escaped, and quotes in the values of labels.
void append_escaped(std::string& out, std::string_view text, bool quotes) {
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '\\' || (quotes && c == '"')) out += '\\';
    out += c;
  }
}

void append_labels(std::string& out, const PrometheusLabels& labels) {
  for (const PrometheusLabel& label : labels) {
    if (!out.empty()) out += ',';
    out += label.name;
    out += "=\"";
    append_escaped(out, label.value, true);
    out += '"';
  }
}

}  // namespace

std::string bucket_bound(double bound) {
  constexpr double kFirstWithExponent = 1e6;
  if (std::isinf(bound)) return "+Inf";
  if (bound >= kFirstWithExponent) return shortest(bound, std::chars_format::scientific);
  std::string text = shortest(bound, std::chars_format::fixed);
  if (text.find('.') == std::string::npos) text += ".0";
  return text;
}

// --- Histogram ---

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)),
      counts_(std::make_unique<std::atomic<std::uint64_t>[]>(bounds_.size() + 1)) {
  NVLLM_CHECK(std::is_sorted(bounds_.begin(), bounds_.end()), "bounds of buckets must rise");
}

void Histogram::observe(double value) {
  if (!(value > 0)) value = 0;
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<std::size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

Histogram::Reading Histogram::read() const {
  Reading reading;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i <= bounds_.size(); ++i) {
    total += counts_[i].load(std::memory_order_relaxed);
    reading.cumulative.push_back(total);
  }
  reading.sum = sum_.load(std::memory_order_relaxed);
  return reading;
}

// --- PrometheusText ---

PrometheusText::PrometheusText(const PrometheusLabels& labels) {
  append_labels(labels_, labels);
}

void PrometheusText::family(std::string_view name, std::string_view type, std::string_view help) {
  out_.append("# HELP ").append(name).append(" ");
  append_escaped(out_, help, false);
  out_.append("\n# TYPE ").append(name).append(" ").append(type).append("\n");
}

void PrometheusText::write_sample(std::string_view name, std::string_view labels, double value) {
  out_ += name;
  if (!labels.empty()) out_.append("{").append(labels).append("}");
  out_.append(" ").append(shortest(value)).append("\n");
}

void PrometheusText::sample(std::string_view name, const PrometheusLabels& more, double value) {
  std::string labels = labels_;
  append_labels(labels, more);
  write_sample(name, labels, value);
}

void PrometheusText::bare_sample(std::string_view name, const PrometheusLabels& labels,
                                 double value) {
  std::string text;
  append_labels(text, labels);
  write_sample(name, text, value);
}

void PrometheusText::counter(std::string_view name, std::string_view help, double value) {
  family(name, "counter", help);
  write_sample(name, labels_, value);
}

void PrometheusText::gauge(std::string_view name, std::string_view help, double value) {
  family(name, "gauge", help);
  write_sample(name, labels_, value);
}

void PrometheusText::histogram(std::string_view name, std::string_view help,
                               const Histogram& histogram) {
  family(name, "histogram", help);
  const Histogram::Reading reading = histogram.read();
  const std::string base(name);
  for (std::size_t i = 0; i < reading.cumulative.size(); ++i) {
    const double bound = i < histogram.bounds().size() ? histogram.bounds()[i] : INFINITY;
    sample(base + "_bucket", {{"le", bucket_bound(bound)}},
           static_cast<double>(reading.cumulative[i]));
  }
  write_sample(base + "_sum", labels_, reading.sum);
  write_sample(base + "_count", labels_, static_cast<double>(reading.cumulative.back()));
}

}  // namespace nvllm::launcher
