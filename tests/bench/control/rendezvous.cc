#include "tests/bench/control/rendezvous.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/comm/host/connect.h"
#include "runtime/comm/host/handshake.h"
#include "runtime/comm/host/socket_address.h"
#include "runtime/comm/store/embedded_store.h"
#include "runtime/comm/store/redis/connection.h"
#include "runtime/comm/store/redis/dial.h"
#include "runtime/comm/store/redis/testing/test_redis_server.h"
#include "tests/bench/control/measures.h"

namespace megascale::bench {
namespace {

using agent::v1::StoreReply;
using agent::v1::StoreRequest;

constexpr absl::Duration kCallMax = absl::Minutes(5);
constexpr char kAddress[] = "tcp 10.11.12.13 43210";
constexpr char kSecret[] = "a secret of sixteen";

std::string KeyOf(int rank) { return absl::StrCat("address/", rank); }

}  // namespace

// --- the mesh ----------------------------------------------------------------------------------

StartMesh::StartMesh(int num_ranks)
    : num_ranks_(num_ranks),
      pipeline_(num_ranks >= 8 * kRanksOfAMachine ? 8 : 1),
      data_(num_ranks / kRanksOfAMachine / pipeline_) {
  MEGASCALE_CHECK_MSG(num_ranks == data_ * pipeline_ * kRanksOfAMachine,
                      "expected a multiple of 64 ranks");
}

std::vector<int> StartMesh::Peers(int rank) const {
  const int tensor = rank % kRanksOfAMachine;
  const int data = rank / kRanksOfAMachine % data_;
  const int pipeline = rank / kRanksOfAMachine / data_;
  std::vector<int> peers;
  for (int other = 0; other < data_; ++other) {
    if (other != data) peers.push_back((pipeline * data_ + other) * kRanksOfAMachine + tensor);
  }
  for (int other = 0; other < pipeline_; ++other) {
    if (other != pipeline) peers.push_back((other * data_ + data) * kRanksOfAMachine + tensor);
  }
  std::sort(peers.begin(), peers.end());
  return peers;
}

std::vector<std::string> StartMesh::Keys(int rank) const {
  std::vector<std::string> keys;
  for (const int peer : Peers(rank)) {
    if (peer > rank) keys.push_back(KeyOf(peer));
  }
  return keys;
}

int64_t StartMesh::NumKeys() const {
  return int64_t{num_ranks_} * (data_ - 1 + pipeline_ - 1) / 2;  // each pair once
}

int StartMesh::num_groups() const {
  return num_ranks_ / kRanksOfAMachine + num_ranks_ / data_ + num_ranks_ / pipeline_;
}

// --- machines ----------------------------------------------------------------------------------

void Gate::Arrive() {
  std::unique_lock<std::mutex> lock(mutex_);
  --count_;
  changed_.notify_all();
  changed_.wait(lock, [this] { return open_; });
}

bool Gate::AwaitAll() {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, std::chrono::minutes(2), [this] { return count_ == 0; });
}

void Gate::Open() {
  const std::lock_guard<std::mutex> lock(mutex_);
  open_ = true;
  changed_.notify_all();
}

RendezvousMachine::RendezvousMachine(const StartMesh& mesh, int machine, SendToDriver send)
    : mesh_(mesh),
      machine_(machine),
      forwarder_({}, std::move(send), [this](int64_t process_id, const StoreReply& reply) {
        stores_[static_cast<size_t>(process_id)]->OnReply(reply);
      }) {}

RendezvousMachine::~RendezvousMachine() {
  if (thread_.joinable()) thread_.join();
}

void RendezvousMachine::Start(const agent::v1::DesiredJob& job, bool many_keys, Gate* gate,
                              std::function<void()> done) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!stores_.empty()) return;
    forwarder_.SetDriverTakesManyKeys(many_keys);
    for (int i = 0; i < kRanksOfAMachine; ++i) {
      forwarder_.OnStarted(i, job);
      const comm::LinkStoreOptions options = {
          .job_id = job.job_id(),
          .attempt = job.attempt(),
          .client = absl::StrCat("rank-", machine_ * kRanksOfAMachine + i),
          .call_timeout = kCallMax};
      stores_.push_back(
          std::make_unique<comm::LinkStore>(options, [this, i](const StoreRequest& request) {
            const std::lock_guard<std::mutex> forwarding(mutex_);
            forwarder_.OnRequest(i, request, base::RealClock().Monotonic());
            forwarder_.FlushToDriver();
            return absl::OkStatus();
          }));
    }
  }
  thread_ = std::thread([this, gate, done = std::move(done)] {
    gate->Arrive();
    Run(done);
  });
}

void RendezvousMachine::Run(const std::function<void()>& done) {
  const int first = machine_ * kRanksOfAMachine;
  for (int i = 0; i < kRanksOfAMachine; ++i) {
    const absl::Status set = stores_[static_cast<size_t>(i)]->Set(KeyOf(first + i), kAddress);
    MEGASCALE_CHECK_MSG(set.ok(), set.message());
  }
  for (int i = 0; i < kRanksOfAMachine; ++i) {
    const std::vector<std::string> keys = mesh_.Keys(first + i);
    const auto values = stores_[static_cast<size_t>(i)]->WaitAll(keys, kCallMax);
    MEGASCALE_CHECK_MSG(values.ok() && values->size() == keys.size(), values.status().message());
  }
  done();
}

void RendezvousMachine::OnReply(const StoreReply& reply) {
  const std::lock_guard<std::mutex> lock(mutex_);
  forwarder_.OnDriverReply(reply);
}

void RendezvousMachine::AddPollEntries(std::vector<pollfd>* entries) {
  const std::lock_guard<std::mutex> lock(mutex_);
  forwarder_.AddPollEntries(entries);
}

absl::Duration RendezvousMachine::NextWake() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return forwarder_.NextWake();
}

void RendezvousMachine::Drive(absl::Duration now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  forwarder_.Drive(now);
}

// --- comparisons -------------------------------------------------------------------------------

namespace {

// A store that answers one request at a time; a rank blocks in each call, on a connection of its
// own. A barrier is a counter to which each rank adds, and a wait for the last one: two calls.
class BlockingStore {
 public:
  explicit BlockingStore(int num_ranks) : waiting_(static_cast<size_t>(num_ranks)) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      int pair[2];
      MEGASCALE_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
      ends_.emplace_back(pair[0]);
      clients_.emplace_back(pair[1]);
      Watch(server_epoll_, pair[0], rank);
      Watch(client_epoll_, pair[1], rank);
    }
    server_ = std::thread([this] { Serve(); });
  }
  ~BlockingStore() {
    stopping_ = true;
    server_.join();
  }

  void Barrier() {
    for (const base::UniqueFd& client : clients_) Put(client.get(), 'a');
    for (size_t num_left = clients_.size(); num_left > 0;) {
      epoll_event events[256];
      const int count = ::epoll_wait(client_epoll_.get(), events, 256, 1000);
      for (int i = 0; i < count; ++i) {
        const int fd = clients_[events[i].data.u64].get();
        if (Take(fd) == 'a') {
          Put(fd, 'w');
        } else {
          --num_left;
        }
      }
    }
  }

 private:
  static void Watch(const base::UniqueFd& epoll, int fd, int rank) {
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.u64 = static_cast<uint64_t>(rank);
    MEGASCALE_CHECK(::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0);
  }
  static void Put(int fd, char byte) { MEGASCALE_CHECK(::send(fd, &byte, 1, MSG_NOSIGNAL) == 1); }
  static char Take(int fd) {
    char byte = 0;
    MEGASCALE_CHECK(::recv(fd, &byte, 1, 0) == 1);
    return byte;
  }

  void Serve() {
    size_t num_added = 0;
    size_t num_waiting = 0;
    while (!stopping_) {
      epoll_event events[256];
      const int count = ::epoll_wait(server_epoll_.get(), events, 256, 100);
      for (int i = 0; i < count; ++i) {
        const size_t rank = events[i].data.u64;
        if (Take(ends_[rank].get()) == 'a') {
          ++num_added;
          Put(ends_[rank].get(), 'a');
        } else {
          waiting_[num_waiting++] = rank;
        }
      }
      if (num_waiting < ends_.size() || num_added < ends_.size()) continue;
      for (const size_t rank : waiting_) Put(ends_[rank].get(), 'w');
      num_added = num_waiting = 0;
    }
  }

  std::vector<base::UniqueFd> ends_;
  std::vector<base::UniqueFd> clients_;
  base::UniqueFd server_epoll_{::epoll_create1(EPOLL_CLOEXEC)};
  base::UniqueFd client_epoll_{::epoll_create1(EPOLL_CLOEXEC)};
  std::vector<size_t> waiting_;
  std::atomic<bool> stopping_ = false;
  std::thread server_;
};

// A Redis connection of each rank. A barrier: each adds to a counter, the last one pushes as many
// elements as there are ranks to a list, of which each takes one.
class RedisBarriers {
 public:
  RedisBarriers(const comm::RedisAddress& address, int num_ranks) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      comm::RedisDial dial(address, {});
      while (!dial.Drive().value()) {
        pollfd entry = {dial.fd(), dial.events(), 0};
        ::poll(&entry, 1, -1);
      }
      connections_.push_back(std::make_unique<comm::RedisConnection>(
          dial.TakeSocket(), comm::RedisConnectionLimits()));
    }
  }

  void Barrier() {
    const std::string name = absl::StrCat("barrier/", num_barriers_++);
    const std::string tokens = name + "/tokens";
    for (auto& connection : connections_) connection->Send({"INCR", name});
    std::vector<int> num_replies(connections_.size());
    std::vector<pollfd> entries(connections_.size());
    for (size_t num_left = connections_.size(); num_left > 0;) {
      for (size_t i = 0; i < connections_.size(); ++i) {
        entries[i] = {connections_[i]->fd(), connections_[i]->events(), 0};
      }
      ::poll(entries.data(), entries.size(), 1000);
      for (size_t i = 0; i < connections_.size(); ++i) {
        if (entries[i].revents == 0) continue;
        for (const comm::RedisReply& reply : connections_[i]->Drive()) {
          num_left -= OnReply(i, reply, ++num_replies[i], tokens) ? 1 : 0;
        }
        MEGASCALE_CHECK_MSG(connections_[i]->status().ok(), connections_[i]->status().message());
      }
    }
  }

 private:
  // Returns whether the rank has passed the barrier.
  bool OnReply(size_t rank, const comm::RedisReply& reply, int index, const std::string& tokens) {
    if (index > 1) return reply.kind == comm::RedisReply::Kind::kArray;
    if (++num_added_ == connections_.size()) {
      num_added_ = 0;
      std::vector<std::string> push = {"RPUSH", tokens};
      push.resize(2 + connections_.size(), "x");
      connections_[rank]->Send(push);
    }
    connections_[rank]->Send({"BLPOP", tokens, "0"});
    return false;
  }

  std::vector<std::unique_ptr<comm::RedisConnection>> connections_;
  size_t num_added_ = 0;
  int num_barriers_ = 0;
};

// Lets in all that come, each as the rank that it asks for.
void Welcome(const comm::ListeningSocket& listening, int count) {
  const base::UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  const auto watch = [&](int fd) {
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.fd = fd;
    MEGASCALE_CHECK(::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0);
  };
  watch(listening.fd());
  std::map<int, base::UniqueFd> greeting;
  std::map<int, std::unique_ptr<comm::AcceptorHandshake>> proving;
  std::vector<base::UniqueFd> welcomed;
  while (static_cast<int>(welcomed.size()) < count) {
    epoll_event events[256];
    const int num_events = ::epoll_wait(epoll.get(), events, 256, 10'000);
    MEGASCALE_CHECK_MSG(num_events > 0, "no peer came for ten seconds");
    for (int i = 0; i < num_events; ++i) {
      const int fd = events[i].data.fd;
      if (fd == listening.fd()) {
        base::UniqueFd socket(::accept4(fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!socket.valid()) continue;
        comm::PrepareStream(socket.get());
        watch(socket.get());
        const int accepted = socket.get();
        greeting[accepted] = std::move(socket);
        continue;
      }
      if (greeting.count(fd) > 0) {
        comm::Hello hello;
        if (::recv(fd, &hello, sizeof(hello), MSG_PEEK) < static_cast<ssize_t>(sizeof(hello))) {
          continue;
        }
        proving[fd] = std::make_unique<comm::AcceptorHandshake>(
            std::move(greeting[fd]), comm::Shared{kSecret, listening.address()}, hello);
        greeting.erase(fd);
      }
      if (proving.count(fd) == 0) continue;  // welcomed already
      const auto proven = proving[fd]->Advance();
      MEGASCALE_CHECK_MSG(proven.ok(), proven.status().message());
      if (!*proven) continue;
      MEGASCALE_CHECK(proving[fd]->Answer(comm::Verdict::kWelcome).ok());
      ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, fd, nullptr);
      welcomed.push_back(proving[fd]->Release());
      proving.erase(fd);
    }
  }
}

}  // namespace

double BlockingStoreSeconds(const StartMesh& mesh) {
  BlockingStore store(mesh.num_ranks());
  const double begin = Now();
  for (int group = 0; group < mesh.num_groups(); ++group) store.Barrier();
  return Now() - begin;
}

double RedisBarrierSeconds(const StartMesh& mesh) {
  comm::TestRedisServerOptions options;
  options.is_durable = false;
  const comm::TestRedisServer server(options);
  RedisBarriers barriers(server.address(), mesh.num_ranks());
  const double begin = Now();
  for (int group = 0; group < mesh.num_groups(); ++group) barriers.Barrier();
  return Now() - begin;
}

double StreamSeconds(int num_peers) {
  auto listening = comm::ListeningSocket::ListenTcp("127.0.0.1").value();
  comm::EmbeddedStore core;
  std::unique_ptr<comm::LinkStore> store;
  store = std::make_unique<comm::LinkStore>(
      comm::LinkStoreOptions{.job_id = "job", .attempt = 1, .client = "rank-0"},
      [&](const StoreRequest& request) {
        core.Handle(request, [&](const StoreReply& reply) { store->OnReply(reply); });
        return absl::OkStatus();
      });
  std::vector<comm::StreamRequest> requests;
  for (int peer = 1; peer <= num_peers; ++peer) {
    MEGASCALE_CHECK(store->Set(KeyOf(peer), listening.address()).ok());
    requests.push_back({"dp", peer});
  }
  std::thread peers([&] { Welcome(listening, num_peers); });
  const std::atomic<bool> cancelled = false;
  comm::ConnectOptions options;
  options.job_id = "job";
  options.attempt = 1;
  options.secret = kSecret;
  options.store = store.get();
  options.tcp_address = "127.0.0.1";
  options.timeout = absl::Minutes(1);
  options.cancelled = &cancelled;
  const double begin = Now();
  const auto streams = comm::ConnectStreams(options, requests);
  const double seconds = Now() - begin;
  MEGASCALE_CHECK_MSG(streams.ok(), streams.status().message());
  peers.join();
  return seconds;
}

StoreAlone MeasureStoreAlone(const StartMesh& mesh) {
  const int64_t before = UseOf(::getpid()).memory_bytes;
  comm::EmbeddedStore store({.attempt_bytes_max = kStoreAloneBytes});
  int num_answers = 0;
  const auto ask = [&](StoreRequest& request, int rank) {
    request.set_job_id("job");
    request.set_attempt(1);
    request.set_request_id(
        absl::StrCat(rank % kRanksOfAMachine, "/rank-", rank, "/", request.operation()));
    store.Handle(request, [&num_answers](const StoreReply& reply) {
      MEGASCALE_CHECK_MSG(reply.code() == 0, reply.message());
      ++num_answers;
    });
  };
  double seconds = 0;
  StoreAlone alone;
  // All wait before anybody publishes: the most that can wait.
  for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
    StoreRequest wait;
    wait.set_operation(StoreRequest::OPERATION_WAIT);
    for (std::string& key : mesh.Keys(rank)) wait.add_keys(std::move(key));
    if (wait.keys().empty()) {
      ++num_answers;
      continue;
    }
    const double begin = Now();
    ask(wait, rank);
    seconds += Now() - begin;
  }
  alone.memory_bytes = UseOf(::getpid()).memory_bytes - before;
  for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
    StoreRequest set;
    set.set_operation(StoreRequest::OPERATION_SET);
    set.set_key(KeyOf(rank));
    set.set_value(kAddress);
    const double begin = Now();
    ask(set, rank);
    seconds += Now() - begin;
  }
  MEGASCALE_CHECK(num_answers == 2 * mesh.num_ranks());
  alone.seconds = seconds;
  return alone;
}

}  // namespace megascale::bench
