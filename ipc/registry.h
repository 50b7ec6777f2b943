// Registry: the methods that others may call in this process, by name.
//
//   registry.bind<&Worker::echo>("echo", &worker);
//   registry.bind("add", [](int a, int b) { return a + b; });
//
// A call is a message: name, hash of the argument types, arguments (write_call). dispatch() runs it
// and writes the answer: true and the result, or false and what went wrong.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "ipc/archive.h"
#include "ipc/signature.h"

namespace nvllm::ipc {

// Appends a call to a message.
template <typename... Args>
void write_call(ArchiveWriter& message, std::string_view method, const Args&... args) {
  message(method, signature_hash<Args...>(), args...);
}

// Binding is for start-up; afterwards dispatch() may be used by one thread at a time.
class Registry {
 public:
  // The object must outlive the registry. A name can be bound once.
  template <auto Method, typename Object>
  void bind(std::string name, Object* object) {
    bind_method(std::move(name), object, Method);
  }
  template <typename Callable>
  void bind(std::string name, Callable callable) {
    if constexpr (std::is_pointer_v<Callable>) {
      bind_function(std::move(name), callable, callable);
    } else {
      bind_callable(std::move(name), std::move(callable), &Callable::operator());
    }
  }

  // Runs the call that the message continues with. True: reply continues with true and the result.
  // False: with false and a message; the method threw, is unknown, or takes other types. Errors
  // that concern the whole group (GroupAborted, PeerTimeout) are not replies, they pass.
  bool dispatch(ArchiveReader& message, ArchiveWriter& reply) const;

 private:
  struct Method {
    std::uint64_t signature = 0;
    std::string signature_text;
    std::function<void(ArchiveReader&, ArchiveWriter&)> run;
  };

  template <typename Object, typename Class, typename Return, typename... Args>
  void bind_method(std::string name, Object* object, Return (Class::*method)(Args...)) {
    add<Return, Args...>(std::move(name), [object, method](Args... args) -> Return {
      return (object->*method)(std::forward<Args>(args)...);
    });
  }
  template <typename Object, typename Class, typename Return, typename... Args>
  void bind_method(std::string name, Object* object, Return (Class::*method)(Args...) const) {
    add<Return, Args...>(std::move(name), [object, method](Args... args) -> Return {
      return (object->*method)(std::forward<Args>(args)...);
    });
  }
  template <typename Callable, typename Return, typename... Args>
  void bind_function(std::string name, Callable callable, Return (*)(Args...)) {
    add<Return, Args...>(std::move(name), std::move(callable));
  }
  template <typename Callable, typename Return, typename... Args>
  void bind_callable(std::string name, Callable callable, Return (Callable::*)(Args...) const) {
    add<Return, Args...>(std::move(name), std::move(callable));
  }
  template <typename Callable, typename Return, typename... Args>
  void bind_callable(std::string name, Callable callable, Return (Callable::*)(Args...)) {
    add<Return, Args...>(std::move(name), std::move(callable));
  }

  template <typename Return, typename... Args, typename Function>
  void add(std::string name, Function function) {
    insert(std::move(name),
           {signature_hash<Args...>(), signature_text<Args...>(),
            [function = std::move(function)](ArchiveReader& message, ArchiveWriter& reply) mutable {
              std::tuple<CanonicalType<Args>...> args;
              message(args);
              message.finish();
              if constexpr (std::is_void_v<Return>) {
                std::apply(function, std::move(args));
                reply(true);
              } else {
                // The result first: should the method throw, nothing of a success was written.
                const auto result = std::apply(function, std::move(args));
                reply(true, result);
              }
            }});
  }
  void insert(std::string name, Method method);
  void run(ArchiveReader& message, ArchiveWriter& reply) const;

  std::unordered_map<std::string, Method> methods_;
};

}  // namespace nvllm::ipc
