#include "runtime/engine/tensor_peers.h"

#include "runtime/base/check.h"

namespace megascale::engine {

void TensorPeers::Begin(plan::InstructionId pass, comm::Communicator* communicator) {
  MEGASCALE_CHECK(communicator->size() == place_.size && communicator->rank() == place_.index);
  communicator_ = communicator;
  pass_ = pass;
  piece_ = 0;
}

template <typename Call>
void TensorPeers::Exchange(const tensor::Vector& whole, const Call& call) {
  if (!status_.ok()) return;
  MEGASCALE_CHECK(communicator_ != nullptr);
  const plan::InstructionId id = pass_.WithPiece(++piece_);
  doing_->BeginWait(id);
  doing_->BeginExchange(id, whole.size * static_cast<int64_t>(tensor::SizeOf(whole.dtype)));
  status_ = call(comm::CallInfo{id.packed(), timeout_});
  doing_->EndExchange(status_);
  doing_->EndWait(pass_);
}

void TensorPeers::AllGather(const tensor::Vector& in, const tensor::Vector& out) {
  Exchange(out,
           [&](const comm::CallInfo& info) { return communicator_->AllGather(in, out, info); });
}

void TensorPeers::ReduceScatter(const tensor::Vector& in, const tensor::Vector& out) {
  Exchange(in,
           [&](const comm::CallInfo& info) { return communicator_->ReduceScatter(in, out, info); });
}

}  // namespace megascale::engine
