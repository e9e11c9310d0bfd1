// PrefixIndex: a radix tree over token ids, one root a salt. A node stands for a prefix and may carry a unit (a number
// whose meaning is the caller's). It also remembers a bounded number of token paths without units, seen most recently,
// so that the place where two prompts part is known even if nothing cached is left of them.
//
// Nodes keep their numbers while they carry a unit. Changed by the engine thread only.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace deepinfer {

class PrefixIndex {
 public:
  struct Limits {
    int32_t max_paths = 4096;           // remembered ends without a unit
    int64_t max_path_tokens = 1 << 24;  // tokens that only they keep
  };
  explicit PrefixIndex(const Limits& limits) : limits_(limits) {}

  // Calls on_unit(unit, length) for each unit that is a prefix of `tokens`, shortest first. Returns the length of the
  // longest prefix of `tokens` that the tree knows.
  template <typename Function>
  int64_t walk(std::span<const int32_t> tokens, uint64_t salt, Function&& on_unit) {
    const auto root = roots_.find(salt);
    if (root == roots_.end()) return 0;
    int32_t node = root->second;
    while (true) {
      if (nodes_[node].unit >= 0) on_unit(nodes_[node].unit, nodes_[node].length);
      const int32_t child = next_node(node, tokens);
      if (child < 0) return seen_until(node, nodes_[node].length);
      const int64_t common = common_with(child, tokens);
      if (common < nodes_[child].length) return seen_until(child, common);
      node = child;
    }
  }

  // The node of exactly these tokens, made if it is new; it carries `unit` from now on. Requires: tokens not empty, no
  // unit there yet.
  int32_t insert(std::span<const int32_t> tokens, uint64_t salt, int32_t unit);
  // The unit of exactly these tokens; -1: none.
  int32_t find(std::span<const int32_t> tokens, uint64_t salt) const;
  // Takes the unit off the node; the path stays remembered for a while. Allocates nothing: the tree is tidied by the
  // next insertion.
  void remove(int32_t node);
  // Remembers a path that has no unit (yet).
  void remember(std::span<const int32_t> tokens, uint64_t salt);

  // The tokens from the root to the node, appended to `tokens`.
  void append_tokens(int32_t node, std::vector<int32_t>& tokens) const;

  int32_t num_nodes() const { return static_cast<int32_t>(nodes_.size() - free_nodes_.size()); }
  int32_t num_paths() const { return num_paths_; }
  int64_t num_path_tokens() const { return num_path_tokens_; }
  // Links, lengths and bounds; for tests.
  bool is_consistent() const;

 private:
  struct Node {
    int32_t parent = -1;
    int32_t unit = -1;
    int64_t length = 0;  // tokens from the root to here
    uint64_t salt = 0;
    std::vector<int32_t> tokens;                        // from the parent to here
    std::vector<std::pair<int32_t, int32_t>> children;  // first token, node; ascending
    // In the list of remembered ends (leaves without a unit), most recent first.
    int32_t newer = -1, older = -1;
    bool is_path = false;
    bool is_used = false;
  };

  int32_t next_node(int32_t node, std::span<const int32_t> tokens) const;
  int64_t common_with(int32_t node, std::span<const int32_t> tokens) const;
  int64_t seen_until(int32_t node, int64_t length);
  int32_t reach(std::span<const int32_t> tokens, uint64_t salt);
  int32_t new_node(int32_t parent, uint64_t salt, std::span<const int32_t> tokens);
  int32_t split(int32_t node, int64_t length);
  void settle(int32_t node);
  void settle_removed();
  void merge_into_child(int32_t node);
  void delete_leaf(int32_t node);
  void link_path(int32_t node);
  void unlink_path(int32_t node);
  void forget_old_paths();
  int32_t& child_slot(int32_t parent, int32_t first_token);

  Limits limits_;
  std::vector<Node> nodes_;
  std::vector<int32_t> free_nodes_;
  std::vector<int32_t> removed_;  // nodes that lost their unit and may have to go
  std::unordered_map<uint64_t, int32_t> roots_;
  int32_t newest_path_ = -1, oldest_path_ = -1;
  int32_t num_paths_ = 0;
  int64_t num_path_tokens_ = 0;
};

}  // namespace deepinfer
