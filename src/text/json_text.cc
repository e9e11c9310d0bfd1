#include "text/json_text.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/utf8.h"

namespace deepinfer {
namespace {

constexpr size_t kMaxDepth = 200;
constexpr size_t kMaxErrorBytes = 200;  // messages quote what was read, which may be megabytes

// Builds values from the parser's events. nlohmann's own builder looks a key up by walking the object, which a hostile
// object of many keys makes quadratic, and turns integers beyond 64 bits into rounded floating-point numbers.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  const std::string& error() const { return error_; }
  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& spelling) override {
    if (spelling.find_first_of(".eE") != std::string::npos) return add(value);
    return add(Json::binary({spelling.begin(), spelling.end()}));
  }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return fail("binary values do not exist in JSON text"); }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool key(string_t& key) override {
    open_.back().key = std::move(key);
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t position, const std::string&, const Json::exception& error) override {
    const std::string_view what = std::string_view(error.what()).substr(0, kMaxErrorBytes);
    return fail(fmt::format("at byte {}: {}", position, replace_invalid_utf8(what)));
  }

 private:
  struct Container {
    Json value;
    std::string key;                                       // of the member being read
    std::unordered_map<std::string, size_t> place_of_key;  // objects only
  };

  bool fail(std::string message) {
    error_ = std::move(message);
    return false;
  }

  bool open(Json value) {
    if (open_.size() == kMaxDepth) return fail(fmt::format("nested deeper than {} levels", kMaxDepth));
    open_.push_back({std::move(value), {}, {}});
    return true;
  }

  bool close() {
    Json value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }

  bool add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Container& container = open_.back();
    if (container.value.is_array()) {
      container.value.get_ref<Json::array_t&>().push_back(std::move(value));
      return true;
    }
    auto& members = container.value.get_ref<Json::object_t&>();
    const auto [place, is_new] = container.place_of_key.emplace(container.key, members.size());
    if (is_new) {
      members.emplace_back(std::move(container.key), std::move(value));
    } else {
      members.begin()[static_cast<ptrdiff_t>(place->second)].second = std::move(value);
    }
    return true;
  }

  Json root_;
  std::vector<Container> open_;
  std::string error_;
};

// As Python's repr: the shortest digits that read back as the same number, in plain notation for exponents -4 to 15.
std::string print_float(double value) {
  char buffer[32];
  const char* end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, end - buffer);
  const size_t e = text.find('e');
  const std::string_view sign = text.substr(0, text[0] == '-' ? 1 : 0);
  std::string digits(text.substr(sign.size(), e - sign.size()));
  std::erase(digits, '.');
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), end, exponent);
  if (exponent < -4 || exponent >= 16) {
    const std::string fraction = digits.size() > 1 ? "." + digits.substr(1) : "";
    return fmt::format("{}{}{}e{}{:02}", sign, digits[0], fraction, exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return fmt::format("{}0.{}{}", sign, std::string(-exponent - 1, '0'), digits);
  const auto num_before_point = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= num_before_point) digits.append(num_before_point + 1 - digits.size(), '0');
  return fmt::format("{}{}.{}", sign, digits.substr(0, num_before_point), digits.substr(num_before_point));
}

void append_string(const std::string& text, std::string& out) {
  out.push_back('"');
  append_json_escaped(text, out);
  out.push_back('"');
}

void append_value(const Json& value, std::string& out) {
  switch (value.type()) {
    case Json::value_t::object: {
      std::string_view separator = "{";
      for (const auto& [key, member] : value.get_ref<const Json::object_t&>()) {
        out += std::exchange(separator, ", ");
        append_string(key, out);
        out += ": ";
        append_value(member, out);
      }
      out += value.empty() ? "{}" : "}";
      return;
    }
    case Json::value_t::array: {
      std::string_view separator = "[";
      for (const Json& element : value) {
        out += std::exchange(separator, ", ");
        append_value(element, out);
      }
      out += value.empty() ? "[]" : "]";
      return;
    }
    case Json::value_t::string:
      return append_string(value.get_ref<const std::string&>(), out);
    case Json::value_t::number_float:
      out += print_float(value.get<double>());
      return;
    case Json::value_t::binary:
      out.append(value.get_binary().begin(), value.get_binary().end());
      return;
    default:
      out += value.dump();
      return;  // null, true, false, 64-bit integers
  }
}

}  // namespace

Result<Json> parse_json(std::string_view text) {
  Builder builder;
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) return invalid_input("not valid JSON: {}", builder.error());
  return builder.take();
}

std::string dump_json(const Json& value) {
  std::string out;
  append_value(value, out);
  return out;
}

void append_json_escaped(std::string_view text, std::string& out) {
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<int>(c));
        } else {
          out.push_back(c);
        }
    }
  }
}

}  // namespace deepinfer
