#include "device/cpu/graph.h"

#include <algorithm>

#include "base/error.h"
#include "device/cpu/stream.h"

namespace nvllm::cpu {

GraphBody::~GraphBody() {
  // Join all threads before destroying the first counter that they use.
  for (Branch& branch : branches_) branch.stream.reset();
}

int GraphBody::add_branch() {
  branches_.emplace_back(spin_);
  return branches() - 1;
}

void GraphBody::add_wait(int branch, int other, std::uint64_t steps) {
  add(branch, [this, &awaited = branches_[other], steps] {
    awaited.done.wait(launches_ * awaited.steps.size() + steps);
  });
}

void GraphBody::finish() {
  for (int branch = 1; branch < branches(); ++branch) {
    branches_[branch].stream = std::make_unique<Stream>(str("graph-", branch), spin_);
  }
}

void GraphBody::run() {
  const std::lock_guard lock(running_);
  for (Branch& branch : branches_) {
    if (branch.stream) branch.stream->submit([this, &branch] { run_branch(branch); });
  }
  run_branch(branches_.front());
  for (Branch& branch : branches_) branch.done.wait((launches_ + 1) * branch.steps.size());
  ++launches_;
  if (failed_.exchange(false)) std::rethrow_exception(std::exchange(error_, nullptr));
}

void GraphBody::run_branch(Branch& branch) {
  std::uint64_t done = launches_ * branch.steps.size();
  for (Task& step : branch.steps) {
    // After a failure no more tasks run, but steps still complete, so that no waiter hangs.
    if (!failed_.load()) {
      try {
        step();
      } catch (...) {
        const std::lock_guard lock(error_mutex_);
        if (!failed_.load()) {
          error_ = std::current_exception();
          failed_.store(true);
        }
      }
    }
    branch.done.advance(++done);
  }
}

std::shared_ptr<GraphBody> Capture::run(Stream& stream, const std::function<void()>& work,
                                        Nanoseconds spin) {
  if (stream.capture() != nullptr) fail("the stream is already being captured");
  const auto capture = std::make_shared<Capture>(spin);
  capture->join(stream);
  try {
    work();
    capture->require_all_joined();
  } catch (...) {
    capture->leave();
    throw;
  }
  capture->leave();
  capture->body_->finish();
  return capture->body_;
}

std::shared_ptr<const CapturePoint> Capture::point(int branch) {
  return std::make_shared<CapturePoint>(CapturePoint{weak_from_this(), branch, seen_[branch]});
}

void Capture::wait(Stream& stream, const CapturePoint& point) {
  const std::shared_ptr<Capture> capture = point.capture.lock();
  if (capture == nullptr)
    fail("the event was recorded in a capture that has ended; record it again");
  if (stream.capture() == nullptr) capture->join(stream);
  if (stream.capture() != capture) fail("the event was recorded in the capture of another graph");

  std::vector<std::uint64_t>& seen = capture->seen_[stream.branch()];
  if (seen.size() < capture->streams_.size()) seen.resize(capture->streams_.size());
  const std::uint64_t steps = point.seen[point.branch];
  if (point.branch == stream.branch() || seen[point.branch] >= steps) return;  // in order anyway
  capture->body_->add_wait(stream.branch(), point.branch, steps);
  ++seen[stream.branch()];
  for (std::size_t branch = 0; branch < point.seen.size(); ++branch) {
    seen[branch] = std::max(seen[branch], point.seen[branch]);
  }
}

void Capture::join(Stream& stream) {
  const int branch = body_->add_branch();
  streams_.push_back(&stream);
  seen_.emplace_back(streams_.size(), 0);
  stream.set_capture(shared_from_this(), branch);
}

void Capture::require_all_joined() const {
  for (int branch = 1; branch < body_->branches(); ++branch) {
    const bool known = static_cast<std::size_t>(branch) < seen_[0].size();
    if (known && seen_[0][branch] == body_->steps(branch)) continue;
    fail(
        "a stream was drawn into the capture of a graph and is not waited for at its end; record "
        "an "
        "event after its last work and let the captured stream wait for it");
  }
}

void Capture::leave() {
  for (Stream* stream : streams_) stream->set_capture(nullptr, 0);
}

void Graph::launch(nvllm::Stream& nvllm_stream) {
  Stream& stream = cpu::stream(nvllm_stream);
  if (stream.capture() != nullptr) fail("a graph cannot be launched while its stream is captured");
  stream.submit([body = body_] { body->run(); });
}

}  // namespace nvllm::cpu
