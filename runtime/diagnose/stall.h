// Why a job makes no progress: walks from each rank's current instruction, through the plan's
// dependencies and meetings, to the ranks for which the others wait. A pure function of the plans
// and of where each rank stands.
//
//   const StallVerdict verdict = ExplainStall(plans, positions);
//   verdict.root.rank, verdict.root.instruction;  // for which others wait, and where it stands
//
// Sources: Jiang et al., NSDI '24 (MegaScale), section 5.3: the rank without a trace is the cause;
// Deng et al., SOSP '25 (Mycroft): dependencies of collectives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "runtime/plan/instruction.h"
#include "runtime/plan/rank_plan.h"

namespace megascale::diagnose {

enum class InstructionState : uint8_t { kNotBegun, kRuns, kEnded };

// Where a rank stands. All instructions of earlier steps have ended; those of later ones have not
// begun.
struct RankPosition {
  bool known = false;  // false: nothing came from this rank, and only `silent_seconds` may be set
  int64_t step = 0;
  // The batch of the evaluation after the step, counted from 1, in which the rank stands; 0: it
  // stands in the step itself.
  int64_t batch = 0;
  // The plan of a batch of an evaluation, for a rank of the same stage. Null: that of the step.
  const plan::RankPlan* evaluation_plan = nullptr;
  std::vector<InstructionState> states = {};  // indexed like the plan's instructions
  // In a running pass: in which of the pass's tensor-parallel exchanges the rank waits, counted
  // from 1, as in InstructionId::piece. 0: it computes.
  int piece = 0;
  // How long its process has not shown that it lives. Unset: not known.
  std::optional<double> silent_seconds = {};
};

enum class StallCause {
  kRuns,      // the rank computes, needs no other rank for that, and does not end
  kNotBegun,  // the rank does not begin an instruction although nothing that it needs is missing
  kNoTrace,   // others wait for the rank, and nothing is known about where it stands
  kExchange,  // all members have begun the exchange, and it does not end
  kUnknown,   // several ranks may be the cause, and nothing tells which
};

// A rank that waits for others.
struct WaitingRank {
  int rank = 0;
  plan::InstructionId instruction;  // in which it waits
  // The ranks that have not come (in a pass: those in an earlier exchange, or computing). If all
  // have come, the other ranks that have not left; if all others have left, `rank` alone.
  std::vector<int> waits_for;
};

// A rank, or an exchange, for which others wait and which itself waits for no other.
struct StallRoot {
  StallCause cause = StallCause::kUnknown;
  int rank = -1;  // kExchange: the member that is behind or silent; -1: nothing tells which
  plan::InstructionId instruction = {};
  int64_t step = 0;
  std::vector<int> members = {};  // kExchange: its ranks
  int num_waiting = 0;            // ranks that wait for it, directly or through others
};

struct StallVerdict {
  StallRoot root;                         // kUnknown: with rank -1
  std::vector<StallRoot> other_roots;     // silent ones first, then by num_waiting
  std::vector<WaitingRank> waiting = {};  // by rank; has no entry for root.rank
  // The process of `root` is silent. With kUnknown there is no root; then: the process of the first
  // of `other_roots` is silent.
  bool is_silent = false;
};

// A process is silent if it has shown no sign of life for this long. Normally its timer thread
// gives a sign every fraction of a second.
inline constexpr double kSilentSecondsMin = 1.5;

// Requires: `plans` are those of all ranks in order and passed ValidatePlans; `positions` are by
// rank, with a state for each instruction where the rank is known; where `batch` is positive, there
// is an `evaluation_plan`, which passed ValidatePlans, too. Requires, too, that the job
// stands still: every instruction that could begin or end has done so, except at the cause. Cost:
// O(ranks * (ranks + instructions of a rank)).
StallVerdict ExplainStall(absl::Span<const plan::RankPlan> plans,
                          absl::Span<const RankPosition> positions);

// Returns what the instruction belongs to, in words: "step 9" or "the evaluation after step 9".
std::string StepText(plan::InstructionId instruction, int64_t step);

// If the verdict names a member of an exchange as the one that is behind, returns the other
// machines whose ranks report that they have left the exchange. Empty: there is no such machine.
// nullopt: no witness is needed, because the verdict names no member, the named member's process is
// silent, or all members are on the named member's machine. `machine_of`: by rank; -1: not known,
// and not a witness.
std::optional<std::vector<int>> Witnesses(const StallVerdict& verdict,
                                          absl::Span<const int> machine_of);

// With fewer witnesses, one machine with false reports could put the blame on a healthy machine.
inline constexpr size_t kWitnessesMin = 2;

// Returns the instruction in which a rank stands: the first of its plan that runs or, if none runs,
// the first that it could begin; nullopt: nothing is known of the rank. Requires: as ExplainStall;
// `rank` may be any.
std::optional<plan::InstructionId> StandsAt(absl::Span<const plan::RankPlan> plans,
                                            absl::Span<const RankPosition> positions, int rank);

// A machine that holds every rank which may be the cause.
struct StuckMachine {
  std::vector<int> ranks;       // that may be the cause, ascending
  bool waits_for_data = false;  // each of them waits for its batch
};

// If the verdict is kUnknown and all ranks that may be the cause are on one machine, returns it;
// nullopt: the verdict is another one or has no roots, one of the roots names no rank, or the ranks
// are on several machines or on machines that are not known. `machine_of`: by rank; -1: not known.
std::optional<StuckMachine> MachineOfAllRoots(const StallVerdict& verdict,
                                              absl::Span<const int> machine_of);

}  // namespace megascale::diagnose
