#include "text/vocabulary.h"

#include <algorithm>

#include "text/byte_alphabet.h"

namespace deepinfer {
namespace {

constexpr size_t kMaxTotalBytes = size_t{1} << 31;

Status check_ids(const std::vector<TokenEntry>& sorted) {
  for (size_t i = 0; i < sorted.size(); ++i) {
    const auto expected = static_cast<int32_t>(i);
    if (sorted[i].id == expected) continue;
    if (i > 0 && sorted[i].id == sorted[i - 1].id) {
      return invalid_input("token id {} belongs to two tokens; every id may be used once", sorted[i].id);
    }
    return invalid_input("token id {} belongs to no token, but id {} exists; ids have to be 0 .. n-1 without holes",
                         expected, sorted[i].id);
  }
  return {};
}

}  // namespace

Result<Vocabulary> Vocabulary::create(std::vector<TokenEntry> entries) {
  std::sort(entries.begin(), entries.end(), [](const TokenEntry& a, const TokenEntry& b) { return a.id < b.id; });
  DI_RETURN_IF_ERROR(check_ids(entries));
  size_t num_bytes = 0;
  for (const TokenEntry& entry : entries) num_bytes += entry.bytes.size();
  if (num_bytes > kMaxTotalBytes) return invalid_input("tokens of {} bytes together; at most 2 GiB work", num_bytes);

  Vocabulary vocabulary;
  vocabulary.bytes_ = std::make_unique<char[]>(num_bytes);
  vocabulary.regular_.reserve(entries.size());
  uint32_t end = 0;
  vocabulary.begins_.push_back(end);
  for (const TokenEntry& entry : entries) {
    std::copy(entry.bytes.begin(), entry.bytes.end(), vocabulary.bytes_.get() + end);
    end += static_cast<uint32_t>(entry.bytes.size());
    vocabulary.begins_.push_back(end);
    vocabulary.kinds_.push_back(entry.kind);
    if (entry.kind == TokenKind::kLiteral) continue;
    Index& index = entry.kind == TokenKind::kBytes ? vocabulary.regular_ : vocabulary.control_;
    const auto [other, is_new] = index.emplace(vocabulary.bytes(entry.id), entry.id);
    if (!is_new) {
      return invalid_input("tokens {} and {} have the same spelling {}; keep one of them", other->second, entry.id,
                           entry.kind == TokenKind::kBytes ? spell_bytes(entry.bytes) : entry.bytes);
    }
  }
  return vocabulary;
}

std::optional<int32_t> Vocabulary::find(const Index& index, std::string_view bytes) {
  const auto found = index.find(bytes);
  return found == index.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace deepinfer
