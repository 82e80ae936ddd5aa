// For tests: tensor ranks as threads of one process, which exchange data through memory and add it
// up in rank order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "runtime/model/tensor_group.h"

namespace megascale::model {

// The meeting point of a group's ranks.
class TestTensorExchange {
 public:
  explicit TestTensorExchange(int size) : vectors_(size) {}

  int size() const { return static_cast<int>(vectors_.size()); }
  // Returns once all ranks have called it.
  void Meet();
  // Publishes `mine` and meets the other ranks. Afterwards each may read of_rank(…) until the next
  // meeting.
  void Show(int index, const tensor::Vector& mine);
  const tensor::Vector& of_rank(int index) const { return vectors_[index]; }

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::vector<tensor::Vector> vectors_;
  int num_here_ = 0;
  int64_t num_meetings_ = 0;
};

// When an overlapped exchange is carried out: as early or as late as possible. Until then its
// output holds values that a test would notice.
enum class ExchangeTime : uint8_t { kWhenBegun, kWhenWaitedFor };

class TestTensorGroup final : public TensorGroup {
 public:
  // `exchange` is borrowed.
  TestTensorGroup(TestTensorExchange* exchange, int index, ExchangeTime time);

  TensorPlace place() const override { return {exchange_.size(), index_, whole_exchanges_}; }
  // Before the group is used.
  void ExchangeWhole() { whole_exchanges_ = true; }
  Exchange Broadcast(int from, const tensor::Vector& in, const tensor::Vector& out) override;
  Exchange Reduce(int to, const tensor::Vector& in, const tensor::Vector& out) override;
  void Wait(Exchange last) override;
  absl::Status status() const override { return absl::OkStatus(); }

  // Counts of this rank's exchanges.
  int num_broadcasts() const { return num_broadcasts_; }
  int num_sums() const { return num_sums_; }
  // Whether every exchange that has begun was waited for.
  bool idle() const { return num_done_ == num_begun_; }

 private:
  struct Call {
    bool reduces = false;
    int root = 0;
    tensor::Vector in, out;
  };
  Exchange Begin(const Call& call);
  void Do(const Call& call);

  TestTensorExchange& exchange_;
  const int index_;
  const ExchangeTime time_;
  bool whole_exchanges_ = false;
  std::vector<Call> calls_;  // a ring of the calls that are not done, oldest first
  Exchange num_begun_ = 0;
  Exchange num_done_ = 0;
  int num_broadcasts_ = 0;
  int num_sums_ = 0;
};

// Calls run(group) for each of `size` ranks, each on a thread of its own; for size 1 with null.
void RunTensorRanks(int size, const std::function<void(TestTensorGroup*)>& run,
                    ExchangeTime time = ExchangeTime::kWhenBegun);

}  // namespace megascale::model
