#include "cli/diagnosis/exchange_report.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/process/resource_limit.h"
#include "runtime/base/text/printable.h"

namespace megascale::cli {
namespace {

using diagnose::ExchangeVerdict;
using diagnose::FlowState;
using diagnose::StuckFlow;

constexpr size_t kFlowsShown = 6;

// A pass exchanges in pieces, which the plan's instruction does not have.
bool IsOf(uint64_t packed, plan::InstructionId instruction) {
  const plan::InstructionId id = plan::InstructionId::FromPacked(packed).MessageId();
  return id.operation() == instruction.operation() && id.chunk() == instruction.chunk() &&
         id.microbatch() == instruction.microbatch() && id.bucket() == instruction.bucket();
}

void AddFlows(const telemetry::v1::Evidence& evidence, plan::InstructionId instruction,
              diagnose::ShownCall* call) {
  for (const telemetry::v1::ExchangeState& state : evidence.running()) {
    if (!IsOf(state.instruction(), instruction)) continue;
    call->is_inside = true;
    if (state.send_bytes() + state.receive_bytes() == 0) continue;  // it shows no peers yet
    const int64_t quiet = evidence.monotonic_nanos() - state.changed_nanos();
    call->flows.push_back({.peer = state.peer(),
                           .send_bytes = state.send_bytes(),
                           .transmitted_bytes = state.transmitted_bytes(),
                           .delivered_bytes = state.delivered_bytes(),
                           .receive_bytes = state.receive_bytes(),
                           .received_bytes = state.received_bytes(),
                           .quiet_seconds = std::max(0.0, static_cast<double>(quiet) / 1e9)});
  }
}

std::string NameOf(int rank, absl::Span<const trace::RankName> names) {
  if (rank < 0 || rank >= static_cast<int>(names.size())) return "an unknown rank";
  return names[static_cast<size_t>(rank)].InSentence();
}

// Returns a rank on the machine that the verdict names.
int EndOn(const ExchangeVerdict& verdict, absl::Span<const int> machine_of) {
  for (const StuckFlow& flow : verdict.stuck) {
    for (const int rank : {flow.from, flow.to}) {
      const auto index = static_cast<size_t>(rank);
      if (index < machine_of.size() && machine_of[index] == verdict.machine) return rank;
    }
  }
  return -1;
}

std::string FlowText(const StuckFlow& flow) {
  return absl::StrFormat("rank %d to rank %d: %s; %s ready, %s transmitted, %s arrived, for %.1f s",
                         flow.from, flow.to, diagnose::Name(flow.state),
                         base::FormatBytes(flow.ready_bytes),
                         base::FormatBytes(flow.transmitted_bytes),
                         base::FormatBytes(flow.arrived_bytes), flow.quiet_seconds);
}

// How the bytes of a flow moved, as an agent saw it.
struct Standstill {
  int64_t bytes = 0;         // that have come
  double moved_seconds = 0;  // from the first look at the call to the first one with these bytes
  double seconds = 0;        // since then
};

// Returns what the agent of a rank saw of its newest call towards `peer`. `bytes_of`: of a state.
template <typename BytesOf>
std::optional<Standstill> StandstillOf(const telemetry::v1::Evidence& evidence, int peer,
                                       absl::Span<const plan::InstructionId> instructions,
                                       const BytesOf& bytes_of) {
  std::vector<const telemetry::v1::InFlightSample*> looks;
  for (const telemetry::v1::InFlightSample& look : evidence.in_flight()) {
    const telemetry::v1::ExchangeState& state = look.state();
    const bool is_of = std::any_of(
        instructions.begin(), instructions.end(),
        [&](plan::InstructionId instruction) { return IsOf(state.instruction(), instruction); });
    if (!is_of || state.peer() != peer) continue;
    const bool is_new = !looks.empty() && (looks.back()->state().sequence() != state.sequence() ||
                                           looks.back()->state().group() != state.group());
    if (is_new) looks.clear();
    looks.push_back(&look);
  }
  if (looks.empty()) return std::nullopt;
  Standstill seen = {.bytes = bytes_of(looks.back()->state())};
  auto first = looks.end() - 1;
  while (first != looks.begin() && bytes_of((*(first - 1))->state()) == seen.bytes) --first;
  // The times come from another machine and may be anything.
  const auto seconds = [](int64_t from, int64_t to) {
    return std::max(0.0, (static_cast<double>(to) - static_cast<double>(from)) / 1e9);
  };
  seen.moved_seconds = seconds(looks.front()->seen_nanos(), (*first)->seen_nanos());
  seen.seconds = seconds((*first)->seen_nanos(), evidence.monotonic_nanos());
  return seen;
}

// Returns null if there is no answer.
const control::v1::StreamEvidenceResponse* AnswerOf(
    absl::Span<const control::v1::StreamEvidenceResponse> responses, int rank) {
  const auto found = std::find_if(responses.begin(), responses.end(), [&](const auto& response) {
    return response.rank() == rank && response.error().empty();
  });
  return found == responses.end() ? nullptr : &*found;
}

}  // namespace

std::vector<diagnose::ShownCall> ShownCallsOf(
    absl::Span<const control::v1::StreamEvidenceResponse> responses,
    plan::InstructionId instruction, absl::Span<const int> members) {
  std::vector<diagnose::ShownCall> calls;
  for (const int member : members) {
    diagnose::ShownCall call;
    call.rank = member;
    if (const auto* answer = AnswerOf(responses, member)) {
      call.node = base::Printable(answer->node_id());
      call.is_known = true;
      AddFlows(answer->evidence(), instruction, &call);
    }
    calls.push_back(std::move(call));
  }
  return calls;
}

void AddExchange(const ExchangeVerdict& verdict, absl::Span<const trace::RankName> names,
                 absl::Span<const int> machine_of, Diagnosis* diagnosis) {
  Findings& findings = diagnosis->findings;
  for (size_t i = 0; i < std::min(verdict.stuck.size(), kFlowsShown); ++i) {
    findings.evidence.push_back(FlowText(verdict.stuck[i]));
  }
  if (verdict.stuck.size() > kFlowsShown) {
    findings.evidence.push_back(
        absl::StrCat("and ", verdict.stuck.size() - kFlowsShown, " more flows stand still"));
  }
  if (diagnosis->rank >= 0 || verdict.state == FlowState::kDone) return;
  if (verdict.rank >= 0) {
    diagnosis->rank = verdict.rank;
    diagnosis->is_undecided = false;
    findings.cause = kStuckExchangeRank;
    findings.verdict = absl::StrCat(
        "stuck: ", NameOf(verdict.rank, names),
        verdict.state == FlowState::kNotReady
            ? "; its device does not produce the rest of what it sends, and waits for no bytes"
            : absl::StrCat("; its part of an exchange is ", diagnose::Name(verdict.state),
                           ", and all bytes that stand still are to or from it"));
  } else if (verdict.machine >= 0) {
    diagnosis->rank_on_node = EndOn(verdict, machine_of);
    diagnosis->is_undecided = false;
    findings.cause = kStuckMachineLink;
    findings.verdict = absl::StrCat("stuck: the network of the machine of ",
                                    NameOf(diagnosis->rank_on_node, names),
                                    "; all bytes that stand still are to or from it");
  } else if (verdict.from >= 0) {
    diagnosis->rank_on_node = verdict.from;
    diagnosis->peer = verdict.to;
    diagnosis->is_undecided = false;
    findings.cause = kStuckLink;
    findings.verdict =
        absl::StrCat("stuck: the way from ", NameOf(verdict.from, names), " to ",
                     NameOf(verdict.to, names), "; bytes are ", diagnose::Name(verdict.state));
    if (verdict.likely < 0) return;
    findings.evidence.push_back(absl::StrCat("rank ", verdict.likely,
                                             " is likelier at fault than the way to it: all that "
                                             "it sent has arrived, and it does not take these"));
  }
}

void AddStandstill(absl::Span<const control::v1::StreamEvidenceResponse> responses,
                   absl::Span<const plan::InstructionId> instructions,
                   const ExchangeVerdict& verdict, Diagnosis* diagnosis) {
  if (verdict.stuck.empty()) return;
  const StuckFlow& flow = verdict.stuck.front();
  std::optional<Standstill> seen;
  int witness = flow.to;
  if (const auto* answer = AnswerOf(responses, flow.to)) {
    seen = StandstillOf(answer->evidence(), flow.from, instructions,
                        [](const auto& state) { return state.received_bytes(); });
  }
  if (!seen.has_value()) {
    witness = flow.from;
    if (const auto* answer = AnswerOf(responses, flow.from)) {
      seen = StandstillOf(answer->evidence(), flow.to, instructions,
                          [](const auto& state) { return state.delivered_bytes(); });
    }
  }
  if (!seen.has_value()) return;
  diagnosis->findings.evidence.push_back(absl::StrFormat(
      "the agent of rank %d saw %s come from rank %d to rank %d in %.1f s, and nothing for %.1f s "
      "since",
      witness, base::FormatBytes(seen->bytes), flow.from, flow.to, seen->moved_seconds,
      seen->seconds));
  diagnosis->details["standstill"] = {
      {"from", flow.from}, {"to", flow.to}, {"bytes", seen->bytes}, {"seconds", seen->seconds}};
}

}  // namespace megascale::cli
