// The what-if analysis on the two published traces gives the published results:
// tests/golden/straggler/README.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "runtime/diagnose/byte_stream.h"
#include "runtime/diagnose/chrome_trace.h"
#include "runtime/diagnose/slow_verdict.h"
#include "runtime/diagnose/traced_job.h"
#include "runtime/diagnose/what_if_json.h"

namespace megascale::diagnose {
namespace {

using nlohmann::json;

constexpr char kFolder[] = "tests/golden/straggler/";
// A share of each number, but at least of 1. The replay is that of the authors, so the difference
// is the rounding of times in the traces, and of the begin of a step, which they do not hold.
constexpr double kTolerance = 2e-4;

struct Analysis {
  ChromeTrace trace;
  TracedJob job;
  WhatIf result;
  SlowVerdict verdict;
  json object;
};

Analysis Analyze(const ReadBytes& read) {
  Analysis analysis;
  analysis.trace = ReadChromeTrace(read).value();
  analysis.job = JobOfTrace(analysis.trace).value();
  analysis.result = AnalyzeSteps(analysis.job.graph, analysis.job.steps);
  analysis.verdict = ExplainSlowness(analysis.job.graph, analysis.job.steps, {}, analysis.result);
  analysis.object = WhatIfJson(analysis.job.graph, analysis.result);
  return analysis;
}

ReadBytes BytesOf(const std::string& name) {
  auto file = std::make_shared<std::ifstream>(absl::StrCat(kFolder, "timeline-", name, ".json.gz"),
                                              std::ios::binary);
  EXPECT_TRUE(file->good());
  return [file](char* buffer, size_t size) -> absl::StatusOr<size_t> {
    file->read(buffer, static_cast<std::streamsize>(size));
    return static_cast<size_t>(file->gcount());
  };
}

// Compares every number of `expected`; returns how many there are.
int Compare(const json& expected, const json& found, double tolerance = kTolerance,
            const std::string& where = "") {
  if (expected.is_object()) {
    int count = 0;
    for (const auto& [key, value] : expected.items()) {
      if (key == "job_meta" || value.is_null()) continue;  // what was not computed
      EXPECT_TRUE(found.contains(key)) << where << "/" << key;
      if (found.contains(key))
        count += Compare(value, found[key], tolerance, absl::StrCat(where, "/", key));
    }
    return count;
  }
  const double published = expected.get<double>();
  const double ours = found.get<double>();
  EXPECT_LE(std::abs(published - ours), tolerance * std::max(1.0, std::abs(published)))
      << where << ": " << ours << ", published " << published;
  return 1;
}

json Published(const std::string& name) {
  std::ifstream file(absl::StrCat(kFolder, "result-", name, ".json"));
  return json::parse(file);
}

TEST(StragglerTest, OneSlowWorkerGivesThePublishedNumbersAndIsNamed) {
  const Analysis ar = Analyze(BytesOf("AR"));
  EXPECT_EQ(Compare(Published("AR"), ar.object), 1077);
  EXPECT_NEAR(ar.result.fix_slowest_workers.share, 1.0017, 1e-4);
  EXPECT_EQ(ar.verdict.cause.cause, SlowCause::kOneWorker);
  EXPECT_EQ(ar.verdict.cause.worker, 0);
  EXPECT_GT(ar.verdict.cause.times_slower, 2);
  EXPECT_EQ(ar.job.num_replicas, 4);
  EXPECT_EQ(ar.job.num_stages, 4);
  EXPECT_EQ(ar.job.num_steps_left_out, 0);
}

TEST(StragglerTest, UnequalStagesGiveThePublishedNumbersAndTheStageIsNamed) {
  const Analysis st = Analyze(BytesOf("ST"));
  EXPECT_EQ(Compare(Published("ST"), st.object), 723);
  EXPECT_NEAR(st.result.fix_slowest_workers.share, 0.0314, 1e-4);
  EXPECT_NEAR(st.result.fix_last_stage.share, 1.2194, 1e-4);
  EXPECT_EQ(st.verdict.cause.cause, SlowCause::kUnequalStages);
  EXPECT_EQ(st.verdict.cause.stage, 3);
}

// As in a trace during which clocks were adjusted.
TEST(StragglerTest, EightEventsThatEndBeforeTheyBeginChangeNoPublishedNumberByOnePercent) {
  std::string text;
  const ReadBytes read = BytesOf("ST");
  for (ByteStream bytes(read, 1 << 30); bytes.Peek() != ByteStream::kEnd; bytes.Take()) {
    text.push_back(static_cast<char>(bytes.Peek()));
  }
  json events = json::parse(text);
  std::vector<json*> shortest;
  for (json& event : events) {
    if (event["ph"] == "X" && event["dur"] > 0) shortest.push_back(&event);
  }
  std::sort(shortest.begin(), shortest.end(),
            [](const json* a, const json* b) { return (*a)["dur"] < (*b)["dur"]; });
  for (int i = 0; i < 8; ++i) (*shortest[static_cast<size_t>(i)])["dur"] = -75 + 6 * i;
  text = events.dump();
  size_t done = 0;
  const Analysis st = Analyze([&](char* buffer, size_t size) -> absl::StatusOr<size_t> {
    const size_t count = text.copy(buffer, size, done);
    done += count;
    return count;
  });
  EXPECT_EQ(st.trace.num_negative, 8);
  EXPECT_DOUBLE_EQ(st.trace.most_negative_seconds, -75e-6);
  EXPECT_EQ(Compare(Published("ST"), st.object, 0.01), 723);
}

}  // namespace
}  // namespace megascale::diagnose
