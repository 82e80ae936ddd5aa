#include "controlplane/driver/relay/evidence_stream.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"

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
    return StreamEvidence(request, ports_);
  }

  Job job_;
  std::string away_;
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

TEST_F(EvidenceStreamTest, ANodeThatDoesNotAnswerIsAskedOnce) {
  away_ = "n0";
  ASSERT_TRUE(Stream(EVIDENCE_KIND_EXCHANGES).ok());
  EXPECT_EQ(asked_.size(), 3u);
  ASSERT_EQ(got_.size(), 4u);
  EXPECT_EQ(got_[1].error(), "does not answer");
  EXPECT_EQ(got_[2].error(), "");
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
