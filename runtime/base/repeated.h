// Dropping elements of a repeated field of a message, for which std::erase_if does not exist.
#pragma once

#include <algorithm>

namespace megascale::base {

// Drops the elements for which `is_dropped` is true; the others stay in order.
template <typename Elements, typename Predicate>
void EraseIf(Elements* elements, const Predicate& is_dropped) {
  elements->erase(std::remove_if(elements->begin(), elements->end(), is_dropped), elements->end());
}

// Drops elements from the beginning until at most `count` are left.
template <typename Elements>
void KeepNewest(int count, Elements* elements) {
  elements->erase(elements->begin(), elements->begin() + std::max(0, elements->size() - count));
}

}  // namespace megascale::base
