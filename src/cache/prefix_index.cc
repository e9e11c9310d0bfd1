#include "cache/prefix_index.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer {

namespace {

auto place_of(auto& children, int32_t first_token) {
  return std::lower_bound(children.begin(), children.end(), first_token,
                          [](const auto& child, int32_t token) { return child.first < token; });
}

}  // namespace

int32_t PrefixIndex::next_node(int32_t node, std::span<const int32_t> tokens) const {
  const Node& n = nodes_[node];
  if (n.length >= static_cast<int64_t>(tokens.size())) return -1;
  const auto place = place_of(n.children, tokens[n.length]);
  return place != n.children.end() && place->first == tokens[n.length] ? place->second : -1;
}

int64_t PrefixIndex::common_with(int32_t node, std::span<const int32_t> tokens) const {
  const Node& n = nodes_[node];
  const int64_t begin = n.length - static_cast<int64_t>(n.tokens.size());
  const auto rest = tokens.subspan(begin, std::min(n.tokens.size(), tokens.size() - begin));
  return begin + (std::mismatch(rest.begin(), rest.end(), n.tokens.begin()).first - rest.begin());
}

int64_t PrefixIndex::seen_until(int32_t node, int64_t length) {
  if (nodes_[node].is_path) {
    unlink_path(node);
    link_path(node);
  }
  return length;
}

int32_t& PrefixIndex::child_slot(int32_t parent, int32_t first_token) {
  auto& children = nodes_[parent].children;
  const auto place = place_of(children, first_token);
  DI_CHECK(place != children.end() && place->first == first_token, "node {} has no child {}", parent, first_token);
  return place->second;
}

int32_t PrefixIndex::new_node(int32_t parent, uint64_t salt, std::span<const int32_t> tokens) {
  int32_t id;
  if (free_nodes_.empty()) {
    id = static_cast<int32_t>(nodes_.size());
    nodes_.emplace_back();
    free_nodes_.reserve(nodes_.capacity());
    removed_.reserve(nodes_.capacity());
  } else {
    id = free_nodes_.back();
    free_nodes_.pop_back();
  }
  Node& n = nodes_[id];
  n.parent = parent;
  n.salt = salt;
  n.tokens.assign(tokens.begin(), tokens.end());
  n.length = (parent < 0 ? 0 : nodes_[parent].length) + static_cast<int64_t>(tokens.size());
  n.is_used = true;
  return id;
}

// Puts a node at `length` between `node` and its parent; `node` keeps its number and its unit.
int32_t PrefixIndex::split(int32_t node, int64_t length) {
  const int32_t parent = nodes_[node].parent;
  const int64_t num_first = length - nodes_[parent].length;
  const bool was_path = nodes_[node].is_path;
  if (was_path) unlink_path(node);
  const std::vector<int32_t> whole = std::move(nodes_[node].tokens);
  const int32_t middle = new_node(parent, nodes_[node].salt, std::span(whole).first(num_first));
  nodes_[node].tokens.assign(whole.begin() + num_first, whole.end());
  nodes_[node].parent = middle;
  nodes_[middle].children.emplace_back(whole[num_first], node);
  child_slot(parent, whole[0]) = middle;
  if (was_path) link_path(node);
  return middle;
}

int32_t PrefixIndex::reach(std::span<const int32_t> tokens, uint64_t salt) {
  const auto [root, is_new] = roots_.try_emplace(salt, -1);
  if (is_new) root->second = new_node(-1, salt, {});
  int32_t node = root->second;
  while (nodes_[node].length < static_cast<int64_t>(tokens.size())) {
    const int32_t child = next_node(node, tokens);
    if (child < 0) {
      const auto rest = tokens.subspan(nodes_[node].length);
      const int32_t leaf = new_node(node, salt, rest);
      auto& children = nodes_[node].children;
      children.insert(place_of(children, rest[0]), {rest[0], leaf});
      if (nodes_[node].is_path) unlink_path(node);
      return leaf;
    }
    const int64_t common = common_with(child, tokens);
    node = common < nodes_[child].length ? split(child, common) : child;
  }
  return node;
}

int32_t PrefixIndex::insert(std::span<const int32_t> tokens, uint64_t salt, int32_t unit) {
  DI_CHECK(!tokens.empty() && unit >= 0, "unit {} of {} tokens", unit, tokens.size());
  settle_removed();
  const int32_t node = reach(tokens, salt);
  DI_CHECK(nodes_[node].unit < 0, "a second unit of the same {} tokens", tokens.size());
  if (nodes_[node].is_path) unlink_path(node);
  nodes_[node].unit = unit;
  settle(nodes_[node].parent);
  forget_old_paths();
  return node;
}

int32_t PrefixIndex::find(std::span<const int32_t> tokens, uint64_t salt) const {
  const auto root = roots_.find(salt);
  if (root == roots_.end()) return -1;
  int32_t node = root->second;
  while (nodes_[node].length < static_cast<int64_t>(tokens.size())) {
    node = next_node(node, tokens);
    if (node < 0 || common_with(node, tokens) < nodes_[node].length) return -1;
  }
  return nodes_[node].unit;
}

void PrefixIndex::remove(int32_t node) {
  DI_CHECK(nodes_[node].is_used && nodes_[node].unit >= 0, "node {} carries no unit", node);
  nodes_[node].unit = -1;
  removed_.push_back(node);
}

void PrefixIndex::settle_removed() {
  for (const int32_t node : removed_)
    if (nodes_[node].is_used) settle(node);
  removed_.clear();
  forget_old_paths();
}

void PrefixIndex::remember(std::span<const int32_t> tokens, uint64_t salt) {
  settle_removed();
  if (tokens.empty() || walk(tokens, salt, [](int32_t, int64_t) {}) == static_cast<int64_t>(tokens.size())) return;
  const int32_t node = reach(tokens, salt);
  settle(nodes_[node].parent);
  settle(node);
  forget_old_paths();
}

// A node without a unit stays only where paths part or, for a while, where one ends.
void PrefixIndex::settle(int32_t node) {
  const Node& n = nodes_[node];
  if (n.parent < 0 || n.unit >= 0) return;
  if (n.children.size() == 1) {
    merge_into_child(node);
  } else if (n.children.empty() && !n.is_path) {
    link_path(node);
  }
}

void PrefixIndex::merge_into_child(int32_t node) {
  const int32_t child = nodes_[node].children[0].second;
  const bool was_path = nodes_[child].is_path;
  if (was_path) unlink_path(child);
  std::vector<int32_t>& tokens = nodes_[child].tokens;
  tokens.insert(tokens.begin(), nodes_[node].tokens.begin(), nodes_[node].tokens.end());
  nodes_[child].parent = nodes_[node].parent;
  child_slot(nodes_[node].parent, tokens[0]) = child;
  if (was_path) link_path(child);
  nodes_[node] = Node{};
  free_nodes_.push_back(node);
}

void PrefixIndex::delete_leaf(int32_t node) {
  if (nodes_[node].is_path) unlink_path(node);
  const int32_t parent = nodes_[node].parent;
  auto& children = nodes_[parent].children;
  children.erase(place_of(children, nodes_[node].tokens[0]));
  nodes_[node] = Node{};
  free_nodes_.push_back(node);
  if (nodes_[parent].parent >= 0) {
    settle(parent);
  } else if (children.empty()) {
    roots_.erase(nodes_[parent].salt);
    nodes_[parent] = Node{};
    free_nodes_.push_back(parent);
  }
}

void PrefixIndex::link_path(int32_t node) {
  Node& n = nodes_[node];
  n.is_path = true;
  n.newer = -1;
  n.older = newest_path_;
  (newest_path_ >= 0 ? nodes_[newest_path_].newer : oldest_path_) = node;
  newest_path_ = node;
  ++num_paths_;
  num_path_tokens_ += static_cast<int64_t>(n.tokens.size());
}

void PrefixIndex::unlink_path(int32_t node) {
  Node& n = nodes_[node];
  (n.newer >= 0 ? nodes_[n.newer].older : newest_path_) = n.older;
  (n.older >= 0 ? nodes_[n.older].newer : oldest_path_) = n.newer;
  n.is_path = false;
  --num_paths_;
  num_path_tokens_ -= static_cast<int64_t>(n.tokens.size());
}

void PrefixIndex::forget_old_paths() {
  while (num_paths_ > limits_.max_paths || num_path_tokens_ > limits_.max_path_tokens) delete_leaf(oldest_path_);
}

void PrefixIndex::append_tokens(int32_t node, std::vector<int32_t>& tokens) const {
  const size_t begin = tokens.size();
  tokens.resize(begin + nodes_[node].length);
  for (int32_t n = node; n >= 0; n = nodes_[n].parent) {
    const Node& part = nodes_[n];
    std::copy(part.tokens.begin(), part.tokens.end(), tokens.begin() + begin + part.length - part.tokens.size());
  }
}

bool PrefixIndex::is_consistent() const {
  int32_t num_used = 0, num_paths = 0;
  int64_t num_path_tokens = 0;
  for (size_t id = 0; id < nodes_.size(); ++id) {
    const Node& n = nodes_[id];
    if (!n.is_used) continue;
    ++num_used;
    for (size_t c = 0; c < n.children.size(); ++c) {
      const Node& child = nodes_[n.children[c].second];
      if (!child.is_used || child.parent != static_cast<int32_t>(id) || child.salt != n.salt) return false;
      if (child.tokens.empty() || child.tokens[0] != n.children[c].first) return false;
      if (child.length != n.length + static_cast<int64_t>(child.tokens.size())) return false;
      if (c > 0 && n.children[c - 1].first >= n.children[c].first) return false;
    }
    if (n.parent < 0) {
      if (n.children.empty() || !n.tokens.empty() || roots_.at(n.salt) != static_cast<int32_t>(id)) return false;
      continue;
    }
    if (std::find(removed_.begin(), removed_.end(), static_cast<int32_t>(id)) != removed_.end()) continue;
    if (n.is_path != (n.unit < 0 && n.children.empty())) return false;
    if (n.unit < 0 && n.children.size() == 1) return false;
    num_paths += n.is_path;
    num_path_tokens += n.is_path ? static_cast<int64_t>(n.tokens.size()) : 0;
  }
  return num_used == num_nodes() && num_paths == num_paths_ && num_path_tokens == num_path_tokens_ &&
         num_paths_ <= limits_.max_paths && num_path_tokens_ <= limits_.max_path_tokens;
}

}  // namespace deepinfer
