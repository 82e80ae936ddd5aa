#include "gpu/comm/nccl_environment.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cerrno>
#include <string>

#include "runtime/base/status.h"

namespace megascale::cuda {
namespace {

std::string Variable(const char* name) {
  const char* const value = ::getenv(name);
  return value == nullptr ? "unset" : value;
}

TEST(NcclEnvironmentTest, SetsWhatTheJobGivesAndLeavesTheRest) {
  ::setenv("NCCL_IB_TIMEOUT", "19", 1);
  ::unsetenv("NCCL_IB_RETRY_CNT");
  ::unsetenv("NCCL_SOCKET_IFNAME");
  ASSERT_EQ(SetNcclEnvironment({}), absl::OkStatus());
  EXPECT_EQ(Variable("NCCL_IB_TIMEOUT"), "19");
  EXPECT_EQ(Variable("NCCL_IB_RETRY_CNT"), "unset");
  EXPECT_EQ(Variable("NCCL_SOCKET_IFNAME"), "unset");
  ASSERT_EQ(SetNcclEnvironment({.ib_timeout = 22, .ib_retry_count = 0, .address = "127.0.0.1"}),
            absl::OkStatus());
  EXPECT_EQ(Variable("NCCL_IB_TIMEOUT"), "22");
  EXPECT_EQ(Variable("NCCL_IB_RETRY_CNT"), "0");
  EXPECT_EQ(Variable("NCCL_SOCKET_IFNAME"), "=lo");
}

// An interface that has lost its address may have it back in the next attempt.
TEST(NcclEnvironmentTest, AnAddressThatNoInterfaceHasIsUnavailable) {
  const absl::Status status =
      SetNcclEnvironment({.ib_timeout = {}, .ib_retry_count = {}, .address = "192.0.2.1"});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(base::ErrnoOf(status), ENETDOWN) << "this machine's own failure, and no peer's";
  EXPECT_EQ(std::string(status.message()),
            "NCCL: no interface of this machine has the address 192.0.2.1 of the job's interface "
            "any more: Network is down");
}

}  // namespace
}  // namespace megascale::cuda
