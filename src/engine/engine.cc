#include "deepinfer/engine.h"

#include <algorithm>
#include <random>

#include <xxhash.h>

#include "backends/backends.h"
#include "base/sync_guard.h"
#include "engine/cache_budget.h"
#include "engine/engine_loop.h"
#include "engine/fingerprint.h"
#include "engine/request_stream.h"
#include "engine/settings.h"
#include "runtime/device_blocks.h"
#include "runtime/loaded_model.h"
#include "runtime/model_executor.h"
#include "runtime/rehearsal.h"
#include "sampling/philox.h"
#include "sampling/validate.h"
#include "text/bad_words.h"
#include "text/chat_encoding.h"
#include "text/json_text.h"
#include "transfer/disk_store.h"
#include "transfer/tier_worker.h"

extern char** environ;

namespace deepinfer {
namespace {

// Settings that only the loaded model can complete.
struct Limits {
  SchedulerOptions scheduler;
  CacheBudget cache;
  std::vector<int32_t> host_blocks;  // empty: no tier below the device
};

// The bytes of the cache's tiers.
struct Tiers {
  std::unique_ptr<DeviceBlocks> device;
  std::unique_ptr<HostBlocks> host;
  std::unique_ptr<DiskStore> disk;
  std::vector<UnitRecord> found_on_disk;
  ContentKey fingerprint;
};

Result<ReplayOptions> replay_options(const EngineSettings& settings, const Model& model) {
  ReplayOptions replay;
  if (settings.yoco_prefill_keep_tokens == 0) return replay;
  if (model.plan().first_decoder_layer < 0) {
    return Status(ErrorCode::kUnsupported,
                  "yoco_prefill_keep_tokens: this model has no layers that a prompt could skip (its last source of "
                  "compressed rows is followed by others, or compresses); set it to 0");
  }
  replay.mode = settings.yoco_prefill_truncation_mode == "mask" ? ReplayMode::kMask : ReplayMode::kCompact;
  const int64_t window = model.config().sliding_window;
  replay.keep_tokens = settings.yoco_prefill_keep_tokens == kExactKeepTokens
                           ? model.plan().exact_decoder_suffix(window, 2 * settings.max_backtracking_tokens)
                           : settings.yoco_prefill_keep_tokens;
  DI_RETURN_IF_ERROR(check_replay(replay, window, settings.max_backtracking_tokens, settings.zero_overhead_scheduling));
  return replay;
}

// Rows of the largest steps.
StepInputs::Shape largest_step(const SchedulerOptions& options) {
  const int64_t tokens = std::max<int64_t>(options.max_num_batched_tokens, options.max_num_seqs);
  return {.tokens = tokens,
          .kept = options.replay.mode == ReplayMode::kCompact ? tokens : 0,
          .logits = options.max_num_seqs};
}

// What the cache may take. A device with memory of its own has nothing else to do with what steps leave; the memory of
// the host serves others too.
CacheMemory cache_memory(const Device& device) {
  const int64_t free = device.shares_host_memory() ? free_memory() : device.free_bytes();
  return {.free = free, .by_default = device.shares_host_memory() ? free / 2 : free - free / 10};
}

Result<SchedulerOptions> scheduler_options(const EngineSettings& settings, const Model& model) {
  SchedulerOptions s;
  const int64_t context = model.config().max_position_embeddings;
  if (settings.max_model_len > context) {
    return invalid_input("max_model_len {}: the model's context is {}", settings.max_model_len, context);
  }
  s.max_num_seqs = static_cast<int32_t>(settings.max_num_seqs);
  s.max_queued = static_cast<int32_t>(settings.max_queued_requests);
  s.max_num_batched_tokens = settings.max_num_batched_tokens;
  s.max_model_len = settings.max_model_len == 0 ? context : settings.max_model_len;
  s.long_prefill_tokens = settings.long_prefill_tokens;
  s.max_long_prefills = static_cast<int32_t>(settings.max_long_prefills);
  s.prefix_unit_interval = settings.prefix_unit_interval;
  s.max_backtracking = settings.max_backtracking_tokens;
  DI_ASSIGN_OR_RETURN(s.replay, replay_options(settings, model));
  return s;
}

Result<Limits> plan_limits(const EngineSettings& settings, const SchedulerOptions& options, const Device& device,
                           const Model& model) {
  Limits limits{.scheduler = options};
  SchedulerOptions& s = limits.scheduler;
  const CacheMemory memory = cache_memory(device);
  Result<CacheBudget> budget = plan_cache(model.kv_layout().cache, s, settings.kv_cache_bytes, memory);
  // A context that nobody asked for is cut to what fits.
  while (!budget.ok() && settings.max_model_len == 0 && s.max_model_len > 4096) {
    s.max_model_len /= 2;
    budget = plan_cache(model.kv_layout().cache, s, settings.kv_cache_bytes, memory);
  }
  DI_ASSIGN_OR_RETURN(limits.cache, std::move(budget));
  if (settings.host_cache_bytes > 0) {
    DI_ASSIGN_OR_RETURN(limits.host_blocks,
                        plan_host_cache(model.kv_layout().cache, limits.cache, settings.host_cache_bytes));
  }
  return limits;
}

Result<Tiers> open_tiers(const EngineSettings& settings, Device& device, const Limits& limits,
                         const CacheLayout& layout, const std::string& fingerprint) {
  Tiers tiers;
  tiers.fingerprint = cache_fingerprint(layout, fingerprint);
  DI_ASSIGN_OR_RETURN(tiers.device, DeviceBlocks::allocate(device, layout, limits.cache.num_blocks));
  if (limits.host_blocks.empty()) return tiers;
  HostBlocks::Memory memory = HostBlocks::map_memory;
  if (!device.shares_host_memory()) memory = [&device](int64_t bytes) { return device.allocate_pinned(bytes); };
  DI_ASSIGN_OR_RETURN(tiers.host, HostBlocks::allocate(layout, limits.host_blocks, memory));
  if (settings.disk_cache_dir.empty()) return tiers;
  DiskStoreOptions options{.directory = settings.disk_cache_dir, .fingerprint = tiers.fingerprint};
  if (settings.disk_cache_bytes > 0) options.max_bytes = settings.disk_cache_bytes;
  tiers.disk = DiskStore::open(options);
  // A folder that cannot be used is the user's mistake, and better told than served without.
  if (!tiers.disk->status().ok()) {
    return invalid_input("disk_cache_dir {}: {}", settings.disk_cache_dir, tiers.disk->status().message());
  }
  tiers.found_on_disk = tiers.disk->take_units();
  return tiers;
}

class EngineImpl final : public Engine {
 public:
  EngineImpl(std::unique_ptr<Device> device, LoadedModel loaded, const EngineSettings& settings, const Limits& limits,
             std::string fingerprint, Tiers tiers)
      : device_(std::move(device)),
        loaded_(std::move(loaded)),
        limits_(limits),
        fingerprint_(std::move(fingerprint)),
        cache_(loaded_.model->kv_layout().cache, {.num_blocks = limits.cache.num_blocks,
                                                  .prefix_caching = settings.enable_prefix_caching,
                                                  .num_host_blocks = limits.host_blocks,
                                                  .disk = tiers.disk != nullptr,
                                                  .fingerprint = tiers.fingerprint}),
        scheduler_(limits.scheduler, tell_cache(tiers.found_on_disk)),
        host_blocks_(std::move(tiers.host)),
        disk_(tiers.disk ? std::make_unique<TierWorker>(std::move(tiers.disk), *host_blocks_) : nullptr),
        executor_(*device_, *loaded_.model, std::move(tiers.device), host_blocks_.get(), limits.scheduler.max_num_seqs),
        loop_({.voting = {.all_interval = settings.prefill_attempt_interval,
                          .any_interval = settings.prefill_any_attempt_interval,
                          .low_occupancy = static_cast<int32_t>(settings.prefill_low_occupancy),
                          .max_prefill_steps = settings.max_prefill_steps},
               .overlap = settings.zero_overhead_scheduling,
               .max_queued = settings.max_queued_requests,
               .fingerprint = fingerprint_,
               .eos_tokens = loaded_.stop_tokens},
              scheduler_, cache_, executor_, disk_.get()) {}

  std::unique_ptr<RequestStream> submit(Request request, std::string& error) override {
    auto shared = std::make_shared<QueuedStream::Shared>();
    const RequestId id = submit(
        std::move(request), [shared](RequestOutput update) { QueuedStream::push(*shared, std::move(update)); }, error);
    if (id == 0) return nullptr;
    // The reader may outlive the engine: by then the final update has come, and nothing is left to cancel.
    {
      const std::lock_guard lock(shared->mutex);
      shared->cancel = [this, id] { cancel(id); };
    }
    return std::make_unique<QueuedStream>(id, std::move(shared));
  }

  RequestId submit(Request request, OnUpdate on_update, std::string& error) override {
    Result<PreparedRequest> prepared = prepare(std::move(request), std::move(on_update));
    if (!prepared.ok()) {
      error = prepared.status().message();
      return 0;
    }
    const RequestId id = prepared.value().active->id();
    const Status status = loop_.submit(std::move(prepared).value());
    error = status.ok() ? "" : status.message();
    return status.ok() ? id : 0;
  }

  void cancel(RequestId id) override { loop_.cancel(id); }
  void drain() override { loop_.drain(); }
  EngineStats stats() const override { return loop_.stats(); }
  std::string timer_table() const override { return loop_.timer_table(); }
  const std::string& fingerprint() const override { return fingerprint_; }
  std::string device_description() const override { return device_->description(); }
  int64_t max_model_len() const override { return limits_.scheduler.max_model_len; }
  int64_t vocab_size() const override { return loaded_.model->config().vocab_size; }

  std::vector<int32_t> tokenize(const std::string& text) const override {
    return loaded_.tokenizer ? loaded_.tokenizer->encode_ordinary(text) : std::vector<int32_t>();
  }
  std::string detokenize(const std::vector<int32_t>& tokens) const override {
    if (!loaded_.tokenizer) return "";
    Detokenizer detokenizer(*loaded_.tokenizer, Detokenizer::Controls::kShow);
    std::string text;
    for (const int32_t token : tokens) {
      if (token >= 0 && token < vocab_size()) text += detokenizer.push(token);
    }
    return text + detokenizer.finish();
  }
  std::optional<std::vector<int32_t>> encode_chat(const std::string& messages_json, const std::string& options_json,
                                                  std::string& error) const override {
    Result<std::vector<int32_t>> prompt = chat_prompt(messages_json, options_json);
    if (prompt.ok()) return std::move(prompt).value();
    error = prompt.status().message();
    return std::nullopt;
  }

 private:
  KvCache& tell_cache(const std::vector<UnitRecord>& found) {
    for (const UnitRecord& unit : found) cache_.add_stored_unit(unit.tokens, unit.salt);
    return cache_;
  }
  Result<PreparedRequest> prepare(Request request, OnUpdate on_update);
  Result<std::vector<int32_t>> prompt_of(const Request& request) const;
  Result<std::vector<int32_t>> chat_prompt(const std::string& messages_json, const std::string& options_json) const;

  std::unique_ptr<Device> device_;
  LoadedModel loaded_;
  Limits limits_;
  std::string fingerprint_;
  KvCache cache_;
  Scheduler scheduler_;
  std::unique_ptr<HostBlocks> host_blocks_;
  std::unique_ptr<TierWorker> disk_;
  ModelExecutor executor_;
  std::atomic<RequestId> next_id_{1};
  EngineLoop loop_;  // last: its thread uses all of the above
};

Result<std::vector<int32_t>> EngineImpl::prompt_of(const Request& request) const {
  const ModelConfig& config = loaded_.model->config();
  if (request.prompt.empty() == request.prompt_tokens.empty()) {
    return invalid_input("prompt: {}", request.prompt.empty() ? "it is empty; give text or prompt_tokens"
                                                              : "prompt_tokens are given too; give one of the two");
  }
  if (request.prompt_tokens.empty()) {
    if (!loaded_.tokenizer) {
      return invalid_input("prompt: the model folder has no tokenizer.json; give prompt_tokens");
    }
    std::vector<int32_t> tokens;
    if (config.bos_token_id >= 0) tokens.push_back(static_cast<int32_t>(config.bos_token_id));
    loaded_.tokenizer->append_ordinary(request.prompt, tokens);
    return tokens;
  }
  for (size_t i = 0; i < request.prompt_tokens.size(); ++i) {
    const int32_t token = request.prompt_tokens[i];
    if (token < 0 || token >= config.vocab_size) {
      return invalid_input("prompt_tokens[{}] {}: the model's ids are 0 to {}", i, token, config.vocab_size - 1);
    }
  }
  return request.prompt_tokens;
}

Result<std::vector<int32_t>> EngineImpl::chat_prompt(const std::string& messages_json,
                                                     const std::string& options_json) const {
  if (!loaded_.tokenizer) return invalid_input("the model folder has no tokenizer.json, and chat needs one");
  DI_ASSIGN_OR_RETURN(Json body, parse_json(options_json.empty() ? "{}" : options_json));
  if (!body.is_object()) return invalid_input("chat options: give a JSON object");
  DI_ASSIGN_OR_RETURN(body["messages"], parse_json(messages_json));
  DI_ASSIGN_OR_RETURN(const ChatRequest chat, parse_chat_request(dump_json(body)));
  DI_ASSIGN_OR_RETURN(EncodedPrompt prompt, deepinfer::encode_chat(*loaded_.tokenizer, chat));
  if (!prompt.image_locations.empty()) {
    return Status(ErrorCode::kUnsupported, "images in messages: this build reads text only");
  }
  return std::move(prompt.ids);
}

Result<PreparedRequest> EngineImpl::prepare(Request request, OnUpdate on_update) {
  const ModelConfig& config = loaded_.model->config();
  const SamplingParams& sampling = request.sampling;
  DI_RETURN_IF_ERROR(validate(sampling, config.vocab_size));
  if (!(request.timeout_seconds >= 0)) {
    return invalid_input("timeout_seconds {}: give a number of at least 0 (0: none)", request.timeout_seconds);
  }
  if (!loaded_.tokenizer && (!sampling.stop.empty() || !sampling.bad_words.empty())) {
    return invalid_input("stop and bad_words: the model folder has no tokenizer.json to read them with");
  }
  DI_ASSIGN_OR_RETURN(std::vector<int32_t> prompt, prompt_of(request));
  const auto num_prompt = static_cast<int64_t>(prompt.size());
  const int64_t longest = limits_.scheduler.max_model_len;
  if (num_prompt >= longest) {
    return invalid_input("the prompt has {} tokens, at most {} fit before an answer (max_model_len {}); shorten it",
                         num_prompt, longest - 1, longest);
  }
  SequenceInput input;
  input.tokens = prompt;
  input.num_prompt_tokens = num_prompt;
  input.max_tokens_total = num_prompt + std::min(sampling.max_tokens, longest - num_prompt);
  input.params = sampling;
  if (!sampling.ignore_eos) input.end_tokens = loaded_.stop_tokens;
  input.end_tokens.insert(input.end_tokens.end(), sampling.stop_token_ids.begin(), sampling.stop_token_ids.end());
  if (!sampling.bad_words.empty()) input.bad_word_tokens = bad_word_tokens(*loaded_.tokenizer, sampling.bad_words);
  const ReplayOptions& replay = limits_.scheduler.replay;
  input.decoder_begin = decoder_begin(replay, num_prompt, sampling.prompt_logprobs.has_value());
  input.mask_only = replay.mode == ReplayMode::kMask;

  const uint64_t seed = sampling.seq_seed ? *sampling.seq_seed : [] {
    std::random_device random;
    return static_cast<uint64_t>(random()) << 32 | random();
  }();
  PreparedRequest prepared;
  prepared.salt = request.cache_salt.empty() ? 0 : XXH3_64bits(request.cache_salt.data(), request.cache_salt.size());
  for (int32_t i = 0; i < sampling.n; ++i) {
    auto copy = std::make_unique<SequenceInput>(input);
    copy->sampling_key = choice_key(seed, i);
    // The prompt's log-probabilities are the same for every choice.
    if (i > 0) copy->params.prompt_logprobs.reset();
    prepared.inputs.push_back(std::move(copy));
  }
  const Tokenizer* tokenizer = loaded_.tokenizer && sampling.detokenize ? &*loaded_.tokenizer : nullptr;
  prepared.active = std::make_unique<ActiveRequest>(next_id_++, std::move(request), std::move(prompt), seed, tokenizer,
                                                    input.decoder_begin, std::move(on_update));
  return prepared;
}

Result<std::unique_ptr<Engine>> create_engine(const Settings& given, const std::function<void(double)>& progress) {
  SettingsSources sources{.environment = environ};
  for (const auto& [name, value] : given) {
    sources.keywords.push_back({SettingSource::kKeyword, name, value, ""});
  }
  DI_ASSIGN_OR_RETURN(const EngineSettings settings, read_engine_settings(sources));
  if (settings.model.empty()) return invalid_input("model: give the folder of a checkpoint");
  DI_ASSIGN_OR_RETURN(std::unique_ptr<Device> device,
                      make_device({.name = settings.device,
                                   .threads = static_cast<int>(settings.threads),
                                   .bind_threads = settings.bind_threads,
                                   .kernels = settings.kernels,
                                   .gpu_memory_utilization = settings.gpu_memory_utilization}));
  NoBlocking::disabled() = settings.disable_sync_guard;
  const auto tell = [&](uint64_t done, uint64_t total) {
    if (progress) progress(total == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total));
  };
  DI_ASSIGN_OR_RETURN(LoadedModel loaded, load_model(*device, settings.model,
                                                     {.numerics = *numerics_from_name(settings.numerics),
                                                      .kv_format = kv_format_of(settings),
                                                      .engram_cache_rows = settings.engram_cache_rows,
                                                      .progress = tell}));
  DI_ASSIGN_OR_RETURN(const SchedulerOptions options, scheduler_options(settings, *loaded.model));
  if (loaded.model->can_draw()) loaded.model->draw_for_slots(options.max_num_seqs);
  // Where it counts, steps take their memory before the cache does: too little is told now, and nothing moves later.
  if (!device->shares_host_memory()) {
    DI_RETURN_IF_ERROR(rehearse(*device, *loaded.model, largest_step(options), options.max_model_len));
  }
  DI_ASSIGN_OR_RETURN(const Limits limits, plan_limits(settings, options, *device, *loaded.model));
  std::string fingerprint = make_fingerprint(*device, *loaded.model, limits.scheduler.replay);
  DI_ASSIGN_OR_RETURN(Tiers tiers, open_tiers(settings, *device, limits, loaded.model->kv_layout().cache, fingerprint));
  return std::unique_ptr<Engine>(std::make_unique<EngineImpl>(std::move(device), std::move(loaded), settings, limits,
                                                              std::move(fingerprint), std::move(tiers)));
}

}  // namespace

std::unique_ptr<Engine> Engine::create(const Settings& settings, std::string& error,
                                       const std::function<void(double share)>& progress) {
  Result<std::unique_ptr<Engine>> engine = create_engine(settings, progress);
  if (engine.ok()) return std::move(engine).value();
  error = engine.status().message();
  return nullptr;
}

}  // namespace deepinfer
