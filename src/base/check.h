// DI_CHECK: assertions for bugs, active in every build. Input from outside can never trigger one: that is Status.
#pragma once

#include <string>
#include <utility>

#include <fmt/format.h>

namespace deepinfer {

// Prints file, line, condition and message to stderr and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace deepinfer

#define DI_CHECK(condition, ...)                                                             \
  do {                                                                                       \
    if (!(condition)) [[unlikely]]                                                           \
      ::deepinfer::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (false)
