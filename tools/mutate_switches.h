// Included by tools/mutate before each file whose operators it makes switchable. Programs share one
// mapped file: it selects the changed place, and records which places were executed.
#ifndef NVLLM_MUTATE_SWITCHES
#define NVLLM_MUTATE_SWITCHES

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <concepts>
#include <type_traits>
#include <utility>

namespace nvllm_mutate {

struct Switches {
  int changed;  // the changed place; 0: none
  // For each place: 1 executed, 2 executed with types that do not have the other operator.
  unsigned char seen[PLACES];
};

inline Switches own{};
inline constinit Switches* switches = &own;  // until the program's first initializers have run

inline bool open_switches() {
  const int fd = ::open(SWITCHES_FILE, O_RDWR | O_CLOEXEC);
  if (fd < 0) return false;
  void* mapped = ::mmap(nullptr, sizeof(Switches), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (mapped == MAP_FAILED) return false;
  switches = static_cast<Switches*>(mapped);
  return true;
}
inline const bool opened = open_switches();

constexpr bool changed(int place) {
  if (std::is_constant_evaluated()) return false;
  switches->seen[place] = 1;
  return switches->changed == place;
}

constexpr bool truth(int place, bool value) {
  return changed(place) ? !value : value;
}

// `a && b` or, if changed, `a || b`; and vice versa.
template <typename Right>
constexpr bool both(int place, bool left, Right right) {
  return changed(place) ? left || right() : left && right();
}
template <typename Right>
constexpr bool either(int place, bool left, Right right) {
  return changed(place) ? left && right() : left || right();
}

// `a < b` is rewritten to `a < Place{1} < b`, which keeps the precedence. Scalars are passed by
// value, as by the operator itself, so that a lambda need not capture a constant.
struct Place {
  int number;
};
template <typename T>
concept Scalar = std::is_scalar_v<std::decay_t<T>>;

#define NVLLM_MUTATE(NAME, OPERATOR, OTHER)                                                        \
  template <typename Left>                                                                         \
  struct NAME {                                                                                    \
    Left left;                                                                                     \
    int place;                                                                                     \
  };                                                                                               \
  template <Scalar Left>                                                                           \
  constexpr NAME<Left> operator OPERATOR(Left left, Place place) {                                 \
    return {left, place.number};                                                                   \
  }                                                                                                \
  template <typename Left>                                                                         \
  requires(!Scalar<Left>) constexpr NAME<const Left&> operator OPERATOR(const Left& left,          \
                                                                        Place place) {             \
    return {left, place.number};                                                                   \
  }                                                                                                \
  template <typename Left, typename Right>                                                         \
  constexpr auto NAME##_of(const NAME<Left>& l, const Right& r) {                                  \
    if constexpr (requires {                                                                       \
                    { l.left OTHER r } -> std::same_as<decltype(l.left OPERATOR r)>;               \
                  }) {                                                                             \
      return changed(l.place) ? l.left OTHER r : l.left OPERATOR r;                                \
    } else {                                                                                       \
      if (!std::is_constant_evaluated()) switches->seen[l.place] = 2;                              \
      return l.left OPERATOR r;                                                                    \
    }                                                                                              \
  }                                                                                                \
  template <typename Left, Scalar Right>                                                           \
  constexpr auto operator OPERATOR(const NAME<Left>& l, Right r) {                                 \
    return NAME##_of(l, r);                                                                        \
  }                                                                                                \
  template <typename Left, typename Right>                                                         \
  requires(!Scalar<Right>) constexpr auto operator OPERATOR(const NAME<Left>& l, const Right& r) { \
    return NAME##_of(l, r);                                                                        \
  }

NVLLM_MUTATE(Less, <, <=)
NVLLM_MUTATE(LessEqual, <=, <)
NVLLM_MUTATE(Greater, >, >=)
NVLLM_MUTATE(GreaterEqual, >=, >)
NVLLM_MUTATE(Equal, ==, !=)
NVLLM_MUTATE(Unequal, !=, ==)
NVLLM_MUTATE(Sum, +, -)
NVLLM_MUTATE(Difference, -, +)
#undef NVLLM_MUTATE

}  // namespace nvllm_mutate

#endif  // NVLLM_MUTATE_SWITCHES
