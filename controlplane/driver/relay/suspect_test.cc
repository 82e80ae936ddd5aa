#include "controlplane/driver/relay/suspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/relay/testing/computed_job.h"
#include "controlplane/trace/testing/test_spans.h"
#include "runtime/diagnose/stall.h"
#include "runtime/plan/operation.h"
#include "runtime/simulate/step_time.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;

using diagnose::InstructionState;

// A job that has completed 8 steps and stands still in the ninth: `culprit_` has begun its first
// backward pass and does not end it, and the others have gone on until they wait. By default four
// ranks on two nodes.
class SuspectTest : public ::testing::Test {
 protected:
  SuspectTest() { Use(trace::TestSpec(), {"n0", "n0", "n1", "n1"}); }

  void Use(const job::v1::JobSpec& spec, const std::vector<std::string>& nodes) {
    job_.Clear();
    job_.set_job_id("j");
    job_.set_attempt(2);
    job_.set_state(control::JOB_STATE_RUNNING);
    job_.set_last_step(8);
    *job_.mutable_spec() = spec;
    for (size_t rank = 0; rank < nodes.size(); ++rank) {
      control::RankView* view = job_.add_ranks();
      view->set_node_id(nodes[rank]);
      view->mutable_status()->set_rank(static_cast<int>(rank));
    }
    plans_ = trace::JobSpans::Create(spec).value().plans();
    planned_ = trace::PlannedTime(plans_);
    culprit_ = static_cast<int>(nodes.size()) - 1;
  }

  absl::StatusOr<control::Suspicion> Find() {
    states_ = Blocked();
    SpanStreamPorts ports;
    ports.job = [this] { return job_; };
    ports.cluster = [] { return control::GetClusterResponse(); };
    ports.fetch = [this](const std::string& node, const agent::FetchSpans& fetch) {
      return Fetch(node, fetch);
    };
    ports.now = [] { return absl::Seconds(100); };
    return FindSuspect(job_, {0}, ports);
  }

  absl::StatusOr<agent::SpanChunk> Fetch(const std::string& node, const agent::FetchSpans& fetch) {
    agent::SpanChunk chunk;
    if (!fetch.clock_only() && fetch.rank() == unanswered_) {
      return absl::UnavailableError("its agent does not answer");
    }
    chunk.set_monotonic_nanos(kStopNanos + quiet_nanos_);
    if (fetch.clock_only()) return chunk;
    if (node == liar_) {
      lie_(fetch.rank(), chunk.mutable_spans());
      return chunk;
    }
    const auto rank = static_cast<size_t>(fetch.rank());
    trace::AddPlannedSteps(plans_[rank], planned_.ranks[rank], fetch.first_step(), 8,
                           chunk.mutable_spans());
    AddStates(rank, 9, states_[rank], chunk.mutable_spans());
    return chunk;
  }

  void AddStates(size_t rank, int64_t step, const std::vector<InstructionState>& states,
                 google::protobuf::RepeatedPtrField<telemetry::v1::Span>* spans) const {
    for (size_t i = 0; i < states.size(); ++i) {
      if (states[i] == InstructionState::kNotBegun) continue;
      telemetry::v1::Span* span = spans->Add();
      span->set_begin_nanos(kStopNanos - 2);
      if (states[i] == InstructionState::kEnded) span->set_end_nanos(kStopNanos - 1);
      span->set_instruction(plans_[rank].instructions[i].id.packed());
      span->set_step(step);
    }
  }

  // Returns where each rank stands once it waits for the culprit.
  std::vector<std::vector<InstructionState>> Blocked() const {
    std::vector<std::vector<InstructionState>> states;
    std::map<timeline::MeetingName, std::vector<InstructionState*>> meetings;
    for (const plan::RankPlan& plan : plans_) {
      states.emplace_back(plan.instructions.size(), InstructionState::kNotBegun);
      for (size_t i = 0; i < plan.instructions.size(); ++i) {
        if (plan.instructions[i].group == plan::GroupKind::kNone) continue;
        meetings[timeline::MeetingOf(plan, plan.instructions[i])].push_back(&states.back()[i]);
      }
    }
    while (GoOn(meetings, &states)) {
    }
    return states;
  }

  bool GoOn(const std::map<timeline::MeetingName, std::vector<InstructionState*>>& meetings,
            std::vector<std::vector<InstructionState>>* states) const {
    bool has_changed = false;
    for (const plan::RankPlan& plan : plans_) {
      std::vector<InstructionState>& own = (*states)[static_cast<size_t>(plan.rank)];
      std::set<plan::StreamKind> blocked;
      for (size_t i = 0; i < own.size(); ++i) {
        const plan::Instruction& instruction = plan.instructions[i];
        if (own[i] == InstructionState::kEnded) continue;
        bool can_begin = blocked.insert(instruction.stream).second;
        for (const int earlier : instruction.depends_on) {
          can_begin = can_begin && own[static_cast<size_t>(earlier)] == InstructionState::kEnded;
        }
        if (!can_begin) continue;
        has_changed |= own[i] == InstructionState::kNotBegun;
        own[i] = InstructionState::kRuns;
        if (plan.rank == culprit_ && instruction.kind() == plan::OpKind::kBackward) continue;
        bool have_all_come = true;
        if (instruction.group != plan::GroupKind::kNone) {
          for (const InstructionState* member :
               meetings.at(timeline::MeetingOf(plan, instruction))) {
            have_all_come = have_all_come && *member != InstructionState::kNotBegun;
          }
        }
        if (!have_all_come ||
            (plan.rank == behind_ && instruction.group != plan::GroupKind::kNone)) {
          continue;
        }
        own[i] = InstructionState::kEnded;
        has_changed = true;
        blocked.erase(instruction.stream);
      }
    }
    return has_changed;
  }

  static constexpr int64_t kStopNanos = trace::kFirstNanos + 8 * trace::kStepNanos + 100;
  std::vector<plan::RankPlan> plans_;
  timeline::StepTime planned_;
  control::Job job_;
  int culprit_ = 3;
  int behind_ = -1;      // this rank does not leave the first collective
  int unanswered_ = -1;  // rank
  int64_t quiet_nanos_ = 20'000'000'000;
  std::vector<std::vector<InstructionState>> states_;  // by rank and instruction
  // The agent of this node sends what `lie_` makes up for its ranks.
  std::string liar_;
  std::function<void(int rank, google::protobuf::RepeatedPtrField<telemetry::v1::Span>*)> lie_;
};

job::v1::JobSpec FourReplicas() {
  job::v1::JobSpec spec = trace::TestSpec();
  spec.mutable_parallel()->set_data_parallel_size(4);
  spec.mutable_parallel()->set_pipeline_model_parallel_size(1);
  return spec;
}

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

TEST_F(SuspectTest, ARankThatSavesACheckpointWhenOneIsDueIsNoSuspect) {
  job_.mutable_spec()->mutable_checkpoint()->set_interval(4);
  job_.mutable_ranks(3)->mutable_status()->set_alive_age_seconds(4);
  job_.mutable_ranks(3)->mutable_status()->set_activity(telemetry::v1::ACTIVITY_WAIT_FOR_STORAGE);
  for (const int64_t step : {8, 9}) {
    job_.mutable_ranks(3)->mutable_status()->set_step(step);
    EXPECT_EQ(Find().ok(), step == 9) << "only it says so, and steps 4 and 8 are saved";
  }
}

TEST_F(SuspectTest, ARankThatSavesACheckpointWithMostOthersIsNoSuspect) {
  job_.mutable_spec()->mutable_checkpoint()->set_interval(100);
  job_.mutable_ranks(3)->mutable_status()->set_alive_age_seconds(4);
  for (const int rank : {3, 1, 0}) {
    EXPECT_TRUE(Find().ok()) << rank;
    job_.mutable_ranks(rank)->mutable_status()->set_phase(telemetry::v1::PHASE_CHECKPOINT);
  }
  EXPECT_EQ(Find().status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SuspectTest, ARankThatDoesNotEndItsPassIsNamedOnceItIsQuiet) {
  const auto suspicion = Find();
  ASSERT_TRUE(suspicion.ok()) << suspicion.status();
  EXPECT_EQ(suspicion->rank(), 3);
  // In a job that is slow and not stuck, some rank computes at any time.
  quiet_nanos_ = 1'000'000'000;
  EXPECT_EQ(Find().status().code(), absl::StatusCode::kNotFound);
}

// Ranks whose agent holds all members of a collective but one: they say that it has ended for
// them, and that they wait in the next one.
TEST_F(SuspectTest, AnAgentThatLiesAboutACollectiveDoesNotMakeTheOtherMachineASuspect) {
  Use(FourReplicas(), {"n0", "n0", "n0", "n1"});
  culprit_ = 0;
  liar_ = "n0";
  lie_ = [this](int rank, auto* spans) {
    const plan::RankPlan& plan = plans_[static_cast<size_t>(rank)];
    const std::vector<InstructionState>& honest = states_[3];
    std::vector<InstructionState> told = honest;
    for (size_t i = 0; i < told.size(); ++i) {
      if (honest[i] != InstructionState::kRuns) continue;
      ASSERT_NE(plan.instructions[i].group, plan::GroupKind::kNone) << "n1 waits";
      told[i] = InstructionState::kEnded;
    }
    // Those that may now begin wait for the honest rank.
    for (size_t i = 0; i < told.size(); ++i) {
      if (told[i] == InstructionState::kNotBegun) told[i] = InstructionState::kRuns;
    }
    AddStates(static_cast<size_t>(rank), 9, told, spans);
  };
  EXPECT_EQ(Find().status().code(), absl::StatusCode::kNotFound);
}

// The ranks of two machines say that a collective has ended for them: they are believed.
TEST_F(SuspectTest, ARankThatTwoMachinesSayIsBehindIsNamed) {
  for (const std::string first : {"n2", "n0"}) {
    Use(FourReplicas(), {first, "n2", "n2", "n1"});
    culprit_ = -1;
    behind_ = 3;
    const auto suspicion = Find();
    EXPECT_EQ(suspicion.ok(), first == "n0") << suspicion.status();
    if (!suspicion.ok()) continue;
    EXPECT_EQ(suspicion->node_id(), "n1");
  }
}

// Whatever an agent makes up, only its own machine can become a suspect: the ranks of the other
// one wait for it.
TEST_F(SuspectTest, SpansThatAnAgentMakesUpNameNoOtherMachine) {
  std::mt19937_64 random(7);
  const auto is_named = [&](int round) {
    liar_ = "n0";
    lie_ = [&](int rank, auto* spans) {
      const auto& instructions = plans_[static_cast<size_t>(rank)].instructions;
      const auto num_spans = random() % (2 * instructions.size() + 1);
      const int64_t steps[] = {6, 7, 8, 9, 9, 9, 10, 11, 50, 100, 101, int64_t{1} << 62, -4};
      const int64_t step = steps[random() % 13];
      for (uint64_t i = 0; i < num_spans; ++i) {
        telemetry::v1::Span* span = spans->Add();
        // Mostly in order, so that positions are plausible.
        const size_t index =
            random() % 4 > 0 ? i % instructions.size() : random() % instructions.size();
        span->set_instruction(random() % 50 > 0 ? instructions[index].id.packed() : random());
        span->set_step(random() % 8 > 0 ? step : steps[random() % 13]);
        span->set_begin_nanos(kStopNanos - static_cast<int64_t>(random() % 1000));
        if (random() % 8 > 0) span->set_end_nanos(kStopNanos);
      }
    };
    const auto suspicion = Find();
    if (!suspicion.ok()) return false;
    EXPECT_EQ(suspicion->node_id(), "n0") << "round " << round << ": " << suspicion->verdict();
    return true;
  };
  int num_named = 0;
  for (int round = 0; round < 150; ++round) {
    Use(trace::TestSpec(), {"n0", "n1", "n0", "n1"});
    culprit_ = 0;
    num_named += is_named(round) ? 1 : 0;
    Use(FourReplicas(), {"n0", "n0", "n0", "n1"});
    culprit_ = 1;
    num_named += is_named(round) ? 1 : 0;
  }
  EXPECT_GT(num_named, 0) << "no lie was plausible";
}

TEST_F(SuspectTest, AJobThatHasEndedHasNoSuspect) {
  job_.mutable_ended_at();
  EXPECT_FALSE(Find().ok());
}

// --- jobs of any size ----------------------------------------------------------------------------

// The job stands still in step 9.
void StandStill(ComputedJob* job) {
  job->steps[6] = job->steps[7] = job->steps[8] = job->StepWith(ComputedJob::kPassNanos);
  job->steps[9] = job->StepWith(ComputedJob::kForever);
  job->job.set_last_step(8);
  job->ReportFrom(job->steps[9]);
}

control::Suspicion FindStuck(int num_replicas, int num_stages, int culprit, int* num_fetched) {
  ComputedJob job({.replicas = num_replicas, .stages = num_stages}, {culprit});
  StandStill(&job);
  const auto suspicion = FindSuspect(job.job, job.Sample(), job.Spans());
  EXPECT_TRUE(suspicion.ok()) << suspicion.status();
  *num_fetched = job.num_fetched;
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

TEST(StuckJobTest, ANodeThatDoesNotAnswerIsAskedOnce) {
  ComputedJob job({.replicas = 6, .stages = 4}, {9});
  StandStill(&job);
  SpanStreamPorts ports = job.Spans();
  int num_asked = 0;
  ports.fetch = [&num_asked, fetch = ports.fetch](
                    const std::string& node,
                    const agent::FetchSpans& request) -> absl::StatusOr<agent::SpanChunk> {
    if (node != "n2") return fetch(node, request);
    ++num_asked;
    return absl::UnavailableError("its agent does not answer");
  };
  FindSuspect(job.job, job.Sample(), ports).status().IgnoreError();
  EXPECT_EQ(num_asked, 1);
}

}  // namespace
}  // namespace megascale::driver
