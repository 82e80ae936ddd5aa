// Slow jobs of any size: who is suspected, and what it costs to find out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/relay/suspect.h"
#include "controlplane/driver/relay/testing/computed_job.h"
#include "runtime/plan/instruction.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;

// Steps 1 to 20 are normal, and those up to 30 are slow.
class SlowJob {
 public:
  SlowJob(const ComputedJob::Sizes& sizes, std::set<int> culprits, int64_t times_slower = 4)
      : computed(sizes, std::move(culprits)) {
    const auto normal = computed.StepWith(ComputedJob::kPassNanos);
    const auto slow = computed.StepWith(times_slower * ComputedJob::kPassNanos);
    for (int64_t step = 1; step <= 30; ++step) computed.steps[step] = step <= 20 ? normal : slow;
    computed.job.set_last_step(30);
    ports = {.spans = computed.Spans(), .metrics = computed.Metrics()};
  }
  absl::StatusOr<control::Suspicion> Find() {
    return FindSlowSuspect(computed.job, computed.Sample(),
                           {.reason = diagnose::TriggerReason::kHalfThroughput,
                            .rank = 0,
                            .usual_step_seconds = 1,
                            .step_seconds = 2.5,
                            .normal_step = 20},
                           ports);
  }

  ComputedJob computed;
  SlowPorts ports;
};

TEST(SlowJobTest, ARankThatComputesLongerThanBeforeIsNamedWithItsEvidence) {
  SlowJob slow({.replicas = 6, .stages = 4}, {9});
  const auto suspicion = slow.Find();
  ASSERT_TRUE(suspicion.ok()) << suspicion.status();
  EXPECT_EQ(suspicion->kind(), control::Suspicion::KIND_SLOW);
  EXPECT_EQ(suspicion->rank(), 9);
  EXPECT_EQ(suspicion->node_id(), "n1");
  EXPECT_EQ(suspicion->attempt(), 2);
  EXPECT_THAT(suspicion->verdict(), testing::StartsWith("rank 9 on n1 computes"));
  EXPECT_EQ(suspicion->evidence(0), "half throughput: a step takes 2.5 s, usually 1 s");
  EXPECT_EQ(slow.computed.num_metrics, 0) << "a small job is read whole";
}

TEST(SlowJobTest, AJobThatIsNotSlowerHasNoSuspect) {
  for (const int replicas : {6, 150}) {
    SlowJob slow({.replicas = replicas, .stages = 4}, {9}, 1);
    EXPECT_EQ(slow.Find().status().code(), absl::StatusCode::kNotFound);
  }
}

// What was slow from the beginning cannot be told from what its peers claim of themselves.
TEST(SlowJobTest, WithoutOlderStepsNoRankIsNamed) {
  SlowJob slow({.replicas = 6, .stages = 4}, {9});
  for (int64_t step = 1; step <= 20; ++step) slow.computed.steps.erase(step);
  const auto suspicion = slow.Find();
  ASSERT_TRUE(suspicion.ok()) << suspicion.status();
  EXPECT_THAT(suspicion->verdict(), testing::StartsWith("rank 9 on n1 computes"));
  EXPECT_EQ(suspicion->rank(), -1);
  EXPECT_EQ(suspicion->node_id(), "");
}

// The five newest steps decide. The older slow ones may be told, and name nobody.
TEST(SlowJobTest, AJobThatHasRecoveredHasNoSuspect) {
  SlowJob slow({.replicas = 6, .stages = 4}, {9});
  for (int64_t step = 31; step <= 36; ++step) slow.computed.steps[step] = slow.computed.steps[20];
  slow.computed.job.set_last_step(36);
  const auto suspicion = slow.Find();
  EXPECT_TRUE(!suspicion.ok() || suspicion->node_id().empty()) << suspicion->verdict();
}

// --- lies ----------------------------------------------------------------------------------------

// Places rank r on the machine `nodes[r]`.
void Place(const std::vector<std::string>& nodes, control::Job* job) {
  ASSERT_EQ(static_cast<int>(nodes.size()), job->ranks_size());
  for (int rank = 0; rank < job->ranks_size(); ++rank) {
    job->mutable_ranks(rank)->set_node_id(nodes[static_cast<size_t>(rank)]);
  }
}

// Returns how many times as long as in a normal step a rank claims to compute in a slow one.
using Claim = std::function<double(int rank, int64_t step)>;

// Makes the spans of ranks on n0 claim this of the steps in which the job is slow.
void LieOnFirstNode(const Claim& claim, SlowJob* slow) {
  slow->ports.spans.fetch = [honest = slow->ports.spans.fetch, claim](
                                const std::string& node, const agent::FetchSpans& fetch) {
    auto chunk = honest(node, fetch);
    if (node != "n0" || !chunk.ok()) return chunk;
    std::map<int64_t, int64_t> begin_of;
    for (const auto& span : chunk->spans()) {
      const auto [begin, is_new] = begin_of.try_emplace(span.step(), span.begin_nanos());
      begin->second = std::min(begin->second, span.begin_nanos());
    }
    for (auto& span : *chunk->mutable_spans()) {
      const auto id = plan::InstructionId::FromPacked(span.instruction());
      if (plan::NeedsPeers(id) || span.step() <= 20) continue;
      // An operation that begins too early counts as one without a delay.
      span.set_begin_nanos(begin_of.at(span.step()));
      span.set_end_nanos(span.begin_nanos() +
                         static_cast<int64_t>(claim(fetch.rank(), span.step()) *
                                              static_cast<double>(ComputedJob::kPassNanos)));
    }
    return chunk;
  };
}

// All have become four times slower. The ranks of n0 claim that one of them is idle, and that the
// others are as fast as before by turns: so half of them always are, and the median of no rank
// that works is low.
TEST(SlowLiarTest, ClaimsByTurnsMakeTheOnlyOtherMachineNoSuspect) {
  SlowJob slow({.replicas = 4, .stages = 1}, {0, 1, 2, 3});
  Place({"n0", "n0", "n0", "n1"}, &slow.computed.job);
  LieOnFirstNode(
      [](int rank, int64_t step) {
        if (rank == 0) return 0.0;
        if (step == 30) return 4.0;
        return (rank == 1) == (step < 28) ? 1.0 : 4.0;
      },
      &slow);
  const auto suspicion = slow.Find();
  EXPECT_TRUE(!suspicion.ok() || suspicion->node_id() != "n1") << suspicion->verdict();
}

// Whatever the ranks of one machine claim, no other machine becomes a suspect: the others have
// become slow alike, or not at all.
TEST(SlowLiarTest, SpansThatAnAgentMakesUpNameNoOtherMachine) {
  constexpr int kRanks = 6;
  const std::vector<std::vector<std::string>> placements = {{"n0", "n0", "n0", "n0", "n0", "n1"},
                                                            {"n0", "n0", "n0", "n1", "n1", "n1"},
                                                            {"n0", "n0", "n0", "n1", "n2", "n3"}};
  std::mt19937_64 random(11);
  int num_named = 0;
  for (int round = 0; round < 120; ++round) {
    const bool are_slow = random() % 2 == 0;
    SlowJob slow({.replicas = kRanks, .stages = 1},
                 are_slow ? std::set<int>{0, 1, 2, 3, 4, 5} : std::set<int>{}, are_slow ? 4 : 1);
    Place(placements[random() % placements.size()], &slow.computed.job);
    // A habit of each rank, which it leaves at times.
    std::map<int, std::vector<double>> habits;
    for (int rank = 0; rank < kRanks; ++rank) {
      for (int i = 0; i < 4; ++i) {
        habits[rank].push_back(std::vector<double>{0, 0.5, 1, 3.5, 4, 16}[random() % 6]);
      }
    }
    std::map<std::pair<int, int64_t>, double> claims;
    for (int rank = 0; rank < kRanks; ++rank) {
      for (int64_t step = 21; step <= 30; ++step) {
        claims[{rank, step}] = habits[rank][random() % 3 == 0 ? random() % 4 : 0];
      }
    }
    LieOnFirstNode([&](int rank, int64_t step) { return claims.at({rank, step}); }, &slow);
    const auto suspicion = slow.Find();
    if (!suspicion.ok() || suspicion->node_id().empty()) continue;
    ++num_named;
    EXPECT_EQ(suspicion->node_id(), "n0") << "round " << round << ": " << suspicion->verdict();
  }
  EXPECT_GT(num_named, 0) << "no lie was plausible";
}

// --- many ranks ----------------------------------------------------------------------------------

void ExpectFound(const ComputedJob::Sizes& sizes, int culprit) {
  SlowJob slow(sizes, {culprit});
  const auto suspicion = slow.Find();
  ASSERT_TRUE(suspicion.ok()) << "rank " << culprit << ": " << suspicion.status();
  EXPECT_EQ(suspicion->rank(), culprit) << suspicion->verdict();
  EXPECT_EQ(suspicion->node_id(), absl::StrCat("n", culprit / ComputedJob::kRanksOfNode));
  EXPECT_LE(slow.computed.num_fetched, kSuspectRanksRead);
  const int num_nodes =
      (slow.computed.job.ranks_size() + ComputedJob::kRanksOfNode - 1) / ComputedJob::kRanksOfNode;
  EXPECT_EQ(slow.computed.num_metrics, num_nodes) << "each machine is asked once";
  EXPECT_LE(slow.computed.metrics_bytes, 1000 * num_nodes) << "however long the job runs";
}

TEST(LargeSlowJobTest, EachStageOf600RanksIsSearched) {
  for (const int culprit : {0, 149, 150, 333, 599}) {
    ExpectFound({.replicas = 150, .stages = 4}, culprit);
  }
}

// The ranks of a tensor group compute longer alike, as far as samples show; spans tell them apart.
TEST(LargeSlowJobTest, ARankOfATensorGroupIsTold) {
  ExpectFound({.replicas = 75, .stages = 4, .tensor = 2}, 333);
}

TEST(LargeSlowJobTest, ARankOf12288IsFound) { ExpectFound({.replicas = 1536, .stages = 8}, 7777); }

TEST(LargeSlowJobTest, AMachineAllOfWhoseRanksAreSlowIsNamed) {
  SlowJob slow({.replicas = 150, .stages = 4}, {328, 329, 330, 331, 332, 333, 334, 335});
  const auto suspicion = slow.Find();
  ASSERT_TRUE(suspicion.ok()) << suspicion.status();
  EXPECT_EQ(suspicion->node_id(), "n41");
  EXPECT_THAT(suspicion->verdict(), testing::StartsWith("8 ranks on n41 compute"));
}

// A machine that says of itself that it is slow, and whose spans do not show it, is not suspected;
// what it says of other machines is ignored.
TEST(LargeSlowJobTest, MetricsThatAMachineMakesUpMakeNobodyASuspect) {
  for (const bool has_culprit : {true, false}) {
    SlowJob slow({.replicas = 150, .stages = 4}, {333}, has_culprit ? 4 : 1);
    slow.ports.metrics.fetch = [honest = slow.ports.metrics.fetch](
                                   const std::string& node, const agent::FetchEvidence& fetch) {
      auto chunk = honest(node, fetch);
      if (node != "n3" || !chunk.ok()) return chunk;
      auto* work = chunk->mutable_evidence()->mutable_work();
      work->Clear();
      for (const int rank : {24, 24, 25, 100, 333, 599, 600, -1, 1 << 30}) {
        auto* shown = work->Add();
        shown->set_rank(rank);
        for (const double seconds : {1.0, 1e8}) {
          shown->add_ranges()->set_num_steps(1);
          shown->mutable_ranges()->rbegin()->set_compute_seconds(seconds);
        }
      }
      work->Add()->add_ranges()->set_num_steps(-5);
      return chunk;
    };
    const auto suspicion = slow.Find();
    EXPECT_EQ(suspicion.ok(), has_culprit) << suspicion.status();
    EXPECT_EQ(suspicion.ok() ? suspicion->rank() : 333, 333);
    EXPECT_LE(slow.computed.num_fetched, kSuspectRanksRead);
  }
}

TEST(LargeSlowJobTest, WithoutMetricsTheRanksThatWaitLeadToTheSlowOne) {
  SlowJob slow({.replicas = 150, .stages = 4}, {333});
  slow.computed.ReportFrom(slow.computed.StepWith(ComputedJob::kForever));
  slow.ports.metrics.fetch = [](const std::string&, const agent::FetchEvidence&) {
    return absl::StatusOr<agent::EvidenceChunk>(absl::UnavailableError("its agent is away"));
  };
  const auto suspicion = slow.Find();
  ASSERT_TRUE(suspicion.ok()) << suspicion.status();
  EXPECT_EQ(suspicion->rank(), 333) << suspicion->verdict();
  EXPECT_LE(slow.computed.num_fetched, kSuspectRanksRead);
}

// An agent of an older version sends its samples; here of another job, too, whose ranks have become
// slow on all machines but that of the culprit.
TEST(LargeSlowJobTest, SamplesOfAnOlderAgentAreSummedUpWithoutThoseOfOtherJobs) {
  SlowJob slow({.replicas = 150, .stages = 4}, {333});
  slow.ports.metrics.fetch = [&slow](const std::string& node, const agent::FetchEvidence&) {
    agent::EvidenceChunk chunk = slow.computed.SamplesOf(node);
    for (auto& sample : *chunk.mutable_evidence()->mutable_samples()) {
      telemetry::v1::ProcessSample other = sample.ranks(0);
      other.set_job_id("k");
      other.set_compute_share(other.step() <= 20 || node == "n41" ? 0.01 : 1);
      *sample.add_ranks() = other;
    }
    return chunk;
  };
  const auto suspicion = slow.Find();
  ASSERT_TRUE(suspicion.ok()) << suspicion.status();
  EXPECT_EQ(suspicion->rank(), 333) << suspicion->verdict();
}

}  // namespace
}  // namespace megascale::driver
