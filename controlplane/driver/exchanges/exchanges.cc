#include "controlplane/driver/exchanges/exchanges.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "controlplane/driver/exchanges/member_result.h"
#include "controlplane/driver/exchanges/party.h"
#include "runtime/base/checksum.h"
#include "runtime/base/median.h"
#include "runtime/base/repeated.h"
#include "runtime/base/text/printable.h"
#include "runtime/job/job_spec.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr ExchangeSize kQuick = {16 * kMiB, absl::Milliseconds(300)};
constexpr ExchangeSize kFull = {1024 * kMiB, absl::Seconds(4)};

// Returns the best rate of the machine; 0: it has too few to say more than how slow a partner is.
double BestRate(const v1::NodeRecord& node) {
  double best = 0;
  int num_rates = 0;
  for (const control::ExchangeResult& result : node.exchanges().results()) {
    best = std::max(best, result.bytes_per_second());
    num_rates += result.bytes_per_second() > 0 ? 1 : 0;
  }
  return num_rates < kExchangesWanted ? 0 : best;
}

bool WasTried(const v1::NodeRecord& node, absl::string_view other) {
  const auto& results = node.exchanges().results();
  return std::any_of(results.begin(), results.end(),
                     [&](const auto& result) { return result.node_id() == other; });
}

// What decides about the pairs of a machine.
struct Candidate {
  explicit Candidate(const FreeMachine& machine)
      : node(*machine.node),
        holds_memory(machine.holds_memory),
        after_failure(node.exchanges().after_failure()),
        wants(WantsExchange(node)),
        passed(HasPassed(node)),
        is_suspect(!passed && HasFailed(node)),
        num_results(node.exchanges().results_size()) {}

  const v1::NodeRecord& node;
  bool holds_memory;
  bool after_failure;
  bool wants;
  bool passed;
  bool is_suspect;
  int num_results;
};

// The least is the best; negative: the two cannot be paired.
int RankOfPair(const Candidate& machine, const Candidate& other, bool share_one_machine) {
  const bool after_failure = machine.after_failure || other.after_failure;
  if ((machine.holds_memory || other.holds_memory) && !after_failure) return -1;
  if (!share_one_machine && AreOnOneMachine(machine.node, other.node)) return -1;
  if (WasTried(machine.node, other.node.hello().node_id())) return -1;
  const int rank = machine.is_suspect ? (other.passed  ? 0
                                         : other.wants ? 1
                                                       : 2)
                                      : (other.wants    ? 0
                                         : other.passed ? 1
                                                        : 2);
  constexpr int kLast = 10;  // a job should not wait for the sake of another machine
  const bool is_bystander = other.holds_memory && !other.after_failure;
  return rank + (is_bystander ? kLast : 0);
}

constexpr int kRulesOfParties = 10;  // kRules of driver_core.h

// Returns the party that speaks through `node` about the accused one.
std::string SpeakerOf(const v1::DriverState& state, const v1::NodeRecord& node,
                      const v1::NodeRecord& accused) {
  return state.rules() < kRulesOfParties ? node.hello().node_id() : PartyOf(node, accused);
}

// Returns a machine of a third party with which `node`, the other one of a failed pair, passed; "":
// there is none.
std::string ProofOf(const v1::DriverState& state, const v1::NodeRecord& node,
                    const v1::NodeRecord& accused) {
  if (node.has_quarantine()) return "";
  for (const control::ExchangeResult& result : node.exchanges().results()) {
    if (Judge(result) != ExchangeVerdict::kPassed) continue;
    if (state.rules() < kRulesOfParties) return result.node_id();
    const v1::NodeRecord* third = FindNode(state, result.node_id());
    if (third != nullptr && PartyOf(*third, accused) != PartyOf(node, accused)) {
      return result.node_id();
    }
  }
  return "";
}

// Returns the evidence against the machine; "": it is not known to be at fault.
std::string EvidenceAgainst(const v1::DriverState& state, const v1::NodeRecord& node) {
  if (!HasFailed(node) || HasPassed(node)) return "";
  std::vector<std::string> failures;
  std::set<std::string> parties;
  std::string proof;
  for (const control::ExchangeResult& result : node.exchanges().results()) {
    const std::string why = WhyFailed(result);
    if (why.empty()) continue;
    failures.push_back(absl::StrCat("with ", result.node_id(), ": ", why));
    const v1::NodeRecord* other = FindNode(state, result.node_id());
    if (other == nullptr) {
      // Only older rules count a machine that is forgotten by now.
      if (state.rules() < kRulesOfParties) parties.insert(result.node_id());
      continue;
    }
    parties.insert(SpeakerOf(state, *other, node));
    const std::string third = ProofOf(state, *other, node);
    if (proof.empty() && !third.empty()) {
      proof = absl::StrCat(result.node_id(), " passed with ", third);
    }
  }
  if (static_cast<int>(parties.size()) < kExchangesWanted || proof.empty()) return "";
  return absl::StrCat("exchanges failed ", absl::StrJoin(failures, "; "), "; ", proof);
}

}  // namespace

ExchangeSize SizeOf(agent::TestKind kind) { return kind == agent::TEST_KIND_FULL ? kFull : kQuick; }

double MinimumExchangeRate(const v1::DriverState& state) {
  if (state.exchange_rate() > 0) return kExchangeRateShare * state.exchange_rate();
  if (state.machine_tests() != agent::TEST_KIND_FULL) return 0;
  std::map<std::string, double> best;  // by machine
  for (const v1::NodeRecord& node : state.nodes()) {
    const double rate = node.alive() ? BestRate(node) : 0;
    if (rate <= 0) continue;
    double& known =
        best[state.rules() < kRulesOfParties ? node.hello().machine_id() : MachineOf(node)];
    known = std::max(known, rate);
  }
  if (static_cast<int>(best.size()) < kRatesMin) return 0;
  std::vector<double> rates;
  for (const auto& [machine_id, rate] : best) rates.push_back(rate);
  return kExchangeRateShare * base::UpperMedian(std::move(rates));
}

namespace {

bool HasVerdict(const v1::NodeRecord& node, ExchangeVerdict verdict) {
  const auto& results = node.exchanges().results();
  return std::any_of(results.begin(), results.end(),
                     [&](const auto& result) { return Judge(result) == verdict; });
}

}  // namespace

bool HasPassed(const v1::NodeRecord& node) { return HasVerdict(node, ExchangeVerdict::kPassed); }
bool HasFailed(const v1::NodeRecord& node) { return HasVerdict(node, ExchangeVerdict::kFailed); }

bool IsExchanging(const v1::NodeRecord& node) { return !node.exchanges().with().empty(); }

const v1::Exchange* FindExchange(const v1::DriverState& state, const v1::NodeRecord& node) {
  if (!IsExchanging(node)) return nullptr;
  for (const v1::Exchange& exchange : state.exchanges()) {
    for (const v1::ExchangeMember& member : exchange.members()) {
      if (member.node_id() == node.hello().node_id()) return &exchange;
    }
  }
  return nullptr;
}

std::string GroupOf(const v1::Exchange& exchange) {
  return absl::StrCat(".exchange-", exchange.id());
}

namespace {

// `supports`: a field of Hello.
bool AllSupport(const v1::DriverState& state, const std::vector<std::string>& node_ids,
                bool (agent::Hello::*supports)() const) {
  return std::none_of(state.nodes().begin(), state.nodes().end(), [&](const v1::NodeRecord& node) {
    return !(node.hello().*supports)() &&
           std::binary_search(node_ids.begin(), node_ids.end(), node.hello().node_id());
  });
}

}  // namespace

bool AllBindAddresses(const v1::DriverState& state, const std::vector<std::string>& node_ids) {
  return AllSupport(state, node_ids, &agent::Hello::binds_address);
}

bool AllEvaluate(const v1::DriverState& state, const std::vector<std::string>& node_ids) {
  return AllSupport(state, node_ids, &agent::Hello::evaluates);
}

agent::MachineTestRequest RequestOf(const v1::DriverState& state, const v1::Exchange& exchange,
                                    absl::string_view node_id) {
  agent::MachineTestRequest request;
  request.set_id(exchange.id());
  request.set_kind(exchange.kind());
  agent::ExchangeRequest* asked = request.mutable_exchange();
  asked->set_group(GroupOf(exchange));
  for (const v1::ExchangeMember& member : exchange.members()) {
    if (member.node_id() == node_id) asked->set_member(asked->node_ids_size());
    asked->add_node_ids(member.node_id());
  }
  asked->set_binds_address(
      AllBindAddresses(state, {asked->node_ids().begin(), asked->node_ids().end()}));
  // Only the holder of the log's secret can make it. Its parts are those of no proof (epoch.h).
  asked->set_secret(base::Sha256Hex(absl::StrCat(state.secret(), "/exchange/", state.epoch(), "/",
                                                 exchange.id(), "/", state.secret())));
  const ExchangeSize size = SizeOf(exchange.kind());
  asked->set_volume_bytes(size.volume_bytes / std::max(1, exchange.members_size() - 1));
  *asked->mutable_time_max() = job::FromDuration(size.time_max);
  return request;
}

control::ExchangeResult ResultFor(const v1::Exchange& exchange, int member) {
  control::ExchangeResult result;
  const v1::ExchangeMember& other = exchange.members(1 - member);
  result.set_node_id(other.node_id());
  std::vector<std::string> failures;
  std::vector<std::string> notes;
  for (const v1::ExchangeMember& one : exchange.members()) {
    const std::string failure = FailureOfPart(one.test());
    const std::string note = NoteOfPart(one.test());
    if (!failure.empty()) failures.push_back(absl::StrCat(one.node_id(), ": ", failure));
    if (!note.empty()) notes.push_back(absl::StrCat(one.node_id(), ": ", note));
    for (const agent::TestResult& part : one.test().results()) {
      const double rate = part.bytes_per_second();
      const bool is_slower = result.bytes_per_second() == 0 || rate < result.bytes_per_second();
      if (rate > 0 && is_slower) result.set_bytes_per_second(rate);
      result.set_latency_seconds(std::max(result.latency_seconds(), part.latency_seconds()));
    }
  }
  if (GaveNoResult(other.test()) && !GaveNoResult(exchange.members(member).test())) {
    notes.push_back(absl::StrCat(other.node_id(), ": ", FailureOfPart(other.test())));
  }
  if (!notes.empty()) {
    result.set_note(base::Printable(absl::StrJoin(notes, "; "), kFailureBytesMax));
  } else {
    result.set_failure(base::Printable(absl::StrJoin(failures, "; "), kFailureBytesMax));
  }
  return result;
}

void KeepResult(const control::ExchangeResult& result, v1::NodeExchanges* kept) {
  auto* results = kept->mutable_results();
  base::EraseIf(results, [&](const auto& old) { return old.node_id() == result.node_id(); });
  *results->Add() = result;
  base::KeepNewest(kResultsKept, results);
}

bool KeepMinimum(double minimum, v1::NodeRecord* node) {
  if (minimum <= 0 || !node->has_exchanges()) return false;
  bool has_changed = false;
  for (control::ExchangeResult& result : *node->mutable_exchanges()->mutable_results()) {
    if (result.rate_min() > 0) continue;
    result.set_rate_min(minimum);
    has_changed = true;
  }
  return has_changed;
}

bool WantsExchange(const v1::NodeRecord& node) {
  if (!node.has_exchanges()) return false;
  const int num_results = node.exchanges().results_size();
  if (num_results < kExchangesWanted) return true;
  return num_results < kExchangesMax && !HasPassed(node);
}

bool AreOnOneMachine(const v1::NodeRecord& node, const v1::NodeRecord& other) {
  const std::string& machine_id = node.hello().machine_id();
  return !machine_id.empty() && machine_id == other.hello().machine_id();
}

bool ShareOneMachine(const v1::DriverState& state) {
  const v1::NodeRecord* first = nullptr;
  for (const v1::NodeRecord& node : state.nodes()) {
    if (!node.alive() || !node.hello().tests_exchange()) continue;
    if (first == nullptr) first = &node;
    if (!AreOnOneMachine(*first, node)) return false;
  }
  return true;
}

std::vector<std::pair<std::string, std::string>> ChoosePairs(
    const std::vector<FreeMachine>& machines, bool share_one_machine, int num_max) {
  const std::vector<Candidate> candidates(machines.begin(), machines.end());
  int fewest = kResultsKept;
  for (const Candidate& machine : candidates) fewest = std::min(fewest, machine.num_results);
  std::vector<std::pair<std::string, std::string>> pairs;
  std::vector<bool> taken(candidates.size());
  for (size_t i = 0; i < candidates.size() && static_cast<int>(pairs.size()) < num_max; ++i) {
    const Candidate& machine = candidates[i];
    if (taken[i] || !machine.wants || (machine.holds_memory && !machine.after_failure)) continue;
    const std::pair<int, int> ideal = {0, fewest};  // rank, number of results
    std::optional<std::pair<int, int>> best_key;
    size_t best = i;
    for (size_t j = 0; j < candidates.size() && best_key != ideal; ++j) {
      if (j == i || taken[j]) continue;
      const int rank = RankOfPair(machine, candidates[j], share_one_machine);
      const std::pair<int, int> key = {rank, candidates[j].num_results};
      if (rank < 0 || (best_key.has_value() && key >= *best_key)) continue;
      best_key = key;
      best = j;
    }
    if (best == i) continue;
    taken[i] = taken[best] = true;
    const auto& [low, high] = std::minmax(i, best);
    pairs.emplace_back(candidates[low].node.hello().node_id(),
                       candidates[high].node.hello().node_id());
  }
  return pairs;
}

std::vector<FaultyMachine> FindFaulty(const v1::DriverState& state) {
  std::vector<FaultyMachine> faulty;
  for (const v1::NodeRecord& node : state.nodes()) {
    if (!node.alive() || node.has_quarantine()) continue;
    std::string evidence = EvidenceAgainst(state, node);
    if (evidence.empty()) continue;
    faulty.push_back({node.hello().node_id(), std::move(evidence)});
  }
  return faulty;
}

}  // namespace megascale::driver
