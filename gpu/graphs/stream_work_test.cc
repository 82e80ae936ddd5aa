#include "gpu/graphs/stream_work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "gpu/cuda/cuda_status.h"
#include "gpu/cuda/kernel_library.h"
#include "gpu/emulator/emulated_cuda.h"
#include "gpu/kernels/vocabulary.h"
#include "runtime/base/status.h"
#include "runtime/base/testing/test_heap.h"

namespace {

struct StepParams {
  uint32_t* x;
  uint64_t term;
};

}  // namespace

// One after the other, in an order that the result shows: x = 3 x + term.
MEGASCALE_KERNEL(TestStep, StepParams, 32) {
  using namespace megascale::kernels;
  const Global<uint32_t> x(params.x);
  if (ThreadIndex() == 0) x[0] = 3 * x[0] + static_cast<uint32_t>(params.term);
}

namespace megascale::gpu {
namespace {

using emulator::EmulatedCalls;
using emulator::EmulatedMachine;

constexpr int kMin = StreamWork::kLaunchesMin;

struct Step {
  cuda::KernelLibrary* kernels;
  StepParams params;
};
absl::Status CallStep(const void* arguments, cudaStream_t stream) {
  const Step& step = *static_cast<const Step*>(arguments);
  return step.kernels->Launch(stream, "TestStep", {.threads = 32}, step.params);
}

// A call that no capture allows.
absl::Status CallAllocate(const void* /*arguments*/, cudaStream_t /*stream*/) {
  void* memory = nullptr;
  const cuda::CudaApi& cuda = *emulator::EmulatedCuda();
  RETURN_IF_ERROR(MEGASCALE_CUDA_CALL(cuda, cudaMalloc(&memory, 8)));
  return MEGASCALE_CUDA_CALL(cuda, cudaFree(memory));
}

absl::Status CallRefuse(const void* /*arguments*/, cudaStream_t /*stream*/) {
  return absl::InternalError("refused");
}

class StreamWorkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cuda_.cudaSetDevice(0), cudaSuccess);
    ASSERT_EQ(cuda_.cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    kernels_ = cuda::KernelLibrary::Load(&cuda_, emulator::EmulatedImages()).value();
    void* memory = nullptr;
    ASSERT_EQ(cuda_.cudaMalloc(&memory, sizeof(uint32_t)), cudaSuccess);
    x_ = static_cast<uint32_t*>(memory);
    ASSERT_EQ(cuda_.cudaMemsetAsync(x_, 0, sizeof(uint32_t), stream_), cudaSuccess);
    ASSERT_EQ(cuda_.cudaHostAlloc(&memory, sizeof(uint32_t), cudaHostAllocDefault), cudaSuccess);
    on_host_ = static_cast<uint32_t*>(memory);
  }
  void TearDown() override {
    kernels_.reset();
    cuda_.cudaFree(x_);
    cuda_.cudaFreeHost(on_host_);
    cuda_.cudaStreamDestroy(stream_);
  }
  std::unique_ptr<StreamWork> Make(bool uses_graphs = true) {
    return std::make_unique<StreamWork>(StreamWork::Options{
        .cuda = &cuda_,
        .stream = stream_,
        .uses_graphs = uses_graphs,
        .on_error = [this](const absl::Status& status) { errors_.push_back(status); }});
  }
  // Adds a step, and does the same on the host.
  void Add(StreamWork& work, uint64_t term) {
    work.Add(&CallStep, Step{.kernels = kernels_.get(), .params = {x_, term}});
    expected_ = 3 * expected_ + static_cast<uint32_t>(term);
  }
  void AddSteps(StreamWork& work, int count, uint64_t first_term = 1) {
    for (int i = 0; i < count; ++i) Add(work, first_term + static_cast<uint64_t>(i));
  }
  void ExpectResult() {
    ASSERT_EQ(cuda_.cudaMemcpyAsync(on_host_, x_, sizeof(uint32_t), cudaMemcpyDefault, stream_),
              cudaSuccess);
    ASSERT_EQ(cuda_.cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(*on_host_, expected_);
    EXPECT_THAT(errors_, ::testing::IsEmpty());
  }

  EmulatedMachine machine_;
  const cuda::CudaApi& cuda_ = *emulator::EmulatedCuda();
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<cuda::KernelLibrary> kernels_;
  uint32_t* x_ = nullptr;
  uint32_t* on_host_ = nullptr;
  uint32_t expected_ = 0;
  std::vector<absl::Status> errors_;
};

TEST_F(StreamWorkTest, WorkThatRepeatsIsCapturedTheSecondTimeAndThenOneLaunch) {
  const auto work = Make();
  for (int round = 1; round <= 5; ++round) {
    const EmulatedCalls before = emulator::CountEmulatedCalls();
    AddSteps(*work, 10);
    EXPECT_EQ(emulator::CountEmulatedCalls().launches, before.launches) << "held back";
    work->Issue();
    const EmulatedCalls after = emulator::CountEmulatedCalls();
    EXPECT_EQ(after.launches - before.launches, round <= 2 ? 10 : 0) << round;
    EXPECT_EQ(after.instantiations - before.instantiations, round == 2 ? 1 : 0) << round;
    EXPECT_EQ(after.graph_launches - before.graph_launches, round >= 2 ? 1 : 0) << round;
  }
  ExpectResult();
}

TEST_F(StreamWorkTest, WorkThatDiffersInOneNumberHasAGraphOfItsOwn) {
  const auto work = Make();
  for (int round = 1; round <= 12; ++round) {
    AddSteps(*work, 9);
    Add(*work, static_cast<uint64_t>(round % 3));
    AddSteps(*work, 9);
    work->Issue();
  }
  const EmulatedCalls calls = emulator::CountEmulatedCalls();
  EXPECT_EQ(calls.instantiations, 3);
  EXPECT_EQ(calls.graph_launches, 12 - 3);
  ExpectResult();
}

TEST_F(StreamWorkTest, ABeginningOfOtherWorkIsOtherWork) {
  const auto work = Make();
  for (int round = 1; round <= 6; ++round) {
    AddSteps(*work, round % 2 == 0 ? 10 : 9);
    work->Issue();
  }
  EXPECT_EQ(emulator::CountEmulatedCalls().instantiations, 2);
  ExpectResult();
}

TEST_F(StreamWorkTest, FewLaunchesHaveNoGraphAndManyHaveSeveral) {
  const auto work = Make();
  for (int round = 1; round <= 3; ++round) {
    AddSteps(*work, kMin - 1);
    work->Issue();
  }
  EXPECT_EQ(emulator::CountEmulatedCalls().instantiations, 0);
  for (int round = 1; round <= 3; ++round) {
    AddSteps(*work, 2 * StreamWork::kLaunchesMax + kMin);
    work->Issue();
  }
  EXPECT_EQ(emulator::CountEmulatedCalls().instantiations, 3);
  EXPECT_EQ(emulator::CountEmulatedCalls().graph_launches, 2 * 3);
  ExpectResult();
}

TEST_F(StreamWorkTest, WithoutGraphsEachCallIsLaunchedAtOnce) {
  const auto work = Make(/*uses_graphs=*/false);
  for (int i = 1; i <= 3 * 10; ++i) {
    Add(*work, static_cast<uint64_t>(i % 10));
    EXPECT_EQ(emulator::CountEmulatedCalls().launches, i);
  }
  EXPECT_EQ(emulator::CountEmulatedCalls().graph_launches, 0);
  ExpectResult();
}

TEST_F(StreamWorkTest, FinishIssuesAndWaits) {
  const auto work = Make();
  AddSteps(*work, 10);
  work->Finish();
  EXPECT_EQ(cuda_.cudaStreamQuery(stream_), cudaSuccess);
  EXPECT_EQ(emulator::CountEmulatedCalls().launches, 10);
  ExpectResult();
}

// As for lack of memory for a graph: the step must not be lost.
TEST_F(StreamWorkTest, WorkThatCannotBecomeAGraphIsLaunchedWithoutOneFromThenOn) {
  const auto work = Make();
  for (int round = 1; round <= 3; ++round) {
    for (int i = 0; i < kMin; ++i) work->Add(&CallAllocate, uint64_t{0});
    work->Issue();
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
    EXPECT_EQ(cuda_.cudaStreamIsCapturing(stream_, &status), cudaSuccess);
    EXPECT_EQ(status, cudaStreamCaptureStatusNone);
  }
  EXPECT_THAT(errors_, ::testing::IsEmpty());
  AddSteps(*work, 10);
  work->Issue();
  AddSteps(*work, 10);
  work->Finish();
  EXPECT_EQ(emulator::CountEmulatedCalls().graph_launches, 0);
  ExpectResult();
}

TEST_F(StreamWorkTest, AnErrorIsReportedOnceAndDropsWhatFollows) {
  const auto work = Make();
  AddSteps(*work, 2);
  work->Add(&CallRefuse, uint64_t{0});
  work->Add(&CallStep, Step{.kernels = kernels_.get(), .params = {x_, 7}});
  work->Issue();
  EXPECT_THAT(errors_, ::testing::ElementsAre(absl::InternalError("refused")));
  work->Add(&CallStep, Step{.kernels = kernels_.get(), .params = {x_, 8}});
  work->Issue();
  EXPECT_EQ(errors_.size(), 1u);
  errors_.clear();
  ExpectResult();  // of the two steps before
}

// A table that does nothing, so that only the host's own calls are counted.
cuda::CudaApi NullApi() {
  cuda::CudaApi api;
  api.cudaStreamBeginCapture = [](cudaStream_t, cudaStreamCaptureMode) { return cudaSuccess; };
  api.cudaStreamEndCapture = [](cudaStream_t, cudaGraph_t* graph) {
    *graph = nullptr;
    return cudaSuccess;
  };
  api.cudaGraphInstantiate = [](cudaGraphExec_t* executable, cudaGraph_t, unsigned long long) {
    *executable = nullptr;
    return cudaSuccess;
  };
  api.cudaGraphLaunch = [](cudaGraphExec_t, cudaStream_t) { return cudaSuccess; };
  api.cudaGraphExecDestroy = [](cudaGraphExec_t) { return cudaSuccess; };
  return api;
}
absl::Status CallNothing(const void* /*arguments*/, cudaStream_t /*stream*/) {
  return absl::OkStatus();
}

TEST(StreamWorkHeapTest, RepeatedWorkTakesNoHeapMemory) {
  if (!base::kHeapIsCounted) GTEST_SKIP() << "a sanitizer has a heap of its own";
  const cuda::CudaApi api = NullApi();
  StreamWork work({.cuda = &api, .uses_graphs = true, .on_error = [](const absl::Status&) {}});
  const auto round = [&] {
    for (uint64_t segment = 0; segment < 10; ++segment) {
      for (uint64_t i = 0; i < 100; ++i) work.Add(&CallNothing, segment * 100 + i);
      work.Issue();
    }
  };
  round();
  round();
  const base::HeapCalls before = base::CountHeapCalls();
  for (int i = 0; i < 5; ++i) round();
  EXPECT_EQ((base::CountHeapCalls() - before).ours, 0);
}

TEST(StreamWorkHeapTest, WorkThatNeverRepeatsTakesNoMoreGraphsThanAllowed) {
  static int num_graphs = 0;
  cuda::CudaApi api = NullApi();
  api.cudaGraphInstantiate = [](cudaGraphExec_t* executable, cudaGraph_t, unsigned long long) {
    *executable = nullptr;
    ++num_graphs;
    return cudaSuccess;
  };
  StreamWork work({.cuda = &api, .uses_graphs = true, .on_error = [](const absl::Status&) {}});
  for (int round = 0; round < 3; ++round) {
    for (uint64_t number = 0; number < StreamWork::kGraphsMax + 10; ++number) {
      for (int i = 0; i < kMin; ++i) work.Add(&CallNothing, number);
      work.Issue();
    }
  }
  EXPECT_EQ(num_graphs, static_cast<int>(StreamWork::kGraphsMax));
}

}  // namespace
}  // namespace megascale::gpu
