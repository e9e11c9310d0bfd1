// Status and Result<T>: how functions report what the world can cause (files, settings, requests, memory).
//
// A message names the value that was wrong and what to do about it. Bugs are not reported here: see check.h.
// Both types are cheap to move; a Status without an error holds no allocation. Thread-compatible.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"

namespace deepinfer {

enum class ErrorCode {
  kInvalidInput,  // malformed or out of range: a file's content, a flag, a request
  kNotFound,      // a named file, tensor or key does not exist
  kIo,            // the operating system refused or failed
  kUnsupported,   // well-formed, but not something this build or machine can do
  kOutOfMemory,
  kUnavailable,  // no room now; the same request may succeed later
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(ErrorCode code, std::string message) : error_(std::make_unique<Error>(Error{code, std::move(message)})) {}

  bool ok() const { return error_ == nullptr; }
  // Requires: !ok().
  ErrorCode code() const {
    DI_CHECK(error_ != nullptr, "code() of a status without an error");
    return error_->code;
  }
  const std::string& message() const {
    DI_CHECK(error_ != nullptr, "message() of a status without an error");
    return error_->message;
  }
  // The same error with `context` and ": " in front, so that a caller can name the file or request.
  Status with_context(const std::string& context) const {
    return ok() ? Status() : Status(code(), context + ": " + message());
  }

 private:
  struct Error {
    ErrorCode code;
    std::string message;
  };
  std::unique_ptr<Error> error_;
};

// invalid_input("{}: {} rows, expected {}", name, rows, expected)
template <typename... Args>
Status invalid_input(fmt::format_string<Args...> format, Args&&... args) {
  return Status(ErrorCode::kInvalidInput, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
Status not_found(fmt::format_string<Args...> format, Args&&... args) {
  return Status(ErrorCode::kNotFound, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
Status io_error(fmt::format_string<Args...> format, Args&&... args) {
  return Status(ErrorCode::kIo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
Status unsupported(fmt::format_string<Args...> format, Args&&... args) {
  return Status(ErrorCode::kUnsupported, fmt::format(format, std::forward<Args>(args)...));
}

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor): `return value;`
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor): `return error;`
    DI_CHECK(!status_.ok(), "a Result without a value needs an error");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const& { return status_; }
  Status status() && { return std::move(status_); }
  // Requires: ok().
  T& value() & {
    DI_CHECK(ok(), "value() of a failed result: {}", status_.message());
    return *value_;
  }
  const T& value() const& {
    DI_CHECK(ok(), "value() of a failed result: {}", status_.message());
    return *value_;
  }
  T value() && {
    DI_CHECK(ok(), "value() of a failed result: {}", status_.message());
    return std::move(*value_);
  }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace deepinfer

#define DI_CONCAT_INNER(a, b) a##b
#define DI_CONCAT(a, b) DI_CONCAT_INNER(a, b)

// Returns from the enclosing function if `expression` (a Status) holds an error.
#define DI_RETURN_IF_ERROR(expression)             \
  do {                                             \
    ::deepinfer::Status di_status_ = (expression); \
    if (!di_status_.ok()) return di_status_;       \
  } while (false)

// DI_ASSIGN_OR_RETURN(auto file, open(path)): binds the value or returns the error.
#define DI_ASSIGN_OR_RETURN(declaration, expression) \
  DI_ASSIGN_OR_RETURN_INNER(DI_CONCAT(di_result_, __LINE__), declaration, expression)
#define DI_ASSIGN_OR_RETURN_INNER(result, declaration, expression) \
  auto result = (expression);                                      \
  if (!result.ok()) return std::move(result).status();             \
  declaration = std::move(result).value()
