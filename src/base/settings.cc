#include "base/settings.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>

namespace deepinfer {
namespace {

constexpr std::string_view kEnvironmentPrefix = "DEEPINFER_";

struct Unit {
  std::string_view name;
  int shift;
};
constexpr Unit kUnits[] = {{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}};

std::string in_case(std::string_view text, int (*convert)(int)) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(convert(static_cast<unsigned char>(c)));
  return out;
}

// The name in a table, whatever the source's spelling.
std::string plain_name(const SettingValue& value) {
  std::string_view spelled = value.spelled;
  if (value.source == SettingSource::kEnvironment && spelled.starts_with(kEnvironmentPrefix)) {
    spelled.remove_prefix(kEnvironmentPrefix.size());
  }
  if (value.source == SettingSource::kFlag)
    spelled.remove_prefix(std::min(spelled.find_first_not_of('-'), spelled.size()));
  std::string name = in_case(spelled, std::tolower);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// Levenshtein's.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({change, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::string nearest_name(std::string_view name, std::span<const SettingsTarget> targets) {
  std::string nearest;
  size_t least = std::numeric_limits<size_t>::max();
  const auto consider = [&](const std::string& candidate) {
    const size_t distance = edit_distance(name, candidate);
    if (distance < least) nearest = candidate, least = distance;
  };
  for (const SettingsTarget& target : targets) {
    for (const SettingRow& row : target.table->rows()) {
      consider(row.name);
      for (const std::string& alias : row.aliases) consider(alias);
    }
  }
  return nearest;
}

std::string in_front(const SettingValue& value) { return value.where.empty() ? "" : value.where + ": "; }

Status apply_one(const SettingValue& value, const SettingRow& row, void* settings) {
  if (row.read == nullptr) {  // a name without a value of its own
    if (!row.default_text.empty() && value.text == row.default_text) return Status();
    return unsupported("{}{} {}: {}", in_front(value), value.spelled, value.text, row.refusal);
  }
  if (const Status status = row.read(value.text, settings); !status.ok()) {
    return Status(status.code(),
                  fmt::format("{}{} '{}': give {}", in_front(value), value.spelled, value.text, status.message()));
  }
  if (row.refusal.empty() || row.show(settings) == row.default_text) return Status();
  return unsupported("{}{} {}: {}", in_front(value), value.spelled, value.text, row.refusal);
}

// Table cells end at a bar.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

std::string names_of(const SettingRow& row) {
  std::string names = "`" + row.name + "`";
  for (const std::string& alias : row.aliases) names += ", `" + alias + "`";
  return names;
}

}  // namespace

std::string spell_setting(std::string_view name, SettingSource source) {
  if (source == SettingSource::kEnvironment) return std::string(kEnvironmentPrefix) + in_case(name, std::toupper);
  if (source != SettingSource::kFlag) return std::string(name);
  std::string flag = fmt::format("--{}", name);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

SettingRow& SettingsTable::add(SettingRow row) {
  row.group = group_;
  DI_CHECK(find(row.name) == nullptr, "two settings of the name {}", row.name);
  return rows_.emplace_back(std::move(row));
}

void SettingsTable::refused(std::string name, std::string neutral, std::string sentence) {
  SettingRow row;
  row.name = std::move(name);
  row.default_text = std::move(neutral);
  row.refusal = std::move(sentence);
  add(std::move(row));
}

const SettingRow* SettingsTable::find(std::string_view name) const {
  for (const SettingRow& row : rows_) {
    if (row.name == name || std::find(row.aliases.begin(), row.aliases.end(), name) != row.aliases.end()) return &row;
  }
  return nullptr;
}

std::string SettingsTable::to_markdown() const {
  std::string out;
  std::string group;
  for (const SettingRow& row : rows_) {
    if (!row.refusal.empty()) continue;
    if (group != row.group) {
      group = row.group;
      out += fmt::format("\n## {}\n\n| name | default | value | meaning |\n|---|---|---|---|\n", group);
    }
    out += fmt::format("| {} | {} | {} | {} |\n", names_of(row),
                       row.default_text.empty() ? "" : "`" + row.default_text + "`", cell(row.allowed), cell(row.help));
  }
  out += "\n## Known and refused\n\n| name | accepted | why |\n|---|---|---|\n";
  for (const SettingRow& row : rows_) {
    if (row.refusal.empty()) continue;
    out += fmt::format("| {} | {} | {} |\n", names_of(row),
                       row.default_text.empty() ? "nothing" : "`" + row.default_text + "`", cell(row.refusal));
  }
  return out;
}

Result<int64_t> read_whole_number(std::string_view text, int64_t low, int64_t high) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= low && value <= high) return value;
  return invalid_input("a whole number from {} to {}", low, high);
}

Result<double> read_number(std::string_view text, double low, double high) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= low && value <= high) return value;
  return invalid_input("a number from {} to {}", low, high);
}

Result<bool> read_switch(std::string_view text) {
  if (text == "1" || text == "true") return true;
  if (text == "0" || text == "false") return false;
  return invalid_input("0 or 1");
}

Result<int64_t> read_byte_size(std::string_view text) {
  int shift = 0;
  std::string_view digits = text;
  for (const Unit& unit : kUnits) {
    if (!text.ends_with(unit.name)) continue;
    shift = unit.shift;
    digits.remove_suffix(unit.name.size());
  }
  const Result<int64_t> count = read_whole_number(digits, 0, std::numeric_limits<int64_t>::max() >> shift);
  if (!count.ok()) return invalid_input("a size such as 1048576, 512MiB or 8GiB");
  return *count << shift;
}

std::string show_byte_size(int64_t bytes) {
  for (const Unit& unit : kUnits) {
    if (bytes > 0 && bytes % (int64_t{1} << unit.shift) == 0)
      return fmt::format("{}{}", bytes >> unit.shift, unit.name);
  }
  return std::to_string(bytes);
}

Status apply_settings(std::span<const SettingValue> values, std::span<const SettingsTarget> targets) {
  std::map<const SettingRow*, const SettingValue*> given;
  for (const SettingValue& value : values) {
    const std::string name = plain_name(value);
    const SettingRow* row = nullptr;
    void* settings = nullptr;
    for (const SettingsTarget& target : targets) {
      if (row != nullptr) break;
      row = target.table->find(name);
      settings = target.settings;
    }
    if (row == nullptr || spell_setting(name, value.source) != value.spelled) {
      return not_found("{}{}: there is no such setting; the nearest is {}", in_front(value), value.spelled,
                       spell_setting(nearest_name(name, targets), value.source));
    }
    if (const auto [first, is_new] = given.try_emplace(row, &value); !is_new) {
      return invalid_input("{}{} and {} both set {}: leave one out", in_front(value), first->second->spelled,
                           value.spelled, row->name);
    }
    DI_RETURN_IF_ERROR(apply_one(value, *row, settings));
  }
  return Status();
}

}  // namespace deepinfer
