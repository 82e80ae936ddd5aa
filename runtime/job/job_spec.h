// The rules of a job specification: defaults filled in and everything checked, in one place. The
// command line and the driver both use it, so that a bad job is refused before any process starts.
// Thread-safe: pure functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/job.pb.h"

namespace megascale::job {

// `spec` with every default of proto/job.proto filled in. Resolving a resolved specification
// changes nothing. Errors: InvalidArgument - the first rule that is broken, in the order of the
// fields: the field, its value and the sum that fails ("train.global_batch_size: 24 is not a
// multiple of … = 2 × 8 = 16").
absl::StatusOr<v1::JobSpec> ResolveJobSpec(const v1::JobSpec& spec);

// Gives the fields that older versions did not know the values for what those versions did: of a
// specification that one of them resolved. Changes nothing of one that this version resolved.
void UpgradeJobSpec(v1::JobSpec* spec);

// The number of worker processes, which is the number of slots that the job needs. What is not set
// counts as 1.
int WorldSize(const v1::JobSpec& spec);

// Ranks of a tensor-parallel group, which share a machine. Not set: 1.
int TensorSize(const v1::JobSpec& spec);

// The number of worker processes as the sum that it is, for people: "needs data × tensor × pipeline
// = 2 × 2 × 3 = 12 slots"; of one, "needs 1 slot".
std::string NeededSlots(const v1::JobSpec& spec);

// Micro-batches that each data-parallel rank runs in a step. Requires: a resolved specification.
int NumMicrobatches(const v1::JobSpec& spec);

// A duration of a specification.
absl::Duration ToDuration(const google::protobuf::Duration& duration);

}  // namespace megascale::job
