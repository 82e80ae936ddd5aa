// The descriptors of the emulated cuBLASLt: objects with attributes.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <map>

namespace megascale::emulator {

enum class CublasLtKind : uint8_t { kHandle, kOperation, kLayout, kPreference };

class CublasLtObject {
 public:
  explicit CublasLtObject(CublasLtKind kind) : kind_(kind) {}

  CublasLtKind kind() const { return kind_; }

  // Requires: the kind has the attribute.
  uint64_t Get(int attribute) const;
  void Set(int attribute, uint64_t value) { values_[attribute] = value; }

  // Behave as cublasLt...SetAttribute and GetAttribute: `bytes` must be the size of the attribute.
  cublasStatus_t SetBytes(int attribute, const void* from, size_t bytes);
  cublasStatus_t GetBytes(int attribute, void* to, size_t bytes, size_t* written) const;

  // Whether every attribute that is not emulated has its default.
  bool HasOnlyWhatIsEmulated() const;

 private:
  CublasLtKind kind_;
  std::map<int, uint64_t> values_;
};

}  // namespace megascale::emulator
