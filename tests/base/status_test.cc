#include "base/status.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

Result<int> half(int value) {
  if (value % 2 != 0) return invalid_input("{} is odd: give an even number", value);
  return value / 2;
}

Status check_quarter(int value) {
  DI_ASSIGN_OR_RETURN(const int once, half(value));
  DI_RETURN_IF_ERROR(half(once).status());
  return Status();
}

Result<std::unique_ptr<int>> owned(bool ok) {
  if (!ok) return not_found("no such number");
  return std::make_unique<int>(7);
}

TEST(Status, without_an_error_is_ok_and_keeps_no_context) {
  EXPECT_TRUE(Status().ok());
  EXPECT_TRUE(Status().with_context("file").ok());
}

TEST(Status, carries_its_code_and_a_message_that_callers_put_context_in_front_of) {
  const Status status = io_error("cannot read {} bytes", 12);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), ErrorCode::kIo);
  EXPECT_EQ(status.message(), "cannot read 12 bytes");
  EXPECT_EQ(status.with_context("a.json").message(), "a.json: cannot read 12 bytes");
  EXPECT_EQ(status.with_context("a.json").code(), ErrorCode::kIo);
  EXPECT_EQ(not_found("x").code(), ErrorCode::kNotFound);
  EXPECT_EQ(unsupported("x").code(), ErrorCode::kUnsupported);
}

TEST(Result, holds_a_value_or_an_error) {
  EXPECT_EQ(half(8).value(), 4);
  EXPECT_EQ(half(7).status().message(), "7 is odd: give an even number");
  EXPECT_EQ(*std::move(owned(true)).value(), 7);
  EXPECT_EQ(owned(false).status().code(), ErrorCode::kNotFound);
}

TEST(Result, errors_return_through_the_macros) {
  EXPECT_TRUE(check_quarter(8).ok());
  EXPECT_EQ(check_quarter(7).message(), "7 is odd: give an even number");
  EXPECT_EQ(check_quarter(6).message(), "3 is odd: give an even number");
}

TEST(ResultDeathTest, asking_a_failed_result_for_its_value_is_a_bug_and_says_why) {
  EXPECT_DEATH(static_cast<void>(half(7).value()), "7 is odd");
  EXPECT_DEATH(static_cast<void>(Status().message()), "without an error");
}

}  // namespace
}  // namespace deepinfer
