// The program against a driver whose answers are fixed: what it prints about them.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "cli/view/terminal.h"
#include "proto/control.grpc.pb.h"

namespace megascale::cli {
namespace {

namespace control = megascale::control::v1;

class FixedDriver final : public control::JobService::Service {
 public:
  grpc::Status GetJob(grpc::ServerContext*, const control::GetJobRequest* request,
                      control::GetJobResponse* response) override {
    if (request->job_id() != job.job_id()) return NoSuchJob();
    *response->mutable_job() = job;
    return grpc::Status::OK;
  }
  grpc::Status WatchJob(grpc::ServerContext*, const control::WatchJobRequest* request,
                        grpc::ServerWriter<control::WatchJobResponse>* writer) override {
    if (request->job_id() != job.job_id()) return NoSuchJob();
    control::WatchJobResponse response;
    *response.mutable_job() = job;
    auto* ranks = response.mutable_job()->mutable_ranks();
    const int ranks_max = request->ranks_max() == 0 ? ranks->size() : request->ranks_max();
    if (ranks_max < ranks->size()) ranks->DeleteSubrange(ranks_max, ranks->size() - ranks_max);
    response.mutable_job()->set_state(control::JOB_STATE_RUNNING);
    if (runs_at_first) writer->Write(response);
    response.mutable_job()->set_state(job.state());
    writer->Write(response);
    return grpc::Status::OK;
  }
  // One job on each page.
  grpc::Status ListJobs(grpc::ServerContext*, const control::ListJobsRequest* request,
                        control::ListJobsResponse* response) override {
    const int page = request->page_token().empty() ? 0 : std::atoi(request->page_token().c_str());
    *response->add_jobs() = job;
    if (num_pages > 1) response->mutable_jobs(0)->set_job_id(absl::StrCat("known-", page));
    if (page + 1 < num_pages) response->set_next_page_token(absl::StrCat(page + 1));
    return grpc::Status::OK;
  }

  grpc::Status SubmitJob(grpc::ServerContext*, const control::SubmitJobRequest*,
                         control::SubmitJobResponse* response) override {
    *response->mutable_job() = job;
    return grpc::Status::OK;
  }

  grpc::Status GetCluster(grpc::ServerContext*, const control::GetClusterRequest*,
                          control::GetClusterResponse* response) override {
    *response = cluster;
    return grpc::Status::OK;
  }
  // Steps from 1 on.
  grpc::Status ListSteps(grpc::ServerContext*, const control::ListStepsRequest* request,
                         control::ListStepsResponse* response) override {
    for (int64_t step = std::max<int64_t>(1, request->first_step()); step <= num_steps; ++step) {
      response->add_steps()->set_step(step);
    }
    return grpc::Status::OK;
  }
  // The samples of a machine whose GPU was 50 degrees warm in step 2, and 70 in step 3.
  grpc::Status StreamEvidence(
      grpc::ServerContext*, const control::StreamEvidenceRequest*,
      grpc::ServerWriter<control::StreamEvidenceResponse>* writer) override {
    control::StreamEvidenceResponse response;
    for (const int64_t step : {1, 2, 3}) {
      telemetry::v1::MachineSample* sample = response.mutable_evidence()->add_samples();
      sample->add_ranks()->set_job_id(job.job_id());
      sample->mutable_ranks(0)->set_step(step);
      sample->add_gpus()->set_temperature_celsius(static_cast<double>(30 + 20 * step));
    }
    writer->Write(response);
    return grpc::Status::OK;
  }

  // Rank by rank, as a driver reads them; whoever follows gets what comes after the positions.
  grpc::Status StreamLogs(grpc::ServerContext*, const control::StreamLogsRequest* request,
                          grpc::ServerWriter<control::StreamLogsResponse>* writer) override {
    for (const control::StreamLogsResponse& piece : logs) {
      int64_t offset = 0;
      for (const control::LogPosition& at : request->resume_at()) {
        if (at.rank() == piece.rank()) offset = at.offset();
      }
      control::StreamLogsResponse rest = piece;
      rest.set_data(piece.data().substr(static_cast<size_t>(offset)));
      rest.set_end_offset(static_cast<int64_t>(piece.data().size()));
      if (!rest.data().empty()) writer->Write(rest);
    }
    return grpc::Status::OK;
  }

  std::vector<control::StreamLogsResponse> logs;
  control::GetClusterResponse cluster;
  control::Job job;
  int num_pages = 1;           // of the list
  int num_steps = 4;           // in the loss log
  bool runs_at_first = false;  // those who follow the job see it running before its end

 private:
  static grpc::Status NoSuchJob() {
    return {grpc::StatusCode::NOT_FOUND, "there is no such job; `megascale list` shows all jobs"};
  }
};

struct Outcome {
  int code = -1;
  std::string out;  // standard output
  std::string error;
};

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class AnswersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char directory[] = "/tmp/ms-XXXXXX";
    ASSERT_NE(::mkdtemp(directory), nullptr);
    directory_ = directory;
    driver_.job.set_job_id("known");
    driver_.job.set_state(control::JOB_STATE_FAILED);
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.AddListeningPort(absl::StrCat("unix:", directory_, "/driver"),
                             grpc::InsecureServerCredentials());
    builder.RegisterService(&driver_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    flags_ = absl::StrCat(" --address 127.0.0.1:", port, " --insecure");
  }
  void TearDown() override {
    server_->Shutdown();
    std::filesystem::remove_all(directory_);
  }

  // Runs `megascale <words>` with the flags that reach the driver.
  Outcome Run(const std::string& words) { return Shell(absl::StrCat("megascale ", words, flags_)); }

  Outcome Shell(const std::string& line) {
    const std::string command =
        absl::StrCat("(megascale() { timeout 60 cli/megascale \"$@\"; }; ", line, ") >", directory_,
                     "/out 2>", directory_, "/error");
    const int status = std::system(command.c_str());
    return {WEXITSTATUS(status), ReadAll(directory_ + "/out"), ReadAll(directory_ + "/error")};
  }

  // Returns the lines that the command prints on a terminal of that width.
  std::vector<std::string> RunOnTerminal(const std::string& words, int width) {
    const std::string command = absl::StrCat("TERM=xterm NO_COLOR=1 exec timeout --foreground 60 ",
                                             "cli/megascale ", words, flags_);
    winsize size = {};
    size.ws_row = 24;
    size.ws_col = static_cast<unsigned short>(width);
    int terminal = -1;
    const pid_t pid = ::forkpty(&terminal, nullptr, nullptr, &size);
    if (pid == 0) {
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
    std::string shown;
    char buffer[4096];
    // A read fails once the terminal's last process has ended.
    for (ssize_t got = 0; (got = ::read(terminal, buffer, sizeof(buffer))) > 0;) {
      shown.append(buffer, static_cast<size_t>(got));
    }
    ::close(terminal);
    int status = -1;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0) << shown;
    std::vector<std::string> lines = absl::StrSplit(shown, "\r\n");
    EXPECT_EQ(lines.back(), "") << shown;
    lines.pop_back();
    return lines;
  }

  // Runs the command that `text` has in backquotes.
  Outcome RunPrinted(const std::string& text) {
    const size_t begin = text.find('`');
    const size_t end = text.find('`', begin + 1);
    if (end == std::string::npos) return {};
    return Shell(text.substr(begin + 1, end - begin - 1));
  }

  std::string directory_;
  std::string flags_;
  FixedDriver driver_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(AnswersTest, CommandsInErrorsWorkAsTheyArePrinted) {
  for (const char* words : {"status nobody", "wait nobody", "watch nobody", "logs nobody"}) {
    const Outcome refused = Run(words);
    EXPECT_EQ(refused.code, 4) << refused.error;
    EXPECT_EQ(refused.error, absl::StrCat("megascale: there is no such job; `megascale list",
                                          flags_, "` shows all jobs\n"));
    EXPECT_EQ(RunPrinted(refused.error).code, 0) << refused.error;
  }
}

TEST_F(AnswersTest, CommandsInAJobsMessageWorkAsTheyArePrinted) {
  driver_.job.set_message("see `megascale checkpoint verify /c`, then `megascale submit JOB.yaml`");
  const std::string expected = absl::StrCat(
      "FAILED: see `megascale checkpoint verify /c`, then `megascale submit JOB.yaml", flags_, "`");
  const Outcome status = Run("status known");
  EXPECT_TRUE(absl::StrContains(status.out, expected)) << status.out << status.error;
  EXPECT_FALSE(absl::StrContains(Run("status known -o json").out, flags_));
}

// What a window shows needs few ranks; JSON has all.
TEST_F(AnswersTest, JsonOfThoseWhoFollowAJobHasAllItsRanks) {
  for (int rank = 0; rank < 100; ++rank)
    driver_.job.add_ranks()->set_node_id(absl::StrCat("n", rank));
  driver_.job.set_num_ranks(100);
  driver_.job.set_state(control::JOB_STATE_SUCCEEDED);
  for (const char* words : {"wait known -o json", "watch known -o json", "status known -o json"}) {
    const Outcome whole = Run(words);
    EXPECT_EQ(whole.code, 0) << whole.error;
    EXPECT_TRUE(absl::StrContains(whole.out, "\"n99\"")) << words;
  }
}

TEST_F(AnswersTest, CommandsInADiagnosisWorkAsTheyArePrinted) {
  driver_.job.mutable_culprit()->set_node_id("n0");
  driver_.job.mutable_culprit()->set_rank(3);
  driver_.job.mutable_culprit()->set_attempt(2);
  driver_.job.mutable_culprit()->set_evidence("killed by signal 9");
  const Outcome failed = Run("diagnose known");
  EXPECT_EQ(failed.code, 0) << failed.error;
  EXPECT_TRUE(absl::StrContains(
      failed.out,
      absl::StrCat("look at what it wrote: `megascale logs known --attempt 2", flags_, "`\n")))
      << failed.out;
}

// The screen cuts long lines, but no command that is to be typed.
TEST_F(AnswersTest, CommandsInADiagnosisAreWholeWithLongPaths) {
  driver_.job.mutable_culprit()->set_rank(3);
  driver_.job.mutable_culprit()->set_attempt(2);
  driver_.job.mutable_culprit()->set_evidence("killed by signal 9");
  const std::string folder = absl::StrCat("/", std::string(100, 'a'));
  // A Unix socket needs no certificates, and the options are completed all the same.
  const std::string flags =
      absl::StrCat(" --address unix:", directory_, "/driver --tls-ca ", folder,
                   "/ca.pem --tls-cert ", folder, "/user.pem --tls-key ", folder, "/user.key");
  for (const char* format : {"", " -o json"}) {
    const Outcome failed = Shell(absl::StrCat("megascale diagnose known", format, flags));
    EXPECT_TRUE(absl::StrContains(failed.out,
                                  absl::StrCat("`megascale logs known --attempt 2", flags, "`")))
        << failed.out << failed.error;
  }
}

TEST_F(AnswersTest, ASilentDriverLeavesStandardOutputToThePicture) {
  server_->Shutdown();
  const Outcome silent = Run("diagnose known --svg - --retry-for 0s");
  EXPECT_EQ(silent.code, 3);
  EXPECT_EQ(silent.out, "");
  EXPECT_TRUE(absl::StrContains(silent.error, "silent driver: ")) << silent.error;
  const Outcome text = Run("diagnose known --retry-for 0s");
  EXPECT_EQ(text.code, 3);
  EXPECT_TRUE(absl::StartsWith(text.out, "silent driver: ")) << text.out;
  EXPECT_EQ(text.error, "") << "the verdict says it";
}

TEST_F(AnswersTest, CommandsInAListWorkAsTheyArePrinted) {
  driver_.job.set_message("see `megascale nodes` and `megascale diagnose known`");
  const Outcome list = Run("list");
  EXPECT_TRUE(
      absl::StrContains(list.out, absl::StrCat("see `megascale nodes", flags_,
                                               "` and `megascale diagnose known", flags_, "`\n")))
      << list.out;
}

// People look only at the end.
TEST_F(AnswersTest, WarningsAndTheFailureStandAtTheEndOfAJob) {
  driver_.job.add_warnings("node n0: 4 threads share 2 cores");
  driver_.job.mutable_culprit()->set_evidence("killed by signal 9\nlog: the last line");
  driver_.runs_at_first = true;
  const Outcome watched = Run("watch known");
  EXPECT_EQ(watched.code, 1) << watched.error;
  const std::string end = "  log: the last line\nwarning: node n0: 4 threads share 2 cores\n";
  EXPECT_TRUE(absl::EndsWith(watched.out, end)) << watched.out;
  driver_.runs_at_first = false;
  const std::string once = Run("watch known").out;
  EXPECT_TRUE(absl::EndsWith(once, end)) << once;
  EXPECT_EQ(once.find("warning: "), once.rfind("warning: ")) << once;
  const Outcome status = Run("status known");
  EXPECT_TRUE(absl::StrContains(status.out, end)) << status.out;
}

TEST_F(AnswersTest, OutputThatCannotBeWrittenIsAFailure) {
  for (const char* words : {"list", "status known"}) {
    const Outcome full = Shell(absl::StrCat("megascale ", words, flags_, " >/dev/full"));
    EXPECT_EQ(full.code, 1) << words;
    EXPECT_TRUE(absl::StrContains(full.error, "No space left on device")) << full.error;
  }
}

TEST_F(AnswersTest, AListFitsItsTerminalAndIsWholeEverywhere) {
  driver_.job.set_message(std::string(300, 'm'));
  EXPECT_TRUE(absl::EndsWith(Run("list").out, absl::StrCat("  ", driver_.job.message(), "\n")));
  const auto message_of = [](const std::vector<std::string>& lines, size_t first) {
    std::string message;
    for (size_t i = first; i < lines.size(); ++i) absl::StrAppend(&message, lines[i]);
    std::erase_if(message, [](char letter) { return letter != 'm'; });
    return message;
  };
  for (const int width : {80, 120}) {
    const std::vector<std::string> lines = RunOnTerminal("list", width);
    ASSERT_GT(lines.size(), 2u);
    EXPECT_EQ(DisplayWidth(lines[1]), width) << lines[1];
    for (const std::string& line : lines) EXPECT_LE(DisplayWidth(line), width) << line;
    EXPECT_EQ(message_of(lines, 1), driver_.job.message());
  }
  driver_.job.set_job_id(std::string(100, 'j'));
  const std::vector<std::string> lines = RunOnTerminal("list", 80);
  ASSERT_GT(lines.size(), 7u) << absl::StrJoin(lines, "\n");
  EXPECT_EQ(lines[1], driver_.job.job_id()) << "an id is never cut";
  EXPECT_EQ(lines[2], "    state: FAILED");
  EXPECT_EQ(lines[6], "    message:") << "a word this long begins a line";
  for (size_t i = 2; i < lines.size(); ++i) EXPECT_LE(DisplayWidth(lines[i]), 80) << lines[i];
  EXPECT_EQ(message_of(lines, 6), absl::StrCat("m", driver_.job.message()));  // and the name's
}

TEST_F(AnswersTest, MachinesFitTheirTerminal) {
  for (const char* id : {"n0", "a-node-with-a-name-as-clouds-give-them-7f3e9a.region-2.internal"}) {
    control::NodeView* node = driver_.cluster.add_nodes();
    node->set_node_id(id);
    node->set_alive(true);
    node->add_exchanges()->set_bytes_per_second(1e9);
    node->mutable_resources()->set_memory_source("MemTotal of this machine");
    node->mutable_resources()->set_cores_source("cores of this machine");
  }
  const std::string evidence = "memory: byte 7 of a page of the second module has a wrong bit";
  for (const bool has_evidence : {false, true}) {
    if (has_evidence) {
      driver_.cluster.mutable_nodes(1)->mutable_quarantined_at()->set_seconds(1'700'000'000);
      driver_.cluster.mutable_nodes(1)->set_quarantine_evidence(evidence);
    }
    for (const int width : {80, 120}) {
      for (const char* command : {"nodes", "status"}) {
        const std::vector<std::string> lines = RunOnTerminal(command, width);
        const std::string all = absl::StrJoin(lines, "\n");
        for (const std::string& line : lines) {
          EXPECT_LE(DisplayWidth(line), width) << line;
          EXPECT_NE(line, "") << all;
          EXPECT_FALSE(absl::EndsWith(line, " ")) << "'" << line << "'";
        }
        const bool is_shown = command == std::string("nodes") && has_evidence;
        std::string words;  // without the breaks of lines
        for (const std::string& line : lines) {
          absl::StrAppend(&words, absl::StripLeadingAsciiWhitespace(line), " ");
        }
        EXPECT_EQ(absl::StrContains(words, evidence), is_shown) << all;
      }
    }
  }
  EXPECT_TRUE(absl::StrContains(Run("nodes").out, absl::StrCat(evidence, "\n")));
}

TEST_F(AnswersTest, AListShowsAllPagesOrTheNewestJobs) {
  driver_.num_pages = 3;
  const Outcome all = Run("list");
  EXPECT_EQ(all.code, 0) << all.error;
  for (const char* job : {"known-0 ", "known-1 ", "known-2 "}) {
    EXPECT_TRUE(absl::StrContains(all.out, job)) << all.out;
  }
  const Outcome json = Run("list -o json");
  EXPECT_TRUE(absl::StrContains(json.out, "known-2")) << json.out;
  EXPECT_TRUE(absl::StrContains(json.out, "\"next_page_token\": \"\"")) << json.out;
  const Outcome two = Run("list --limit 2");  // this driver has the newest one on its first page
  EXPECT_LT(two.out.find("known-0 "), two.out.find("known-1 ")) << "newest first: " << two.out;
  EXPECT_FALSE(absl::StrContains(two.out, "known-2")) << two.out;
  for (const char* wrong : {"0", "-3", "x", ""}) {
    const Outcome refused = Run(absl::StrCat("list --limit '", wrong, "'"));
    EXPECT_EQ(refused.code, 2) << wrong << refused.out;
    EXPECT_TRUE(absl::StrContains(refused.error, "--limit")) << refused.error;
  }
}

TEST_F(AnswersTest, AJobThatHasEndedIsNotSubmittedAgain) {
  const std::string submit = "submit examples/tiny.yaml --job-id known";
  driver_.job.set_submitted_age_seconds(7200);
  driver_.job.mutable_ended_at()->set_seconds(1'700'000'000);
  const Outcome ended = Run(submit);
  EXPECT_EQ(ended.code, 2);
  EXPECT_EQ(ended.out, "");
  EXPECT_TRUE(
      absl::StartsWith(ended.error,
                       "megascale: job known: exists already, FAILED since 2023-11-14T22:13:20Z\n"
                       "  run it again under another --job-id, or without one; "))
      << ended.error;
  EXPECT_EQ(RunPrinted(ended.error).code, 0) << ended.error;

  driver_.job.set_submitted_age_seconds(0.001);
  const Outcome own = Run(submit);
  EXPECT_EQ(own.code, 0) << "the answer to its own first try may have been lost" << own.error;
  EXPECT_EQ(own.out, "known\n");

  driver_.job.set_submitted_age_seconds(7200);
  driver_.job.set_state(control::JOB_STATE_RUNNING);
  const Outcome running = Run(submit);
  EXPECT_EQ(running.code, 0);
  EXPECT_EQ(running.out, "known\n");
  EXPECT_TRUE(absl::StartsWith(running.error, "job known: exists already, RUNNING; nothing was "))
      << running.error;
}

TEST_F(AnswersTest, WaitingForAJobOfAnAbsentDriverIsNoFailureOfTheJob) {
  server_->Shutdown();
  for (const char* words : {"wait known --retry-for 0s", "wait known --timeout 1s"}) {
    const Outcome waited = Run(words);
    EXPECT_EQ(waited.code, 3) << words << waited.error;
    EXPECT_EQ(waited.out, "");
  }
}

TEST_F(AnswersTest, TheAdviceAboutAnAbsentDriverStartsOneThatIsFound) {
  server_->Shutdown();
  const Outcome plain = Run("list --retry-for 0s");
  EXPECT_EQ(plain.code, 3);
  const std::string listen = absl::StrCat("--listen", flags_.substr(flags_.find("s 127") + 1));
  EXPECT_TRUE(absl::StrContains(plain.error, absl::StrCat("start one with `megascale driver ",
                                                          listen, "`, or name another one with ")))
      << plain.error;
}

TEST_F(AnswersTest, MetricsOfAJobWhoseLossLogIsGoneAreAnError) {
  driver_.num_steps = 0;
  driver_.job.set_directory("/state/jobs/known");
  EXPECT_EQ(Run("metrics known").code, 0) << "it completed no step";
  driver_.job.set_last_step(1500);
  const Outcome gone = Run("metrics known");
  EXPECT_EQ(gone.code, 1);
  EXPECT_EQ(gone.out, "");
  EXPECT_EQ(gone.error,
            "megascale: job known: completed 1500 steps, but its loss log is missing or empty: "
            "/state/jobs/known/metrics.jsonl\n");
  driver_.job.set_state(control::JOB_STATE_RUNNING);  // from a checkpoint
  EXPECT_EQ(Run("metrics known").code, 0);
}

TEST_F(AnswersTest, MetricsOfAnEndedJobThatCompletedNoStepAfterItsCheckpointAreEmpty) {
  driver_.num_steps = 0;
  driver_.job.set_first_step(1000);
  for (const int64_t last : {0, 1000}) {  // refused by its preflight; ended before its first step
    driver_.job.set_last_step(last);
    const Outcome none = Run("metrics known");
    EXPECT_EQ(none.code, 0) << last << none.error;
    EXPECT_EQ(none.error, "");
  }
  driver_.job.set_last_step(1001);
  const Outcome gone = Run("metrics known");
  EXPECT_EQ(gone.code, 1);
  EXPECT_TRUE(absl::StrContains(gone.error, "completed 1 step, but its loss log")) << gone.error;
}

TEST_F(AnswersTest, NodesSaySinceWhenAMachineIsQuarantinedAndWhy) {
  driver_.cluster.add_nodes()->set_node_id("n0");
  control::NodeView* node = driver_.cluster.add_nodes();
  node->set_node_id("n1");
  node->set_pool(control::POOL_QUARANTINED);
  node->mutable_quarantined_at()->set_seconds(1'700'000'000);
  node->set_quarantine_evidence("memory: byte 7 has a wrong bit");
  const std::string since = absl::FormatTime(
      "since %Y-%m-%d %H:%M", absl::FromUnixSeconds(1'700'000'000), absl::LocalTimeZone());
  const Outcome shown = Run("nodes");
  EXPECT_TRUE(absl::StrContains(shown.out, since + ": memory: byte 7 has a wrong bit"))
      << shown.out;
  const Outcome json = Run("nodes -o json");
  EXPECT_TRUE(absl::StrContains(json.out, "\"quarantined_at\": \"2023-11-14T22:13:20Z\""))
      << json.out;
}

TEST_F(AnswersTest, LogsOfSeveralRanksAreShownByTime) {
  for (const int rank : {0, 1}) {
    control::StreamLogsResponse& piece = driver_.logs.emplace_back();
    piece.set_rank(rank);
    piece.set_attempt(1);
    piece.set_node_id("n0");
    piece.set_data(absl::StrCat("2026-11-22T22:21:51.", rank, "00Z begins\n",
                                "2026-11-22T22:21:52.", rank, "00Z steps\n"));
  }
  constexpr char kInOrder[] =
      "[rank 0] 2026-11-22T22:21:51.000Z begins\n"
      "[rank 1] 2026-11-22T22:21:51.100Z begins\n"
      "[rank 0] 2026-11-22T22:21:52.000Z steps\n"
      "[rank 1] 2026-11-22T22:21:52.100Z steps\n";
  EXPECT_EQ(Run("logs known").out, kInOrder);
  EXPECT_EQ(Run("logs -f known").out, kInOrder) << "each line once";
  // A line that is being written comes whole.
  driver_.logs[1].mutable_data()->append("2026-11-22T22:21:53.000Z is not yet");
  EXPECT_EQ(Run("logs -f known").out,
            absl::StrCat(kInOrder, "[rank 1] 2026-11-22T22:21:53.000Z is not yet\n"));
  EXPECT_EQ(Run("logs --rank 0 known").out.find("["), std::string::npos);
}

TEST_F(AnswersTest, NodesSayWhoWaitsToBeNamed) {
  control::NodeView* node = driver_.cluster.add_nodes();
  node->set_node_id("n1");
  node->set_alive(true);
  node->set_unnamed(true);
  node->set_certificate("agent-n1");
  node->set_address("10.0.0.7");
  const Outcome shown = Run("nodes");
  EXPECT_TRUE(absl::StrContains(shown.out, "waits to be named")) << shown.out;
  EXPECT_TRUE(absl::StrContains(
      shown.out, absl::StrCat("certificate 'agent-n1' at 10.0.0.7; `megascale uncordon n1", flags_,
                              "` names it")))
      << shown.out;
}

// --- GPUs ---------------------------------------------------------------------------------------

TEST_F(AnswersTest, NodesHaveColumnsForGpusWhereThereAreSome) {
  driver_.cluster.add_nodes()->set_node_id("n0");
  driver_.cluster.add_nodes()->set_node_id("n1");
  const Outcome without = Run("nodes");
  EXPECT_EQ(without.out.find("GPU"), std::string::npos) << without.out;
  EXPECT_TRUE(absl::StrContains(Run("nodes -o json").out, "\"gpus\": []"));
  telemetry::v1::GpuSample* gpu = driver_.cluster.mutable_nodes(1)->add_gpus();
  gpu->set_busy_share(0.97);
  gpu->set_temperature_celsius(91);
  gpu->add_throttled_by("heat");
  const Outcome with = Run("nodes");
  for (const char* part : {"GPUS", "HOTTEST", "97 %", "91 C", "1 throttled (heat)"}) {
    EXPECT_TRUE(absl::StrContains(with.out, part)) << part << "\n" << with.out;
  }
  const Outcome json = Run("nodes -o json");
  EXPECT_TRUE(absl::StrContains(json.out, "\"temperature_celsius\": 91")) << json.out;
}

TEST_F(AnswersTest, MetricsHaveColumnsForGpusWhereTheJobsMachinesHaveSome) {
  constexpr char kColumns[] =
      "step,loss,grad_norm,lr,tokens,seconds,tokens_per_second,mfu,attempt,held_out_loss";
  driver_.job.set_state(control::JOB_STATE_RUNNING);
  driver_.job.add_ranks()->set_node_id("n1");
  driver_.cluster.add_nodes()->set_node_id("n1");
  driver_.cluster.add_nodes()->set_node_id("n2");
  driver_.cluster.mutable_nodes(1)->add_gpus();
  const Outcome without = Run("metrics known");
  EXPECT_EQ(without.code, 0) << without.error;
  EXPECT_TRUE(absl::StartsWith(without.out, absl::StrCat(kColumns, "\n1,0,"))) << without.out;
  driver_.cluster.mutable_nodes(0)->add_gpus();
  const Outcome with = Run("metrics known");
  EXPECT_TRUE(absl::StartsWith(
      with.out, absl::StrCat(kColumns,
                             ",gpu_busy_share,gpu_memory_used_bytes,gpu_memory_bytes,"
                             "gpu_temperature_celsius,gpu_power_watts,gpus_throttled,"
                             "gpu_corrected_errors,gpu_uncorrected_errors\n"
                             "1,0,0,0,0,0,0,,0,,,,,,,,,\n"
                             "2,0,0,0,0,0,0,,0,,,,,50,,0,,\n"
                             "3,0,0,0,0,0,0,,0,,,,,70,,0,,\n"
                             "4,0,0,0,0,0,0,,0,,,,,,,,,\n")))
      << with.out;
  const Outcome json = Run("metrics known --from 3 -o json");
  EXPECT_TRUE(absl::StrContains(json.out, "\"gpu_temperature_celsius\":70.0,")) << json.out;
  EXPECT_TRUE(absl::StrContains(json.out, "\"gpu_power_watts\":null,")) << json.out;
}

}  // namespace
}  // namespace megascale::cli
