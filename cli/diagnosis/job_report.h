// What the driver itself reports of a job, as a diagnosis: a failure, a state, ranks that save a
// checkpoint. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "cli/diagnosis/diagnose_job.h"
#include "proto/control.pb.h"

namespace megascale::cli {

// Returns after how long without progress a job stands still. `step_seconds`: of its whole steps;
// 0: it has none yet, and a first step may take long.
double StallLimitSeconds(const job::v1::FaultSpec& fault, double step_seconds);

// The cause of a job that failed, as a word for programs.
inline constexpr char kFailedRank[] = "failed_rank";

// Returns a diagnosis for a job without spans to read. A job that was cancelled has not failed,
// whatever failed in it earlier.
Diagnosis DiagnoseState(const control::v1::Job& job, const std::string& why_no_spans);

// A machine that does not answer counts as silent from then on: agents report every second.
inline constexpr double kSilentMachineSecondsMin = 2.5;

// Returns a diagnosis that names the machine whose agent is silent and of whose ranks nothing is
// known; nullopt if there is none, or several. `is_known`: by rank, whether its spans were read.
std::optional<Diagnosis> DiagnoseSilence(const control::v1::Job& job,
                                         const control::v1::GetClusterResponse& cluster,
                                         const std::vector<bool>& is_known);

// Adds numbers that are off the road, and what the driver did about a suspect. If nothing else is
// the matter, the first number is the verdict.
void AddNumbers(const control::v1::Job& job, Diagnosis* diagnosis);

// Adds what the named rank says of itself, and whether it saves a checkpoint. If no rank is named:
// whether all ranks do that wait for no other rank. Such a job waits for storage, or is not stuck
// at all. `waiting`: ranks that wait for others.
void AddReport(const control::v1::Job& job, absl::Span<const int> waiting, Diagnosis* diagnosis);

}  // namespace megascale::cli
