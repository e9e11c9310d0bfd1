#include "checkpoint/mapped_file.h"

#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/temp_folder.h"

namespace deepinfer {
namespace {

using ::testing::HasSubstr;

TEST(MappedFile, GivesTheBytesOfTheFileAlsoAfterAMove) {
  TempFolder folder;
  folder.write("f", "content");
  auto file = MappedFile::open(folder.file("f"));
  ASSERT_TRUE(file.ok());
  MappedFile moved = std::move(file).value();
  EXPECT_EQ(moved.text(), "content");
  folder.write("g", "other");
  auto other = MappedFile::open(folder.file("g"));
  ASSERT_TRUE(other.ok());
  moved = std::move(other).value();
  EXPECT_EQ(moved.text(), "other");
}

TEST(MappedFile, RefusesWhatIsNoOrdinaryFile) {
  TempFolder folder;
  folder.write("empty", "");
  folder.write("pointer", "version https://git-lfs.github.com/spec/v1\n");
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  const std::pair<std::string, const char*> cases[] = {
      {folder.file("none"), "does not exist"},     {folder.path(), "is a folder"},
      {folder.file("empty"), "is empty"},          {folder.file("pointer"), "Git LFS pointer"},
      {folder.file("pipe"), "not a regular file"}, {folder.file("empty") + "/x", "cannot open"}};
  for (const auto& [path, fragment] : cases) {
    const auto file = MappedFile::open(path);
    ASSERT_FALSE(file.ok()) << path;
    EXPECT_THAT(file.status().message(), testing::AllOf(HasSubstr(path), HasSubstr(fragment)));
  }
}

TEST(MappedFile, AdviceOnAnyPartLeavesTheContentsAlone) {
  TempFolder folder;
  std::string content(50'000, '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7);
  folder.write("f", content);
  const auto file = MappedFile::open(folder.file("f"));
  ASSERT_TRUE(file.ok());
  for (const auto advice : {AccessAdvice::kRandom, AccessAdvice::kWillNeed, AccessAdvice::kDontNeed}) {
    advise(file->bytes(), advice);
    advise(file->bytes().subspan(4097, 3), advice);
    advise(file->bytes().subspan(49'999), advice);
    advise(file->bytes().subspan(0, 0), advice);
    EXPECT_EQ(file->text(), content);
  }
}

}  // namespace
}  // namespace deepinfer
