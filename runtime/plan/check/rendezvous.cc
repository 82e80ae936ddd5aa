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

class Step {
 public:
  explicit Step(const Meetings* meetings)
      : meetings_(*meetings),
        num_missing_(meetings->NumProducers()),
        ended_(num_missing_.size(), false) {}

  absl::Status Run();

 private:
  std::string WaitChain() const;
  int Blocker(int node) const;

  const Meetings& meetings_;
  std::vector<int> num_missing_;  // by node: producers that have not ended
  std::vector<bool> ended_;       // by node
};

absl::Status Step::Run() {
  const std::vector<std::vector<int>> followers = meetings_.Followers();
  std::vector<size_t> num_begun(meetings_.members().size(), 0);
  std::vector<int> begun;
  for (int node = 0; node < meetings_.num_nodes(); ++node) {
    if (num_missing_[node] == 0) begun.push_back(node);
  }
  int num_ended = 0;
  const auto end = [&](int node) {
    ended_[node] = true;
    ++num_ended;
    for (const int follower : followers[node]) {
      if (--num_missing_[follower] == 0) begun.push_back(follower);
    }
  };
  // The order of this loop does not matter: it never changes what can begin, so every run ends
  // alike.
  while (!begun.empty()) {
    const int node = begun.back();
    begun.pop_back();
    const int meeting = meetings_.MeetingOf(node);
    if (meeting == Meetings::kNone) {
      end(node);
    } else if (++num_begun[meeting] == meetings_.members()[meeting].size()) {
      for (const int member : meetings_.members()[meeting]) end(member);
    }
  }
  if (num_ended == meetings_.num_nodes()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a deadlock: ", WaitChain()));
}

int Step::Blocker(int node) const {
  if (num_missing_[node] == 0) {
    // It has begun, so it waits for a member of its meeting that has not.
    const std::vector<int>& members = meetings_.members()[meetings_.MeetingOf(node)];
    return *std::find_if(members.begin(), members.end(),
                         [&](int member) { return num_missing_[member] > 0; });
  }
  int blocker = Meetings::kNone;
  meetings_.ForEachProducer(node, [&](int producer) {
    if (blocker == Meetings::kNone && !ended_[producer]) blocker = producer;
  });
  return blocker;
}

std::string Step::WaitChain() const {
  int node = static_cast<int>(std::find(ended_.begin(), ended_.end(), false) - ended_.begin());
  std::vector<int> path;
  while (std::find(path.begin(), path.end(), node) == path.end()) {
    path.push_back(node);
    node = Blocker(node);
  }
  path.erase(path.begin(), std::find(path.begin(), path.end(), node));
  path.push_back(node);
  std::string text;
  for (const int at : path) {
    absl::StrAppend(&text, text.empty() ? "" : " waits for ", meetings_.Text(at));
  }
  return text;
}

}  // namespace

absl::Status CheckRendezvous(absl::Span<const RankPlan> plans) {
  ASSIGN_OR_RETURN(const Meetings meetings, Meetings::Create(plans));
  return Step(&meetings).Run();
}

}  // namespace megascale::plan
