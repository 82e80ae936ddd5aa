// Owning pointers to OpenSSL's objects, and its errors as text. Private to this folder.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megascale::security {

// The maximum size of a PEM file of this program.
inline constexpr size_t kPemBytesMax = 1 << 20;

template <auto Free>
struct OpensslDelete {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};

using UniqueX509 = std::unique_ptr<X509, OpensslDelete<X509_free>>;
using UniqueKey = std::unique_ptr<EVP_PKEY, OpensslDelete<EVP_PKEY_free>>;
using UniqueBio = std::unique_ptr<BIO, OpensslDelete<BIO_free_all>>;
using UniqueStore = std::unique_ptr<X509_STORE, OpensslDelete<X509_STORE_free>>;
using UniqueStoreContext = std::unique_ptr<X509_STORE_CTX, OpensslDelete<X509_STORE_CTX_free>>;
using UniqueExtension = std::unique_ptr<X509_EXTENSION, OpensslDelete<X509_EXTENSION_free>>;
using UniqueNames = std::unique_ptr<GENERAL_NAMES, OpensslDelete<GENERAL_NAMES_free>>;
using UniqueSslContext = std::unique_ptr<SSL_CTX, OpensslDelete<SSL_CTX_free>>;
using UniqueSsl = std::unique_ptr<SSL, OpensslDelete<SSL_free>>;

// Returns the newest error of this thread's queue, such as "key values mismatch", and empties the
// queue.
std::string OpensslError();

// Returns the certificates of a PEM file, in its order. Errors: InvalidArgument - the file has no
// certificate, or one that cannot be read; the message begins with "holds no".
absl::StatusOr<std::vector<UniqueX509>> ParseCertificates(absl::string_view pem);

// Returns the private key in a PEM text. Errors: InvalidArgument - there is no unencrypted key.
absl::StatusOr<UniqueKey> ParseKey(absl::string_view pem);

// Returns a memory BIO that reads `text`; `text` must outlive it.
UniqueBio ReadOnly(absl::string_view text);

}  // namespace megascale::security
