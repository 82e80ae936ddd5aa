#include "runtime/engine/tensor_peers.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace megascale::engine {
TensorPeers::TensorPeers(const TensorPeersOptions& options)
    : options_(options), begun_(stream().MakeEvent()), ended_(stream().MakeEvent()) {}

void TensorPeers::Begin(plan::InstructionId pass, comm::Communicator* communicator) {
  const model::TensorPlace& place = options_.place;
  MEGASCALE_CHECK(communicator->size() == place.size && communicator->rank() == place.index);
  const std::lock_guard<std::mutex> lock(mutex_);
  MEGASCALE_CHECK(num_done_ == num_begun_);
  communicator_ = communicator;
  pass_ = pass;
  num_before_ += static_cast<uint64_t>(num_begun_);
  num_begun_ = 0;
  num_done_ = 0;
}

TensorPeers::Exchange TensorPeers::Broadcast(int from, const tensor::Vector& in,
                                             const tensor::Vector& out) {
  return Add({.operation = comm::Operation::kBroadcast, .root = from, .in = in, .out = out});
}

TensorPeers::Exchange TensorPeers::Reduce(int to, const tensor::Vector& in,
                                          const tensor::Vector& out) {
  return Add({.operation = comm::Operation::kReduce, .root = to, .in = in, .out = out});
}

TensorPeers::Exchange TensorPeers::AllGather(const tensor::Vector& in, const tensor::Vector& out) {
  return Add({.operation = comm::Operation::kAllGather, .in = in, .out = out});
}

TensorPeers::Exchange TensorPeers::ReduceScatter(const tensor::Vector& in,
                                                 const tensor::Vector& out) {
  return Add({.operation = comm::Operation::kReduceScatter, .in = in, .out = out});
}

TensorPeers::Exchange TensorPeers::Add(const Call& call) {
  MEGASCALE_CHECK(communicator_ != nullptr);
  Wait(num_begun_ + 1 - kBegunMax);
  const Exchange number = ++num_begun_;
  calls_[static_cast<size_t>(number % kBegunMax)] = call;
  if (options_.exchanges != nullptr) {
    begun_->RecordNow(*options_.compute, GenerationOf(number));
    options_.exchanges->Enqueue([this](stream::Stream&) { DoNext(); });
    return number;
  }
  options_.reporter->BeginWait(pass_.WithPiece(static_cast<int>(number)));
  DoNext();
  options_.reporter->EndWait(pass_);
  return number;
}

void TensorPeers::DoNext() {
  std::unique_lock<std::mutex> lock(mutex_);
  const Exchange number = num_done_ + 1;
  absl::Status status = status_;
  lock.unlock();
  if (options_.exchanges != nullptr) begun_->WaitNow(stream(), GenerationOf(number));
  if (status.ok()) {
    status = Do(calls_[static_cast<size_t>(number % kBegunMax)],
                pass_.WithPiece(static_cast<int>(number)));
  }
  if (options_.exchanges != nullptr) ended_->RecordNow(stream(), GenerationOf(number));
  lock.lock();
  num_done_ = number;
  status_.Update(status);
  done_.notify_all();
}

absl::Status TensorPeers::Do(const Call& call, plan::InstructionId id) {
  const comm::CallInfo info = {id.packed(), options_.timeout};
  options_.reporter->BeginExchange(id, std::max(call.in.bytes(), call.out.bytes()));
  absl::Status status = Exchanged(call, info);
  options_.reporter->EndExchange(status);
  return status;
}

absl::Status TensorPeers::Exchanged(const Call& call, const comm::CallInfo& info) {
  switch (call.operation) {
    case comm::Operation::kReduce:
      return communicator_->Reduce(call.in, call.out, call.root, info);
    case comm::Operation::kAllGather:
      return communicator_->AllGather(call.in, call.out, info);
    case comm::Operation::kReduceScatter:
      return communicator_->ReduceScatter(call.in, call.out, info);
    default:
      MEGASCALE_CHECK(call.operation == comm::Operation::kBroadcast);
      if (call.root == options_.place.index) {
        stream().Copy(call.out.data, call.in.data, static_cast<size_t>(call.in.bytes()));
      }
      return communicator_->Broadcast(call.out, call.root, info);
  }
}

void TensorPeers::Wait(Exchange last) {
  MEGASCALE_CHECK(last <= num_begun_);
  std::unique_lock<std::mutex> lock(mutex_);
  const bool waits = num_done_ < last;
  lock.unlock();
  if (waits) options_.reporter->BeginWait(pass_.WithPiece(static_cast<int>(last)));
  // First: it also issues what the operators have added, which then runs beside the exchange.
  if (options_.exchanges != nullptr && last > 0) {
    ended_->WaitNow(*options_.compute, GenerationOf(last));
  }
  if (!waits) return;
  lock.lock();
  done_.wait(lock, [&] { return num_done_ >= last; });
  options_.reporter->EndWait(pass_);
}

absl::Status TensorPeers::status() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

}  // namespace megascale::engine
