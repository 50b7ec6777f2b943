// Crew: the threads of one process that share the work of a CPU kernel.
//
//   cpu::stream(stream).submit([=, &crew] {
//     crew.run(rows, [&](std::int64_t begin, std::int64_t end) { ... rows [begin, end) ... });
//   });
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace nvllm::cpu {

// A crew has one thread per core that the process may run on, the caller's included, when it first has
// work for them (so after the process has chosen its cores). Between pieces of work they spin for a
// moment, then sleep. Calls from several threads at once are fine: a caller that finds the crew busy does
// its work alone.
class Crew {
 public:
  // threads: 0: as many as there are cores.
  explicit Crew(int threads = 0);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  int size() const;  // threads, the caller's included

  using Part = std::function<void(std::int64_t begin, std::int64_t end)>;
  // Calls `part` for ranges that make up [0, count), each of at least `grain` where there are so many,
  // and returns when all have run. What one of them throws is thrown here.
  void run(std::int64_t count, std::int64_t grain, const Part& part);
  void run(std::int64_t count, const Part& part) { run(count, 1, part); }

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nvllm::cpu
