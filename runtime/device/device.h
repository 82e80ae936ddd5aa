// Where a rank computes: a CPU or a GPU. The engine gets a `Device` and never asks which it is. A
// device makes memory, streams, operators and communicators that belong together, so that code
// above it never assumes that the host can touch a tensor, or that a call's result is there when
// the call returns.
//
//   ASSIGN_OR_RETURN(auto memory, device.Allocate("weights", bytes));
//   ASSIGN_OR_RETURN(auto stream, device.MakeStream("compute"));
//   auto ops = device.MakeOps(stream.get(), DType::kF32, /*num_threads=*/2);
//   stream->RunAndWait([&] { ops->Add(a, b, sum); stream->Copy(host.data, sum.data, bytes); });
//   RETURN_IF_ERROR(stream->Synchronize());     // now `host` holds the sum
//
// Rules for users: device addresses may be computed with, but never dereferenced; host memory
// meets device memory only in Stream::Copy, a HostWindow (host_window.h) or an UploadBuffer
// (upload_buffer.h).
//
// Threads: any. Ownership: a device outlives all that it made.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/host/host_communicator.h"
#include "runtime/device/product_tuner.h"
#include "runtime/ops/ops.h"
#include "runtime/stream/stream.h"
#include "runtime/tensor/tensor.h"

namespace megascale::device {

// A block of memory, freed with the object. Requires: no work that uses the memory is left then.
class Memory {
 public:
  virtual ~Memory() { *used_bytes_ -= static_cast<int64_t>(size_bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  // The same memory in the form in which the ranks of this machine may read it directly
  // (comm::FabricOptions::readable); null: they cannot.
  virtual const base::SharedMemory* shared() const { return nullptr; }

 protected:
  // `used_bytes`: the device's counter to which this memory is added: used_bytes_ for device
  // memory, pinned_bytes_ for pinned host memory.
  Memory(void* data, size_t size_bytes, std::atomic<int64_t>* used_bytes)
      : data_(data), size_bytes_(size_bytes), used_bytes_(used_bytes) {
    *used_bytes_ += static_cast<int64_t>(size_bytes_);
  }

 private:
  void* const data_;
  const size_t size_bytes_;
  std::atomic<int64_t>* const used_bytes_;
};

// The best rates that a device can reach, as its maker states them. 0: unknown; the rate of matrix
// products is then measured.
struct PeakRates {
  // Products of matrices, FLOP/s, by the type that they are computed in.
  double fp64 = 0, fp32 = 0, bf16 = 0;
  double memory = 0;  // bytes/s

  double OfProducts(tensor::DType compute) const {
    if (compute == tensor::DType::kF64) return fp64;
    return compute == tensor::DType::kBF16 ? bf16 : fp32;
  }
};

struct Description {
  std::string name;          // for people: "Intel(R) Xeon(R) Platinum 8481C"
  std::string numerics;      // part of the numerics fingerprint: where it is equal, so are the bits
  int64_t memory_bytes = 0;  // of the whole device, whoever else uses it; 0: unknown
  // Bytes that were still free when Describe was called; unset: the device cannot tell.
  std::optional<int64_t> free_bytes = std::nullopt;
  PeakRates peak = {};
  int num_ranks = 1;  // ranks that share the device's memory and rates
};

class Device {
 public:
  virtual ~Device() = default;

  // Allocates no device memory, because processes that compute nothing call it, too.
  virtual Description Describe() const = 0;

  // Returns the bytes of device memory that objects made by this Device hold.
  int64_t used_bytes() const { return used_bytes_; }
  // Returns the bytes of host memory that these objects hold (AllocateHost), if the device has
  // memory of its own; otherwise 0, and used_bytes() includes these bytes.
  int64_t pinned_bytes() const { return pinned_bytes_; }

  // Returns a counter that grows as the device finishes work of any of its streams. The counter
  // stays 0 on a device that finishes work before the issuing call returns (CPU).
  uint64_t num_ended() const { return num_ended_; }

  // Returns zeroed memory for tensors. `name` says in errors what it is for ("weights"). Errors:
  // ResourceExhausted - the device has not enough memory; the message has the name and the bytes.
  virtual absl::StatusOr<std::unique_ptr<Memory>> Allocate(absl::string_view name,
                                                           size_t size_bytes) = 0;
  // The same, where possible in memory that ranks on this machine may read directly.
  virtual absl::StatusOr<std::unique_ptr<Memory>> AllocateForPeers(absl::string_view name,
                                                                   size_t size_bytes) = 0;
  // Returns zeroed host memory that Stream::Copy reaches at full speed (pinned).
  virtual absl::StatusOr<std::unique_ptr<Memory>> AllocateHost(absl::string_view name,
                                                               size_t size_bytes) = 0;

  // Returns a host view of `vector` if the host may touch its memory; otherwise an empty view. Only
  // for this folder: HostWindow, UploadBuffer, StagedCopy and DirectCommunicator use it to decide
  // whether a copy is needed. Code above uses these classes instead, so it never asks which device
  // it has.
  virtual tensor::HostVector OnHost(const tensor::Vector& vector) const = 0;

  // Errors: ResourceExhausted - no thread, or the device has no stream left.
  virtual absl::StatusOr<std::unique_ptr<stream::Stream>> MakeStream(std::string name) = 0;

  // Makes operators whose work is ordered on `stream`. Call them on its thread only. Exception: CPU
  // operators do their work inside the call, and any thread may call them, one at a time.
  // `num_threads`: host threads to compute with; only CPU operators use it. `stream` must outlive
  // the operators.
  virtual std::unique_ptr<ops::Ops> MakeOps(stream::Stream* stream, tensor::DType compute,
                                            int num_threads) = 0;

  // Makes a communicator of the group of `host` whose calls are ordered on `stream`. Both must
  // outlive it, and nothing else may use `host` while a call runs. Errors: ResourceExhausted - no
  // memory for staging.
  virtual absl::StatusOr<std::unique_ptr<comm::Communicator>> MakeCommunicator(
      comm::HostCommunicator* host, stream::Stream* stream) = 0;

  // Returns the object that chooses the algorithms of this device's matrix products; null: the
  // device has one algorithm for each product. The device owns it.
  virtual ProductTuner* product_tuner() { return nullptr; }

  // True if making a communicator waits until all members of its group make it (NCCL). Then each
  // rank makes the communicators of all channels of its groups, in an order that all ranks share,
  // even for channels on which its own plan makes no call.
  virtual bool starts_groups_together() const { return false; }

  // True if an exchange holds a part of the device until all members have begun the exchange
  // (NCCL). The ranks must then make the calls of all their communicators in orders that agree
  // (runtime/plan/check/launch_order.h).
  virtual bool needs_launch_order() const { return false; }

 protected:
  std::atomic<int64_t> used_bytes_ = 0;
  std::atomic<int64_t> pinned_bytes_ = 0;
  std::atomic<uint64_t> num_ended_ = 0;
};

}  // namespace megascale::device
