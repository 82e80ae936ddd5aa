// What the communicators of a stuck exchange show, as evidence and, where it suffices, as the
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

// Returns what the members show of the running call of an instruction. A member whose evidence is
// missing is not known. Evidence about ranks that are no members is ignored.
std::vector<diagnose::ShownCall> ShownCallsOf(
    absl::Span<const control::v1::StreamEvidenceResponse> responses,
    plan::InstructionId instruction, absl::Span<const int> members);

// Adds the flows that stand still to the evidence. If the diagnosis names no rank yet, names the
// rank, the machine's network, or the way between two ranks, that the flows tell. `names` and
// `machine_of`: by rank; machines have numbers as JoinExchanges got them.
void AddExchange(const diagnose::ExchangeVerdict& verdict, absl::Span<const trace::RankName> names,
                 absl::Span<const int> machine_of, Diagnosis* diagnosis);

// Adds since when the bytes of the first flow that stands still have stood, and how they had come
// there, as an agent saw it: the receiver's, else the sender's. `instructions`: of the exchanges.
// Does nothing if no agent looked while the call ran.
void AddStandstill(absl::Span<const control::v1::StreamEvidenceResponse> responses,
                   absl::Span<const plan::InstructionId> instructions,
                   const diagnose::ExchangeVerdict& verdict, Diagnosis* diagnosis);

}  // namespace megascale::cli
