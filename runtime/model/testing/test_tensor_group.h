// For tests: tensor ranks as threads of one process, which exchange through memory and add up in
// rank order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "runtime/model/tensor_group.h"

namespace megascale::model {

// Where the ranks of a group meet.
class TestTensorExchange {
 public:
  explicit TestTensorExchange(int size) : vectors_(size) {}

  int size() const { return static_cast<int>(vectors_.size()); }
  // Returns once all ranks are here.
  void Meet();
  // Shows the others `mine` and meets them; after that each may read all of_rank(…) until it meets
  // them again.
  void Show(int index, const tensor::Vector& mine);
  const tensor::Vector& of_rank(int index) const { return vectors_[index]; }

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::vector<tensor::Vector> vectors_;
  int num_here_ = 0;
  int64_t num_meetings_ = 0;
};

// When an exchange that overlaps is done: as early as may be, or as late. Until then what it fills
// has values that show.
enum class ExchangeTime : uint8_t { kWhenBegun, kWhenWaitedFor };

class TestTensorGroup final : public TensorGroup {
 public:
  // `exchange` is borrowed.
  TestTensorGroup(TestTensorExchange* exchange, int index, ExchangeTime time);

  TensorPlace place() const override { return {exchange_.size(), index_}; }
  Exchange Broadcast(int from, const tensor::Vector& in, const tensor::Vector& out) override;
  Exchange Reduce(int to, const tensor::Vector& in, const tensor::Vector& out) override;
  void Wait(Exchange last) override;
  absl::Status status() const override { return absl::OkStatus(); }

  // Of this rank.
  int num_broadcasts() const { return num_broadcasts_; }
  int num_sums() const { return num_sums_; }
  // Every one that has begun was waited for.
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
  std::vector<Call> calls_;  // that are not done, those begun later behind; a ring
  Exchange num_begun_ = 0;
  Exchange num_done_ = 0;
  int num_broadcasts_ = 0;
  int num_sums_ = 0;
};

// Calls run(group) for each of `size` ranks, each on a thread of its own; for 1 with null.
void RunTensorRanks(int size, const std::function<void(TestTensorGroup*)>& run,
                    ExchangeTime time = ExchangeTime::kWhenBegun);

}  // namespace megascale::model
