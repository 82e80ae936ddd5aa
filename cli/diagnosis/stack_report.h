// What the threads of a job that stands still execute, as lines and JSON. Pure functions.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "cli/diagnosis/diagnose_job.h"
#include "proto/control.pb.h"

namespace megascale::cli {

// Returns the ranks whose stacks are worth reading: the named one, if any (>= 0), and up to 15 more
// to compare it with, those that do not wait first. `waiting`: ranks that wait for others.
std::vector<int> RanksToRead(int num_ranks, int named, absl::Span<const int> waiting);

// Adds the stacks, like ones of several ranks together: the groups that not all ranks have to the
// text, those of the named rank first, and all of them to the JSON. What could not be read becomes
// a note.
void AddStacks(absl::Span<const control::v1::StreamEvidenceResponse> responses,
               Diagnosis* diagnosis);

}  // namespace megascale::cli
