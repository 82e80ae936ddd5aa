#include "runtime/base/checksum.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <vector>

#include "absl/strings/escaping.h"
#include "runtime/base/check.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace megascale::base {

struct Sha256::Impl {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~Impl() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) {
  MEGASCALE_CHECK(EVP_DigestInit_ex(impl_->context, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() = default;

void Sha256::Update(const void* data, size_t size_bytes) {
  MEGASCALE_CHECK(EVP_DigestUpdate(impl_->context, data, size_bytes) == 1);
}

std::string Sha256::Finish() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  MEGASCALE_CHECK(EVP_DigestFinal_ex(impl_->context, digest, &size) == 1);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
}

std::string Sha256Hex(absl::string_view data) {
  Sha256 hash;
  hash.Update(data);
  return hash.Finish();
}

absl::StatusOr<std::string> Sha256OfFile(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, path);
  Sha256 hash;
  std::vector<char> buffer(1 << 20);
  for (;;) {
    const ssize_t count = ::read(fd.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(errno, path);
    if (count == 0) return hash.Finish();
    hash.Update(buffer.data(), static_cast<size_t>(count));
  }
}

uint64_t Xxh3(const void* data, size_t size_bytes) { return XXH3_64bits(data, size_bytes); }

}  // namespace megascale::base
