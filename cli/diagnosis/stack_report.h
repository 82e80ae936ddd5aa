// What the threads of a job that stands still execute, as lines and JSON. Pure functions.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "cli/diagnosis/diagnose_job.h"
#include "proto/control.pb.h"

namespace megascale::cli {

// Returns the ranks whose stacks should be read: the rank `named`, if any (>= 0), and up to 15 more
// for comparison, first the ranks that do not wait. `waiting`: ranks that wait for others.
std::vector<int> RanksToRead(int num_ranks, int named, absl::Span<const int> waiting);

// Adds the stacks; equal stacks of several ranks form a group. The text gets the groups that not
// all ranks have, first those of the named rank. The JSON gets all groups. Stacks that could not be
// read become notes.
void AddStacks(absl::Span<const control::v1::StreamEvidenceResponse> responses,
               Diagnosis* diagnosis);

}  // namespace megascale::cli
