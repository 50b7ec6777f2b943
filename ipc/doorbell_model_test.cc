// Explores every interleaving of the doorbell's protocol (doorbell.h) and of broken variants of it.
//
// The model has one waiter and two ringers. Each step is one atomic operation, as in the code, and
// all are sequentially consistent, so every execution is an interleaving of steps. A state in which
// no process can move, but the waiter has not finished, is a lost wake-up. The waiter's sleep has
// no time limit here: the protocol must work without one.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

namespace nvllm::ipc {
namespace {

constexpr int kRingers = 2;

struct Protocol {
  bool look_after_declaring = true;    // W2
  bool drain_before_declaring = true;  // W0 comes before W1, not between W2 and W3
  bool exchange_sleeping = true;       // R2 resets the word it found; otherwise it only reads it
  bool condition_before_ring = true;   // R1 comes before R2
};

enum class Waiter : std::uint8_t { drain, declare, look, late_drain, sleep, withdraw, finished };
enum class Ringer : std::uint8_t { store, load, exchange, post, late_store, done };

// The waiter waits for `turns` events in sequence, each made by one store of each ringer.
struct State {
  Waiter waiter = Waiter::drain;
  std::array<Ringer, kRingers> ringers{};
  std::array<std::uint8_t, kRingers> sent{};  // events stored by each ringer
  std::uint8_t waited = 0;                    // events that the waiter has waited for
  std::uint8_t sleeping = 0;
  std::uint8_t tokens = 0;
  bool found = false;  // the result of W2

  auto key() const { return std::tie(waiter, ringers, sent, waited, sleeping, tokens, found); }
  bool operator<(const State& other) const { return key() < other.key(); }
};

class Model {
 public:
  Model(Protocol protocol, int turns) : protocol_(protocol), turns_(turns) { explore(); }

  std::size_t states() const { return seen_.size(); }
  bool loses_wake_up() const { return stuck_ != 0; }
  int max_tokens() const { return max_tokens_; }

 private:
  void explore() {
    State start;
    start.ringers.fill(first_ringer_step());
    std::vector<State> open = {start};
    seen_.insert(start);
    while (!open.empty()) {
      const State state = open.back();
      open.pop_back();
      max_tokens_ = std::max(max_tokens_, int{state.tokens});
      std::vector<State> next;
      step_waiter(state, next);
      for (std::size_t i = 0; i < kRingers; ++i) step_ringer(state, i, next);
      if (next.empty() && state.waiter != Waiter::finished) ++stuck_;
      for (const State& s : next) {
        if (seen_.insert(s).second) open.push_back(s);
      }
    }
  }

  // The waiter's next event has happened once both ringers have stored it.
  static bool condition(const State& s) {
    return *std::min_element(s.sent.begin(), s.sent.end()) > s.waited;
  }

  void step_waiter(State s, std::vector<State>& next) const {
    switch (s.waiter) {
      case Waiter::drain:
        if (protocol_.drain_before_declaring && s.tokens > 0) {
          --s.tokens;
        } else {
          s.waiter = Waiter::declare;
        }
        break;
      case Waiter::declare:
        s.sleeping = 1;
        s.waiter = protocol_.look_after_declaring ? Waiter::look : Waiter::sleep;
        break;
      case Waiter::look:
        s.found = condition(s);
        s.waiter = s.found                            ? Waiter::withdraw
                   : protocol_.drain_before_declaring ? Waiter::sleep
                                                      : Waiter::late_drain;
        break;
      case Waiter::late_drain:
        if (s.tokens > 0) {
          --s.tokens;
        } else {
          s.waiter = Waiter::sleep;
        }
        break;
      case Waiter::sleep:
        if (s.tokens == 0) return;  // continues to sleep
        --s.tokens;
        s.waiter = Waiter::withdraw;
        break;
      case Waiter::withdraw:
        s.sleeping = 0;
        if (s.found) {
          ++s.waited;
          s.found = false;
        }
        s.waiter = s.waited == turns_ ? Waiter::finished : Waiter::drain;
        break;
      case Waiter::finished: return;
    }
    next.push_back(s);
  }

  Ringer first_ringer_step() const {
    return protocol_.condition_before_ring ? Ringer::store : Ringer::load;
  }

  void step_ringer(State s, std::size_t i, std::vector<State>& next) const {
    const auto finish = [&] {
      s.ringers[i] = !protocol_.condition_before_ring ? Ringer::late_store
                     : s.sent[i] == turns_            ? Ringer::done
                                                      : Ringer::store;
    };
    switch (s.ringers[i]) {
      case Ringer::store:
        ++s.sent[i];
        s.ringers[i] = Ringer::load;
        break;
      case Ringer::load:
        if (s.sleeping == 0) {
          finish();
        } else {
          s.ringers[i] = protocol_.exchange_sleeping ? Ringer::exchange : Ringer::post;
        }
        break;
      case Ringer::exchange:
        if (s.sleeping == 0) {
          finish();
        } else {
          s.ringers[i] = Ringer::post;
        }
        s.sleeping = 0;
        break;
      case Ringer::post:
        ++s.tokens;
        finish();
        break;
      case Ringer::late_store:
        ++s.sent[i];
        s.ringers[i] = s.sent[i] == turns_ ? Ringer::done : Ringer::load;
        break;
      case Ringer::done: return;
    }
    next.push_back(s);
  }

  const Protocol protocol_;
  const int turns_;
  std::set<State> seen_;
  int stuck_ = 0;
  int max_tokens_ = 0;
};

}  // namespace

TEST_CASE("no interleaving of the doorbell's steps loses a wake-up") {
  const Model model(Protocol{}, 5);
  MESSAGE(model.states(), " states");
  CHECK(model.states() > 1000);
  CHECK(!model.loses_wake_up());
}

TEST_CASE("stale tokens stay bounded, however long the doorbell is used") {
  const Model few(Protocol{}, 3);
  const Model many(Protocol{}, 8);
  CHECK(few.max_tokens() == many.max_tokens());
  CHECK(many.max_tokens() <= 1 + kRingers);
}

TEST_CASE("the model finds the lost wake-up of a waiter that does not look again") {
  Protocol broken;
  broken.look_after_declaring = false;
  CHECK(Model(broken, 3).loses_wake_up());
}

TEST_CASE("the model finds the lost wake-up of a waiter that drains tokens after it has looked") {
  Protocol broken;
  broken.drain_before_declaring = false;
  CHECK(Model(broken, 3).loses_wake_up());
}

TEST_CASE("the model finds the lost wake-up of a ringer that rings before the condition is true") {
  Protocol broken;
  broken.condition_before_ring = false;
  CHECK(Model(broken, 3).loses_wake_up());
}

TEST_CASE("the model finds the growing tokens of a ringer that does not reset the word") {
  Protocol broken;
  broken.exchange_sleeping = false;
  broken.drain_before_declaring = true;
  CHECK(!Model(broken, 3).loses_wake_up());
  CHECK(Model(broken, 3).max_tokens() > Model(Protocol{}, 3).max_tokens());
}

}  // namespace nvllm::ipc
