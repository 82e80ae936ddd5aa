// Diagnoses that are made early, when the driver cannot know yet that a process has stopped.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "cli/diagnosis/diagnose_job.h"
#include "cli/diagnosis/evidence_source.h"
#include "proto/control.pb.h"
#include "tests/e2e/cluster.h"

namespace megascale::cli {
namespace {

using control::v1::StreamSpansResponse;

// A recording of a job whose link is cut, as it would have looked when the job had stood still for
// `stood_seconds`.
class EarlyLook final : public EvidenceSource {
 public:
  explicit EarlyLook(double stood_seconds)
      : saved_(SavedEvidence(e2e::Runfile("tests/diagnose/recorded/1-link_down.gz")).value()),
        stood_seconds_(stood_seconds) {}

  absl::StatusOr<control::v1::Job> Job() override {
    absl::StatusOr<control::v1::Job> job = saved_->Job();
    if (!job.ok()) return job;
    for (auto& rank : *job->mutable_ranks()) {
      const bool is_stopped = rank.status().rank() == stopped_rank && waited_ > 0;
      rank.mutable_status()->set_alive_age_seconds(is_stopped ? 1.9 : 0.2);
    }
    return job;
  }
  control::v1::GetClusterResponse Cluster() override { return saved_->Cluster(); }
  absl::Status Spans(int64_t first_step,
                     const std::function<void(const StreamSpansResponse&)>& add) override {
    return saved_->Spans(first_step, [&](StreamSpansResponse response) {
      int64_t newest = 0;
      for (const auto& span : response.spans()) {
        newest = std::max({newest, span.begin_nanos(), span.end_nanos()});
      }
      response.set_read_nanos(newest + static_cast<int64_t>(1e9 * Stood()));
      add(response);
    });
  }
  std::vector<control::v1::StreamEvidenceResponse> Evidence(telemetry::v1::EvidenceKind kind,
                                                            absl::Span<const int> ranks) override {
    return saved_->Evidence(kind, ranks);
  }
  std::string FirstErrorOf(int rank, int64_t attempt) override {
    return saved_->FirstErrorOf(rank, attempt);
  }
  bool Wait(absl::Duration duration) override {
    if (!can_wait) return false;
    waited_ += absl::ToDoubleSeconds(duration);
    return true;
  }

  double waited() const { return waited_; }
  int stopped_rank = -1;  // known as silent after a wait
  bool can_wait = true;
  bool goes_on = false;  // after a wait

 private:
  double Stood() const { return goes_on && waited_ > 0 ? 0.1 : stood_seconds_ + waited_; }

  const std::unique_ptr<EvidenceSource> saved_;
  const double stood_seconds_;
  double waited_ = 0;
};

Diagnosis DiagnosisOf(EarlyLook* look, const DiagnoseOptions& options = {.num_steps = 10}) {
  absl::StatusOr<Diagnosis> diagnosis = DiagnoseJob(look, options);
  EXPECT_TRUE(diagnosis.ok()) << diagnosis.status();
  return diagnosis.ok() ? *std::move(diagnosis) : Diagnosis();
}

bool IsOfALink(const Diagnosis& diagnosis) {
  return diagnosis.findings.cause == "link" || diagnosis.findings.cause == "machine_link";
}

TEST(EarlyLookTest, ALinkIsNamedAfterAStoppedProcessWouldBeKnown) {
  EarlyLook early(1.2);
  EXPECT_TRUE(IsOfALink(DiagnosisOf(&early)));
  EXPECT_NEAR(1.2 + early.waited(), 2.8, 0.01);
  EarlyLook late(4);
  EXPECT_TRUE(IsOfALink(DiagnosisOf(&late)));
  EXPECT_EQ(late.waited(), 0);
}

// Its peers saw no byte move, as if the link to it were cut.
TEST(EarlyLookTest, AProcessThatBecomesSilentIsNamedInsteadOfTheLinkToIt) {
  EarlyLook reference(4);
  const int at_its_end = DiagnosisOf(&reference).rank_on_node;
  ASSERT_GE(at_its_end, 0);
  EarlyLook early(1.2);
  early.stopped_rank = at_its_end;
  const Diagnosis diagnosis = DiagnosisOf(&early);
  EXPECT_FALSE(IsOfALink(diagnosis)) << diagnosis.findings.verdict;
  EXPECT_EQ(diagnosis.rank, at_its_end) << diagnosis.findings.verdict;
}

// As that of `status`, or one of saved evidence.
TEST(EarlyLookTest, ALookThatCannotWaitNamesNobodyYet) {
  const DiagnoseOptions brief = {.num_steps = 10, .is_brief = true};
  EarlyLook shown(1.2);
  EarlyLook saved(1.2);
  saved.can_wait = false;
  for (const Diagnosis& diagnosis : {DiagnosisOf(&shown, brief), DiagnosisOf(&saved)}) {
    EXPECT_EQ(diagnosis.findings.cause, "unknown");
    EXPECT_EQ(diagnosis.rank, -1);
    EXPECT_EQ(diagnosis.node, "");
    EXPECT_EQ(diagnosis.peer_node, "");
  }
  EXPECT_EQ(shown.waited(), 0);
  EarlyLook late(4);
  EXPECT_TRUE(IsOfALink(DiagnosisOf(&late, brief)));
}

// The job goes on while it is waited for: what its ranks did before tells nothing any more.
TEST(EarlyLookTest, AJobThatGoesOnIsNotStuck) {
  EarlyLook early(1.2);
  early.goes_on = true;
  const Diagnosis diagnosis = DiagnosisOf(&early);
  EXPECT_GT(early.waited(), 0);
  EXPECT_FALSE(IsOfALink(diagnosis)) << diagnosis.findings.verdict;
  EXPECT_NE(diagnosis.findings.verdict.substr(0, 5), "stuck") << diagnosis.findings.verdict;
}

}  // namespace
}  // namespace megascale::cli
