// The evidence of a job on two machines, each of which has both ranks of a stage. One machine
// became about ten times slower after 747 normal steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/diagnosis/diagnose_job.h"
#include "cli/diagnosis/evidence_source.h"
#include "proto/control.pb.h"
#include "tests/e2e/cluster.h"

namespace megascale::cli {
namespace {

constexpr int64_t kFirstSlowStep = 748;

// The recording; optionally as it would be if nothing were known of the normal steps.
class SlowedMachine final : public EvidenceSource {
 public:
  explicit SlowedMachine(bool forgets)
      : saved_(SavedEvidence(e2e::Runfile("tests/diagnose/recorded/by_hand/"
                                          "stage-on-a-slowed-machine.gz"))
                   .value()),
        forgets_(forgets) {}

  absl::StatusOr<control::v1::Job> Job() override {
    absl::StatusOr<control::v1::Job> job = saved_->Job();
    if (!forgets_ || !job.ok()) return job;
    job->clear_number_warnings();
    job->clear_last_hour();
    return job;
  }
  control::v1::GetClusterResponse Cluster() override { return saved_->Cluster(); }
  absl::Status Spans(
      int64_t first_step,
      const std::function<void(const control::v1::StreamSpansResponse&)>& add) override {
    return saved_->Spans(forgets_ ? std::max(first_step, kFirstSlowStep) : first_step, add);
  }
  std::vector<control::v1::StreamEvidenceResponse> Evidence(telemetry::v1::EvidenceKind kind,
                                                            absl::Span<const int> ranks) override {
    return saved_->Evidence(kind, ranks);
  }
  std::string FirstErrorOf(int rank, int64_t attempt) override {
    return saved_->FirstErrorOf(rank, attempt);
  }
  bool Wait(absl::Duration /*duration*/) override { return false; }

 private:
  const std::unique_ptr<EvidenceSource> saved_;
  const bool forgets_;
};

TEST(SlowedMachineTest, TheMachineIsNamedAndNotTheStage) {
  SlowedMachine source(false);
  const auto diagnosis = DiagnoseJob(&source, {.num_steps = 20});
  ASSERT_TRUE(diagnosis.ok()) << diagnosis.status();
  EXPECT_EQ(diagnosis->findings.cause, "slow_machine") << diagnosis->findings.verdict;
  EXPECT_EQ(diagnosis->node, "n1");
}

// `status` reads few steps at first.
TEST(SlowedMachineTest, StatusNamesTheMachineToo) {
  SlowedMachine source(false);
  EXPECT_THAT(BriefVerdict(&source, source.Job().value()),
              testing::StartsWith("slow machine: 2 ranks of node n1 compute "));
}

// Both stages have two layers. The last one has the output matrix as well, which is small.
TEST(SlowedMachineTest, WithoutAnyNormalStepNobodyIsNamedAndTheLayersAreNotBlamed) {
  SlowedMachine source(true);
  const auto diagnosis = DiagnoseJob(&source, {.num_steps = 20});
  ASSERT_TRUE(diagnosis.ok()) << diagnosis.status();
  EXPECT_EQ(diagnosis->findings.cause, "slower_stage");
  EXPECT_EQ(diagnosis->node, "");
  EXPECT_THAT(diagnosis->findings.verdict, testing::HasSubstr("by the plan it has 1.1"));
  EXPECT_THAT(testing::PrintToString(diagnosis->findings.advice),
              testing::Not(testing::HasSubstr("fewer layers")));
}

}  // namespace
}  // namespace megascale::cli
