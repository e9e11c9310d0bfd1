#include "engine/texts.h"

#include <iterator>
#include <random>

namespace deepinfer::bench {
namespace {

constexpr const char* kNames[] = {"Mia", "Tom", "Anna", "Ben", "Lily", "Sam", "Nora", "Max", "Ella", "Finn"};
constexpr const char* kThings[] = {"a red ball",   "a small boat",   "an old key",    "a paper kite",
                                   "a brown bear", "a warm blanket", "a silver bell", "a box of crayons"};
constexpr const char* kPlaces[] = {"in the garden", "near the river",      "under the big tree",
                                   "on the hill",   "behind the house",    "at the little market",
                                   "by the sea",    "in the quiet library"};
// %N a name, %O the other one, %T a thing, %P a place.
constexpr const char* kSentences[] = {
    "%N found %T %P.",
    "\"Look what I have!\" said %N to %O.",
    "%O was happy and wanted to play with it too.",
    "The sun was shining and the birds sang %P.",
    "They walked for a long time and talked about %T.",
    "Then it started to rain, and %N was a little bit sad.",
    "\"Do not worry,\" said %O, \"the rain will stop soon.\"",
    "%O had an idea and ran home to get %T.",
    "Mom smiled and gave each of them a slice of bread with honey.",
    "A dog came by and barked, but it only wanted to be friends.",
    "%N shared with %O, because sharing is kind.",
    "In the evening they looked at the stars %P.",
    "The old man %P told them how he once lost %T.",
    "%N tried again and again until it worked.",
    "\"Thank you for your help,\" said the old man to %N.",
    "Nobody knew where the cat had gone, so %N and %O looked %P.",
    "The next day %N woke up early and packed %T.",
    "It was dark and quiet %P, but %O was not afraid.",
    "They promised to come back and bring %T with them.",
    "%N learned that it is good to ask when something is hard.",
};

template <size_t N>
const char* pick(const char* const (&list)[N], std::mt19937_64& random) {
  return list[random() % N];
}

}  // namespace

std::string make_story(uint64_t seed, int64_t num_sentences) {
  std::mt19937_64 random(seed * 0x9E3779B97F4A7C15u + 1);
  const std::string name = pick(kNames, random);
  std::string other = name;
  while (other == name) other = pick(kNames, random);
  std::string story = "Once upon a time there was a child named " + name + " who had a friend named " + other + ".";
  for (int64_t i = 0; i < num_sentences; ++i) {
    story += i % 8 == 7 ? "\n" : " ";
    for (const char* at = pick(kSentences, random); *at != '\0'; ++at) {
      if (*at != '%') {
        story += *at;
        continue;
      }
      switch (*++at) {
        case 'N':
          story += name;
          break;
        case 'O':
          story += other;
          break;
        case 'T':
          story += pick(kThings, random);
          break;
        default:
          story += pick(kPlaces, random);
      }
    }
  }
  return story + " One day " + name + " went";
}

}  // namespace deepinfer::bench
