#include "controlplane/driver/storage/recent_steps.h"

#include <algorithm>

namespace megascale::driver {
namespace {

constexpr double kEvaluationSecondsMax = 1e5;  // no rank is believed more

}  // namespace

const RecentSteps::StepRecord& RecentSteps::operator[](size_t index) const {
  const size_t slot = begin_ + index;
  return (*blocks_[slot / kBlock])[slot % kBlock];
}

void RecentSteps::Append(const StepRecord& record) {
  Load(record);
  const double seconds = record.evaluation_seconds();
  if (seconds > 0 && seconds < kEvaluationSecondsMax) evaluation_seconds_ += seconds;
  ++num_appended_;
}

void RecentSteps::Load(const StepRecord& record) {
  const size_t slot = begin_ + size_;
  if (slot == blocks_.size() * kBlock) blocks_.push_back(std::make_shared<Block>());
  (*blocks_[slot / kBlock])[slot % kBlock] = record;
  ++size_;
  if (record.has_held_out_loss()) newest_evaluated_ = std::make_shared<const StepRecord>(record);
  KeepNewest(kMax);
}

void RecentSteps::Clear() {
  blocks_.clear();
  newest_evaluated_ = nullptr;
  begin_ = 0;
  size_ = 0;
}

void RecentSteps::KeepNewest(size_t count) {
  if (size_ <= count) return;
  begin_ += size_ - count;
  size_ = count;
  blocks_.erase(blocks_.begin(), blocks_.begin() + static_cast<std::ptrdiff_t>(begin_ / kBlock));
  begin_ %= kBlock;
}

void RecentSteps::NoteCut(int64_t num_cut) {
  num_before_ = num_at_cut_;
  num_at_cut_ = num_appended_;
  num_kept_ = num_appended_ - num_cut;
}

std::vector<RecentSteps::StepRecord> RecentSteps::Since(int64_t* position) const {
  const int64_t begin = *position < 0 ? num_appended_ : std::max(*position, num_before_);
  const int64_t unread_before_cut = std::max<int64_t>(0, num_kept_ - begin);
  const int64_t unread = unread_before_cut + num_appended_ - std::max(begin, num_at_cut_);
  const int64_t held = std::clamp<int64_t>(unread, 0, static_cast<int64_t>(size_));
  *position = num_appended_;
  std::vector<StepRecord> records;
  for (size_t i = size_ - static_cast<size_t>(held); i < size_; ++i) records.push_back((*this)[i]);
  return records;
}

}  // namespace megascale::driver
