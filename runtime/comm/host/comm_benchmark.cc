// Measures collectives among four processes of this machine, together with plain copies in the same
// run.
//   bazel run //runtime/comm/host:comm_benchmark
//   bazel run //runtime/comm/host:comm_benchmark -- --norm
// With --norm it measures the exchange of norms alone, among sixteen processes: gathers in their
// tensor, data and pipeline groups, beside a gather in one group of all. Otherwise, first it
// compares 64 MB with the speed at which the same processes, all at once, copy the bytes that a
// direct algorithm must move. Then it prints tables over sizes (test_table.h). Both run for tensors
// in memory that peers may map, for tensors elsewhere, which the kernel copies, and over rings and
// windows alone; the tables also over Unix sockets.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/comm/testing/test_table.h"
#include "runtime/comm/testing/test_world.h"
#include "runtime/tensor/arena.h"

namespace megascale::comm {
namespace {

using tensor::DType;
using tensor::HostVector;

// Twice the largest size: input and output of one rank.
constexpr size_t kMemoryBytes = 2 * kTableBytesMax;

// One rank's buffers for one size, within kMemoryBytes at `memory`. Leaves out the remainder that
// the number of ranks does not divide.
class Bench {
 public:
  Bench(HostCommunicator& comm, size_t num_bytes, std::byte* memory)
      : comm_(comm),
        data_(reinterpret_cast<float*>(memory), num_bytes / sizeof(float)),
        output_(reinterpret_cast<float*>(memory + kTableBytesMax), data_.size()),
        block_(static_cast<int64_t>(data_.size()) / comm.size()) {
    // Memory that was never written would all be one page of zeros, in the cache.
    Fill();
    std::fill(output_.begin(), output_.end(), 1.0f);
  }

  absl::Status Perform(Call call) {
    const int64_t even = block_ * comm_.size();
    const HostVector whole = View(data_, 0, static_cast<int64_t>(data_.size()));
    const HostVector own = View(data_, comm_.rank() * block_, block_);
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

  // Returns the seconds of one repetition in the fastest round.
  absl::StatusOr<double> Measure(Call call) {
    const size_t num_repetitions = RepetitionsInRound(data_.size() * sizeof(float));
    const auto barrier = [&] { return comm_.Barrier({}); };
    const auto round = [&]() -> absl::Status {
      for (size_t i = 0; i < num_repetitions; ++i) RETURN_IF_ERROR(Perform(call));
      return absl::OkStatus();
    };
    ASSIGN_OR_RETURN(const double seconds, BestRound(barrier, round));
    return seconds / static_cast<double>(num_repetitions);
  }

  // Makes the call once more, on known values, and returns the wrong elements summed over all
  // ranks.
  absl::StatusOr<int64_t> CountWrong(Call call) {
    Fill();
    RETURN_IF_ERROR(Perform(call));
    double wrong = 0;
    for (size_t k = 0; k < data_.size(); ++k) wrong += IsWrong(call, static_cast<int64_t>(k));
    RETURN_IF_ERROR(comm_.AllReduce(HostVector::Of(absl::MakeSpan(&wrong, 1)), {}));
    return static_cast<int64_t>(wrong);
  }

 private:
  void Fill() {
    for (size_t k = 0; k < data_.size(); ++k) {
      data_[k] = KnownValue(comm_.rank(), static_cast<int64_t>(k));
    }
  }
  static HostVector View(absl::Span<float> data, int64_t begin, int64_t size) {
    return HostVector::Of(data).Slice(begin, size);
  }
  bool IsWrong(Call call, int64_t k) const {
    const int rank = comm_.rank();
    const int64_t owner = block_ == 0 ? comm_.size() : k / block_;  // of the element's block
    const bool is_in_blocks = owner < comm_.size();
    switch (call) {
      case Call::kAllReduce:
        return data_[k] != KnownSum(k);
      case Call::kReduceScatter:
        return data_[k] != (owner == rank ? KnownSum(k) : KnownValue(rank, k));
      case Call::kAllGather:
        return is_in_blocks && data_[k] != KnownValue(static_cast<int>(owner), k);
      case Call::kAllToAll:
        return is_in_blocks &&
               output_[k] != KnownValue(static_cast<int>(owner), k - (owner - rank) * block_);
      case Call::kBroadcast:
        return data_[k] != KnownValue(0, k);
      case Call::kSend:
        return data_[k] != KnownValue(rank / 2 * 2, k);
    }
    return true;
  }

  HostCommunicator& comm_;
  const absl::Span<float> data_;
  const absl::Span<float> output_;
  const int64_t block_;  // elements
};

absl::Status PrintTables(HostCommunicator& comm, const std::string& way, std::byte* memory) {
  const auto last = static_cast<int>(Call::kSend);
  for (int c = 0; c <= last; ++c) {
    const auto call = static_cast<Call>(c);
    if (comm.rank() == 0) PrintTableHead(call, way);
    for (const size_t num_bytes : TableSizes()) {
      Bench bench(comm, num_bytes, memory);
      ASSIGN_OR_RETURN(const double seconds, bench.Measure(call));
      ASSIGN_OR_RETURN(const int64_t wrong, bench.CountWrong(call));
      if (comm.rank() == 0) PrintTableRow({call, way, num_bytes, seconds, wrong});
    }
  }
  return absl::OkStatus();
}

// Returns the seconds in which every rank, all at once, copies `num_bytes` between two of its
// buffers.
absl::StatusOr<double> CopySeconds(HostCommunicator& comm, size_t num_bytes) {
  ASSIGN_OR_RETURN(tensor::Arena arena, tensor::Arena::Create(2 * kTableBytesMax));
  const tensor::Vector from = arena.Allocate(DType::kF32, kTableBytesMax / sizeof(float));
  const tensor::Vector to = arena.Allocate(DType::kF32, kTableBytesMax / sizeof(float));
  std::memset(from.data, 1, kTableBytesMax);
  std::memset(to.data, 1, kTableBytesMax);
  const auto copy = [&] {
    for (size_t left = num_bytes; left > 0;) {
      const size_t count = std::min(left, kTableBytesMax);
      std::memcpy(to.data, from.data, count);
      asm volatile("" : : "r"(to.data) : "memory");  // makes the compiler keep the copy
      left -= count;
    }
    return absl::OkStatus();
  };
  return BestRound([&] { return comm.Barrier({}); }, copy);
}

// The parts of a buffer of S bytes that each of n = 4 ranks must read and write if it reads its
// peers' buffers in place and writes its own. A copy of N bytes reads N and writes N.
struct DirectCost {
  Call call;
  size_t read;     // quarters of S
  size_t written;  // quarters of S
  const char* how;
};
constexpr DirectCost kDirectCosts[] = {
    {Call::kAllReduce, 7, 4,
     "reads its block of all n (S) and n-1 sums (3/4 S), writes its sum and n-1 others (S)"},
    {Call::kReduceScatter, 4, 1, "reads its block of all n (S), writes its sum (1/4 S)"},
    {Call::kAllGather, 3, 3, "reads n-1 blocks (3/4 S), writes them (3/4 S)"},
    // No rank can move less: as above, but ranks write their sums into their peers' buffers.
    {Call::kAllReduce, 4, 4, "lower bound: reads its block of all n (S), writes n sums (S)"},
};
static_assert(kTableRanks == 4);

absl::Status PrintBesideCopies(HostCommunicator& comm, const std::string& way, std::byte* memory) {
  constexpr size_t kQuarter = kTableBytesMax / 4;
  if (comm.rank() == 0) {
    std::printf("\n# %d ranks, %s, S = %zu bytes: beside %d processes copying at once\n",
                kTableRanks, way.c_str(), kTableBytesMax, kTableRanks);
  }
  for (const DirectCost& cost : kDirectCosts) {
    const size_t num_bytes = kQuarter * (cost.read + cost.written) / 2;
    Bench bench(comm, kTableBytesMax, memory);
    ASSIGN_OR_RETURN(const double seconds, bench.Measure(cost.call));
    ASSIGN_OR_RETURN(const double copies, CopySeconds(comm, num_bytes));
    if (comm.rank() != 0) continue;
    std::printf("%-15s %6.1f ms; a rank %s: %zu + %zu bytes; copies of %zu: %6.1f ms: %3.0f %%\n",
                Name(cost.call), seconds * 1e3, cost.how, kQuarter * cost.read,
                kQuarter * cost.written, num_bytes, copies * 1e3, 100 * copies / seconds);
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

struct Way {
  const char* name;
  int num_nodes;
  bool reads_in_place;
  bool is_mapped;  // whether peers may map the tensors' memory
};
constexpr Way kWays[] = {
    {"shared memory", 1, true, true},
    {"shared memory, tensors in private memory", 1, true, false},
    {"shared memory, rings and windows alone", 1, false, false},
    {"Unix sockets", kTableRanks, false, false},
};

void MeasureWorld(const Way& way) {
  WorldSpec spec = OneGroup(kTableRanks, way.num_nodes, GroupSpec().ring_bytes);
  spec.reads_in_place = way.reads_in_place;
  ProcessWorld world(spec);
  world.MakeReadable(kMemoryBytes);
  world.Start([&](Fabric& fabric, RankBoard&, int rank) -> absl::Status {
    ASSIGN_OR_RETURN(auto comm, fabric.Make("all"));
    ASSIGN_OR_RETURN(tensor::Arena arena, tensor::Arena::Create(kMemoryBytes));
    std::byte* memory = way.is_mapped
                            ? world.readable(rank)->data()
                            : arena.Allocate(DType::kF32, kMemoryBytes / 4).as<std::byte>();
    if (way.num_nodes == 1) RETURN_IF_ERROR(PrintBesideCopies(*comm, way.name, memory));
    return PrintTables(*comm, way.name, memory);
  });
  for (int rank = 0; rank < kTableRanks; ++rank) {
    while (!RankBoard::Await(world.board(rank).is_done, 1)) {
    }
    const absl::Status status = world.Result(rank);
    MEGASCALE_CHECK_MSG(status.ok(), status.ToString());
  }
}

// A mesh of kNormRanks ranks; tensor is fastest, then data, then pipeline.
struct NormMesh {
  int tensor = 1, data = 1, pipeline = 1;
};
constexpr int kNormRanks = 16;
constexpr NormMesh kNormMeshes[] = {{1, 16, 1}, {2, 8, 1}, {2, 4, 2}, {4, 2, 2}, {1, 4, 4}};
constexpr int kNormNumbers = 3;  // that each rank contributes, F64
constexpr size_t kNormRepetitions = 500;

// The groups of a mesh along one axis.
std::vector<GroupSpec> GroupsAlong(const std::string& name, int size, int stride) {
  std::vector<GroupSpec> groups;
  for (int first = 0; first < kNormRanks; ++first) {
    if (first / stride % size != 0) continue;
    GroupSpec group{absl::StrCat(name, first), {}, size_t{4} << 10};
    for (int i = 0; i < size; ++i) group.ranks.push_back(first + i * stride);
    groups.push_back(std::move(group));
  }
  return groups;
}

absl::Status GatherNumbers(HostCommunicator& comm) {
  std::vector<double> numbers(static_cast<size_t>(kNormNumbers) * comm.size());
  const HostVector all = HostVector::Of(absl::MakeSpan(numbers));
  return comm.AllGather(all.Slice(int64_t{kNormNumbers} * comm.rank(), kNormNumbers), all, {});
}

absl::StatusOr<double> NormSeconds(HostCommunicator& all,
                                   const std::vector<HostCommunicator*>& groups) {
  const auto round = [&]() -> absl::Status {
    for (size_t i = 0; i < kNormRepetitions; ++i) {
      for (HostCommunicator* const group : groups) RETURN_IF_ERROR(GatherNumbers(*group));
    }
    return absl::OkStatus();
  };
  ASSIGN_OR_RETURN(const double seconds, BestRound([&] { return all.Barrier({}); }, round));
  return seconds / static_cast<double>(kNormRepetitions);
}

void MeasureNorm(const NormMesh& mesh) {
  WorldSpec spec = OneGroup(kNormRanks, /*num_nodes=*/1, size_t{4} << 10);
  const std::pair<std::string, std::pair<int, int>> axes[] = {
      {"tensor", {mesh.tensor, 1}},
      {"data", {mesh.data, mesh.tensor}},
      {"pipeline", {mesh.pipeline, mesh.tensor * mesh.data}}};
  for (const auto& [name, axis] : axes) {
    for (GroupSpec& group : GroupsAlong(name, axis.first, axis.second)) {
      spec.groups.push_back(std::move(group));
    }
  }
  ProcessWorld world(spec);
  world.Start([&](Fabric& fabric, RankBoard&, int rank) -> absl::Status {
    ASSIGN_OR_RETURN(const auto all, fabric.Make("all"));
    std::vector<std::unique_ptr<HostCommunicator>> made;
    std::vector<HostCommunicator*> groups;
    for (const auto& [name, axis] : axes) {
      const int index = rank / axis.second % axis.first;
      ASSIGN_OR_RETURN(made.emplace_back(),
                       fabric.Make(absl::StrCat(name, rank - index * axis.second)));
      groups.push_back(made.back().get());
    }
    ASSIGN_OR_RETURN(const double in_groups, NormSeconds(*all, groups));
    ASSIGN_OR_RETURN(const double at_once, NormSeconds(*all, {all.get()}));
    if (rank != 0) return absl::OkStatus();
    std::printf("%6d %5d %9d %14.3f ms %14.3f ms\n", mesh.tensor, mesh.data, mesh.pipeline,
                in_groups * 1e3, at_once * 1e3);
    std::fflush(stdout);
    return absl::OkStatus();
  });
  for (int rank = 0; rank < kNormRanks; ++rank) {
    while (!RankBoard::Await(world.board(rank).is_done, 1)) {
    }
    const absl::Status status = world.Result(rank);
    MEGASCALE_CHECK_MSG(status.ok(), status.ToString());
  }
}

void MeasureNorms() {
  std::printf("# %d processes, shared memory: the exchange of norms, %d numbers of each rank\n",
              kNormRanks, kNormNumbers);
  std::printf("tensor  data  pipeline  in these groups    in one of all\n");
  std::fflush(stdout);
  for (const NormMesh& mesh : kNormMeshes) MeasureNorm(mesh);
}

}  // namespace
}  // namespace megascale::comm

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--norm") {
    megascale::comm::MeasureNorms();
    return 0;
  }
  if (argc != 1) {
    std::fprintf(stderr, "usage: comm_benchmark [--norm]\n");
    return 2;
  }
  for (const auto& way : megascale::comm::kWays) megascale::comm::MeasureWorld(way);
  return 0;
}
