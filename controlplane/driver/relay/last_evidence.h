// What the agents keep of the last attempt of a job. The driver reads it once after the job's end
// and writes it into the job's folder, in the format of `megascale diagnose --save`, so that the
// job can be diagnosed when its machines are gone. The file of a job that succeeded is smaller,
// because most jobs succeed.
// Blocking: reads from agents and files.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "controlplane/driver/relay/evidence_stream.h"
#include "controlplane/driver/relay/span_stream.h"
#include "controlplane/driver/storage/job_files.h"
#include "controlplane/trace/evidence_file.h"
#include "proto/control.pb.h"

namespace megascale::driver {

inline constexpr size_t kLastEvidenceBytesMax = size_t{1} << 20;  // of a job's file
inline constexpr size_t kLastEvidenceBytesOfSuccess = size_t{1} << 18;
inline constexpr size_t kLastEvidenceTextMax = size_t{1} << 25;  // of its text, unpacked

// Returns the path of the file in the job's folder.
std::string LastEvidencePath(const megascale::control::v1::Job& job);

struct CollectOptions {
  // The maximum size of the file; for a job that succeeded, kLastEvidenceBytesOfSuccess if that is
  // less.
  size_t bytes_max = kLastEvidenceBytesMax;
  // The maximum bytes of spans that are in memory at once, without the spans of the culprit.
  size_t spans_max = kLastEvidenceTextMax;
  // Returns true: asks no further node, and keeps what was read. Null: never stops early. Called by
  // one thread at a time.
  std::function<bool()> should_stop = nullptr;
};

// Reads spans of all ranks, calls of the first 64, and metrics of the culprit's machine (without a
// culprit: of rank 0's), and returns the file's content. The spans are those of the last three
// steps; for a job that succeeded, of the last 16, which show whether it was slow. If all this does
// not fit, leaves out, in this order: the calls, older steps, the spans of ranks other than the
// culprit, the metrics, and what is known of the cluster. `spans` and `evidence`: ports without
// `emit`. Errors: Unavailable - no agent answers; ResourceExhausted - the rest is too large, too;
// those of the ports.
absl::StatusOr<std::string> CollectLastEvidence(const megascale::control::v1::Job& job,
                                                SpanStreamPorts spans, EvidenceStreamPorts evidence,
                                                const CollectOptions& options = {});

// Errors: NotFound - there is no file; DataLoss - it is damaged.
absl::StatusOr<trace::EvidenceFile> ReadLastEvidence(const megascale::control::v1::Job& job,
                                                     JobFiles* files);

}  // namespace megascale::driver
