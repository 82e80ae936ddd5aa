// A map from names to immutable values. A copy is cheap, and it does not change when the original
// changes. At first the copy shares everything with the original; after a change of one of them,
// everything but the part with the changed name. Cost: a copy takes 16 pointers; a change takes
// about 40 pointers, and one more for each 256 values.
// Threads: a map has one owner; copies may be read by any thread.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace megascale::driver {

template <typename Value>
class SharedMap {
 public:
  using Pointer = std::shared_ptr<const Value>;

  // Returns the value, which lives as long as this map has it; null: there is no value of this
  // name.
  const Value* Find(const std::string& name) const {
    const Place place = PlaceOf(name);
    const Branch* branch = branches_[place.branch].get();
    const Leaf* leaf = branch == nullptr ? nullptr : (*branch)[place.leaf].get();
    if (leaf == nullptr) return nullptr;
    const auto found = LowerBound(*leaf, name);
    return found != leaf->end() && found->first == name ? found->second.get() : nullptr;
  }

  void Set(const std::string& name, Pointer value) {
    Leaf& leaf = Own(name);
    const auto found = LowerBound(leaf, name);
    if (found != leaf.end() && found->first == name) {
      found->second = std::move(value);
    } else {
      leaf.emplace(found, name, std::move(value));
    }
  }

  void Erase(const std::string& name) {
    if (Find(name) == nullptr) return;
    Leaf& leaf = Own(name);
    leaf.erase(LowerBound(leaf, name));
  }

  // Returns all values, in no particular order.
  std::vector<const Value*> Values() const {
    std::vector<const Value*> values;
    for (const auto& branch : branches_) {
      if (branch == nullptr) continue;
      for (const auto& leaf : *branch) {
        if (leaf == nullptr) continue;
        for (const auto& [name, value] : *leaf) values.push_back(value.get());
      }
    }
    return values;
  }

 private:
  static constexpr size_t kFanOut = 16;
  using Leaf = std::vector<std::pair<std::string, Pointer>>;  // sorted
  using Branch = std::array<std::shared_ptr<Leaf>, kFanOut>;
  struct Place {
    size_t branch = 0;
    size_t leaf = 0;
  };

  static Place PlaceOf(const std::string& name) {
    const size_t hash = std::hash<std::string>()(name);
    return {hash % kFanOut, hash / kFanOut % kFanOut};
  }

  template <typename AnyLeaf>
  static auto LowerBound(AnyLeaf& leaf, const std::string& name) {
    return std::lower_bound(leaf.begin(), leaf.end(), name,
                            [](const auto& entry, const auto& id) { return entry.first < id; });
  }

  // Returns the leaf of the name, which no copy shares.
  Leaf& Own(const std::string& name) {
    const Place place = PlaceOf(name);
    std::shared_ptr<Branch>& branch = branches_[place.branch];
    branch = branch == nullptr ? std::make_shared<Branch>() : std::make_shared<Branch>(*branch);
    std::shared_ptr<Leaf>& leaf = (*branch)[place.leaf];
    leaf = leaf == nullptr ? std::make_shared<Leaf>() : std::make_shared<Leaf>(*leaf);
    return *leaf;
  }

  std::array<std::shared_ptr<Branch>, kFanOut> branches_;
};

}  // namespace megascale::driver
