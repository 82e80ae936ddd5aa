// What the page answers to requests, and what the web server refuses and survives.
#include "controlplane/page/page.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "controlplane/http/http_server.h"
#include "controlplane/http/request_guard.h"
#include "controlplane/page/evidence_json.h"
#include "controlplane/page/failure_history.h"
#include "controlplane/page/prometheus.h"
#include "nlohmann/json.hpp"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "tests/page/test_fleet.h"

namespace megascale::page {
namespace {

using http::RequestGuard;
using http::RequestHead;
using http::Verdict;
using nlohmann::json;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// --- the guard --------------------------------------------------------------------------------

constexpr char kToken[] = "0123456789abcdef0123456789abcdef";

RequestGuard Guard() { return RequestGuard({"127.0.0.1", "localhost"}, 7078, false, kToken); }

RequestHead GoodHead() {
  return {.method = "GET",
          .host = "127.0.0.1:7078",
          .origin = "",
          .cookie = absl::StrCat("other=1; megascale_7078=", kToken),
          .authorization = "",
          .token = ""};
}

TEST(RequestGuardTest, ServesWhoHasTheTokenInACookieOrAsABearer) {
  EXPECT_EQ(Guard().Judge(GoodHead()), Verdict::kServe);
  RequestHead head = GoodHead();
  head.cookie = "";
  EXPECT_EQ(Guard().Judge(head), Verdict::kMissingToken);
  head.authorization = absl::StrCat("bearer ", kToken);
  EXPECT_EQ(Guard().Judge(head), Verdict::kServe);
  head.authorization = "Bearer 0123456789abcdef0123456789abcdee";
  EXPECT_EQ(Guard().Judge(head), Verdict::kMissingToken);
}

TEST(RequestGuardTest, ATokenInTheQueryBecomesACookieThatOtherSitesDoNotSend) {
  RequestHead head = GoodHead();
  head.token = kToken;
  EXPECT_EQ(Guard().Judge(head), Verdict::kSetCookie);
  EXPECT_THAT(Guard().SetCookie(), HasSubstr("HttpOnly; SameSite=Strict"));
  head.token = "wrong";
  EXPECT_EQ(Guard().Judge(head), Verdict::kMissingToken);
}

TEST(RequestGuardTest, RefusesOtherHostsOriginsAndMethods) {
  RequestHead head = GoodHead();
  for (const char* host :
       {"evil.example:7078", "127.0.0.1", "127.0.0.1:80", "", "localhost.evil"}) {
    head.host = host;
    EXPECT_EQ(Guard().Judge(head), Verdict::kWrongHost) << host;
  }
  head.host = "LOCALHOST:7078";
  EXPECT_EQ(Guard().Judge(head), Verdict::kServe);
  for (const char* origin :
       {"http://evil.example", "null", "https://localhost:7078", "http://localhost"}) {
    head.origin = origin;
    EXPECT_EQ(Guard().Judge(head), Verdict::kWrongOrigin) << origin;
  }
  head.origin = "http://localhost:7078";
  EXPECT_EQ(Guard().Judge(head), Verdict::kServe);
  head.method = "POST";
  EXPECT_EQ(Guard().Judge(head), Verdict::kBadMethod);
}

TEST(RequestGuardTest, AnAddressOfIpV6StandsInBrackets) {
  const RequestGuard guard({"::1"}, 443, true, kToken);
  RequestHead head = GoodHead();
  head.cookie = absl::StrCat("megascale_443=", kToken);
  head.host = "[::1]";
  EXPECT_EQ(guard.Judge(head), Verdict::kServe) << "browsers leave out the port of https";
  EXPECT_THAT(guard.SetCookie(), HasSubstr("Secure"));
}

// --- the server -------------------------------------------------------------------------------

class HttpServerTest : public ::testing::Test {
 protected:
  void Start(int connections_max = 64) {
    http::HttpOptions options;
    options.address = "127.0.0.1:0";
    options.token = kToken;
    options.connections_max = connections_max;
    options.event_interval = absl::Milliseconds(1);
    options.answer = [](const http::Request& request) {
      http::Response response;
      response.body = absl::StrCat("path ", request.path, " a ",
                                   request.query.count("a") ? request.query.at("a") : "none");
      return response;
    };
    options.events = [](const http::Request& request) -> std::unique_ptr<http::EventSource> {
      class Counter : public http::EventSource {
        std::string Next() override { return absl::StrCat("data: ", ++count_, "\n\n"); }
        int count_ = 0;
      };
      if (request.path != "/events") return nullptr;
      return std::make_unique<Counter>();
    };
    auto server = http::HttpServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  base::UniqueFd Connect() {
    base::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(server_->port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval limit = {.tv_sec = 20, .tv_usec = 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }
  static void Send(const base::UniqueFd& fd, const std::string& text) {
    EXPECT_EQ(::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  // Reads until the end, or until `end` occurs.
  static std::string Read(const base::UniqueFd& fd, const std::string& end = "") {
    std::string text;
    char block[4096];
    for (;;) {
      const ssize_t got = ::recv(fd.get(), block, sizeof(block), 0);
      if (got <= 0) return text;
      text.append(block, static_cast<size_t>(got));
      if (!end.empty() && absl::StrContains(text, end)) return text;
    }
  }
  std::string Request(const std::string& line, const std::string& headers) {
    const base::UniqueFd fd = Connect();
    Send(fd, absl::StrCat(line, " HTTP/1.1\r\nHost: 127.0.0.1:", server_->port(),
                          "\r\nConnection: close\r\n", headers, "\r\n"));
    return Read(fd);
  }
  std::string Bearer() const { return absl::StrCat("Authorization: Bearer ", kToken, "\r\n"); }

  std::unique_ptr<http::HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersWithHeadersThatForbidForeignScripts) {
  Start();
  const std::string answer = Request("GET /x%20y?a=%3Cb%3E", Bearer());
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer, HasSubstr("path /x y a <b>"));
  EXPECT_THAT(answer, HasSubstr("Content-Security-Policy: default-src 'none'"));
  EXPECT_THAT(answer, HasSubstr("frame-ancestors 'none'"));
  EXPECT_THAT(answer, HasSubstr("X-Content-Type-Options: nosniff"));
}

TEST_F(HttpServerTest, WithoutTheTokenItSaysOnlyWhereToFindIt) {
  Start();
  EXPECT_THAT(Request("GET /", ""), StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(Request("GET /events", ""), StartsWith("HTTP/1.1 401"));
  const std::string redirect = Request(absl::StrCat("GET /?token=", kToken), "");
  EXPECT_THAT(redirect, StartsWith("HTTP/1.1 303"));
  EXPECT_THAT(redirect, HasSubstr(absl::StrCat("Set-Cookie: megascale_", server_->port())));
  EXPECT_THAT(redirect, HasSubstr("Location: /\r\n"));
}

TEST_F(HttpServerTest, ABodyOrAnotherMethodIsNotTaken) {
  Start();
  EXPECT_THAT(Request("DELETE /", Bearer()), StartsWith("HTTP/1.1 405"));
  const std::string body = absl::StrCat("Content-Length: 5\r\n", Bearer());
  EXPECT_THAT(Request("POST /", body), StartsWith("HTTP/1.1 405"));
}

TEST_F(HttpServerTest, AHeadThatIsTooLongEndsTheConnection) {
  Start();
  const std::string answer =
      Request("GET /", absl::StrCat("X-Long: ", std::string(100'000, 'x'), "\r\n", Bearer()));
  EXPECT_THAT(answer, Not(HasSubstr("path /")));
  EXPECT_THAT(Request("GET /", Bearer()), HasSubstr("path /"));
}

TEST_F(HttpServerTest, ClientsThatHoldAllConnectionsKeepOthersOutOnlyUntilTheyGo) {
  Start(/*connections_max=*/3);
  std::vector<base::UniqueFd> idle;
  for (int i = 0; i < 3; ++i) {
    idle.push_back(Connect());
    Send(idle.back(), "GET / HT");
  }
  // The fourth one is closed, or answered if it came before the server counted the others.
  const base::UniqueFd fourth = Connect();
  idle.clear();
  std::string answer;
  for (int tries = 0; tries < 1000 && !absl::StrContains(answer, "path /"); ++tries) {
    answer = Request("GET /", Bearer());
  }
  EXPECT_THAT(answer, HasSubstr("path /"));
}

TEST_F(HttpServerTest, EventsComeOneAfterTheOtherUntilTheServerEnds) {
  Start();
  const base::UniqueFd fd = Connect();
  Send(fd, absl::StrCat("GET /events HTTP/1.1\r\nHost: 127.0.0.1:", server_->port(), "\r\n",
                        Bearer(), "\r\n"));
  const std::string text = Read(fd, "data: 3\n");
  EXPECT_THAT(text, HasSubstr("Content-Type: text/event-stream"));
  EXPECT_THAT(text, HasSubstr("data: 1\n"));
  server_.reset();
  Read(fd);  // ends
}

TEST_F(HttpServerTest, OffThisMachineItNeedsTls) {
  http::HttpOptions options;
  options.address = "0.0.0.0:0";
  options.token = kToken;
  const auto plain = http::HttpServer::Start(options);
  EXPECT_EQ(plain.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(plain.status().message(), HasSubstr("off this machine it needs TLS"));
  options.address = "unix:/tmp/x";
  EXPECT_EQ(http::HttpServer::Start(options).status().code(), absl::StatusCode::kInvalidArgument);
}

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
  for (const char* path :
       {"/", "/page.js", "/charts.js", "/ranks.js", "/timeline.js", "/page.css"}) {
    const std::string body = Get(path).body;
    EXPECT_THAT(body, Not(HasSubstr("https://"))) << path;
    EXPECT_THAT(body, Not(HasSubstr("innerHTML"))) << path;
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

TEST_F(PageTest, TheTimelineHasTheRanksOfItsViewAndMessagesBetweenThem) {
  const auto ranks_of = [&](const std::string& view) {
    const json timeline = GetJson("/api/timeline", {{"view", view}, {"rank", "13"}});
    std::vector<int> ranks;
    for (const json& row : timeline["rows"]) ranks.push_back(row["rank"]);
    return ranks;
  };
  EXPECT_THAT(ranks_of("pipeline"), ElementsAre(5, 13, 21, 29));
  EXPECT_THAT(ranks_of("data"), ElementsAre(9, 11, 13, 15));
  EXPECT_THAT(ranks_of("tensor"), ElementsAre(12, 13));
  const json timeline = GetJson("/api/timeline", {{"view", "pipeline"}, {"rank", "13"}});
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
  EXPECT_EQ(Get("/api/timeline", {{"job", TestFleet::kJobId}, {"view", "x"}}).status, 400);
  EXPECT_EQ(Get("/api/timeline", {{"job", TestFleet::kJobId}, {"rank", "32"}}).status, 400);
}

TEST_F(PageTest, ARankHasItsPlaceItsNeighboursAndForWhomItWaits) {
  const json rank = GetJson("/api/rank", {{"rank", "21"}});
  EXPECT_EQ(rank["position"], json({{"data", 2}, {"pipeline", 2}, {"tensor", 1}}));
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
  EXPECT_EQ(exchanges["completed"][0]["sequence"], 4180);
  EXPECT_EQ(Get("/api/exchanges", {{"job", TestFleet::kJobId}, {"rank", "32"}}).status, 404);
}

TEST_F(PageTest, AMachineShowsItsMetricsWhileAJobRunsThere) {
  const json metrics = GetJson("/api/machine-metrics", {{"node", "node-001"}});
  ASSERT_EQ(metrics["seconds"].size(), 601);
  EXPECT_EQ(metrics["seconds"][0], -600);
  EXPECT_EQ(metrics["seconds"][600], 0);
  for (const auto& [name, values] : metrics.items()) EXPECT_EQ(values.size(), 601) << name;
  EXPECT_NEAR(metrics["received_bytes"][600].get<double>(), 2.2e10, 4e9) << "of two interfaces";
  EXPECT_NEAR(metrics["tokens_per_second"][600].get<double>(), 4000, 81) << "of eight ranks";
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

TEST_F(PageTest, AFleetOf12288RanksIsShownInLessThanAMegabyte) {
  TestFleet fleet({.data = 192, .pipeline = 8, .tensor = 8, .last_step = 5});
  Page page({.source = &fleet, .clock = &clock_});
  page.Poll();
  for (const char* path : {"/api/ranks", "/api/jobs", "/api/machines", "/metrics"}) {
    const http::Response response =
        page.Answer({.path = path, .query = {{"job", TestFleet::kJobId}}});
    EXPECT_EQ(response.status, 200);
    EXPECT_LT(response.body.size(), 1'000'000) << path;
  }
  const http::Response spans =
      page.Answer({.path = "/api/heat-map", .query = {{"job", TestFleet::kJobId}}});
  EXPECT_EQ(spans.status, 409);
  EXPECT_EQ(fleet.num_span_reads(), 0) << "so many spans must not fill the driver's memory";
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

TEST(PrometheusTest, ALabelCannotBreakOutOfItsQuotes) {
  EXPECT_EQ(PrometheusLabel("a\"} 1\nb\\"), R"("a\"} 1\\nb\\")");
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
