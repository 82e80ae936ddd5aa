#include "gpu/emulator/emulated_cuda.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gpu/cuda/kernel_library.h"
#include "gpu/kernels/vocabulary.h"

struct AddParams {
  const float* x;
  float* out;
  int64_t size;
};

// out += x
MEGASCALE_KERNEL(TestAdd, AddParams, 128) {
  using namespace megascale::kernels;
  const Global<const float> x(params.x);
  const Global<float> out(params.out);
  const int64_t i = int64_t{BlockIndex()} * NumThreads() + ThreadIndex();
  if (i < params.size) out[i] += x[i];
}

MEGASCALE_KERNEL(TestRace, AddParams, 64) {
  using namespace megascale::kernels;
  const Shared<float> shared = DynamicShared<float>(0);
  shared[0] = static_cast<float>(ThreadIndex());
}

namespace megascale::emulator {
namespace {

using cuda::CudaApi;
using cuda::KernelLibrary;

constexpr int64_t kSize = 300;
constexpr size_t kBytes = kSize * sizeof(float);

class EmulatedCudaTest : public ::testing::Test {
 protected:
  void Start(const EmulatedOptions& options) {
    machine_.reset();
    machine_ = std::make_unique<EmulatedMachine>(options);
    ASSERT_EQ(cuda_.cudaSetDevice(0), cudaSuccess);
    ASSERT_EQ(cuda_.cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    kernels_ = KernelLibrary::Load(&cuda_, EmulatedImages()).value();
  }
  void SetUp() override {
    // The machine's thread is not there after a plain fork.
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    Start({});
  }
  void TearDown() override { Stop(); }
  void Stop() {
    kernels_.reset();
    for (float* memory : memory_) cuda_.cudaFree(memory);
    for (float* memory : pinned_) cuda_.cudaFreeHost(memory);
    memory_.clear();
    pinned_.clear();
    cuda_.cudaStreamDestroy(stream_);
    machine_.reset();
  }
  float* Device(size_t bytes = kBytes) {
    void* memory = nullptr;
    EXPECT_EQ(cuda_.cudaMalloc(&memory, bytes), cudaSuccess);
    memory_.push_back(static_cast<float*>(memory));
    return memory_.back();
  }
  float* Pinned(float value) {
    void* memory = nullptr;
    EXPECT_EQ(cuda_.cudaHostAlloc(&memory, kBytes, cudaHostAllocDefault), cudaSuccess);
    pinned_.push_back(static_cast<float*>(memory));
    std::fill_n(pinned_.back(), kSize, value);
    return pinned_.back();
  }
  cudaError_t Copy(float* to, const float* from, cudaStream_t stream) {
    return cuda_.cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDefault, stream);
  }
  absl::Status Add(const float* x, float* out, cudaStream_t stream) {
    return kernels_->Launch(stream, "TestAdd", {.grid = dim3(3), .threads = 128},
                            AddParams{x, out, kSize});
  }
  cudaError_t Finish() { return cuda_.cudaStreamSynchronize(stream_); }

  const CudaApi& cuda_ = *EmulatedCuda();
  std::unique_ptr<EmulatedMachine> machine_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<KernelLibrary> kernels_;
  std::vector<float*> memory_, pinned_;
};
using EmulatedCudaDeathTest = EmulatedCudaTest;

TEST_F(EmulatedCudaTest, KernelsRunOnDeviceMemory) {
  float* const x = Device();
  float* const out = Device();
  float* const host = Pinned(3);
  ASSERT_EQ(Copy(x, host, stream_), cudaSuccess);
  ASSERT_EQ(cuda_.cudaMemsetAsync(out, 0, kBytes, stream_), cudaSuccess);
  for (int i = 0; i < 5; ++i) ASSERT_EQ(Add(x, out, stream_), absl::OkStatus());
  ASSERT_EQ(Copy(host, out, stream_), cudaSuccess);
  ASSERT_EQ(Finish(), cudaSuccess);
  EXPECT_THAT(std::vector<float>(host, host + kSize), ::testing::Each(15.0f));
  EXPECT_EQ(machine_->num_work(), 8);
}

TEST_F(EmulatedCudaDeathTest, AStrayAccessEndsTheProcessWithTheNameOfTheMemory) {
  float* const x = Device();
  NameDeviceMemory(x, "weights");
  EXPECT_DEATH(x[2] = 1, "host code touched device memory: byte 8 of 'weights'");
}

TEST_F(EmulatedCudaDeathTest, AKernelThatGoesBeyondItsMemoryEndsTheProcess) {
  float* const x = Device(256);
  NameDeviceMemory(x, "bias");
  EXPECT_DEATH(
      {
        (void)Add(x, x, stream_);
        Finish();
      },
      "a kernel went beyond device memory: byte [0-9]+ of 'bias'");
}

TEST_F(EmulatedCudaTest, MemoryIsLimited) {
  Stop();
  Start({.memory_bytes = 1000});
  Device(600);
  void* more = nullptr;
  EXPECT_EQ(cuda_.cudaMalloc(&more, 401), cudaErrorMemoryAllocation);
  EXPECT_EQ(cuda_.cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cuda_.cudaGetLastError(), cudaSuccess);
  size_t free = 0, total = 0;
  EXPECT_EQ(cuda_.cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(free, 400u);
  EXPECT_EQ(total, 1000u);
  Device(400);
}

TEST_F(EmulatedCudaTest, CopiesAndFillsStayInsideTheirMemory) {
  float* const x = Device();
  float* const host = Pinned(1);
  EXPECT_EQ(Copy(x + 1, host, stream_), cudaErrorInvalidValue);
  EXPECT_EQ(Copy(x, host + 1, stream_), cudaErrorInvalidValue);
  EXPECT_EQ(cuda_.cudaMemsetAsync(x + 1, 0, kBytes, stream_), cudaErrorInvalidValue);
  EXPECT_EQ(cuda_.cudaMemsetAsync(host, 0, kBytes, stream_), cudaErrorInvalidValue);
  EXPECT_EQ(cuda_.cudaMemcpyAsync(x, host, kBytes, cudaMemcpyDeviceToHost, stream_),
            cudaErrorInvalidMemcpyDirection);
  EXPECT_EQ(Finish(), cudaSuccess);
}

// Work of two streams runs in another order for another seed, unless events forbid it.
TEST_F(EmulatedCudaTest, EventsOrderStreams) {
  float* const x = Device();
  float* const out = Device();
  float* const host = Pinned(1);
  cudaStream_t other = nullptr;
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cuda_.cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cuda_.cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  EXPECT_EQ(cuda_.cudaStreamWaitEvent(other, event, 0), cudaSuccess);  // not recorded: no wait
  ASSERT_EQ(Copy(x, host, stream_), cudaSuccess);
  ASSERT_EQ(cuda_.cudaMemsetAsync(out, 0, kBytes, stream_), cudaSuccess);
  for (int turn = 0; turn < 50; ++turn) {
    for (const auto& [from, to] : {std::pair(stream_, other), std::pair(other, stream_)}) {
      ASSERT_EQ(Add(x, out, from), absl::OkStatus());
      ASSERT_EQ(Add(out, x, from), absl::OkStatus());
      ASSERT_EQ(cuda_.cudaMemsetAsync(x, 0, kBytes, from), cudaSuccess);
      ASSERT_EQ(Copy(x, host, from), cudaSuccess);
      ASSERT_EQ(cuda_.cudaEventRecord(event, from), cudaSuccess);
      ASSERT_EQ(cuda_.cudaStreamWaitEvent(to, event, 0), cudaSuccess);
    }
  }
  float* const found = Pinned(0);
  ASSERT_EQ(Copy(found, out, stream_), cudaSuccess);
  ASSERT_EQ(Finish(), cudaSuccess);
  EXPECT_EQ(cuda_.cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(found[kSize - 1], 100.0f);
  EXPECT_EQ(cuda_.cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cuda_.cudaStreamDestroy(other), cudaSuccess);
}

TEST_F(EmulatedCudaTest, TimesOfEventsGrow) {
  cudaEvent_t first = nullptr, second = nullptr;
  ASSERT_EQ(cuda_.cudaEventCreateWithFlags(&first, cudaEventDefault), cudaSuccess);
  ASSERT_EQ(cuda_.cudaEventCreateWithFlags(&second, cudaEventDefault), cudaSuccess);
  float milliseconds = 0;
  EXPECT_EQ(cuda_.cudaEventElapsedTime(&milliseconds, first, second),
            cudaErrorInvalidResourceHandle);
  ASSERT_EQ(cuda_.cudaEventRecord(first, stream_), cudaSuccess);
  ASSERT_EQ(cuda_.cudaEventRecord(second, stream_), cudaSuccess);
  ASSERT_EQ(cuda_.cudaEventSynchronize(second), cudaSuccess);
  EXPECT_EQ(cuda_.cudaEventElapsedTime(&milliseconds, first, second), cudaSuccess);
  EXPECT_GT(milliseconds, 0);
  cuda_.cudaEventDestroy(first);
  cuda_.cudaEventDestroy(second);
}

TEST_F(EmulatedCudaTest, AnErrorComesLateAndStays) {
  Stop();
  Start({.fail_at_work = 2});
  float* const x = Device();
  float* const host = Pinned(1);
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cuda_.cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(Copy(x, host, stream_), cudaSuccess);
  EXPECT_EQ(Finish(), cudaSuccess);
  ASSERT_EQ(Copy(x, host, stream_), cudaSuccess);
  (void)cuda_.cudaEventRecord(event, stream_);
  EXPECT_EQ(cuda_.cudaEventSynchronize(event), cudaErrorLaunchFailure);
  EXPECT_EQ(Copy(x, host, stream_), cudaErrorLaunchFailure);
  EXPECT_EQ(Finish(), cudaErrorLaunchFailure);
  EXPECT_EQ(cuda_.cudaGetLastError(), cudaErrorLaunchFailure);
  EXPECT_EQ(cuda_.cudaGetLastError(), cudaErrorLaunchFailure);
  EXPECT_EQ(machine_->num_work(), 2);
  cuda_.cudaEventDestroy(event);
}

TEST_F(EmulatedCudaTest, AKernelThatRacesFailsTheDevice) {
  ASSERT_EQ(kernels_->Launch(stream_, "TestRace", {.threads = 64, .shared_bytes = 64}, AddParams{}),
            absl::OkStatus());
  EXPECT_EQ(Finish(), cudaErrorLaunchFailure);
}

TEST_F(EmulatedCudaTest, AKernelThatTouchesHostMemoryFailsTheDevice) {
  ASSERT_EQ(Add(Pinned(1), Device(), stream_), absl::OkStatus());
  EXPECT_EQ(Finish(), cudaErrorLaunchFailure);
}

TEST_F(EmulatedCudaTest, LaunchesOfImpossibleShapesAreRefused) {
  float* const x = Device();
  const AddParams params = {x, x, kSize};
  const auto code = [&](const cuda::LaunchOptions& options) {
    return kernels_->Launch(stream_, "TestAdd", options, params).code();
  };
  EXPECT_EQ(code({.grid = dim3(0), .threads = 128}), absl::StatusCode::kInternal);
  EXPECT_EQ(code({.threads = 256}), absl::StatusCode::kInternal);
  EXPECT_EQ(code({.threads = 33}), absl::StatusCode::kInternal);
  EXPECT_EQ(code({.threads = 32, .shared_bytes = 228 << 10}), absl::StatusCode::kInternal);
  EXPECT_EQ(code({.threads = 32, .shared_bytes = 227 << 10}), absl::StatusCode::kOk);
  EXPECT_EQ(kernels_->Launch(stream_, "NoKernel", {}, params).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Finish(), cudaSuccess);
}

TEST_F(EmulatedCudaTest, GraphsRepeatWhatWasCaptured) {
  float* const x = Device();
  float* const out = Device();
  float* const host = Pinned(2);
  ASSERT_EQ(Copy(x, host, stream_), cudaSuccess);
  ASSERT_EQ(cuda_.cudaMemsetAsync(out, 0, kBytes, stream_), cudaSuccess);
  ASSERT_EQ(Add(x, out, stream_), absl::OkStatus());  // loads the kernel before the capture
  ASSERT_EQ(cuda_.cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_EQ(Add(x, out, stream_), absl::OkStatus());
  ASSERT_EQ(Add(x, out, stream_), absl::OkStatus());
  // Other threads go on.
  std::thread([&] { EXPECT_NE(Device(), nullptr); }).join();
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cuda_.cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cuda_.cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  EXPECT_EQ(cuda_.cudaGraphDestroy(graph), cudaSuccess);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(cuda_.cudaGraphLaunch(executable, stream_), cudaSuccess);
  ASSERT_EQ(Copy(host, out, stream_), cudaSuccess);
  ASSERT_EQ(Finish(), cudaSuccess);
  EXPECT_THAT(std::vector<float>(host, host + kSize), ::testing::Each(14.0f));
  EXPECT_EQ(cuda_.cudaGraphExecDestroy(executable), cudaSuccess);
}

TEST_F(EmulatedCudaTest, ACallThatMayNotBeCapturedEndsTheCapture) {
  float* const x = Device();
  ASSERT_EQ(cuda_.cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  void* memory = nullptr;
  EXPECT_EQ(cuda_.cudaMalloc(&memory, 8), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cuda_.cudaMemsetAsync(x, 0, kBytes, stream_), cudaErrorStreamCaptureInvalidated);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cuda_.cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(graph, nullptr);
}

TEST_F(EmulatedCudaTest, TheFirstLaunchOfAKernelMayNotBeCaptured) {
  float* const x = Device();
  float* const out = Device();
  for (const bool is_first : {true, false}) {
    ASSERT_EQ(cuda_.cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(Add(x, out, stream_).ok(), !is_first);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cuda_.cudaStreamEndCapture(stream_, &graph),
              is_first ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
    if (graph != nullptr) cuda_.cudaGraphDestroy(graph);
  }
}

TEST_F(EmulatedCudaTest, CapturedStreamsMustBeJoined) {
  cudaStream_t other = nullptr;
  cudaEvent_t fork = nullptr, join = nullptr;
  float* const x = Device();
  ASSERT_EQ(cuda_.cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cuda_.cudaEventCreateWithFlags(&fork, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(cuda_.cudaEventCreateWithFlags(&join, cudaEventDisableTiming), cudaSuccess);
  for (const bool joins : {false, true}) {
    ASSERT_EQ(cuda_.cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    ASSERT_EQ(cuda_.cudaEventRecord(fork, stream_), cudaSuccess);
    ASSERT_EQ(cuda_.cudaStreamWaitEvent(other, fork, 0), cudaSuccess);
    ASSERT_EQ(cuda_.cudaMemsetAsync(x, 0, kBytes, other), cudaSuccess);
    if (joins) {
      ASSERT_EQ(cuda_.cudaEventRecord(join, other), cudaSuccess);
      ASSERT_EQ(cuda_.cudaStreamWaitEvent(stream_, join, 0), cudaSuccess);
    }
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cuda_.cudaStreamEndCapture(stream_, &graph),
              joins ? cudaSuccess : cudaErrorStreamCaptureUnjoined);
    if (graph != nullptr) cuda_.cudaGraphDestroy(graph);
  }
  cuda_.cudaEventDestroy(fork);
  cuda_.cudaEventDestroy(join);
  cuda_.cudaStreamDestroy(other);
}

TEST_F(EmulatedCudaTest, AStreamWaitsForWorkThatWasStarted) {
  float* const x = Device();
  Done done;
  absl::Notification started;
  ASSERT_EQ(IssueStart(stream_,
                       [&](Done its_done) {
                         done = std::move(its_done);
                         started.Notify();
                       }),
            cudaSuccess);
  bool has_run = false;
  ASSERT_EQ(IssueWork(stream_,
                      [&, x] {
                        has_run = true;
                        return WorkingAddress(x, kBytes).status();
                      }),
            cudaSuccess);
  // A second stream goes on meanwhile; its end is after the start.
  cudaStream_t other = nullptr;
  ASSERT_EQ(cuda_.cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cuda_.cudaMemsetAsync(x, 0, kBytes, other), cudaSuccess);
  ASSERT_EQ(cuda_.cudaStreamSynchronize(other), cudaSuccess);
  started.WaitForNotification();
  EXPECT_EQ(cuda_.cudaStreamQuery(stream_), cudaErrorNotReady);
  EXPECT_FALSE(has_run);
  done(absl::OkStatus());
  EXPECT_EQ(Finish(), cudaSuccess);
  EXPECT_TRUE(has_run);
  cuda_.cudaStreamDestroy(other);
}

}  // namespace
}  // namespace megascale::emulator
