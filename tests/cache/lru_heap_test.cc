#include "cache/lru_heap.h"

#include <algorithm>
#include <map>
#include <random>

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(LruHeap, AlwaysGivesTheNumberThatWasUsedLongestAgo) {
  std::mt19937 random(1);
  LruHeap heap;
  heap.reserve(40);
  std::map<int32_t, int64_t> model;
  for (int64_t time = 0; time < 20000; ++time) {
    const auto id = static_cast<int32_t>(random() % 40);
    if (!model.contains(id)) {
      heap.insert(id, time);
      model[id] = time;
    } else if (random() % 2 == 0) {
      heap.erase(id);
      model.erase(id);
    } else {
      heap.touch(id, time);
      model[id] = time;
    }
    ASSERT_EQ(heap.size(), static_cast<int32_t>(model.size()));
    if (model.empty()) {
      ASSERT_EQ(heap.oldest(), -1);
    } else {
      const auto oldest = std::min_element(model.begin(), model.end(),
                                           [](const auto& a, const auto& b) { return a.second < b.second; });
      ASSERT_EQ(heap.oldest(), oldest->first);
    }
  }
}

}  // namespace
}  // namespace deepinfer
