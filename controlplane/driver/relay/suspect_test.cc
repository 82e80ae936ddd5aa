#include "controlplane/driver/relay/suspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "controlplane/trace/testing/test_spans.h"
#include "runtime/plan/operation.h"
#include "runtime/simulate/step_time.h"
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
    return FindSuspect(job_, {0}, ports);
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

// --- jobs of any size ----------------------------------------------------------------------------

// A job whose ranks were computed: each step takes a second, and in a slow or stuck one the passes
// of `culprit` take longer. Rank r is on node r / 8.
class ComputedJob {
 public:
  ComputedJob(int num_replicas, int num_stages, int culprit) : culprit_(culprit) {
    job::v1::JobSpec spec = trace::TestSpec();
    spec.mutable_model()->set_num_hidden_layers(num_stages);
    spec.mutable_train()->set_global_batch_size(2 * num_replicas);
    spec.mutable_parallel()->set_data_parallel_size(num_replicas);
    spec.mutable_parallel()->set_pipeline_model_parallel_size(num_stages);
    plans_ = trace::JobSpans::Create(spec).value().plans();
    job_.set_job_id("j");
    job_.set_attempt(2);
    job_.set_state(control::JOB_STATE_RUNNING);
    *job_.mutable_spec() = spec;
    for (size_t rank = 0; rank < plans_.size(); ++rank) {
      job_.add_ranks()->set_node_id(absl::StrCat("n", rank / 8));
      job_.mutable_ranks(static_cast<int>(rank))
          ->mutable_status()
          ->set_rank(static_cast<int>(rank));
    }
  }

  // `pass_nanos`: of the culprit's passes; those of others take kPassNanos.
  timeline::StepTime StepWith(int64_t pass_nanos) const {
    const auto nanos_of = [&](const plan::RankPlan& plan, const plan::Instruction& i) {
      if (!plan::IsPass(i.kind())) return kPassNanos / 10;
      return plan.rank == culprit_ ? pass_nanos : kPassNanos;
    };
    return simulate::TimeStep(plans_, nanos_of).value();
  }
  // What a rank does while `step` stands, or is at its worst: the culprit computes.
  void ReportFrom(const timeline::StepTime& step) {
    for (size_t rank = 0; rank < plans_.size(); ++rank) {
      for (size_t i = 0; i < step.ranks[rank].size(); ++i) {
        const timeline::SpanTime& time = step.ranks[rank][i];
        if (time.ready < kForever && time.end >= kForever) {
          job_.mutable_ranks(static_cast<int>(rank))
              ->mutable_status()
              ->set_instruction(plans_[rank].instructions[i].id.packed());
        }
      }
    }
  }

  SpanStreamPorts Ports() {
    SpanStreamPorts ports;
    ports.cluster = [] { return control::GetClusterResponse(); };
    ports.fetch = [this](const std::string&, const agent::FetchSpans& fetch) {
      return Fetch(fetch);
    };
    ports.now = [] { return absl::Seconds(100); };
    return ports;
  }

  std::vector<int> Sample() const {
    std::vector<int> machines;
    for (size_t rank = 0; rank < plans_.size(); ++rank)
      machines.push_back(static_cast<int>(rank) / 8);
    return diagnose::SampleRanks(plans_.front().mesh, machines);
  }

  // An instruction that does not end takes longer than this, in nanoseconds.
  static constexpr int64_t kForever = int64_t{1} << 50;
  static constexpr int64_t kPassNanos = 10'000'000;

  control::Job job_;
  std::map<int64_t, timeline::StepTime> steps_;  // by number
  int num_fetched_ = 0;

 private:
  absl::StatusOr<agent::SpanChunk> Fetch(const agent::FetchSpans& fetch) {
    agent::SpanChunk chunk;
    chunk.set_monotonic_nanos(trace::kFirstNanos + 100 * trace::kStepNanos);
    if (fetch.clock_only()) return chunk;
    ++num_fetched_;
    const auto rank = static_cast<size_t>(fetch.rank());
    for (const auto& [number, step] : steps_) {
      if (number < fetch.first_step()) continue;
      const int64_t at = trace::kFirstNanos + number * trace::kStepNanos;
      for (size_t i = 0; i < step.ranks[rank].size(); ++i) {
        const timeline::SpanTime& time = step.ranks[rank][i];
        if (time.ready >= kForever) continue;
        telemetry::v1::Span* span = chunk.add_spans();
        span->set_begin_nanos(at + time.ready);
        if (time.end < kForever) span->set_end_nanos(at + time.end);
        span->set_instruction(plans_[rank].instructions[i].id.packed());
        span->set_step(number);
      }
    }
    return chunk;
  }

  const int culprit_;
  std::vector<plan::RankPlan> plans_;
};

control::Suspicion FindStuck(int num_replicas, int num_stages, int culprit, int* num_fetched) {
  ComputedJob job(num_replicas, num_stages, culprit);
  job.steps_[6] = job.steps_[7] = job.steps_[8] = job.StepWith(ComputedJob::kPassNanos);
  job.steps_[9] = job.StepWith(ComputedJob::kForever);
  job.job_.set_last_step(8);
  job.ReportFrom(job.steps_[9]);
  const auto suspicion = FindSuspect(job.job_, job.Sample(), job.Ports());
  EXPECT_TRUE(suspicion.ok()) << suspicion.status();
  *num_fetched = job.num_fetched_;
  return suspicion.value_or(control::Suspicion());
}

TEST(StuckJobTest, EveryRankOfASmallJobIsFoundFromTheSample) {
  for (int culprit = 0; culprit < 12; ++culprit) {
    int num_fetched = 0;
    const control::Suspicion suspicion = FindStuck(3, 4, culprit, &num_fetched);
    EXPECT_EQ(suspicion.rank(), culprit) << suspicion.verdict();
    EXPECT_EQ(suspicion.kind(), control::Suspicion::KIND_STALL);
  }
}

TEST(StuckJobTest, AJobOfManyRanksIsExaminedFromFewSpans) {
  for (const int culprit : {0, 599}) {
    int num_fetched = 0;
    const control::Suspicion suspicion = FindStuck(300, 2, culprit, &num_fetched);
    EXPECT_EQ(suspicion.rank(), culprit) << suspicion.verdict();
    EXPECT_EQ(suspicion.node_id(), absl::StrCat("n", culprit / 8));
    EXPECT_LE(num_fetched, kSuspectRanksRead);
  }
}

// --- slow jobs -----------------------------------------------------------------------------------

// Steps 1 to 20 are normal, and those up to 30 are slow.
class SlowJob {
 public:
  SlowJob(int num_replicas, int num_stages, int culprit, int64_t times_slower = 4)
      : job_(num_replicas, num_stages, culprit) {
    const timeline::StepTime normal = job_.StepWith(ComputedJob::kPassNanos);
    const timeline::StepTime slow = job_.StepWith(times_slower * ComputedJob::kPassNanos);
    for (int64_t step = 1; step <= 30; ++step) job_.steps_[step] = step <= 20 ? normal : slow;
    job_.job_.set_last_step(30);
    job_.ReportFrom(job_.StepWith(ComputedJob::kForever));
  }
  absl::StatusOr<control::Suspicion> Find() {
    return FindSlowSuspect(job_.job_, job_.Sample(),
                           {.reason = diagnose::TriggerReason::kHalfThroughput,
                            .rank = 0,
                            .usual_step_seconds = 1,
                            .step_seconds = 2.5,
                            .normal_step = 20},
                           job_.Ports());
  }
  ComputedJob job_;
};

TEST(SlowJobTest, ARankThatComputesLongerThanBeforeIsNamedWithItsEvidence) {
  SlowJob slow(6, 4, 9);
  const auto suspicion = slow.Find();
  ASSERT_TRUE(suspicion.ok()) << suspicion.status();
  EXPECT_EQ(suspicion->kind(), control::Suspicion::KIND_SLOW);
  EXPECT_EQ(suspicion->rank(), 9);
  EXPECT_EQ(suspicion->node_id(), "n1");
  EXPECT_EQ(suspicion->attempt(), 2);
  EXPECT_THAT(suspicion->verdict(), testing::StartsWith("rank 9 on n1 computes"));
  EXPECT_EQ(suspicion->evidence(0), "half throughput: a step takes 2.5 s, usually 1 s");
}

TEST(SlowJobTest, AJobThatIsNotSlowerHasNoSuspect) {
  EXPECT_EQ(SlowJob(6, 4, 9, 1).Find().status().code(), absl::StatusCode::kNotFound);
}

// What was slow from the beginning cannot be told from what its peers claim of themselves.
TEST(SlowJobTest, WithoutOlderStepsNoRankIsNamed) {
  SlowJob slow(6, 4, 9);
  for (int64_t step = 1; step <= 20; ++step) slow.job_.steps_.erase(step);
  const auto suspicion = slow.Find();
  ASSERT_TRUE(suspicion.ok()) << suspicion.status();
  EXPECT_THAT(suspicion->verdict(), testing::StartsWith("rank 9 on n1 computes"));
  EXPECT_EQ(suspicion->rank(), -1);
  EXPECT_EQ(suspicion->node_id(), "");
}

}  // namespace
}  // namespace megascale::driver
