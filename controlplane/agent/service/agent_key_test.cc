#include "controlplane/agent/service/agent_key.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>

#include "runtime/base/fd.h"

namespace megascale::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class AgentKeyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = "/tmp/ms-XXXXXX";
    ASSERT_NE(::mkdtemp(directory_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string path() const { return directory_ + "/agent.key"; }

  std::string directory_;
};

TEST_F(AgentKeyTest, IsMadeOnceForItsOwnerAloneAndStaysTheSame) {
  const auto first = LoadOrMakeKey(directory_);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_THAT(*first, SizeIs(64));
  struct stat info;
  ASSERT_EQ(::stat(path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_NE(base::ReadFile(path(), 1000).value_or(""), *first + "\n") << "the key itself is told";
  EXPECT_EQ(LoadOrMakeKey(directory_).value_or(""), *first);
  std::filesystem::remove(path());
  EXPECT_NE(LoadOrMakeKey(directory_).value_or(""), *first);
}

TEST_F(AgentKeyTest, AKeyThatOthersMayReadIsRefusedAndStaysAsItIs) {
  ASSERT_TRUE(LoadOrMakeKey(directory_).ok());
  ASSERT_EQ(::chmod(path().c_str(), 0644), 0);
  const auto key = LoadOrMakeKey(directory_);
  EXPECT_EQ(key.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(key.status().message()),
              HasSubstr("agent.key: has mode 0644, expected 0600, closed to others; if this agent "
                        "did not write it, remove it"));
  EXPECT_TRUE(std::filesystem::exists(path()));
}

TEST_F(AgentKeyTest, AFileThatIsNoKeyIsDataLossAndStaysAsItIs) {
  for (const char* text : {"", "banana", "0123456789abcdef0123456789abcdef"}) {
    ASSERT_TRUE(base::WriteFileDurably(path(), text).ok());
    const auto key = LoadOrMakeKey(directory_);
    EXPECT_EQ(key.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(key.status().message()),
                HasSubstr("agent.key: expected 64 hexadecimal digits; remove the file"));
    EXPECT_EQ(base::ReadFile(path(), 1000).value_or("?"), text);
  }
}

}  // namespace
}  // namespace megascale::agent
