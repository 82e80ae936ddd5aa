// NCCL's communicators on an emulated NCCL and an emulated machine with a GPU for each rank, which
// runs work late. Sums are of whole numbers, or bounded: every order of the sum must pass.
#include "gpu/comm/nccl_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gpu/emulator/emulated_cuda.h"
#include "gpu/emulator/nccl/emulated_nccl.h"
#include "runtime/base/clock.h"
#include "runtime/comm/testing/test_world.h"
#include "runtime/tensor/tensor.h"

namespace megascale::cuda {
namespace {

using comm::BlamedRanks;
using comm::CallInfo;
using emulator::EmulatedCuda;
using emulator::EmulatedMachine;
using emulator::EmulatedNccl;
using emulator::NcclFault;
using tensor::DType;
using tensor::Vector;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Values = std::vector<double>;

constexpr int kRingBytes = 4096;
constexpr absl::Duration kShort = absl::Milliseconds(300);
// Far above what any test takes: what ends earlier was not ended by this.
constexpr absl::Duration kLong = absl::Seconds(60);

void Check(cudaError_t error) { ASSERT_EQ(error, cudaSuccess); }

// A rank's GPU, stream and memory.
class Gpu {
 public:
  explicit Gpu(int device) : cuda_(*EmulatedCuda()) {
    Check(cuda_.cudaSetDevice(device));
    Check(cuda_.cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~Gpu() {
    Wait();
    for (void* block : blocks_) Check(cuda_.cudaFree(block));
    Check(cuda_.cudaStreamDestroy(stream_));
  }

  cudaStream_t stream() const { return stream_; }
  void Wait() { Check(cuda_.cudaStreamSynchronize(stream_)); }

  Vector Make(DType dtype, const Values& values) {
    const Vector made = {Block(values.size() * tensor::SizeOf(dtype)), dtype,
                         static_cast<int64_t>(values.size())};
    std::vector<std::byte> bytes(static_cast<size_t>(made.bytes()));
    for (size_t i = 0; i < values.size(); ++i) Put(dtype, values[i], bytes.data(), i);
    Copy(made.data, bytes.data(), bytes.size());
    Wait();  // `bytes` is freed
    return made;
  }
  Values Read(const Vector& vector) {
    std::vector<std::byte> bytes(static_cast<size_t>(vector.bytes()));
    Copy(bytes.data(), vector.data, bytes.size());
    Wait();
    Values values;
    for (size_t i = 0; i < static_cast<size_t>(vector.size); ++i) {
      values.push_back(Get(vector.dtype, bytes.data(), i));
    }
    return values;
  }

 private:
  void* Block(size_t bytes) {
    void* block = nullptr;
    Check(cuda_.cudaMalloc(&block, std::max<size_t>(bytes, 1)));
    blocks_.push_back(block);
    return block;
  }
  void Copy(void* to, const void* from, size_t bytes) {
    if (bytes > 0) Check(cuda_.cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
  }
  template <typename T>
  static void PutAs(T value, std::byte* data, size_t i) {
    std::memcpy(data + i * sizeof(T), &value, sizeof(T));
  }
  template <typename T>
  static T GetAs(const std::byte* data, size_t i) {
    T value;
    std::memcpy(&value, data + i * sizeof(T), sizeof(T));
    return value;
  }
  static void Put(DType dtype, double value, std::byte* data, size_t i) {
    if (dtype == DType::kF64) return PutAs(value, data, i);
    if (dtype == DType::kF32) return PutAs(static_cast<float>(value), data, i);
    if (dtype == DType::kI32) return PutAs(static_cast<int32_t>(value), data, i);
    PutAs(tensor::ToBFloat16(static_cast<float>(value)), data, i);
  }
  static double Get(DType dtype, const std::byte* data, size_t i) {
    if (dtype == DType::kF64) return GetAs<double>(data, i);
    if (dtype == DType::kF32) return GetAs<float>(data, i);
    if (dtype == DType::kI32) return GetAs<int32_t>(data, i);
    return tensor::ToFloat(GetAs<tensor::BFloat16>(data, i));
  }

  const CudaApi& cuda_;
  cudaStream_t stream_ = nullptr;
  std::vector<void*> blocks_;
};

NcclOptions OptionsOf(comm::HostCommunicator* host, const Gpu& gpu) {
  return {.nccl = &EmulatedNccl::api(),
          .cuda = EmulatedCuda(),
          .host = host,
          .stream = gpu.stream(),
          .start_timeout = kLong,
          .default_timeout = kLong,
          .blame_timeout = absl::Milliseconds(500),
          .abort_grace = absl::Seconds(1),
          .close_timeout = absl::Seconds(20),
          .before_call = nullptr,
          .on_failure = nullptr};
}

// Ranks as threads, each with a GPU and the communicator of a group "all" of them.
class World {
 public:
  explicit World(int num_ranks, const emulator::EmulatedNcclOptions& options = {})
      : num_ranks_(num_ranks),
        machine_({.seed = 5, .num_devices = num_ranks}),
        nccl_(options),
        world_(comm::OneGroup(num_ranks, 2, kRingBytes)) {}

  using Body = std::function<void(comm::Communicator& communicator, Gpu& gpu)>;
  // No rank begins before all have made theirs: what one does must not end the making of another.
  void Run(const Body& body) {
    std::barrier made(num_ranks_);
    RunWithHosts([&](comm::HostCommunicator& host, Gpu& gpu) {
      auto communicator = MakeNcclCommunicator(OptionsOf(&host, gpu));
      made.arrive_and_wait();
      ASSERT_EQ(communicator.status(), absl::OkStatus());
      body(**communicator, gpu);
    });
  }
  void RunWithHosts(const std::function<void(comm::HostCommunicator&, Gpu&)>& body) {
    world_.RunConnected([&](int rank, comm::Fabric& fabric) {
      const auto host = fabric.Make("all").value();
      Gpu gpu(rank);
      body(*host, gpu);
    });
  }

 private:
  const int num_ranks_;
  EmulatedMachine machine_;
  EmulatedNccl nccl_;
  comm::ThreadWorld world_;
};

// Whole numbers whose sums over four ranks every type holds exactly.
Values Input(int rank, int64_t size) {
  Values values;
  for (int64_t i = 0; i < size; ++i) {
    values.push_back(static_cast<double>((i * 7 + rank * 13) % 31 - 15));
  }
  return values;
}

Values Sum(int num_ranks, int64_t size) {
  Values sum(static_cast<size_t>(size));
  for (int rank = 0; rank < num_ranks; ++rank) {
    const Values other = Input(rank, size);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
  }
  return sum;
}

Values Part(const Values& whole, int index, int count) {
  const auto part = static_cast<std::ptrdiff_t>(whole.size()) / count;
  return {whole.begin() + index * part, whole.begin() + (index + 1) * part};
}

void CheckSums(comm::Communicator& it, Gpu& gpu, DType dtype, int64_t size) {
  const int n = it.size(), rank = it.rank();
  const CallInfo info = {.instruction_id = static_cast<uint64_t>(size) + 1};
  const Vector buffer = gpu.Make(dtype, Input(rank, size));
  EXPECT_EQ(it.AllReduce(buffer, info), absl::OkStatus());
  EXPECT_EQ(gpu.Read(buffer), Sum(n, size)) << "all-reduce";

  const Vector whole = gpu.Make(dtype, Input(rank, n * size));
  const Vector part = gpu.Make(dtype, Values(static_cast<size_t>(size)));
  EXPECT_EQ(it.ReduceScatter(whole, part, info), absl::OkStatus());
  EXPECT_EQ(gpu.Read(part), Part(Sum(n, n * size), rank, n)) << "reduce-scatter";
  EXPECT_EQ(gpu.Read(whole), Input(rank, n * size)) << "reduce-scatter changed its input";

  const int root = n - 1;
  const Vector input = gpu.Make(dtype, Input(rank, size));
  const Vector reduced = gpu.Make(dtype, Values(static_cast<size_t>(size), 3));
  EXPECT_EQ(it.Reduce(input, reduced, root, info), absl::OkStatus());
  EXPECT_EQ(gpu.Read(reduced), rank == root ? Sum(n, size) : Values(static_cast<size_t>(size), 3));
}

void CheckCopies(comm::Communicator& it, Gpu& gpu, DType dtype, int64_t size) {
  const int n = it.size(), rank = it.rank();
  const CallInfo info = {.instruction_id = static_cast<uint64_t>(size) + 2};
  Values gathered, swapped;
  for (int i = 0; i < n; ++i) {
    const Values other = Input(i, size), block = Part(Input(i, n * size), rank, n);
    gathered.insert(gathered.end(), other.begin(), other.end());
    swapped.insert(swapped.end(), block.begin(), block.end());
  }
  const Vector input = gpu.Make(dtype, Input(rank, size));
  const Vector all = gpu.Make(dtype, Values(static_cast<size_t>(n * size)));
  EXPECT_EQ(it.AllGather(input, all, info), absl::OkStatus());
  EXPECT_EQ(gpu.Read(all), gathered) << "all-gather";

  const Vector blocks = gpu.Make(dtype, Input(rank, n * size));
  const Vector exchanged = gpu.Make(dtype, Values(static_cast<size_t>(n * size)));
  EXPECT_EQ(it.AllToAll(blocks, exchanged, info), absl::OkStatus());
  EXPECT_EQ(gpu.Read(exchanged), swapped) << "all-to-all";

  const Vector told = gpu.Make(dtype, Input(rank, size));
  EXPECT_EQ(it.Broadcast(told, n - 1, info), absl::OkStatus());
  EXPECT_EQ(gpu.Read(told), Input(n - 1, size)) << "broadcast";

  const Vector message = gpu.Make(dtype, Values(static_cast<size_t>(size)));
  if (rank > 0) {
    EXPECT_EQ(it.Recv(rank - 1, message, info), absl::OkStatus());
  }
  if (rank + 1 < n) {
    EXPECT_EQ(it.Send(rank + 1, input, info), absl::OkStatus());
  }
  EXPECT_EQ(gpu.Read(message),
            rank > 0 ? Input(rank - 1, size) : Values(static_cast<size_t>(size)));
  EXPECT_EQ(it.Barrier(info), absl::OkStatus());
}

class SizesTest : public ::testing::TestWithParam<int> {};

TEST_P(SizesTest, EveryCallGivesExactSumsAndCopiesOfEveryTypeAndSize) {
  World world(GetParam());
  world.Run([](comm::Communicator& it, Gpu& gpu) {
    for (const int64_t size : {0, 1, 7, 1001}) {
      for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kI32}) {
        SCOPED_TRACE(absl::StrCat(tensor::Name(dtype), ", ", size, " elements, rank ", it.rank()));
        if (dtype != DType::kI32) CheckSums(it, gpu, dtype, size);
        CheckCopies(it, gpu, dtype, size);
      }
    }
  });
}

TEST_P(SizesTest, RefusesWhatHostCommunicatorsRefuseAndLivesOn) {
  World world(GetParam());
  world.Run([](comm::Communicator& it, Gpu& gpu) {
    const int n = it.size();
    const Vector whole_number = gpu.Make(DType::kI32, {1});
    const Vector odd = gpu.Make(DType::kF32, Values(static_cast<size_t>(n + 1)));
    const Vector one = gpu.Make(DType::kF32, {1});
    for (const absl::Status& refused :
         {it.AllReduce(whole_number, {}), it.Broadcast(one, n, {}), it.Reduce(one, one, -1, {}),
          it.AllGather(odd, one, {}), it.ReduceScatter(whole_number, one, {}),
          it.AllToAll(one, one, {}), it.Send(it.rank(), one, {}), it.Recv(n, one, {})}) {
      EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
      EXPECT_THAT(std::string(refused.message()), HasSubstr("all"));
    }
    EXPECT_EQ(it.Barrier({}), absl::OkStatus());
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, SizesTest, ::testing::Range(1, 5),
                         [](const auto& info) { return absl::StrCat(info.param); });

// A sum of n numbers of fp32 in any order is off by at most (n - 1) roundings, each of at most half
// a unit in the last place of the sum of the absolute values.
TEST(NcclCommunicatorTest, SumsOfFractionsAreWithinTheRoundingOfAnyOrder) {
  constexpr int kRanks = 3;
  constexpr int64_t kSize = 333;
  const auto value = [](int rank, int64_t i) {
    return static_cast<double>(
        static_cast<float>(std::sin(static_cast<double>(i + 1) * 1.7 + rank)));
  };
  World world(kRanks);
  world.Run([&](comm::Communicator& it, Gpu& gpu) {
    Values mine, sum(kSize), absolute(kSize);
    for (int64_t i = 0; i < kSize; ++i) {
      mine.push_back(value(it.rank(), i));
      for (int rank = 0; rank < kRanks; ++rank) {
        sum[static_cast<size_t>(i)] += value(rank, i);
        absolute[static_cast<size_t>(i)] += std::abs(value(rank, i));
      }
    }
    const Vector buffer = gpu.Make(DType::kF32, mine);
    ASSERT_EQ(it.AllReduce(buffer, {}), absl::OkStatus());
    const Values got = gpu.Read(buffer);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i], sum[i], (kRanks - 1) * 0x1p-24 * absolute[i]) << "element " << i;
    }
  });
}

TEST(NcclCommunicatorTest, CallsThatAnswerInProgressAreWaitedFor) {
  World world(3, {.in_progress_polls = 150});
  world.Run([](comm::Communicator& it, Gpu& gpu) {
    CheckSums(it, gpu, DType::kF32, 9);
    CheckCopies(it, gpu, DType::kF32, 9);
  });
}

TEST(NcclCommunicatorTest, ManyCallsRunAheadOfTheDeviceAndKeepTheirOrder) {
  World world(2);
  world.Run([](comm::Communicator& it, Gpu& gpu) {
    const Vector buffer = gpu.Make(DType::kF64, {1, 2, 3});
    for (int i = 0; i < 30; ++i) ASSERT_EQ(it.AllReduce(buffer, {}), absl::OkStatus());
    EXPECT_EQ(gpu.Read(buffer), (Values{0x1p30, 0x1p31, 3 * 0x1p30}));
  });
}

TEST(NcclCommunicatorTest, SeveralCommunicatorsExchangeOnStreamsOfTheirOwn) {
  const comm::WorldSpec spec = {.placements = {"node-0", "node-1", "node-0"},
                                .groups = {{"all", {0, 1, 2}, kRingBytes},
                                           {"first", {0, 1}, kRingBytes},
                                           {"last", {1, 2}, kRingBytes}}};
  EmulatedMachine machine({.num_devices = 3});
  EmulatedNccl nccl;
  comm::ThreadWorld world(spec);
  world.RunConnected([&](int rank, comm::Fabric& fabric) {
    struct Group {
      std::unique_ptr<comm::HostCommunicator> host;
      std::unique_ptr<Gpu> gpu;
      std::unique_ptr<comm::Communicator> communicator;
      Vector buffer;
    };
    std::vector<Group> groups;
    for (const comm::GroupSpec& group : spec.groups) {
      if (std::count(group.ranks.begin(), group.ranks.end(), rank) == 0) continue;
      Group made = {fabric.Make(group.name).value(), std::make_unique<Gpu>(rank), nullptr, {}};
      made.communicator = MakeNcclCommunicator(OptionsOf(made.host.get(), *made.gpu)).value();
      made.buffer = made.gpu->Make(DType::kF32, {1, 1});
      groups.push_back(std::move(made));
    }
    for (int i = 0; i < 3; ++i) {
      for (Group& group : groups) {
        ASSERT_EQ(group.communicator->AllReduce(group.buffer, {}), absl::OkStatus());
      }
    }
    for (Group& group : groups) {
      const double sum = std::pow(group.communicator->size(), 3);
      EXPECT_EQ(group.gpu->Read(group.buffer), (Values{sum, sum})) << group.communicator->name();
    }
  });
}

// What becomes of one call in each of two groups of the same two ranks, on streams of their own,
// where exchanges hold their device. `agree`: both ranks launch in one order.
absl::Status EndOfTwoGroups(bool agree) {
  const comm::WorldSpec spec = {
      .placements = {"node-0", "node-1"},
      .groups = {{"one", {0, 1}, kRingBytes}, {"other", {0, 1}, kRingBytes}}};
  EmulatedMachine machine({.num_devices = 2, .has_process_per_device = true});
  EmulatedNccl nccl({.holds_device = true});
  comm::ThreadWorld world(spec);
  std::mutex mutex;
  absl::Status end;
  world.RunConnected([&](int rank, comm::Fabric& fabric) {
    const auto host_one = fabric.Make("one").value(), host_other = fabric.Make("other").value();
    Gpu gpu_one(rank), gpu_other(rank);
    const auto one = MakeNcclCommunicator(OptionsOf(host_one.get(), gpu_one)).value();
    const auto other = MakeNcclCommunicator(OptionsOf(host_other.get(), gpu_other)).value();
    const Vector in_one = gpu_one.Make(DType::kF32, {1}),
                 in_other = gpu_other.Make(DType::kF32, {1});
    const CallInfo info = {.timeout = agree ? kLong : kShort};
    const bool one_first = agree || rank == 0;
    if (one_first) (void)one->AllReduce(in_one, info);
    (void)other->AllReduce(in_other, info);
    if (!one_first) (void)one->AllReduce(in_one, info);
    gpu_one.Wait();
    gpu_other.Wait();
    for (const absl::Status& status : {one->Barrier(info), other->Barrier(info)}) {
      const std::lock_guard<std::mutex> lock(mutex);
      if (end.ok()) end = status;
    }
  });
  return end;
}

TEST(NcclCommunicatorTest, TwoGroupsEndIfAllRanksLaunchThemInOneOrder) {
  EXPECT_EQ(EndOfTwoGroups(/*agree=*/true), absl::OkStatus());
}

TEST(NcclCommunicatorTest, TwoGroupsInOppositeOrdersWaitForEachOtherUntilTheirDeadline) {
  const absl::Status end = EndOfTwoGroups(/*agree=*/false);
  EXPECT_FALSE(end.ok());
  EXPECT_THAT(std::string(end.message()), HasSubstr("timed out"));
}

// Waits until the stream is free, and returns the error that later calls have.
absl::Status ErrorOfLaterCalls(comm::Communicator& it, Gpu& gpu, const Vector& buffer) {
  gpu.Wait();
  const absl::Duration deadline = base::RealClock().Monotonic() + kLong / 2;
  absl::Status status;
  while (status.ok() && base::RealClock().Monotonic() < deadline) {
    status = it.AllReduce(buffer, {.instruction_id = 8});
  }
  return status;
}

// The same where the error may come with the call itself, whose status is `first`.
absl::Status ErrorSince(const absl::Status& first, comm::Communicator& it, Gpu& gpu,
                        const Vector& buffer) {
  const absl::Status later = ErrorOfLaterCalls(it, gpu, buffer);
  EXPECT_TRUE(first.ok() || first == later) << first;
  return later;
}

TEST(NcclFaultTest, AnAbortFreesEveryWaitingRankAtOnceAndIsNamed) {
  World world(3);
  std::atomic<int> num_waiting = 0;
  world.Run([&](comm::Communicator& it, Gpu& gpu) {
    const Vector buffer = gpu.Make(DType::kF32, {1});
    if (it.rank() == 2) {
      while (num_waiting < 2) std::this_thread::yield();
      it.Abort(comm::Blame(absl::InternalError("rank 1's numbers are wrong"), {1}));
    } else {
      EXPECT_EQ(it.AllReduce(buffer, {.instruction_id = 7}), absl::OkStatus());
      ++num_waiting;
    }
    const absl::Duration start = base::RealClock().Monotonic();
    const absl::Status status = ErrorOfLaterCalls(it, gpu, buffer);
    EXPECT_LT(base::RealClock().Monotonic() - start, absl::Seconds(20));
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1's numbers are wrong"));
    EXPECT_THAT(BlamedRanks(status), ElementsAre(1));
    if (it.rank() != 2) {
      EXPECT_THAT(std::string(status.message()), HasSubstr("group all"));
      EXPECT_THAT(std::string(status.message()), HasSubstr("all-reduce 0 (instruction 7"));
    }
  });
}

TEST(NcclFaultTest, ARankThatNeverComesIsBlamedAtTheDeadline) {
  World world(3);
  std::atomic<int> num_ended = 0;
  world.Run([&](comm::Communicator& it, Gpu& gpu) {
    const Vector buffer = gpu.Make(DType::kF32, {1});
    if (it.rank() == 1) {
      while (num_ended < 2) std::this_thread::yield();
      return;
    }
    const CallInfo info = {.instruction_id = 7, .timeout = kShort};
    EXPECT_EQ(it.AllReduce(buffer, info), absl::OkStatus());
    const absl::Status status = ErrorOfLaterCalls(it, gpu, buffer);
    ++num_ended;
    EXPECT_TRUE(absl::IsDeadlineExceeded(status) || absl::IsAborted(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("not arrived: rank 1"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("all-reduce 0 (instruction 7, 4 bytes)"));
    EXPECT_THAT(BlamedRanks(status), ElementsAre(1));
  });
}

TEST(NcclFaultTest, ARankThatComesLateToACallThatHangsIsNotBlamed) {
  World world(3, {.faults = {{.kind = NcclFault::Kind::kHang, .rank = 1}}});
  std::atomic<int> num_late = 0;
  std::latch others_have_called(2);
  world.Run([&](comm::Communicator& it, Gpu& gpu) {
    const Vector buffer = gpu.Make(DType::kF32, {1});
    // Rank 0's deadline passes long before those of the others, which are there on a busy machine,
    // too.
    const absl::Duration timeout = it.rank() == 0 ? kShort : kLong;
    if (it.rank() == 0) others_have_called.wait();
    EXPECT_EQ(it.AllReduce(buffer, {.instruction_id = 7, .timeout = timeout}), absl::OkStatus());
    if (it.rank() != 0) others_have_called.count_down();
    const absl::Status status = ErrorOfLaterCalls(it, gpu, buffer);
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("group all"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("all-reduce 0 (instruction 7"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("all ranks have arrived"));
    EXPECT_THAT(BlamedRanks(status), IsEmpty());
    ++num_late;
  });
  EXPECT_EQ(num_late, 3);
}

TEST(NcclFaultTest, AMessageThatNeverComesNamesAndBlamesItsSender) {
  World world(2);
  absl::Notification ended;
  world.Run([&](comm::Communicator& it, Gpu& gpu) {
    const Vector buffer = gpu.Make(DType::kF32, {1});
    if (it.rank() == 0) return ended.WaitForNotification();
    EXPECT_EQ(it.Recv(0, buffer, {.instruction_id = 7, .timeout = kShort}), absl::OkStatus());
    const absl::Status status = ErrorOfLaterCalls(it, gpu, buffer);
    ended.Notify();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("receive 0 from rank 0 (instruction 7"));
    EXPECT_THAT(BlamedRanks(status), ElementsAre(0));
  });
}

TEST(NcclFaultTest, DifferentCallsAreComparedAtTheDeadline) {
  World world(2, {.faults = {{.kind = NcclFault::Kind::kHang, .rank = 1, .call = 2}}});
  world.Run([&](comm::Communicator& it, Gpu& gpu) {
    const Vector buffer = gpu.Make(DType::kF32, {1});
    EXPECT_EQ(it.AllReduce(buffer, {.instruction_id = 6}), absl::OkStatus());
    const auto instruction = static_cast<uint64_t>(20 + it.rank());
    EXPECT_EQ(it.AllReduce(buffer, {.instruction_id = instruction, .timeout = kShort}),
              absl::OkStatus());
    const absl::Status status = ErrorOfLaterCalls(it, gpu, buffer);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("instruction 20"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("instruction 21"));
  });
}

TEST(NcclFaultTest, AnAsynchronousErrorNamesRankGroupAndOperation) {
  World world(2, {.faults = {{.rank = 1, .call = 1, .result = ncclUnhandledCudaError}}});
  world.Run([&](comm::Communicator& it, Gpu& gpu) {
    const Vector buffer = gpu.Make(DType::kF32, {1});
    const absl::Status first = it.AllReduce(buffer, {.instruction_id = 7});
    const absl::Status status = ErrorSince(first, it, gpu, buffer);
    EXPECT_EQ(status.code(),
              it.rank() == 1 ? absl::StatusCode::kInternal : absl::StatusCode::kAborted);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("group all, rank 1, all-reduce 0 (instruction 7, 4 bytes): NCCL: "
                          "unhandled cuda error: fault of call 1"));
    if (it.rank() == 0) {
      EXPECT_THAT(BlamedRanks(status), ElementsAre(1));
    }
  });
}

TEST(NcclFaultTest, AnErrorOfTheNetworkDuringAMessageNamesAndBlamesThePeer) {
  World world(2, {.faults = {{.rank = 1, .call = 1, .result = ncclSystemError}}});
  absl::Notification ended;
  world.Run([&](comm::Communicator& it, Gpu& gpu) {
    const Vector buffer = gpu.Make(DType::kF32, {1});
    if (it.rank() == 0) return ended.WaitForNotification();
    const absl::Status first = it.Send(0, buffer, {.instruction_id = 7});
    const absl::Status status = ErrorSince(first, it, gpu, buffer);
    ended.Notify();
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("send 0 to rank 0 (instruction 7"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("unhandled system error"));
    EXPECT_THAT(BlamedRanks(status), ElementsAre(0));
  });
}

TEST(NcclFaultTest, AFailureIsToldBeforeItFreesTheStream) {
  World world(2, {.faults = {{.rank = 0, .call = 1, .result = ncclInternalError}}});
  world.RunWithHosts([&](comm::HostCommunicator& host, Gpu& gpu) {
    std::atomic<bool> was_told = false;
    NcclOptions options = OptionsOf(&host, gpu);
    options.on_failure = [&](const absl::Status& status) {
      EXPECT_FALSE(status.ok());
      if (host.rank() == 0) {  // the other may not have enqueued its call
        EXPECT_EQ(EmulatedCuda()->cudaStreamQuery(gpu.stream()), cudaErrorNotReady);
      }
      was_told = true;
    };
    const auto it = MakeNcclCommunicator(options);
    if (!it.ok()) {  // the failed rank was faster than the end of this one's start
      EXPECT_EQ(host.rank(), 1) << it.status();
      EXPECT_TRUE(was_told);
      return;
    }
    const Vector buffer = gpu.Make(DType::kF32, {1});
    const absl::Status first = (*it)->AllReduce(buffer, {});
    EXPECT_FALSE(ErrorSince(first, **it, gpu, buffer).ok());
    EXPECT_TRUE(was_told);
  });
}

TEST(NcclStartTest, AStartThatHangsEndsByItsDeadlineAndNamesTheRanks) {
  World world(2, {.faults = {{.kind = NcclFault::Kind::kHang, .rank = 1, .call = 0}}});
  world.RunWithHosts([&](comm::HostCommunicator& host, Gpu& gpu) {
    NcclOptions options = OptionsOf(&host, gpu);
    options.start_timeout = absl::Seconds(1);
    const absl::Status status = MakeNcclCommunicator(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("group all"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("NCCL's start timed out"));
  });
}

TEST(NcclStartTest, AnErrorOfOneRankEndsTheStartOfAll) {
  World world(3, {.faults = {{.rank = 2, .call = 0, .result = ncclInternalError}}});
  world.RunWithHosts([&](comm::HostCommunicator& host, Gpu& gpu) {
    const absl::Status status = MakeNcclCommunicator(OptionsOf(&host, gpu)).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr("fault of call 0"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("NCCL's start"));
  });
}

absl::Status StartInProcess(comm::Fabric& fabric, int rank,
                            const emulator::EmulatedNcclOptions& options) {
  const EmulatedMachine machine;
  const EmulatedNccl nccl(options);
  const auto host = fabric.Make("all").value();
  Gpu gpu(0);
  auto it = MakeNcclCommunicator(OptionsOf(host.get(), gpu));
  if (!it.ok()) return it.status();
  const Vector buffer = gpu.Make(DType::kF32, Input(rank, 1001));
  absl::Status status = (*it)->AllReduce(buffer, {.instruction_id = 7});
  if (options.faults.empty())
    return gpu.Read(buffer) == Sum(host->size(), 1001) ? status : absl::InternalError("wrong sums");
  return status.ok() ? ErrorOfLaterCalls(**it, gpu, buffer) : status;
}

TEST(NcclProcessesTest, ProcessesExchange) {
  comm::ProcessWorld world(comm::OneGroup(3, 2, kRingBytes));
  world.Start([](comm::Fabric& fabric, comm::RankBoard& /*board*/, int rank) {
    return StartInProcess(fabric, rank, {});
  });
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(world.Result(rank), absl::OkStatus());
}

class DeathTest : public ::testing::TestWithParam<int> {};

TEST_P(DeathTest, OfAProcessEndsTheOthersInTimeAndIsBlamed) {
  const int call = GetParam();
  comm::ProcessWorld world(comm::OneGroup(3, 2, kRingBytes));
  world.Start([call](comm::Fabric& fabric, comm::RankBoard& /*board*/, int rank) {
    return StartInProcess(fabric, rank,
                          {.faults = {{.kind = NcclFault::Kind::kDie, .rank = 1, .call = call}}});
  });
  for (const int rank : {0, 2}) {
    const absl::Status status = world.Result(rank);
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
    EXPECT_EQ(world.board(rank).blamed_ranks, 1u << 1) << status;
  }
}

INSTANTIATE_TEST_SUITE_P(Call, DeathTest, ::testing::Values(0, 1), [](const auto& info) {
  return info.param == 0 ? "DuringTheStart" : "DuringACall";
});

// --- how far calls have come --------------------------------------------------------------------

class ShownCalls : public comm::CallProgress {
 public:
  int Register(absl::string_view /*name*/) override { return num_channels_++; }
  void Begin(int channel, const comm::CallEvent& call) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    running_[channel] = call.instruction_id;
  }
  void Update(int channel, absl::Span<const comm::PeerProgress> peers) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const comm::PeerProgress& peer : peers) peers_[running_[channel]][peer.world_rank] = peer;
  }
  void End(int channel, const comm::CallEvent& /*call*/) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_.insert(running_[channel]);
  }
  comm::PeerProgress Shown(uint64_t instruction, int peer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return peers_[instruction][peer];
  }
  bool HasEnded(uint64_t instruction) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return ended_.count(instruction) > 0;
  }

 private:
  std::mutex mutex_;
  int num_channels_ = 0;
  std::map<int, uint64_t> running_;  // by channel: instruction
  std::map<uint64_t, std::map<int, comm::PeerProgress>> peers_;
  std::set<uint64_t> ended_;
};

// The emulated NCCL looks for the plugin as the real one does: in the program.
TEST(NcclProgressTest, AStuckSendShowsHowFarItsBytesHaveCome) {
  ::setenv("NCCL_PROFILER_PLUGIN", "STATIC_PLUGIN", /*overwrite=*/1);
  constexpr int64_t kElements = 4 << 20;  // far more than a socket takes
  EmulatedMachine machine({.seed = 5, .num_devices = 2});
  EmulatedNccl nccl({.faults = {{.kind = NcclFault::Kind::kHang, .rank = 1, .call = 2}}});
  const comm::WorldSpec spec = comm::OneGroup(2, 2, kRingBytes);
  comm::ThreadWorld world(spec);
  ShownCalls shown;  // of rank 0
  absl::Notification is_seen;
  world.Run([&](int rank) {
    comm::FabricOptions options = world.OptionsOf(rank);
    if (rank == 0) options.progress = &shown;
    auto fabric = comm::Fabric::Create(options, spec.groups).value();
    ASSERT_EQ(fabric->Connect(), absl::OkStatus());
    const auto host = fabric->Make("all").value();
    Gpu gpu(rank);
    auto communicator = MakeNcclCommunicator(OptionsOf(host.get(), gpu)).value();
    const Vector small = gpu.Make(DType::kF32, {1, 2, 3});
    EXPECT_EQ(communicator->AllReduce(small, {.instruction_id = 7}), absl::OkStatus());
    gpu.Wait();
    const Vector large = gpu.Make(DType::kF32, Values(kElements));
    if (rank == 1) {
      (void)communicator->Recv(0, large, {.instruction_id = 8});
      is_seen.WaitForNotification();
      return;
    }
    (void)communicator->Send(1, large, {.instruction_id = 8});
    const absl::Duration deadline = base::RealClock().Monotonic() + kLong;
    const auto is_stuck = [&] {
      const comm::PeerProgress peer = shown.Shown(8, 1);
      return peer.transmitted_bytes > 0 && peer.send_bytes > peer.transmitted_bytes;
    };
    while (!is_stuck() && base::RealClock().Monotonic() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(is_stuck()) << "a step waits for the peer, and those before it are transmitted";
    EXPECT_LT(shown.Shown(8, 1).transmitted_bytes, large.bytes());
    EXPECT_FALSE(shown.HasEnded(8));
    EXPECT_TRUE(shown.HasEnded(7));
    EXPECT_EQ(shown.Shown(7, 1).received_bytes, small.bytes());
    communicator->Abort(absl::AbortedError("seen"));
    is_seen.Notify();
  });
  ::unsetenv("NCCL_PROFILER_PLUGIN");
}

}  // namespace
}  // namespace megascale::cuda
