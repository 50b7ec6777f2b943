// What all commands that run workers have in common: start them, talk to rank 0, end them, print.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "ipc/rpc.h"
#include "launcher/options.h"
#include "launcher/standard_output.h"
#include "launcher/worker_group.h"
#include "runtime/worker.h"

namespace nvllm::launcher {

// Runs as many workers for as long as `talk` lasts; what it throws is why the run failed. Returns the
// exit code. By then everything about it has been said on standard error, and no worker is left.
int run_workers(const GroupOptions& options, int ranks, const runtime::WorkerOptions& worker,
                const std::function<void(WorkerGroup&)>& talk);

using OnEvent = std::function<void(const ipc::RequestEvent& pushed)>;

// Asks rank 0 for a method and waits for its reply, without a limit of its own: the supervisor ends the
// group if that takes too long. What rank 0 pushes in between is handed on.
template <typename Result, typename Request>
Result ask_rank0(ipc::Member& member, std::string_view method, const Request& request,
                 const OnEvent& on_push = {}) {
  ipc::RequestClient front_end(member);
  const std::uint64_t id = front_end.send(method, request);
  while (true) {
    const auto event = front_end.receive_event(std::chrono::seconds(1));
    if (!event) continue;
    if (event->kind() == ipc::RequestEvent::Kind::push) {
      if (on_push) on_push(*event);
    } else if (event->id() == id) {
      return event->get<Result>();
    }
  }
}

}  // namespace nvllm::launcher
