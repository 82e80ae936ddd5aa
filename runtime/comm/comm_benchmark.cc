// What collectives among four processes of this machine cost, in the same run as plain copies.
//   bazel run //runtime/comm:comm_benchmark
// First 64 MB beside what the same processes reach when all copy at once the bytes that a direct
// algorithm must move; then tables over sizes, as nccl-tests prints them: `size` is of the whole
// buffer, `busbw` is algbw times 2(n-1)/n for all-reduce, 1 for broadcast and send, (n-1)/n for the
// others. A time is the best of several rounds. `#wrong` counts elements over all ranks.
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

using tensor::DType;
using tensor::Vector;

constexpr int kNumRanks = 4;
constexpr int kNumRounds = 3;
constexpr size_t kBytesPerRound = 32 << 20;
constexpr size_t kRepetitionsMax = 200;
constexpr size_t kLargest = 64 << 20;
const std::vector<size_t> kSizes = {8,         64,      512,      4 << 10, 32 << 10,
                                    256 << 10, 2 << 20, 16 << 20, kLargest};

enum class Call { kAllReduce, kReduceScatter, kAllGather, kAllToAll, kBroadcast, kSend };
constexpr const char* kNames[] = {"all-reduce", "reduce-scatter", "all-gather",
                                  "all-to-all", "broadcast",      "send"};

// Small whole numbers, so that sums are exact in any order.
float Value(int rank, int64_t k) { return static_cast<float>((rank * 5 + k) % 17); }

// One rank's buffers for one size. What is not divisible by the ranks is left out.
class Bench {
 public:
  Bench(Communicator& comm, size_t num_bytes)
      : comm_(comm),
        block_(static_cast<int64_t>(num_bytes / 4) / comm.size()),
        data_(num_bytes / 4),
        output_(num_bytes / 4) {}

  absl::Status Perform(Call call) {
    const int64_t even = block_ * comm_.size();
    const Vector whole = View(data_, 0, static_cast<int64_t>(data_.size()));
    const Vector own = View(data_, comm_.rank() * block_, block_);
    const auto bytes =
        absl::MakeSpan(reinterpret_cast<std::byte*>(data_.data()), data_.size() * sizeof(float));
    switch (call) {
      case Call::kAllReduce:
        return comm_.AllReduce(whole, {});
      case Call::kReduceScatter:
        return comm_.ReduceScatter(View(data_, 0, even), own, {});
      case Call::kAllGather:
        return comm_.AllGather(own, View(data_, 0, even), {});
      case Call::kAllToAll:
        return comm_.AllToAll(View(data_, 0, even), View(output_, 0, even), {});
      case Call::kBroadcast:
        return comm_.Broadcast(whole, 0, {});
      case Call::kSend:  // in pairs, from even to odd ranks
        return comm_.rank() % 2 == 0 ? comm_.Send(comm_.rank() + 1, bytes, {})
                                     : comm_.Recv(comm_.rank() - 1, bytes, {});
    }
    return absl::OkStatus();
  }

  // Seconds of the best round, for one repetition.
  absl::StatusOr<double> Measure(Call call) {
    const size_t num_bytes = std::max<size_t>(1, data_.size() * sizeof(float));
    const size_t num_repetitions =
        std::clamp<size_t>(kBytesPerRound / num_bytes, 1, kRepetitionsMax);
    double best = 1e9;
    for (int round = 0; round < kNumRounds; ++round) {
      RETURN_IF_ERROR(comm_.Barrier({}));
      const absl::Duration start = base::RealClock().Monotonic();
      for (size_t i = 0; i < num_repetitions; ++i) RETURN_IF_ERROR(Perform(call));
      RETURN_IF_ERROR(comm_.Barrier({}));
      const absl::Duration took = base::RealClock().Monotonic() - start;
      best = std::min(best, absl::ToDoubleSeconds(took) / static_cast<double>(num_repetitions));
    }
    return best;
  }

  // Performs the call once more, on known values. The sum over all ranks.
  absl::StatusOr<int64_t> CountWrong(Call call) {
    for (size_t k = 0; k < data_.size(); ++k)
      data_[k] = Value(comm_.rank(), static_cast<int64_t>(k));
    RETURN_IF_ERROR(Perform(call));
    double wrong = 0;
    for (size_t k = 0; k < data_.size(); ++k) wrong += IsWrong(call, static_cast<int64_t>(k));
    RETURN_IF_ERROR(comm_.AllReduce({&wrong, DType::kF64, 1}, {}));
    return static_cast<int64_t>(wrong);
  }

 private:
  static Vector View(std::vector<float>& data, int64_t begin, int64_t size) {
    return {data.data() + begin, DType::kF32, size};
  }
  bool IsWrong(Call call, int64_t k) const {
    const int rank = comm_.rank();
    const int64_t owner = block_ == 0 ? comm_.size() : k / block_;  // of the element's block
    float sum = 0;
    for (int i = 0; i < comm_.size(); ++i) sum += Value(i, k);
    const bool is_in_blocks = owner < comm_.size();
    switch (call) {
      case Call::kAllReduce:
        return data_[k] != sum;
      case Call::kReduceScatter:
        return data_[k] != (owner == rank ? sum : Value(rank, k));
      case Call::kAllGather:
        return is_in_blocks && data_[k] != Value(static_cast<int>(owner), k);
      case Call::kAllToAll:
        return is_in_blocks &&
               output_[k] != Value(static_cast<int>(owner), k - (owner - rank) * block_);
      case Call::kBroadcast:
        return data_[k] != Value(0, k);
      case Call::kSend:
        return data_[k] != Value(rank / 2 * 2, k);
    }
    return true;
  }

  Communicator& comm_;
  const int64_t block_;  // elements
  std::vector<float> data_;
  std::vector<float> output_;
};

double BusFactor(Call call, int n) {
  if (call == Call::kAllReduce) return 2.0 * (n - 1) / n;
  return call == Call::kBroadcast || call == Call::kSend ? 1.0 : static_cast<double>(n - 1) / n;
}

absl::Status PrintTables(Communicator& comm, const std::string& way) {
  const auto last = static_cast<int>(Call::kSend);
  for (int c = 0; c <= last; ++c) {
    const auto call = static_cast<Call>(c);
    if (comm.rank() == 0) {
      std::printf("\n# %s, %d ranks, %s\n", kNames[c], comm.size(), way.c_str());
      std::printf("#%11s %13s %9s %6s %6s %10s %7s %7s %6s\n", "size", "count", "type", "redop",
                  "root", "time", "algbw", "busbw", "#wrong");
      std::printf("#%11s %13s %9s %6s %6s %10s %7s %7s\n", "(B)", "(elements)", "", "", "", "(us)",
                  "(GB/s)", "(GB/s)");
    }
    for (const size_t num_bytes : kSizes) {
      Bench bench(comm, num_bytes);
      ASSIGN_OR_RETURN(const double seconds, bench.Measure(call));
      ASSIGN_OR_RETURN(const int64_t wrong, bench.CountWrong(call));
      if (comm.rank() != 0) continue;
      const double bandwidth = static_cast<double>(num_bytes) / seconds / 1e9;
      const bool sums = call == Call::kAllReduce || call == Call::kReduceScatter;
      std::printf("%12zu %13zu %9s %6s %6d %10.2f %7.2f %7.2f %6lld\n", num_bytes, num_bytes / 4,
                  "float", sums ? "sum" : "none", call == Call::kBroadcast ? 0 : -1, seconds * 1e6,
                  bandwidth, bandwidth * BusFactor(call, comm.size()),
                  static_cast<long long>(wrong));
      std::fflush(stdout);
    }
  }
  return absl::OkStatus();
}

// Seconds in which every rank copies `num_bytes` from one of its buffers to another, all at once.
absl::StatusOr<double> CopySeconds(Communicator& comm, size_t num_bytes) {
  const std::vector<char> from(kLargest, 1);
  std::vector<char> to(kLargest);
  double best = 1e9;
  for (int round = 0; round < kNumRounds; ++round) {
    RETURN_IF_ERROR(comm.Barrier({}));
    const absl::Duration start = base::RealClock().Monotonic();
    for (size_t left = num_bytes; left > 0;) {
      const size_t count = std::min(left, kLargest);
      std::memcpy(to.data(), from.data(), count);
      asm volatile("" : : "r"(to.data()) : "memory");  // the copy counts as used
      left -= count;
    }
    RETURN_IF_ERROR(comm.Barrier({}));
    best = std::min(best, absl::ToDoubleSeconds(base::RealClock().Monotonic() - start));
  }
  return best;
}

// What one of n ranks must move for a buffer of S bytes that peers cannot see: what goes to others
// is copied into shared memory once, and what comes from others is copied or added out of it.
struct DirectCost {
  Call call;
  size_t quarters;      // of S, with n = 4
  const char* derived;  // how
};
constexpr DirectCost kDirectCosts[] = {
    {Call::kAllReduce, 10, "(n-1)/n S in, (n-1)/n S added, S/n in, (n-1)/n S out"},
    {Call::kReduceScatter, 6, "(n-1)/n S in, (n-1)/n S added"},
    {Call::kAllGather, 4, "S/n in, (n-1)/n S out"},
};
static_assert(kNumRanks == 4);

absl::Status PrintBesideCopies(Communicator& comm) {
  if (comm.rank() == 0) {
    std::printf("# %d ranks, memory, S = %zu bytes: beside %d processes copying at once\n",
                kNumRanks, kLargest, kNumRanks);
  }
  for (const DirectCost& cost : kDirectCosts) {
    const size_t num_bytes = kLargest / 4 * cost.quarters;
    Bench bench(comm, kLargest);
    ASSIGN_OR_RETURN(const double seconds, bench.Measure(cost.call));
    ASSIGN_OR_RETURN(const double copies, CopySeconds(comm, num_bytes));
    if (comm.rank() != 0) continue;
    std::printf("%-15s %6.1f ms; %9zu bytes per rank (%s) copied in %6.1f ms: %3.0f %%\n",
                kNames[static_cast<int>(cost.call)], seconds * 1e3, num_bytes, cost.derived,
                copies * 1e3, 100 * copies / seconds);
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

void MeasureWorld(bool is_local) {
  ProcessWorld world(OneGroup(kNumRanks, is_local ? 1 : kNumRanks, GroupSpec().ring_bytes));
  world.Start([is_local](Fabric& fabric, RankBoard&, int) -> absl::Status {
    ASSIGN_OR_RETURN(auto comm, fabric.Make("all"));
    if (is_local) RETURN_IF_ERROR(PrintBesideCopies(*comm));
    return PrintTables(*comm, is_local ? "shared memory" : "Unix sockets");
  });
  for (int rank = 0; rank < kNumRanks; ++rank) {
    while (!RankBoard::Await(world.board(rank).is_done, 1)) {
    }
    const absl::Status status = world.Result(rank);
    MEGASCALE_CHECK_MSG(status.ok(), status.ToString());
  }
}

}  // namespace
}  // namespace megascale::comm

int main() {
  for (const bool is_local : {true, false}) megascale::comm::MeasureWorld(is_local);
  return 0;
}
