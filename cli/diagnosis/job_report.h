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

// Returns the time without progress after which a job counts as standing still. `step_seconds`:
// duration of its whole steps; 0: it has no whole step yet, and a first step may take long.
double StallLimitSeconds(const job::v1::FaultSpec& fault, double step_seconds);

// The cause word (Findings::cause) of a job that failed.
inline constexpr char kFailedRank[] = "failed_rank";

// Returns the verdict in place of "I do not know" for a job that trains, but has not yet for a
// minute: what its steps take has not settled. "": the job is older, or does not train.
std::string TooEarly(const control::v1::Job& job);

// Returns a diagnosis for a job without spans to read. A job that was cancelled has not failed,
// even if an earlier attempt failed.
Diagnosis DiagnoseState(const control::v1::Job& job, const std::string& why_no_spans);

// A machine that has not answered for this long counts as silent, because agents report every
// second.
inline constexpr double kSilentMachineSecondsMin = 2.5;
// After this time without an answer it may be about to: a report is overdue.
inline constexpr double kOverdueSecondsMin = 1.5;

// Returns a diagnosis that names the one machine whose agent is silent and whose ranks' spans could
// not be read; nullopt if there is no such machine, or several. `is_known`: by rank, whether its
// spans were read.
std::optional<Diagnosis> DiagnoseSilence(const control::v1::Job& job,
                                         const control::v1::GetClusterResponse& cluster,
                                         const std::vector<bool>& is_known);

// Returns whether DiagnoseSilence may have another result within a second: the report of a machine
// whose ranks' spans could not be read is overdue.
bool MaySoonBeSilent(const control::v1::Job& job, const control::v1::GetClusterResponse& cluster,
                     const std::vector<bool>& is_known);

// Adds warnings about unusual numbers of the training, and what the driver did about a suspect. If
// there is no other cause, the first warning is the verdict.
void AddNumbers(const control::v1::Job& job, Diagnosis* diagnosis);

// Adds what the named rank reports about itself, and whether it saves a checkpoint. If no rank is
// named, adds whether all ranks that wait for no other rank save a checkpoint. Then the job waits
// for storage, or is not stuck at all. `waiting`: ranks that wait for others.
void AddReport(const control::v1::Job& job, absl::Span<const int> waiting, Diagnosis* diagnosis);

}  // namespace megascale::cli
