#include "text/character_classes.h"

#include <unicode/uchar.h>

namespace deepinfer {
namespace {

constexpr char32_t kNumCodePoints = 0x110000;

uint8_t class_of_category(UCharCategory category) {
  const uint32_t mask = U_MASK(category);
  uint8_t bits = 0;
  if (mask & U_GC_L_MASK) bits |= kLetterOrMark | kLetter;
  if (mask & U_GC_M_MASK) bits |= kLetterOrMark;
  if (mask & (U_GC_P_MASK | U_GC_S_MASK)) bits |= kPunctuationOrSymbol;
  if (mask & U_GC_N_MASK) bits |= kNumber;
  return bits;
}

}  // namespace

CharacterClasses::CharacterClasses() : classes_(kNumCodePoints) {
  const auto fill = [](const void* classes, UChar32 begin, UChar32 end, UCharCategory category) -> UBool {
    auto* table = static_cast<uint8_t*>(const_cast<void*>(classes));
    const uint8_t bits = class_of_category(category);
    for (UChar32 c = begin; c < end; ++c) table[c] = bits;
    return true;
  };
  u_enumCharTypes(fill, classes_.data());
  // All white space lies in the Basic Multilingual Plane.
  for (UChar32 c = 0; c < 0x10000; ++c) {
    if (u_isUWhiteSpace(c)) classes_[c] |= kWhiteSpace;
  }
  classes_['\r'] |= kLineEnd;
  classes_['\n'] |= kLineEnd;
  for (char32_t c = 0x4E00; c <= 0x9FA5; ++c) classes_[c] |= kHanOrKana;
  for (char32_t c = 0x3040; c <= 0x30FF; ++c) classes_[c] |= kHanOrKana;
}

}  // namespace deepinfer
