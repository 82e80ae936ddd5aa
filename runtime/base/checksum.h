// Checksums: SHA-256 for stored data, XXH3 for data in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megascale::base {

// Computes the SHA-256 of bytes that come in pieces.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void Update(const void* data, size_t size_bytes);
  void Update(absl::string_view data) { Update(data.data(), data.size()); }
  // Returns 64 hexadecimal digits. Call it once, last.
  std::string Finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::string Sha256Hex(absl::string_view data);

// Returns the SHA-256 of a whole file, read in pieces.
absl::StatusOr<std::string> Sha256OfFile(const std::string& path);

// Returns the 64-bit XXH3: fast; protects against accidents, not against attacks.
uint64_t Xxh3(const void* data, size_t size_bytes);

}  // namespace megascale::base
