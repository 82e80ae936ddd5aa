#include "runtime/model/testing/test_tensor_group.h"

#include <cstring>
#include <limits>
#include <thread>

#include "runtime/base/check.h"

namespace megascale::model {
namespace {

using tensor::DType;
using tensor::Vector;

constexpr int64_t kCallsMax = 64;  // in flight
constexpr double kNotYet = std::numeric_limits<double>::quiet_NaN();

double Read(const Vector& vector, int64_t i) {
  if (vector.dtype == DType::kF64) return vector.as<double>()[i];
  if (vector.dtype == DType::kF32) return vector.as<float>()[i];
  MEGASCALE_CHECK(vector.dtype == DType::kBF16);
  return tensor::ToFloat(vector.as<tensor::BFloat16>()[i]);
}

void Write(const Vector& vector, int64_t i, double value) {
  if (vector.dtype == DType::kF64) {
    vector.as<double>()[i] = value;
  } else if (vector.dtype == DType::kF32) {
    vector.as<float>()[i] = static_cast<float>(value);
  } else {
    vector.as<tensor::BFloat16>()[i] = tensor::ToBFloat16(static_cast<float>(value));
  }
}

}  // namespace

void TestTensorExchange::Show(int index, const Vector& mine) {
  vectors_[index] = mine;
  Meet();
}

void TestTensorExchange::Meet() {
  std::unique_lock lock(mutex_);
  const int64_t meeting = num_meetings_;
  if (++num_here_ == size()) {
    num_here_ = 0;
    ++num_meetings_;
    all_here_.notify_all();
  }
  all_here_.wait(lock, [&] { return num_meetings_ != meeting; });
}

TestTensorGroup::TestTensorGroup(TestTensorExchange* exchange, int index, ExchangeTime time)
    : exchange_(*exchange), index_(index), time_(time), calls_(kCallsMax) {}

TensorGroup::Exchange TestTensorGroup::Broadcast(int from, const Vector& in, const Vector& out) {
  ++num_broadcasts_;
  for (int64_t i = 0; i < out.size; ++i) Write(out, i, kNotYet);
  return Begin({.reduces = false, .root = from, .in = in, .out = out});
}

TensorGroup::Exchange TestTensorGroup::Reduce(int to, const Vector& in, const Vector& out) {
  ++num_sums_;
  for (int64_t i = 0; i < out.size && to == index_; ++i) Write(out, i, kNotYet);
  return Begin({.reduces = true, .root = to, .in = in, .out = out});
}

TensorGroup::Exchange TestTensorGroup::Begin(const Call& call) {
  MEGASCALE_CHECK(call.out.dtype == call.in.dtype && call.out.size == call.in.size);
  MEGASCALE_CHECK(num_begun_ - num_done_ < kCallsMax);
  calls_[num_begun_++ % kCallsMax] = call;
  if (time_ == ExchangeTime::kWhenBegun) Wait(num_begun_);
  return num_begun_;
}

void TestTensorGroup::Wait(Exchange last) {
  MEGASCALE_CHECK(last <= num_begun_);
  while (num_done_ < last) Do(calls_[num_done_++ % kCallsMax]);
}

void TestTensorGroup::Do(const Call& call) {
  exchange_.Show(index_, call.in);
  const Vector& root = exchange_.of_rank(call.root);
  MEGASCALE_CHECK(root.dtype == call.out.dtype && root.size == call.out.size);
  if (!call.reduces) {
    std::memcpy(call.out.data, root.data, root.size * SizeOf(root.dtype));
  } else if (call.root == index_) {
    for (int64_t i = 0; i < call.out.size; ++i) {
      double sum = 0;
      for (int rank = 0; rank < exchange_.size(); ++rank) sum += Read(exchange_.of_rank(rank), i);
      Write(call.out, i, sum);
    }
  }
  exchange_.Meet();
}

void RunTensorRanks(int size, const std::function<void(TestTensorGroup*)>& run, ExchangeTime time) {
  if (size == 1) {
    run(nullptr);
    return;
  }
  TestTensorExchange exchange(size);
  std::vector<std::thread> ranks;
  for (int index = 0; index < size; ++index) {
    ranks.emplace_back([&exchange, &run, index, time] {
      TestTensorGroup group(&exchange, index, time);
      run(&group);
      MEGASCALE_CHECK(group.idle());
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace megascale::model
