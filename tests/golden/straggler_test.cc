// The what-if analysis on the two published traces gives the published results:
// tests/golden/straggler/README.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "runtime/diagnose/chrome_trace.h"
#include "runtime/diagnose/slow_verdict.h"
#include "runtime/diagnose/traced_job.h"
#include "runtime/diagnose/what_if_json.h"

namespace megascale::diagnose {
namespace {

using nlohmann::json;

constexpr char kFolder[] = "tests/golden/straggler/";
// The issue asks for 1 % or 0.01. The replay is that of the authors, so the difference is the
// rounding of times in the traces, and of the begin of a step, which they do not hold.
constexpr double kRelative = 2e-4;
constexpr double kAbsolute = 2e-4;

struct Analysis {
  TracedJob job;
  WhatIf result;
  SlowVerdict verdict;
  json object;
};

Analysis Analyze(const std::string& name) {
  std::ifstream file(absl::StrCat(kFolder, "timeline-", name, ".json.gz"), std::ios::binary);
  EXPECT_TRUE(file.good());
  const auto trace = ReadChromeTrace([&](char* buffer, size_t size) -> absl::StatusOr<size_t> {
    file.read(buffer, static_cast<std::streamsize>(size));
    return static_cast<size_t>(file.gcount());
  });
  EXPECT_TRUE(trace.ok()) << trace.status();
  Analysis analysis;
  analysis.job = JobOfTrace(*trace).value();
  analysis.result = AnalyzeSteps(analysis.job.graph, analysis.job.steps);
  analysis.verdict = ExplainSlowness(analysis.job.graph, analysis.job.steps, {}, analysis.result);
  analysis.object = WhatIfJson(analysis.job.graph, analysis.result);
  return analysis;
}

// Compares every number of `expected`; returns how many there are.
int Compare(const json& expected, const json& found, const std::string& where) {
  if (expected.is_object()) {
    int count = 0;
    for (const auto& [key, value] : expected.items()) {
      if (key == "job_meta" || value.is_null()) continue;  // what was not computed
      EXPECT_TRUE(found.contains(key)) << where << "/" << key;
      if (found.contains(key)) count += Compare(value, found[key], absl::StrCat(where, "/", key));
    }
    return count;
  }
  const double published = expected.get<double>();
  const double ours = found.get<double>();
  EXPECT_LE(std::abs(published - ours), std::max(kAbsolute, kRelative * std::abs(published)))
      << where << ": " << ours << ", published " << published;
  return 1;
}

json Published(const std::string& name) {
  std::ifstream file(absl::StrCat(kFolder, "result-", name, ".json"));
  return json::parse(file);
}

TEST(StragglerTest, OneSlowWorkerGivesThePublishedNumbersAndIsNamed) {
  const Analysis ar = Analyze("AR");
  EXPECT_EQ(Compare(Published("AR"), ar.object, ""), 1077);
  EXPECT_NEAR(ar.result.fix_slowest_workers.share, 1.0017, 1e-4);
  EXPECT_EQ(ar.verdict.cause.cause, SlowCause::kOneWorker);
  EXPECT_EQ(ar.verdict.cause.worker, 0);
  EXPECT_GT(ar.verdict.cause.times_slower, 2);
  EXPECT_EQ(ar.job.num_replicas, 4);
  EXPECT_EQ(ar.job.num_stages, 4);
  EXPECT_EQ(ar.job.num_steps_left_out, 0);
}

TEST(StragglerTest, UnequalStagesGiveThePublishedNumbersAndTheStageIsNamed) {
  const Analysis st = Analyze("ST");
  EXPECT_EQ(Compare(Published("ST"), st.object, ""), 723);
  EXPECT_NEAR(st.result.fix_slowest_workers.share, 0.0314, 1e-4);
  EXPECT_NEAR(st.result.fix_last_stage.share, 1.2194, 1e-4);
  EXPECT_EQ(st.verdict.cause.cause, SlowCause::kUnequalStages);
  EXPECT_EQ(st.verdict.cause.stage, 3);
}

}  // namespace
}  // namespace megascale::diagnose
