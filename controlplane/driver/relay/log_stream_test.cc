#include "controlplane/driver/relay/log_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;
using ::testing::ElementsAre;

// A fake cluster: the output of each process, and the connected nodes.
class LogStreamTest : public ::testing::Test {
 protected:
  LogStreamTest() {
    job_.set_job_id("j");
    job_.set_attempt(1);
    job_.set_state(control::JOB_STATE_RUNNING);
    for (const char* node : {"a", "b"}) {
      job_.add_ranks()->set_node_id(node);
      connected_.insert(node);
    }
    request_.set_job_id("j");
    request_.set_rank(-1);
    request_.set_follow(true);
  }

  // Runs the stream. Each function of `on_wait` runs in one wait and returns false to stop the
  // stream.
  absl::Status Run(std::vector<std::function<bool()>> on_wait) {
    size_t num_waits = 0;
    LogStreamPorts ports;
    ports.job = [this] { return job_; };
    ports.cluster = [this] {
      control::GetClusterResponse cluster;
      for (const std::string& node : connected_) {
        cluster.add_nodes()->set_node_id(node);
        cluster.mutable_nodes()->rbegin()->set_alive(true);
      }
      return cluster;
    };
    ports.fetch = [this](const std::string& node, const agent::FetchLog& fetch) {
      if (before_fetch_) before_fetch_(node);
      return Fetch(node, fetch);
    };
    ports.emit = [this](const control::StreamLogsResponse& piece) {
      emitted_.push_back(absl::StrCat(piece.attempt(), " ", piece.node_id(), piece.rank(), " ",
                                      piece.data(), "@", piece.end_offset()));
      return true;
    };
    ports.wait = [&](absl::Duration) {
      return num_waits < on_wait.size() && on_wait[num_waits++]();
    };
    return StreamLogs(request_, ports);
  }

  absl::StatusOr<agent::LogChunk> Fetch(const std::string& node, const agent::FetchLog& fetch) {
    if (connected_.count(node) == 0) return absl::UnavailableError("not connected");
    const auto log = logs_.find({node, fetch.attempt(), fetch.rank()});
    if (log == logs_.end()) return absl::NotFoundError("no log");
    agent::LogChunk chunk;
    chunk.set_data(log->second.substr(static_cast<size_t>(fetch.offset())));
    chunk.set_next_offset(static_cast<int64_t>(log->second.size()));
    return chunk;
  }

  void ResumeAt(const std::string& node, int rank, int64_t offset) {
    control::LogPosition* at = request_.add_resume_at();
    at->set_node_id(node);
    at->set_rank(rank);
    at->set_attempt(1);
    at->set_offset(offset);
  }

  bool End() {
    job_.set_state(control::JOB_STATE_SUCCEEDED);
    return true;
  }

  control::Job job_;
  control::StreamLogsRequest request_;
  std::set<std::string> connected_;
  std::map<std::tuple<std::string, int64_t, int>, std::string> logs_;  // of node, attempt, rank
  std::vector<std::string> emitted_;
  std::function<void(const std::string& node)> before_fetch_;
};

TEST_F(LogStreamTest, AllOfAnAttemptIsReadBeforeTheNext) {
  logs_[{"a", 1, 0}] = "one\n";
  EXPECT_TRUE(Run({[&] {
                logs_[{"a", 1, 0}] += "last words";
                logs_[{"b", 2, 0}] = "two\n";
                logs_[{"b", 3, 0}] = "three\n";
                job_.set_attempt(3);
                return End();
              }}).ok());
  EXPECT_THAT(emitted_,
              ElementsAre("1 a0 one\n@4", "1 a0 last words@14", "2 b0 two\n@4", "3 b0 three\n@6"));
}

TEST_F(LogStreamTest, AfterARestoredLogItGoesOnWithTheAttemptsOfTheNewEpoch) {
  logs_[{"a", 1, 0}] = "one\n";
  logs_[{"a", 1'000'002, 0}] = "two\n";
  ResumeAt("a", 0, 0);
  job_.set_attempt(1'000'002);
  End();
  EXPECT_TRUE(Run({}).ok());
  EXPECT_THAT(emitted_, ElementsAre("1 a0 one\n@4", "1000002 a0 two\n@4"));
}

TEST_F(LogStreamTest, AResumedStreamNeitherRepeatsNorLosesLines) {
  logs_[{"a", 1, 0}] = "one\ntwo\n";
  logs_[{"b", 1, 1}] = "uno\n";
  logs_[{"b", 1, -1}] = "host\n";
  logs_[{"b", 2, 0}] = "three\n";
  ResumeAt("a", 0, 4);
  ResumeAt("b", 1, 4);
  job_.set_attempt(2);
  End();
  EXPECT_TRUE(Run({}).ok());
  EXPECT_THAT(emitted_, ElementsAre("1 a0 two\n@8", "1 b-1 host\n@5", "2 b0 three\n@6"));
}

// The driver was restarted, and its agents are not back yet.
TEST_F(LogStreamTest, AResumedStreamWaitsForTheNodesThatItWasReading) {
  logs_[{"a", 1, 0}] = "one\ntwo\n";
  ResumeAt("a", 0, 4);
  connected_.clear();
  End();
  EXPECT_TRUE(Run({[&] { return connected_.insert("a").second; }}).ok());
  EXPECT_THAT(emitted_, ElementsAre("1 a0 two\n@8"));

  connected_.clear();
  int num_waits = 0;
  const std::function<bool()> wait = [&] { return ++num_waits > 0; };
  EXPECT_TRUE(Run(std::vector<std::function<bool()>>(1000, wait)).ok());
  EXPECT_EQ(num_waits, kNodeAbsenceMax / kFollowInterval) << "not for ever";
}

// Each agent answers only once the other one was asked, too.
TEST_F(LogStreamTest, TheAgentsOfTwoRanksAreAskedAtTheSameTime) {
  logs_[{"a", 1, 0}] = "one\n";
  logs_[{"b", 1, 1}] = "uno\n";
  std::mutex mutex;
  std::condition_variable changed;
  std::set<std::string> asked;
  before_fetch_ = [&](const std::string& node) {
    std::unique_lock<std::mutex> lock(mutex);
    asked.insert(node);
    changed.notify_all();
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(30), [&] { return asked.size() == 2; }))
        << "only " << node << " was asked";
  };
  End();
  EXPECT_TRUE(Run({}).ok());
  EXPECT_THAT(emitted_, ElementsAre("1 a0 one\n@4", "1 b1 uno\n@4")) << "in the order of ranks";
}

TEST_F(LogStreamTest, OfOneRankOnlyItsAgentIsAsked) {
  job_.add_ranks()->set_node_id("c");
  connected_.insert("c");
  logs_[{"b", 1, 1}] = "uno\n";
  request_.set_rank(1);
  std::set<std::string> asked;
  before_fetch_ = [&](const std::string& node) { asked.insert(node); };
  End();
  EXPECT_TRUE(Run({}).ok());
  EXPECT_THAT(emitted_, ElementsAre("1 b1 uno\n@4"));
  EXPECT_THAT(asked, ElementsAre("b"));
}

TEST_F(LogStreamTest, AStreamThatIsStoppedDoesNotLookComplete) {
  logs_[{"a", 1, 0}] = "one\n";
  EXPECT_EQ(Run({[] { return false; }}).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace megascale::driver
