// A fleet that was made up: a job of any size whose ranks ran as computed, and agents that answer
// for them. Each step takes a second at most; in a slow or stuck one the passes of the culprits
// take longer. Rank r is on node r / 8.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "controlplane/driver/relay/suspect.h"
#include "proto/control.pb.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::driver {

class ComputedJob {
 public:
  static constexpr int kRanksOfNode = 8;
  // An instruction that does not end takes longer than this, in nanoseconds.
  static constexpr int64_t kForever = int64_t{1} << 50;
  static constexpr int64_t kPassNanos = 10'000'000;

  struct Sizes {
    int replicas = 1;
    int stages = 1;
    int tensor = 1;
  };
  ComputedJob(const Sizes& sizes, std::set<int> culprits);

  struct ComputedStep {
    timeline::StepTime time;
    int64_t pass_nanos = 0;  // of the culprits' passes
  };
  using Step = std::shared_ptr<const ComputedStep>;
  // `pass_nanos`: of the culprits' passes; those of others take kPassNanos.
  Step StepWith(int64_t pass_nanos) const;
  // What each rank reports while `step` stands, or is at its worst: the culprit computes.
  void ReportFrom(const Step& step);

  // Returns ports that count what is asked. They must not outlive the object.
  SpanStreamPorts Spans();
  EvidenceStreamPorts Metrics();
  std::vector<int> Sample() const;
  // Returns what an agent of an older version answers to a question about metrics.
  megascale::agent::v1::EvidenceChunk SamplesOf(const std::string& node) const;

  megascale::control::v1::Job job;
  std::map<int64_t, Step> steps;           // by number
  int num_fetched = 0;                     // ranks whose spans were asked for
  std::atomic<int> num_metrics = 0;        // machines that were asked for metrics
  std::atomic<int64_t> metrics_bytes = 0;  // of their answers

 private:
  absl::StatusOr<megascale::agent::v1::SpanChunk> FetchSpans(
      const megascale::agent::v1::FetchSpans& fetch);
  // Sums up what it sampled, as an agent does.
  megascale::agent::v1::EvidenceChunk FetchMetrics(
      const std::string& node, const megascale::agent::v1::FetchEvidence& fetch);
  // What the machine of this node would have sampled while a step ran.
  megascale::telemetry::v1::MachineSample SampleOf(int node, int64_t number,
                                                   const ComputedStep& step) const;
  int64_t PassNanosOf(int rank, int64_t pass_nanos) const {
    return culprits_.count(rank) > 0 ? pass_nanos : kPassNanos;
  }

  const std::set<int> culprits_;
  std::vector<plan::RankPlan> plans_;
};

}  // namespace megascale::driver
