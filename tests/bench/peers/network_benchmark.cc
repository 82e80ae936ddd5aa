// All-reduce, reduce-scatter and all-gather between ranks on different machines, beside Gloo and
// beside plain sockets, by turns in one run: all ranks are processes of this machine that talk over
// TCP on loopback.
//   network_benchmark [RANKS [TURNS]]     4 ranks and 7 turns if not given
// Plain sockets: each two ranks have a connection of their own, over which one thread of each rank
// moves as many bytes as the call must, from and to memory, without adding anything up. Of Gloo the
// better algorithm counts: ring or halving-doubling. Shown is the median of the turns; `x` is how
// many times faster ours is.
#if !__has_include(<gloo/context.h>)
#error "Gloo is not installed: tools/install.sh --bench installs it (libgloo-dev)"
#endif

#include <arpa/inet.h>
#include <fcntl.h>
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/comm/testing/test_table.h"
#include "runtime/comm/testing/test_world.h"
#include "runtime/tensor/arena.h"

namespace megascale::comm {
namespace {

using tensor::HostVector;

constexpr size_t kBytesMin = 64 << 10;
constexpr size_t kBytesMax = 64 << 20;
constexpr size_t kBytesOfRound = 16 << 20;  // smaller calls are repeated
constexpr size_t kSocketPiece = 1 << 20;

// A connection over loopback; both ends do not block.
std::pair<base::UniqueFd, base::UniqueFd> Connected() {
  const base::UniqueFd listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  MEGASCALE_CHECK(::bind(listening.get(), generic, size) == 0);
  MEGASCALE_CHECK(::listen(listening.get(), 1) == 0);
  MEGASCALE_CHECK(::getsockname(listening.get(), generic, &size) == 0);
  base::UniqueFd one(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  MEGASCALE_CHECK(::connect(one.get(), generic, size) == 0);
  base::UniqueFd other(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
  for (const int fd : {one.get(), other.get()}) {
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    ::fcntl(fd, F_SETFL, O_NONBLOCK);
  }
  return {std::move(one), std::move(other)};
}

// sockets[i][j]: the end at rank i of its connection with rank j.
using Mesh = std::vector<std::vector<base::UniqueFd>>;

Mesh MakeMesh(int num_ranks) {
  Mesh mesh(static_cast<size_t>(num_ranks));
  for (auto& row : mesh) row.resize(mesh.size());
  for (size_t i = 0; i < mesh.size(); ++i) {
    for (size_t j = 0; j < i; ++j) std::tie(mesh[i][j], mesh[j][i]) = Connected();
  }
  return mesh;
}

// Sends `num_bytes` to each peer and receives as many, in one thread.
void MovePlainly(const std::vector<base::UniqueFd>& sockets, size_t num_bytes, const char* from,
                 char* to) {
  struct Way {
    int fd;
    size_t sent = 0;
    size_t received = 0;
    const char* from;
    char* to;
  };
  std::vector<Way> ways;
  for (const base::UniqueFd& socket : sockets) {
    if (!socket.valid()) continue;
    ways.push_back(
        {socket.get(), 0, 0, from + ways.size() * num_bytes, to + ways.size() * num_bytes});
  }
  for (;;) {
    bool moved = false;
    std::vector<pollfd> waits;
    for (Way& way : ways) {
      if (way.sent < num_bytes) {
        const ssize_t sent = ::send(way.fd, way.from + way.sent,
                                    std::min(num_bytes - way.sent, kSocketPiece), MSG_NOSIGNAL);
        if (sent > 0) way.sent += static_cast<size_t>(sent);
        moved |= sent > 0;
      }
      if (way.received < num_bytes) {
        const ssize_t got = ::recv(way.fd, way.to + way.received,
                                   std::min(num_bytes - way.received, kSocketPiece), 0);
        if (got > 0) way.received += static_cast<size_t>(got);
        moved |= got > 0;
      }
      const int events =
          (way.sent < num_bytes ? POLLOUT : 0) | (way.received < num_bytes ? POLLIN : 0);
      if (events != 0) waits.push_back({way.fd, static_cast<short>(events), 0});
    }
    if (waits.empty()) return;
    if (!moved) ::poll(waits.data(), waits.size(), -1);
  }
}

// What one rank calls, on its own buffers.
class Contenders {
 public:
  Contenders(HostCommunicator& comm, std::shared_ptr<gloo::Context> context,
             const std::vector<base::UniqueFd>& sockets)
      : comm_(comm),
        context_(std::move(context)),
        sockets_(sockets),
        arena_(tensor::Arena::Create(2 * kBytesMax + 4096).value()),
        data_(arena_.Allocate(tensor::DType::kF32, kBytesMax / 4).as<float>()),
        other_(arena_.Allocate(tensor::DType::kF32, kBytesMax / 4).as<float>()) {
    std::fill(other_, other_ + kBytesMax / 4, 1.0f);
  }

  void Fill() {
    for (size_t k = 0; k < kBytesMax / 4; ++k) {
      data_[k] = KnownValue(comm_.rank(), static_cast<int64_t>(k));
    }
  }

  // The calls whose times are compared, ours first, then plain sockets.
  std::vector<std::function<void()>> Of(Call call, size_t num_bytes) {
    const auto size = static_cast<int64_t>(num_bytes / 4);
    const int64_t block = size / comm_.size();
    const HostVector whole = HostVector::Of(absl::MakeSpan(data_, size));
    const HostVector own = whole.Slice(comm_.rank() * block, block);
    std::vector<std::function<void()>> calls;
    calls.emplace_back([=, this] {
      const absl::Status status = call == Call::kAllReduce ? comm_.AllReduce(whole, {})
                                  : call == Call::kReduceScatter
                                      ? comm_.ReduceScatter(whole, own, {})
                                      : comm_.AllGather(own, whole, {});
      MEGASCALE_CHECK_MSG(status.ok(), status.ToString());
    });
    calls.emplace_back([=, this] {
      const int phases = call == Call::kAllReduce ? 2 : 1;
      for (int phase = 0; phase < phases; ++phase) {
        MovePlainly(sockets_, static_cast<size_t>(block) * 4, reinterpret_cast<char*>(data_),
                    reinterpret_cast<char*>(other_));
      }
    });
    AddGloo(call, static_cast<size_t>(size), &calls);
    return calls;
  }

 private:
  using Reduction = void (*)(void*, const void*, const void*, size_t);

  void AddGloo(Call call, size_t size, std::vector<std::function<void()>>* calls) {
    const size_t block = size / static_cast<size_t>(comm_.size());
    if (call == Call::kAllReduce) {
      auto options = std::make_shared<gloo::AllreduceOptions>(context_);
      options->setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
      options->setOutput(data_, size);
      options->setReduceFunction(static_cast<Reduction>(&gloo::sum<float>));
      calls->emplace_back([options] { gloo::allreduce(*options); });
      auto halving = std::make_shared<gloo::AllreduceHalvingDoubling<float>>(
          context_, std::vector<float*>{data_}, static_cast<int>(size));
      calls->emplace_back([halving] { halving->run(); });
    } else if (call == Call::kReduceScatter) {
      auto scatter = std::make_shared<gloo::ReduceScatterHalvingDoubling<float>>(
          context_, std::vector<float*>{data_}, static_cast<int>(size),
          std::vector<int>(static_cast<size_t>(comm_.size()), static_cast<int>(block)));
      calls->emplace_back([scatter] { scatter->run(); });
    } else {
      auto options = std::make_shared<gloo::AllgatherOptions>(context_);
      options->setInput(data_ + static_cast<size_t>(comm_.rank()) * block, block);
      options->setOutput(other_, size);
      calls->emplace_back([options] { gloo::allgather(*options); });
    }
  }

  HostCommunicator& comm_;
  const std::shared_ptr<gloo::Context> context_;
  const std::vector<base::UniqueFd>& sockets_;
  tensor::Arena arena_;
  float* const data_;
  float* const other_;
};

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void Compare(HostCommunicator& comm, Contenders& contenders, Call call, size_t num_bytes,
             int num_turns) {
  const size_t repetitions = std::max<size_t>(1, std::min<size_t>(32, kBytesOfRound / num_bytes));
  const std::vector<std::function<void()>> calls = contenders.Of(call, num_bytes);
  std::vector<std::vector<double>> seconds(calls.size());
  for (int turn = 0; turn < num_turns; ++turn) {
    contenders.Fill();
    for (size_t i = 0; i < calls.size(); ++i) {
      MEGASCALE_CHECK(comm.Barrier({}).ok());
      const absl::Duration start = base::RealClock().Monotonic();
      for (size_t j = 0; j < repetitions; ++j) calls[i]();
      MEGASCALE_CHECK(comm.Barrier({}).ok());
      const absl::Duration took = base::RealClock().Monotonic() - start;
      seconds[i].push_back(absl::ToDoubleSeconds(took) / static_cast<double>(repetitions));
    }
  }
  if (comm.rank() != 0) return;
  std::vector<double> medians;
  for (const auto& of_call : seconds) medians.push_back(Median(of_call));
  const double gloo = *std::min_element(medians.begin() + 2, medians.end());
  std::printf("%-15s %5d %9zu %12.1f %12.1f %5.2fx %12.1f %5.2fx\n", Name(call), comm.size(),
              num_bytes, medians[0] * 1e6, gloo * 1e6, gloo / medians[0], medians[1] * 1e6,
              medians[1] / medians[0]);
  std::fflush(stdout);
}

absl::Status RunRank(Fabric& fabric, int rank, int num_ranks, int num_turns,
                     const std::string& directory, const Mesh& mesh) {
  ASSIGN_OR_RETURN(const auto comm, fabric.Make("all"));
  gloo::rendezvous::FileStore store(directory);
  gloo::transport::tcp::attr attributes("127.0.0.1");
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, num_ranks);
  context->connectFullMesh(store, device);
  Contenders contenders(*comm, context, mesh[static_cast<size_t>(rank)]);
  if (rank == 0) {
    std::printf("# %d turns; times in us; x: how many times faster ours is\n", num_turns);
    std::printf("%-15s %5s %9s %12s %12s %6s %12s %6s\n", "call", "ranks", "bytes", "ours", "Gloo",
                "", "plain", "");
  }
  for (const Call call : {Call::kAllReduce, Call::kReduceScatter, Call::kAllGather}) {
    for (size_t num_bytes = kBytesMin; num_bytes <= kBytesMax; num_bytes *= 4) {
      Compare(*comm, contenders, call, num_bytes, num_turns);
    }
  }
  return comm->Barrier({});
}

int Main(int num_ranks, int num_turns) {
  char directory[] = "/tmp/network-benchmark-XXXXXX";
  MEGASCALE_CHECK(::mkdtemp(directory) != nullptr);
  const Mesh mesh = MakeMesh(num_ranks);
  int num_failed = 0;
  {
    WorldSpec spec = OneGroup(num_ranks, num_ranks, GroupSpec().ring_bytes);
    spec.uses_tcp = true;
    ProcessWorld world(spec);
    world.Start([&](Fabric& fabric, RankBoard&, int rank) {
      return RunRank(fabric, rank, num_ranks, num_turns, directory, mesh);
    });
    for (int rank = 0; rank < num_ranks; ++rank) {
      while (!RankBoard::Await(world.board(rank).is_done, 1)) {
      }
      const absl::Status status = world.Result(rank);
      if (!status.ok()) std::fprintf(stderr, "rank %d: %s\n", rank, status.ToString().c_str());
      num_failed += status.ok() ? 0 : 1;
    }
  }
  std::filesystem::remove_all(directory);
  return num_failed;
}

}  // namespace
}  // namespace megascale::comm

int main(int argc, char** argv) {
  int num_ranks = 4;
  int num_turns = 7;
  if (argc > 3 || (argc > 1 && !absl::SimpleAtoi(argv[1], &num_ranks)) ||
      (argc > 2 && !absl::SimpleAtoi(argv[2], &num_turns)) || num_ranks < 2 || num_turns < 1) {
    std::fprintf(stderr, "usage: network_benchmark [RANKS [TURNS]]\n");
    return 2;
  }
  return megascale::comm::Main(num_ranks, num_turns);
}
