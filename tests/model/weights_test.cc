// Loading damaged checkpoints: every damage gives a message that names file and tensor, and nothing crashes.
#include "model/weights.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backends/cpu/cpu_device.h"
#include "checkpoint/temp_folder.h"
#include "model/transformer.h"

namespace deepinfer {
namespace {

using testing::HasSubstr;

const std::string kSource = std::string(DEEPINFER_TESTS_DIR) + "/golden/model/tiny_full";

// A copy of tiny_full whose tensor file can be edited in place. Edits of the header keep its length.
class EditedCheckpoint {
 public:
  EditedCheckpoint() {
    std::filesystem::copy(kSource, folder_.path(), std::filesystem::copy_options::recursive);
    std::ifstream file(folder_.file("model.safetensors"), std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
    uint64_t header_size;
    std::memcpy(&header_size, bytes_.data(), 8);
    data_begin_ = 8 + header_size;
  }

  // Overwrites bytes of a tensor from `offset` on.
  void set_bytes(const std::string& tensor, int64_t offset, const std::string& bytes) {
    const size_t list = bytes_.find("\"data_offsets\": [", entry(tensor));
    bytes_.replace(data_begin_ + std::stoul(bytes_.substr(list + 17)) + offset, bytes.size(), bytes);
  }
  void rename(const std::string& tensor, const std::string& name) {
    ASSERT_EQ(tensor.size(), name.size());
    bytes_.replace(entry(tensor) + 1, name.size(), name);
  }
  // Replaces `from`, the first such text behind the tensor's name, by `to`, padded with spaces to the same length.
  void edit(const std::string& tensor, const std::string& from, std::string to) {
    ASSERT_LE(to.size(), from.size());
    to.resize(from.size(), ' ');
    const size_t at = bytes_.find(from, entry(tensor));
    ASSERT_LT(at - entry(tensor), 150u) << from << " belongs to another tensor";
    bytes_.replace(at, from.size(), to);
  }

  // The message of the failed load; empty if it did not fail.
  std::string load() {
    std::ofstream(folder_.file("model.safetensors"), std::ios::binary) << bytes_;
    auto device = make_cpu_device({.num_threads = 1}).value();
    Result<Checkpoint> checkpoint = Checkpoint::open(folder_.path());
    if (!checkpoint.ok()) return checkpoint.status().message();
    ModelConfig config = ModelConfig::from_file(folder_.file("config.json")).value();
    std::vector<int32_t> token_map(config.vocab_size, 0);
    const auto model = Model::load(*device, std::move(checkpoint).value(), std::move(config), std::move(token_map), {});
    return model.ok() ? "" : model.status().message();
  }

 private:
  size_t entry(const std::string& tensor) const {
    const size_t at = bytes_.find("\"" + tensor + "\": {");
    EXPECT_LT(at, data_begin_) << tensor << " is not in the header";
    return at;
  }

  TempFolder folder_;
  std::string bytes_;
  size_t data_begin_ = 0;
};

const std::string kInfiniteF32("\x00\x00\x80\x7F", 4);
const std::string kInfiniteBf16("\x80\xFF", 2);
const std::string kNanBf16("\xC1\x7F", 2);

TEST(Weights, load_whole_from_an_undamaged_copy) { EXPECT_EQ(EditedCheckpoint().load(), ""); }

TEST(Weights, with_a_value_that_is_no_number_are_refused_by_file_and_tensor) {
  struct Damage {
    const char* tensor;
    int64_t offset;
    std::string bytes;
    const char* position;
  };
  const Damage damages[] = {
      {"layers.3.attn.wkv.scale", 5, "\xFF", "value 5"},
      {"layers.1.attn.wq_b.weight", 1000, "\x7F", "value 1000"},
      {"layers.1.attn.wo_a.weight", 64 * 128 - 1, "\xFF", "value 8191"},
      {"layers.2.ffn.experts.7.w2.scale", 0, "\xFF", "value 0"},
      {"layers.0.ffn.shared_experts.w1.weight", 3, "\x7F", "value 3"},
      {"layers.5.attn_norm.weight", 2 * 17, kInfiniteBf16, "value 17"},
      {"layers.5.attn.kv_norm.weight", 0, kNanBf16, "value 0"},
      {"norm.weight", 2 * 127, kInfiniteBf16, "value 127"},
      {"head.weight", 2 * 999, kNanBf16, "value 999"},
      {"embed.weight", 2 * 4321, kNanBf16, "value 4321"},
      {"layers.7.hc_ffn_fn", 4 * 77, kInfiniteF32, "value 77"},
      {"layers.7.hc_attn_scale", 8, kInfiniteF32, "value 2"},
      {"layers.6.ffn.gate.bias", 4, kInfiniteF32, "value 1"},
      {"layers.4.attn.attn_sink", 12, kInfiniteF32, "value 3"},
      {"layers.1.attn.compressor.wgate.weight", 2, kInfiniteBf16, "value 1"},
      {"layers.3.engram.q_weight", 2 * 500, kNanBf16, "value 500"},
  };
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.tensor);
    EditedCheckpoint checkpoint;
    checkpoint.set_bytes(damage.tensor, damage.offset, damage.bytes);
    const std::string message = checkpoint.load();
    EXPECT_THAT(message, HasSubstr("model.safetensors"));
    EXPECT_THAT(message, HasSubstr(damage.tensor));
    EXPECT_THAT(message, HasSubstr(damage.position));
    EXPECT_THAT(message, HasSubstr("not a finite number"));
  }
}

// Every kind of tensor once, the first and the last that loading asks for among them.
constexpr const char* kTensors[] = {"embed.weight",
                                    "norm.weight",
                                    "head.weight",
                                    "layers.0.hc_attn_fn",
                                    "layers.0.attn.wq_a.weight",
                                    "layers.0.attn.wq_a.scale",
                                    "layers.1.attn.compressor.wgate.weight",
                                    "layers.1.attn.indexer.wk.weight",
                                    "layers.4.attn.indexer.weights_proj.weight",
                                    "layers.3.engram.embed.weight",
                                    "layers.3.engram.wkv.scale",
                                    "layers.6.ffn.gate.bias",
                                    "layers.6.ffn.experts.3.w3.weight",
                                    "layers.7.ffn.experts.7.w1.scale",
                                    "layers.7.ffn.shared_experts.w2.weight"};

TEST(Weights, that_are_missing_are_named_with_their_folder) {
  for (const std::string tensor : kTensors) {
    EditedCheckpoint checkpoint;
    checkpoint.rename(tensor, std::string(tensor.size() - 1, 'x') + "y");
    const std::string message = checkpoint.load();
    EXPECT_THAT(message, HasSubstr("deepinfer_test_"));
    EXPECT_THAT(message, HasSubstr(tensor));
    EXPECT_THAT(message, HasSubstr("missing"));
  }
}

TEST(Weights, of_another_shape_are_refused_with_both_shapes) {
  const std::tuple<const char*, std::string, std::string> edits[] = {
      {"embed.weight", "[256, 128]", "[128, 256]"},
      {"head.weight", "[256, 128]", "[128, 256]"},
      {"norm.weight", "[128]", "[2, 64]"},
      {"layers.0.hc_attn_fn", "[24, 512]", "[12, 1024]"},
      {"layers.0.hc_attn_base", "[24]", "[3, 8]"},
      {"layers.1.attn.wq_b.weight", "[256, 64]", "[64, 256]"},
      {"layers.1.attn.wq_b.scale", "[8, 2]", "[2, 8]"},
      {"layers.1.engram.embed.weight", "[630, 32]", "[315, 64]"},
      {"layers.1.ffn.experts.0.w2.weight", "[128, 32]", "[32, 128]"}};
  for (const auto& [tensor, expected, found] : edits) {
    SCOPED_TRACE(tensor);
    EditedCheckpoint checkpoint;
    std::string compact = found;
    std::erase(compact, ' ');  // the header has no room for more
    checkpoint.edit(tensor, "\"shape\": " + expected, "\"shape\":" + compact);
    const std::string message = checkpoint.load();
    EXPECT_THAT(message, HasSubstr("model.safetensors"));
    EXPECT_THAT(message, HasSubstr(tensor));
    EXPECT_THAT(message, HasSubstr("shape " + found + ", expected " + expected));
  }
}

TEST(Weights, of_another_type_are_refused_with_both_types) {
  const std::tuple<const char*, const char*, const char*> edits[] = {
      {"head.weight", "BF16", "F16"},
      {"layers.0.hc_attn_fn", "F32", "I32"},
      {"layers.0.attn.wq_a.weight", "F8_E4M3", "I8"},
      {"layers.0.attn.wq_a.scale", "F8_E8M0", "U8"},
      {"layers.1.ffn.experts.0.w1.weight", "I8", "U8"},
      {"layers.1.engram.embed.weight", "F8_E4M3", "F8_E5M2"}};
  for (const auto& [tensor, from, to] : edits) {
    SCOPED_TRACE(tensor);
    EditedCheckpoint checkpoint;
    checkpoint.edit(tensor, std::string("\"") + from + "\"", std::string("\"") + to + "\"");
    const std::string message = checkpoint.load();
    EXPECT_THAT(message, HasSubstr("model.safetensors"));
    EXPECT_THAT(message, HasSubstr(tensor));
    EXPECT_THAT(message, HasSubstr(from));
    EXPECT_THAT(message, HasSubstr(to));
  }
}

TEST(Weights, report_progress_up_to_the_total) {
  auto device = make_cpu_device({.num_threads = 1}).value();
  ModelConfig config = ModelConfig::from_file(kSource + "/config.json").value();
  std::vector<std::pair<uint64_t, uint64_t>> calls;
  const ModelOptions options{.progress = [&](uint64_t done, uint64_t total) { calls.emplace_back(done, total); }};
  std::vector<int32_t> token_map(config.vocab_size, 0);
  ASSERT_TRUE(Model::load(*device, Checkpoint::open(kSource).value(), config, token_map, options).ok());
  ASSERT_GT(calls.size(), 100u);
  for (size_t i = 1; i < calls.size(); ++i) {
    EXPECT_GT(calls[i].first, calls[i - 1].first);
    EXPECT_EQ(calls[i].second, calls[0].second);
    EXPECT_LE(calls[i].first, calls[i].second);
  }
  EXPECT_GE(calls.back().first, calls.back().second * 99 / 100);
}

}  // namespace
}  // namespace deepinfer
