#include "runtime/data/tokenizer/longest_matches.h"

#include <algorithm>
#include <numeric>

#include "runtime/base/work/counted_work.h"

namespace megascale::tokenizer {
namespace {

uint64_t StepOf(uint32_t node, char byte) {
  return uint64_t{node} << 8 | static_cast<unsigned char>(byte);
}

}  // namespace

LongestMatches::LongestMatches(absl::Span<const std::string> patterns) : nodes_(1) {
  for (size_t i = 0; i < patterns.size(); ++i) {
    uint32_t node = 0;
    for (size_t at = patterns[i].size(); at-- > 0;) {
      const char byte = patterns[i][at];
      const auto next = static_cast<uint32_t>(nodes_.size());
      const auto [child, is_new] = children_.try_emplace(StepOf(node, byte), next);
      if (is_new) {
        nodes_.push_back({.parent = node, .depth = nodes_[node].depth + 1, .byte = byte});
      }
      node = child->second;
    }
    if (nodes_[node].longest < 0) nodes_[node].longest = static_cast<int32_t>(i);
  }
  // A node's shorter one is nearer to the root, so it is complete when its turn comes.
  std::vector<uint32_t> order(nodes_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return nodes_[a].depth < nodes_[b].depth; });
  for (const uint32_t index : order) {
    Node& node = nodes_[index];
    if (node.depth > 1) node.shorter = Next(nodes_[node.parent].shorter, node.byte);
    if (node.longest < 0) node.longest = nodes_[node.shorter].longest;
  }
}

// Returns the node of the longest suffix of the text of `node` and `byte`.
uint32_t LongestMatches::Next(uint32_t node, char byte) const {
  size_t num_steps = 1;
  auto child = children_.find(StepOf(node, byte));
  for (; child == children_.end() && node != 0; ++num_steps) {
    node = nodes_[node].shorter;
    child = children_.find(StepOf(node, byte));
  }
  base::CountWork(num_steps);
  return child == children_.end() ? 0 : child->second;
}

std::vector<LongestMatches::Match> LongestMatches::Find(absl::string_view text) const {
  std::vector<Match> matches;
  uint32_t node = 0;
  for (size_t at = text.size(); at-- > 0;) {
    node = Next(node, text[at]);
    if (nodes_[node].longest >= 0) matches.push_back({at, nodes_[node].longest});
  }
  return matches;
}

}  // namespace megascale::tokenizer
