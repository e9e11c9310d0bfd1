#include "checkpoint/checkpoint.h"

#include <cstring>
#include <functional>

#include <sys/resource.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/temp_folder.h"

namespace deepinfer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kIndex = "model.safetensors.index.json";

// Two shards, tensors "a", "b" in the first and "c" in the second.
void write_two_shards(const TempFolder& folder) {
  folder.write("1.safetensors", safetensors_file(R"({"b":{"dtype":"I8","shape":[2],"data_offsets":[0,2]},)"
                                                 R"("a":{"dtype":"I8","shape":[1,3],"data_offsets":[2,5]}})",
                                                 "bbaaa"));
  folder.write("2.safetensors", one_tensor_file("c", "cccc"));
  folder.write(kIndex, R"({"weight_map":{"a":"1.safetensors","b":"1.safetensors","c":"2.safetensors"}})");
}

std::string error_of(const std::string& folder) {
  const auto checkpoint = Checkpoint::open(folder);
  return checkpoint.ok() ? "" : checkpoint.status().message();
}

TEST(Checkpoint, OpensASingleFile) {
  TempFolder folder;
  folder.write("model.safetensors", one_tensor_file("x", "12345"));
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  ASSERT_NE(checkpoint->find("x"), nullptr);
  EXPECT_EQ(std::memcmp(checkpoint->find("x")->data, "12345", 5), 0);
  EXPECT_EQ(checkpoint->find("y"), nullptr);
  EXPECT_EQ(checkpoint->find(""), nullptr);
}

TEST(Checkpoint, OpensShardsThroughTheIndex) {
  TempFolder folder;
  write_two_shards(folder);
  auto opened = Checkpoint::open(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const StoredTensor* before = opened->find("c");
  const Checkpoint checkpoint = std::move(opened).value();
  EXPECT_EQ(checkpoint.find("c"), before);  // pointers survive moves

  std::string names;
  for (const StoredTensor& tensor : checkpoint.tensors()) names += tensor.name;
  EXPECT_EQ(names, "abc");
  ASSERT_EQ(checkpoint.shards().size(), 2u);
  EXPECT_EQ(checkpoint.shards()[0].file_name, "1.safetensors");
  EXPECT_EQ(checkpoint.shards()[0].tensor_bytes, 5u);
  EXPECT_EQ(checkpoint.shards()[0].num_tensors, 2);
  EXPECT_GT(checkpoint.shards()[0].file_bytes, 5u);
  EXPECT_EQ(checkpoint.total_bytes(), 9u);
  EXPECT_EQ(checkpoint.find("c")->shard, 1);
  EXPECT_EQ(std::memcmp(checkpoint.find("a")->data, "aaa", 3), 0);
  EXPECT_EQ(std::memcmp(checkpoint.find("c")->data, "cccc", 4), 0);
}

TEST(Checkpoint, OpensTheGoldenModels) {
  for (const char* model : {"tiny_full", "tiny_noengram", "tiny_smooth"}) {
    const auto checkpoint = Checkpoint::open(std::string(DEEPINFER_TESTS_DIR) + "/golden/model/" + model);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    EXPECT_TRUE(checkpoint->require("embed.weight", DType::kBf16, {256, 128}).ok());
    EXPECT_TRUE(checkpoint->require("layers.0.ffn.experts.1.w2.scale", DType::kF8E8m0, {128, 2}).ok());
  }
}

TEST(Checkpoint, RequireSaysWhatIsMissingOrDifferent) {
  TempFolder folder;
  folder.write("model.safetensors", safetensors_file(R"({"half":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},)"
                                                     R"("good":{"dtype":"BF16","shape":[2,1],"data_offsets":[2,6]}})",
                                                     "abcdef"));
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_TRUE(checkpoint->require("good", DType::kBf16, {2, 1}).ok());
  const auto message = [&](std::string_view name, DType dtype, std::initializer_list<int64_t> shape) {
    return checkpoint->require(name, dtype, shape).status().message();
  };
  EXPECT_THAT(message("gone", DType::kF32, {3, 4}),
              AllOf(HasSubstr("\"gone\" (F32 [3, 4]) is missing"), HasSubstr("config.json")));
  EXPECT_THAT(
      message("half", DType::kBf16, {1}),
      AllOf(HasSubstr("model.safetensors"), HasSubstr("dtype F16 is not supported for \"half\""), HasSubstr("BF16")));
  EXPECT_THAT(message("good", DType::kF32, {2, 1}),
              AllOf(HasSubstr("\"good\" has dtype BF16"), HasSubstr("expected F32")));
  EXPECT_THAT(message("good", DType::kBf16, {1, 2}), HasSubstr("\"good\" has shape [2, 1], expected [1, 2]"));
  EXPECT_THAT(message("good", DType::kBf16, {2}), HasSubstr("expected [2]"));
  EXPECT_THAT(message("good", DType::kBf16, {2, 1, 1}), HasSubstr("expected [2, 1, 1]"));
}

TEST(Checkpoint, SaysWhatIsWrongWithAFolder) {
  struct Case {
    const char* what;
    std::function<void(const TempFolder&)> change;  // of a good folder with two shards
    std::vector<const char*> fragments;
  };
  const auto remove = [](const TempFolder& folder, const char* name) {
    std::filesystem::remove_all(folder.file(name));
  };
  const Case cases[] = {
      {"no files",
       [&](const auto& f) { remove(f, kIndex); },
       {"neither model.safetensors.index.json nor model.safetensors"}},
      {"a missing shard",
       [&](const auto& f) { remove(f, "2.safetensors"); },
       {kIndex, "shard \"2.safetensors\", which is not in the folder", "download"}},
      {"an empty shard", [](const auto& f) { f.write("2.safetensors", ""); }, {"2.safetensors is empty", "download"}},
      {"an empty index", [](const auto& f) { f.write(kIndex, ""); }, {kIndex, "is empty"}},
      {"a pointer as shard",
       [](const auto& f) {
         f.write("2.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n");
       },
       {"2.safetensors is a Git LFS pointer", "git lfs pull"}},
      {"a pointer as index",
       [](const auto& f) { f.write(kIndex, "version https://git-lfs.github.com/spec/v1\n"); },
       {kIndex, "Git LFS pointer"}},
      {"a folder as shard",
       [&](const auto& f) {
         remove(f, "2.safetensors");
         std::filesystem::create_directory(f.file("2.safetensors"));
       },
       {"2.safetensors is a folder, expected a file"}},
      {"a link to nowhere",
       [&](const auto& f) {
         remove(f, "2.safetensors");
         std::filesystem::create_symlink("nowhere", f.file("2.safetensors"));
       },
       {"2.safetensors does not exist"}},
      {"a truncated shard",
       [](const auto& f) {
         std::filesystem::resize_file(f.file("2.safetensors"), std::filesystem::file_size(f.file("2.safetensors")) - 1);
       },
       {"2.safetensors: tensor \"c\"", "truncated", "download it again"}},
      {"a tensor no shard holds",
       [](const auto& f) {
         f.write(
             kIndex,
             R"({"weight_map":{"a":"1.safetensors","b":"1.safetensors","bb":"2.safetensors","c":"2.safetensors"}})");
       },
       {"tensor \"bb\" should be in 2.safetensors, but no shard holds it"}},
      {"a last tensor no shard holds",
       [](const auto& f) {
         f.write(kIndex,
                 R"({"weight_map":{"a":"1.safetensors","b":"1.safetensors","c":"2.safetensors","z":"2.safetensors"}})");
       },
       {"tensor \"z\" should be in 2.safetensors, but no shard holds it"}},
      {"a tensor in another shard",
       [](const auto& f) {
         f.write(kIndex, R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors","c":"2.safetensors"}})");
       },
       {"tensor \"b\" should be in 2.safetensors, but is in 1.safetensors"}},
      {"a tensor that is not listed",
       [](const auto& f) { f.write(kIndex, R"({"weight_map":{"a":"1.safetensors","c":"2.safetensors"}})"); },
       {"tensor \"b\" of 1.safetensors is not listed", "different downloads"}},
      {"a last tensor that is not listed",
       [](const auto& f) {
         f.write("2.safetensors", safetensors_file(R"({"c":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},)"
                                                   R"("d":{"dtype":"I8","shape":[1],"data_offsets":[1,2]}})",
                                                   "cd"));
       },
       {"tensor \"d\" of 2.safetensors is not listed"}},
      {"a tensor in both shards",
       [](const auto& f) { f.write("2.safetensors", one_tensor_file("b", "x")); },
       {"tensor \"b\" is in both 1.safetensors and 2.safetensors"}},
  };
  for (const Case& bad : cases) {
    SCOPED_TRACE(bad.what);
    TempFolder folder;
    write_two_shards(folder);
    ASSERT_EQ(error_of(folder.path()), "");
    bad.change(folder);
    const std::string message = error_of(folder.path());
    EXPECT_THAT(message, HasSubstr(folder.path()));
    for (const char* fragment : bad.fragments) EXPECT_THAT(message, HasSubstr(fragment));
  }
}

TEST(Checkpoint, AMissingFolderAndAFileInPlaceOfAFolderAreNamed) {
  EXPECT_THAT(error_of("/nonexistent/model"), AllOf(HasSubstr("/nonexistent/model"), HasSubstr("does not exist")));
  TempFolder folder;
  folder.write("model.safetensors", one_tensor_file("x", "1"));
  EXPECT_THAT(error_of(folder.file("model.safetensors")),
              AllOf(HasSubstr("is not a folder"), HasSubstr("give the folder")));
}

TEST(Checkpoint, OpeningALargeFileReadsItsHeaderOnly) {
  // 64 GiB of zeros, of which the disk stores none: reading them would fault them into memory.
  constexpr uint64_t kBytes = uint64_t{64} << 30;
  TempFolder folder;
  const std::string header =
      fmt::format(R"({{"table":{{"dtype":"F8_E4M3","shape":[{},256],"data_offsets":[0,{}]}}}})", kBytes / 256, kBytes);
  folder.write("model.safetensors", safetensors_file(header, ""));
  const uint64_t start = 8 + header.size();
  if (::truncate(folder.file("model.safetensors").c_str(), static_cast<off_t>(start + kBytes)) != 0)
    GTEST_SKIP() << "the temporary folder's file system has no sparse files of this size";
  rusage before{}, after{};
  ::getrusage(RUSAGE_SELF, &before);
  const auto checkpoint = Checkpoint::open(folder.path());
  ::getrusage(RUSAGE_SELF, &after);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(checkpoint->find("table")->bytes, kBytes);
  EXPECT_EQ(checkpoint->find("table")->data[kBytes - 1], std::byte{0});
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 * 1024);  // KiB
}

}  // namespace
}  // namespace deepinfer
