// LruHeap: a set of small numbers, each with the time of its last use; gives the one that was used longest ago. Every
// change costs O(log size); nothing is allocated once `reserve` has seen the highest number.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"

namespace deepinfer {

class LruHeap {
 public:
  // Requires for every other call: id < `ids` of the largest reserve so far.
  void reserve(int32_t ids) {
    if (static_cast<size_t>(ids) > places_.size()) places_.resize(ids, -1);
    heap_.reserve(places_.size());
  }

  bool empty() const { return heap_.empty(); }
  int32_t size() const { return static_cast<int32_t>(heap_.size()); }
  bool contains(int32_t id) const { return places_[id] >= 0; }
  int32_t oldest() const { return heap_.empty() ? -1 : heap_[0].id; }

  void insert(int32_t id, int64_t time) {
    DI_CHECK(!contains(id), "{} is in the heap already", id);
    heap_.push_back({time, id});
    sift_up(heap_.size() - 1);
  }
  void erase(int32_t id) {
    DI_CHECK(contains(id), "{} is not in the heap", id);
    const size_t place = places_[id];
    places_[id] = -1;
    const Entry last = heap_.back();
    heap_.pop_back();
    if (last.id != id) replace(place, last);
  }
  // Does nothing if the number is not in the heap.
  void touch(int32_t id, int64_t time) {
    if (contains(id)) replace(places_[id], {time, id});
  }

 private:
  struct Entry {
    int64_t time;
    int32_t id;
  };

  void put(size_t place, Entry entry) {
    heap_[place] = entry;
    places_[entry.id] = static_cast<int32_t>(place);
  }
  void replace(size_t place, Entry entry) {
    put(place, entry);
    sift_up(place);
    sift_down(places_[entry.id]);
  }
  void sift_up(size_t place) {
    const Entry entry = heap_[place];
    while (place > 0 && entry.time < heap_[(place - 1) / 2].time) {
      put(place, heap_[(place - 1) / 2]);
      place = (place - 1) / 2;
    }
    put(place, entry);
  }
  void sift_down(size_t place) {
    const Entry entry = heap_[place];
    while (true) {
      size_t child = 2 * place + 1;
      if (child >= heap_.size()) break;
      if (child + 1 < heap_.size() && heap_[child + 1].time < heap_[child].time) ++child;
      if (heap_[child].time >= entry.time) break;
      put(place, heap_[child]);
      place = child;
    }
    put(place, entry);
  }

  std::vector<Entry> heap_;
  std::vector<int32_t> places_;  // by id: where in the heap; -1: not in it
};

}  // namespace deepinfer
