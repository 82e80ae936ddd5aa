// Bandwidth of the communicator between processes of this machine, beside that of memcpy in the
// same run.
//   bazel run //runtime/comm:comm_benchmark
// A line gives payload bytes per second: of the whole buffer, per rank, as each rank sees it, the
// best of several rounds.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/comm/test_world.h"

namespace megascale::comm {
namespace {

const size_t kRingBytes = GroupSpec().ring_bytes;
constexpr int kNumRounds = 3;
constexpr size_t kBytesPerRound = 64 << 20;

enum class Call { kAllReduce, kReduceScatter, kAllGather, kSend };
constexpr const char* kNames[] = {"all-reduce", "reduce-scatter", "all-gather", "send"};

absl::Status Perform(Call call, Communicator& comm, std::vector<float>& data) {
  const auto size = static_cast<int64_t>(data.size());
  const tensor::Vector whole{data.data(), tensor::DType::kF32, size};
  const tensor::Vector own{data.data() + comm.rank() * (size / comm.size()), tensor::DType::kF32,
                           size / comm.size()};
  const auto bytes = absl::MakeSpan(reinterpret_cast<std::byte*>(data.data()), size * 4);
  switch (call) {
    case Call::kAllReduce:
      return comm.AllReduce(whole, {});
    case Call::kReduceScatter:
      return comm.ReduceScatter(whole, own, {});
    case Call::kAllGather:
      return comm.AllGather(own, whole, {});
    case Call::kSend:  // in pairs, from even to odd ranks
      return comm.rank() % 2 == 0 ? comm.Send(comm.rank() + 1, bytes, {})
                                  : comm.Recv(comm.rank() - 1, bytes, {});
  }
  return absl::OkStatus();
}

// Seconds of the best round, for one repetition.
absl::StatusOr<double> Measure(Call call, Communicator& comm, size_t num_bytes) {
  std::vector<float> data(num_bytes / 4);
  const int num_repetitions = static_cast<int>(std::max<size_t>(1, kBytesPerRound / num_bytes));
  double best = 1e9;
  for (int round = 0; round < kNumRounds; ++round) {
    RETURN_IF_ERROR(comm.Barrier({}));
    const absl::Duration start = base::RealClock().Monotonic();
    for (int i = 0; i < num_repetitions; ++i) RETURN_IF_ERROR(Perform(call, comm, data));
    RETURN_IF_ERROR(comm.Barrier({}));
    const absl::Duration took = base::RealClock().Monotonic() - start;
    best = std::min(best, absl::ToDoubleSeconds(took) / num_repetitions);
  }
  return best;
}

double MemcpySeconds(size_t num_bytes) {
  std::vector<char> from(num_bytes, 1);
  std::vector<char> to(num_bytes);
  const int num_repetitions = static_cast<int>(std::max<size_t>(1, kBytesPerRound / num_bytes));
  double best = 1e9;
  for (int round = 0; round < kNumRounds; ++round) {
    const absl::Duration start = base::RealClock().Monotonic();
    for (int i = 0; i < num_repetitions; ++i) {
      std::memcpy(to.data(), from.data(), num_bytes);
      asm volatile("" : : "r"(to.data()) : "memory");  // the copy counts as used
    }
    best = std::min(best,
                    absl::ToDoubleSeconds(base::RealClock().Monotonic() - start) / num_repetitions);
  }
  return best;
}

void Print(const std::string& what, size_t num_bytes, double seconds) {
  std::printf("%-32s %6.2f MiB  %9.1f us  %6.2f GB/s\n", what.c_str(),
              static_cast<double>(num_bytes) / (1 << 20), seconds * 1e6,
              static_cast<double>(num_bytes) / seconds / 1e9);
  std::fflush(stdout);
}

absl::Status MeasureRank(Fabric& fabric, const std::string& way) {
  ASSIGN_OR_RETURN(auto comm, fabric.Make("all"));
  for (const Call call : {Call::kAllReduce, Call::kReduceScatter, Call::kAllGather, Call::kSend}) {
    for (const size_t num_bytes : {size_t{4} << 10, size_t{1} << 20, size_t{16} << 20}) {
      ASSIGN_OR_RETURN(const double seconds, Measure(call, *comm, num_bytes));
      if (comm->rank() != 0) continue;
      Print(way + ", " + kNames[static_cast<int>(call)], num_bytes, seconds);
    }
  }
  return absl::OkStatus();
}

void MeasureWorld(int num_ranks, bool is_local) {
  ProcessWorld world(OneGroup(num_ranks, is_local ? 1 : num_ranks, kRingBytes));
  const std::string way =
      std::to_string(num_ranks) + (is_local ? " ranks, memory" : " ranks, sockets");
  world.Start([&way](Fabric& fabric, RankBoard&, int) { return MeasureRank(fabric, way); });
  for (int rank = 0; rank < num_ranks; ++rank) {
    while (!RankBoard::Await(world.board(rank).is_done, 1)) {
    }
    const absl::Status status = world.Result(rank);
    MEGASCALE_CHECK_MSG(status.ok(), status.ToString());
  }
}

}  // namespace
}  // namespace megascale::comm

int main() {
  using namespace megascale::comm;
  for (const size_t num_bytes : {size_t{4} << 10, size_t{1} << 20, size_t{16} << 20}) {
    Print("memcpy, one thread", num_bytes, MemcpySeconds(num_bytes));
  }
  for (const bool is_local : {true, false}) {
    for (const int num_ranks : {2, 4}) MeasureWorld(num_ranks, is_local);
  }
  return 0;
}
