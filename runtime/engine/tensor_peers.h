// The tensor group of a rank, as the model uses it within a pass, over a communicator.
//
// The exchanges of a pass have its id with a piece of their own, from 1, as instruction id
// (F.c0.m3.p2): ranks that make different calls find out at once, and while the pass waits for one
// its heartbeat slot says that this rank waits for its peers and not they for it.
#pragma once

#include <array>
#include <condition_variable>
#include <mutex>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/comm/communicator.h"
#include "runtime/engine/doing.h"
#include "runtime/model/tensor_group.h"
#include "runtime/plan/instruction.h"
#include "runtime/stream/stream.h"
#include "runtime/tensor/tensor.h"

namespace megascale::engine {

struct TensorPeersOptions {
  model::TensorPlace place;
  Doing* doing = nullptr;               // is told of exchanges and waits
  absl::Duration timeout;               // of each exchange
  stream::Stream* exchanges = nullptr;  // runs them beside the pass; null: nothing overlaps
};

// Ownership: borrows what its options point to, which outlives it. Threads: one at a time.
class TensorPeers : public model::TensorGroup {
 public:
  explicit TensorPeers(const TensorPeersOptions& options) : options_(options) {}

  // From now on exchanges are those of `pass`, over `communicator`, whose members are the group.
  // Requires: those of the pass before were waited for.
  void Begin(plan::InstructionId pass, comm::Communicator* communicator);

  model::TensorPlace place() const override { return options_.place; }
  Exchange Broadcast(int from, const tensor::Vector& in, const tensor::Vector& out) override;
  Exchange Reduce(int to, const tensor::Vector& in, const tensor::Vector& out) override;
  void Wait(Exchange last) override;
  absl::Status status() const override;

 private:
  struct Call {
    bool reduces = false;
    int root = 0;
    tensor::Vector in, out;
  };
  // That have begun and are not done; the next one first waits for the oldest.
  static constexpr Exchange kBegunMax = 64;

  Exchange Add(const Call& call);
  // Does the oldest that is not done.
  void DoNext();
  absl::Status Do(const Call& call, plan::InstructionId id);

  const TensorPeersOptions options_;
  comm::Communicator* communicator_ = nullptr;
  plan::InstructionId pass_;
  std::array<Call, kBegunMax> calls_;  // exchange n at n % kBegunMax
  Exchange num_begun_ = 0;             // of the pass

  mutable std::mutex mutex_;
  std::condition_variable done_;
  Exchange num_done_ = 0;
  absl::Status status_;
};

}  // namespace megascale::engine
