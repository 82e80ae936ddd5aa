// The source of a diagnosis's evidence: a live job, or a file with the saved evidence of a job.
// From a file, the same verdict can be made again later, elsewhere and in tests.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "controlplane/client/job_client.h"
#include "proto/control.pb.h"

namespace megascale::cli {

class EvidenceSource {
 public:
  virtual ~EvidenceSource() = default;

  // Errors: those of calls to the driver.
  virtual absl::StatusOr<control::v1::Job> Job() = 0;
  // Returns the machines as the driver sees them; empty if they cannot be read.
  virtual control::v1::GetClusterResponse Cluster() = 0;
  // Passes the spans of each rank, from a step on. Errors: as JobClient::Spans.
  virtual absl::Status Spans(
      int64_t first_step,
      const std::function<void(const control::v1::StreamSpansResponse&)>& add) = 0;
  // Returns evidence about `ranks`; empty: all ranks. Leaves out evidence that cannot be read.
  virtual std::vector<control::v1::StreamEvidenceResponse> Evidence(
      telemetry::v1::EvidenceKind kind, absl::Span<const int> ranks) = 0;
  // Returns the first error that a rank logged in an attempt (first_error.h); "": the rank logged
  // no error, or its log cannot be read in time.
  virtual std::string FirstErrorOf(int rank, int64_t attempt) = 0;
  // Waits for `duration`, after which there may be other evidence; false: this cannot be.
  virtual bool Wait(absl::Duration duration) = 0;
};

// Reads from the driver. `client` must outlive the result.
std::unique_ptr<EvidenceSource> LiveEvidence(client::JobClient* client, std::string job_id);

// SaveEvidence writes all evidence that a diagnosis needs to a file: gzip of lines of JSON, one for
// each answer. The file has the names of machines and of the job's files, but no training data.
// Errors: those of calls to the driver and of writing.
struct SaveOptions {
  int64_t num_steps = 0;  // the newest ones
  // The rank that the diagnosis names, whose first error is saved as well. -1: the diagnosis names
  // no rank.
  int rank = -1;
  int64_t attempt = 0;  // of the error
};
absl::Status SaveEvidence(EvidenceSource* source, const SaveOptions& options,
                          const std::string& path);

// Reads such a file, plain or gzip. Errors: NotFound; InvalidArgument - the file has other content.
absl::StatusOr<std::unique_ptr<EvidenceSource>> SavedEvidence(const std::string& path);

}  // namespace megascale::cli
