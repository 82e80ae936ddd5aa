#include "runtime/model/test_tensor_group.h"

#include <cstring>
#include <thread>

#include "runtime/base/check.h"

namespace megascale::model {
namespace {

using tensor::DType;
using tensor::Vector;

Vector Part(const Vector& vector, int64_t begin, int64_t size) {
  MEGASCALE_CHECK(begin >= 0 && begin + size <= vector.size);
  return {vector.as<char>() + begin * static_cast<int64_t>(SizeOf(vector.dtype)), vector.dtype,
          size};
}

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

void TestTensorGroup::AllGather(const Vector& in, const Vector& out) {
  ++num_gathers_;
  MEGASCALE_CHECK(out.dtype == in.dtype && out.size == in.size * exchange_.size());
  exchange_.Show(index_, in);
  for (int rank = 0; rank < exchange_.size(); ++rank) {
    const Vector& from = exchange_.of_rank(rank);
    MEGASCALE_CHECK(from.dtype == in.dtype && from.size == in.size);
    const Vector to = Part(out, rank * in.size, in.size);
    std::memcpy(to.data, from.data, to.size * SizeOf(to.dtype));
  }
  exchange_.Meet();
}

void TestTensorGroup::ReduceScatter(const Vector& in, const Vector& out) {
  ++num_sums_;
  MEGASCALE_CHECK(out.dtype == in.dtype && in.size == out.size * exchange_.size());
  exchange_.Show(index_, in);
  for (int64_t i = 0; i < out.size; ++i) {
    double sum = 0;
    for (int rank = 0; rank < exchange_.size(); ++rank) {
      sum += Read(exchange_.of_rank(rank), index_ * out.size + i);
    }
    Write(out, i, sum);
  }
  exchange_.Meet();
}

void RunTensorRanks(int size, const std::function<void(TestTensorGroup*)>& run) {
  if (size == 1) {
    run(nullptr);
    return;
  }
  TestTensorExchange exchange(size);
  std::vector<std::thread> ranks;
  for (int index = 0; index < size; ++index) {
    ranks.emplace_back([&exchange, &run, index] {
      TestTensorGroup group(&exchange, index);
      run(&group);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace megascale::model
