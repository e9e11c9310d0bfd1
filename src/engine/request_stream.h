// QueuedStream: the updates of one request between the engine's thread and a reader's.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "deepinfer/engine.h"

namespace deepinfer {

// Appends `update` to an update that was not read yet, so that both read as one.
void append_update(RequestOutput& total, RequestOutput update);

class QueuedStream final : public RequestStream {
 public:
  // What the engine's thread and the reader share; lives as long as either.
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<RequestOutput> ready;
    bool ended = false;            // the final update is in `ready` or was read
    std::function<void()> cancel;  // empty once the engine is gone
  };

  QueuedStream(RequestId id, std::shared_ptr<Shared> shared) : id_(id), shared_(std::move(shared)) {}
  ~QueuedStream() override { cancel(); }

  static void push(Shared& shared, RequestOutput update);

  RequestId id() const override { return id_; }
  std::optional<RequestOutput> next() override;
  std::optional<RequestOutput> next_for(std::chrono::milliseconds timeout) override;
  void cancel() override;

 private:
  std::optional<RequestOutput> take();  // Requires: the lock

  RequestId id_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace deepinfer
