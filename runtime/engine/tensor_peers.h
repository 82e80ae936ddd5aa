// The tensor group of a rank, as the model uses it within a pass, over a communicator.
//
// The exchanges of a pass have its id with a piece of their own, from 1, as instruction id
// (F.c0.m3.p2): ranks that make different calls find out at once, and the heartbeat slot says that
// this rank waits for its peers and not they for it.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/comm/communicator.h"
#include "runtime/engine/doing.h"
#include "runtime/model/tensor_group.h"
#include "runtime/plan/instruction.h"
#include "runtime/tensor/tensor.h"

namespace megascale::engine {

// Threads: those of the compute stream.
class TensorPeers : public model::TensorGroup {
 public:
  // `doing` is told of each exchange, and outlives the object; `timeout` is of each of them.
  TensorPeers(model::TensorPlace place, Doing* doing, absl::Duration timeout)
      : place_(place), doing_(doing), timeout_(timeout) {}

  // From now on exchanges are those of `pass`, over `communicator`, whose members are the group.
  void Begin(plan::InstructionId pass, comm::Communicator* communicator);

  model::TensorPlace place() const override { return place_; }
  void AllGather(const tensor::Vector& in, const tensor::Vector& out) override;
  void ReduceScatter(const tensor::Vector& in, const tensor::Vector& out) override;
  absl::Status status() const override { return status_; }

 private:
  // Makes the next call, which moves parts of `whole`, unless one has failed.
  template <typename Call>
  void Exchange(const tensor::Vector& whole, const Call& call);

  const model::TensorPlace place_;
  Doing* const doing_;
  const absl::Duration timeout_;
  comm::Communicator* communicator_ = nullptr;
  plan::InstructionId pass_;
  int piece_ = 0;  // of the last exchange
  absl::Status status_;
};

}  // namespace megascale::engine
