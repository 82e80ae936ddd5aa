#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/fd.h"
#include "runtime/comm/store/redis/connection.h"
#include "tests/fuzz/target.h"

namespace megascale::fuzz {

// The first byte gives the size of the pieces in which the rest arrives.
void RunStoreReplies(absl::string_view input) {
  if (input.empty()) return;
  constexpr comm::RedisConnectionLimits kLimits = {.reply_bytes_max = 4096, .elements_max = 16};
  constexpr size_t kSocketBytes = 64 << 10;  // fits what a socket holds
  const size_t piece = 1 + static_cast<unsigned char>(input[0]) * size_t{8};
  const absl::string_view replies = input.substr(1, kSocketBytes);
  int ends[2];
  MEGASCALE_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  const base::UniqueFd server(ends[0]);
  comm::RedisConnection connection(base::UniqueFd(ends[1]), kLimits);
  for (int i = 0; i < 4; ++i) connection.Send({"GET", "k"});
  for (size_t done = 0; done < replies.size() && connection.status().ok(); done += piece) {
    const absl::string_view part = replies.substr(done, piece);
    MEGASCALE_CHECK(::send(server.get(), part.data(), part.size(), MSG_NOSIGNAL) ==
                    static_cast<ssize_t>(part.size()));
    const size_t pending = connection.num_pending();
    const std::vector<comm::RedisReply> read = connection.Drive();
    MEGASCALE_CHECK(read.size() + connection.num_pending() == pending);
    for (const comm::RedisReply& reply : read) {
      MEGASCALE_CHECK(reply.text.size() <= kLimits.reply_bytes_max);
      MEGASCALE_CHECK(reply.elements.size() <= kLimits.elements_max);
      if (reply.kind != comm::RedisReply::Kind::kError) continue;
      MEGASCALE_CHECK(!comm::StatusOfError(reply).ok());
    }
  }
  MEGASCALE_CHECK(connection.status().ok() == (connection.fd() >= 0));
}

}  // namespace megascale::fuzz
