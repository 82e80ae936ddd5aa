#include "controlplane/driver/relay/span_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// A fake cluster: each machine has its own clock. A question and its answer take the next duration
// of `trips`; the fraction `way_there` of it is the question's way.
class SpanStreamTest : public ::testing::Test {
 protected:
  SpanStreamTest() {
    AddNode("a", "m1");
    AddNode("b", "m1");
    AddNode("c", "m2");
    job_.set_job_id("j");
    job_.set_attempt(3);
    job_.set_state(control::JOB_STATE_RUNNING);
    for (const char* node : {"a", "b", "c"}) {
      control::RankView* rank = job_.add_ranks();
      rank->set_node_id(node);
      rank->mutable_status()->set_rank(job_.ranks_size() - 1);
    }
    ahead_["a"] = ahead_["b"] = absl::Seconds(50);
    ahead_["c"] = absl::Seconds(-70);
  }

  void AddNode(const std::string& node_id, const std::string& machine_id) {
    control::NodeView* node = cluster_.add_nodes();
    node->set_node_id(node_id);
    node->set_machine_id(machine_id);
  }

  absl::Status Run() {
    SpanStreamPorts ports;
    ports.job = [this] { return job_; };
    ports.cluster = [this] { return cluster_; };
    ports.fetch = [this](const std::string& node, const agent::FetchSpans& request) {
      return Fetch(node, request);
    };
    ports.emit = [this](const control::StreamSpansResponse& response) {
      emitted_.push_back(response);
      return emitted_.size() < readers_patience_;
    };
    ports.now = [this] { return now_; };
    control::StreamSpansRequest request;
    request.set_job_id("j");
    request.set_first_step(8);
    for (const int rank : ranks_) request.add_ranks(rank);
    return StreamSpans(request, ports);
  }

  absl::StatusOr<agent::SpanChunk> Fetch(const std::string& node,
                                         const agent::FetchSpans& request) {
    if (away_ == node) ++num_unanswered_;
    if (away_ == node) return absl::UnavailableError(absl::StrCat("node ", node, ": is away"));
    const absl::Duration trip = trips_[num_questions_++ % trips_.size()];
    agent::SpanChunk chunk;
    chunk.set_monotonic_nanos(absl::ToInt64Nanoseconds(now_ + way_there_ * trip + ahead_.at(node)));
    now_ += trip;
    if (request.clock_only()) return chunk;
    fetches_.push_back(
        absl::StrCat(node, " ", request.rank(), " ", request.attempt(), " ", request.first_step()));
    chunk.add_spans()->set_step(9);
    return chunk;
  }

  control::Job job_;
  control::GetClusterResponse cluster_;
  std::map<std::string, absl::Duration> ahead_;
  std::vector<absl::Duration> trips_ = {absl::Milliseconds(9), absl::Milliseconds(4),
                                        absl::Milliseconds(7)};
  double way_there_ = 0.5;
  absl::Duration now_ = absl::Seconds(1000);
  std::string away_;
  size_t readers_patience_ = 100;
  std::set<int> ranks_;
  size_t num_questions_ = 0;
  int num_unanswered_ = 0;
  std::vector<std::string> fetches_;
  std::vector<control::StreamSpansResponse> emitted_;
};

TEST_F(SpanStreamTest, AsksForEachRankWhereItRuns) {
  EXPECT_EQ(Run(), absl::OkStatus());
  EXPECT_EQ(fetches_, (std::vector<std::string>{"a 0 3 8", "b 1 3 8", "c 2 3 8"}));
  ASSERT_THAT(emitted_, SizeIs(3));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(emitted_[static_cast<size_t>(rank)].rank(), rank);
    EXPECT_EQ(emitted_[static_cast<size_t>(rank)].attempt(), 3);
    EXPECT_THAT(emitted_[static_cast<size_t>(rank)].spans(), SizeIs(1));
  }
  EXPECT_EQ(emitted_[2].node_id(), "c");
}

TEST_F(SpanStreamTest, ReadsOnlyTheRanksThatAreAskedFor) {
  ranks_ = {2, 7};
  EXPECT_EQ(Run(), absl::OkStatus());
  EXPECT_EQ(fetches_, std::vector<std::string>{"c 2 3 8"});
  ASSERT_THAT(emitted_, SizeIs(1));
  EXPECT_EQ(emitted_[0].rank(), 2);
}

TEST_F(SpanStreamTest, TheFastestAnswerOfAMachineTellsItsClock) {
  EXPECT_EQ(Run(), absl::OkStatus());
  ASSERT_THAT(emitted_, SizeIs(3));
  EXPECT_EQ(emitted_[0].clock_ahead_nanos(), 50'000'000'000);
  EXPECT_EQ(emitted_[0].clock_error_nanos(), 2'000'000);  // half of 4 ms
  EXPECT_EQ(emitted_[2].clock_ahead_nanos(), -70'000'000'000);
}

TEST_F(SpanStreamTest, AClockIsOffByNoMoreThanItsError) {
  for (const double way_there : {0.0, 0.3, 1.0}) {
    way_there_ = way_there;
    emitted_.clear();
    EXPECT_EQ(Run(), absl::OkStatus());
    const int64_t off = emitted_[2].clock_ahead_nanos() + 70'000'000'000;
    EXPECT_LE(std::abs(off), emitted_[2].clock_error_nanos()) << way_there;
  }
}

TEST_F(SpanStreamTest, NodesOfOneMachineShareItsClock) {
  ahead_["b"] += absl::Milliseconds(1);  // as if it had been measured a little off
  EXPECT_EQ(Run(), absl::OkStatus());
  EXPECT_EQ(emitted_[0].clock_ahead_nanos(), emitted_[1].clock_ahead_nanos());
  EXPECT_EQ(num_questions_, 2 * kClockQuestions + 3);
}

TEST_F(SpanStreamTest, NodesOfUnknownMachinesDoNot) {
  for (auto& node : *cluster_.mutable_nodes()) node.clear_machine_id();
  EXPECT_EQ(Run(), absl::OkStatus());
  EXPECT_EQ(num_questions_, 3 * kClockQuestions + 3);
}

TEST_F(SpanStreamTest, ARankThatCannotBeReadSaysWhyAndTheOthersAreRead) {
  away_ = "b";
  trips_ = {absl::ZeroDuration()};
  EXPECT_EQ(Run(), absl::OkStatus());
  ASSERT_THAT(emitted_, SizeIs(3));
  EXPECT_EQ(emitted_[1].error(), "node b: is away");
  EXPECT_EQ(emitted_[1].rank(), 1);
  EXPECT_THAT(emitted_[1].spans(), SizeIs(0));
  EXPECT_EQ(emitted_[2].error(), "");
}

TEST_F(SpanStreamTest, AnAgentThatDoesNotAnswerIsAskedOnceForAllItsRanks) {
  job_.mutable_ranks(2)->set_node_id("b");
  away_ = "b";
  EXPECT_EQ(Run(), absl::OkStatus());
  EXPECT_EQ(emitted_[1].error(), "node b: is away");
  EXPECT_EQ(emitted_[2].error(), "node b: is away");
  EXPECT_EQ(num_unanswered_, 1);
}

TEST_F(SpanStreamTest, AClockThatIsNoneIsAnError) {
  ahead_["c"] = absl::Seconds(-1e5);
  EXPECT_EQ(Run(), absl::OkStatus());
  EXPECT_THAT(emitted_[2].error(), HasSubstr("node c: says that its monotonic clock shows -"));
  EXPECT_EQ(emitted_[1].error(), "");
}

TEST_F(SpanStreamTest, AJobThatHasEndedOrNotBegunIsRefused) {
  job_.mutable_ended_at()->set_seconds(1);
  job_.set_reason("Completed");
  absl::Status status = Run();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("job j: has ended (Completed)"));
  job_.clear_ended_at();
  job_.set_attempt(0);
  job_.set_reason("WaitingForSlots");
  status = Run();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("begun (WaitingForSlots)"));
  EXPECT_TRUE(emitted_.empty());
}

TEST_F(SpanStreamTest, StopsWhenTheReaderIsGone) {
  readers_patience_ = 2;
  EXPECT_EQ(Run().code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(emitted_, SizeIs(2));
}

}  // namespace
}  // namespace megascale::driver
