// What the Python classes hold: an engine, a stream, a mailbox. Everything about living with an interpreter is here:
// its lock (the GIL) is let go in whatever waits or works, signals are looked at while waiting, refusals become
// exceptions. Names and types of the module are python_module.cc.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/typing.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "deepinfer/llm.h"

namespace deepinfer::python {

// Updates of any number of requests, for a reader that waits on a file descriptor (an event loop). The engine's thread
// fills it without touching the interpreter.
class Mailbox {
 public:
  Mailbox();  // throws std::runtime_error if there is no descriptor left
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  int fileno() const { return event_; }  // readable while updates are in it
  void put(RequestOutput update);        // any thread
  std::vector<RequestOutput> take();     // all that are in it, oldest first

 private:
  int event_;
  std::mutex mutex_;
  std::vector<RequestOutput> updates_;
};

// The engine's thread shares the mailbox and never this, or it would need the interpreter's lock to let go of it.
struct MailboxHandle {
  std::shared_ptr<Mailbox> mailbox = std::make_shared<Mailbox>();
};

// Outlives its engine safely. One reader.
class StreamHandle {
 public:
  explicit StreamHandle(std::unique_ptr<RequestStream> stream) : stream_(std::move(stream)) {}

  RequestId id() const { return stream_->id(); }
  // Waits; nothing after the final update. Throws what a signal handler raised (KeyboardInterrupt).
  std::optional<RequestOutput> next();
  void cancel();

 private:
  std::unique_ptr<RequestStream> stream_;
  bool ended_ = false;
};

// Methods throw std::runtime_error once closed. Any thread.
class EngineHandle {
 public:
  explicit EngineHandle(const Settings& settings);  // throws ValueError with the engine's message

  // progress: None or called with (finished, total) some times a second; what it raises, or a signal handler, cancels
  // what has not finished and is thrown from here.
  using Progress = std::optional<nanobind::typed<nanobind::callable, void(size_t, size_t)>>;
  std::vector<RequestOutput> generate(std::vector<Request> requests, const Progress& progress);
  std::unique_ptr<StreamHandle> stream(Request request);
  RequestId submit(Request request, const MailboxHandle& handle);
  void cancel(RequestId id);

  // Cancels what has not finished and waits for the engine's threads. A second call does nothing.
  void close();
  bool is_closed() const { return closed_; }

  EngineStats stats() const;
  std::string timer_table() const;
  std::string fingerprint() const;
  int64_t max_model_len() const;
  int64_t vocab_size() const;
  std::vector<int32_t> tokenize(const std::string& text) const;
  std::string detokenize(const std::vector<int32_t>& tokens) const;
  std::vector<std::string> detokenize_each(const std::vector<int32_t>& tokens) const;
  std::vector<int32_t> encode_chat(const std::string& messages_json, const std::string& options_json) const;

 private:
  // Kept by whoever uses it, so that close() in another thread takes nothing away from under a call.
  std::shared_ptr<LLM> open() const;

  mutable std::mutex mutex_;
  std::shared_ptr<LLM> llm_;
  std::atomic<bool> closed_ = false;
};

}  // namespace deepinfer::python
