#include "runtime/base/socket/testing/test_user.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace megascale::base {
namespace {

constexpr int kBytesMax = 100;  // limit of an exit status

bool IsRoot() {
  if (::geteuid() == 0) return true;
  ADD_FAILURE() << "this test needs a second user: run it as root";
  return false;
}

bool BecomeOtherUser() {
  return ::setresgid(kOtherUser, kOtherUser, kOtherUser) == 0 &&
         ::setresuid(kOtherUser, kOtherUser, kOtherUser) == 0;
}

int ExitStatusOf(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int ListenAt(const std::string& path, bool as_root) {
  if (!as_root) {
    const std::string folder = std::filesystem::path(path).parent_path().string();
    if (!BecomeOtherUser() || ::mkdir(folder.c_str(), 0700) != 0) return -1;
  }
  ::umask(077);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), std::min(path.size(), sizeof(address.sun_path) - 1));
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) return -1;
  // A peer sees the credentials at the time of listen.
  if (as_root && !BecomeOtherUser()) return -1;
  return ::listen(fd, 16) == 0 ? fd : -1;
}

// Counts until `stop` closes; connections made by then are read to their end.
int CountBytes(int listener, int stop) {
  int bytes = 0;
  for (bool stopping = false;;) {
    std::array<pollfd, 2> entries = {{{listener, POLLIN, 0}, {stopping ? -1 : stop, POLLIN, 0}}};
    ::poll(entries.data(), entries.size(), stopping ? 0 : -1);
    if (entries[0].revents != 0) {
      const int connection = ::accept(listener, nullptr, nullptr);
      std::array<char, kBytesMax> buffer;
      const timeval limit = {10, 0};
      ::setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
      const ssize_t got = ::recv(connection, buffer.data(), buffer.size(), 0);
      if (got > 0) bytes += static_cast<int>(got);
      ::close(connection);
    } else if (stopping) {
      return std::min(bytes, kBytesMax);
    }
    stopping = stopping || entries[1].revents != 0;
  }
}

}  // namespace

int RunAsOtherUser(const std::function<int()>& body) {
  if (!IsRoot()) return -1;
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(BecomeOtherUser() ? body() : 127);
  return ExitStatusOf(pid);
}

int ConnectAsOtherUser(const std::string& path) {
  return RunAsOtherUser([&path] {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), std::min(path.size(), sizeof(address.sun_path) - 1));
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    return ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  });
}

OtherUsersListener::OtherUsersListener(const std::string& path, bool as_root) {
  if (!IsRoot()) return;
  std::array<int, 2> stop, ready;
  if (::pipe2(stop.data(), O_CLOEXEC) != 0 || ::pipe2(ready.data(), O_CLOEXEC) != 0) {
    ADD_FAILURE() << "pipe: " << std::strerror(errno);
    return;
  }
  pid_ = ::fork();
  if (pid_ == 0) {
    ::close(stop[1]);
    ::close(ready[0]);
    const int listener = ListenAt(path, as_root);
    if (listener < 0) ::_exit(127);
    const char byte = 1;
    if (::write(ready[1], &byte, 1) != 1) ::_exit(127);
    ::_exit(CountBytes(listener, stop[0]));
  }
  ::close(stop[0]);
  ::close(ready[1]);
  stop_ = UniqueFd(stop[1]);
  const UniqueFd is_ready(ready[0]);
  char byte = 0;
  EXPECT_EQ(::read(is_ready.get(), &byte, 1), 1) << "the other user cannot listen at " << path;
}

OtherUsersListener::~OtherUsersListener() { Stop(); }

int OtherUsersListener::Stop() {
  if (pid_ <= 0) return -1;
  stop_.reset();
  return ExitStatusOf(std::exchange(pid_, -1));
}

}  // namespace megascale::base
