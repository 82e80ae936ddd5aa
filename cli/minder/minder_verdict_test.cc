#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cli/minder/job_series.h"
#include "cli/minder/method.h"
#include "cli/minder/verdict_text.h"
#include "nlohmann/json.hpp"
#include "runtime/minder/examine.h"
#include "runtime/minder/model_file.h"
#include "runtime/telemetry/machine_series.h"

namespace megascale::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

// A machine with one sample a second of job "j": its rank computes for `share` of the time.
telemetry::v1::Evidence EvidenceOf(double share, int num_samples) {
  telemetry::v1::Evidence evidence;
  const int64_t second = 1'000'000'000;
  for (int t = 0; t < num_samples; ++t) {
    telemetry::v1::MachineSample* sample = evidence.add_samples();
    sample->set_monotonic_nanos((7000 + t) * second);
    sample->set_busy_cores(1.5);
    telemetry::v1::ProcessSample* rank = sample->add_ranks();
    rank->set_job_id(t < 2 ? "other" : "j");
    rank->set_compute_share(share);
  }
  evidence.set_monotonic_nanos((7000 + num_samples) * second);
  return evidence;
}

TEST(JobSeriesTest, SamplesAreDatedByTheirAgeAndOnlyThoseOfTheJobCount) {
  minder::Recording recording;
  for (const auto& kind : MachineMetrics()) recording.metrics.push_back(kind.name);
  AddMachine("n0", EvidenceOf(0.25, 5), "j", absl::FromUnixSeconds(100), &recording);
  ASSERT_EQ(recording.machines[0].metrics.size(), recording.metrics.size());
  const auto& compute = recording.machines[0].metrics[0];
  ASSERT_EQ(compute.size(), 3u);
  EXPECT_DOUBLE_EQ(compute[0].seconds, 97);
  EXPECT_DOUBLE_EQ(compute[2].seconds, 99);
  EXPECT_DOUBLE_EQ(compute[0].value, 0.25);
}

TEST(JobSeriesTest, ColumnsSayTheSameAsTheSamplesTheyAreMadeOf) {
  minder::Recording recording;
  for (const auto& kind : MachineMetrics()) recording.metrics.push_back(kind.name);
  const telemetry::v1::Evidence samples = EvidenceOf(0.3, 400);
  telemetry::v1::Evidence columns;
  columns.set_monotonic_nanos(samples.monotonic_nanos());
  *columns.mutable_series() = telemetry::SeriesOf(samples.samples(), "j");
  AddMachine("n0", samples, "j", absl::FromUnixSeconds(1000), &recording);
  AddMachine("n0", columns, "j", absl::FromUnixSeconds(1000), &recording);
  ASSERT_EQ(columns.series().columns_size(), static_cast<int>(recording.metrics.size()));
  ASSERT_EQ(recording.machines[1].metrics[0].size(), 398u);
  for (size_t m = 0; m < recording.metrics.size(); ++m) {
    EXPECT_EQ(columns.series().columns(static_cast<int>(m)).metric(), recording.metrics[m]);
    const auto& from_samples = recording.machines[0].metrics[m];
    const auto& from_columns = recording.machines[1].metrics[m];
    ASSERT_EQ(from_samples.size(), from_columns.size());
    for (size_t i = 0; i < from_samples.size(); ++i) {
      EXPECT_EQ(from_samples[i].seconds, from_columns[i].seconds);
      EXPECT_EQ(from_samples[i].value, from_columns[i].value);
    }
  }
}

TEST(JobSeriesTest, ColumnsThatNoAgentOfOursSendsAddNothing) {
  minder::Recording recording = {.metrics = {"compute share", "busy cores"}, .machines = {}};
  telemetry::v1::Evidence evidence;
  evidence.set_monotonic_nanos(5'000'000'000);
  telemetry::v1::MachineSeries* series = evidence.mutable_series();
  for (const int64_t second : {3, 4, 9}) series->add_monotonic_nanos(second * 1'000'000'000);
  const auto add = [&](const char* metric, std::vector<float> values) {
    telemetry::v1::MetricColumn* column = series->add_columns();
    column->set_metric(metric);
    column->mutable_values()->Assign(values.begin(), values.end());
  };
  add("of a newer agent", {1, 2, 3});
  add("compute share", {0.25F, std::numeric_limits<float>::infinity(), 1, 1, 1});
  add("compute share", {1, 1, 1});
  AddMachine("n0", evidence, "j", absl::FromUnixSeconds(100), &recording);
  ASSERT_EQ(recording.machines[0].metrics.size(), 2u);
  ASSERT_EQ(recording.machines[0].metrics[0].size(), 1u);
  EXPECT_EQ(recording.machines[0].metrics[0][0].seconds, 98);
  EXPECT_EQ(recording.machines[0].metrics[0][0].value, 0.25);
  EXPECT_TRUE(recording.machines[0].metrics[1].empty());
}

std::map<std::string, double> NewestOf(const telemetry::v1::Evidence& evidence) {
  minder::Recording recording;
  for (const auto& kind : MachineMetrics()) recording.metrics.push_back(kind.name);
  AddMachine("n0", evidence, "j", absl::FromUnixSeconds(100), &recording);
  std::map<std::string, double> newest;
  for (size_t m = 0; m < recording.metrics.size(); ++m) {
    const auto& samples = recording.machines[0].metrics[m];
    if (!samples.empty()) newest[recording.metrics[m]] = samples.back().value;
  }
  return newest;
}

TEST(JobSeriesTest, TheAwaitingShareIsTheMeanOfWhatEachRankWaitsWithoutComputing) {
  telemetry::v1::Evidence evidence = EvidenceOf(0.25, 4);
  telemetry::v1::MachineSample* sample = evidence.mutable_samples(3);
  sample->mutable_ranks(0)->set_awaiting_share(0.25);
  sample->mutable_ranks(0)->set_wait_share(0.5);
  sample->add_ranks()->set_job_id("j");
  sample->mutable_ranks(1)->set_awaiting_share(0.75);  // most of it beside its passes
  sample->mutable_ranks(1)->set_wait_share(0.125);
  EXPECT_DOUBLE_EQ(NewestOf(evidence)["awaiting share"], 0.1875);
  sample->mutable_ranks(1)->clear_awaiting_share();
  EXPECT_EQ(NewestOf(evidence).count("awaiting share"), 0u);
}

// Returns what is found where four machines compute alike, and after 100 s the others await rank 2.
// `measured`: the machines whose agents say so.
minder::Examination ExamineLateRank(const std::set<int>& measured) {
  minder::Recording recording;
  for (const auto& kind : MachineMetrics()) recording.metrics.push_back(kind.name);
  for (int machine = 0; machine < 4; ++machine) {
    telemetry::v1::Evidence evidence = EvidenceOf(0.2, 400);
    for (int t = 0; measured.count(machine) > 0 && t < 400; ++t) {
      const double noise = 0.02 * ((t * 7 + machine * 3) % 5 - 2);
      const double now = t < 100 ? 0.1 : machine == 2 ? 0.04 : 0.4;
      telemetry::v1::ProcessSample* rank = evidence.mutable_samples(t)->mutable_ranks(0);
      rank->set_awaiting_share(std::max(0.0, now + noise));
      rank->set_wait_share(0.7);
    }
    AddMachine("n" + std::to_string(machine), evidence, "j", absl::FromUnixSeconds(1000),
               &recording);
  }
  const std::string note = LeaveOutUnmeasured(&recording);
  EXPECT_EQ(note.empty(), measured.size() == 4) << note;
  return minder::Examine(recording, {}, minder::DefaultModels(), minder::DetectorOptions());
}

TEST(JobSeriesTest, AMachineForWhichTheOthersWaitIsFoundByThat) {
  const auto found = ExamineLateRank({0, 1, 2, 3});
  ASSERT_TRUE(found.verdict.has_value());
  EXPECT_EQ(found.verdict->machine, "n2");
  EXPECT_EQ(found.verdict->metric, "awaiting share");
}

TEST(JobSeriesTest, AnAgentOfTheReleaseBeforeIsNoLateRank) {
  const auto found = ExamineLateRank({0, 1, 3});
  EXPECT_FALSE(found.verdict.has_value());
  EXPECT_EQ(found.num_compared, 4u);
}

TEST(JobSeriesTest, SamplesOfTheFutureAndOfLongAgoAreDropped) {
  minder::Recording recording;
  for (const auto& kind : MachineMetrics()) recording.metrics.push_back(kind.name);
  telemetry::v1::Evidence evidence = EvidenceOf(0.25, 5);
  for (const int64_t now : {int64_t{0}, int64_t{9'000'000'000'000}}) {
    evidence.set_monotonic_nanos(now);
    AddMachine("n0", evidence, "j", absl::FromUnixSeconds(100), &recording);
    EXPECT_TRUE(recording.machines.back().metrics[0].empty()) << now;
  }
}

TEST(JobSeriesTest, MachinesOfTheSamePipelineStagesAreCompared) {
  control::v1::Job job;
  job.mutable_spec()->mutable_parallel()->set_data_parallel_size(2);
  job.mutable_spec()->mutable_parallel()->set_pipeline_model_parallel_size(2);
  job.mutable_spec()->mutable_parallel()->set_tensor_model_parallel_size(1);
  minder::Recording recording;
  for (const char* node : {"n0", "n1", "n2", "n3"}) {
    job.add_ranks()->set_node_id(node);
    recording.machines.push_back({node, {}});
  }
  EXPECT_THAT(GroupsByStage(recording, job), ElementsAre(0, 0, 1, 1));
}

TEST(DefaultModelsTest, HaveEachMetricOfAnAgentAndSayWhereTheyComeFrom) {
  const minder::MinderModels& models = minder::DefaultModels();
  EXPECT_THAT(models.made_by, HasSubstr("megascale minder train "));
  ASSERT_EQ(models.metrics.size(), MachineMetrics().size());
  for (size_t m = 0; m < models.metrics.size(); ++m) {
    EXPECT_EQ(models.metrics[m].name, MachineMetrics()[m].name);
    EXPECT_EQ(models.metrics[m].limits.upper, MachineMetrics()[m].limits.upper);
    EXPECT_EQ(models.metrics[m].has_open_limit, MachineMetrics()[m].has_open_limit);
  }
}

TEST(MethodTest, EachWordOfMethodChangesWhatItNames) {
  using minder::Distance;
  using minder::Embedding;
  struct Expected {
    Embedding embedding = Embedding::kModelOfMetric;
    Distance distance = Distance::kEuclidean;
    bool needs_continuity = true;
    bool has_one_candidate = false;
  };
  const std::map<std::string, Expected> expected = {
      {"minder", {}},
      {"raw", {.embedding = Embedding::kRaw}},
      {"concatenated", {.embedding = Embedding::kAllConcatenated}},
      {"one-model", {.embedding = Embedding::kOneModel}},
      {"mahalanobis", {.distance = Distance::kMahalanobis}},
      {"no-continuity", {.needs_continuity = false}},
      {"one-candidate", {.has_one_candidate = true}},
  };
  EXPECT_EQ(MinderMethods().size(), expected.size());
  for (const auto& [word, options] : expected) {
    const auto found = OptionsOfMethod(word);
    ASSERT_TRUE(found.ok()) << word;
    EXPECT_EQ(found->embedding, options.embedding) << word;
    EXPECT_EQ(found->distance, options.distance) << word;
    EXPECT_EQ(found->needs_continuity, options.needs_continuity) << word;
    EXPECT_EQ(found->has_one_candidate, options.has_one_candidate) << word;
  }
}

TEST(MethodTest, AnotherWordIsRefusedWithAllThatThereAre) {
  for (const char* word : {"", "Minder", "rawe", "all"}) {
    const auto found = OptionsOfMethod(word);
    EXPECT_EQ(found.status().code(), absl::StatusCode::kInvalidArgument) << word;
    EXPECT_THAT(std::string(found.status().message()), HasSubstr("one-model, mahalanobis"));
  }
}

Examined ExaminedMachine() {
  Examined examined;
  examined.subject = "job j";
  examined.now = 1000;
  examined.examination.num_seconds = 900;
  examined.examination.num_compared = 4;
  minder::Verdict verdict;
  verdict.machine = "n\x1b[31m3";
  verdict.metric = "compute share";
  verdict.begin = 580;
  verdict.seconds = 420;
  verdict.lasts = true;
  verdict.score = 1.7;
  verdict.score_max = 1.73;
  verdict.value = 0.97;
  verdict.usual = 0.41;
  verdict.num_compared = 4;
  verdict.curve = {0.4, 0.97};
  verdict.usual_curve = {0.4, 0.41};
  examined.examination.verdict = verdict;
  return examined;
}

TEST(VerdictTextTest, SaysMachineMetricAndSinceWhen) {
  const std::string text = ExaminedText(ExaminedMachine());
  EXPECT_THAT(text, HasSubstr("differs: compute share 0.97, where 0.41 is usual, since 7m ago"));
  EXPECT_THAT(text, HasSubstr("score 1.7 of at most 1.7 among 4 machines"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b"))) << "a hostile name stays text";
}

TEST(VerdictTextTest, NoVerdictSaysWhatWasCompared) {
  Examined examined;
  examined.subject = "job j";
  examined.examination.num_compared = 4;
  examined.examination.num_seconds = 900;
  examined.examination.notes = {"machine n5: no answer"};
  EXPECT_EQ(ExaminedText(examined),
            "job j: no machine differs from the others (4 machines, 900 s)\n"
            "  note: machine n5: no answer\n");
  EXPECT_TRUE(nlohmann::json::parse(ExaminedJson(examined))["verdict"].is_null());
  examined.examination.num_compared = 0;
  examined.examination.notes = {"the job ended too early"};
  EXPECT_EQ(ExaminedText(examined),
            "job j: nothing could be compared\n"
            "  note: the job ended too early\n");
}

TEST(VerdictTextTest, JsonHasTheNumbers) {
  const auto json = nlohmann::json::parse(ExaminedJson(ExaminedMachine()));
  EXPECT_EQ(json["verdict"]["metric"], "compute share");
  EXPECT_EQ(json["verdict"]["began_seconds_ago"], 420);
  EXPECT_EQ(json["verdict"]["lasts"], true);
}

TEST(VerdictTextTest, TheReportHasTheMetricBothCurvesAndSinceWhen) {
  control::v1::Job job;
  job.set_job_id("j");
  const auto report = ReportOf(ExaminedMachine(), job);
  EXPECT_THAT(report.verdict(), EndsWith("differs: compute share 0.97, where 0.41 is usual"));
  EXPECT_EQ(report.began_at().seconds(), 580);
  ASSERT_EQ(report.evidence_size(), 3);
  EXPECT_THAT(report.evidence(0), HasSubstr("score 1.7 of at most 1.7 among 4 machines"));
  EXPECT_EQ(report.evidence(1), "compute share of this machine over 900 s: 0.4 0.97");
  EXPECT_EQ(report.evidence(2), "compute share of the median machine over 900 s: 0.4 0.41");
}

TEST(VerdictTextTest, TheReportFitsTheDriversLimits) {
  control::v1::Job job;
  job.set_job_id("j");
  job.set_attempt(3);
  Examined examined = ExaminedMachine();
  examined.examination.verdict->curve.assign(30, 1.23456e-7);
  examined.examination.verdict->metric.assign(500, 'm');
  const auto report = ReportOf(examined, job);
  EXPECT_EQ(report.attempt(), 3);
  EXPECT_LE(report.verdict().size(), 500u);
  for (const std::string& line : report.evidence()) EXPECT_LE(line.size(), 1000u);
}

}  // namespace
}  // namespace megascale::cli
