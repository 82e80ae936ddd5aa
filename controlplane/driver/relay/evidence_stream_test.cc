#include "controlplane/driver/relay/evidence_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace megascale::driver {
namespace {

using megascale::control::v1::Job;
using megascale::control::v1::StreamEvidenceRequest;
using megascale::control::v1::StreamEvidenceResponse;
using megascale::telemetry::v1::EVIDENCE_KIND_EXCHANGES;
using megascale::telemetry::v1::EVIDENCE_KIND_METRICS;

class EvidenceStreamTest : public ::testing::Test {
 protected:
  EvidenceStreamTest() {
    job_.set_job_id("j");
    job_.set_attempt(2);
    for (int rank = 0; rank < 4; ++rank) {
      auto* view = job_.add_ranks();
      view->set_node_id(rank < 2 ? "n0" : "n1");
      view->mutable_status()->set_rank(rank);
    }
    ports_.job = [this] { return job_; };
    ports_.fetch = [this](
                       const std::string& node,
                       const auto& request) -> absl::StatusOr<megascale::agent::v1::EvidenceChunk> {
      const std::lock_guard<std::mutex> lock(mutex_);
      asked_.push_back(absl::StrCat(node, "/", request.rank(), "/", request.attempt()));
      if (node == away_) return absl::DeadlineExceededError("does not answer");
      megascale::agent::v1::EvidenceChunk chunk;
      chunk.mutable_evidence()->set_num_lost(request.rank());
      return chunk;
    };
    ports_.emit = [this](const StreamEvidenceResponse& response) {
      got_.push_back(response);
      return true;
    };
  }

  absl::Status Stream(megascale::telemetry::v1::EvidenceKind kind, std::vector<int> ranks = {}) {
    StreamEvidenceRequest request;
    request.set_kind(kind);
    for (const int rank : ranks) request.add_ranks(rank);
    const absl::Status read = StreamEvidence(request, ports_);
    std::sort(asked_.begin(), asked_.end());
    std::sort(got_.begin(), got_.end(),
              [](const auto& a, const auto& b) { return a.rank() < b.rank(); });
    return read;
  }

  // A job of one rank on each of so many nodes.
  void PlaceOn(int num_nodes) {
    job_.clear_ranks();
    for (int rank = 0; rank < num_nodes; ++rank) {
      job_.add_ranks()->set_node_id(absl::StrCat("n", rank));
      job_.mutable_ranks(rank)->mutable_status()->set_rank(rank);
    }
  }

  Job job_;
  std::string away_;
  std::mutex mutex_;
  EvidenceStreamPorts ports_;
  std::vector<std::string> asked_;
  std::vector<StreamEvidenceResponse> got_;
};

TEST_F(EvidenceStreamTest, EveryRankOfTheAttemptIsRead) {
  ASSERT_TRUE(Stream(EVIDENCE_KIND_EXCHANGES).ok());
  ASSERT_EQ(got_.size(), 4u);
  EXPECT_EQ(got_[3].rank(), 3);
  EXPECT_EQ(got_[3].node_id(), "n1");
  EXPECT_EQ(got_[3].evidence().num_lost(), 3);
  EXPECT_EQ(asked_[3], "n1/3/2");
}

TEST_F(EvidenceStreamTest, MetricsComeOnceFromEachNode) {
  ASSERT_TRUE(Stream(EVIDENCE_KIND_METRICS).ok());
  EXPECT_EQ(asked_, (std::vector<std::string>{"n0/0/2", "n1/2/2"}));
}

TEST_F(EvidenceStreamTest, OnlyTheRanksThatAreAskedForAreRead) {
  ASSERT_TRUE(Stream(EVIDENCE_KIND_EXCHANGES, {3, 1, 99}).ok());
  EXPECT_EQ(asked_, (std::vector<std::string>{"n0/1/2", "n1/3/2"}));
}

TEST_F(EvidenceStreamTest, RanksThatTheJobDoesNotHaveAreNotRead) {
  ASSERT_TRUE(Stream(EVIDENCE_KIND_EXCHANGES, {99}).ok());
  EXPECT_TRUE(asked_.empty());
  EXPECT_TRUE(got_.empty());
}

TEST_F(EvidenceStreamTest, ANodeThatDoesNotAnswerIsAskedOnce) {
  away_ = "n0";
  ASSERT_TRUE(Stream(EVIDENCE_KIND_EXCHANGES).ok());
  EXPECT_EQ(asked_.size(), 3u);
  ASSERT_EQ(got_.size(), 4u);
  EXPECT_EQ(got_[1].error(), "does not answer");
  EXPECT_EQ(got_[2].error(), "");
}

constexpr absl::Duration kDeadline = absl::Seconds(60);

// Counts what other threads do, and waits for it.
class Counter {
 public:
  int Add(int by = 1) {
    const std::lock_guard<std::mutex> lock(mutex_);
    value_ += by;
    most_ = std::max(most_, value_);
    changed_.notify_all();
    return value_;
  }
  int value() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return value_;
  }
  int most() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return most_;
  }
  // Returns whether the value has been as high within the deadline.
  bool Await(int value) const {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, absl::ToChronoSeconds(kDeadline),
                             [&] { return most_ >= value; });
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  int value_ = 0;
  int most_ = 0;
};

// Each silent node is silent until all the others have been read.
TEST_F(EvidenceStreamTest, NodesThatDoNotAnswerHoldUpNoOther) {
  constexpr int kNodes = 200;
  constexpr int kSilent = kNodesAskedAtOnce - 1;
  PlaceOn(kNodes);
  Counter read;
  ports_.fetch = [&](const std::string& node,
                     const auto& request) -> absl::StatusOr<megascale::agent::v1::EvidenceChunk> {
    if (request.rank() >= kSilent) return megascale::agent::v1::EvidenceChunk();
    EXPECT_TRUE(read.Await(kNodes - kSilent)) << node << " holds up others";
    return absl::DeadlineExceededError("did not answer");
  };
  ports_.emit = [&](const StreamEvidenceResponse& response) {
    got_.push_back(response);
    read.Add();
    return true;
  };
  ASSERT_TRUE(Stream(EVIDENCE_KIND_METRICS).ok());
  ASSERT_EQ(got_.size(), static_cast<size_t>(kNodes));
  for (const StreamEvidenceResponse& response : got_) {
    EXPECT_EQ(response.error().empty(), response.rank() >= kSilent) << response.rank();
  }
}

TEST_F(EvidenceStreamTest, ASlowReaderHasAnAnswerOfEachAskedNodeInMemoryAndNoMore) {
  PlaceOn(100);
  Counter asked;
  Counter at_once;
  ports_.fetch = [&](const std::string&,
                     const auto&) -> absl::StatusOr<megascale::agent::v1::EvidenceChunk> {
    asked.Add();
    at_once.Add();
    at_once.Await(kNodesAskedAtOnce);
    at_once.Add(-1);
    return megascale::agent::v1::EvidenceChunk();
  };
  ports_.emit = [&](const StreamEvidenceResponse& response) {
    EXPECT_LE(asked.value(), static_cast<int>(got_.size()) + kNodesAskedAtOnce);
    got_.push_back(response);
    return true;
  };
  ASSERT_TRUE(Stream(EVIDENCE_KIND_METRICS).ok());
  EXPECT_EQ(got_.size(), 100u);
  EXPECT_EQ(at_once.most(), kNodesAskedAtOnce);
}

TEST_F(EvidenceStreamTest, AReaderThatIsGoneEndsTheQuestions) {
  PlaceOn(500);
  ports_.emit = [&](const StreamEvidenceResponse& response) {
    got_.push_back(response);
    return false;
  };
  EXPECT_EQ(Stream(EVIDENCE_KIND_METRICS).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(got_.size(), 1u);
  EXPECT_LE(asked_.size(), 3u * kNodesAskedAtOnce);
}

TEST_F(EvidenceStreamTest, AgentsHearWhatOfTheMetricsIsWanted) {
  for (const bool only : {false, true}) {
    ports_.fetch = [&](const std::string&,
                       const auto& request) -> absl::StatusOr<megascale::agent::v1::EvidenceChunk> {
      EXPECT_EQ(request.only_ranks_of_job(), only);
      EXPECT_EQ(request.as_series(), !only);
      return megascale::agent::v1::EvidenceChunk();
    };
    StreamEvidenceRequest request;
    request.set_kind(EVIDENCE_KIND_METRICS);
    request.set_only_ranks_of_job(only);
    request.set_as_series(!only);
    EXPECT_TRUE(StreamEvidence(request, ports_).ok());
  }
}

TEST_F(EvidenceStreamTest, BadRequestsAreRefused) {
  EXPECT_EQ(Stream(megascale::telemetry::v1::EVIDENCE_KIND_UNSPECIFIED).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Stream(static_cast<megascale::telemetry::v1::EvidenceKind>(77)).code(),
            absl::StatusCode::kInvalidArgument);
  job_.mutable_ended_at();
  EXPECT_EQ(Stream(EVIDENCE_KIND_METRICS).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace megascale::driver
