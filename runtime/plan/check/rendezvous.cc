#include "runtime/plan/check/rendezvous.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"
#include "runtime/plan/check/meetings.h"

namespace megascale::plan {
namespace {

// A node that has begun and not ended waits for a member of its meeting; another one for the first
// of its producers that has not ended.
int Blocker(const Meetings& meetings, const std::vector<bool>& ended, int node) {
  const auto missing_producer = [&](int of) {
    int missing = Meetings::kNone;
    meetings.ForEachProducer(of, [&](int producer) {
      if (missing == Meetings::kNone && !ended[producer]) missing = producer;
    });
    return missing;
  };
  const int missing = missing_producer(node);
  if (missing != Meetings::kNone) return missing;
  const std::vector<int>& members = meetings.members()[meetings.MeetingOf(node)];
  return *std::find_if(members.begin(), members.end(),
                       [&](int member) { return missing_producer(member) != Meetings::kNone; });
}

std::string WaitChain(const Meetings& meetings, const std::vector<bool>& ended) {
  int node = static_cast<int>(std::find(ended.begin(), ended.end(), false) - ended.begin());
  std::vector<int> path;
  while (std::find(path.begin(), path.end(), node) == path.end()) {
    path.push_back(node);
    node = Blocker(meetings, ended, node);
  }
  path.erase(path.begin(), std::find(path.begin(), path.end(), node));
  path.push_back(node);
  std::string text;
  for (const int at : path) {
    absl::StrAppend(&text, text.empty() ? "" : " waits for ", meetings.Text(at));
  }
  return text;
}

}  // namespace

absl::Status CheckRendezvous(absl::Span<const RankPlan> plans) {
  ASSIGN_OR_RETURN(const Meetings meetings, Meetings::Create(plans));
  const std::vector<int> order = meetings.EndOrder();
  if (static_cast<int>(order.size()) == meetings.num_nodes()) return absl::OkStatus();
  std::vector<bool> ended(static_cast<size_t>(meetings.num_nodes()), false);
  for (const int node : order) ended[node] = true;
  return absl::InvalidArgumentError(absl::StrCat("a deadlock: ", WaitChain(meetings, ended)));
}

}  // namespace megascale::plan
