// What the page answers to requests.
#include "controlplane/page/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "controlplane/page/evidence_json.h"
#include "controlplane/page/failure_history.h"
#include "controlplane/page/job_json.h"
#include "controlplane/page/prometheus.h"
#include "nlohmann/json.hpp"
#include "runtime/base/clock.h"
#include "tests/page/test_fleet.h"

namespace megascale::page {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::StartsWith;

// --- the failures -----------------------------------------------------------------------------

control::v1::Job JobAt(int64_t step, int64_t attempt) {
  control::v1::Job job;
  job.set_job_id("j");
  job.set_last_step(step);
  job.mutable_last_record()->set_step(step);
  job.mutable_last_record()->set_attempt(attempt);
  return job;
}

void Fail(control::v1::Job* job, int64_t attempt) {
  job->mutable_culprit()->set_attempt(attempt);
  job->mutable_culprit()->set_rank(3);
  job->mutable_culprit()->set_failure_class(telemetry::v1::FAILURE_CLASS_HUNG);
}

TEST(FailureHistoryTest, MeasuresDetectionAndRecovery) {
  FailureHistory history;
  const auto at = [](double seconds) { return absl::Seconds(seconds); };
  const absl::Time wall = absl::FromUnixSeconds(1'790'000'000);
  history.Observe(JobAt(10, 1), at(0), wall);
  history.Observe(JobAt(11, 1), at(2), wall);
  control::v1::Job job = JobAt(11, 1);
  Fail(&job, 1);
  history.Observe(job, at(7), wall);
  EXPECT_EQ(history.Of("j")[0].recovery_seconds, -1) << "it is not back yet";
  job = JobAt(11, 2);
  Fail(&job, 1);
  job.set_num_consequences(5);
  history.Observe(job, at(10), wall);
  history.Observe(job, at(20), wall);
  const std::vector<ObservedFailure> failures = history.Of("j");
  ASSERT_EQ(failures.size(), 1);
  EXPECT_EQ(failures[0].detection_seconds, 5);
  EXPECT_EQ(failures[0].recovery_seconds, 3);
  EXPECT_EQ(failures[0].last_step, 11);
  EXPECT_EQ(failures[0].num_consequences, 5);
  EXPECT_EQ(history.CountsOf("j").at(telemetry::v1::FAILURE_CLASS_HUNG), 1);
}

TEST(FailureHistoryTest, AFailureBeforeTheFirstLookHasACauseAndNoTimes) {
  FailureHistory history;
  control::v1::Job job = JobAt(11, 2);
  Fail(&job, 1);
  history.Observe(job, absl::Seconds(1), absl::FromUnixSeconds(5));
  ASSERT_EQ(history.Of("j").size(), 1);
  EXPECT_EQ(history.Of("j")[0].noticed_unix_seconds, 0);
  EXPECT_EQ(history.Of("j")[0].recovery_seconds, -1);
  EXPECT_TRUE(history.CountsOf("j").empty());
  history.Keep({});
  EXPECT_TRUE(history.Of("j").empty());
}

// --- what the page answers --------------------------------------------------------------------

class PageTest : public ::testing::Test {
 protected:
  PageTest() { page_.Poll(); }
  http::Response Get(const std::string& path, std::map<std::string, std::string> query = {}) {
    return page_.Answer({.path = path, .query = std::move(query)});
  }
  json GetJson(const std::string& path, std::map<std::string, std::string> query = {}) {
    query.emplace("job", TestFleet::kJobId);
    const http::Response response = Get(path, std::move(query));
    EXPECT_EQ(response.status, 200) << response.body;
    return json::parse(response.body);
  }

  TestFleet fleet_;
  base::FakeClock clock_;
  Page page_{{.source = &fleet_, .clock = &clock_}};
};

TEST_F(PageTest, ServesItsOwnFilesAndNothingElse) {
  EXPECT_THAT(Get("/").body, StartsWith("<!doctype html>"));
  EXPECT_EQ(Get("/page.js").content_type, "text/javascript; charset=utf-8");
  for (const char* path : {"/../page.js", "/etc/passwd", "//page.js", "/page.js/"}) {
    EXPECT_EQ(Get(path).status, 404) << path;
  }
}

TEST_F(PageTest, NothingOfThePageComesFromANetwork) {
  const std::string index = Get("/").body;
  EXPECT_THAT(index, Not(HasSubstr("https://")));
  std::vector<std::string> files;
  for (const char* attribute : {"src=\"", "href=\""}) {
    for (size_t at = index.find(attribute); at != std::string::npos;
         at = index.find(attribute, at + 1)) {
      const size_t begin = index.find('"', at) + 1;
      files.push_back(index.substr(begin, index.find('"', begin) - begin));
    }
  }
  std::erase_if(files, [](const std::string& file) { return file[0] == '#'; });
  EXPECT_THAT(files, IsSupersetOf({"dygraph.min.js", "charts.js", "page.js", "page.css"}));
  for (const std::string& file : files) {
    const http::Response response = Get("/" + file);
    EXPECT_EQ(response.status, 200) << file;
    // The library names its licence, and makes labels out of HTML: it gets only labels that
    // charts.js made from numbers.
    if (file == "dygraph.min.js") continue;
    EXPECT_THAT(response.body, Not(HasSubstr("https://"))) << file;
    EXPECT_THAT(response.body, Not(HasSubstr("innerHTML"))) << file;
  }
}

TEST_F(PageTest, ListsJobsNewestFirstWithTheirFigures) {
  const json jobs = GetJson("/api/jobs")["jobs"];
  ASSERT_EQ(jobs.size(), 2);
  EXPECT_EQ(jobs[0]["id"], TestFleet::kJobId);
  EXPECT_EQ(jobs[0]["state"], "RUNNING");
  EXPECT_NEAR(jobs[0]["mfu"], 0.553, 1e-9);
  EXPECT_EQ(jobs[1]["id"], TestFleet::kHostile);
}

TEST_F(PageTest, CurvesBeginAnewOrGoOnAfterAStep) {
  const json all = GetJson("/api/steps", {{"points", "1000"}});
  EXPECT_EQ(all["step"].size(), 240);
  const json more = GetJson("/api/steps", {{"after", "238"}});
  EXPECT_EQ(more["step"], json({239, 240}));
  EXPECT_EQ(more["mfu"].size(), 2);
  EXPECT_EQ(Get("/api/steps", {{"job", TestFleet::kJobId}, {"points", "-1"}}).status, 400);
  EXPECT_EQ(Get("/api/steps", {{"job", "none"}}).status, 404);
  EXPECT_EQ(Get("/api/steps").status, 400);
}

TEST_F(PageTest, TheHeatMapShowsTheSlowRank) {
  const json map = GetJson("/api/heat-map");
  ASSERT_EQ(map["kinds"]["forward"].size(), 32);
  const std::vector<double> forward = map["kinds"]["forward"];
  // Among the ranks of its stage; the last stage also computes the loss.
  const auto slowest = std::max_element(forward.begin() + 8, forward.begin() + 16);
  // Its tensor-parallel peer, the rank before, is as slow: they do each pass together.
  EXPECT_THAT(slowest - forward.begin(), AnyOf(TestFleet::kSlowRank - 1, TestFleet::kSlowRank));
  const std::vector<double> slowdown = map["kinds"]["slowdown"];
  EXPECT_THAT(std::max_element(slowdown.begin(), slowdown.end()) - slowdown.begin(),
              AnyOf(TestFleet::kSlowRank - 1, TestFleet::kSlowRank));
  EXPECT_EQ(map["last_step"], 240);
  for (size_t rank = 0; rank < 32; ++rank) {
    double sum = 0;
    for (const char* kind : {"compute", "tensor_parallel", "optimizer", "pipeline", "data_parallel",
                             "data_wait", "bubble"}) {
      sum += map["kinds"][kind][rank].get<double>();
    }
    EXPECT_NEAR(sum, map["kinds"]["total"][rank].get<double>(), 0.01);
  }
}

TEST_F(PageTest, ManyReadersCostTheDriverOneReadOfSpans) {
  for (int i = 0; i < 5; ++i) GetJson("/api/heat-map");
  GetJson("/api/timeline", {{"rank", "3"}});
  EXPECT_EQ(fleet_.num_span_reads(), 1);
  clock_.Advance(absl::Seconds(3));
  GetJson("/api/heat-map");
  EXPECT_EQ(fleet_.num_span_reads(), 2);
}

TEST_F(PageTest, AMeanIsOfTheStepsThatAReaderAskedForWhateverOthersAsked) {
  fleet_.SpeedUpBefore(236);
  const json many = GetJson("/api/heat-map", {{"steps", "20"}});
  EXPECT_EQ(many["first_step"], 221);
  const json few = GetJson("/api/heat-map", {{"steps", "5"}});
  EXPECT_EQ(fleet_.num_span_reads(), 1);
  EXPECT_EQ(few["num_steps"], 5);
  EXPECT_EQ(few["first_step"], 236);
  EXPECT_GT(few["kinds"]["total"][0].get<double>(), 1.5 * many["kinds"]["total"][0].get<double>());
}

TEST_F(PageTest, ReadersOfSpansSeeWhatCameBeforeTheTimeWasOver) {
  int num_ranks = 0;
  fleet_.SetOnRank([&] {
    if (++num_ranks == 9) clock_.Advance(absl::Seconds(10));
  });
  const json map = GetJson("/api/heat-map");
  EXPECT_EQ(fleet_.num_ranks_read(), 9);
  EXPECT_EQ(std::count(map["known"].begin(), map["known"].end(), true), 9);
  clock_.Advance(absl::Seconds(49));
  GetJson("/api/heat-map");
  EXPECT_EQ(fleet_.num_span_reads(), 1) << "what took 10 s is not made again before 50 s";
  clock_.Advance(absl::Seconds(2));
  GetJson("/api/heat-map");
  EXPECT_EQ(fleet_.num_span_reads(), 2);
}

TEST_F(PageTest, AGroupThatIsTooLargeIsShownAroundTheChosenRank) {
  TestFleet fleet({.data = 100, .pipeline = 2, .tensor = 1});
  Page page({.source = &fleet, .clock = &clock_});
  page.Poll();
  const auto shown = [&](const std::string& rank) {
    const json timeline = json::parse(
        page.Answer({.path = "/api/timeline",
                     .query = {{"job", TestFleet::kJobId}, {"axis", "data"}, {"rank", rank}}})
            .body);
    std::vector<int> ranks;
    for (const json& row : timeline["rows"]) ranks.push_back(row["rank"]);
    EXPECT_EQ(ranks.size() + timeline["ranks_left_out"].get<size_t>(), 100);
    EXPECT_LE(ranks.size(), 64);
    return ranks;
  };
  EXPECT_THAT(shown("90"), AllOf(Contains(90), Contains(99), Not(Contains(10))));
  EXPECT_THAT(shown("50"), AllOf(Contains(45), Contains(55), Not(Contains(0)), Not(Contains(99))));
  EXPECT_THAT(shown("0"), AllOf(Contains(0), Not(Contains(99))));
}

TEST_F(PageTest, TheTimelineConnectsTheMembersOfACollective) {
  for (const char* axis : {"data", "tensor"}) {
    const json timeline = GetJson("/api/timeline", {{"axis", axis}, {"rank", "13"}});
    ASSERT_FALSE(timeline["collectives"].empty()) << axis;
    const auto span = [&](const json& at) {
      return timeline["rows"][at[0].get<size_t>()]["spans"][at[1].get<size_t>()];
    };
    std::map<int, int> came_last;  // by rank
    for (const json& members : timeline["collectives"]) {
      ASSERT_EQ(members.size(), timeline["rows"].size());
      std::set<size_t> rows;
      const double ready = span(members[0])[2].get<double>() - span(members[0])[4].get<double>();
      for (const json& member : members) {
        rows.insert(member[0].get<size_t>());
        EXPECT_EQ(span(member)[1], span(members[0])[1]);
        EXPECT_LE(span(member)[2].get<double>() - span(member)[4].get<double>(), ready + 0.2);
      }
      EXPECT_EQ(rows.size(), members.size());
      ++came_last[timeline["rows"][members[0][0].get<size_t>()]["rank"].get<int>()];
    }
    EXPECT_GT(came_last[TestFleet::kSlowRank] + came_last[TestFleet::kSlowRank - 1], 0) << axis;
  }
}

TEST_F(PageTest, TheTimelineHasTheRanksOfItsAxisAndMessagesBetweenThem) {
  const auto ranks_of = [&](const std::string& axis) {
    const json timeline = GetJson("/api/timeline", {{"axis", axis}, {"rank", "13"}});
    std::vector<int> ranks;
    for (const json& row : timeline["rows"]) ranks.push_back(row["rank"]);
    return ranks;
  };
  EXPECT_THAT(ranks_of("pipeline"), ElementsAre(5, 13, 21, 29));
  EXPECT_THAT(ranks_of("data"), ElementsAre(9, 11, 13, 15));
  EXPECT_THAT(ranks_of("tensor"), ElementsAre(12, 13));
  const json timeline = GetJson("/api/timeline", {{"axis", "pipeline"}, {"rank", "13"}});
  ASSERT_FALSE(timeline["messages"].empty());
  for (const json& message : timeline["messages"]) {
    const json& send =
        timeline["rows"][message[0].get<size_t>()]["spans"][message[1].get<size_t>()];
    const json& receive =
        timeline["rows"][message[2].get<size_t>()]["spans"][message[3].get<size_t>()];
    EXPECT_EQ(send[1], "send");
    EXPECT_EQ(receive[1], "receive");
    EXPECT_LE(send[2].get<double>(), receive[3].get<double>());
  }
  EXPECT_EQ(Get("/api/timeline", {{"job", TestFleet::kJobId}, {"axis", "x"}}).status, 400);
  EXPECT_EQ(Get("/api/timeline", {{"job", TestFleet::kJobId}, {"rank", "32"}}).status, 400);
}

TEST_F(PageTest, ARankHasItsPlaceItsNeighboursAndForWhomItWaits) {
  const json rank = GetJson("/api/rank", {{"rank", "21"}});
  EXPECT_EQ(rank["mesh"]["axes"].size(), 3);
  EXPECT_EQ(rank["instruction"], "RA.c2.m3");
  EXPECT_EQ(rank["waits_for"]["ranks"], json({13}));
  json pipeline;
  for (const json& axis : rank["neighbours"]) {
    if (axis["axis"] == "pipeline") pipeline = axis;
  }
  EXPECT_EQ(pipeline["previous"], 13);
  EXPECT_EQ(pipeline["next"], 29);
  EXPECT_EQ(Get("/api/rank", {{"job", TestFleet::kJobId}, {"rank", "32"}}).status, 404);
}

TEST_F(PageTest, AJobShowsWhereItsTimeWentAndWhomTheDriverSuspects) {
  const json job = GetJson("/api/job");
  double parts = 0;
  for (const auto& [name, seconds] : job["time"].items()) {
    if (name != "wall") parts += seconds.get<double>();
  }
  EXPECT_EQ(job["time"]["wall"], 300);
  EXPECT_NEAR(parts, 300, 1e-9);
  EXPECT_EQ(job["last_hour"]["kept"], 223);
  EXPECT_EQ(job["suspicion"]["rank"], TestFleet::kSlowRank);
  EXPECT_EQ(job["suspicion"]["since"].get<int64_t>() - job["suspicion"]["began"].get<int64_t>(),
            40);
  EXPECT_THAT(job["suspicion"]["verdict"], HasSubstr("7 ranks wait for it"));
  EXPECT_THAT(job["warnings"], ElementsAre(HasSubstr("5.2 times the usual")));
}

TEST_F(PageTest, ARankShowsItsExchangesThoseThatStandStillFirst) {
  const json exchanges = GetJson("/api/exchanges", {{"rank", "13"}});
  ASSERT_EQ(exchanges["running"].size(), 2);
  const json& first = exchanges["running"][0];
  EXPECT_EQ(first["peer"], 14);
  EXPECT_EQ(first["operation"], "all-reduce");
  EXPECT_EQ(first["instruction"], "F.c1.m3");
  EXPECT_EQ(first["quiet_seconds"], 3);
  EXPECT_EQ(first["delivered_bytes"], 1 << 19);
  EXPECT_EQ(first["state"], "not delivered");
  EXPECT_EQ(exchanges["completed"][0]["state"], "done");
  EXPECT_EQ(exchanges["completed"][0]["sequence"], 4180);
  EXPECT_EQ(Get("/api/exchanges", {{"job", TestFleet::kJobId}, {"rank", "32"}}).status, 404);
}

TEST(EvidenceJsonTest, AnExchangeHasTheNameOfItsState) {
  const auto state_of = [](std::vector<int64_t> bytes) {
    telemetry::v1::Evidence evidence;
    telemetry::v1::ExchangeState* state = evidence.add_running();
    state->set_send_bytes(bytes[0]);
    state->set_transmitted_bytes(bytes[1]);
    state->set_delivered_bytes(bytes[2]);
    state->set_receive_bytes(bytes[3]);
    state->set_received_bytes(bytes[4]);
    return ExchangesJson(evidence)["running"][0]["state"].get<std::string>();
  };
  EXPECT_EQ(state_of({0, 0, 0, 0, 0}), "not started");
  EXPECT_EQ(state_of({9, 0, 0, 9, 9}), "not started");
  EXPECT_EQ(state_of({9, 4, 4, 9, 9}), "not transmitted");
  EXPECT_EQ(state_of({9, 9, 4, 9, 9}), "not delivered");
  EXPECT_EQ(state_of({9, 9, 9, 9, 0}), "nothing received");
  EXPECT_EQ(state_of({9, 9, 9, 9, 4}), "partly received");
  EXPECT_EQ(state_of({9, 9, 9, 9, 9}), "done");
}

TEST_F(PageTest, AMachineShowsWhichJobSuspectsItAndWhy) {
  const json machines = GetJson("/api/machines")["machines"];
  int num_suspects = 0;
  for (const json& machine : machines) {
    if (!machine.contains("suspect")) continue;
    ++num_suspects;
    EXPECT_EQ(machine["node"], "node-001");
    EXPECT_EQ(machine["suspect"]["job"], TestFleet::kJobId);
    EXPECT_THAT(machine["suspect"]["verdict"], HasSubstr("7 ranks wait for it"));
  }
  EXPECT_EQ(num_suspects, 1);
  EXPECT_EQ(machines[0]["pool"], "quarantined") << "what is not well comes first";
  fleet_.job().mutable_ended_at()->set_seconds(1);
  page_.Poll();
  EXPECT_THAT(Get("/api/machines").body, Not(HasSubstr("suspect\""))) << "the job has ended";
}

TEST_F(PageTest, AMachineShowsItsWorstExchangeAndTheOneWithSeveralAtOnce) {
  const json machines = GetJson("/api/machines")["machines"];
  const auto find = [&](const std::string& node) {
    return *std::find_if(machines.begin(), machines.end(),
                         [&](const json& machine) { return machine["node"] == node; });
  };
  const json machine = find("node-000");
  EXPECT_EQ(machine["exchanges"], 2);
  const json& worst = machine["worst_exchange"];
  EXPECT_EQ(worst["with"], "node-002");
  EXPECT_EQ(worst["verdict"], "failed");
  EXPECT_EQ(worst["bytes_per_second"], 3e9);
  EXPECT_EQ(worst["expected"], TestFleet::kExchangeRateMin);
  EXPECT_GT(worst["ended"], 0);
  EXPECT_EQ(worst["why"], "") << "the rates say it";
  EXPECT_EQ(machine["exchange_round"]["with"], "node-001, node-002, node-003");
  EXPECT_EQ(machine["exchange_round"]["verdict"], "passed");
  EXPECT_EQ(machine["exchange_round"]["bytes_per_second"], 2e10);
  EXPECT_TRUE(find("node-001")["worst_exchange"].is_null());
  EXPECT_TRUE(find("node-001")["exchange_round"].is_null());
}

TEST_F(PageTest, ARankShowsItsNewestErrorAlsoAfterOthersFailed) {
  const auto fail = [&](int rank, int64_t attempt, const std::string& evidence) {
    control::v1::Culprit* culprit = fleet_.job().mutable_culprit();
    culprit->set_rank(rank);
    culprit->set_attempt(attempt);
    culprit->set_evidence(evidence);
    page_.Poll();
  };
  fail(13, 1, "killed by signal 9");
  fail(13, 2, "out of memory");
  fail(21, 3, "hung");
  EXPECT_EQ(GetJson("/api/rank", {{"rank", "13"}})["last_error"], "attempt 2: out of memory");
  EXPECT_EQ(GetJson("/api/rank", {{"rank", "21"}})["last_error"], "attempt 3: hung");
  EXPECT_EQ(GetJson("/api/rank", {{"rank", "5"}})["last_error"], "");
}

TEST_F(PageTest, AMachineShowsItsMetricsWhileAJobRunsThere) {
  const json metrics = GetJson("/api/machine-metrics", {{"node", "node-001"}});
  ASSERT_EQ(metrics["seconds"].size(), 601);
  EXPECT_EQ(metrics["seconds"][0], -600);
  EXPECT_EQ(metrics["seconds"][600], 0);
  for (const auto& [name, values] : metrics.items()) EXPECT_EQ(values.size(), 601) << name;
  EXPECT_NEAR(metrics["received_bytes"][600].get<double>(), 2.2e10, 4e9) << "of two interfaces";
  EXPECT_NEAR(metrics["tokens_per_second"][600].get<double>(), 4000, 81) << "of eight ranks";
  EXPECT_DOUBLE_EQ(metrics["transfer_share"][600].get<double>(), 0.46875) << "their mean";
  EXPECT_DOUBLE_EQ(metrics["awaiting_share"][600].get<double>(), 0.25);
  EXPECT_EQ(metrics["gpu_temperature_celsius"][600], 67) << "the hottest";
  EXPECT_EQ(metrics["gpu_power_watts"][598], 4800) << "as read three seconds before";
  EXPECT_EQ(metrics["gpus_throttled"][600], 1);
  EXPECT_TRUE(metrics["gpu_corrected_errors"][600].is_null()) << "unknown is not zero";
  const http::Response spare = Get("/api/machine-metrics", {{"node", "node-004"}});
  EXPECT_EQ(spare.status, 404);
  EXPECT_THAT(spare.body, HasSubstr("no job has ranks on node-004"));
}

TEST_F(PageTest, ManyReadersCostAnAgentOneReadASecond) {
  for (int i = 0; i < 5; ++i) GetJson("/api/exchanges", {{"rank", "13"}});
  EXPECT_EQ(fleet_.num_evidence_reads(), 1);
  clock_.Advance(absl::Seconds(2));
  GetJson("/api/exchanges", {{"rank", "13"}});
  EXPECT_EQ(fleet_.num_evidence_reads(), 2);
}

TEST(EvidenceJsonTest, WhatAMachineInventsIsCutAndStaysANumberOrText) {
  telemetry::v1::Evidence evidence;
  evidence.set_monotonic_nanos(std::numeric_limits<int64_t>::min());
  for (int i = 0; i < 3000; ++i) {
    telemetry::v1::ExchangeState* state = evidence.add_running();
    state->set_group(std::string(5000, '\x1b'));
    state->set_operation(4'000'000'000);
    state->set_begin_nanos(std::numeric_limits<int64_t>::max());
    state->set_instruction(~uint64_t{0});
    telemetry::v1::MachineSample* sample = evidence.add_samples();
    sample->set_monotonic_nanos(std::numeric_limits<int64_t>::max());
    sample->set_busy_cores(std::numeric_limits<double>::quiet_NaN());
    sample->set_load(std::numeric_limits<double>::infinity());
  }
  const json exchanges = ExchangesJson(evidence);
  EXPECT_EQ(exchanges["running"].size(), kExchangesMax);
  EXPECT_EQ(exchanges["running"][0]["operation"], "unknown");
  EXPECT_EQ(exchanges["running"][0]["seconds"], 0);
  EXPECT_LT(exchanges.dump().size(), 100'000);
  const json metrics = MachineMetricsJson(evidence);
  EXPECT_EQ(metrics["load"].size(), kSamplesMax);
  EXPECT_TRUE(metrics["busy_cores"][0].is_null());
  EXPECT_LT(metrics.dump().size(), 200'000);
}

// The largest answers: 12,288 ranks on 1,539 machines, 200 jobs more, names of 200 characters,
// 4,000 steps.
class LargePageTest : public PageTest {
 protected:
  LargePageTest() { large_page_.Poll(); }
  std::string Large(const std::string& path, std::map<std::string, std::string> query = {}) {
    query.emplace("job", TestFleet::kJobId);
    const http::Response response = large_page_.Answer({.path = path, .query = std::move(query)});
    EXPECT_EQ(response.status, 200) << path << ": " << response.body.substr(0, 500);
    EXPECT_LT(response.body.size(), 1'000'000) << path;
    return response.body;
  }
  json LargeJson(const std::string& path, std::map<std::string, std::string> query = {}) {
    return json::parse(Large(path, std::move(query)));
  }

  TestFleet large_{{.data = 192,
                    .pipeline = 8,
                    .tensor = 8,
                    .last_step = 4000,
                    .num_ended_jobs = 200,
                    .name_bytes = 200}};
  Page large_page_{{.source = &large_, .clock = &clock_}};
};

TEST_F(LargePageTest, NoAnswerIsLongerThanAMegabyte) {
  Large("/api/heat-map", {{"steps", "50"}});
  for (const char* path : {"/", "/dygraph.min.js", "/api/job", "/api/ranks", "/api/heat-map",
                           "/api/timeline", "/api/rank", "/api/exchanges", "/api/log"}) {
    Large(path);
  }
  for (const char* axis : {"data", "pipeline", "tensor"}) {
    Large("/api/timeline", {{"axis", axis}, {"rank", "6000"}, {"steps", "50"}});
  }
  EXPECT_EQ(LargeJson("/api/steps", {{"points", "4000"}})["step"].size(), 4000);
  Large("/api/machine-metrics", {{"node", large_.job().ranks(0).node_id()}});
  const json jobs = LargeJson("/api/jobs");
  EXPECT_EQ(jobs["total"], 202);
  EXPECT_GT(jobs["jobs"].size(), 100);
  const json machines = LargeJson("/api/machines");
  EXPECT_EQ(machines["machines"].size() + machines["left_out"].get<size_t>(), 1539);
  EXPECT_LT(large_page_.Events({.path = "/events", .query = {}})->Next().size(), 1'000'000);
}

TEST(JobJsonTest, AListOfMachinesThatIsTooLongKeepsThoseThatAreNotWell) {
  control::v1::GetClusterResponse cluster;
  for (int i = 0; i < 1000; ++i) {
    control::v1::NodeView* node = cluster.add_nodes();
    node->set_node_id(absl::StrCat(i, std::string(1500, '+')));
    node->set_alive(i != 999);
  }
  const json machines = MachinesJson(cluster, {});
  EXPECT_GT(machines["left_out"], 100);
  EXPECT_EQ(machines["machines"].size() + machines["left_out"].get<size_t>(), 1000);
  EXPECT_EQ(machines["machines"][0]["alive"], false);
  EXPECT_LT(machines.dump().size(), 1'000'000);
  EXPECT_GT(machines.dump().size(), 800'000);
}

TEST_F(LargePageTest, MetricsCountWhatTheyLeaveOutAndKeepWhatIsNotWell) {
  const std::string text = Large("/metrics");
  EXPECT_THAT(text, Not(HasSubstr("megascale_nodes_left_out 0\n")));
  EXPECT_THAT(text, Not(HasSubstr("megascale_jobs_left_out 0\n")));
  EXPECT_THAT(text, HasSubstr("pool=\"quarantined\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("megascale_job_step{job_id=\"gpt-13b-7c2e91\"} 4000\n"));
  EXPECT_GT(text.size(), 700'000) << "it leaves out no more than it must";
}

TEST_F(LargePageTest, TheHeatMapReadsOneRankOfEachStageOfAReplica) {
  const json map = LargeJson("/api/heat-map");
  EXPECT_EQ(large_.num_ranks_read(), 192 * 8) << "so many spans fit in the driver's memory";
  ASSERT_EQ(map["ranks"].size(), 192 * 8);
  EXPECT_EQ(map["kinds"]["forward"].size(), map["ranks"].size());
  EXPECT_EQ(map["known"].size(), map["ranks"].size());
  EXPECT_EQ(map["num_steps"], 5);
  // Its tensor-parallel peer 13 is slow, and they do each pass together.
  const std::vector<double> forward = map["kinds"]["forward"];
  const auto first_stage_end = forward.begin() + 192;
  EXPECT_EQ(map["ranks"][std::max_element(forward.begin(), first_stage_end) - forward.begin()], 8);
  // The other replicas wait for it: for gradients in a stage, and for activations within its own.
  EXPECT_GT(map["kinds"]["bubble"][0].get<double>(), map["kinds"]["bubble"][1].get<double>());
}

TEST_F(LargePageTest, TheTimelineReadsTheRanksThatItShows) {
  const json timeline = LargeJson("/api/timeline", {{"axis", "data"}, {"rank", "1000"}});
  EXPECT_LE(large_.num_ranks_read(), 64);
  std::vector<int> ranks;
  for (const json& row : timeline["rows"]) ranks.push_back(row["rank"]);
  EXPECT_THAT(ranks, Contains(1000));
  EXPECT_EQ(ranks.size() + timeline["ranks_left_out"].get<size_t>(), 192);
  EXPECT_EQ(timeline["step"], 4000);
  EXPECT_EQ(timeline["other_ranks_known"], false);
  LargeJson("/api/timeline", {{"axis", "pipeline"}, {"rank", "1000"}});
  EXPECT_EQ(large_.num_ranks_read(), 8);
  EXPECT_EQ(large_.num_span_reads(), 2);
}

TEST_F(PageTest, AStepOfManyInstructionsIsReadOfFewerReplicas) {
  TestFleet fleet({.data = 300, .pipeline = 2, .tensor = 1, .microbatches = 500});
  Page page({.source = &fleet, .clock = &clock_});
  page.Poll();
  const http::Response map =
      page.Answer({.path = "/api/heat-map", .query = {{"job", TestFleet::kJobId}}});
  EXPECT_EQ(map.status, 200) << map.body;
  EXPECT_EQ(fleet.num_ranks_read(), 300) << "of every second replica";
}

TEST_F(PageTest, ARankWithTooManyInstructionsIsRefusedWithTheCommandThatShowsIt) {
  const auto timeline = [&](int microbatches) {
    TestFleet fleet({.data = 1, .pipeline = 2, .tensor = 1, .microbatches = microbatches});
    Page page({.source = &fleet, .clock = &clock_});
    page.Poll();
    return page.Answer({.path = "/api/timeline", .query = {{"job", TestFleet::kJobId}}});
  };
  const http::Response longest = timeline(2000);
  EXPECT_EQ(longest.status, 200) << longest.body;
  EXPECT_LT(longest.body.size(), 1'000'000);
  EXPECT_GT(longest.body.size(), 300'000);
  const http::Response refused = timeline(3000);
  EXPECT_EQ(refused.status, 409);
  EXPECT_THAT(refused.body, AllOf(HasSubstr("rank 0 has "), HasSubstr("megascale trace gpt-13b")));
}

TEST_F(PageTest, TheSpansOfAJobThatHasEndedAreForgotten) {
  GetJson("/api/heat-map");
  const control::v1::Job running = fleet_.job();
  fleet_.job().mutable_ended_at()->set_seconds(1);
  page_.Poll();
  fleet_.job() = running;
  page_.Poll();
  GetJson("/api/heat-map");
  EXPECT_EQ(fleet_.num_span_reads(), 2);
}

TEST_F(PageTest, EventsBringTheJobsOnceUntilTheyChange) {
  const auto events = page_.Events({.path = "/events", .query = {}});
  ASSERT_NE(events, nullptr);
  EXPECT_THAT(events->Next(), StartsWith("data: {"));
  EXPECT_EQ(events->Next(), "");
  fleet_.job().set_last_step(241);
  page_.Poll();
  EXPECT_THAT(events->Next(), HasSubstr("\"step\":241"));
  EXPECT_EQ(page_.Events({.path = "/", .query = {}}), nullptr);
}

// --- metrics ----------------------------------------------------------------------------------

TEST_F(PageTest, MetricsHaveAHelpATypeAndValuesOfJobsAndMachines) {
  const std::string text = Get("/metrics").body;
  EXPECT_THAT(text, HasSubstr("# TYPE megascale_job_restarts_total counter\n"));
  EXPECT_THAT(text, HasSubstr("megascale_job_step{job_id=\"gpt-13b-7c2e91\"} 240\n"));
  EXPECT_THAT(text,
              HasSubstr("megascale_job_state{job_id=\"gpt-13b-7c2e91\",state=\"running\"} 1\n"));
  EXPECT_THAT(text,
              HasSubstr("megascale_node_pool{node_id=\"node-005\",pool=\"quarantined\"} 1\n"));
  std::set<std::string> typed;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (words[0] == "#") {
      if (words[1] != "TYPE") continue;
      EXPECT_TRUE(typed.insert(words[2]).second) << "twice: " << line;
      continue;
    }
    const std::string name = words[0].substr(0, words[0].find('{'));
    EXPECT_EQ(typed.count(name), 1) << line;
  }
}

TEST(PrometheusTest, ManyMachinesLeaveOutNoJob) {
  ExportedJobs exported;
  for (int i = 0; i < 200; ++i) exported.jobs.emplace_back().set_job_id(absl::StrCat("job-", i));
  for (int i = 0; i < 8000; ++i) {
    exported.cluster.add_nodes()->set_node_id(absl::StrCat("node-", i));
  }
  const std::string text = PrometheusText(exported);
  EXPECT_THAT(text, HasSubstr("megascale_jobs_left_out 0\n"));
  EXPECT_THAT(text, Not(HasSubstr("megascale_nodes_left_out 0\n")));
  EXPECT_LE(text.size(), kExportedBytesMax);
  EXPECT_GT(text.size(), 900'000) << "it leaves out no more than it must";
}

TEST(PrometheusTest, HasTheNewestAndTheLowestLossOnHeldOutTextOfAJobThatEvaluated) {
  ExportedJobs exported;
  exported.jobs.emplace_back().set_job_id("without");
  control::v1::Job& job = exported.jobs.emplace_back();
  job.set_job_id("with");
  job.mutable_held_out()->set_loss(1.75);
  job.mutable_lowest_held_out()->set_loss(1.5);
  const std::string text = PrometheusText(exported);
  EXPECT_THAT(text, HasSubstr("\nmegascale_job_held_out_loss{job_id=\"with\"} 1.75\n"));
  EXPECT_THAT(text, HasSubstr("\nmegascale_job_held_out_loss_lowest{job_id=\"with\"} 1.5\n"));
  EXPECT_THAT(text, Not(HasSubstr("held_out_loss{job_id=\"without\"}")));
  EXPECT_THAT(text, Not(HasSubstr("held_out_loss_lowest{job_id=\"without\"}")));
}

TEST(PrometheusTest, ALabelCannotBreakOutOfItsQuotes) {
  ExportedJobs exported;
  exported.jobs.emplace_back().set_job_id("a\"} 1\nb\\");
  const std::string text = PrometheusText(exported);
  EXPECT_THAT(text, HasSubstr(R"(megascale_job_step{job_id="a\"} 1\\nb\\"} 0)"
                              "\n"));
}

TEST_F(PageTest, TheDashboardAsksForMetricsThatExist) {
  std::ifstream file("docs/grafana.json");
  const json dashboard = json::parse(file);
  const std::string text = Get("/metrics").body;
  int num_expressions = 0;
  for (const json& panel : dashboard["panels"]) {
    for (const json& target : panel.value("targets", json::array())) {
      const std::string expression = target["expr"];
      for (size_t at = expression.find("megascale_"); at != std::string::npos;
           at = expression.find("megascale_", at + 1)) {
        const std::string name = expression.substr(
            at, expression.find_first_not_of("abcdefghijklmnopqrstuvwxyz_", at) - at);
        EXPECT_THAT(text, HasSubstr(absl::StrCat("# TYPE ", name, " "))) << expression;
        ++num_expressions;
      }
    }
  }
  EXPECT_GT(num_expressions, 5);
}

}  // namespace
}  // namespace megascale::page
