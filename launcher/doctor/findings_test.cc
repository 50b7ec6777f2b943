// The doctor's findings for simulated machines.
#include "launcher/doctor/findings.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/json_text.h"
#include "base/text.h"
#include "testing/error_of.h"

namespace nvllm::launcher {
namespace {

using testing::has;

constexpr std::uint64_t kGib = std::uint64_t{1} << 30;

// Two GPUs connected by NVLink, without problems.
Machine good_machine() {
  Machine machine;
  machine.cuda_built = "13.0";
  machine.gpus.driver = "580.82.07";
  machine.gpus.cuda_version = 13000;
  for (const char* const uuid : {"GPU-aa", "GPU-bb"}) {
    machine.gpus.gpus.push_back({.name = "H200",
                                 .uuid = uuid,
                                 .pci = "0000:3b:00.0",
                                 .total_bytes = 140 * kGib,
                                 .free_bytes = 139 * kGib,
                                 .capability = 90,
                                 .nvlinks = 18});
    machine.gpu_nodes.push_back(0);
  }
  machine.gpus.pairs = {
      {.first = 0, .second = 1, .nvlink = true, .path = "one PCIe switch", .peer_access = true}};
  machine.visible = {"0", "1"};
  machine.cublaslt.version = "13.1.0";
  machine.nccl.version = "2.27.7";
  machine.baseline = true;
  machine.instruction_sets = {"avx2"};
  machine.cores = 3;
  machine.nodes = {{.node = 0, .cores = {0, 1, 4}, .bytes = 64 * kGib}};
  machine.total_bytes = 64 * kGib;
  machine.free_bytes = 60 * kGib;
  machine.huge_pages = "madvise";
  machine.shared_memory = {.error = "",
                           .total_bytes = kGib,
                           .free_bytes = kGib,
                           .needed_one = kGib / 256,
                           .needed_all = kGib / 32};
  machine.model = {.path = "/cache/model.gguf", .there = true};
  return machine;
}

GpuSurvey silent_driver(const std::string& why) {
  GpuSurvey survey;
  survey.why_none = why;
  return survey;
}

Machine machine_without_gpus() {
  Machine machine = good_machine();
  machine.gpus = silent_driver("no NVIDIA driver: libnvidia-ml.so.1: not found");
  machine.visible.clear();
  machine.gpu_nodes.clear();
  machine.cublaslt = {.version = "", .error = "libcublasLt.so.13: not found"};
  machine.nccl = {.version = "", .error = "libnccl.so.2: not found"};
  machine.lockable_bytes = 65536;
  return machine;
}

Verdict worst(const Machine& machine) {
  Verdict worst = Verdict::fine;
  for (const Finding& finding : examine(machine)) worst = std::max(worst, finding.verdict);
  return worst;
}

// The only finding that is not fine: "GPU 0 stops: ... | the fix".
std::string complaint(const Machine& machine) {
  std::string text;
  for (const Finding& finding : examine(machine)) {
    CHECK(finding.found != "");
    CHECK(finding.found.find('\n') == std::string::npos);
    if (finding.verdict == Verdict::fine) continue;
    text += str(text.empty() ? "" : "\n", finding.subject, ' ', name_of(finding.verdict), ": ",
                finding.found, " | ", finding.fix);
  }
  return text;
}

// The finding about a good machine after it was damaged.
template <typename Damage>
std::string after(Damage damage) {
  Machine machine = good_machine();
  damage(machine);
  return complaint(machine);
}

}  // namespace

TEST_CASE("nothing is said of a machine where all is well") {
  CHECK(complaint(good_machine()) == "");
  const std::string text = format_findings(good_machine(), examine(good_machine()));
  CHECK(has(text, "NVLink (18 links each) between GPUs 0-1\n"));
  CHECK(has(text, "node 0: cores 0-1,4, 64 GiB\n"));
  CHECK(text.ends_with("\nnvllm can run here, on 2 GPUs\n"));
}

TEST_CASE("without a driver nvllm works on the CPU, and needs nothing that is for GPUs") {
  const Machine machine = machine_without_gpus();
  CHECK(worst(machine) == Verdict::note);
  CHECK(has(complaint(machine), "driver note: no NVIDIA driver"));
  CHECK(has(complaint(machine), "install the NVIDIA driver"));
  CHECK(format_findings(machine, examine(machine)).ends_with("can run here, on the CPU\n"));
}

TEST_CASE("a driver that is too old, or does not fit its module, stops what would run on GPUs") {
  CHECK(after([](Machine& m) { m.gpus.cuda_version = 12040; }) ==
        "driver stops: 580.82.07, CUDA 12.4; this program was built with CUDA 13.0 | install an "
        "NVIDIA driver for CUDA 13, or pass --device cpu");
  const std::string mismatch = after([](Machine& m) {
    m.gpus = silent_driver("no NVIDIA GPU: Driver/library version mismatch");
    m.gpu_nodes.clear();
  });
  CHECK(has(mismatch, "driver stops: no NVIDIA GPU: Driver/library version mismatch | reboot"));
}

TEST_CASE("a newer driver of another minor version is fine") {
  CHECK(after([](Machine& m) { m.gpus.cuda_version = 13020; }) == "");
}

TEST_CASE("a GPU that cannot be computed with stops, unless it is hidden from us") {
  const auto old = [](Machine& m) { m.gpus.gpus[1].capability = 75; };
  CHECK(has(after(old), "GPU 1 stops: "));
  CHECK(has(after(old), "compute 7.5; the kernels need 8.0 | leave it out"));
  CHECK(after([](Machine& m) {
          m.gpus.gpus[0].prohibited = true;
        }).ends_with("its compute mode is Prohibited | nvidia-smi -i 0 -c DEFAULT"));
  CHECK(has(after([](Machine& m) { m.gpus.gpus[0] = {}; }), "GPU 0 stops: does not answer"));
  const std::string hidden = after([&](Machine& m) {
    old(m);
    m.visible = {"GPU-aa"};
  });
  CHECK(has(hidden, "GPU 1 note: "));
  CHECK(has(hidden, "CUDA_VISIBLE_DEVICES hides it"));
}

TEST_CASE("memory that others hold, peers that do not reach each other, cores far away: warnings") {
  CHECK(has(after([](Machine& m) { m.gpus.gpus[0].free_bytes = kGib; }),
            "GPU 0 warning: H200, 140 GiB, 1 GiB free"));
  CHECK(!has(after([](Machine& m) { m.gpus.gpus[0].free_bytes = 70 * kGib; }), "GPU 0 warning"));
  CHECK(has(after([](Machine& m) { m.gpus.pairs[0].peer_access = false; }),
            "peer access warning: GPUs 0-1 cannot read each other's memory"));
  CHECK(has(after([](Machine& m) {
              m.nodes.push_back({.node = 1, .cores = {}, .bytes = kGib});
              m.gpu_nodes[1] = 1;
            }),
            "GPU 1 warning: is beside NUMA node 1, of whose cores this process may use none"));
}

TEST_CASE("memory that cannot be taken from a node is told where there are several") {
  const std::string why = "Operation not permitted (EPERM)";
  CHECK(after([&](Machine& m) { m.why_no_memory_policy = why; }) == "");
  CHECK(has(after([&](Machine& m) {
              m.why_no_memory_policy = why;
              m.nodes.push_back({.node = 1, .cores = {5}, .bytes = kGib});
            }),
            "to choose between them is refused: Operation not permitted (EPERM) | pinned memory "
            "may lie far from its GPU; docker run --cap-add SYS_NICE"));
}

TEST_CASE("libraries are missed where something would load them") {
  const auto without = [](LibraryState Machine::*library, std::size_t gpus) {
    return after([&](Machine& m) {
      m.*library = {.version = "", .error = "lib.so: not found"};
      m.visible.resize(gpus);
    });
  };
  CHECK(has(without(&Machine::cublaslt, 1), "cuBLASLt stops: lib.so: not found | install it"));
  CHECK(has(without(&Machine::nccl, 2), "NCCL note: lib.so: not found; not needed here"));
  CHECK(has(after([](Machine& m) {
              m.nccl = {.version = "", .error = "lib.so: not found"};
              m.gpus.pairs[0].peer_access = false;
            }),
            "NCCL stops: lib.so: not found | install it (libnccl2), or pass --tp 1"));
}

TEST_CASE("one of several boxes says which, how many GPUs it has, and that these need NCCL") {
  const auto box = [](Machine& m) {
    m.task = {.boxes = 2, .box = 1, .starter = "mpirun"};
    m.host = "node17";
  };
  Machine machine = good_machine();
  box(machine);
  CHECK(examine(machine).front().subject == "box");
  CHECK(examine(machine).front().found ==
        "1 of 2 (node17), started by mpirun: 2 GPUs for its ranks");
  CHECK(has(after([&](Machine& m) {
              box(m);
              m.nccl = {.version = "", .error = "lib.so: not found"};
            }),
            "NCCL stops: lib.so: not found | install it (libnccl2)"));
}

TEST_CASE("a small limit of locked memory is told where GPUs compute") {
  CHECK(after([](Machine& m) { m.lockable_bytes = 65536; }) ==
        "memory lock limit warning: 64 KiB; NCCL and drivers that count pinned memory against it "
        "may refuse | ulimit -l unlimited, docker run --ulimit memlock=-1, or limits.conf");
  CHECK(after([](Machine& m) { m.lockable_bytes = kGib; }) == "");
}

TEST_CASE("/dev/shm: too small for any rank stops, too small for all warns, unwritable stops") {
  CHECK(has(after([](Machine& m) { m.shared_memory.free_bytes = kGib / 512; }),
            "/dev/shm stops: 1 GiB, 2 MiB free; one rank needs 4 MiB | mount -o "
            "remount,size=96M /dev/shm, or docker run --shm-size=96m"));
  CHECK(has(after([](Machine& m) { m.shared_memory.free_bytes = kGib / 64; }),
            "/dev/shm warning: 1 GiB, 16 MiB free; as many ranks as can be need 32 MiB"));
  CHECK(has(after([](Machine& m) { m.shared_memory.error = "Read-only file system (EROFS)"; }),
            "/dev/shm stops: Read-only file system (EROFS) | this user must be able to write"));
}

TEST_CASE("a build without CUDA where there are GPUs is told") {
  CHECK(has(after([](Machine& m) { m.cuda_built = ""; }),
            "CUDA warning: this program was built without it, and computes on the CPU | install "
            "the CUDA toolkit and NCCL, and build it again"));
  Machine machine = machine_without_gpus();
  machine.cuda_built = "";
  CHECK(worst(machine) == Verdict::note);
}

TEST_CASE("processor, memory, huge pages, default model") {
  CHECK(has(after([](Machine& m) { m.baseline = false; }), "processor stops: "));
  CHECK(has(after([](Machine& m) { m.free_bytes = kGib / 2; }), "memory warning: 64 GiB, 512 MiB"));
  CHECK(has(after([](Machine& m) { m.huge_pages = "never"; }), "huge pages warning: never"));
  CHECK(has(after([](Machine& m) { m.model.there = false; }),
            "default model warning: /cache/model.gguf is not there | nvllm-launch pull "
            "Qwen/Qwen3-0.6B, or"));
  CHECK(has(after([](Machine& m) { m.model = {.path = "", .there = false}; }),
            "default model warning: no place for it"));
  CHECK(has(after([](Machine& m) {
              m.model.there = false;
              m.model.fetched = true;
            }),
            "default model note: "));
}

TEST_CASE("the JSON says the same") {
  Machine machine = good_machine();
  machine.gpus.cuda_version = 12040;
  const auto json = parse_json(format_findings_json(machine, examine(machine)));
  CHECK(json.at("works") == false);
  CHECK(json.at("findings")[0].at("verdict") == "stops");
  CHECK(json.at("findings")[1].at("fix").is_null());
  CHECK(json.at("gpus").size() == 2);
  CHECK(json.at("gpus")[1].at("visible") == true);
  CHECK(json.at("peer_links")[0].at("nvlink") == true);
  CHECK(json.at("memory_lock_bytes").is_null());
  CHECK(json.at("numa")[0].at("cores") == nlohmann::json{0, 1, 4});
}

}  // namespace nvllm::launcher
