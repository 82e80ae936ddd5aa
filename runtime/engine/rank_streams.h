// The streams of a rank: one for each kind that its plan uses, and, where exchanges of tensor ranks
// run beside passes, one for these exchanges. The compute stream's thread owns the rank's compute
// threads; other streams borrow them (RunOnComputeThreads).
//
// Threads: Create and Synchronize on any thread that is no stream's. Ownership: borrows the device.
// Work that the streams still run may use other objects of the rank, so these must outlive it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "runtime/device/device.h"
#include "runtime/plan/instruction.h"
#include "runtime/plan/operation.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/stream/stream.h"

namespace megascale::engine {

class RankStreams {
 public:
  // `overlaps_exchanges`: exchanges of tensor ranks within a pass get a stream of their own.
  // Errors: as Device::MakeStream.
  static absl::StatusOr<std::unique_ptr<RankStreams>> Create(device::Device* device,
                                                             const plan::RankPlan& plan,
                                                             bool overlaps_exchanges);

  // Requires: the plan uses the kind.
  stream::Stream& Of(plan::StreamKind kind) const { return *streams_.at(kind); }
  stream::Stream& compute() const { return Of(plan::StreamKind::kCompute); }
  // Returns null if the plan does not use the kind.
  stream::Stream* FindOrNull(plan::StreamKind kind) const;
  // Returns the stream of exchanges within passes; null: passes exchange on their own stream.
  stream::Stream* exchanges() const { return exchanges_.get(); }
  // Returns the stream on which the communicator of an instruction is ordered.
  stream::Stream* ExchangeStreamOf(const plan::Instruction& instruction) const;

  // Runs `work` on the compute stream's thread, and thereby on all of the rank's compute threads.
  // The work runs after everything that the stream `from` has issued, and before everything that it
  // will issue. Requires: called on the thread of `from`.
  void RunOnComputeThreads(plan::StreamKind from, absl::FunctionRef<void()> work);

  // Waits until all streams are idle. Does not report errors of their work: the code that issued
  // the work gets them.
  void Synchronize();

 private:
  RankStreams() = default;

  // From one stream to the compute stream and back.
  struct Handover {
    std::unique_ptr<stream::Event> there, back;
    uint64_t generation = 0;
  };
  // Outlive the streams that wait for them.
  std::map<plan::StreamKind, Handover> handovers_;
  std::unique_ptr<stream::Stream> exchanges_;
  std::map<plan::StreamKind, std::unique_ptr<stream::Stream>> streams_;
};

}  // namespace megascale::engine
