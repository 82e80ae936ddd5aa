// A rank's tensor group, as the model uses it within a pass, implemented over a communicator.
//
// Each exchange of a pass has an instruction id of its own: the pass's id with a piece, from 1
// (F.c0.m3.p2). Ranks that make different calls therefore fail at once. While a pass waits for an
// exchange, its heartbeat slot shows that this rank waits for its peers, rather than they for it.
#pragma once

#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/comm/communicator.h"
#include "runtime/engine/instruction_reporter.h"
#include "runtime/model/tensor_group.h"
#include "runtime/plan/instruction.h"
#include "runtime/stream/stream.h"
#include "runtime/tensor/tensor.h"

namespace megascale::engine {

struct TensorPeersOptions {
  model::TensorPlace place;
  InstructionReporter* reporter = nullptr;  // told of exchanges and waits
  absl::Duration timeout;                   // for each exchange
  stream::Stream* compute = nullptr;        // runs the passes
  // Runs exchanges beside the pass; null: `compute` does, without overlap. The communicators of
  // passes are ordered on the stream that runs them.
  stream::Stream* exchanges = nullptr;
};

// Ownership: borrows what its options point to, which outlives it. Threads: one at a time.
class TensorPeers : public model::TensorGroup {
 public:
  explicit TensorPeers(const TensorPeersOptions& options);

  // From now on exchanges belong to `pass` and use `communicator`, whose members are the group.
  // Requires: the previous pass has waited for all of its exchanges.
  void Begin(plan::InstructionId pass, comm::Communicator* communicator);

  model::TensorPlace place() const override { return options_.place; }
  Exchange Broadcast(int from, const tensor::Vector& in, const tensor::Vector& out) override;
  Exchange Reduce(int to, const tensor::Vector& in, const tensor::Vector& out) override;
  Exchange AllGather(const tensor::Vector& in, const tensor::Vector& out) override;
  Exchange ReduceScatter(const tensor::Vector& in, const tensor::Vector& out) override;
  void Wait(Exchange last) override;
  absl::Status status() const override;

 private:
  struct Call {
    comm::Operation operation = comm::Operation::kBroadcast;
    int root = 0;  // of a broadcast or reduce
    tensor::Vector in, out;
  };
  // The most exchanges in flight; the next one first waits for the oldest.
  static constexpr Exchange kBegunMax = 64;

  Exchange Add(const Call& call);
  // Runs the oldest exchange that is not done.
  void DoNext();
  absl::Status Do(const Call& call, plan::InstructionId id);
  absl::Status Exchanged(const Call& call, const comm::CallInfo& info);

  stream::Stream& stream() const {
    return options_.exchanges != nullptr ? *options_.exchanges : *options_.compute;
  }
  // The generation of the events of an exchange of this pass.
  uint64_t GenerationOf(Exchange number) const {
    return num_before_ + static_cast<uint64_t>(number);
  }

  const TensorPeersOptions options_;
  // With overlap: the pass has issued what an exchange reads; an exchange is over.
  std::unique_ptr<stream::Event> begun_, ended_;
  uint64_t num_before_ = 0;  // exchanges of earlier passes
  comm::Communicator* communicator_ = nullptr;
  plan::InstructionId pass_;
  std::array<Call, kBegunMax> calls_;  // exchange n is at n % kBegunMax
  Exchange num_begun_ = 0;             // exchanges of the pass

  mutable std::mutex mutex_;
  std::condition_variable done_;
  Exchange num_done_ = 0;
  absl::Status status_;
};

}  // namespace megascale::engine
