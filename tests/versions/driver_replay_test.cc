// Agents of the release that was recorded talk to a driver of today: it must take every message and
// decide as the driver of that release did.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "controlplane/driver/service/driver_server.h"
#include "controlplane/protocol/protocol.h"
#include "proto/control.grpc.pb.h"
#include "runtime/base/checksum.h"
#include "runtime/base/clock.h"
#include "runtime/base/version.h"
#include "tests/e2e/cluster.h"
#include "tests/versions/conversation.h"
#include "tests/versions/played_agents.h"
#include "tests/versions/unknown.h"

namespace megascale::versions {
namespace {

using agent::v1::AgentUp;
using agent::v1::DesiredState;
using control::v1::Job;

constexpr int kPatienceSeconds = 30;

class DriverReplayTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/ms-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    directory_ = name;
    const auto recorded = ReadConversation(e2e::Runfile(kRecording));
    ASSERT_TRUE(recorded.ok()) << recorded.status();
    conversation_ = InDirectory(*recorded, directory_);
    answers_ = AnswersIn(conversation_);
    driver::DriverOptions options;
    options.listen_address = "unix:" + directory_ + "/driver/s";
    options.state_directory = directory_ + "/state";
    options.node_timeout = absl::Hours(1);  // played agents are silent between their messages
    auto server = driver::DriverServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = grpc::CreateChannel(options.listen_address, grpc::InsecureChannelCredentials());
    jobs_ = control::v1::JobService::NewStub(channel_);
  }
  void TearDown() override {
    agents_.clear();
    server_.reset();
    std::filesystem::remove_all(directory_);
  }

  // Plays the whole conversation. Stops at the first thing that is decided in another way.
  void Play(const PlayedAgent::Variants& variants) {
    NoteKnownVersions();
    for (int i = 0; i < conversation_.entries_size() && !HasFailure(); ++i) {
      SCOPED_TRACE(absl::StrCat("entry ", i));
      PlayEntry(i, variants);
    }
    for (const auto& [node_id, agent] : agents_) {
      if (HasFailure()) return;
      EXPECT_TRUE(agent->AwaitStore()) << node_id << " got no answer from the store";
      ComparePlacements(node_id);
    }
  }

  Job Get(const std::string& job_id) {
    grpc::ClientContext context;
    control::v1::GetJobRequest request;
    request.set_job_id(job_id);
    control::v1::GetJobResponse response;
    EXPECT_TRUE(jobs_->GetJob(&context, request, &response).ok());
    return response.job();
  }

  v1::Conversation conversation_;

 private:
  static constexpr char kRecording[] = "tests/versions/data/previous.gz";

  // Agents report what they know in batches: other desired states were never acted on alone.
  void NoteKnownVersions() {
    std::map<std::string, std::string> incarnations;  // by node
    for (const v1::Entry& entry : conversation_.entries()) {
      std::string& incarnation = incarnations[entry.node_id()];
      if (entry.up().has_hello()) incarnation = entry.up().hello().incarnation();
      for (const int64_t version :
           {entry.up().actual().known_version(), entry.up().actual().applied_version()}) {
        known_.insert(absl::StrCat(incarnation, "/", version));
      }
    }
  }
  bool IsKnown(const DesiredState& desired) const {
    return known_.count(absl::StrCat(desired.incarnation(), "/", desired.version())) > 0;
  }

  // Returns the next recorded states that the driver sent to the same agent.
  std::vector<DesiredState> LaterThan(int index) const {
    constexpr size_t kLookAhead = 4;
    const v1::Entry& first = conversation_.entries(index);
    std::vector<DesiredState> later;
    for (int i = index + 1; i < conversation_.entries_size() && later.size() < kLookAhead; ++i) {
      const v1::Entry& entry = conversation_.entries(i);
      if (entry.node_id() != first.node_id() || !entry.down().has_desired()) continue;
      if (entry.down().desired().incarnation() != first.down().desired().incarnation()) break;
      later.push_back(entry.down().desired());
    }
    return later;
  }

  void PlayEntry(int index, const PlayedAgent::Variants& variants) {
    const v1::Entry& entry = conversation_.entries(index);
    const std::string& node_id = entry.node_id();
    if (entry.has_submit()) {
      Call(&control::v1::JobService::Stub::SubmitJob, entry.submit(),
           control::v1::SubmitJobResponse());
    } else if (entry.has_cancel()) {
      Call(&control::v1::JobService::Stub::CancelJob, entry.cancel(),
           control::v1::CancelJobResponse());
    } else if (entry.has_seen()) {
      AwaitJob(entry.seen());
    } else if (entry.has_logs()) {
      Stream(&control::v1::JobService::Stub::StreamLogs, entry.logs(),
             control::v1::StreamLogsResponse());
    } else if (entry.has_spans()) {
      Stream(&control::v1::JobService::Stub::StreamSpans, entry.spans(),
             control::v1::StreamSpansResponse());
    } else if (entry.has_evidence()) {
      Stream(&control::v1::JobService::Stub::StreamEvidence, entry.evidence(),
             control::v1::StreamEvidenceResponse());
    } else if (entry.closed()) {
      ComparePlacements(node_id);
      agents_.erase(node_id);
    } else if (entry.up().has_hello()) {
      agents_.erase(node_id);
      over_.erase(node_id);
      EXPECT_TRUE(e2e::WaitUntil(
          [&] {
            auto agent = std::make_unique<PlayedAgent>(channel_, answers_[node_id], variants);
            if (!agent->Join(entry.up())) return false;
            agents_[node_id] = std::move(agent);
            return true;
          },
          kPatienceSeconds));
      if (agents_.count(node_id) == 0) return;
    } else if (entry.up().has_actual()) {
      agents_.at(node_id)->Report(entry.up().actual());
    } else if (entry.up().has_store()) {
      agents_.at(node_id)->Send(entry.up());
    } else if (entry.down().has_desired()) {
      AwaitDesired(index);
    }
  }

  void AwaitDesired(int index) {
    const v1::Entry& entry = conversation_.entries(index);
    const DesiredState& desired = entry.down().desired();
    NotePlacements(desired, &placements_[entry.node_id()]);
    if (!IsKnown(desired) || desired.version() <= over_[entry.node_id()]) return;
    PlayedAgent& agent = *agents_.at(entry.node_id());
    const std::vector<DesiredState> later = LaterThan(index);
    const size_t num_over = agent.Await(desired, later);
    ASSERT_GT(num_over, 0u) << entry.node_id() << " was told\n  " << DesiredText(desired)
                            << "\nand is now told\n  " << agent.newest();
    over_[entry.node_id()] = num_over > 1 ? later[num_over - 2].version() : desired.version();
  }

  void ComparePlacements(const std::string& node_id) {
    const auto today = agents_.at(node_id)->placements();
    for (const auto& [attempt, text] : std::exchange(placements_[node_id], {})) {
      const auto found = today.find(attempt);
      ASSERT_NE(found, today.end()) << attempt;
      EXPECT_EQ(found->second, text) << attempt;
    }
  }

  template <typename Method, typename Request, typename Response>
  void Call(Method method, const Request& request, Response response) {
    grpc::ClientContext context;
    const grpc::Status status = (jobs_.get()->*method)(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  // The agents' answers are those of the recording; each must get through.
  template <typename Method, typename Request, typename Response>
  void Stream(Method method, const Request& request, Response response) {
    grpc::ClientContext context;
    const auto reader = (jobs_.get()->*method)(&context, request);
    int num_messages = 0;
    while (reader->Read(&response)) ++num_messages;
    const grpc::Status status = reader->Finish();
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_GT(num_messages, 0) << request.GetTypeName();
  }
  void AwaitJob(const Job& seen) {
    std::string now;
    const bool is_so = e2e::WaitUntil(
        [&] { return (now = JobText(Get(seen.job_id()))) == JobText(seen); }, kPatienceSeconds);
    ASSERT_TRUE(is_so) << "the job was\n  " << JobText(seen) << "\nand is now\n  " << now;
  }

  std::string directory_;
  std::map<std::string, std::map<std::string, AgentUp>> answers_;
  std::unique_ptr<driver::DriverServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<control::v1::JobService::Stub> jobs_;
  std::map<std::string, std::unique_ptr<PlayedAgent>> agents_;  // by node
  std::set<std::string> known_;  // INCARNATION/VERSION of the desired states that reports name
  std::map<std::string, int64_t> over_;  // by node: up to this recorded version nothing is awaited
  std::map<std::string, std::map<std::string, std::string>> placements_;  // recorded, by node
};

// docs/versions.md: the release before this one is what this one must work with.
TEST_F(DriverReplayTest, TheRecordingIsOfTheMinorReleaseBeforeThisOneOrOfThisOne) {
  int recorded_major = -1;
  int recorded_minor = -1;
  int major = 0;
  int minor = 0;
  ASSERT_EQ(std::sscanf(conversation_.program_version().c_str(), "%d.%d", &recorded_major,
                        &recorded_minor),
            2);
  ASSERT_EQ(std::sscanf(base::kVersion, "%d.%d", &major, &minor), 2);
  EXPECT_EQ(recorded_major, major);
  EXPECT_GE(recorded_minor, minor - 1)
      << "record the release before this one: tests/versions/record.sh";
  EXPECT_LE(recorded_minor, minor);
  EXPECT_GE(conversation_.protocol_version(), protocol::kOldestVersion);
}

// The recording that was added together with PREVIOUS, before recordings named their commit.
constexpr char kUnnamedCommit[] = "c0dc232b";
constexpr char kUnnamedSha256[] =
    "08073a8b10573b8fcc234cb18fe26b0554dd27b1929c44bd32e3bc88651b8209";

TEST_F(DriverReplayTest, TheRecordingIsOfTheCommitThatIsTheReleaseBefore) {
  std::ifstream file(e2e::Runfile("tests/versions/PREVIOUS"));
  std::string previous;
  while (std::getline(file, previous) && absl::StartsWith(previous, "#")) {
  }
  ASSERT_FALSE(previous.empty());
  std::string recorded = conversation_.commit();
  if (recorded.empty()) {
    EXPECT_EQ(base::Sha256OfFile(e2e::Runfile("tests/versions/data/previous.gz")).value(),
              kUnnamedSha256)
        << "a recording names its commit: tests/versions/record.sh";
    recorded = kUnnamedCommit;
  }
  EXPECT_EQ(recorded, previous) << "record it: tests/versions/record.sh";
}

TEST_F(DriverReplayTest, AgentsOfTheReleaseGetTheSameDecisions) { Play({}); }

TEST_F(DriverReplayTest, FieldsThatTheDriverDoesNotKnowChangeNoDecision) {
  Play([](const AgentUp& up) {
    AgentUp newer = up;
    AddUnknownFields(&newer);
    return std::vector<AgentUp>{newer};
  });
}

// Each report comes first in every form that a newer agent might give it. The true one follows, so
// the decisions must be the same in the end.
TEST_F(DriverReplayTest, ValuesAndMessagesThatTheDriverDoesNotKnowEndNothing) {
  std::atomic<int> num_forms = 0;
  Play([&](const AgentUp& up) {
    std::vector<AgentUp> forms;
    if (!up.has_hello()) {
      AgentUp unknown;  // a kind of message that only a newer agent sends
      AddUnknownFields(&unknown);
      forms.push_back(unknown);
      ForEachUnknownValue(
          up, [&](const google::protobuf::Message& form) { forms.emplace_back().CopyFrom(form); });
    }
    num_forms += static_cast<int>(forms.size());
    forms.push_back(up);
    return forms;
  });
  EXPECT_GT(num_forms, conversation_.entries_size());
}

}  // namespace
}  // namespace megascale::versions
