#include "launcher/supervise/worker_group.h"

#include "base/error.h"

namespace nvllm::launcher {

WorkerGroup::WorkerGroup(const Options& options, const Body& body)
    : group_(ipc::Group::create(options.group)), console_(options.output) {
  try {
    // The link first, because finding the other boxes takes longest.
    if (group_.boxes() > 1) {
      link_.emplace(Child::start([&] { return options.link(group_); }));
      console_.add_source("link", link_->take_output());
    }
    const int first = group_.first_rank(group_.box());
    for (int rank = first; rank < first + group_.ranks_of(group_.box()); ++rank) {
      children_.push_back(Child::start([&] { return body(group_, rank); }));
      pids_.push_back(children_.back().pid());
      console_.add_worker(rank, children_.back().take_output());
    }
    member_.emplace(group_.join(ipc::kLauncher));
    console_.start();
    supervisor_.emplace(group_, children_, signals_, console_, options.on_signal,
                        options.on_finish_timeout, options.finish_limit, options.start_limit,
                        link_ ? &*link_ : nullptr);
  } catch (...) {
    for (Child& child : children_) child.end();
    if (link_) link_->end();
    throw;
  }
}

WorkerGroup::~WorkerGroup() = default;

int WorkerGroup::follow() {
  const int exit_code = supervisor_->follow();
  console_.flush(Console::kLastWrites);
  return exit_code;
}

int WorkerGroup::finish(const std::optional<std::string>& error) {
  const int exit_code = supervisor_->finish(error);
  console_.flush(Console::kLastWrites);
  return exit_code;
}

}  // namespace nvllm::launcher
