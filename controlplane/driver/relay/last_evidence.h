// What the agents keep of the last attempt of a job that failed or was cancelled: read once after
// its end and written into the job's folder, in the format of `megascale diagnose --save`, so that
// it can be diagnosed when its machines are gone.
// Blocking: reads from agents and files.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "controlplane/driver/relay/evidence_stream.h"
#include "controlplane/driver/relay/span_stream.h"
#include "controlplane/driver/storage/job_files.h"
#include "controlplane/trace/evidence_file.h"
#include "proto/control.pb.h"

namespace megascale::driver {

inline constexpr size_t kLastEvidenceBytesMax = size_t{1} << 20;  // of a job's file

// Returns the path of the file in the job's folder.
std::string LastEvidencePath(const megascale::control::v1::Job& job);

// Reads spans of all ranks, calls of the first 64, and metrics of the machine of the culprit, and
// returns the file's content. What does not fit into `bytes_max` is left out: first the calls, then
// the spans of ranks that are not the culprit. `spans` and `evidence`: ports without `emit`.
// Errors: Unavailable
// - no agent answers; those of the ports.
absl::StatusOr<std::string> CollectLastEvidence(const megascale::control::v1::Job& job,
                                                SpanStreamPorts spans, EvidenceStreamPorts evidence,
                                                size_t bytes_max = kLastEvidenceBytesMax);

// Errors: NotFound - there is no file; DataLoss - it is damaged.
absl::StatusOr<trace::EvidenceFile> ReadLastEvidence(const megascale::control::v1::Job& job,
                                                     JobFiles* files);

}  // namespace megascale::driver
