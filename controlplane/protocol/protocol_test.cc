#include "controlplane/protocol/protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace megascale::protocol {
namespace {

using testing::HasSubstr;

constexpr int kNewest = agent::v1::PROTOCOL_VERSION_CURRENT;

absl::Status Check(int newest, int oldest) {
  agent::v1::Hello hello;
  hello.set_node_id("n0");
  hello.set_protocol_version(newest);
  hello.set_oldest_protocol_version(oldest);
  return CheckVersions(hello);
}

TEST(ProtocolTest, AnAgentOfThisProgramIsTaken) {
  agent::v1::Hello hello;
  SetVersions(&hello);
  EXPECT_TRUE(CheckVersions(hello).ok());
}

TEST(ProtocolTest, AnAgentIsTakenIfOneOfTheTwoSpeaksTheOthersVersion) {
  EXPECT_TRUE(Check(kOldestVersion, 0).ok()) << "the oldest; it does not say what else it speaks";
  EXPECT_TRUE(Check(kNewest, kOldestVersion).ok());
  EXPECT_TRUE(Check(kNewest + 1, kNewest).ok()) << "the next release, which speaks this version";
  EXPECT_TRUE(Check(kNewest + 9, kOldestVersion).ok());
}

TEST(ProtocolTest, AnAgentThatIsTooOldIsToldToBeUpgraded) {
  const absl::Status status = Check(kOldestVersion - 1, kOldestVersion - 2);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("node n0: its agent speaks version 3 to 4 of the agents' protocol"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("upgrade the agent"));
}

TEST(ProtocolTest, AnAgentThatIsTooNewIsToldToWaitForItsDriver) {
  for (const int oldest : {0, kNewest + 1}) {
    const absl::Status status = Check(kNewest + 1, oldest);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("upgrade the driver"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("go on until it is drained"));
  }
}

TEST(ProtocolTest, AnAgentThatSaysNoVersionIsRefused) {
  EXPECT_EQ(Check(0, 0).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace megascale::protocol
