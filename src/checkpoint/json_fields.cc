#include "checkpoint/json_fields.h"

#include <algorithm>

#include <simdjson.h>

#include "checkpoint/shown.h"

namespace deepinfer {
namespace {

constexpr size_t kMaxDocumentBytes = size_t{64} << 20;
using Element = simdjson::dom::element;

struct Found {
  std::string_view key;
  Element value;
};

// What a message shows of a value that was not as expected.
std::string value_text(Element value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  std::string_view text;
  return value.get(text) ? std::string(simdjson::minify(value)) : shown(text);
}

Status check_duplicates(std::string_view file_name, const std::string& path, simdjson::dom::object object) {
  std::vector<std::string_view> keys;
  for (const auto field : object) keys.push_back(field.key);
  std::sort(keys.begin(), keys.end());
  const auto twin = std::adjacent_find(keys.begin(), keys.end());
  if (twin == keys.end()) return {};
  return invalid_input("{}: the key {}{} appears twice; remove one of them", file_name, path, *twin);
}

}  // namespace

struct JsonFields::Document {
  simdjson::dom::parser parser;
  std::string file_name;
  Status problem;
};

struct JsonFields::Node {
  simdjson::dom::object object;
  std::string path;  // "" or "text_config."

  std::optional<Found> find(Keys keys) const {
    for (const std::string_view key : keys) {
      Element value;
      if (!object.at_key(key).get(value) && !value.is_null()) return Found{key, value};
    }
    return std::nullopt;
  }
};

Result<JsonFields> JsonFields::parse(std::string_view file_name, std::string_view text) {
  if (text.size() > kMaxDocumentBytes)
    return invalid_input("{}: {} bytes, expected at most {}; restore the original file", file_name, text.size(),
                         kMaxDocumentBytes);
  auto document = std::make_shared<Document>();
  document->file_name = file_name;
  Element root;
  if (const auto error = document->parser.parse(simdjson::padded_string(text)).get(root))
    return invalid_input("{}: not valid JSON ({}); restore the original file", file_name,
                         simdjson::error_message(error));
  auto node = std::make_shared<Node>();
  if (root.get(node->object))
    return invalid_input("{}: not a JSON object but {}; restore the original file", file_name, value_text(root));
  DI_RETURN_IF_ERROR(check_duplicates(file_name, "", node->object));
  return JsonFields(std::move(document), std::move(node));
}

bool JsonFields::has(Keys keys) const { return node_->find(keys).has_value(); }

std::string JsonFields::label(std::string_view key) const {
  return fmt::format("{}: {}{}", document_->file_name, node_->path, key);
}

void JsonFields::report(Status problem) const {
  if (document_->problem.ok()) document_->problem = std::move(problem);
}

Status JsonFields::take_status() const { return std::move(document_->problem); }

std::optional<JsonFields> JsonFields::child(std::string_view key) const {
  const auto found = node_->find({key});
  if (!found) return std::nullopt;
  auto node = std::make_shared<Node>();
  node->path = fmt::format("{}{}.", node_->path, key);
  if (found->value.get(node->object)) {
    report(invalid_input("{} is {}, expected an object", label(key), value_text(found->value)));
    return std::nullopt;
  }
  report(check_duplicates(document_->file_name, node->path, node->object));
  return JsonFields(document_, std::move(node));
}

void JsonFields::read_if_present(Keys keys, int64_t* out, IntRange range) const {
  const auto found = node_->find(keys);
  if (!found) return;
  int64_t value = 0;
  if (found->value.get(value) || value < range.min || value > range.max)
    return report(invalid_input("{} is {}, expected an integer from {} to {}", label(found->key),
                                value_text(found->value), range.min, range.max));
  *out = value;
}

void JsonFields::read_if_present(Keys keys, double* out, RealRange range) const {
  const auto found = node_->find(keys);
  if (!found) return;
  double value = 0;
  if (found->value.get(value) || !(value >= range.min && value <= range.max))
    return report(invalid_input("{} is {}, expected a number from {} to {}", label(found->key),
                                value_text(found->value), range.min, range.max));
  *out = value;
}

void JsonFields::read_if_present(Keys keys, std::string* out) const {
  const auto found = node_->find(keys);
  if (!found) return;
  std::string_view value;
  if (found->value.get(value))
    return report(invalid_input("{} is {}, expected a string", label(found->key), value_text(found->value)));
  *out = value;
}

void JsonFields::read_if_present(Keys keys, bool* out) const {
  const auto found = node_->find(keys);
  if (found && found->value.get(*out))
    report(invalid_input("{} is {}, expected true or false", label(found->key), value_text(found->value)));
}

void JsonFields::read_if_present(Keys keys, std::vector<int64_t>* out, IntRange range, size_t max_size) const {
  const auto found = node_->find(keys);
  if (!found) return;
  simdjson::dom::array array;
  if (found->value.get(array))
    return report(
        invalid_input("{} is {}, expected an array of integers", label(found->key), value_text(found->value)));
  std::vector<int64_t> values;
  for (const Element element : array) {
    int64_t value = 0;
    if (element.get(value) || value < range.min || value > range.max)
      return report(invalid_input("{} has {} as entry {}, expected integers from {} to {}", label(found->key),
                                  value_text(element), values.size(), range.min, range.max));
    if (values.size() == max_size)
      return report(invalid_input("{} has more than {} entries", label(found->key), max_size));
    values.push_back(value);
  }
  *out = std::move(values);
}

void JsonFields::read_one_or_more_if_present(Keys keys, std::vector<int64_t>* out, IntRange range,
                                             size_t max_size) const {
  const auto found = node_->find(keys);
  if (!found) return;
  if (found->value.is_array()) return read_if_present(keys, out, range, max_size);
  int64_t value = 0;
  if (found->value.get(value) || value < range.min || value > range.max)
    return report(invalid_input("{} is {}, expected an integer from {} to {} or an array of them", label(found->key),
                                value_text(found->value), range.min, range.max));
  *out = {value};
}

#define DI_READ_REQUIRED(keys, ...)                                                      \
  if (!has(keys)) return report(invalid_input("{} is missing", label(*(keys).begin()))); \
  read_if_present(keys, __VA_ARGS__)

void JsonFields::read(Keys keys, int64_t* out, IntRange range) const { DI_READ_REQUIRED(keys, out, range); }
void JsonFields::read(Keys keys, double* out, RealRange range) const { DI_READ_REQUIRED(keys, out, range); }
void JsonFields::read(Keys keys, std::string* out) const { DI_READ_REQUIRED(keys, out); }
void JsonFields::read(Keys keys, std::vector<int64_t>* out, IntRange range, size_t max_size) const {
  DI_READ_REQUIRED(keys, out, range, max_size);
}

#undef DI_READ_REQUIRED

}  // namespace deepinfer
