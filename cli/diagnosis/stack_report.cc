#include "cli/diagnosis/stack_report.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/base/text/printable.h"
#include "runtime/telemetry/stack/like_stacks.h"

namespace megascale::cli {
namespace {

constexpr size_t kRanksRead = 16;
constexpr size_t kGroupsShown = 8;
constexpr size_t kFunctionsShown = 6;
constexpr size_t kGroupRanksShown = 8;

std::string FunctionText(const telemetry::v1::StackFrame& frame) {
  if (!frame.function().empty()) {
    return telemetry::ShortFunction(base::Printable(frame.function()));
  }
  return absl::StrFormat("%s+0x%x", frame.module().empty() ? "?" : base::Printable(frame.module()),
                         frame.offset());
}

telemetry::RankStack StackOf(int rank, const telemetry::v1::ThreadStack& shown) {
  telemetry::RankStack stack = {rank, base::Printable(shown.name()), {}};
  for (const telemetry::v1::StackFrame& frame : shown.frames()) {
    stack.functions.push_back(FunctionText(frame));
  }
  if (!shown.error().empty()) {
    stack.functions.push_back(absl::StrCat("(", base::Printable(shown.error()), ")"));
  }
  return stack;
}

bool IsOfProgram(const std::string& function) {
  return absl::StrContains(function, "::") && !absl::StartsWith(function, "std::");
}

// The program's own functions, innermost first, and what the innermost of them called. Without a
// function of the program: all.
std::string ChainText(const std::vector<std::string>& functions) {
  const auto own = std::find_if(functions.begin(), functions.end(), IsOfProgram);
  const bool has_own = own != functions.end();
  std::vector<std::string> chain;
  if (has_own && own != functions.begin()) chain.push_back(*(own - 1));
  for (auto function = has_own ? own : functions.begin(); function != functions.end(); ++function) {
    if (has_own && !IsOfProgram(*function)) continue;
    if (chain.size() < kFunctionsShown) chain.push_back(*function);
  }
  return chain.empty() ? "(no frames)" : absl::StrJoin(chain, " < ");
}

std::string RanksText(const std::vector<int>& ranks) {
  const auto end = ranks.begin() + static_cast<int64_t>(std::min(ranks.size(), kGroupRanksShown));
  const size_t num_more = ranks.size() - std::min(ranks.size(), kGroupRanksShown);
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                      absl::StrJoin(ranks.begin(), end, ", "),
                      num_more > 0 ? absl::StrCat(" and ", num_more, " more") : "");
}

bool Contains(const telemetry::LikeStacks& group, int rank) {
  return std::binary_search(group.ranks.begin(), group.ranks.end(), rank);
}

}  // namespace

std::vector<int> RanksToRead(int num_ranks, int named, absl::Span<const int> waiting) {
  const std::set<int> waits(waiting.begin(), waiting.end());
  std::vector<int> ranks;
  const auto add = [&](int rank) {
    if (rank != named && ranks.size() < kRanksRead) ranks.push_back(rank);
  };
  if (named >= 0 && named < num_ranks) ranks.push_back(named);
  for (int rank = 0; rank < num_ranks; ++rank) {
    if (waits.count(rank) == 0) add(rank);
  }
  for (const int rank : waits) {
    if (rank >= 0 && rank < num_ranks) add(rank);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

void AddStacks(absl::Span<const control::v1::StreamEvidenceResponse> responses,
               Diagnosis* diagnosis) {
  std::vector<telemetry::RankStack> stacks;
  std::set<int> ranks;
  for (const control::v1::StreamEvidenceResponse& response : responses) {
    if (!response.error().empty()) {
      diagnosis->notes.push_back(absl::StrCat("no stacks of rank ", response.rank(), ": ",
                                              base::Printable(response.error())));
      continue;
    }
    ranks.insert(response.rank());
    for (const telemetry::v1::ThreadStack& shown : response.evidence().stacks()) {
      stacks.push_back(StackOf(response.rank(), shown));
    }
  }
  std::vector<telemetry::LikeStacks> groups = telemetry::PutTogether(stacks);
  for (const telemetry::LikeStacks& group : groups) {
    diagnosis->details["stacks"].push_back(
        {{"thread", group.thread}, {"ranks", group.ranks}, {"functions", group.functions}});
  }
  std::stable_partition(groups.begin(), groups.end(), [&](const telemetry::LikeStacks& group) {
    return Contains(group, diagnosis->rank);
  });
  for (const telemetry::LikeStacks& group : groups) {
    if (ranks.size() > 1 && group.ranks.size() == ranks.size()) continue;  // all do the same
    if (diagnosis->findings.stacks.size() == kGroupsShown) {
      diagnosis->findings.stacks.push_back("and more: -o json");
      break;
    }
    diagnosis->findings.stacks.push_back(absl::StrCat(
        RanksText(group.ranks), ", thread ", group.thread, ": ", ChainText(group.functions)));
  }
}

}  // namespace megascale::cli
