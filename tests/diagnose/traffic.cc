// Sends datagrams at a rate until it is killed: traffic ADDRESS PORT MBIT. Nobody need listen.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <time.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::atoi(argv[2])));
  if (::inet_pton(AF_INET, argv[1], &to.sin_addr) != 1) return 2;
  const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const std::vector<char> datagram(8000);
  constexpr int64_t kTickNanos = 5'000'000;
  const double per_tick = std::atof(argv[3]) * 1e6 / 8 * kTickNanos / 1e9;  // bytes
  double due = 0;
  while (true) {
    for (due += per_tick; due > 0; due -= static_cast<double>(datagram.size())) {
      // An error says only that nobody listens.
      (void)::sendto(socket, datagram.data(), datagram.size(), MSG_DONTWAIT,
                     reinterpret_cast<const sockaddr*>(&to), sizeof(to));
    }
    const timespec pause = {.tv_sec = 0, .tv_nsec = kTickNanos};
    ::nanosleep(&pause, nullptr);
  }
}
