// A driver's view of made-up jobs, for the page: a job whose ranks ran as planned but for a slow
// one, hostile names, failures, machines in all pools; and a fleet of any size. Deterministic.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "controlplane/page/page_source.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"

namespace megascale::page {

struct TestFleetOptions {
  int data = 4;
  int pipeline = 4;
  int tensor = 2;
  int64_t last_step = 240;
};

class TestFleet : public PageSource {
 public:
  explicit TestFleet(const TestFleetOptions& options = {});

  // Text that a careless page would run.
  static constexpr char kHostile[] = "<img src=x onerror=document.title='owned'>";
  static constexpr char kJobId[] = "gpt-13b-7c2e91";
  static constexpr int kSlowRank = 13;

  absl::StatusOr<std::vector<control::v1::Job>> Jobs() override { return jobs_; }
  absl::StatusOr<control::v1::GetClusterResponse> Cluster() override { return cluster_; }
  absl::StatusOr<control::v1::Job> GetJob(const std::string& job_id) override;
  absl::Status Spans(
      const control::v1::StreamSpansRequest& request,
      const std::function<bool(const control::v1::StreamSpansResponse&)>& emit) override;
  // The slow rank is inside an exchange of which half has arrived; machines have ten minutes.
  absl::StatusOr<telemetry::v1::Evidence> Evidence(const std::string& job_id, int rank,
                                                   telemetry::v1::EvidenceKind kind) override;
  absl::Status Logs(
      const std::string& job_id, int rank,
      const std::function<bool(const control::v1::StreamLogsResponse&)>& emit) override;
  absl::StatusOr<std::vector<telemetry::v1::StepRecord>> Steps(const control::v1::Job& job,
                                                               int64_t first_step,
                                                               int64_t steps_max) override;
  absl::StatusOr<std::vector<telemetry::v1::StepRecord>> SampleSteps(const control::v1::Job& job,
                                                                     int64_t points) override;

  // The running job, to change it between two polls.
  control::v1::Job& job() { return jobs_.back(); }
  int num_span_reads() const { return num_span_reads_; }
  int num_evidence_reads() const { return num_evidence_reads_; }

 private:
  void AddRunningJob(const TestFleetOptions& options);
  void AddMachines(int num_machines);

  std::vector<control::v1::Job> jobs_;
  control::v1::GetClusterResponse cluster_;
  int num_span_reads_ = 0;
  int num_evidence_reads_ = 0;
};

}  // namespace megascale::page
