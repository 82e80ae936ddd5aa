// A device for tests whose rules are those of a GPU at its strictest, computed by the CPU:
//
//   - Its memory has addresses that the host cannot touch: reading or writing there is a fault, and
//     the process ends with a line that names the memory. The device works through a second mapping
//     of the same bytes, at other addresses.
//   - Its work runs late: calls only queue it. One thread of the device runs the queues of all
//     streams, in an order drawn by a seed among those that streams and events allow, and sometimes
//     waits so that the host gets further ahead.
//   - It fails late, runs out of memory and hangs when it is asked to.
//
// The results are those of the CPU's operators, bit for bit.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "runtime/device/device.h"

namespace megascale::device {

class StrictStream;

struct StrictOptions {
  uint64_t seed = 1;
  size_t memory_bytes = 0;   // what it has for Allocate by one thread; 0: no limit
  int64_t fail_at_work = 0;  // the number of the operator or copy that fails, from 1; 0: none fails
  // Copies between host and device run only while nothing else can: what does not wait for them is
  // done before them.
  bool copies_last = false;
};

class StrictDevice final : public Device {
 public:
  static std::unique_ptr<StrictDevice> Create(const StrictOptions& options = {});
  ~StrictDevice() override;

  Description Describe() const override;
  absl::StatusOr<std::unique_ptr<Memory>> Allocate(absl::string_view name,
                                                   size_t size_bytes) override;
  absl::StatusOr<std::unique_ptr<Memory>> AllocateForPeers(absl::string_view name,
                                                           size_t size_bytes) override {
    return Allocate(name, size_bytes);
  }
  absl::StatusOr<std::unique_ptr<Memory>> AllocateHost(absl::string_view name,
                                                       size_t size_bytes) override;
  tensor::HostVector OnHost(const tensor::Vector& /*vector*/) const override { return {}; }
  absl::StatusOr<std::unique_ptr<stream::Stream>> MakeStream(std::string name) override;
  std::unique_ptr<ops::Ops> MakeOps(stream::Stream* stream, tensor::DType compute,
                                    int num_threads) override;
  absl::StatusOr<std::unique_ptr<comm::Communicator>> MakeCommunicator(
      comm::HostCommunicator* host, stream::Stream* stream) override;

  // Between these calls no work runs, as on a device that hangs. Before the device's streams can
  // end, it must be released.
  void Hold();
  void Release();

  // Operators and copies that have run.
  int64_t num_work() const;
  // How often the host has waited for a stream to end its work, by the stream's name; no entry:
  // never.
  std::map<std::string, int64_t> num_waits() const;
  // The most bytes of pinned memory that there ever were at once.
  int64_t most_pinned_bytes() const;
  // Bytes that streams of this name were told to copy between host and device.
  int64_t host_bytes_of(const std::string& stream_name) const;

  // For the streams and operators of this device.

  // Returns the address at which the device works on the bytes at `address`; null for null.
  // Requires (CHECK, with the name of the call): `bytes` bytes there are memory of this device.
  // With 0 bytes the address is not used and stays: an empty tensor may still count as given.
  void* Translate(const void* address, size_t bytes, const char* what) const;
  // As Translate for device memory; host addresses stay.
  void* TranslateIfOwn(const void* address, size_t bytes) const;

 private:
  friend class StrictStream;
  friend class StrictEvent;
  class Block;

  explicit StrictDevice(const StrictOptions& options);
  void Run();
  // Picks the stream whose first entry runs next; null: none can run now.
  StrictStream* Pick();
  StrictStream* PickIf(absl::FunctionRef<bool(const StrictStream&)> may_run);

  const StrictOptions options_;
  mutable std::mutex memory_mutex_;
  std::map<const std::byte*, Block*> blocks_;  // by the address that the host knows
  int64_t most_pinned_bytes_ = 0;              // guarded by memory_mutex_

  mutable std::mutex mutex_;         // guards all below, queues and events
  std::condition_variable changed_;  // anything below
  std::vector<StrictStream*> streams_;
  std::map<std::string, int64_t> num_waits_;
  std::map<std::string, int64_t> host_bytes_;
  std::mt19937_64 random_;
  int64_t num_work_ = 0;
  bool has_failed_ = false;
  bool is_held_ = false;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace megascale::device
