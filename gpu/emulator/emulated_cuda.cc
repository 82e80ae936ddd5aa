#include "gpu/emulator/emulated_cuda.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu/emulator/machine.h"
#include "runtime/base/check.h"

namespace megascale::emulator {
namespace {

constexpr char kImage[] = "emulated kernels";

std::atomic<Machine*> the_machine = nullptr;

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

Machine& TheMachine() {
  Machine* const machine = the_machine;
  MEGASCALE_CHECK_MSG(machine != nullptr, "a CUDA function was called without an EmulatedMachine");
  return *machine;
}

cudaError_t Remember(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

// Makes `call`, unless the current device has failed.
template <typename Call>
cudaError_t On(const Call& call) {
  Machine& machine = TheMachine();
  const cudaError_t failure = machine.ErrorOf(current_device);
  return Remember(failure != cudaSuccess ? failure : call(machine));
}

// Makes `call`, which frees something, even then.
template <typename Call>
cudaError_t Free(const Call& call) {
  Machine& machine = TheMachine();
  const cudaError_t error = call(machine);
  const cudaError_t failure = machine.ErrorOf(current_device);
  return Remember(failure != cudaSuccess ? failure : error);
}

// Makes `call`, which may wait or allocate, unless a stream is being captured.
template <typename Call>
cudaError_t OnUncaptured(const Call& call) {
  return On([&](Machine& machine) {
    const cudaError_t refused = machine.CheckMayBlock();
    return refused != cudaSuccess ? refused : call(machine);
  });
}

Stream* From(cudaStream_t stream) { return reinterpret_cast<Stream*>(stream); }
Event* From(cudaEvent_t event) { return reinterpret_cast<Event*>(event); }
Graph* From(cudaGraph_t graph) { return reinterpret_cast<Graph*>(graph); }
Graph* From(cudaGraphExec_t graph) { return reinterpret_cast<Graph*>(graph); }

bool IsDevice(int device) { return device >= 0 && device < TheMachine().options().num_devices; }

int Attribute(cudaDeviceAttr attribute) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      return 9;
    case cudaDevAttrComputeCapabilityMinor:
      return 0;
    case cudaDevAttrMultiProcessorCount:
      return TheMachine().options().num_multiprocessors;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return kSharedBytesMax;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return 48 << 10;
    case cudaDevAttrMaxThreadsPerBlock:
      return 1024;
    case cudaDevAttrWarpSize:
      return 32;
    default:
      return -1;
  }
}

void FillDevices(cuda::CudaApi* api) {
  api->cudaGetDeviceCount = [](int* count) {
    *count = TheMachine().options().num_devices;
    return cudaSuccess;
  };
  api->cudaGetDeviceProperties = [](cudaDeviceProp* properties, int device) {
    if (!IsDevice(device)) return Remember(cudaErrorInvalidDevice);
    const EmulatedOptions& options = TheMachine().options();
    *properties = {};
    std::snprintf(properties->name, sizeof(properties->name), "%s", options.device_name.c_str());
    properties->totalGlobalMem = options.memory_bytes;
    properties->sharedMemPerBlock = 48 << 10;
    properties->sharedMemPerBlockOptin = kSharedBytesMax;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->major = 9;
    properties->multiProcessorCount = options.num_multiprocessors;
    return cudaSuccess;
  };
  api->cudaDeviceGetAttribute = [](int* value, cudaDeviceAttr attribute, int device) {
    if (!IsDevice(device)) return Remember(cudaErrorInvalidDevice);
    *value = Attribute(attribute);
    return Remember(*value < 0 ? cudaErrorInvalidValue : cudaSuccess);
  };
  api->cudaDeviceGetPCIBusId = [](char* id, int size, int device) {
    if (!IsDevice(device)) return Remember(cudaErrorInvalidDevice);
    std::snprintf(id, static_cast<size_t>(size), "0000:%02x:00.0", device);
    return cudaSuccess;
  };
  api->cudaDeviceGetStreamPriorityRange = [](int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
  };
  api->cudaSetDevice = [](int device) {
    if (!IsDevice(device)) return Remember(cudaErrorInvalidDevice);
    current_device = device;
    return Remember(TheMachine().ErrorOf(device));
  };
  api->cudaGetDevice = [](int* device) {
    *device = current_device;
    return cudaSuccess;
  };
  api->cudaDeviceSynchronize = [] {
    return On([](Machine& machine) { return machine.SynchronizeDevice(current_device); });
  };
  api->cudaMemGetInfo = [](size_t* free, size_t* total) {
    return On([&](Machine& machine) {
      *total = machine.options().memory_bytes;
      *free = *total - machine.memory().used_bytes(current_device);
      return cudaSuccess;
    });
  };
  api->cudaDriverGetVersion = [](int* version) {
    *version = TheMachine().options().driver_version;
    return cudaSuccess;
  };
  api->cudaRuntimeGetVersion = [](int* version) {
    *version = cuda::kCudaVersionMin;
    return cudaSuccess;
  };
}

void FillMemory(cuda::CudaApi* api) {
  api->cudaMalloc = [](void** address, size_t bytes) {
    return OnUncaptured([&](Machine& machine) {
      ++machine.calls().allocations;
      return machine.Allocate(current_device, address, bytes);
    });
  };
  api->cudaFree = [](void* address) {
    return Free([&](Machine& machine) {
      const cudaError_t refused = machine.CheckMayBlock();
      return refused != cudaSuccess ? refused : machine.Free(current_device, address);
    });
  };
  api->cudaHostAlloc = [](void** address, size_t bytes, unsigned /*flags*/) {
    return OnUncaptured([&](Machine& machine) {
      ++machine.calls().allocations;
      *address = machine.memory().AllocateHost(bytes);
      return *address == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
    });
  };
  api->cudaFreeHost = [](void* address) {
    return Free([&](Machine& machine) {
      const cudaError_t refused = machine.CheckMayBlock();
      return refused != cudaSuccess ? refused : machine.FreeHost(current_device, address);
    });
  };
  api->cudaMemcpyAsync = [](void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    return On([&](Machine& machine) {
      if (kind != cudaMemcpyDefault) {
        const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
        const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
        if (machine.memory().IsDevice(to) != to_device ||
            machine.memory().IsDevice(from) != from_device) {
          LogRefusal("cudaMemcpyAsync: the kind of copy is not that of the addresses");
          return cudaErrorInvalidMemcpyDirection;
        }
      }
      return bytes == 0 ? cudaSuccess : machine.Copy(to, from, bytes, From(stream));
    });
  };
  api->cudaMemsetAsync = [](void* to, int value, size_t bytes, cudaStream_t stream) {
    return On([&](Machine& machine) {
      return bytes == 0 ? cudaSuccess : machine.Fill(to, value, bytes, From(stream));
    });
  };
}

cudaError_t MakeStream(cudaStream_t* stream) {
  return On([&](Machine& machine) {
    *stream = reinterpret_cast<cudaStream_t>(machine.MakeStream(current_device));
    return cudaSuccess;
  });
}

void FillStreams(cuda::CudaApi* api) {
  api->cudaStreamCreateWithFlags = [](cudaStream_t* stream, unsigned /*flags*/) {
    return MakeStream(stream);
  };
  api->cudaStreamCreateWithPriority = [](cudaStream_t* stream, unsigned /*flags*/,
                                         int /*priority*/) { return MakeStream(stream); };
  api->cudaStreamDestroy = [](cudaStream_t stream) {
    return Free([&](Machine& machine) { return machine.DestroyStream(From(stream)); });
  };
  api->cudaStreamSynchronize = [](cudaStream_t stream) {
    return On([&](Machine& machine) { return machine.Synchronize(From(stream)); });
  };
  api->cudaStreamQuery = [](cudaStream_t stream) {
    return On([&](Machine& machine) { return machine.Query(From(stream)); });
  };
  api->cudaStreamWaitEvent = [](cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    return On([&](Machine& machine) {
      return machine.Wait(From(stream), From(event), (flags & cudaEventWaitExternal) != 0);
    });
  };
}

void FillEvents(cuda::CudaApi* api) {
  api->cudaEventCreateWithFlags = [](cudaEvent_t* event, unsigned flags) {
    return On([&](Machine& machine) {
      const bool has_timing = (flags & cudaEventDisableTiming) == 0;
      *event = reinterpret_cast<cudaEvent_t>(machine.MakeEvent(current_device, has_timing));
      return cudaSuccess;
    });
  };
  api->cudaEventDestroy = [](cudaEvent_t event) {
    return Free([&](Machine& machine) { return machine.DestroyEvent(From(event)); });
  };
  api->cudaEventRecord = [](cudaEvent_t event, cudaStream_t stream) {
    return On([&](Machine& machine) {
      return machine.Record(From(event), From(stream), /*is_external=*/false);
    });
  };
  api->cudaEventRecordWithFlags = [](cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    return On([&](Machine& machine) {
      return machine.Record(From(event), From(stream), (flags & cudaEventRecordExternal) != 0);
    });
  };
  api->cudaEventQuery = [](cudaEvent_t event) {
    return On([&](Machine& machine) { return machine.Query(From(event)); });
  };
  api->cudaEventSynchronize = [](cudaEvent_t event) {
    return On([&](Machine& machine) { return machine.Synchronize(From(event)); });
  };
  api->cudaEventElapsedTime = [](float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
    return On(
        [&](Machine& machine) { return machine.Elapsed(milliseconds, From(start), From(end)); });
  };
}

// Images of nvcc begin with this number; what they hold is not looked at.
bool IsImage(const void* data) {
  constexpr uint32_t kFatbin = 0xba55ed50;
  return std::memcmp(data, kImage, sizeof(kImage)) == 0 ||
         std::memcmp(data, &kFatbin, sizeof(kFatbin)) == 0;
}

void FillKernels(cuda::CudaApi* api) {
  api->cudaLibraryLoadData = [](cudaLibrary_t* library, const void* data, cudaJitOption*, void**,
                                unsigned, cudaLibraryOption*, void**, unsigned) {
    return OnUncaptured([&](Machine&) {
      if (!IsImage(data)) return cudaErrorInvalidKernelImage;
      *library = reinterpret_cast<cudaLibrary_t>(const_cast<void*>(data));
      return cudaSuccess;
    });
  };
  api->cudaLibraryUnload = [](cudaLibrary_t) { return Free([](Machine&) { return cudaSuccess; }); };
  api->cudaLibraryGetKernel = [](cudaKernel_t* kernel, cudaLibrary_t, const char* name) {
    return On([&](Machine& machine) {
      const Kernel* found = nullptr;
      const cudaError_t error = machine.FindHandle(name, &found);
      *kernel = reinterpret_cast<cudaKernel_t>(const_cast<Kernel*>(found));
      return error;
    });
  };
  api->cudaLaunchKernelExC = [](const cudaLaunchConfig_t* config, const void* kernel,
                                void** arguments) {
    return On([&](Machine& machine) {
      ++machine.calls().launches;
      if (!machine.IsKernel(kernel)) return cudaErrorInvalidDeviceFunction;
      return machine.Launch(current_device, *config, static_cast<const Kernel*>(kernel),
                            arguments[0]);
    });
  };
  api->cudaFuncSetAttribute = [](const void* kernel, cudaFuncAttribute attribute, int value) {
    return On([&](Machine& machine) {
      if (!machine.IsKernel(kernel)) return cudaErrorInvalidDeviceFunction;
      if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
      return machine.AllowSharedMemory(current_device, static_cast<const Kernel*>(kernel), value);
    });
  };
  api->cudaFuncGetAttributes = [](cudaFuncAttributes* attributes, const void* kernel) {
    return On([&](Machine& machine) {
      if (!machine.IsKernel(kernel)) return cudaErrorInvalidDeviceFunction;
      *attributes = {};
      attributes->maxThreadsPerBlock = static_cast<const Kernel*>(kernel)->threads_max;
      return cudaSuccess;
    });
  };
}

void FillGraphs(cuda::CudaApi* api) {
  api->cudaStreamBeginCapture = [](cudaStream_t stream, cudaStreamCaptureMode mode) {
    return On([&](Machine& machine) { return machine.BeginCapture(From(stream), mode); });
  };
  api->cudaStreamEndCapture = [](cudaStream_t stream, cudaGraph_t* graph) {
    return Free([&](Machine& machine) {
      return machine.EndCapture(From(stream), reinterpret_cast<Graph**>(graph));
    });
  };
  api->cudaStreamIsCapturing = [](cudaStream_t stream, cudaStreamCaptureStatus* status) {
    return On([&](Machine& machine) { return machine.CaptureStatus(From(stream), status); });
  };
  api->cudaThreadExchangeStreamCaptureMode = [](cudaStreamCaptureMode* mode) {
    *mode = Machine::ExchangeCaptureMode(*mode);
    return cudaSuccess;
  };
  api->cudaGraphInstantiate = [](cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long /*flags*/) {
    return OnUncaptured([&](Machine& machine) {
      ++machine.calls().instantiations;
      return machine.Instantiate(From(graph), reinterpret_cast<Graph**>(executable));
    });
  };
  api->cudaGraphLaunch = [](cudaGraphExec_t executable, cudaStream_t stream) {
    return On([&](Machine& machine) {
      ++machine.calls().graph_launches;
      return machine.LaunchGraph(From(executable), From(stream));
    });
  };
  api->cudaGraphExecDestroy = [](cudaGraphExec_t executable) {
    return Free([&](Machine& machine) { return machine.DestroyGraph(From(executable)); });
  };
  api->cudaGraphDestroy = [](cudaGraph_t graph) {
    return Free([&](Machine& machine) { return machine.DestroyGraph(From(graph)); });
  };
}

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};
#define MEGASCALE_ERROR(error, text) \
  { error, #error, text }
constexpr ErrorText kErrors[] = {
    MEGASCALE_ERROR(cudaSuccess, "no error"),
    MEGASCALE_ERROR(cudaErrorInvalidValue, "invalid argument"),
    MEGASCALE_ERROR(cudaErrorMemoryAllocation, "out of memory"),
    MEGASCALE_ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    MEGASCALE_ERROR(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    MEGASCALE_ERROR(cudaErrorInvalidDeviceFunction, "invalid device function"),
    MEGASCALE_ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    MEGASCALE_ERROR(cudaErrorInvalidKernelImage, "device kernel image is invalid"),
    MEGASCALE_ERROR(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered"),
    MEGASCALE_ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    MEGASCALE_ERROR(cudaErrorSymbolNotFound, "named symbol not found"),
    MEGASCALE_ERROR(cudaErrorNotReady, "device not ready"),
    MEGASCALE_ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    MEGASCALE_ERROR(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    MEGASCALE_ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    MEGASCALE_ERROR(cudaErrorNotSupported, "operation not supported"),
    MEGASCALE_ERROR(cudaErrorStreamCaptureUnsupported,
                    "operation not permitted when stream is capturing"),
    MEGASCALE_ERROR(cudaErrorStreamCaptureInvalidated,
                    "operation failed due to a previous error during capture"),
    MEGASCALE_ERROR(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
};
#undef MEGASCALE_ERROR

const ErrorText& TextOf(cudaError_t error) {
  static constexpr ErrorText kUnknown = {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"};
  const auto* found = std::find_if(std::begin(kErrors), std::end(kErrors),
                                   [error](const ErrorText& text) { return text.error == error; });
  return found == std::end(kErrors) ? kUnknown : *found;
}

void FillErrors(cuda::CudaApi* api) {
  api->cudaGetErrorName = [](cudaError_t error) { return TextOf(error).name; };
  api->cudaGetErrorString = [](cudaError_t error) { return TextOf(error).text; };
  api->cudaGetLastError = [] {
    const cudaError_t failure = TheMachine().ErrorOf(current_device);
    const cudaError_t error = std::exchange(last_error, cudaSuccess);
    return failure != cudaSuccess ? failure : error;
  };
  api->cudaPeekAtLastError = [] {
    const cudaError_t failure = TheMachine().ErrorOf(current_device);
    return failure != cudaSuccess ? failure : last_error;
  };
}

}  // namespace

EmulatedMachine::EmulatedMachine(const EmulatedOptions& options)
    : machine_(std::make_unique<Machine>(options)) {
  Machine* none = nullptr;
  MEGASCALE_CHECK_MSG(the_machine.compare_exchange_strong(none, machine_.get()),
                      "this process has an EmulatedMachine already");
}

EmulatedMachine::~EmulatedMachine() { the_machine = nullptr; }

int64_t EmulatedMachine::num_work() const { return machine_->num_work(); }

const cuda::CudaApi* EmulatedCuda() {
  static const cuda::CudaApi* const table = [] {
    auto* const api = new cuda::CudaApi();
    FillDevices(api);
    FillMemory(api);
    FillStreams(api);
    FillEvents(api);
    FillKernels(api);
    FillGraphs(api);
    FillErrors(api);
    return api;
  }();
  return table;
}

absl::Span<const cuda::KernelImage> EmulatedImages() {
  static constexpr cuda::KernelImage kImages[] = {{"emulated.fatbin", kImage, sizeof(kImage)}};
  return kImages;
}

void NameDeviceMemory(const void* block, absl::string_view name) {
  TheMachine().memory().Name(block, name);
}

EmulatedCalls CountEmulatedCalls() {
  const Machine::Calls& calls = TheMachine().calls();
  return {.allocations = calls.allocations,
          .launches = calls.launches,
          .instantiations = calls.instantiations,
          .graph_nodes = calls.graph_nodes,
          .graph_launches = calls.graph_launches};
}

absl::StatusOr<std::byte*> WorkingAddress(const void* address, size_t bytes) {
  if (!TheMachine().memory().IsDevice(address)) {
    return absl::InvalidArgumentError("an address of host memory instead of device memory");
  }
  return TheMachine().memory().Find(address, bytes);
}

cudaError_t IssueWork(cudaStream_t stream, Work work) {
  return On(
      [&](Machine& machine) { return machine.Issue(From(stream), {.work = std::move(work)}); });
}

cudaError_t IssueStart(cudaStream_t stream, std::function<void(Done done)> start) {
  return On(
      [&](Machine& machine) { return machine.Issue(From(stream), {.start = std::move(start)}); });
}

}  // namespace megascale::emulator
