// The extension module deepinfer._engine: names and types for what engine_handle.h does. Whatever is pleasant to use is
// written in Python above it (python/deepinfer); this module is not for users.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "deepinfer/llm.h"
#include "engine_handle.h"

namespace deepinfer::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

void add_request(nb::module_& m) {
  nb::class_<SamplingParams>(m, "SamplingParams")
      .def(nb::init<>())
      .def_rw("n", &SamplingParams::n)
      .def_rw("temperature", &SamplingParams::temperature)
      .def_rw("top_p", &SamplingParams::top_p)
      .def_rw("top_k", &SamplingParams::top_k)
      .def_rw("min_p", &SamplingParams::min_p)
      .def_rw("presence_penalty", &SamplingParams::presence_penalty)
      .def_rw("frequency_penalty", &SamplingParams::frequency_penalty)
      .def_rw("repetition_penalty", &SamplingParams::repetition_penalty)
      .def_rw("logit_bias", &SamplingParams::logit_bias)
      .def_rw("allowed_token_ids", &SamplingParams::allowed_token_ids)
      .def_rw("bad_words", &SamplingParams::bad_words)
      .def_rw("seq_seed", &SamplingParams::seq_seed)
      .def_rw("max_tokens", &SamplingParams::max_tokens)
      .def_rw("min_tokens", &SamplingParams::min_tokens)
      .def_rw("ignore_eos", &SamplingParams::ignore_eos)
      .def_rw("stop_token_ids", &SamplingParams::stop_token_ids)
      .def_rw("stop", &SamplingParams::stop)
      .def_rw("include_stop_str_in_output", &SamplingParams::include_stop_str_in_output)
      .def_rw("logprobs", &SamplingParams::logprobs)
      .def_rw("prompt_logprobs", &SamplingParams::prompt_logprobs)
      .def_rw("skip_special_tokens", &SamplingParams::skip_special_tokens)
      .def_rw("detokenize", &SamplingParams::detokenize);
  nb::class_<Request>(m, "Request")
      .def(nb::init<>())
      .def_rw("prompt", &Request::prompt)
      .def_rw("prompt_tokens", &Request::prompt_tokens)
      .def_rw("sampling", &Request::sampling)
      .def_rw("priority", &Request::priority)
      .def_rw("cache_salt", &Request::cache_salt)
      .def_rw("timeout_seconds", &Request::timeout_seconds);
}

void add_output(nb::module_& m) {
  nb::class_<TokenLogprob>(m, "TokenLogprob")
      .def_ro("token", &TokenLogprob::token)
      .def_ro("logprob", &TokenLogprob::logprob);
  nb::class_<TokenLogprobs>(m, "TokenLogprobs")
      .def_ro("token", &TokenLogprobs::token)
      .def_ro("logprob", &TokenLogprobs::logprob)
      .def_ro("rank", &TokenLogprobs::rank)
      .def_ro("best", &TokenLogprobs::best);
  nb::class_<Completion>(m, "Completion")
      .def_ro("index", &Completion::index)
      .def_ro("text", &Completion::text)
      .def_ro("tokens", &Completion::tokens)
      .def_ro("logprobs", &Completion::logprobs)
      .def_ro("cumulative_logprob", &Completion::cumulative_logprob)
      .def_prop_ro("finish_reason",
                   [](const Completion& c) -> std::optional<std::string> {
                     if (!c.finish_reason) return std::nullopt;
                     return name_of(*c.finish_reason);
                   })
      .def_ro("stop_reason", &Completion::stop_reason);
  nb::class_<RequestMetrics>(m, "RequestMetrics")
      .def_ro("queue_seconds", &RequestMetrics::queue_seconds)
      .def_ro("first_token_seconds", &RequestMetrics::first_token_seconds)
      .def_ro("total_seconds", &RequestMetrics::total_seconds)
      .def_ro("num_preemptions", &RequestMetrics::num_preemptions);
  nb::class_<RequestOutput>(m, "RequestOutput")
      .def_ro("id", &RequestOutput::id)
      .def_ro("finished", &RequestOutput::finished)
      .def_ro("error", &RequestOutput::error)
      .def_ro("prompt_tokens", &RequestOutput::prompt_tokens)
      .def_ro("prompt_logprobs", &RequestOutput::prompt_logprobs)
      .def_ro("completions", &RequestOutput::completions)
      .def_ro("num_cached_tokens", &RequestOutput::num_cached_tokens)
      .def_ro("seq_seed", &RequestOutput::seq_seed)
      .def_ro("fingerprint", &RequestOutput::fingerprint)
      .def_ro("metrics", &RequestOutput::metrics);
  nb::class_<EngineStats>(m, "EngineStats")
      .def_ro("waiting", &EngineStats::waiting)
      .def_ro("running", &EngineStats::running)
      .def_ro("prefill_steps", &EngineStats::prefill_steps)
      .def_ro("decode_steps", &EngineStats::decode_steps)
      .def_ro("prompt_tokens_computed", &EngineStats::prompt_tokens_computed)
      .def_ro("prompt_tokens_cached", &EngineStats::prompt_tokens_cached)
      .def_ro("tokens_delivered", &EngineStats::tokens_delivered)
      .def_ro("preemptions", &EngineStats::preemptions)
      .def_ro("wasted_rows", &EngineStats::wasted_rows)
      .def_ro("device_seconds", &EngineStats::device_seconds)
      .def_ro("device_idle_seconds", &EngineStats::device_idle_seconds)
      .def_ro("cache_units", &EngineStats::cache_units)
      .def_ro("cache_used", &EngineStats::cache_used);
}

void add_engine(nb::module_& m) {
  nb::class_<MailboxHandle>(m, "Mailbox")
      .def(nb::init<>())
      .def("fileno", [](const MailboxHandle& handle) { return handle.mailbox->fileno(); })
      .def("take", [](const MailboxHandle& handle) { return handle.mailbox->take(); });
  nb::class_<StreamHandle>(m, "Stream")
      .def_prop_ro("id", &StreamHandle::id)
      .def("next", &StreamHandle::next)
      .def("cancel", &StreamHandle::cancel);
  nb::class_<EngineHandle>(m, "Engine")
      .def(nb::init<const Settings&>(), "settings"_a)
      .def("generate", &EngineHandle::generate, "requests"_a, "progress"_a)
      .def("stream", &EngineHandle::stream, "request"_a)
      .def("submit", &EngineHandle::submit, "request"_a, "mailbox"_a)
      .def("cancel", &EngineHandle::cancel, "id"_a)
      .def("close", &EngineHandle::close)
      .def_prop_ro("is_closed", &EngineHandle::is_closed)
      .def("stats", &EngineHandle::stats)
      .def("timer_table", &EngineHandle::timer_table)
      .def_prop_ro("fingerprint", &EngineHandle::fingerprint)
      .def_prop_ro("max_model_len", &EngineHandle::max_model_len)
      .def_prop_ro("vocab_size", &EngineHandle::vocab_size)
      .def("tokenize", &EngineHandle::tokenize, "text"_a)
      .def("detokenize", &EngineHandle::detokenize, "tokens"_a)
      .def("detokenize_each", &EngineHandle::detokenize_each, "tokens"_a)
      .def("encode_chat", &EngineHandle::encode_chat, "messages_json"_a, "options_json"_a);
}

}  // namespace

NB_MODULE(_engine, m) {
  // A program may end with an LLM still open: the operating system frees it, and a warning would help nobody.
  nb::set_leak_warnings(false);
  m.doc() = "The engine, for the package deepinfer alone.";
  m.def("version", [] { return DEEPINFER_VERSION; });
  add_request(m);
  add_output(m);
  add_engine(m);
}

}  // namespace deepinfer::python
