#include "controlplane/driver/relay/suspect.h"

#include <gtest/gtest.h>

#include "controlplane/trace/testing/test_spans.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;

// Four ranks on two nodes, which have completed 8 steps and stand still in the ninth: `culprit_`
// has begun its first backward pass and does not end it.
class SuspectTest : public ::testing::Test {
 protected:
  SuspectTest() {
    job_.set_job_id("j");
    job_.set_attempt(2);
    job_.set_state(control::JOB_STATE_RUNNING);
    job_.set_last_step(8);
    *job_.mutable_spec() = trace::TestSpec();
    for (int rank = 0; rank < 4; ++rank) {
      job_.add_ranks()->set_node_id(rank < 2 ? "n0" : "n1");
      job_.mutable_ranks(rank)->mutable_status()->set_rank(rank);
    }
  }

  absl::StatusOr<control::Suspicion> Find() {
    SpanStreamPorts ports;
    ports.job = [this] { return job_; };
    ports.cluster = [] { return control::GetClusterResponse(); };
    ports.fetch = [this](const std::string&, const agent::FetchSpans& fetch) {
      return Fetch(fetch);
    };
    ports.now = [] { return absl::Seconds(100); };
    return FindSuspect(job_, ports);
  }

  absl::StatusOr<agent::SpanChunk> Fetch(const agent::FetchSpans& fetch) {
    agent::SpanChunk chunk;
    if (!fetch.clock_only() && fetch.rank() == unanswered_) {
      return absl::UnavailableError("its agent does not answer");
    }
    chunk.set_monotonic_nanos(trace::kFirstNanos + 30 * trace::kStepNanos);
    if (fetch.clock_only()) return chunk;
    const auto rank = static_cast<size_t>(fetch.rank());
    trace::AddPlannedSteps(plans_[rank], planned_.ranks[rank], 6, 8, chunk.mutable_spans());
    AddBegun(rank, chunk.mutable_spans());
    return chunk;
  }

  // All that could end before the culprit's pass has ended; of the rest, what could begin has
  // begun.
  void AddBegun(size_t rank, google::protobuf::RepeatedPtrField<telemetry::v1::Span>* spans) const {
    const int64_t at = trace::kFirstNanos + 8 * trace::kStepNanos;
    const auto& instructions = plans_[rank].instructions;
    const auto& planned = planned_.ranks[rank];
    for (size_t i = 0; i < instructions.size(); ++i) {
      const bool is_culprits = static_cast<int>(rank) == culprit_ &&
                               planned[i].ready <= StopTime() && planned[i].end > StopTime();
      const bool has_ended = planned[i].end <= StopTime();
      if (!has_ended && !is_culprits) continue;
      telemetry::v1::Span* span = spans->Add();
      span->set_begin_nanos(at + planned[i].ready);
      if (has_ended) span->set_end_nanos(at + planned[i].end);
      span->set_instruction(instructions[i].id.packed());
      span->set_step(9);
    }
  }

  // Inside the culprit's first backward pass.
  int64_t StopTime() const {
    const auto& instructions = plans_[static_cast<size_t>(culprit_)].instructions;
    for (size_t i = 0; i < instructions.size(); ++i) {
      const auto& time = planned_.ranks[static_cast<size_t>(culprit_)][i];
      if (instructions[i].kind() == plan::OpKind::kBackward) return (time.ready + time.end) / 2;
    }
    return 0;
  }

  const std::vector<plan::RankPlan> plans_ =
      trace::JobSpans::Create(trace::TestSpec()).value().plans();
  const timeline::StepTime planned_ = trace::PlannedTime(plans_);
  control::Job job_;
  int culprit_ = 3;
  int unanswered_ = -1;  // rank
};

TEST_F(SuspectTest, ASilentRankIsNamedOnTheMachineThatHoldsIt) {
  job_.mutable_ranks(3)->mutable_status()->set_alive_age_seconds(4);
  const auto suspicion = Find();
  ASSERT_TRUE(suspicion.ok()) << suspicion.status();
  EXPECT_EQ(suspicion->rank(), 3);
  EXPECT_EQ(suspicion->node_id(), "n1");
  EXPECT_EQ(suspicion->attempt(), 2);
  EXPECT_NE(suspicion->verdict().find("rank 3 on n1"), std::string::npos) << suspicion->verdict();
  EXPECT_EQ(suspicion->evidence(0), "its process shows no life");
}

// Its agent may be slow, or on its way back: that the driver knows nothing is no evidence.
TEST_F(SuspectTest, ARankWhoseAgentDoesNotAnswerIsNoSuspect) {
  unanswered_ = 3;
  EXPECT_EQ(Find().status().code(), absl::StatusCode::kNotFound) << Find().status();
}

TEST_F(SuspectTest, ARankThatSavesACheckpointIsNoSuspect) {
  job_.mutable_ranks(3)->mutable_status()->set_alive_age_seconds(4);
  job_.mutable_ranks(3)->mutable_status()->set_activity(telemetry::v1::ACTIVITY_WAIT_FOR_STORAGE);
  EXPECT_EQ(Find().status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SuspectTest, AJobThatHasEndedHasNoSuspect) {
  job_.mutable_ended_at();
  EXPECT_FALSE(Find().ok());
}

}  // namespace
}  // namespace megascale::driver
