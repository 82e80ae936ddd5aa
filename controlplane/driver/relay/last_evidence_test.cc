#include "controlplane/driver/relay/last_evidence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/storage/testing/simulated_disk.h"
#include "controlplane/trace/testing/test_spans.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;
namespace telemetry = megascale::telemetry::v1;

// Rank 2 of four on two nodes failed in step 9. `spans_of_rank`: how much each rank shows.
class LastEvidenceTest : public ::testing::Test {
 protected:
  LastEvidenceTest() {
    job_.set_job_id("j");
    job_.set_directory("/state/jobs/j");
    job_.set_state(control::JOB_STATE_FAILED);
    job_.set_attempt(2);
    job_.set_last_step(8);
    job_.mutable_ended_at()->set_seconds(100);
    job_.mutable_culprit()->set_rank(2);
    job_.mutable_culprit()->set_attempt(2);
    *job_.mutable_spec() = trace::TestSpec();
    for (int rank = 0; rank < 4; ++rank) {
      job_.add_ranks()->set_node_id(rank < 2 ? "n0" : "n1");
      job_.mutable_ranks(rank)->mutable_status()->set_rank(rank);
    }
    spans_.job = evidence_.job = [this] { return job_; };
    spans_.cluster = evidence_.cluster = [] { return control::GetClusterResponse(); };
    spans_.now = [] { return absl::Seconds(100); };
    spans_.fetch = [this](const std::string& node,
                          const agent::FetchSpans& fetch) -> absl::StatusOr<agent::SpanChunk> {
      if (node == away_) return absl::UnavailableError("is away");
      agent::SpanChunk chunk;
      for (int i = 0; i < spans_of_rank_ && !fetch.clock_only(); ++i) {
        telemetry::Span* span = chunk.add_spans();
        // From the first step that is asked for on.
        span->set_step(step_ > 0 ? step_ : fetch.first_step() + i % (10 - fetch.first_step()));
        if (node == "n0" && i < static_cast<int>(odd_steps_.size())) span->set_step(odd_steps_[i]);
        // Random numbers cannot be packed.
        span->set_begin_nanos(static_cast<int64_t>(i + 1) * 2654435761 % 1'000'003'777);
        span->set_instruction(static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15);
      }
      return chunk;
    };
    evidence_.fetch =
        [this](const std::string& node,
               const agent::FetchEvidence& fetch) -> absl::StatusOr<agent::EvidenceChunk> {
      const std::lock_guard<std::mutex> lock(mutex_);  // several nodes are asked at once
      asked_.push_back(absl::StrCat(node, "/", static_cast<int>(fetch.kind()), "/", fetch.rank()));
      agent::EvidenceChunk chunk;
      chunk.mutable_evidence()->set_num_lost(fetch.rank());
      return chunk;
    };
  }

  absl::StatusOr<trace::EvidenceFile> Keep() {
    const auto content = CollectLastEvidence(job_, spans_, evidence_, options_);
    if (!content.ok()) return content.status();
    EXPECT_LE(content->size(), options_.bytes_max);
    EXPECT_TRUE(disk_.WriteSoon(LastEvidencePath(job_), *content).ok());
    return ReadLastEvidence(job_, &disk_);
  }

  control::Job job_;
  SpanStreamPorts spans_;
  EvidenceStreamPorts evidence_;
  std::mutex mutex_;
  std::vector<std::string> asked_;  // guarded by mutex_
  std::string away_;
  int spans_of_rank_ = 10;
  int64_t step_ = 9;                // of all spans; 0: they go through the steps that are asked for
  std::vector<int64_t> odd_steps_;  // of the first spans of ranks on n0
  CollectOptions options_;
  SimulatedDisk disk_;
};

TEST_F(LastEvidenceTest, SpansCallsAndTheCulpritsMachineAreKept) {
  const auto file = Keep();
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->job.job_id(), "j");
  ASSERT_EQ(file->spans.size(), 4u);
  EXPECT_EQ(file->spans[3].spans_size(), 10);
  EXPECT_EQ(file->evidence.at(telemetry::EVIDENCE_KIND_EXCHANGES).size(), 4u);
  EXPECT_EQ(file->evidence.at(telemetry::EVIDENCE_KIND_METRICS).size(), 1u);
  EXPECT_EQ(asked_.back(),
            absl::StrCat("n1/", static_cast<int>(telemetry::EVIDENCE_KIND_METRICS), "/2"));
}

TEST_F(LastEvidenceTest, OfAJobThatWasCancelledSpansAndCallsAreKept) {
  job_.set_state(control::JOB_STATE_CANCELLED);
  job_.clear_culprit();
  const auto file = Keep();
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->spans.size(), 4u);
  EXPECT_EQ(file->spans[3].spans_size(), 10);
  EXPECT_EQ(file->evidence.at(telemetry::EVIDENCE_KIND_EXCHANGES).size(), 4u);
}

int64_t OldestStep(const trace::EvidenceFile& file) {
  int64_t oldest = 1000;
  for (const control::StreamSpansResponse& response : file.spans) {
    for (const telemetry::Span& span : response.spans()) oldest = std::min(oldest, span.step());
  }
  return oldest;
}

// Its steps show whether it was slow. A culprit of an attempt before the last one is none of it.
TEST_F(LastEvidenceTest, OfAJobThatSucceededMoreStepsAreKept) {
  step_ = 0;
  auto file = Keep();
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(OldestStep(*file), 6) << "of a job that failed after step 8";
  job_.set_state(control::JOB_STATE_SUCCEEDED);
  job_.set_last_step(9);
  asked_.clear();
  file = Keep();
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(OldestStep(*file), 0);
  EXPECT_EQ(file->job.state(), control::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(file->evidence.at(telemetry::EVIDENCE_KIND_EXCHANGES).size(), 4u);
  EXPECT_EQ(asked_.back(),
            absl::StrCat("n0/", static_cast<int>(telemetry::EVIDENCE_KIND_METRICS), "/0"));
}

TEST_F(LastEvidenceTest, TheFileOfAJobThatSucceededIsSmallAndLeavesOutOlderStepsFirst) {
  step_ = 0;
  spans_of_rank_ = 20'000;
  job_.set_state(control::JOB_STATE_SUCCEEDED);
  job_.set_last_step(9);
  const auto content = CollectLastEvidence(job_, spans_, evidence_);
  ASSERT_TRUE(content.ok()) << content.status();
  EXPECT_LE(content->size(), kLastEvidenceBytesOfSuccess);
  EXPECT_GT(content->size(), kLastEvidenceBytesOfSuccess / 8);
  ASSERT_TRUE(disk_.WriteSoon(LastEvidencePath(job_), *content).ok());
  const auto file = ReadLastEvidence(job_, &disk_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(OldestStep(*file), 6) << "four steps are enough to judge";
}

TEST_F(LastEvidenceTest, WithoutAnAgentThatAnswersNothingIsWritten) {
  away_ = "n0";
  EXPECT_TRUE(Keep().ok()) << "one of two answers";
  spans_of_rank_ = 0;
  EXPECT_EQ(CollectLastEvidence(job_, spans_, evidence_).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(LastEvidenceTest, AFileThatWouldBeTooLargeKeepsTheCulprit) {
  spans_of_rank_ = 1000;
  options_.bytes_max = 40'000;
  const auto file = Keep();
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->evidence.count(telemetry::EVIDENCE_KIND_EXCHANGES), 0u);
  EXPECT_EQ(file->spans[2].spans_size(), 1000);
  EXPECT_LT(file->spans[0].spans_size() + file->spans[1].spans_size() + file->spans[3].spans_size(),
            3000);
}

TEST_F(LastEvidenceTest, StepsThatTheJobNeverHadLeaveTheCulpritsSpansInTheFile) {
  spans_of_rank_ = 1000;
  options_.bytes_max = 40'000;
  using Limits = std::numeric_limits<int64_t>;
  for (const auto& odd :
       {std::vector<int64_t>{Limits::max()}, {Limits::min()}, {Limits::max(), Limits::min(), -1}}) {
    odd_steps_ = odd;
    const auto file = Keep();
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->spans[2].spans_size(), 1000) << odd[0];
  }
}

TEST_F(LastEvidenceTest, WhatCannotBeMadeSmallEnoughIsNotWritten) {
  spans_of_rank_ = 1000;
  options_.bytes_max = 1000;
  EXPECT_EQ(Keep().status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(LastEvidenceTest, TheOnlyRankOfAJobWithoutACulpritMayBeLeftOut) {
  spans_of_rank_ = 1000;
  options_.bytes_max = 4000;
  job_.mutable_culprit()->set_rank(-1);
  job_.mutable_ranks()->DeleteSubrange(1, 3);
  const auto content = CollectLastEvidence(job_, spans_, evidence_, options_);
  ASSERT_TRUE(content.ok()) << content.status();
  EXPECT_LE(content->size(), options_.bytes_max);
}

TEST_F(LastEvidenceTest, SpansBeyondTheBudgetAreThoseOfTheCulpritOnly) {
  options_.spans_max = 300;  // a rank's
  const auto file = Keep();
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->spans.size(), 4u);
  EXPECT_EQ(file->spans[0].spans_size(), 10);
  EXPECT_EQ(file->spans[1].spans_size(), 0);
  EXPECT_THAT(file->spans[1].error(), testing::HasSubstr("left out"));
  EXPECT_EQ(file->spans[2].spans_size(), 10);
}

TEST_F(LastEvidenceTest, AReadingThatIsStoppedKeepsWhatItHas) {
  int num_answers = 0;
  options_.should_stop = [&] { return ++num_answers >= 3; };
  const auto file = Keep();
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->spans.size(), 3u);
  EXPECT_LE(file->evidence.at(telemetry::EVIDENCE_KIND_EXCHANGES).size(), 2u) << "one of each node";
}

// A client that asks for spans of the ended job gets those of the file.
TEST_F(LastEvidenceTest, StreamsOfAnEndedJobAreThoseOfItsFile) {
  std::vector<control::StreamSpansResponse> got;
  SpanStreamPorts spans = spans_;
  spans.emit = [&](const control::StreamSpansResponse& response) {
    got.push_back(response);
    return true;
  };
  control::StreamSpansRequest request;
  EXPECT_EQ(StreamSpans(request, spans).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(Keep().ok());
  spans.saved = [&](const control::Job& job) { return ReadLastEvidence(job, &disk_); };
  spans.fetch = nullptr;  // no agent is asked
  ASSERT_TRUE(StreamSpans(request, spans).ok());
  ASSERT_EQ(got.size(), 4u);
  EXPECT_EQ(got[2].spans_size(), 10);
  got.clear();
  request.set_first_step(10);
  ASSERT_TRUE(StreamSpans(request, spans).ok());
  EXPECT_EQ(got[2].spans_size(), 0);
  got.clear();
  request.add_ranks(2);
  ASSERT_TRUE(StreamSpans(request, spans).ok());
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].rank(), 2);

  std::vector<control::StreamEvidenceResponse> calls;
  EvidenceStreamPorts evidence = evidence_;
  evidence.emit = [&](const control::StreamEvidenceResponse& response) {
    calls.push_back(response);
    return true;
  };
  evidence.saved = spans.saved;
  evidence.fetch = nullptr;
  control::StreamEvidenceRequest exchanges;
  exchanges.set_kind(telemetry::EVIDENCE_KIND_EXCHANGES);
  exchanges.add_ranks(3);
  ASSERT_TRUE(StreamEvidence(exchanges, evidence).ok());
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].evidence().num_lost(), 3);
}

TEST_F(LastEvidenceTest, ADamagedFileIsDataLoss) {
  EXPECT_EQ(ReadLastEvidence(job_, &disk_).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(disk_.WriteSoon(LastEvidencePath(job_), "\x1f\x8b nothing").ok());
  EXPECT_EQ(ReadLastEvidence(job_, &disk_).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace megascale::driver
