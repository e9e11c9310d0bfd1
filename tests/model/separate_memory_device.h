// A device for tests whose memory is not the host's and whose work runs later, with the kernels of the CPU.
//
// Its memory is inaccessible but while its work runs, and holds NaN until it is written: a host that reads or writes it
// dies, as does work that is given host memory. Work waits in a queue until somebody waits for it, so that inputs that
// are changed too early are noticed. Recorded work is a copy of the queue. Whoever waits for an event has the queue run
// up to it and no further; one who asks is told `not yet` a few times first. Not thread-safe.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <vector>

#include "backends/cpu/cpu_device.h"
#include "base/check.h"
#include "ops/op_table.h"

namespace deepinfer {

class SeparateMemoryDevice final : public Device {
 public:
  // The device draws tokens if the op is given, which runs on the host; else it lacks the op.
  using Sample = void (*)(const ops::SampleArgs&);
  explicit SeparateMemoryDevice(int num_threads = 2, Sample sample = nullptr)
      : inner_(make_cpu_device({.num_threads = num_threads}).value()), table_(make_table()), sample_(sample) {
    if (sample_ != nullptr) {
      table_.sample = [](Stream& stream, const ops::SampleArgs& args) {
        auto& queued = static_cast<QueuedStream&>(stream);
        queued.device().check(args);
        queued.add([&queued, args] { queued.device().sample_(args); });
      };
    }
    void* const memory = ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    DI_CHECK(memory != MAP_FAILED, "no address space");
    begin_ = static_cast<std::byte*>(memory);
  }
  ~SeparateMemoryDevice() override { ::munmap(begin_, kBytes); }

  // `allocate` fails when more than this would be in use.
  void set_limit(int64_t bytes) { limit_ = bytes; }
  int64_t used_bytes() const { return in_use_; }
  int64_t num_launches() const { return num_launches_; }
  int64_t num_graphs() const { return num_graphs_; }
  // How often recorded work was launched while what was launched before had not run.
  int64_t num_overlaps() const { return num_overlaps_; }

  std::string description() const override { return "cpu with separate memory"; }
  std::string kernel_set() const override { return inner_->kernel_set(); }
  std::unique_ptr<Stream> make_stream() override {
    return std::make_unique<QueuedStream>(*this, &table_, inner_->make_stream());
  }
  ElementType activation_type(bool rounds) const override { return inner_->activation_type(rounds); }
  Result<std::shared_ptr<std::byte>> allocate(int64_t bytes) override {
    DI_CHECK(!recording_, "allocation while recording");
    const int64_t whole = std::max<int64_t>(kPage, (bytes + kPage - 1) / kPage * kPage);
    if (in_use_ + whole > limit_ || used_ + whole > kBytes) {
      return Status(ErrorCode::kOutOfMemory, fmt::format("{} bytes asked for", bytes));
    }
    std::byte* const memory = begin_ + used_;
    used_ += whole;  // addresses are never used again
    in_use_ += whole;
    protect(memory, whole, PROT_READ | PROT_WRITE);
    std::memset(memory, 0xFF, whole);
    protect(memory, whole, PROT_NONE);
    return std::shared_ptr<std::byte>(memory, [this, whole](std::byte* p) {
      ::madvise(p, whole, MADV_DONTNEED);
      in_use_ -= whole;
    });
  }
  Result<std::shared_ptr<std::byte>> allocate_pinned(int64_t bytes) override {
    const std::shared_ptr<std::byte> memory(new std::byte[bytes], std::default_delete<std::byte[]>());
    pinned_[memory.get()] = bytes;
    return std::shared_ptr<std::byte>(memory.get(), [this, memory](std::byte* p) { pinned_.erase(p); });
  }
  Result<std::shared_ptr<const std::byte>> make_resident(std::span<const std::byte> host) override {
    DI_ASSIGN_OR_RETURN(std::shared_ptr<std::byte> copy, allocate(static_cast<int64_t>(host.size())));
    open([&] { std::memcpy(copy.get(), host.data(), host.size()); });
    return std::shared_ptr<const std::byte>(std::move(copy));
  }
  bool shares_host_memory() const override { return false; }
  int64_t free_bytes() const override { return limit_ - in_use_; }

 private:
  static constexpr int64_t kPage = 4096;
  static constexpr int64_t kBytes = int64_t{1} << 38;
  using Work = std::vector<std::function<void()>>;

  struct RecordedWork final : Graph {
    Work work;
  };

  class QueuedStream final : public Stream {
   public:
    QueuedStream(SeparateMemoryDevice& device, const ops::OpTable* table, std::unique_ptr<Stream> inner)
        : Stream(table), device_(device), inner_(std::move(inner)) {}

    void copy(void* to, const void* from, int64_t bytes) override {
      const auto later = [&](const void* p) { return device_.is_own(p) || device_.is_pinned(p); };
      auto work = [=] { std::memcpy(to, from, bytes); };
      if (later(to) && later(from)) return add(work);
      DI_CHECK(!device_.recording_, "a copy of pageable memory while recording");
      run_queue();
      device_.open(work);
    }
    Status synchronize() override {
      DI_CHECK(!device_.recording_, "synchronize while recording");
      run_queue();
      return Status();
    }
    std::unique_ptr<Event> make_event() override { return std::make_unique<QueuedEvent>(*this); }
    void record(Event& event) override {
      DI_CHECK(!device_.recording_, "record() of an event while recording");
      auto& queued = static_cast<QueuedEvent&>(event);
      queued.recorded(num_added_ + 1);
      add([&queued] { queued.run(); });
    }
    // Runs what was added first, `count` pieces in all.
    void run_until(int64_t count) {
      if (num_run_ >= count) return;
      device_.open([&] {
        for (; num_run_ < count; ++num_run_) {
          queue_.front()();
          queue_.pop_front();
        }
      });
    }
    int64_t num_run() const { return num_run_; }

    bool can_record() const override { return true; }
    void begin_recording() override { device_.recording_ = true; }
    std::unique_ptr<Graph> end_recording() override {
      device_.recording_ = false;
      ++device_.num_graphs_;
      auto graph = std::make_unique<RecordedWork>();
      graph->work = std::move(recorded_);
      recorded_.clear();
      return graph;
    }
    void launch(Graph& graph) override {
      ++device_.num_launches_;
      if (num_run_ < last_launch_) ++device_.num_overlaps_;
      for (const auto& work : static_cast<RecordedWork&>(graph).work) add(work);
      last_launch_ = num_added_;
    }

    void add(std::function<void()> work) {
      if (device_.recording_) return recorded_.push_back(std::move(work));
      queue_.push_back(std::move(work));
      ++num_added_;
    }
    Stream& inner() { return *inner_; }
    SeparateMemoryDevice& device() { return device_; }

   private:
    void run_queue() { run_until(num_added_); }

    SeparateMemoryDevice& device_;
    std::unique_ptr<Stream> inner_;
    std::deque<std::function<void()>> queue_;
    Work recorded_;
    int64_t num_added_ = 0, num_run_ = 0, last_launch_ = 0;
  };

  class QueuedEvent final : public Event {
   public:
    explicit QueuedEvent(QueuedStream& stream) : stream_(stream) {}
    void recorded(int64_t at) { at_ = at, times_asked_ = 0; }
    void run() { clock_.record(); }
    Result<bool> reached() override {
      if (stream_.num_run() < at_ && ++times_asked_ > 3) stream_.run_until(at_);
      return stream_.num_run() >= at_;
    }
    Status wait() override {
      stream_.run_until(at_);
      return Status();
    }
    double seconds_since(const Event& earlier) const override {
      return clock_.seconds_since(static_cast<const QueuedEvent&>(earlier).clock_);
    }

   private:
    QueuedStream& stream_;
    HostEvent clock_;
    int64_t at_ = 0;  // pieces of work, with it
    int times_asked_ = 0;
  };

  static void protect(std::byte* memory, int64_t bytes, int protection) {
    DI_CHECK(::mprotect(memory, bytes, protection) == 0, "mprotect");
  }
  template <typename Body>
  void open(Body&& body) {
    protect(begin_, std::max(used_, kPage), PROT_READ | PROT_WRITE);
    body();
    protect(begin_, std::max(used_, kPage), PROT_NONE);
  }
  bool is_own(const void* p) const { return p >= begin_ && p < begin_ + used_; }
  bool is_pinned(const void* p) const {
    const auto after = pinned_.upper_bound(static_cast<const std::byte*>(p));
    if (after == pinned_.begin()) return false;
    const auto& [begin, bytes] = *std::prev(after);
    return p < begin + bytes;
  }

  // That what an op is given is memory of this device (or absent, where it may be).
  void check(const void* p, std::source_location where = std::source_location::current()) const {
    DI_CHECK(is_own(p), "{}, line {}: memory that is not the device's", where.function_name(), where.line());
  }
  void check_if(const void* p, std::source_location where = std::source_location::current()) const {
    if (p != nullptr) check(p, where);
  }
  void check(const ops::LinearTask& a) const { check(a.out.data), check(a.in.data); }
  void check(const ops::EmbedArgs& a) const { check(a.out.data), check(a.tokens), check(a.table); }
  void check(const ops::RmsNormArgs& a) const {
    check(a.out.data), check(a.in.data), check(a.weight), check_if(a.quantised.data);
  }
  void check(const ops::FakeQuantArgs& a) const { check(a.out.data), check(a.in.data); }
  void check(const ops::RopeAnglesArgs& a) const {
    check(a.cosine.data), check(a.sine.data), check(a.positions), check(a.frequencies);
  }
  void check(const ops::RopeArgs& a) const { check(a.data.data), check(a.cosine.data), check(a.sine.data); }
  void check(const ops::SwigluArgs& a) const { check(a.out.data), check(a.gate.data), check(a.up.data); }
  void check(const ops::GatherRowsArgs& a) const { check(a.out.data), check(a.in.data), check(a.rows); }
  void check(const ops::WriteRowsArgs& a) const {
    check(a.in.data), check(a.tables.blocks), check(a.positions), check_if(a.cosine.data), check_if(a.sine.data);
  }
  void check(const ops::LatentTask& a) const {
    check(a.in.data), check_if(a.norm_weight), check_if(a.out.data), check_if(a.quantised.data);
    if (a.tables.blocks != nullptr) check(a.rows_to_write(a.in));
  }
  void check(const ops::MhcWeights& a) const { check(a.scale), check(a.base); }
  void check(const ops::MhcCoefficients& a) const { check(a.pre.data), check(a.post.data), check(a.mix.data); }
  void check(const ops::MhcCoefficientsArgs& a) const { check(a.weights), check(a.out), check(a.streams.data); }
  void check(const ops::MhcCollapseArgs& a) const {
    check(a.out.data), check(a.streams.data), check(a.pre.data), check(a.norm_weight), check_if(a.quantised.data);
  }
  void check(const ops::MhcUpdateArgs& a) const {
    check(a.streams.data), check(a.y.data), check(a.post.data), check(a.mix.data);
  }
  void check(const ops::MhcBoundaryArgs& a) const {
    check(a.weights), check(a.coefficients), check(a.streams.data), check_if(a.y.data), check(a.out.data);
    check_if(a.quantised.data), check(a.norm_weight);
  }
  void check(const ops::AttentionArgs& a) const {
    check(a.out.data), check(a.q.data), check(a.positions), check(a.window.blocks), check_if(a.first_window_row);
    check_if(a.compressed.blocks), check_if(a.selected.data), check_if(a.num_selected), check(a.sink);
    check_if(a.cosine.data), check_if(a.sine.data);
  }
  void check(const ops::CompressArgs& a) const { check(a.out.data), check(a.rows.blocks), check(a.positions); }
  void check(const ops::IndexSelectArgs& a) const {
    check(a.selected.data), check(a.num_selected), check(a.q.data), check(a.head_weights.data), check(a.keys.blocks);
    check(a.positions), check_if(a.candidates.data), check_if(a.num_candidates);
  }
  void check(const ops::RouteArgs& a) const {
    check(a.experts.data), check(a.weights.data), check(a.logits.data), check(a.bias), check_if(a.in.data);
  }
  void check(const ops::ExpertsArgs& a) const {
    check(a.out.data), check(a.in.data), check(a.experts.data), check(a.weights.data);
  }
  void check(const ops::EngramRowsArgs& a) const { check(a.out.data), check(a.codes), check(a.scales); }
  void check(const ops::EngramApplyArgs& a) const {
    check(a.streams.data), check(a.key_value.data), check(a.query_key_weight);
  }

  void check(const ops::SampleArgs& a) const {
    check(a.tokens), check_if(a.last_tokens), check(a.logits.data), check(a.rows), check_if(a.allowed.data);
  }

  // When the work runs: the table of every row of the step, and the block that the row's position is in.
  void check_tables(const ops::RowTables& tables, const int64_t* positions, int64_t count, int64_t ratio) const {
    for (int64_t t = 0; t < count; ++t) {
      if (positions[t] < 0) continue;
      check(tables.blocks[t]);
      if ((positions[t] + 1) % ratio == 0) check(tables.of(t).row(positions[t] / ratio));
    }
  }
  template <typename Args>
  void check_running(const Args&) const {}
  void check_running(const ops::WriteRowsArgs& a) const { check_tables(a.tables, a.positions, a.in.rows, a.ratio); }
  void check_running(const ops::LatentTask& a) const {
    if (a.tables.blocks != nullptr) check_running(a.rows_to_write(a.in));
  }
  void check_running(const ops::AttentionArgs& a) const { check_tables(a.window, a.positions, a.q.rows, 1); }
  void check_running(const ops::CompressArgs& a) const { check_tables(a.rows, a.positions, a.out.rows, 1); }
  void check_running(const ops::IndexSelectArgs& a) const { check_tables(a.keys, a.positions, a.q.rows, a.ratio); }

  template <auto kOp, typename Args>
  static void defer(Stream& stream, const Args& args) {
    auto& queued = static_cast<QueuedStream&>(stream);
    queued.device().check(args);
    queued.add([&queued, args] {
      queued.device().check_running(args);
      (queued.inner().ops().*kOp)(queued.inner(), args);
    });
  }

  static ops::OpTable make_table() {
    ops::OpTable table;
    table.pack_weight = [](Stream& stream, const ops::WeightSource& source) {
      Stream& inner = static_cast<QueuedStream&>(stream).inner();
      return inner.ops().pack_weight(inner, source);
    };
    table.prepare_experts = [](Stream& stream, ops::ExpertBank& bank) {
      Stream& inner = static_cast<QueuedStream&>(stream).inner();
      inner.ops().prepare_experts(inner, bank);
    };
    table.linear = [](Stream& stream, std::span<const ops::LinearTask> tasks) {
      auto& queued = static_cast<QueuedStream&>(stream);
      for (const ops::LinearTask& task : tasks) queued.device().check(task);
      queued.add([&queued, copy = std::vector<ops::LinearTask>(tasks.begin(), tasks.end())] {
        queued.inner().ops().linear(queued.inner(), copy);
      });
    };
    table.latents = [](Stream& stream, std::span<const ops::LatentTask> tasks) {
      auto& queued = static_cast<QueuedStream&>(stream);
      for (const ops::LatentTask& task : tasks) queued.device().check(task);
      queued.add([&queued, copy = std::vector<ops::LatentTask>(tasks.begin(), tasks.end())] {
        for (const ops::LatentTask& task : copy) queued.device().check_running(task);
        queued.inner().ops().latents(queued.inner(), copy);
      });
    };
    using ops::OpTable;
    table.embed = defer<&OpTable::embed>;
    table.rms_norm = defer<&OpTable::rms_norm>;
    table.fake_quant = defer<&OpTable::fake_quant>;
    table.rope_angles = defer<&OpTable::rope_angles>;
    table.rope = defer<&OpTable::rope>;
    table.swiglu = defer<&OpTable::swiglu>;
    table.gather_rows = defer<&OpTable::gather_rows>;
    table.write_rows = defer<&OpTable::write_rows>;
    table.mhc_coefficients = defer<&OpTable::mhc_coefficients>;
    table.mhc_collapse = defer<&OpTable::mhc_collapse>;
    table.mhc_update = defer<&OpTable::mhc_update>;
    table.mhc_boundary = defer<&OpTable::mhc_boundary>;
    table.attention = defer<&OpTable::attention>;
    table.compress = defer<&OpTable::compress>;
    table.index_select = defer<&OpTable::index_select>;
    table.route = defer<&OpTable::route>;
    table.experts = defer<&OpTable::experts>;
    table.engram_rows = defer<&OpTable::engram_rows>;
    table.engram_apply = defer<&OpTable::engram_apply>;
    return table;
  }

  std::unique_ptr<Device> inner_;
  ops::OpTable table_;
  Sample sample_;
  std::byte* begin_ = nullptr;
  int64_t used_ = 0, in_use_ = 0;
  int64_t limit_ = kBytes;
  std::map<const std::byte*, int64_t> pinned_;
  bool recording_ = false;
  int64_t num_launches_ = 0, num_graphs_ = 0, num_overlaps_ = 0;
};

}  // namespace deepinfer
