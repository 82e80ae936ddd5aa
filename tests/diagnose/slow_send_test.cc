#include "tests/diagnose/slow_send.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>

#include "runtime/base/fd.h"

namespace megascale::injection {
namespace {

constexpr char kSlow[] = "0.001 1";

// Two connected sockets, as between two machines.
std::pair<base::UniqueFd, base::UniqueFd> Connected() {
  const base::UniqueFd listening(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(address);
  EXPECT_EQ(::bind(listening.get(), any, size), 0);
  EXPECT_EQ(::listen(listening.get(), 1), 0);
  EXPECT_EQ(::getsockname(listening.get(), any, &size), 0);
  base::UniqueFd from(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(::connect(from.get(), any, size), 0);
  base::UniqueFd to(::accept(listening.get(), nullptr, nullptr));
  return {std::move(from), std::move(to)};
}

// Sends three bytes, which arrive whole. Returns whether they were late.
bool IsLate(int from, int to) {
  const int64_t before = NumLatePieces();
  char text[] = "abc";
  iovec piece = {text, 3};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  EXPECT_EQ(::sendmsg(from, &message, 0), 3);
  char got[3] = {};
  EXPECT_EQ(::recv(to, got, sizeof(got), MSG_WAITALL), 3);
  EXPECT_EQ(std::string(got, 3), "abc");
  return NumLatePieces() > before;
}

TEST(SlowSendTest, PiecesToAnotherMachineAreLateAtTimesWhileTheSwitchIsOn) {
  std::string folder = "/tmp/ms-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const auto [from, to] = Connected();
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const base::UniqueFd near(ends[0]);
  const base::UniqueFd far(ends[1]);
  EXPECT_FALSE(IsLate(from.get(), to.get())) << "it is not set up";
  SlowSend(folder, 1);
  std::ofstream(folder + "/send-0") << kSlow;
  EXPECT_FALSE(IsLate(from.get(), to.get())) << "another rank is to be late";
  std::ofstream(folder + "/send-1") << kSlow;
  EXPECT_TRUE(IsLate(from.get(), to.get()));
  EXPECT_FALSE(IsLate(near.get(), far.get())) << "it stays within the machine";
  ::unlink((folder + "/send-1").c_str());
  EXPECT_FALSE(IsLate(from.get(), to.get()));
  std::ofstream(folder + "/send-1") << "0.001 0.5";
  int num_late = 0;
  for (int i = 0; i < 64; ++i) num_late += IsLate(from.get(), to.get()) ? 1 : 0;
  EXPECT_GT(num_late, 0);
  EXPECT_LT(num_late, 64);
  for (const char* name : {"/send-0", "/send-1"}) ::unlink((folder + name).c_str());
  ::rmdir(folder.c_str());
}

}  // namespace
}  // namespace megascale::injection
