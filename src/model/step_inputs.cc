#include "model/step_inputs.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "device/array.h"

namespace deepinfer {

StepInputs::StepInputs(Device& device, Stream& stream, const ModelConfig& config, const KvLayout& layout)
    : device_(device),
      stream_(stream),
      num_groups_(static_cast<int64_t>(layout.cache.groups.size())),
      num_streams_(config.hc_mult) {
  if (!config.engram.enabled()) return;
  engram_tables_ = config.engram.num_tables();
  engram_codes_ = config.engram.num_columns() * config.engram.head_dim;
}

StepInputs::Places StepInputs::place(const Shape& shape) const {
  Places places;
  const auto take = [&](int64_t count, int64_t bytes) {
    const int64_t begin = places.end;
    places.end += (count * bytes + 15) / 16 * 16;
    return begin;
  };
  const auto take_rows = [&](int64_t count) {
    return RowPlaces{take(count, sizeof(int64_t)), take(count, sizeof(int64_t)),
                     take(num_groups_ * count, sizeof(std::byte**))};
  };
  take(num_slots_, sizeof(int32_t));
  places.tokens = take(shape.tokens, sizeof(int32_t));
  places.token_rows = take(num_slots_ > 0 ? shape.tokens : 0, sizeof(int32_t));
  places.draws = take(num_slots_ > 0 ? shape.logits : 0, sizeof(ops::SampleRow));
  places.all = take_rows(shape.tokens);
  places.mix = take(shape.tokens * num_streams_, sizeof(float));
  places.kept = take_rows(shape.kept);
  places.kept_rows = take(shape.kept, sizeof(int32_t));
  places.logit_rows = take(shape.logits, sizeof(int32_t));
  places.engram = take(shape.tokens * engram_tables_, engram_codes_ + engram_codes_ / 32);
  return places;
}

// More than the shape needs, so that slowly growing steps do not move everything each time.
int64_t StepInputs::bytes_for(const Shape& shape) const {
  const int64_t needed = place(shape).end;
  return needed + needed / 4;
}

Status StepInputs::reserve(const Shape& shape) {
  if (holds(shape)) return Status();
  const int64_t bytes = bytes_for(shape);
  // The slots' tokens move along; nothing else has to survive, and makes room.
  const std::shared_ptr<std::byte> before = num_slots_ > 0 ? device_memory_ : nullptr;
  host_.reset();
  device_memory_.reset();
  capacity_ = 0;
  ++generation_;
  DI_ASSIGN_OR_RETURN(host_, device_.allocate_pinned(bytes));
  if (device_.shares_host_memory()) {
    device_memory_ = host_;
  } else {
    DI_ASSIGN_OR_RETURN(device_memory_, allocate_on(device_, bytes, "the inputs of a step",
                                                    "lower max_num_batched_tokens or kv_cache_bytes"));
  }
  capacity_ = bytes;
  if (before != nullptr) {
    stream_.copy(device_memory_.get(), before.get(), num_slots_ * static_cast<int64_t>(sizeof(int32_t)));
    DI_RETURN_IF_ERROR(stream_.synchronize());
  }
  return Status();
}

void StepInputs::fill_rows(const RowPlaces& places, int64_t count, const StepLayout& layout) {
  auto* const positions = on_host<int64_t>(places.positions);
  auto* const decoder_begin = on_host<int64_t>(places.decoder_begin);
  auto* const tables = on_host<std::byte* const*>(places.tables);
  std::copy(layout.positions.begin(), layout.positions.end(), positions);
  std::fill(positions + layout.num_tokens, positions + count, -1);
  std::copy(layout.decoder_begin.begin(), layout.decoder_begin.end(), decoder_begin);
  std::fill(decoder_begin + layout.num_tokens, decoder_begin + count, 0);
  for (int64_t g = 0; g < num_groups_; ++g) {
    for (int64_t t = 0; t < count; ++t) {
      tables[g * count + t] = t < layout.num_tokens ? layout.states[t]->table_on_device(static_cast<int>(g)) : nullptr;
    }
  }
}

void StepInputs::fill(const Shape& shape, const StepLayout& all, const StepLayout& kept,
                      std::span<const int32_t> kept_rows) {
  shape_ = shape;
  places_ = place(shape);
  DI_CHECK(places_.end <= capacity_, "{} bytes of {}", places_.end, capacity_);
  fill_rows(places_.all, shape.tokens, all);
  auto* const tokens = on_host<int32_t>(places_.tokens);
  std::copy(all.tokens.begin(), all.tokens.end(), tokens);
  std::fill(tokens + all.num_tokens, tokens + shape.tokens, 0);
  if (num_slots_ > 0) {
    auto* const token_rows = on_host<int32_t>(places_.token_rows);
    const auto first = static_cast<int32_t>(places_.tokens / sizeof(int32_t));
    for (int32_t t = 0; t < shape.tokens; ++t) {
      const int32_t slot = t < all.num_tokens ? all.token_slots[t] : -1;
      DI_CHECK(slot < num_slots_, "slot {} of {}", slot, num_slots_);
      token_rows[t] = slot >= 0 ? slot : first + t;
    }
    const std::vector<ops::SampleRow>& wanted = shape.kept > 0 ? kept.draws : all.draws;
    auto* const draws = on_host<ops::SampleRow>(places_.draws);
    std::copy(wanted.begin(), wanted.end(), draws);
    std::fill(draws + wanted.size(), draws + shape.logits, ops::SampleRow{.position = -1});
  }
  auto* const mix = on_host<float>(places_.mix);
  // The streams are equal at first: the first one is all of them.
  for (int64_t i = 0; i < shape.tokens * num_streams_; ++i) mix[i] = i % num_streams_ == 0 ? 1.0f : 0.0f;

  if (shape.kept > 0) {
    fill_rows(places_.kept, shape.kept, kept);
    std::copy(kept_rows.begin(), kept_rows.end(), on_host<int32_t>(places_.kept_rows));
  }
  const std::vector<int32_t>& wanted = shape.kept > 0 ? kept.logit_rows : all.logit_rows;
  auto* const logit_rows = on_host<int32_t>(places_.logit_rows);
  std::copy(wanted.begin(), wanted.end(), logit_rows);
  std::fill(logit_rows + wanted.size(), logit_rows + shape.logits, 0);

  // A row that pads is looked up as zeros: whatever it becomes stays a number.
  for (int table = 0; table < engram_tables_; ++table) {
    const EngramCodes rows = engram_on_host(table);
    const int64_t own = all.num_tokens, padding = shape.tokens - own;
    std::memset(rows.codes + own * engram_codes_, 0, padding * engram_codes_);
    std::memset(rows.scales + own * (engram_codes_ / 32), 0, padding * (engram_codes_ / 32));
  }
}

void StepInputs::upload(Stream& stream, int64_t begin, int64_t end) const {
  if (device_memory_ != host_ && begin < end)
    stream.copy(device_memory_.get() + begin, host_.get() + begin, end - begin);
}

void StepInputs::upload_engram(Stream& stream, int table) const {
  const EngramCodes rows = engram_on_host(table);
  const auto place = [&](const uint8_t* p) { return reinterpret_cast<const std::byte*>(p) - host_.get(); };
  const int64_t codes = shape_.tokens * engram_codes_;
  upload(stream, place(rows.codes), place(rows.codes) + codes);
  upload(stream, place(rows.scales), place(rows.scales) + codes / 32);
}

ConstTensorView StepInputs::token_sources() const {
  return dense<const float>(on_device<float>(0), places_.tokens / 4 + shape_.tokens, 1);
}

StepRows StepInputs::rows_at(int64_t count, const RowPlaces& places) const {
  return {count, on_device<int64_t>(places.positions), on_device<int64_t>(places.decoder_begin),
          on_device<std::byte* const*>(places.tables)};
}

StepInputs::EngramCodes StepInputs::engram_in(std::byte* block, int table) const {
  auto* const begin = reinterpret_cast<uint8_t*>(block + places_.engram);
  const int64_t codes = shape_.tokens * engram_codes_;
  return {begin + table * codes, begin + engram_tables_ * codes + table * (codes / 32)};
}

}  // namespace deepinfer
