// Sends datagrams at a rate until it is killed: traffic ADDRESS PORT MBIT. Nobody need listen.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace {

double Now() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::atoi(argv[2])));
  if (::inet_pton(AF_INET, argv[1], &to.sin_addr) != 1) return 2;
  const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const std::vector<char> datagram(8000);
  constexpr int64_t kTickNanos = 5'000'000;
  constexpr double kBurstSeconds = 0.1;  // sent at once after this process could not run
  const double per_second = std::atof(argv[3]) * 1e6 / 8;  // bytes
  double due = 0;
  double before = Now();
  while (true) {
    const double now = Now();
    due = std::min(due + (now - before) * per_second, kBurstSeconds * per_second);
    before = now;
    for (; due > 0; due -= static_cast<double>(datagram.size())) {
      // An error says only that nobody listens.
      (void)::sendto(socket, datagram.data(), datagram.size(), MSG_DONTWAIT,
                     reinterpret_cast<const sockaddr*>(&to), sizeof(to));
    }
    const timespec pause = {.tv_sec = 0, .tv_nsec = kTickNanos};
    ::nanosleep(&pause, nullptr);
  }
}
