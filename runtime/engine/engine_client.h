// EngineClient: the front end's side of the engine. It never blocks on the engine while the engine
// may be blocked on it: requests are sent in parts, and the number of unacknowledged parts in
// flight is limited.
//
//   EngineClient client(workers.member());
//   const EngineInfo info = client.open(options, on_load_state);
//   client.submit(1, {.prompt = {1, 2, 3}, .sampling = {.max_tokens = 16}});
//   while (client.unfinished() > 0)
//     for (Update& update : client.poll(std::chrono::milliseconds(100))) ...
//
// When the group is aborted, or rank 0 is silent for the step timeout, any call throws
// (GroupAborted, PeerTimeout). The run is over then; poll() still returns the updates that arrived
// earlier.
//
// A server submits from several threads: submit(), abort() and send() may be called by any thread,
// everything else by the launcher's main thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/trace.h"
#include "ipc/group.h"
#include "ipc/rpc.h"
#include "runtime/engine/engine_messages.h"
#include "runtime/options.h"
#include "runtime/request.h"

namespace nvllm::runtime {

class EngineClient {
 public:
  // `launcher` must outlive this object.
  explicit EngineClient(ipc::Member& launcher) : member_(launcher), requests_(launcher) {}
  EngineClient(const EngineClient&) = delete;
  EngineClient& operator=(const EngineClient&) = delete;

  using OnLoadState = std::function<void(const LoadState&)>;
  EngineInfo open(const EngineOptions& options, const OnLoadState& on_load_state = {});

  // Queues a request under an id that no unfinished request has. An invalid request is reported by
  // an Update with an error.
  void submit(std::uint64_t id, const Request& request);
  // The request's updates end with FinishReason::abort, unless it finished before.
  void abort(std::uint64_t id);
  // Sends what was submitted. poll() also does this, but another thread may be blocked in poll().
  void send();

  // Sends what can be sent and returns the updates received; waits up to the limit if there are
  // none.
  std::vector<Update> poll(Nanoseconds limit);
  // How many submitted requests have not finished, as far as poll() has reported.
  std::size_t unfinished() const;
  // The scheduler's statistics at the end of the last step whose updates poll() returned.
  const SchedulerStatistics& load() const { return load_; }

  // The next two calls wait for a reply; updates that arrive meanwhile are kept for poll().
  EngineStatistics statistics();
  std::vector<ProcessTrace> take_trace();  // of all ranks

 private:
  // Methods named `locked` are called with mutex_ held.
  void send_parts_locked();
  void send_full_parts_locked();
  void send_locked(const RequestChunk& part);
  void await_updates(Nanoseconds limit);
  bool receive(Nanoseconds limit);
  void handle(ipc::RequestEvent event);
  void check_life(std::int64_t waiting_since_ns) const;
  void note_end(const Update& update);
  template <typename Return, typename... Args>
  Return call(std::string_view method, const Args&... args);

  ipc::Member& member_;
  mutable std::mutex mutex_;  // guards sending through requests_, and the next three members
  ipc::RequestClient requests_;
  RequestPacker packer_;
  std::size_t unacknowledged_ = 0;                              // parts in flight
  std::unordered_map<std::uint64_t, std::int32_t> unfinished_;  // request id -> number of
                                                                // unfinished sequences

  std::vector<Update> updates_;  // not yet returned by poll()
  SchedulerStatistics load_;
  OnLoadState on_load_state_;
  std::uint64_t call_id_ = 0;  // the call whose reply call() waits for; 0: none
  std::optional<ipc::RequestEvent> reply_;
  std::int64_t last_heard_ns_ = now_ns();
};

}  // namespace nvllm::runtime
