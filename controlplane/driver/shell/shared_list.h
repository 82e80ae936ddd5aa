// A list that grows at its end. A copy is cheap, because it shares all elements with the original,
// and it does not change when the original grows. Cost: a copy takes one pointer for each 256
// elements; following a list that has grown copies the new elements and at most 255 before them.
// Threads: a list has one owner; copies may be read by any thread.
#pragma once

#include <google/protobuf/repeated_field.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace megascale::driver {

template <typename Element>
class SharedList {
 public:
  using Elements = google::protobuf::RepeatedPtrField<Element>;

  // Takes over the new elements at the end of `all`. Requires: `all` begins with the elements of
  // this list. Returns how many elements were copied.
  int Follow(const Elements& all) {
    if (all.size() == size_) return 0;
    const int begin = size_ / kPartSize * kPartSize;
    parts_.resize(static_cast<size_t>(begin / kPartSize));
    for (int i = begin; i < all.size(); i += kPartSize) {
      const int end = std::min(i + kPartSize, all.size());
      parts_.push_back(std::make_shared<const Elements>(all.begin() + i, all.begin() + end));
    }
    size_ = all.size();
    return size_ - begin;
  }

  int size() const { return size_; }

  void AppendTo(Elements* elements) const {
    elements->Reserve(elements->size() + size_);
    for (const auto& part : parts_) elements->MergeFrom(*part);
  }

 private:
  static constexpr int kPartSize = 256;

  std::vector<std::shared_ptr<const Elements>> parts_;  // of kPartSize elements each, but the last
  int size_ = 0;
};

}  // namespace megascale::driver
