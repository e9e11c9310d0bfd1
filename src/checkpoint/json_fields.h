// JsonFields: typed, range-checked reading of a JSON object such as config.json, by key or alias.
//
// The first problem (missing key, wrong type, out of range) is kept and named with its full key and value; later reads
// then do nothing, so a caller reads all fields and checks `status()` once. A key whose value is null counts as absent.
// Child objects share the status of their root. Owns the parsed document. Not thread-safe.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer {

// Both ends included.
struct IntRange {
  int64_t min = 0;
  int64_t max = 0;
};
struct RealRange {
  double min = 0;
  double max = 0;
};

class JsonFields {
 public:
  // The spellings of one key, the preferred one first (messages use it if none is present).
  using Keys = std::initializer_list<std::string_view>;

  // `text`: a whole document whose root is an object; `file_name` is for messages.
  static Result<JsonFields> parse(std::string_view file_name, std::string_view text);

  bool has(Keys keys) const;
  // The object under `key`, or nothing if the key is absent.
  std::optional<JsonFields> child(std::string_view key) const;

  // Required: an absent key is a problem.
  void read(Keys keys, int64_t* out, IntRange range) const;
  void read(Keys keys, double* out, RealRange range) const;
  void read(Keys keys, std::string* out) const;
  // At most max_size entries, each in range.
  void read(Keys keys, std::vector<int64_t>* out, IntRange range, size_t max_size) const;

  // Optional: an absent key leaves *out as it is.
  void read_if_present(Keys keys, int64_t* out, IntRange range) const;
  void read_if_present(Keys keys, double* out, RealRange range) const;
  void read_if_present(Keys keys, std::string* out) const;
  void read_if_present(Keys keys, bool* out) const;
  void read_if_present(Keys keys, std::vector<int64_t>* out, IntRange range, size_t max_size) const;
  // An integer or an array of integers.
  void read_one_or_more_if_present(Keys keys, std::vector<int64_t>* out, IntRange range, size_t max_size) const;

  // Keeps `problem` unless there already is one.
  void report(Status problem) const;
  // "file: key path", for messages.
  std::string label(std::string_view key) const;
  // The first problem. Moves it out: call once, at the end.
  Status take_status() const;

 private:
  struct Document;
  struct Node;
  JsonFields(std::shared_ptr<Document> document, std::shared_ptr<Node> node)
      : document_(std::move(document)), node_(std::move(node)) {}

  std::shared_ptr<Document> document_;
  std::shared_ptr<Node> node_;
};

}  // namespace deepinfer
