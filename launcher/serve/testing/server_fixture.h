// ServerFixture: a server with a mock engine, its thread, and a tiny model's texts.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "launcher/serve/server.h"
#include "launcher/serve/testing/mock_engine.h"
#include "launcher/serve/testing/raw_client.h"
#include "launcher/testing/text_folder.h"

namespace nvllm::testing {

class ServerFixture {
 public:
  explicit ServerFixture(
      launcher::ServeOptions options = {},
      launcher::MockEngineOptions engine = {.step = std::chrono::milliseconds(1)},
      bool open_engine = true)
      : text_(launcher::TextModel::open(folder_.path())), engine_([&] {
          const auto ids = text_.tokenizer().encode("Hello there, world. ", false);
          engine.tokens.assign(ids.begin(), ids.end());
          return engine;
        }()) {
    options.port = 0;
    server_.emplace(options);
    server_->start();
    if (open_engine) open();
  }
  ~ServerFixture() {
    end_engine();
    server_.reset();
  }

  void open(const std::vector<std::string>& model_names = {"tiny"}) {
    server_->open(engine_, {.text = &text_, .max_model_len = 100000, .model_names = model_names},
                  {.model_name = model_names.front()});
    thread_ = std::thread([this] {
      while (!stop_) {
        const auto updates = engine_.poll(std::chrono::milliseconds(10));
        server_->apply(updates, engine_.load());
        server_->tick();
      }
    });
  }
  // The engine's thread ends; requests are not served any more.
  void end_engine() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    stop_ = false;
  }

  launcher::Server& server() { return *server_; }
  const launcher::Server& server() const { return *server_; }
  launcher::MockEngine& engine() { return engine_; }
  const launcher::MockEngine& engine() const { return engine_; }
  RawClient client(int receive_buffer = 0) const {
    return RawClient(server_->port(), receive_buffer);
  }

  // Waits until it is true, for at most ten seconds.
  template <typename Condition>
  static bool becomes(Condition condition) {
    for (int i = 0; i < 2000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

 private:
  TextFolder folder_;
  launcher::TextModel text_;
  launcher::MockEngine engine_;
  std::optional<launcher::Server> server_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace nvllm::testing
