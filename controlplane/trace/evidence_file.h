// The evidence for a diagnosis, in a file: gzip of lines of JSON, one line for each answer of the
// driver. `megascale diagnose --save` writes it for a job that runs, and the driver writes it for a
// job that has ended. The file holds the names of machines and of the job's files, and no training
// data.
// Pure functions.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/control.pb.h"

namespace megascale::trace {

struct EvidenceFile {
  control::v1::Job job;
  control::v1::GetClusterResponse cluster;
  std::vector<control::v1::StreamSpansResponse> spans;
  std::map<int, std::vector<control::v1::StreamEvidenceResponse>> evidence;  // by kind
  std::vector<control::v1::StreamLogsResponse> logs;  // the first error of a rank, if any
};

// The maximum size of a file, unpacked.
inline constexpr size_t kEvidenceBytesMax = size_t{1} << 28;

// Returns the content of a file with this evidence. Errors: ResourceExhausted - it would have more
// than `bytes_max` bytes, unpacked.
absl::StatusOr<std::string> PackEvidence(const EvidenceFile& file,
                                         size_t bytes_max = kEvidenceBytesMax);

// Reads the content of a file, plain or gzip. Errors: InvalidArgument - it has more than
// `bytes_max` bytes, unpacked; it is damaged or no evidence; or its job is one that no driver
// accepts.
absl::StatusOr<EvidenceFile> UnpackEvidence(absl::string_view content,
                                            size_t bytes_max = kEvidenceBytesMax);

}  // namespace megascale::trace
