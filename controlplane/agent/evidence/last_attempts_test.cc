#include "controlplane/agent/evidence/last_attempts.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace megascale::agent {
namespace {

// A rank with spans of steps 1 to 50, calls, and samples of 15 minutes.
LastAttempt AttemptOf(int64_t attempt, int num_ranks, int spans_of_step = 40) {
  LastAttempt last;
  last.attempt = attempt;
  for (int rank = 0; rank < num_ranks; ++rank) {
    v1::SpanChunk& chunk = last.spans[rank];
    chunk.set_monotonic_nanos(77);
    for (int64_t step = 1; step <= 50; ++step) {
      for (int i = 0; i < spans_of_step; ++i) {
        telemetry::v1::Span* span = chunk.add_spans();
        span->set_step(step);
        span->set_begin_nanos(1'000'000'000'000 + i);
        span->set_end_nanos(2'000'000'000'000 + i);
      }
    }
    for (int call = 0; call < 4096; ++call) {
      last.exchanges[rank].add_completed()->set_sequence(static_cast<uint64_t>(call));
    }
    for (int look = 0; look < 512; ++look) {
      last.exchanges[rank].add_in_flight()->set_seen_nanos(look);
    }
  }
  for (int second = 1; second <= 900; ++second) {
    last.samples.add_samples()->set_monotonic_nanos(second);
  }
  return last;
}

v1::FetchSpans SpansOf(const std::string& job_id, int64_t attempt, int rank) {
  v1::FetchSpans fetch;
  fetch.set_job_id(job_id);
  fetch.set_attempt(attempt);
  fetch.set_rank(rank);
  return fetch;
}

v1::FetchEvidence EvidenceOf(const std::string& job_id, int rank,
                             telemetry::v1::EvidenceKind kind) {
  v1::FetchEvidence fetch;
  fetch.set_job_id(job_id);
  fetch.set_attempt(2);
  fetch.set_rank(rank);
  fetch.set_kind(kind);
  return fetch;
}

TEST(LastAttemptsTest, TheNewestOfEachRankIsKept) {
  LastAttempts kept;
  kept.Keep("j", AttemptOf(2, 3));
  const auto spans = kept.Spans(SpansOf("j", 2, 1));
  ASSERT_TRUE(spans.ok()) << spans.status();
  EXPECT_EQ(spans->spans_size(), 16 * 40);
  EXPECT_EQ(spans->spans(0).step(), 35);
  EXPECT_EQ(spans->monotonic_nanos(), 77) << "when they were read";
  v1::FetchSpans newest = SpansOf("j", 2, 1);
  newest.set_first_step(50);
  EXPECT_EQ(kept.Spans(newest)->spans_size(), 40);
  const auto calls = kept.Evidence(EvidenceOf("j", 2, telemetry::v1::EVIDENCE_KIND_EXCHANGES));
  ASSERT_TRUE(calls.ok()) << calls.status();
  EXPECT_EQ(calls->completed_size(), 64);
  EXPECT_EQ(calls->completed(63).sequence(), 4095u);
  ASSERT_EQ(calls->in_flight_size(), 64);
  EXPECT_EQ(calls->in_flight(63).seen_nanos(), 511);
  const auto samples = kept.Evidence(EvidenceOf("j", 0, telemetry::v1::EVIDENCE_KIND_METRICS));
  ASSERT_TRUE(samples.ok()) << samples.status();
  EXPECT_EQ(samples->samples_size(), 60);
  EXPECT_EQ(samples->samples(59).monotonic_nanos(), 900);
}

TEST(LastAttemptsTest, WhatIsNotKeptIsNotFound) {
  LastAttempts kept;
  kept.Keep("j", AttemptOf(2, 2));
  for (const v1::FetchSpans& fetch : {SpansOf("j", 1, 0), SpansOf("j", 2, 2), SpansOf("k", 2, 0)}) {
    EXPECT_EQ(kept.Spans(fetch).status().code(), absl::StatusCode::kNotFound);
  }
  for (const v1::FetchEvidence& fetch : {EvidenceOf("k", 0, telemetry::v1::EVIDENCE_KIND_METRICS),
                                         EvidenceOf("j", 2, telemetry::v1::EVIDENCE_KIND_EXCHANGES),
                                         EvidenceOf("j", 0, telemetry::v1::EVIDENCE_KIND_STACKS)}) {
    EXPECT_EQ(kept.Evidence(fetch).status().code(), absl::StatusCode::kNotFound);
  }
}

TEST(LastAttemptsTest, AJobTakesAtMostAMebibyteAndFourJobsAreKept) {
  LastAttempts kept;
  for (int job = 0; job < 6; ++job) kept.Keep(absl::StrCat("j", job), AttemptOf(2, 8, 3000));
  EXPECT_FALSE(kept.Spans(SpansOf("j1", 2, 0)).ok());
  size_t num_bytes = 0;
  for (int rank = 0; rank < 8; ++rank) {
    const auto spans = kept.Spans(SpansOf("j2", 2, rank));
    ASSERT_TRUE(spans.ok()) << spans.status();
    EXPECT_GT(spans->spans_size(), 500);
    num_bytes += spans->ByteSizeLong();
    num_bytes += kept.Evidence(EvidenceOf("j2", rank, telemetry::v1::EVIDENCE_KIND_EXCHANGES))
                     ->ByteSizeLong();
  }
  EXPECT_LE(num_bytes, LastAttempts::kBytesMax);
  // The same job again replaces what was kept.
  kept.Keep("j5", AttemptOf(3, 1));
  EXPECT_TRUE(kept.Spans(SpansOf("j2", 2, 0)).ok());
  EXPECT_FALSE(kept.Spans(SpansOf("j5", 2, 0)).ok());
}

}  // namespace
}  // namespace megascale::agent
