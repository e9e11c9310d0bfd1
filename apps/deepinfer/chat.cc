// `deepinfer chat`: a conversation in the terminal.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include <nlohmann/json.hpp>

#include "deepinfer/engine_flags.h"
#include "engine/request_stream.h"
#include "sampling/validate.h"
#include "text/output_parser.h"

namespace deepinfer::app {
namespace {

using Json = nlohmann::json;

struct Flags {
  EngineFlags engine;
  SamplingFlags sampling;
  std::string system;
  bool thinking = false;
  bool stats = false;
  int effort = 75;
};

constexpr char kHelp[] =
    "/clear forgets the conversation, /think switches thinking, /exit or Ctrl-D leaves.\n"
    "Ctrl-C stops the answer.\n";

enum class Input { kLine, kEnd, kInterrupted };

// One line of standard input without its end.
Input read_line(std::string& line) {
  char* buffer = nullptr;
  size_t capacity = 0;
  errno = 0;
  const ssize_t length = ::getline(&buffer, &capacity, stdin);
  const bool was_interrupted = length < 0 && errno == EINTR;
  if (length >= 0) line.assign(buffer, length);
  std::free(buffer);
  if (was_interrupted) {
    std::clearerr(stdin);
    return Input::kInterrupted;
  }
  if (length < 0) return Input::kEnd;
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  return Input::kLine;
}

std::string to_text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// Writes an answer as it streams: reasoning dimmed, tool calls named.
class AnswerPrinter {
 public:
  void print(const std::vector<OutputDelta>& deltas) {
    for (const OutputDelta& delta : deltas) {
      switch (delta.kind) {
        case OutputDelta::Kind::kReasoning:
          set_dim(true);
          reasoning += delta.text;
          write(delta.text);
          break;
        case OutputDelta::Kind::kContent:
          set_dim(false);
          content += delta.text;
          write(delta.text);
          break;
        case OutputDelta::Kind::kCallBegin:
          set_dim(true);
          write("\n[calls " + delta.call_name + "(");
          break;
        case OutputDelta::Kind::kCallArguments:
          write(delta.text);
          break;
        case OutputDelta::Kind::kCallEnd:
          write(")]");
          break;
      }
    }
    std::fflush(stdout);
  }
  void finish() {
    set_dim(false);
    write("\n");
    std::fflush(stdout);
  }

  std::string reasoning;
  std::string content;

 private:
  static void write(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }
  void set_dim(bool dim) {
    if (dim == is_dim_) return;
    if (is_terminal_) write(dim ? "\033[2m" : "\033[0m");
    if (!dim && !reasoning.empty()) write("\n\n");
    is_dim_ = dim;
  }

  const bool is_terminal_ = isatty(STDOUT_FILENO) != 0;
  bool is_dim_ = false;
};

class Conversation {
 public:
  Conversation(const Flags& flags, const RunningEngine& running)
      : flags_(flags), running_(running), is_thinking_(flags.thinking) {
    clear();
  }

  void clear() {
    messages_ = Json::array();
    if (!flags_.system.empty()) messages_.push_back({{"role", "system"}, {"content", flags_.system}});
  }
  bool toggle_thinking() { return is_thinking_ = !is_thinking_; }

  Status answer(const std::string& text) {
    messages_.push_back({{"role", "user"}, {"content", text}});
    Status status = answer_last();
    if (!status.ok()) messages_.erase(messages_.size() - 1);  // the conversation goes on without it
    return status;
  }

 private:
  // The engine keeps what it processed: of a conversation only what is new is computed.
  Status answer_last() {
    const Json options = {{"thinking", {{"type", is_thinking_ ? "enabled" : "disabled"}}},
                          {"reasoning_effort", flags_.effort}};
    std::string error;
    std::optional<std::vector<int32_t>> prompt =
        running_.engine->encode_chat(to_text(messages_), to_text(options), error);
    if (!prompt) return invalid_input("{}", error);
    Request request{.prompt_tokens = std::move(*prompt),
                    .sampling = sampling_params(flags_.sampling, running_.suggested)};
    request.sampling.skip_special_tokens = false;  // the parser looks for them
    interrupted() = false;
    const std::unique_ptr<RequestStream> stream = running_.engine->submit(std::move(request), error);
    if (!stream) return invalid_input("{}", error);
    AnswerPrinter printer;
    const RequestOutput output = read(*stream, printer);
    interrupted() = false;
    if (!output.error.empty()) return io_error("{}", output.error);
    if (flags_.stats || isatty(STDERR_FILENO)) {
      const bool colours = isatty(STDERR_FILENO) != 0;
      const bool stopped = output.completions[0].finish_reason == FinishReason::kAborted;
      std::fprintf(stderr, "%s%s%s%s\n", colours ? "\033[2m" : "", stopped ? "stopped. " : "",
                   speed_line(output).c_str(), colours ? "\033[0m" : "");
    }
    messages_.push_back(
        {{"role", "assistant"}, {"content", printer.content}, {"reasoning_content", printer.reasoning}});
    return Status();
  }

  RequestOutput read(RequestStream& stream, AnswerPrinter& printer) const {
    OutputParser parser({.is_thinking = is_thinking_});
    std::vector<OutputDelta> deltas;
    RequestOutput total;
    bool cancelled = false;
    while (!total.finished) {
      if (interrupted() && !std::exchange(cancelled, true)) stream.cancel();
      std::optional<RequestOutput> update = stream.next_for(std::chrono::milliseconds(50));
      if (!update) continue;
      deltas.clear();
      for (const Completion& news : update->completions) parser.push(news.text, deltas);
      printer.print(deltas);
      if (total.id == 0) {
        total = std::move(*update);
      } else {
        append_update(total, std::move(*update));
      }
    }
    deltas.clear();
    parser.finish(deltas);
    printer.print(deltas);
    printer.finish();
    return total;
  }

  const Flags& flags_;
  const RunningEngine& running_;
  bool is_thinking_;
  Json messages_;
};

Status chat(const Flags& flags) {
  DI_ASSIGN_OR_RETURN(const RunningEngine running, open_text_engine(flags.engine));
  DI_RETURN_IF_ERROR(validate(sampling_params(flags.sampling, running.suggested), running.engine->vocab_size()));
  Conversation conversation(flags, running);
  catch_interrupts();
  const bool is_terminal = isatty(STDIN_FILENO) != 0;
  if (is_terminal) std::printf("%s\n%s", running.engine->device_description().c_str(), kHelp);
  while (true) {
    if (is_terminal) std::printf("\n> ");
    std::fflush(stdout);
    std::string line;
    const Input input = read_line(line);
    if (input == Input::kEnd) break;
    if (input == Input::kInterrupted) {
      interrupted() = false;
      std::printf("\n(Ctrl-D leaves)");
      continue;
    }
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    if (line == "/exit" || line == "/quit") break;
    if (line == "/clear") {
      conversation.clear();
      std::printf("(a new conversation)\n");
    } else if (line == "/think") {
      std::printf("(thinking %s)\n", conversation.toggle_thinking() ? "on" : "off");
    } else if (line == "/help") {
      std::printf("%s", kHelp);
    } else if (Status status = conversation.answer(line); !status.ok()) {
      fail(status);
      if (!is_terminal) return status;
    }
  }
  if (is_terminal) std::printf("\n");
  return Status();
}

}  // namespace

Command add_chat(CLI::App& program) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = program.add_subcommand("chat", "Talk to a model in the terminal");
  command->add_option("-s,--system", flags->system, "System message");
  command->add_flag("--thinking", flags->thinking, "Let the model reason before it answers");
  command->add_option("--effort", flags->effort, "Reasoning effort")->check(CLI::Range(1, 100))->capture_default_str();
  command->add_flag("--stats", flags->stats, "Speed of each answer on stderr, also if that is no terminal");
  flags->sampling.params.max_tokens = 1024;
  command->add_option("-n,--max-tokens", flags->sampling.params.max_tokens, "Longest answer, in tokens")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  add_sampling_flags(*command, flags->sampling);
  add_engine_flags(*command, flags->engine);
  return [flags] {
    const Status status = chat(*flags);
    return status.ok() ? kExitOk : fail(status);
  };
}

}  // namespace deepinfer::app
