#include "text/vocabulary.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "text/byte_alphabet.h"

namespace deepinfer {
namespace {

constexpr size_t kMaxTotalBytes = size_t{1} << 31;

uint32_t hash_of(std::string_view bytes) { return static_cast<uint32_t>(std::hash<std::string_view>()(bytes)); }

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
  vocabulary.regular_.resize(std::bit_ceil(2 * entries.size() + 1));
  vocabulary.control_.resize(vocabulary.regular_.size());
  uint32_t end = 0;
  vocabulary.begins_.push_back(end);
  for (const TokenEntry& entry : entries) {
    std::copy(entry.bytes.begin(), entry.bytes.end(), vocabulary.bytes_.get() + end);
    end += static_cast<uint32_t>(entry.bytes.size());
    vocabulary.begins_.push_back(end);
    vocabulary.kinds_.push_back(entry.kind);
    if (entry.kind == TokenKind::kBytes) DI_RETURN_IF_ERROR(vocabulary.insert(vocabulary.regular_, entry.id));
    if (entry.kind == TokenKind::kControl) DI_RETURN_IF_ERROR(vocabulary.insert(vocabulary.control_, entry.id));
  }
  return vocabulary;
}

size_t Vocabulary::place_of(const Index& index, std::string_view token, uint32_t hash) const {
  size_t place = hash & (index.size() - 1);
  while (index[place].id != kNoId && (index[place].hash != hash || bytes(index[place].id) != token)) {
    place = (place + 1) & (index.size() - 1);
  }
  return place;
}

Status Vocabulary::insert(Index& index, int32_t id) {
  const uint32_t hash = hash_of(bytes(id));
  Slot& slot = index[place_of(index, bytes(id), hash)];
  if (slot.id != kNoId) {
    return invalid_input("tokens {} and {} have the same spelling {}; keep one of them", slot.id, id,
                         kind(id) == TokenKind::kBytes ? spell_bytes(bytes(id)) : std::string(bytes(id)));
  }
  slot = {hash, id};
  return {};
}

std::optional<int32_t> Vocabulary::find(const Index& index, std::string_view token) const {
  const int32_t id = index[place_of(index, token, hash_of(token))].id;
  return id == kNoId ? std::nullopt : std::optional(id);
}

}  // namespace deepinfer
