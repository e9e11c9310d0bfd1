// StepInputs: what the ops of a step need to know of its rows, in device memory: written on the host and uploaded in
// one copy, but for Engram codes that come later.
//
// Owns a block of host memory and its mirror on the device, which are one where device memory is the host's. Where in
// the block a thing lies follows from the numbers of rows alone, so recorded work finds the next step's inputs in the
// place of the last one's. Rows behind a step's own pad it to a shape that was recorded: position -1, token 0, no
// tables.
//
// Where tokens are drawn on the device, the block begins with the last token of every slot, which steps write and read;
// the host's part has nothing there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"
#include "device/stream.h"
#include "device/view.h"
#include "model/kv_layout.h"
#include "model/model_config.h"
#include "model/step.h"

namespace deepinfer {

// Device memory, [count] each.
struct StepRows {
  int64_t count = 0;
  const int64_t* positions = nullptr;
  const int64_t* decoder_begin = nullptr;
  std::byte* const* const* tables = nullptr;  // [groups][count]: block tables, null for a row that pads

  ops::RowTables tables_of(const KvLayout::Member& m) const {
    return {tables + m.group * count, m.block_shift, m.type, m.width, m.offset};
  }
};

class StepInputs {
 public:
  // Numbers of rows, those that pad included.
  struct Shape {
    int64_t tokens = 0;
    int64_t kept = 0;
    int64_t logits = 0;
  };
  // The rows of one Engram table, token by token (ops::EngramRowsArgs).
  struct EngramCodes {
    uint8_t* codes = nullptr;
    uint8_t* scales = nullptr;
  };

  StepInputs(Device& device, Stream& stream, const ModelConfig& config, const KvLayout& layout);
  StepInputs(const StepInputs&) = delete;
  StepInputs& operator=(const StepInputs&) = delete;

  // Sequences keep the tokens that the device draws for them in one of so many slots. Before the first step.
  void set_slots(int32_t count) { num_slots_ = count; }
  int32_t num_slots() const { return num_slots_; }

  // Makes room; generation() counts how often that moved everything. Requires: nothing that runs names the inputs.
  Status reserve(const Shape& shape);
  bool holds(const Shape& shape) const { return place(shape).end <= capacity_; }
  int64_t generation() const { return generation_; }
  // Device memory that `reserve` takes.
  int64_t bytes_for(const Shape& shape) const;

  // Writes everything but Engram codes. kept_rows: for each row of `kept` its number among `all`.
  void fill(const Shape& shape, const StepLayout& all, const StepLayout& kept, std::span<const int32_t> kept_rows);
  EngramCodes engram_on_host(int table) const { return engram_in(host_.get(), table); }
  // All but Engram codes; with them; those of one table, when they are written later.
  void upload(Stream& stream) const { upload(stream, places_.tokens, places_.engram); }
  void upload_all_engram(Stream& stream) const { upload(stream, places_.engram, places_.end); }
  void upload_engram(Stream& stream, int table) const;

  const int32_t* tokens() const { return on_device<int32_t>(places_.tokens); }
  // The slots' tokens and behind them the step's own, [any, 1] of 32 bits each, and where among them a row's token is.
  ConstTensorView token_sources() const;
  const int32_t* token_rows() const { return on_device<int32_t>(places_.token_rows); }
  int32_t* last_tokens() const { return on_device<int32_t>(0); }
  const ops::SampleRow* draws() const { return on_device<ops::SampleRow>(places_.draws); }  // by logit row
  StepRows rows() const { return rows_at(shape_.tokens, places_.all); }
  StepRows kept() const { return rows_at(shape_.kept, places_.kept); }
  const int32_t* kept_rows() const { return on_device<int32_t>(places_.kept_rows); }
  const int32_t* logit_rows() const { return on_device<int32_t>(places_.logit_rows); }
  // [tokens, streams]: how the first sublayer mixes the streams; the step may overwrite it.
  MatrixView<float> mix() const { return dense(on_device<float>(places_.mix), shape_.tokens, num_streams_); }
  EngramCodes engram(int table) const { return engram_in(device_memory_.get(), table); }

 private:
  struct RowPlaces {
    int64_t positions = 0, decoder_begin = 0, tables = 0;
  };
  // Offsets in the block.
  struct Places {
    RowPlaces all, kept;
    int64_t tokens = 0, token_rows = 0, kept_rows = 0, logit_rows = 0, draws = 0, mix = 0, engram = 0, end = 0;
  };
  Places place(const Shape& shape) const;
  void fill_rows(const RowPlaces& places, int64_t count, const StepLayout& layout);
  StepRows rows_at(int64_t count, const RowPlaces& places) const;
  EngramCodes engram_in(std::byte* block, int table) const;
  void upload(Stream& stream, int64_t begin, int64_t end) const;
  template <typename T>
  T* on_host(int64_t place) const {
    return reinterpret_cast<T*>(host_.get() + place);
  }
  template <typename T>
  T* on_device(int64_t place) const {
    return reinterpret_cast<T*>(device_memory_.get() + place);
  }

  Device& device_;
  Stream& stream_;
  int64_t num_groups_, num_streams_;
  int32_t num_slots_ = 0;
  int64_t engram_tables_ = 0, engram_codes_ = 0;  // codes a token and table; a scale for 32
  std::shared_ptr<std::byte> host_, device_memory_;
  int64_t capacity_ = 0;  // bytes
  int64_t generation_ = 0;
  Shape shape_;
  Places places_;
};

}  // namespace deepinfer
