// Checksums: SHA-256 for what is stored, XXH3 for what is in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megascale::base {

// SHA-256 of bytes that come in pieces.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void Update(const void* data, size_t size_bytes);
  void Update(absl::string_view data) { Update(data.data(), data.size()); }
  // 64 hexadecimal digits. Once, last.
  std::string Finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::string Sha256Hex(absl::string_view data);

// SHA-256 of a whole file, read in pieces.
absl::StatusOr<std::string> Sha256OfFile(const std::string& path);

// XXH3, 64 bits: fast, against accidents only.
uint64_t Xxh3(const void* data, size_t size_bytes);

}  // namespace megascale::base
