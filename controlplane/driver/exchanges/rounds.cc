#include "controlplane/driver/exchanges/rounds.h"

#include <algorithm>
#include <cstddef>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "controlplane/driver/exchanges/exchanges.h"
#include "controlplane/driver/exchanges/member_result.h"
#include "runtime/base/text/printable.h"

namespace megascale::driver {
namespace {

namespace control = megascale::control::v1;

bool MayTakePart(const v1::NodeRecord& node) {
  return node.has_exchanges() && !IsExchanging(node) && (HasPassed(node) || !HasFailed(node));
}

struct Round {
  std::vector<std::string> node_ids;
  bool is_wanted = false;
};

}  // namespace

bool IsRound(const v1::Exchange& exchange) { return exchange.members_size() >= kRoundMin; }

bool WantsRound(const v1::NodeRecord& node) {
  return node.has_exchanges() && !node.exchanges().has_round();
}

std::vector<std::vector<std::string>> ChooseRounds(
    const std::vector<const v1::NodeRecord*>& machines, bool share_one_machine, int num_max) {
  std::vector<const v1::NodeRecord*> chosen;
  std::set<absl::string_view> machine_ids;
  for (const v1::NodeRecord* node : machines) {
    if (!MayTakePart(*node)) continue;
    const std::string& machine_id = node->hello().machine_id();
    const bool may_share = share_one_machine || machine_id.empty();
    if (!may_share && !machine_ids.insert(machine_id).second) continue;
    chosen.push_back(node);
  }
  if (chosen.size() < static_cast<size_t>(kRoundMin)) return {};
  std::vector<Round> rounds((chosen.size() + kRoundMax - 1) / kRoundMax);
  for (size_t i = 0; i < chosen.size(); ++i) {
    Round& round = rounds[i % rounds.size()];
    round.node_ids.push_back(chosen[i]->hello().node_id());
    round.is_wanted = round.is_wanted || WantsRound(*chosen[i]);
  }
  std::vector<std::vector<std::string>> begun;
  for (Round& round : rounds) {
    if (!round.is_wanted || static_cast<int>(begun.size()) >= num_max) continue;
    begun.push_back(std::move(round.node_ids));
  }
  return begun;
}

control::ExchangeResult RoundResultFor(const v1::Exchange& round, int member) {
  control::ExchangeResult result;
  const v1::ExchangeMember& own = round.members(member);
  std::vector<std::string> notes;
  for (const v1::ExchangeMember& one : round.members()) {
    const bool is_own = &one == &own;
    if (!is_own) result.add_node_ids(one.node_id());
    const std::string note =
        !is_own && GaveNoResult(one.test()) ? FailureOfPart(one.test()) : NoteOfPart(one.test());
    if (!note.empty()) notes.push_back(absl::StrCat(one.node_id(), ": ", note));
    for (const auto& part : one.test().results()) {
      if (is_own) result.set_bytes_per_second(part.bytes_per_second());
      result.set_latency_seconds(std::max(result.latency_seconds(), part.latency_seconds()));
    }
  }
  const std::string failure = FailureOfPart(own.test());
  const bool is_explained = !failure.empty() && !GaveNoResult(own.test()) && !notes.empty();
  if (is_explained || !NoteOfPart(own.test()).empty()) {
    result.set_note(base::Printable(absl::StrJoin(notes, "; "), kFailureBytesMax));
  } else {
    result.set_failure(base::Printable(failure, kFailureBytesMax));
  }
  return result;
}

}  // namespace megascale::driver
