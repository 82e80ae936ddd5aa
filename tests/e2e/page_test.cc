// The page, the metrics and the event files of a real driver and job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "runtime/base/fd.h"
#include "tests/e2e/cluster.h"

namespace megascale::e2e {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

class PageTest : public ::testing::Test {
 protected:
  std::string StateFile(const std::string& name) const {
    const auto text = base::ReadFile(cluster_.state_directory() + "/" + name, 4096);
    return std::string(absl::StripAsciiWhitespace(text.value_or("")));
  }
  std::string Token() const { return StateFile("http-token"); }
  // "http://127.0.0.1:41234"
  std::string Site() const {
    const std::string url = StateFile("http-url");
    return absl::StrReplaceAll(url.substr(0, url.find("/?")), {{"0.0.0.0", "127.0.0.1"}});
  }
  // Returns the status and the body: "200 {…}". `context`: Python that makes a TLS context, or
  // None.
  std::string Fetch(const std::string& path, const std::string& token,
                    const std::string& context = "None") const {
    return FetchFrom(Site(), path, token, context);
  }
  static std::string FetchFrom(const std::string& site, const std::string& path,
                               const std::string& token, const std::string& context) {
    const std::string program = absl::StrCat(
        "import ssl, sys, urllib.request, urllib.error\n"
        "request = urllib.request.Request(sys.argv[1], headers={'Authorization': 'Bearer ' + "
        "sys.argv[2]})\n"
        "try:\n"
        "  answer = urllib.request.urlopen(request, timeout=20, context=",
        context,
        ")\n"
        "except urllib.error.HTTPError as error:\n"
        "  answer = error\n"
        "print(answer.status, answer.read().decode())\n");
    const CommandResult result =
        e2e::Run({"/usr/bin/python3", "-c", program, site + path, token}, {{"no_proxy", "*"}});
    return result.exit_code == 0 ? result.out : result.err;
  }
  // A real Prometheus scrapes the driver, until it answers each query with its value.
  void ExpectPrometheusAnswers(const std::map<std::string, std::string>& queries) const {
    std::vector<std::string> command = {"/usr/bin/python3",
                                        Runfile("tests/page/prometheus_check.py"),
                                        Site() + "/?token=" + Token()};
    for (const auto& [query, expected] : queries) {
      command.insert(command.end(), {query, expected});
    }
    const CommandResult checked = e2e::Run(command);
    EXPECT_EQ(checked.exit_code, 0) << checked.out << checked.err;
  }
  json FetchJson(const std::string& path) const {
    const std::string answer = Fetch(path, Token());
    EXPECT_EQ(answer.substr(0, 4), "200 ") << answer;
    return json::parse(answer.substr(4));
  }

  Cluster cluster_;
};

// The whole lines of a CSV text, split.
std::vector<std::vector<std::string>> Table(const std::string& text) {
  std::vector<std::vector<std::string>> table;
  for (const absl::string_view line :
       absl::StrSplit(text.substr(0, text.rfind('\n') + 1), '\n', absl::SkipEmpty())) {
    table.push_back(absl::StrSplit(line, ','));
  }
  return table;
}

constexpr size_t kColumns = 10;  // of `metrics`
constexpr size_t kAttempt = 8;

// `table`: what `metrics --follow` printed of a job whose second attempt began with the first step.
void ExpectStepsAgain(const std::vector<std::vector<std::string>>& table,
                      const std::vector<std::string>& loss_log) {
  int64_t step = 0;
  std::string attempt = "1";
  for (size_t i = 1; i < table.size(); ++i) {
    ASSERT_EQ(table[i].size(), kColumns) << absl::StrJoin(table[i], ",");
    if (table[i][kAttempt] != attempt) {
      EXPECT_EQ(table[i][kAttempt], "2");
      EXPECT_GT(step, 4) << "the first attempt's steps came before";
      attempt = table[i][kAttempt];
      step = 0;
    }
    ASSERT_EQ(table[i][0], absl::StrCat(++step)) << "line " << i;
  }
  EXPECT_EQ(attempt, "2");
  // "step loss norm", in hexadecimal floating point.
  const std::vector<std::string> last = absl::StrSplit(loss_log.back(), ' ');
  EXPECT_EQ(table.back()[0], last[0]);
  EXPECT_EQ(table.back()[1], absl::StrFormat("%.9g", std::strtod(last[1].c_str(), nullptr)));
}

TEST_F(PageTest, ShowsARunningJobAndItsMetricsGoElsewhere) {
  cluster_.SetDriverFlags({"--http", "127.0.0.1:0"});
  cluster_.StartDriver();
  cluster_.StartAgent(0, 4);
  // Without a checkpoint, the attempt after the failure computes every step again.
  cluster_.Submit("shown",
                  {"tensorboard=true", "train.steps=100000", "checkpoint.interval=100000"});
  ASSERT_TRUE(cluster_.WaitForStep("shown", 5));
  const std::string follow_log = cluster_.directory() + "/follow.log";
  const pid_t follow = Spawn(
      {Program(), "metrics", "shown", "--follow", "--address", cluster_.address()}, follow_log);
  const auto followed = [&] {
    return Table(base::ReadFile(follow_log, size_t{16} << 20).value_or(""));
  };
  ASSERT_TRUE(WaitUntil([&] { return followed().size() > 5; }, 30));
  EXPECT_THAT(Fetch("/api/jobs", "wrong"), HasSubstr("401 "));

  ASSERT_TRUE(WaitUntil(
      [&] { return FetchJson("/api/heat-map?job=shown").value("num_steps", 0) > 0; }, 30));
  const json map = FetchJson("/api/heat-map?job=shown");
  EXPECT_GT(map["kinds"]["forward"].at(0).get<double>(), 0);
  EXPECT_FALSE(FetchJson("/api/timeline?job=shown&rank=1")["rows"].empty());
  const json ranks = FetchJson("/api/ranks?job=shown");
  EXPECT_EQ(ranks["ranks"]["node"].size(), map["known"].size());
  EXPECT_EQ(FetchJson("/api/rank?job=shown&rank=1")["rank"], 1);
  const auto log = [&] { return Fetch("/api/log?job=shown&rank=0", Token()); };
  EXPECT_TRUE(WaitUntil([&] { return absl::StrContains(log(), "worker 0"); }, 30)) << log();
  EXPECT_EQ(FetchJson("/api/machines")["machines"].at(0)["pool"], "active");
  ExpectPrometheusAnswers({
      {"megascale_job_step{job_id=\"shown\"} > bool 4", "1"},
      {"megascale_job_state{job_id=\"shown\",state=\"running\"}", "1"},
      {"count(megascale_node_pool{pool=\"active\"})", "1"},
  });

  const std::vector<pid_t> workers = DescendantsOf(cluster_.agent_pid(0), "worker");
  ASSERT_FALSE(workers.empty());
  ASSERT_EQ(::kill(workers[0], SIGKILL), 0);
  const auto failures = [&] { return FetchJson("/api/job?job=shown")["failures"]; };
  ASSERT_TRUE(WaitUntil(
      [&] {
        const json seen = failures();
        return !seen.empty() && seen[0]["recovery_seconds"].get<double>() >= 0;
      },
      60));
  EXPECT_EQ(failures()[0]["class"], "exited");
  EXPECT_GE(failures()[0]["detection_seconds"].get<double>(), 0);
  ASSERT_TRUE(WaitUntil([&] { return followed().back().at(kAttempt) == "2"; }, 30));

  ASSERT_EQ(cluster_.Megascale({"cancel", "shown"}).exit_code, 0);
  EXPECT_EQ(cluster_.WaitForEnd("shown"), control::v1::JOB_STATE_CANCELLED);
  const size_t num_steps = cluster_.LossLog("shown").size();
  EXPECT_EQ(FetchJson("/api/steps?job=shown&points=4000")["step"].back(), num_steps);

  const int follow_status = WaitForExit(follow, 30);
  EXPECT_TRUE(WIFEXITED(follow_status) && WEXITSTATUS(follow_status) == 0)
      << "it ends with the job: " << follow_status;
  ExpectStepsAgain(followed(), cluster_.LossLog("shown"));

  const CommandResult csv = cluster_.Megascale({"metrics", "shown"});
  EXPECT_EQ(csv.exit_code, 0) << csv.err;
  const std::vector<std::string> lines = absl::StrSplit(csv.out, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), num_steps + 1);
  EXPECT_EQ(lines[0],
            "step,loss,grad_norm,lr,tokens,seconds,tokens_per_second,mfu,attempt,held_out_loss");
  const CommandResult last = cluster_.Megascale(
      {"metrics", "shown", "-o", "json", "--follow", "--from", absl::StrCat(num_steps)});
  EXPECT_EQ(json::parse(last.out)["step"], num_steps) << last.out << last.err;
  EXPECT_EQ(cluster_.Megascale({"metrics", "none"}).exit_code, 4);
  EXPECT_EQ(cluster_.Megascale({"metrics", "shown", "-o", "xml"}).exit_code, 2);

  const std::filesystem::path folder = cluster_.state_directory() + "/jobs/shown/tensorboard";
  int num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    EXPECT_THAT(entry.path().filename().string(), HasSubstr("tfevents"));
    EXPECT_GT(entry.file_size(), num_steps * 100);
    ++num_files;
  }
  EXPECT_EQ(num_files, 1);
}

TEST_F(PageTest, ThereIsNoPageUnlessItIsAskedFor) {
  cluster_.StartDriver();
  cluster_.StartAgent(0, 1);
  EXPECT_EQ(cluster_.Megascale({"nodes"}).exit_code, 0);
  EXPECT_EQ(StateFile("http-url"), "");
  EXPECT_EQ(StateFile("http-token"), "");
}

TEST_F(PageTest, LocalShowsItsRunWhileItRuns) {
  const std::string state = cluster_.directory() + "/local";
  const std::string log = cluster_.directory() + "/local.log";
  const pid_t local =
      Spawn({Program(), "local", WriteJobFile(cluster_.directory()), "--set", "train.steps=100000",
             "--slots", "4", "--state-dir", state, "--http", "127.0.0.1:0"},
            log);
  const auto find = [&](const std::string& name) -> std::string {
    std::error_code error;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(state, error)) {
      if (entry.path().filename() == name) return entry.path();
    }
    return "";
  };
  std::string url;
  ASSERT_TRUE(WaitUntil(
      [&] {
        url = base::ReadFile(find("http-url"), 4096).value_or("");
        return !url.empty();
      },
      60));
  const std::string token = std::string(
      absl::StripAsciiWhitespace(base::ReadFile(find("http-token"), 4096).value_or("")));
  const std::string site = url.substr(0, url.find("/?"));
  EXPECT_TRUE(WaitUntil(
      [&] {
        const std::string answer = FetchFrom(site, "/api/jobs", token, "None");
        if (answer.substr(0, 4) != "200 ") return false;
        const json jobs = json::parse(answer.substr(4))["jobs"];
        return jobs.size() == 1 && jobs[0]["state"] == "RUNNING" && jobs[0]["step"] > 0;
      },
      60))
      << base::ReadFile(log, 1 << 20).value_or("");
  ::kill(local, SIGTERM);
  EXPECT_NE(WaitForExit(local, 60), -1);
}

TEST_F(PageTest, LocalSaysWhereTheUrlOfItsPageIsAndPrintsItToTerminalsOnly) {
  const CommandResult run =
      e2e::Run({Program(), "local", WriteJobFile(cluster_.directory()), "--set", "train.steps=5",
                "--slots", "4", "--state-dir", cluster_.directory() + "/local",
                "--held-out-windows", "1", "--http", "127.0.0.1:0"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("the page: its URL with the token is in "));
  EXPECT_THAT(run.out, HasSubstr("/http-url\n"));
  EXPECT_THAT(run.out + run.err, Not(HasSubstr("token=")));
}

TEST_F(PageTest, TheTokenOutlivesTheDriver) {
  cluster_.SetDriverFlags({"--http", "127.0.0.1:0"});
  cluster_.StartDriver();
  const std::string token = Token();
  EXPECT_EQ(token.size(), 32);
  EXPECT_EQ(std::filesystem::status(cluster_.state_directory() + "/http-token").permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  cluster_.StopDriver();
  cluster_.StartDriver();
  EXPECT_EQ(Token(), token);
  EXPECT_THAT(Fetch("/api/jobs", token), HasSubstr("200 "));
}

TEST_F(PageTest, OffThisMachineAReaderNeedsAUsersCertificateAndTheToken) {
  cluster_.UseTls();
  cluster_.SetDriverFlags({"--http", "0.0.0.0:0"});
  cluster_.StartDriver();
  const auto context = [&](const std::string& name) {
    const std::string folder = cluster_.certificates();
    return absl::StrCat("(lambda c: (c.load_cert_chain('", folder, "/", name, ".pem', '", folder,
                        "/", name, ".key'), c)[1])(ssl.create_default_context(cafile='", folder,
                        "/ca.pem'))");
  };
  EXPECT_THAT(Fetch("/api/jobs", Token(), context("user")), HasSubstr("200 "));
  EXPECT_THAT(Fetch("/api/jobs", "wrong", context("user")), HasSubstr("401 "));
  EXPECT_THAT(Fetch("/api/jobs", Token(), context("agent")), HasSubstr("403 "));
  const std::string no_certificate =
      absl::StrCat("ssl.create_default_context(cafile='", cluster_.certificates(), "/ca.pem')");
  EXPECT_THAT(Fetch("/api/jobs", Token(), no_certificate), Not(HasSubstr("200 ")));
}

}  // namespace
}  // namespace megascale::e2e
