#include "engine_handle.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <utility>

namespace deepinfer::python {
namespace {

namespace nb = nanobind;

// How long Ctrl-C may go unnoticed.
constexpr std::chrono::milliseconds kSignalInterval{50};

// The public API tells reasons by message alone. These two are about the engine's state and may pass; all others are
// about the request.
[[noreturn]] void refuse(const std::string& message) {
  const bool is_state = message.find("the queue is full") != std::string::npos ||
                        message.find("the engine is shutting down") != std::string::npos;
  if (is_state) throw std::runtime_error(message);
  throw nb::value_error(message.c_str());
}

}  // namespace

Mailbox::Mailbox() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (event_ < 0) throw std::runtime_error(std::string("no file descriptor for updates: ") + std::strerror(errno));
}

Mailbox::~Mailbox() { ::close(event_); }

void Mailbox::put(RequestOutput update) {
  const std::lock_guard lock(mutex_);
  updates_.push_back(std::move(update));
  if (updates_.size() == 1) eventfd_write(event_, 1);
}

std::vector<RequestOutput> Mailbox::take() {
  const std::lock_guard lock(mutex_);
  eventfd_t count;
  eventfd_read(event_, &count);
  return std::exchange(updates_, {});
}

std::optional<RequestOutput> StreamHandle::next() {
  while (!ended_) {
    std::optional<RequestOutput> update;
    {
      const nb::gil_scoped_release unlocked;
      update = stream_->next_for(kSignalInterval);
    }
    if (update) {
      ended_ = update->finished;
      return update;
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
  return std::nullopt;
}

void StreamHandle::cancel() {
  const nb::gil_scoped_release unlocked;
  stream_->cancel();
}

EngineHandle::EngineHandle(const Settings& settings) {
  std::string error;
  {
    const nb::gil_scoped_release unlocked;
    llm_ = LLM::create(settings, error);
  }
  if (!llm_) throw nb::value_error(error.c_str());
}

std::shared_ptr<LLM> EngineHandle::open() const {
  const std::lock_guard lock(mutex_);
  if (!llm_) throw std::runtime_error("this LLM is closed; make a new one");
  return llm_;
}

std::vector<RequestOutput> EngineHandle::generate(std::vector<Request> requests, const Progress& progress) {
  std::shared_ptr<LLM> llm = open();
  std::optional<nb::python_error> raised;
  const auto on_progress = [&](size_t finished, size_t total) {
    if (closed_) return false;
    const nb::gil_scoped_acquire locked;
    try {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (progress) (*progress)(finished, total);
      return true;
    } catch (nb::python_error& error) {
      raised.emplace(std::move(error));
      return false;
    }
  };
  std::string error;
  std::vector<RequestOutput> outputs;
  {
    const nb::gil_scoped_release unlocked;
    outputs = llm->generate(std::move(requests), error, on_progress);
    llm.reset();  // after close(), the last one out shuts the engine down: not with the GIL
  }
  if (raised) throw nb::python_error(std::move(*raised));
  if (closed_) throw std::runtime_error("this LLM was closed while it generated");
  if (!error.empty()) refuse(error);
  return outputs;
}

std::unique_ptr<StreamHandle> EngineHandle::stream(Request request) {
  const std::shared_ptr<LLM> llm = open();
  std::string error;
  std::unique_ptr<RequestStream> stream;
  {
    const nb::gil_scoped_release unlocked;
    stream = llm->engine().submit(std::move(request), error);
  }
  if (!stream) refuse(error);
  return std::make_unique<StreamHandle>(std::move(stream));
}

RequestId EngineHandle::submit(Request request, const MailboxHandle& handle) {
  const std::shared_ptr<LLM> llm = open();
  std::string error;
  RequestId id = 0;
  {
    const nb::gil_scoped_release unlocked;
    id = llm->engine().submit(
        std::move(request), [mailbox = handle.mailbox](RequestOutput update) { mailbox->put(std::move(update)); },
        error);
  }
  if (id == 0) refuse(error);
  return id;
}

void EngineHandle::cancel(RequestId id) {
  std::shared_ptr<LLM> llm;
  {
    const std::lock_guard lock(mutex_);
    llm = llm_;
  }
  if (llm) llm->engine().cancel(id);  // a closed engine has cancelled everything
}

void EngineHandle::close() {
  const nb::gil_scoped_release unlocked;
  std::shared_ptr<LLM> llm;
  {
    const std::lock_guard lock(mutex_);
    llm = std::move(llm_);
    closed_ = true;
  }
}

EngineStats EngineHandle::stats() const { return open()->engine().stats(); }
std::string EngineHandle::timer_table() const { return open()->engine().timer_table(); }
std::string EngineHandle::fingerprint() const { return open()->engine().fingerprint(); }
int64_t EngineHandle::max_model_len() const { return open()->engine().max_model_len(); }
int64_t EngineHandle::vocab_size() const { return open()->engine().vocab_size(); }

std::vector<int32_t> EngineHandle::tokenize(const std::string& text) const {
  const std::shared_ptr<LLM> llm = open();
  const nb::gil_scoped_release unlocked;
  return llm->engine().tokenize(text);
}

std::string EngineHandle::detokenize(const std::vector<int32_t>& tokens) const {
  const std::shared_ptr<LLM> llm = open();
  const nb::gil_scoped_release unlocked;
  return llm->engine().detokenize(tokens);
}

std::vector<std::string> EngineHandle::detokenize_each(const std::vector<int32_t>& tokens) const {
  const std::shared_ptr<LLM> llm = open();
  const nb::gil_scoped_release unlocked;
  std::vector<std::string> texts;
  for (const int32_t token : tokens) texts.push_back(llm->engine().detokenize({token}));
  return texts;
}

std::vector<int32_t> EngineHandle::encode_chat(const std::string& messages_json,
                                               const std::string& options_json) const {
  const std::shared_ptr<LLM> llm = open();
  std::string error;
  std::optional<std::vector<int32_t>> tokens;
  {
    const nb::gil_scoped_release unlocked;
    tokens = llm->engine().encode_chat(messages_json, options_json, error);
  }
  if (!tokens) throw nb::value_error(error.c_str());
  return std::move(*tokens);
}

}  // namespace deepinfer::python
