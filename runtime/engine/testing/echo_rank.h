// EchoRank: a mock of rank 0, which answers each prompt immediately with the prompt's tokens.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "ipc/group.h"
#include "ipc/registry.h"
#include "ipc/rpc.h"
#include "runtime/engine/engine_client.h"
#include "runtime/engine/engine_messages.h"
#include "testing/ranks.h"

namespace nvllm::runtime {

// Answers a request with the tokens of its prompt, `per_update` of them in each update.
class Echo {
 public:
  Echo(ipc::RequestServer& server, std::size_t per_update)
      : server_(server), per_update_(per_update) {}

  void bind(ipc::Registry& requests) {
    requests.bind<&Echo::add>("add", this);
    requests.bind<&Echo::open>("open", this);
    requests.bind<&Echo::statistics>("statistics", this);
  }

 private:
  void add(const RequestChunk& part) {
    unpacker_.unpack(part, [this](RequestFrame frame) { answer(std::move(frame)); });
  }
  void answer(RequestFrame frame) {
    if (frame.abort) return;
    ++requests_;
    const std::vector<std::int32_t>& prompt = frame.request.prompt;
    for (std::size_t at = 0; at < prompt.size(); at += per_update_) {
      Update update;
      update.request = frame.id;
      const std::size_t end = std::min(at + per_update_, prompt.size());
      update.tokens.assign(prompt.begin() + static_cast<std::ptrdiff_t>(at),
                           prompt.begin() + static_cast<std::ptrdiff_t>(end));
      if (end == prompt.size()) update.finish = FinishReason::length;
      server_.push("updates", std::vector<Update>{std::move(update)}, SchedulerStatistics{});
    }
  }
  EngineInfo open(const EngineOptions& options) {
    server_.push("load_state", LoadState{.bytes = 1, .total = 2, .done = false});
    EngineInfo info;
    info.block_size = options.block_size;
    return info;
  }
  EngineStatistics statistics() {
    EngineStatistics statistics;
    statistics.prompt_tokens = requests_;
    return statistics;
  }

  ipc::RequestServer& server_;
  std::size_t per_update_;
  RequestUnpacker unpacker_;
  std::uint64_t requests_ = 0;
};

// Rank 0 as a separate process, which runs until it is asked to stop.
class EchoRank {
 public:
  explicit EchoRank(std::size_t per_update, Nanoseconds step_timeout = std::chrono::seconds(60))
      : ranks_(1,
               [=](ipc::Member& me) {
                 const ipc::Heartbeat heartbeat(me);
                 ipc::RequestServer server(me);
                 Echo echo(server, per_update);
                 ipc::Registry requests;
                 echo.bind(requests);
                 me.set_phase(ipc::Phase::ready);
                 server.serve(requests);
               },
               {.step_timeout = step_timeout}),
        launcher_(ranks_.group().join(ipc::kLauncher)),
        client_(launcher_) {}

  EngineClient& client() { return client_; }
  testing::RankProcesses& ranks() { return ranks_; }
  void stop() {
    ranks_.group().request_stop();
    for (const auto& end : ranks_.wait_all()) CHECK_MESSAGE(end.clean(), end.describe());
  }

 private:
  testing::RankProcesses ranks_;
  ipc::Member launcher_;
  EngineClient client_;
};

}  // namespace nvllm::runtime
