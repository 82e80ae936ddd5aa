#include "controlplane/security/openssl.h"

#include <openssl/err.h>
#include <openssl/pem.h>

#include "absl/status/status.h"

namespace megascale::security {
namespace {

// Refuses a key with a passphrase, because nobody is there to type it.
int NoPassphrase(char*, int, int, void*) { return -1; }

}  // namespace

std::string OpensslError() {
  const unsigned long code = ERR_peek_last_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  ERR_clear_error();
  return reason == nullptr ? "no reason given" : reason;
}

UniqueBio ReadOnly(absl::string_view text) {
  return UniqueBio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

absl::StatusOr<std::vector<UniqueX509>> ParseCertificates(absl::string_view pem) {
  const UniqueBio bio = ReadOnly(pem);
  std::vector<UniqueX509> certificates;
  while (X509* certificate = PEM_read_bio_X509(bio.get(), nullptr, NoPassphrase, nullptr)) {
    certificates.emplace_back(certificate);
  }
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  const bool at_end =
      ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
  if (certificates.empty() || !at_end) {
    return absl::InvalidArgumentError(
        "holds no readable certificate; expected PEM (-----BEGIN CERTIFICATE-----)");
  }
  return certificates;
}

absl::StatusOr<UniqueKey> ParseKey(absl::string_view pem) {
  const UniqueBio bio = ReadOnly(pem);
  UniqueKey key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  if (key != nullptr) return key;
  return absl::InvalidArgumentError(
      "holds no readable private key; expected PEM (-----BEGIN PRIVATE KEY-----) without a "
      "passphrase");
}

}  // namespace megascale::security
