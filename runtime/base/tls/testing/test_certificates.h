// Certificates for tests: an authority and the certificates that it signs, as PEM files in a folder
// of the test.
#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <string>

namespace megascale::base {

struct TestCertificate {
  std::string certificate_file;
  std::string key_file;
};

// Any failure is fatal to the test.
class TestAuthority {
 public:
  // Makes "NAME.pem" in `directory`.
  TestAuthority(const std::string& directory, const std::string& name);
  ~TestAuthority();
  TestAuthority(const TestAuthority&) = delete;
  TestAuthority& operator=(const TestAuthority&) = delete;

  const std::string& certificate_file() const { return certificate_file_; }

  // Signs a certificate for `alternative_names`, in OpenSSL's notation: "IP:127.0.0.1,DNS:store".
  // It expires `days` from now; negative: it has expired.
  TestCertificate Issue(const std::string& name, const std::string& alternative_names,
                        int days = 1);

 private:
  const std::string directory_;
  const std::string certificate_file_;
  EVP_PKEY* key_ = nullptr;
  X509* certificate_ = nullptr;
  long last_serial_ = 1;
};

}  // namespace megascale::base
