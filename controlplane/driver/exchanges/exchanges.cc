#include "controlplane/driver/exchanges/exchanges.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/checksum.h"
#include "runtime/base/median.h"
#include "runtime/base/process/resource_limit.h"
#include "runtime/base/text/printable.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr ExchangeSize kQuick = {16 * kMiB, absl::Milliseconds(300)};
constexpr ExchangeSize kFull = {1024 * kMiB, absl::Seconds(4)};
constexpr size_t kFailureBytesMax = 400;

std::string RateText(double bytes_per_second) {
  return absl::StrCat(base::FormatBytes(static_cast<int64_t>(bytes_per_second)), "/s");
}

// Returns the failure of a part as its machine told it; "": none.
std::string FailureOfPart(const agent::MachineTest& test) {
  for (const agent::TestResult& result : test.results()) {
    if (!result.failure().empty()) return result.failure();
  }
  return test.state() == agent::MachineTest::STATE_FAILED ? test.evidence() : "";
}

// Returns why the part was not carried out; "": it was.
std::string NoteOfPart(const agent::MachineTest& test) {
  for (const agent::TestResult& result : test.results()) {
    if (!result.note().empty()) return result.note();
  }
  return "";
}

const v1::NodeRecord* Find(const v1::DriverState& state, absl::string_view node_id) {
  const auto& nodes = state.nodes();
  const auto it = std::lower_bound(
      nodes.begin(), nodes.end(), node_id,
      [](const v1::NodeRecord& node, absl::string_view id) { return node.hello().node_id() < id; });
  return it != nodes.end() && it->hello().node_id() == node_id ? &*it : nullptr;
}

double BestRate(const v1::NodeRecord& node) {
  double best = 0;
  for (const control::ExchangeResult& result : node.exchanges().results()) {
    best = std::max(best, result.bytes_per_second());
  }
  return best;
}

bool WasTried(const v1::NodeRecord& node, absl::string_view other) {
  const auto& results = node.exchanges().results();
  return std::any_of(results.begin(), results.end(),
                     [&](const auto& result) { return result.node_id() == other; });
}

// The least is the best; negative: the two cannot be paired.
int RankOfPair(const FreeMachine& machine, const FreeMachine& other, double minimum) {
  const v1::NodeRecord& node = *machine.node;
  const bool after_failure =
      node.exchanges().after_failure() || other.node->exchanges().after_failure();
  const bool holds_memory = machine.holds_memory || other.holds_memory;
  if (holds_memory && !after_failure) return -1;
  if (WasTried(node, other.node->hello().node_id())) return -1;
  const bool is_suspect = HasFailed(node, minimum) && !HasPassed(node, minimum);
  const bool wants = WantsExchange(*other.node, minimum);
  const bool passed = HasPassed(*other.node, minimum);
  const int rank = is_suspect ? (passed ? 0 : wants ? 1 : 2) : (wants ? 0 : passed ? 1 : 2);
  constexpr int kLast = 10;  // a job should not wait for the sake of another machine
  const bool is_bystander = other.holds_memory && !other.node->exchanges().after_failure();
  return rank + (is_bystander ? kLast : 0);
}

// Returns a machine with which the other one of a failed pair passed; "": there is none.
std::string ProofOf(const v1::DriverState& state, absl::string_view other, double minimum) {
  const v1::NodeRecord* node = Find(state, other);
  if (node == nullptr || node->has_quarantine()) return "";
  for (const control::ExchangeResult& result : node->exchanges().results()) {
    if (Judge(result, minimum) == ExchangeVerdict::kPassed) return result.node_id();
  }
  return "";
}

// Returns the evidence against the machine; "": it is not known to be at fault.
std::string EvidenceAgainst(const v1::DriverState& state, const v1::NodeRecord& node,
                            double minimum) {
  if (!HasFailed(node, minimum) || HasPassed(node, minimum)) return "";
  std::vector<std::string> failures;
  std::string proof;
  for (const control::ExchangeResult& result : node.exchanges().results()) {
    const std::string why = WhyFailed(result, minimum);
    if (why.empty()) continue;
    failures.push_back(absl::StrCat("with ", result.node_id(), ": ", why));
    const std::string third = ProofOf(state, result.node_id(), minimum);
    if (proof.empty() && !third.empty()) {
      proof = absl::StrCat(result.node_id(), " passed with ", third);
    }
  }
  if (static_cast<int>(failures.size()) < kExchangesWanted || proof.empty()) return "";
  return absl::StrCat("exchanges failed ", absl::StrJoin(failures, "; "), "; ", proof);
}

}  // namespace

ExchangeSize SizeOf(agent::TestKind kind) { return kind == agent::TEST_KIND_FULL ? kFull : kQuick; }

double MinimumExchangeRate(const v1::DriverState& state) {
  if (state.exchange_rate() > 0) return kExchangeRateShare * state.exchange_rate();
  if (state.machine_tests() != agent::TEST_KIND_FULL) return 0;
  std::map<absl::string_view, double> best;  // by machine
  for (const v1::NodeRecord& node : state.nodes()) {
    const double rate = node.alive() ? BestRate(node) : 0;
    if (rate <= 0) continue;
    double& known = best[node.hello().machine_id()];
    known = std::max(known, rate);
  }
  if (static_cast<int>(best.size()) < kRatesMin) return 0;
  std::vector<double> rates;
  for (const auto& [machine_id, rate] : best) rates.push_back(rate);
  return kExchangeRateShare * base::UpperMedian(std::move(rates));
}

std::string WhyFailed(const control::ExchangeResult& result, double minimum) {
  if (!result.note().empty()) return "";
  if (!result.failure().empty()) return result.failure();
  if (result.bytes_per_second() >= minimum) return "";
  return absl::StrCat("reached ", RateText(result.bytes_per_second()), ", expected at least ",
                      RateText(minimum));
}

ExchangeVerdict Judge(const control::ExchangeResult& result, double minimum) {
  if (!result.note().empty()) return ExchangeVerdict::kUnknown;
  return WhyFailed(result, minimum).empty() ? ExchangeVerdict::kPassed : ExchangeVerdict::kFailed;
}

bool HasPassed(const v1::NodeRecord& node, double minimum) {
  const auto& results = node.exchanges().results();
  return std::any_of(results.begin(), results.end(), [&](const auto& result) {
    return Judge(result, minimum) == ExchangeVerdict::kPassed;
  });
}

bool HasFailed(const v1::NodeRecord& node, double minimum) {
  const auto& results = node.exchanges().results();
  return std::any_of(results.begin(), results.end(), [&](const auto& result) {
    return Judge(result, minimum) == ExchangeVerdict::kFailed;
  });
}

const v1::Exchange* FindExchange(const v1::DriverState& state, const v1::NodeRecord& node) {
  if (node.exchanges().with().empty()) return nullptr;
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
  // Only the holder of the log's secret can make it. Its parts are those of no proof (epoch.h).
  asked->set_secret(base::Sha256Hex(absl::StrCat(state.secret(), "/exchange/", state.epoch(), "/",
                                                 exchange.id(), "/", state.secret())));
  const ExchangeSize size = SizeOf(exchange.kind());
  asked->set_volume_bytes(size.volume_bytes);
  asked->mutable_time_max()->set_seconds(absl::ToInt64Seconds(size.time_max));
  asked->mutable_time_max()->set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(size.time_max) % 1'000'000'000));
  return request;
}

control::ExchangeResult ResultOf(const v1::Exchange& exchange) {
  control::ExchangeResult common;
  std::vector<std::string> failures;
  std::vector<std::string> notes;
  for (const v1::ExchangeMember& member : exchange.members()) {
    const std::string failure = FailureOfPart(member.test());
    const std::string note = NoteOfPart(member.test());
    if (!failure.empty()) failures.push_back(absl::StrCat(member.node_id(), ": ", failure));
    if (!note.empty()) notes.push_back(absl::StrCat(member.node_id(), ": ", note));
    for (const agent::TestResult& result : member.test().results()) {
      const double rate = result.bytes_per_second();
      const bool is_slower = common.bytes_per_second() == 0 || rate < common.bytes_per_second();
      if (rate > 0 && is_slower) common.set_bytes_per_second(rate);
      common.set_latency_seconds(std::max(common.latency_seconds(), result.latency_seconds()));
    }
  }
  if (!notes.empty()) {
    common.set_note(base::Printable(absl::StrJoin(notes, "; "), kFailureBytesMax));
  } else {
    common.set_failure(base::Printable(absl::StrJoin(failures, "; "), kFailureBytesMax));
  }
  return common;
}

bool WantsExchange(const v1::NodeRecord& node, double minimum) {
  if (!node.has_exchanges()) return false;
  const int num_results = node.exchanges().results_size();
  if (num_results < kExchangesWanted) return true;
  return num_results < kExchangesMax && !HasPassed(node, minimum);
}

std::vector<std::pair<std::string, std::string>> ChoosePairs(
    const std::vector<FreeMachine>& machines, double minimum) {
  std::vector<std::pair<std::string, std::string>> pairs;
  std::vector<bool> taken(machines.size());
  for (size_t i = 0; i < machines.size(); ++i) {
    if (taken[i] || !WantsExchange(*machines[i].node, minimum)) continue;
    const bool after_failure = machines[i].node->exchanges().after_failure();
    if (machines[i].holds_memory && !after_failure) continue;
    int best_rank = -1;
    size_t best = i;
    for (size_t j = 0; j < machines.size() && best_rank != 0; ++j) {
      if (j == i || taken[j]) continue;
      const int rank = RankOfPair(machines[i], machines[j], minimum);
      if (rank < 0 || (best_rank >= 0 && rank >= best_rank)) continue;
      best_rank = rank;
      best = j;
    }
    if (best == i) continue;
    taken[i] = taken[best] = true;
    const auto& [low, high] = std::minmax(i, best);
    pairs.emplace_back(machines[low].node->hello().node_id(),
                       machines[high].node->hello().node_id());
  }
  return pairs;
}

std::vector<FaultyMachine> FindFaulty(const v1::DriverState& state) {
  const double minimum = MinimumExchangeRate(state);
  std::vector<FaultyMachine> faulty;
  for (const v1::NodeRecord& node : state.nodes()) {
    if (!node.alive() || node.has_quarantine()) continue;
    std::string evidence = EvidenceAgainst(state, node, minimum);
    if (evidence.empty()) continue;
    faulty.push_back({node.hello().node_id(), std::move(evidence)});
  }
  return faulty;
}

}  // namespace megascale::driver
