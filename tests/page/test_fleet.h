// A driver's view of made-up jobs, for the page: a job whose ranks ran as planned but for a slow
// one, hostile names, failures, machines in all pools; and a fleet of any size. Deterministic.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "controlplane/page/page_source.h"
#include "controlplane/trace/job_spans.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::page {

struct TestFleetOptions {
  int data = 4;
  int pipeline = 4;
  int tensor = 2;
  int microbatches = 8;
  int64_t last_step = 240;
  int num_ended_jobs = 0;  // besides those that have a meaning
  size_t name_bytes = 0;   // names of jobs and machines are at least so long
};

class TestFleet : public PageSource {
 public:
  explicit TestFleet(const TestFleetOptions& options = {});

  // Text that a careless page would run.
  static constexpr char kHostile[] = "<img src=x onerror=document.title='owned'>";
  static constexpr char kJobId[] = "gpt-13b-7c2e91";
  static constexpr double kExchangeRateMin = 1e10;  // bytes per second
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
  const control::v1::Job& job() const { return jobs_.back(); }
  int num_span_reads() const { return num_span_reads_; }
  int num_evidence_reads() const { return num_evidence_reads_; }
  int num_ranks_read() const { return num_ranks_read_; }  // by the newest read of spans
  // Is called for each rank whose spans are read: what a slow agent does to the clock.
  void SetOnRank(std::function<void()> on_rank) { on_rank_ = std::move(on_rank); }
  // Steps before this one take half the time.
  void SpeedUpBefore(int64_t step) { full_time_from_ = step; }

 private:
  // A step of the running job as its plan has it, of a mesh that may have fewer replicas.
  struct PlannedStep {
    trace::JobSpans spans;
    timeline::StepTime time;
  };
  absl::StatusOr<PlannedStep> Plan() const;
  void AddRunningJob(const TestFleetOptions& options);
  void AddMachines(const TestFleetOptions& options);
  void AddExchanges(const TestFleetOptions& options);

  TestFleetOptions options_;
  std::optional<PlannedStep> planned_;
  std::vector<control::v1::Job> jobs_;
  control::v1::GetClusterResponse cluster_;
  int num_span_reads_ = 0;
  int num_evidence_reads_ = 0;
  int num_ranks_read_ = 0;
  int64_t full_time_from_ = 0;
  std::function<void()> on_rank_;
};

}  // namespace megascale::page
