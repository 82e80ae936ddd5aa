#include "runtime/comm/testing/test_world.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <new>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/frame.h"
#include "runtime/base/status.h"

namespace megascale::comm {
namespace {

constexpr absl::Duration kLong = absl::Seconds(30);

void CheckOk(const absl::Status& status) { MEGASCALE_CHECK_MSG(status.ok(), status.ToString()); }

}  // namespace

WorldSpec OneGroup(int num_ranks, int num_nodes, size_t ring_bytes) {
  WorldSpec spec;
  GroupSpec group{"all", {}, ring_bytes};
  for (int rank = 0; rank < num_ranks; ++rank) {
    spec.placements.push_back(absl::StrCat("node-", rank % num_nodes));
    group.ranks.push_back(rank);
  }
  spec.groups.push_back(group);
  return spec;
}

WorldMemory::WorldMemory(WorldSpec spec) : spec_(std::move(spec)) {
  char path[] = "/tmp/ms-comm-XXXXXX";
  MEGASCALE_CHECK(::mkdtemp(path) != nullptr);
  socket_directory_ = path;
  for (const std::string& node : spec_.placements) {
    if (regions_.count(node) > 0) continue;
    auto memory =
        base::SharedMemory::Create("comm-test", RegionBytes(spec_.groups, spec_.placements, node));
    CheckOk(memory.status());
    CheckOk(FormatRegion({spec_.groups, spec_.placements, node, "job", spec_.attempt}, **memory));
    regions_[node] = *std::move(memory);
  }
}

WorldMemory::~WorldMemory() { std::filesystem::remove_all(socket_directory_); }

FabricOptions WorldMemory::OptionsOf(int rank, Store* store) const {
  FabricOptions options;
  options.rank = rank;
  options.placements = spec_.placements;
  options.job_id = "job";
  options.attempt = spec_.attempt;
  options.secret = "0123456789abcdef";
  options.region = regions_.at(spec_.placements[rank]).get();
  options.store = store;
  (spec_.uses_tcp ? options.tcp_address : options.socket_directory) =
      spec_.uses_tcp ? "127.0.0.1" : socket_directory_;
  options.connect_timeout = kLong;
  options.default_timeout = kLong;
  options.reads_in_place = spec_.reads_in_place;
  return options;
}

ThreadWorld::ThreadWorld(WorldSpec spec) : memory_(std::move(spec)) {
  for (int rank = 0; rank < memory_.num_ranks(); ++rank) {
    stores_.push_back(std::make_unique<LinkStore>(
        LinkStoreOptions{"job", memory_.spec().attempt, absl::StrCat("rank-", rank), kLong},
        [this, rank](const megascale::agent::v1::StoreRequest& request) {
          core_.Handle(request, [this, rank](const auto& reply) { stores_[rank]->OnReply(reply); });
          return absl::OkStatus();
        }));
  }
}

void ThreadWorld::Run(const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < memory_.num_ranks(); ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

void ThreadWorld::RunConnected(const std::function<void(int rank, Fabric& fabric)>& body) {
  Run([&](int rank) {
    auto fabric = Fabric::Create(OptionsOf(rank), memory_.spec().groups);
    CheckOk(fabric.status());
    CheckOk((*fabric)->Connect());
    body(rank, **fabric);
  });
}

bool RankBoard::Await(const std::atomic<uint32_t>& word, uint32_t value) {
  const absl::Duration end = base::RealClock().Monotonic() + absl::Seconds(10);
  while (word.load() < value) {
    if (base::RealClock().Monotonic() > end) return false;
    ::usleep(1000);
  }
  return true;
}

ProcessWorld::ProcessWorld(WorldSpec spec) : ProcessWorld(std::move(spec), WorldSpec()) {}

ProcessWorld::ProcessWorld(WorldSpec spec, WorldSpec next)
    : memory_(std::move(spec)), next_memory_(std::move(next)) {
  board_memory_ =
      base::SharedMemory::Create("boards", memory_.num_ranks() * sizeof(RankBoard)).value();
  boards_ = reinterpret_cast<RankBoard*>(board_memory_->data());
  for (int rank = 0; rank < memory_.num_ranks(); ++rank) {
    new (&boards_[rank]) RankBoard();
    links_.push_back(base::MakeSocketPair().value());
  }
}

void ProcessWorld::Start(
    const std::function<absl::Status(Fabric& fabric, RankBoard& board, int rank)>& body) {
  for (int rank = 0; rank < memory_.num_ranks(); ++rank) {
    const pid_t process = ::fork();
    MEGASCALE_CHECK(process >= 0);
    if (process == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const absl::Status status = RunRank(rank, body);
      RankBoard& board = boards_[rank];
      board.code = static_cast<int32_t>(status.code());
      for (const int blamed : BlamedRanks(status)) board.blamed_ranks |= 1u << blamed;
      const size_t size = std::min(status.message().size(), sizeof(board.text) - 1);
      std::copy_n(status.message().begin(), size, board.text);
      board.is_done.store(1);
      ::_exit(0);
    }
    processes_.push_back(process);
    links_[rank].second.reset();
  }
  for (int rank = 0; rank < memory_.num_ranks(); ++rank) {
    servers_.emplace_back([this, link = links_[rank].first.get()] {
      while (true) {
        absl::StatusOr<base::Frame> frame = base::ReceiveFrame(link, absl::InfiniteDuration());
        if (!frame.ok()) return;
        megascale::agent::v1::StoreRequest request;
        MEGASCALE_CHECK(request.ParseFromString(frame->payload));
        core_.Handle(request, [link](const megascale::agent::v1::StoreReply& reply) {
          base::SendFrame(link, reply.SerializeAsString(), {}, kLong).IgnoreError();
        });
      }
    });
  }
}

absl::Status ProcessWorld::RunRank(
    int rank, const std::function<absl::Status(Fabric&, RankBoard&, int)>& body) {
  const int link = links_[rank].second.get();
  const auto send = [link](const megascale::agent::v1::StoreRequest& request) {
    return base::SendFrame(link, request.SerializeAsString(), {}, kLong);
  };
  LinkStore store({"job", memory_.spec().attempt, absl::StrCat("rank-", rank), kLong}, send);
  LinkStore next({"job", next_memory_.spec().attempt, absl::StrCat("next-", rank), kLong}, send);
  next_store_ = &next;
  std::thread reader([&store, &next, link] {
    while (true) {
      absl::StatusOr<base::Frame> frame = base::ReceiveFrame(link, absl::InfiniteDuration());
      if (!frame.ok()) {
        next.Close(frame.status());
        return store.Close(frame.status());
      }
      megascale::agent::v1::StoreReply reply;
      MEGASCALE_CHECK(reply.ParseFromString(frame->payload));
      // Each ignores answers to the other's requests.
      store.OnReply(reply);
      next.OnReply(reply);
    }
  });
  const auto run = [&]() -> absl::Status {
    RankBoard& board = boards_[rank];
    FabricOptions options = memory_.OptionsOf(rank, &store);
    options.close_timeout = absl::Seconds(1);
    if (!readable_.empty()) options.readable = {readable(rank)};
    options.observer = [&board](const CallEvent& event) {
      ++(event.kind == CallEvent::Kind::kEntered ? board.num_entered : board.num_left);
    };
    ASSIGN_OR_RETURN(auto fabric, Fabric::Create(options, memory_.spec().groups));
    RETURN_IF_ERROR(fabric->Connect());
    return body(*fabric, board, rank);
  };
  const absl::Status status = run();
  ::shutdown(link, SHUT_RDWR);
  reader.join();
  return status;
}

void ProcessWorld::MakeReadable(size_t num_bytes) {
  for (int rank = 0; rank < memory_.num_ranks(); ++rank) {
    readable_.push_back(base::SharedMemory::Create("readable", num_bytes).value());
  }
}

absl::StatusOr<std::unique_ptr<Fabric>> ProcessWorld::JoinNext(int next_rank) {
  ASSIGN_OR_RETURN(auto fabric, Fabric::Create(next_memory_.OptionsOf(next_rank, next_store_),
                                               next_memory_.spec().groups));
  RETURN_IF_ERROR(fabric->Connect());
  return fabric;
}

void ProcessWorld::Signal(int rank, int signal) {
  MEGASCALE_CHECK(::kill(processes_[rank], signal) == 0);
}

absl::Status ProcessWorld::Result(int rank) {
  RankBoard& board = boards_[rank];
  for (int i = 0; i < 3 && !RankBoard::Await(board.is_done, 1);) ++i;
  if (board.is_done.load() == 0) return absl::DeadlineExceededError("the rank did not return");
  std::vector<int> blamed;
  for (int i = 0; i < 32; ++i) {
    if ((board.blamed_ranks >> i & 1) != 0) blamed.push_back(i);
  }
  return Blame(absl::Status(static_cast<absl::StatusCode>(board.code), board.text), blamed);
}

ProcessWorld::~ProcessWorld() {
  for (const pid_t process : processes_) {
    ::kill(process, SIGKILL);
    ::waitpid(process, nullptr, 0);
  }
  for (auto& link : links_) ::shutdown(link.first.get(), SHUT_RDWR);
  for (std::thread& server : servers_) server.join();
}

}  // namespace megascale::comm
