// The newest step records of a job, for watchers and rates. A copy is cheap, because it shares the
// records, and it does not change when the original gets more. So the owner may add records while
// other threads read copies.
// Threads: one owner, who alone adds records; its copies may be read by any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <vector>

#include "proto/telemetry.pb.h"

namespace megascale::driver {

class RecentSteps {
 public:
  using StepRecord = megascale::telemetry::v1::StepRecord;
  static constexpr size_t kMax = 1024;

  class const_iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = StepRecord;
    using difference_type = std::ptrdiff_t;
    using pointer = const StepRecord*;
    using reference = const StepRecord&;
    const_iterator(const RecentSteps* steps, size_t index) : steps_(steps), index_(index) {}
    reference operator*() const { return (*steps_)[index_]; }
    pointer operator->() const { return &**this; }
    const_iterator& operator++() {
      ++index_;
      return *this;
    }
    bool operator==(const const_iterator& other) const { return index_ == other.index_; }
    bool operator!=(const const_iterator& other) const { return index_ != other.index_; }

   private:
    const RecentSteps* steps_;
    size_t index_;
  };
  using value_type = StepRecord;

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  // The oldest first.
  const StepRecord& operator[](size_t index) const;
  const StepRecord& front() const { return (*this)[0]; }
  const StepRecord& back() const { return (*this)[size_ - 1]; }
  const_iterator begin() const { return {this, 0}; }
  const_iterator end() const { return {this, size_}; }

  // Returns the newest record with a loss on held-out text; null: there is none. It may be older
  // than the records.
  const StepRecord* newest_evaluated() const { return newest_evaluated_.get(); }
  // The sum of the evaluations of all appended records, also of those that were dropped or cut: a
  // reader compares it with what it was before.
  double evaluation_seconds() const { return evaluation_seconds_; }

  // Returns the records appended since `position` that are still here and were not cut, and moves
  // `position` to the end. A position of -1 returns no records. A reader that did not call this
  // between two cuts gets only what was appended after the first cut.
  std::vector<StepRecord> Since(int64_t* position) const;

  // --- for the owner
  // Adds a record that was just completed.
  void Append(const StepRecord& record);
  // Removes all records, so that the caller can `Load` those that are left after a cut, or those of
  // a file.
  void Clear();
  void Load(const StepRecord& record);
  // The newest `num_cut` records are gone: call after `Load` of those that are left.
  void NoteCut(int64_t num_cut);
  // The position of a reader that has got all records.
  int64_t end_position() const { return num_appended_; }
  // Continues the positions of an object that ended at `position`, in a new one that has the same
  // records. Call before Append.
  void ContinueFrom(int64_t position) { num_appended_ = position; }
  // Drops all but the newest records.
  void KeepNewest(size_t count);

 private:
  static constexpr size_t kBlock = 32;
  // A slot is written once, before a copy that includes it is made.
  using Block = std::array<StepRecord, kBlock>;

  std::vector<std::shared_ptr<Block>> blocks_;
  std::shared_ptr<const StepRecord> newest_evaluated_;
  double evaluation_seconds_ = 0;
  size_t begin_ = 0;  // in the first block
  size_t size_ = 0;
  int64_t num_appended_ = 0;  // cut ones included
  int64_t num_at_cut_ = 0;    // num_appended_ at the last cut
  int64_t num_kept_ = 0;      // num_at_cut_ without what was cut then
  int64_t num_before_ = 0;    // num_appended_ at the cut before the last
};

}  // namespace megascale::driver
