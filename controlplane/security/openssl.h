// OpenSSL's objects with owners, and its errors as text. Private to this folder.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megascale::security {

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

// The newest error of this thread's queue, which is emptied: "key values mismatch".
std::string OpensslError();

// Certificates of a PEM file, in its order. Errors: InvalidArgument - there is none, or one that
// cannot be read; the message begins "holds no".
absl::StatusOr<std::vector<UniqueX509>> ParseCertificates(absl::string_view pem);

// Errors: InvalidArgument - no unencrypted private key in PEM.
absl::StatusOr<UniqueKey> ParseKey(absl::string_view pem);

// A memory BIO to read `text` from, which must outlive it.
UniqueBio ReadOnly(absl::string_view text);

}  // namespace megascale::security
