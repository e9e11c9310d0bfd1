// Engine: a loaded model that serves many requests at once. Thread-safe; the model runs on threads of its own.
//
//   std::string error;
//   auto engine = deepinfer::Engine::create({{"model", "models/tiny"}}, error);
//   auto stream = engine->submit({.prompt = "Once", .sampling = {.max_tokens = 20}}, error);
//   while (auto update = stream->next()) std::cout << update->completions[0].text;
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "deepinfer/request.h"

namespace deepinfer {

// Settings by name, as docs/settings.md lists them: {"max_num_seqs", "32"}. Stronger than the environment, which is
// stronger than a settings file.
using Settings = std::vector<std::pair<std::string, std::string>>;

// The updates of one request, in order. One reader; outlives the engine safely.
class RequestStream {
 public:
  virtual ~RequestStream() = default;  // cancels the request if it has not finished
  virtual RequestId id() const = 0;
  // Waits for the next update; several that are ready come as one. Nothing after the last one (finished), which also
  // comes when the engine shuts down.
  virtual std::optional<RequestOutput> next() = 0;
  // Nothing, too, if no update came in time.
  virtual std::optional<RequestOutput> next_for(std::chrono::milliseconds timeout) = 0;
  virtual void cancel() = 0;  // the final update comes all the same
};

struct EngineStats {
  int64_t waiting = 0, running = 0;
  int64_t prefill_steps = 0, decode_steps = 0;
  int64_t prompt_tokens_computed = 0, prompt_tokens_cached = 0;
  int64_t tokens_delivered = 0;
  int64_t preemptions = 0, wasted_rows = 0;
  double device_seconds = 0, device_idle_seconds = 0;  // idle: between two steps that followed on one another
  int64_t cache_units = 0;
  double cache_used = 0;  // of its blocks, [0, 1]
};

class Engine {
 public:
  // Loads the model; null with a message if anything is wrong. progress: called now and then with the share of the
  // checkpoint that is loaded, [0, 1], on the caller's thread.
  static std::unique_ptr<Engine> create(const Settings& settings, std::string& error,
                                        const std::function<void(double share)>& progress = {});
  virtual ~Engine() = default;  // aborts what has not finished

  // Null with a message naming the field, value and range if the request is not valid or the queue is full.
  virtual std::unique_ptr<RequestStream> submit(Request request, std::string& error) = 0;
  // The same with updates handed to a function on the engine's thread, which must not wait or call the engine but for
  // cancel. Returns 0 with a message on refusal. Many requests are taken or refused as one.
  using OnUpdate = std::function<void(RequestOutput)>;
  virtual RequestId submit(Request request, OnUpdate on_update, std::string& error) = 0;
  virtual void cancel(RequestId id) = 0;

  // No further requests are taken; returns when all have finished.
  virtual void drain() = 0;

  virtual EngineStats stats() const = 0;
  virtual std::string timer_table() const = 0;  // named sections of the engine's thread, for people
  virtual const std::string& fingerprint() const = 0;
  virtual std::string device_description() const = 0;  // "cpu, 2 threads, avx2 kernels"
  virtual int64_t max_model_len() const = 0;
  virtual int64_t vocab_size() const = 0;

  // Text of the model's tokenizer; empty results if the model has none.
  virtual std::vector<int32_t> tokenize(const std::string& text) const = 0;
  virtual std::string detokenize(const std::vector<int32_t>& tokens) const = 0;
  // The prompt of a conversation: messages as JSON in the form of chat completion APIs, options as JSON
  // ({"thinking": {"type": "enabled"}, "tools": [...]}). Nothing with a message if they are malformed.
  virtual std::optional<std::vector<int32_t>> encode_chat(const std::string& messages_json,
                                                          const std::string& options_json,
                                                          std::string& error) const = 0;
};

}  // namespace deepinfer
