// Verdicts that spans do not give: a driver or a keeper that does not answer, storage that accepts
// no checkpoints, and a rank that begins collectives late. Pure functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cli/diagnosis/diagnose_job.h"
#include "proto/control.pb.h"

namespace megascale::cli {

// True if a call failed because the driver did not answer. If either side refuses the other's
// certificate, gRPC reports that in the same way.
bool IsSilence(const absl::Status& status);

// Returns the verdict on a driver that did not answer. `address`: the address that was called.
Diagnosis DiagnoseSilentDriver(const absl::Status& status, const std::string& job_id,
                               const std::string& address);

// If a machine cannot store checkpoints: makes this the verdict if the job trains and the diagnosis
// names no other rank or machine; otherwise adds it to the evidence. Does nothing if storage works.
void AddStorageFailure(const control::v1::Job& job, Diagnosis* diagnosis);

// If the keeper of a machine does not answer its agent: makes this the verdict if the job trains
// and the diagnosis names no other rank or machine; otherwise adds it to the evidence. Does nothing
// if all keepers answer.
void AddSilentKeeper(const control::v1::Job& job, Diagnosis* diagnosis);

// True if the verdict does not tell which rank makes collectives slow.
bool LeavesOpenWhoIsLate(const Diagnosis& diagnosis);

// Names the rank that begins collectives late, if the communicators' evidence shows it.
// `responses`: kind exchanges, of all ranks of the job.
void AddLateRank(absl::Span<const control::v1::StreamEvidenceResponse> responses,
                 const std::string& job_id, Diagnosis* diagnosis);

}  // namespace megascale::cli
