// What the communicators of a stuck exchange show: as evidence and, if it is sufficient, as the
// cause. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "cli/diagnosis/diagnose_job.h"
#include "controlplane/trace/rank_name.h"
#include "proto/control.pb.h"
#include "runtime/diagnose/exchange_state.h"
#include "runtime/plan/instruction.h"

namespace megascale::cli {

// Returns what the members show of the running call of an instruction. A member without evidence
// counts as unknown. Ignores evidence about ranks that are not members.
std::vector<diagnose::ShownCall> ShownCallsOf(
    absl::Span<const control::v1::StreamEvidenceResponse> responses,
    plan::InstructionId instruction, absl::Span<const int> members);

// Causes (Findings::cause) that AddExchange finds.
inline constexpr char kStuckLink[] = "link";
inline constexpr char kStuckMachineLink[] = "machine_link";
inline constexpr char kStuckExchangeRank[] = "exchange_rank";

// Adds the flows that stand still to the evidence. If the diagnosis names no rank yet, names the
// cause that the flows show: a rank, a machine's network, or the link between two ranks. `names`
// and `machine_of`: by rank; machines have the same numbers as for JoinExchanges.
void AddExchange(const diagnose::ExchangeVerdict& verdict, absl::Span<const trace::RankName> names,
                 absl::Span<const int> machine_of, Diagnosis* diagnosis);

// Adds, for the first flow that stands still, how many bytes had moved in which time, and for how
// long none has moved since. The receiver's agent saw this, or if it did not, the sender's agent.
// `instructions`: of the exchanges. Does nothing if no agent looked while the call ran.
void AddStandstill(absl::Span<const control::v1::StreamEvidenceResponse> responses,
                   absl::Span<const plan::InstructionId> instructions,
                   const diagnose::ExchangeVerdict& verdict, Diagnosis* diagnosis);

}  // namespace megascale::cli
