// Measures how long N ranks take to find each other. Each publishes its address and waits for those
// of two peers on other machines; a machine has eight ranks and one connection, and all start at
// once. Runs over a real redis-server, compared with the embedded store without its network, and
// with pipelined PINGs to the same server, which are the most that it can answer. One thread runs
// all clients.
#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/comm/store/embedded_store.h"
#include "runtime/comm/store/redis/redis_store.h"
#include "runtime/comm/store/redis/testing/test_redis_server.h"

namespace megascale::comm {
namespace {

using megascale::agent::v1::StoreReply;
using megascale::agent::v1::StoreRequest;

constexpr int kRanksPerMachine = 8;
constexpr int kCallsPerRank = 3;
constexpr absl::Duration kDeadline = absl::Minutes(2);

absl::Duration Now() { return base::RealClock().Monotonic(); }

StoreRequest Make(StoreRequest::Operation operation, int rank, const char* what, int of) {
  StoreRequest request;
  request.set_operation(operation);
  request.set_request_id(absl::StrCat(rank, "/", what));
  request.set_job_id("job");
  request.set_attempt(1);
  request.set_key(absl::StrCat("address/", of));
  if (operation == StoreRequest::OPERATION_SET) request.set_value("10.0.0.1:40000");
  return request;
}

using Ask = std::function<void(int rank, const StoreRequest&)>;

// Makes every rank's requests. Machines form a ring, so that half of the awaited keys are not set
// yet.
void AskAll(int num_ranks, const Ask& ask) {
  for (int rank = 0; rank < num_ranks; ++rank) {
    const int next = (rank + kRanksPerMachine) % num_ranks;
    const int last = (rank + num_ranks - kRanksPerMachine) % num_ranks;
    ask(rank, Make(StoreRequest::OPERATION_WAIT, rank, "next", next));
    ask(rank, Make(StoreRequest::OPERATION_WAIT, rank, "last", last));
    ask(rank, Make(StoreRequest::OPERATION_SET, rank, "set", rank));
  }
}

double EmbeddedSeconds(int num_ranks) {
  EmbeddedStore store;
  int num_answers = 0;
  const absl::Duration begin = Now();
  AskAll(num_ranks, [&](int, const StoreRequest& request) {
    store.Handle(request, [&](const StoreReply& reply) { num_answers += reply.code() == 0; });
  });
  MEGASCALE_CHECK(num_answers == kCallsPerRank * num_ranks);
  return absl::ToDoubleSeconds(Now() - begin);
}

// Drives the stores that have something to do.
void Turn(const std::vector<std::unique_ptr<RedisStore>>& stores, std::vector<pollfd>* entries) {
  absl::Duration wake = absl::InfiniteDuration();
  for (size_t i = 0; i < stores.size(); ++i) {
    (*entries)[i] = {stores[i]->fd(), stores[i]->events(), 0};
    wake = std::min(wake, stores[i]->NextWake());
  }
  ::poll(entries->data(), entries->size(), base::PollMilliseconds(wake - Now()));
  const absl::Duration now = Now();
  for (size_t i = 0; i < stores.size(); ++i) {
    if ((*entries)[i].revents != 0 || stores[i]->NextWake() <= now) stores[i]->Drive(now);
  }
}

double RedisSeconds(const RedisAddress& address, int num_ranks, const std::string& scope) {
  RedisStoreOptions options;
  options.address = address;
  options.give_up_after = options.connection_timeout = kDeadline;
  std::vector<std::unique_ptr<RedisStore>> stores;
  for (int i = 0; i < num_ranks / kRanksPerMachine; ++i) {
    stores.push_back(std::make_unique<RedisStore>(options));
  }
  std::vector<pollfd> entries(stores.size());
  int num_answers = 0;
  const absl::Duration begin = Now();
  AskAll(num_ranks, [&](int rank, const StoreRequest& request) {
    stores[static_cast<size_t>(rank / kRanksPerMachine)]->Handle(
        scope, request,
        [&](const StoreReply& reply) {
          MEGASCALE_CHECK_MSG(reply.code() == 0, reply.message());
          ++num_answers;
        },
        begin);
  });
  while (num_answers < kCallsPerRank * num_ranks) Turn(stores, &entries);
  return absl::ToDoubleSeconds(Now() - begin);
}

double PingSeconds(const RedisAddress& address, int count) {
  constexpr size_t kPipeline = 64;
  RedisDial dial(address, {});
  while (!dial.Drive().value()) {
    pollfd entry = {dial.fd(), dial.events(), 0};
    ::poll(&entry, 1, -1);
  }
  RedisConnection connection(dial.TakeSocket(), {});
  int num_answers = 0;
  const absl::Duration begin = Now();
  for (int num_sent = 0; num_answers < count;) {
    while (num_sent < count && connection.num_pending() < kPipeline) {
      connection.Send({"PING"});
      ++num_sent;
    }
    pollfd entry = {connection.fd(), connection.events(), 0};
    ::poll(&entry, 1, -1);
    num_answers += static_cast<int>(connection.Drive().size());
    MEGASCALE_CHECK_MSG(connection.status().ok(), connection.status().message());
  }
  return absl::ToDoubleSeconds(Now() - begin);
}

// Raises the limit on open files, for a connection from each of 1,536 machines.
void RaiseDescriptors() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void Run() {
  RaiseDescriptors();
  TestRedisServerOptions options;
  options.is_durable = false;
  const TestRedisServer server(options);
  std::printf("%8s %9s | %12s %12s | %12s | %14s\n", "ranks", "machines", "Redis s", "calls/s",
              "embedded s", "PINGs alike s");
  for (const int num_ranks : {64, 512, 4096, 12288}) {
    const int num_calls = kCallsPerRank * num_ranks;
    const double redis = RedisSeconds(server.address(), num_ranks, absl::StrCat("n", num_ranks));
    const double ping = PingSeconds(server.address(), num_calls);
    const double embedded = EmbeddedSeconds(num_ranks);
    std::printf("%8d %9d | %12.4f %12.0f | %12.4f | %14.4f\n", num_ranks,
                num_ranks / kRanksPerMachine, redis, num_calls / redis, embedded, ping);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace megascale::comm

int main() { megascale::comm::Run(); }
