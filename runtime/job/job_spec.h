// The rules of a job specification: fills in defaults and checks everything, in one place. The
// command line and the driver both use it, so that an invalid job is refused before any process
// starts. Threads: any; pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/job.pb.h"

namespace megascale::job {

// Returns `spec` with every default of proto/job.proto filled in. Resolving a resolved
// specification changes nothing. Errors: InvalidArgument - the first rule that is broken, in the
// order of the fields. The message has the field, its value and the check that fails
// ("train.global_batch_size: 24 is not a multiple of … = 2 × 8 = 16").
absl::StatusOr<v1::JobSpec> ResolveJobSpec(const v1::JobSpec& spec);

// Fills in the defaults of the model section, whatever else `spec` has. Fields that break a rule
// stay as they are.
void FillModelDefaults(v1::JobSpec* spec);

// Returns the rules that `spec` breaks, each as ResolveJobSpec would report it: first those of
// single fields. The default of a field that was left out may break a rule because of the value of
// a field that was given.
std::vector<std::string> BrokenRules(const v1::JobSpec& spec);
// As above, but only the rules of single fields.
std::vector<std::string> BrokenFieldRules(const v1::JobSpec& spec);

// Upgrades a specification that an older version resolved: fields that the older version did not
// have get the values that match its behaviour. Does not change a specification that this version
// resolved.
void UpgradeJobSpec(v1::JobSpec* spec);

// Returns the number of worker processes, which is the number of slots that the job needs. Unset
// sizes count as 1.
int WorldSize(const v1::JobSpec& spec);

// Returns the number of ranks in a tensor-parallel group, which share a machine; 1 if unset.
int TensorSize(const v1::JobSpec& spec);

// Returns the number of slots with its factors, for messages: "needs data × tensor × pipeline = 2 ×
// 2 × 3 = 12 slots"; for a single slot "needs 1 slot".
std::string NeededSlots(const v1::JobSpec& spec);

// Returns the micro-batches that each data-parallel rank runs in a step. Requires: `spec` is
// resolved.
int NumMicrobatches(const v1::JobSpec& spec);

// Whether tokens see only tokens of their own document.
bool AttendsWithinDocuments(const v1::JobSpec& spec);

// Whether GPUs launch operators as CUDA graphs; true if the job does not say.
bool UsesCudaGraphs(const v1::JobSpec& spec);

// Whether the ranks exchange through NCCL. Otherwise they use communicators of the host.
bool ExchangesThroughNccl(const v1::JobSpec& spec);

// Whether tensor-parallel ranks exchange by whole calls instead of pieces: only if they use NCCL
// and tp_comm_overlap is off. Communicators of the host always exchange pieces; the results have
// the same bits.
bool HasWholeTensorExchanges(const v1::JobSpec& spec);

// Convert between durations of messages and of absl.
absl::Duration ToDuration(const google::protobuf::Duration& duration);
google::protobuf::Duration FromDuration(absl::Duration duration);

}  // namespace megascale::job
