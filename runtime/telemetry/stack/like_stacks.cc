#include "runtime/telemetry/stack/like_stacks.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace megascale::telemetry {
namespace {

std::string WithoutNumber(const std::string& thread) {
  const size_t end = thread.find_last_not_of("0123456789");
  return end == std::string::npos ? thread : thread.substr(0, end + 1);
}

// Removes what stands between brackets, and the brackets. An unbalanced one stays: it is part of an
// operator's name.
std::string WithoutBrackets(absl::string_view text, char open, char close) {
  std::string kept;
  int depth = 0;
  for (const char c : text) {
    if (c == open) ++depth;
    if (depth == 0) kept += c;
    if (c == close && depth > 0) --depth;
  }
  return depth == 0 ? kept : std::string(text);
}

}  // namespace

std::vector<LikeStacks> PutTogether(absl::Span<const RankStack> stacks) {
  std::map<std::pair<std::string, std::vector<std::string>>, std::vector<int>> ranks;
  for (const RankStack& stack : stacks) {
    ranks[{WithoutNumber(stack.thread), stack.functions}].push_back(stack.rank);
  }
  std::vector<LikeStacks> groups;
  for (auto& [what, members] : ranks) {
    std::sort(members.begin(), members.end());
    members.erase(std::unique(members.begin(), members.end()), members.end());
    groups.push_back({what.first, what.second, std::move(members)});
  }
  std::stable_sort(groups.begin(), groups.end(), [](const auto& left, const auto& right) {
    return std::make_tuple(left.ranks.size(), left.ranks.front()) <
           std::make_tuple(right.ranks.size(), right.ranks.front());
  });
  return groups;
}

std::string ShortFunction(absl::string_view function) {
  std::string name = absl::StrReplaceAll(function, {{"(anonymous namespace)::", ""}});
  name = WithoutBrackets(WithoutBrackets(name, '<', '>'), '(', ')');
  // What follows the arguments: const, [clone .cold].
  if (const size_t clone = name.find(" ["); clone != std::string::npos) name.resize(clone);
  for (const absl::string_view end : {" const", "&", " "}) {
    name = std::string(absl::StripSuffix(name, end));
  }
  // The return type of a template.
  if (const size_t space = name.rfind(' '); space != std::string::npos) name.erase(0, space + 1);
  return std::string(absl::StripPrefix(name, "megascale::"));
}

}  // namespace megascale::telemetry
