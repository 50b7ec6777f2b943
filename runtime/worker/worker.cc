#include "runtime/worker/worker.h"

#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <new>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "base/thread.h"
#include "device/libraries.h"
#include "device/topology.h"
#include "ipc/collective/communicator.h"
#include "ipc/collective/stage_link.h"
#include "ipc/group.h"
#include "ipc/registry.h"
#include "ipc/rpc.h"
#include "runtime/box_clocks.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/engine_rank.h"
#include "runtime/model/model_loading.h"
#include "runtime/rank_report.h"
#include "runtime/worker/selftest.h"

namespace nvllm::runtime {
namespace {

using Variables = std::span<const std::pair<const char*, const char*>>;

// NCCL features that are never useful here. The status server (RAS) opens a port that other hosts
// can reach. NVLink multicast (NVLS) gains nothing with so few GPUs, and hosts have lost their GPUs
// by it.
constexpr std::pair<const char*, const char*> kNccl[] = {
    {"NCCL_RAS_ENABLE", "0"},
    {"NCCL_NVLS_ENABLE", "0"},
};
// On one box, NCCL need not search for networks of other hosts and plugins. It starts faster, and
// none of its ports can be reached from outside. Between boxes NCCL chooses the network itself.
constexpr std::pair<const char*, const char*> kNcclOnOneBox[] = {
    {"NCCL_IB_DISABLE", "1"},    {"NCCL_NET", "Socket"},        {"NCCL_SOCKET_IFNAME", "lo"},
    {"NCCL_NET_PLUGIN", "none"}, {"NCCL_TUNER_PLUGIN", "none"}, {"NCCL_PROFILER_PLUGIN", "none"},
};

// Settings of the user take precedence.
void set_unless_set(Variables variables) {
  for (const auto& [variable, value] : variables) ::setenv(variable, value, 0);
}

// Call before the first use of CUDA or NCCL, and before other threads exist.
void set_environment(int rank, int boxes, const WorkerOptions& options) {
  if (options.device != DeviceKind::cuda) return;
  ::setenv("CUDA_VISIBLE_DEVICES", options.gpus.at(static_cast<std::size_t>(rank)).c_str(), 1);
  // The driver creates contexts one after the other, and the channels for the default eight
  // connections take half of a context's time: with two connections, four GPUs start 0.4 s earlier.
  // A rank uses few streams.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "2", 0);
  set_unless_set(kNccl);
  if (boxes == 1) set_unless_set(kNcclOnOneBox);
}

// Creates the rank's device. If NCCL is needed, another thread loads it at the same time: each
// takes a tenth of a second.
std::unique_ptr<Backend> start_device(const WorkerOptions& options, int boxes) {
  std::optional<std::jthread> loading;
  if (options.device == DeviceKind::cuda && (options.collectives == "nccl" || boxes > 1)) {
    // A failure here recurs in create_communicator, which reports it.
    loading = start_thread<std::jthread>("to load NCCL with", [] { load_nccl(); });
  }
  return create_backend(options.device);
}

// CPU ranks divide the cores. A GPU's rank runs on cores near its GPU and allocates its memory
// there, where copies are fastest; if the system does not permit that, it keeps the default, and
// `doctor` reports it.
void set_cpu_affinity(int rank, int ranks, const Backend& backend) {
  if (backend.kind() == DeviceKind::cpu) {
    run_on_cores(share_of_cores(allowed_cores(), rank, ranks));
  } else {
    run_on_cores(cores_near_pci_device(backend.pci_bus_id()));
    prefer_memory_of(node_of_pci_device(backend.pci_bus_id()));
  }
}

// Stores the error for other processes to read.
void record(ipc::Member& me, const std::exception& error) {
  const bool no_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  const char* const words =
      no_memory ? "the system refuses more memory; free some, or raise the limit (ulimit -v)"
                : error.what();
  me.set_error_text(words);
  // GroupAborted has its cause elsewhere, which the launcher reports.
  if (dynamic_cast<const ipc::GroupAborted*>(&error) == nullptr) log_error(words);
}

// Serves until the launcher asks the group to stop. `engine_rank`: nullptr without a model.
void serve(ipc::Member& me, const ipc::Registry& methods, EngineRank* engine_rank) {
  if (me.rank() > 0) return ipc::GroupServer(me, methods).serve();
  ipc::GroupCaller caller(me, methods);
  Selftest selftest(me, caller);
  ipc::RequestServer server(me);
  ModelLoading loading(me, caller, server);
  ipc::Registry requests;  // called by the launcher on rank 0
  selftest.bind(requests);
  loading.bind(requests);
  if (engine_rank == nullptr) {
    server.serve(requests);
  } else {
    Engine engine(me, caller, server, *engine_rank);
    engine.bind(requests);
    engine.serve(requests);
  }
  caller.stop();
}

// The rank's part of each of its layers, and its layers.
layers::Shard shard_of(const ipc::Member& me, int stages) {
  const int ranks = me.size() / stages;
  return {.rank = me.rank() % ranks, .ranks = ranks};
}

layers::Stage stage_of(const ipc::Member& me, int stages) {
  return {.index = me.rank() / (me.size() / stages), .stages = stages};
}

void worker_main(ipc::Member& me, const WorkerOptions& options) {
  me.set_phase(ipc::Phase::starting);
  StartTimes start{.joined_ns = now_ns()};
  const ipc::Heartbeat heartbeat(me);
  const ipc::Group& group = me.group();
  const std::unique_ptr<Backend> backend = start_device(options, group.boxes());
  set_cpu_affinity(me.rank() - group.first_rank(group.box()), group.ranks_of(group.box()),
                   *backend);
  const std::unique_ptr<Stream> stream = backend->create_stream();
  start.backend_ns = now_ns();
  // On GPUs, weights load while the communicator is created; on the CPU both need the cores.
  std::optional<ModelRank> model;
  const auto load = [&] {
    if (options.model == nullptr) return;
    model.emplace(*options.model, shard_of(me, options.stages), stage_of(me, options.stages),
                  *backend);
  };
  if (options.device == DeviceKind::cuda) load();
  const ipc::CommunicatorOptions between{.implementation = options.collectives,
                                         .stages = options.stages};
  const std::unique_ptr<ipc::Communicator> communicator =
      ipc::create_communicator(me, *backend, between);
  std::unique_ptr<ipc::StageLink> link;
  if (options.stages > 1) {
    link = ipc::create_stage_link(me, *backend, between, *communicator);
  }
  start.communicator_ns = now_ns();
  if (options.device == DeviceKind::cpu) load();

  ipc::Registry methods;  // called by rank 0 on every rank
  SelftestRank selftest_rank(me, *backend, *communicator, *stream);
  selftest_rank.bind(methods);
  std::optional<EngineRank> engine_rank;
  if (model) {
    model->bind(methods);
    engine_rank.emplace(me, *model, *backend, *stream, *communicator, link.get());
    engine_rank->bind(methods);
  }
  start.ready_ns = now_ns();
  BoxClocks::bind(methods);
  bind_rank_report(methods, *backend, *communicator, start);
  me.set_phase(ipc::Phase::ready);
  log_debug("ready: ", backend->description(), ", ", communicator->name());

  try {
    serve(me, methods, engine_rank ? &*engine_rank : nullptr);
    // A step of a request that was cancelled may still be running.
    if (!stream->synchronize_for(group.step_timeout())) fail("the last step does not end");
  } catch (const std::exception& error) {
    // The group has failed, and work on the device may never end: exit without destructors, which
    // would wait for it.
    record(me, error);
    me.set_phase(ipc::Phase::ended);
    std::fflush(nullptr);
    ::_exit(1);
  }
  me.set_phase(ipc::Phase::stopping);
}

}  // namespace

int run_worker(const ipc::Group& group, int rank, const WorkerOptions& options) {
  configure_logging({.level = options.log_level, .who = str("rank ", rank)});
  set_environment(rank, group.boxes(), options);
  ipc::Member me = group.join(rank);
  try {
    worker_main(me, options);
    return 0;
  } catch (const std::exception& error) {
    record(me, error);
  }
  return 1;
}

}  // namespace nvllm::runtime
