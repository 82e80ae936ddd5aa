// What others may leave in the driver's state directory, and agents that do not read.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/service/driver_server.h"
#include "controlplane/driver/service/testing/fake_agent_stream.h"
#include "controlplane/driver/service/testing/server_test_base.h"
#include "runtime/base/fd.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class StrangersTest : public ServerTestBase {
 protected:
  // Returns why the driver does not start.
  std::string Refusal() { return std::string(DriverServer::Start(options_).status().message()); }
};

TEST_F(StrangersTest, AStateDirectoryThatOthersMayWriteIsRefused) {
  Restart();
  server_.reset();
  ASSERT_EQ(::chmod(options_.state_directory.c_str(), 0777), 0);
  EXPECT_EQ(Refusal(), absl::StrCat(options_.state_directory,
                                    ": has mode 0777, expected 0700, closed to others: chmod 700 ",
                                    options_.state_directory, "; or give another --state-dir"));
  ASSERT_EQ(::chmod(options_.state_directory.c_str(), 0755), 0);
  Restart();
}

TEST_F(StrangersTest, AFileThatOthersMayWriteIsRefusedWhereTheStateLies) {
  Restart();
  server_.reset();
  const std::string log = options_.state_directory + "/log";
  ASSERT_EQ(::chmod(log.c_str(), 0777), 0);
  EXPECT_THAT(Refusal(),
              HasSubstr(log + ": has mode 0777, expected that only its owner may write"));
  ASSERT_EQ(::chmod(log.c_str(), 0700), 0);
  Restart();
}

TEST_F(StrangersTest, ATokenThatOthersMayReadIsRefused) {
  options_.http_address = "127.0.0.1:0";
  ASSERT_TRUE(base::MakeDirectories(options_.state_directory).ok());
  const std::string path = options_.state_directory + "/http-token";
  ASSERT_TRUE(base::WriteFileDurably(path, "0123456789abcdef0123456789abcdef\n").ok());
  ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
  EXPECT_THAT(Refusal(), HasSubstr("http-token: has mode 0644, expected 0600, closed to others"));
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  Restart();
}

TEST_F(StrangersTest, OptionsOutOfRangeAreRefusedWithTheirNames) {
  options_.slots_max = 0;
  EXPECT_EQ(Refusal(), "--slots-max: 0 is out of range; expected 1 to 992");
  options_.slots_max = 8;
  options_.new_nodes_per_hour = 0;
  EXPECT_EQ(Refusal(), "--new-nodes-per-hour: 0: expected 1 or more");
  options_.new_nodes_per_hour = 8;
  options_.join = "all";
  EXPECT_EQ(Refusal(), "--join: unknown value 'all'; expected any or known");
}

// 1,000 questions to the store, whose answers have about 1.4 MiB.
agent::AgentUp Questions() {
  agent::AgentUp up;
  for (int i = 0; i < 1000; ++i) {
    agent::StoreRequest* request = up.mutable_store()->add_requests();
    request->set_request_id(std::string(1000, 'x'));
  }
  return up;
}

// It asks the store again and again, and reads no answer.
TEST_F(StrangersTest, TheStreamOfAnAgentThatDoesNotReadIsEnded) {
  Restart();
  FakeAgentStream stream(channel_, "a");
  const agent::AgentUp up = Questions();
  // Each answer is longer than its question. At most 16 MiB of answers wait.
  bool ended = false;
  for (int i = 0; i < 1000 && !ended; ++i) ended = !stream.TryWrite(up);
  EXPECT_TRUE(ended) << "a gigabyte was answered to nobody";
  const grpc::Status status = stream.Finish();
  EXPECT_TRUE(status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED ||
              status.error_code() == grpc::StatusCode::CANCELLED)
      << status.error_code();
}

// Each has fewer answers waiting than one agent may have.
TEST_F(StrangersTest, TheStreamWithTheMostAnswersIsEndedWhenTooManyWaitForAllAgents) {
  constexpr int kAgents = 16;
  options_.new_nodes_per_hour = kAgents;
  Restart();
  std::vector<std::unique_ptr<FakeAgentStream>> streams;
  for (int i = 0; i < kAgents; ++i) {
    streams.push_back(std::make_unique<FakeAgentStream>(channel_, absl::StrCat("incarnation-", i),
                                                        absl::StrCat("n", i)));
  }
  const agent::AgentUp up = Questions();
  for (int question = 0; question < 13; ++question) {
    for (const auto& stream : streams) stream->TryWrite(up);
  }
  // All streams end by themselves after 30 s, with another code.
  std::vector<grpc::StatusCode> ended;
  while (ended.empty()) {
    for (const auto& stream : streams) {
      if (!stream->TryReport()) ended.push_back(stream->Finish().error_code());
    }
  }
  EXPECT_LT(ended.size(), kAgents / 2);
  for (const grpc::StatusCode code : ended) {
    EXPECT_THAT(code, AnyOf(grpc::StatusCode::RESOURCE_EXHAUSTED, grpc::StatusCode::CANCELLED));
  }
}

}  // namespace
}  // namespace megascale::driver
