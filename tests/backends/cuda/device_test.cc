#include <gmock/gmock.h>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/rig.h"

namespace deepinfer::cuda_test {
namespace {

using testing::HasSubstr;

constexpr cuda::CardFacts kGoodCard = {.driver_version = 13000, .runtime_version = 13000, .num_cards = 1, .major = 9};

TEST(CardCheck, AcceptsTheCardThatTheKernelsAreFor) { EXPECT_TRUE(cuda::check_card(kGoodCard).ok()); }

TEST(CardCheck, NamesWhatIsMissingAndARemedy) {
  cuda::CardFacts facts = kGoodCard;
  facts.driver_version = 0;
  EXPECT_THAT(cuda::check_card(facts).message(), HasSubstr("no NVIDIA driver"));
  facts = kGoodCard;
  facts.driver_version = 12080;
  EXPECT_THAT(cuda::check_card(facts).message(), HasSubstr("supports CUDA 12.8 and this build needs 13.0"));
  facts = kGoodCard;
  facts.num_cards = 0;
  EXPECT_THAT(cuda::check_card(facts).message(), HasSubstr("CUDA_VISIBLE_DEVICES"));
  facts = kGoodCard;
  facts.name = "NVIDIA A100-SXM4-80GB";
  facts.major = 8;
  EXPECT_THAT(cuda::check_card(facts).message(), HasSubstr("NVIDIA A100-SXM4-80GB has compute capability 8.0"));
  facts.name = "NVIDIA B200";
  facts.major = 10;
  EXPECT_EQ(cuda::check_card(facts).code(), ErrorCode::kUnsupported);
  EXPECT_THAT(cuda::check_card(facts).message(), HasSubstr("NVIDIA B200 has compute capability 10.0 and lacks wgmma"));
  EXPECT_THAT(cuda::check_card(facts).message(), HasSubstr("--device cpu"));
}

TEST(CardCheck, RefusesSettingsBeforeItLooksForACard) {
  EXPECT_THAT(make_cuda_device({.memory_utilization = 1.5}).status().message(),
              HasSubstr("gpu_memory_utilization 1.5"));
  EXPECT_THAT(make_cuda_device({.memory_utilization = 0}).status().message(), HasSubstr("above 0"));
  EXPECT_THAT(make_cuda_device({.kernels = "avx2"}).status().message(), HasSubstr("cuda_sm90"));
}

class CudaDeviceTest : public CudaTest {};

TEST_F(CudaDeviceTest, DescribesItself) {
  EXPECT_THAT(device().description(), HasSubstr("cuda, NVIDIA"));
  EXPECT_EQ(device().kernel_set(), "cuda_sm90");
  EXPECT_FALSE(device().shares_host_memory());
  EXPECT_EQ(device().activation_type(true), ElementType::kBf16);
  EXPECT_EQ(device().activation_type(false), ElementType::kF32);
}

TEST_F(CudaDeviceTest, GivesMemoryWithinItsBudgetAndTakesItBack) {
  const int64_t before = device().free_bytes();
  EXPECT_GT(before, int64_t{1} << 30);
  {
    std::vector<std::shared_ptr<std::byte>> pieces;
    for (int64_t bytes : {0, 1, 255, 256, 4097, 1 << 20, 100 << 20, 300 << 20}) {
      pieces.push_back(device().allocate(bytes).value());
      EXPECT_EQ(reinterpret_cast<uintptr_t>(pieces.back().get()) % 256, 0u);
      for (size_t i = 0; i + 1 < pieces.size(); ++i) EXPECT_NE(pieces[i].get(), pieces.back().get());
    }
    EXPECT_LE(device().free_bytes(), before - (400 << 20));
    const Result<std::shared_ptr<std::byte>> refused = device().allocate(before);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(refused.status().message(), HasSubstr("gpu_memory_utilization"));
  }
  EXPECT_EQ(device().free_bytes(), before);
}

TEST_F(CudaDeviceTest, PiecesDoNotOverlap) {
  std::vector<OnCard<uint32_t>> pieces;
  for (uint32_t i = 0; i < 200; ++i) pieces.push_back(upload(std::vector<uint32_t>(1 + i * i * 7 % 5000, i)));
  for (uint32_t i = 0; i < 200; ++i) {
    const std::vector<uint32_t> values = pieces[i].values();
    EXPECT_TRUE(std::all_of(values.begin(), values.end(), [&](uint32_t v) { return v == i; })) << i;
  }
}

TEST_F(CudaDeviceTest, CopiesBetweenHostPinnedAndDeviceMemory) {
  constexpr int64_t kBytes = 3 << 20;
  std::vector<std::byte> source(kBytes), sink(kBytes);
  for (auto& b : source) b = static_cast<std::byte>(random()());
  const std::shared_ptr<std::byte> pinned = device().allocate_pinned(kBytes).value();
  const std::shared_ptr<std::byte> a = device().allocate(kBytes).value();
  const std::vector<std::byte> original = source;
  stream().copy(a.get(), source.data(), kBytes);
  std::fill(source.begin(), source.end(), std::byte{0});  // has been read already
  stream().copy(pinned.get(), a.get(), kBytes);
  ASSERT_TRUE(stream().synchronize().ok());
  EXPECT_EQ(std::memcmp(pinned.get(), original.data(), kBytes), 0);
  const std::shared_ptr<const std::byte> resident = device().make_resident(original).value();
  stream().copy(sink.data(), resident.get(), kBytes);  // has been written on return
  EXPECT_EQ(sink, original);
}

TEST_F(CudaDeviceTest, ReplaysRecordedWorkOverWhateverTheMemoryHoldsByThen) {
  const OnCard<int32_t> from = upload(std::vector<int32_t>(1000, 1)), to = upload(std::vector<int32_t>(1000, 0));
  ASSERT_TRUE(stream().can_record());
  stream().begin_recording();
  stream().copy(to.data(), from.data(), 4000);
  const std::unique_ptr<Graph> graph = stream().end_recording();
  EXPECT_EQ(to.values()[999], 0) << "recording ran the work";
  for (int32_t value : {5, 6, 7}) {
    const std::vector<int32_t> values(1000, value);
    stream().copy(from.data(), values.data(), 4000);
    stream().launch(*graph);
    EXPECT_EQ(to.values(), values);
  }
}

TEST_F(CudaDeviceTest, AnOpThatIsRefusedMemoryFailsTheStreamOnceAndNotTheProgram) {
  const std::vector<std::byte> zeros(64 << 20);
  const ops::WeightSource source{ops::WeightFormat::kF32, 4096, 4096, zeros.data()};
  {
    const std::shared_ptr<std::byte> most = device().allocate(device().free_bytes() - (32 << 20)).value();
    EXPECT_EQ(ops::pack_weight(stream(), source).data, nullptr);
    EXPECT_EQ(ops::pack_weight(stream(), {ops::WeightFormat::kF32, 32, 32, source.data}).data, nullptr);
    const Status told = stream().synchronize();
    EXPECT_EQ(told.code(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(told.message(), HasSubstr("a [4096, 4096] matrix"));
    EXPECT_THAT(told.message(), HasSubstr("MiB are left"));
    EXPECT_THAT(told.message(), HasSubstr("gpu_memory_utilization"));
    EXPECT_TRUE(stream().synchronize().ok());
  }
  EXPECT_NE(ops::pack_weight(stream(), source).data, nullptr);
  EXPECT_TRUE(stream().check().ok());
}

TEST_F(CudaDeviceTest, EventsAreReachedInOrderAndTellTheTimeBetweenThem) {
  const std::unique_ptr<Event> first = stream().make_event(), second = stream().make_event();
  EXPECT_TRUE(first->reached().value()) << "never recorded";
  const OnCard<uint8_t> from = upload(std::vector<uint8_t>(256 << 20)), to = upload(std::vector<uint8_t>(256 << 20));
  stream().record(*first);
  for (int i = 0; i < 20; ++i) stream().copy(to.data(), from.data(), 256 << 20);
  stream().record(*second);
  EXPECT_FALSE(second->reached().value()) << "ten gigabytes moved at once";
  ASSERT_TRUE(second->wait().ok());
  EXPECT_TRUE(first->reached().value() && second->reached().value());
  EXPECT_GT(second->seconds_since(*first), 20.0 * (256 << 20) / 10e12);
  EXPECT_LT(second->seconds_since(*first), 1);
}

TEST_F(CudaDeviceTest, KeepsTheScratchOfARecordingWhenItGrowsLater) {
  auto& cuda = cuda::cuda_stream(stream());
  auto* small = static_cast<int32_t*>(cuda.scratch(4000));
  EXPECT_EQ(cuda.scratch(100), small);
  const OnCard<int32_t> from = upload(std::vector<int32_t>(1000, 3)), to = upload(std::vector<int32_t>(1000, 0));
  stream().begin_recording();
  stream().copy(cuda.scratch(4000), from.data(), 4000);
  stream().copy(to.data(), cuda.scratch(4000), 4000);
  const std::unique_ptr<Graph> graph = stream().end_recording();
  cuda.scratch(256 << 20);
  const OnCard<int32_t> other = upload(std::vector<int32_t>(1 << 20, 9));
  stream().launch(*graph);
  EXPECT_EQ(to.values(), std::vector<int32_t>(1000, 3));
  const std::vector<int32_t> kept = other.values();
  EXPECT_TRUE(std::all_of(kept.begin(), kept.end(), [](int32_t v) { return v == 9; }));
}

}  // namespace
}  // namespace deepinfer::cuda_test
