#include "runtime/base/tls/testing/test_certificates.h"

#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace megascale::base {
namespace {

void Must(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "test certificates: %s\n", what);
  std::abort();
}

EVP_PKEY* NewKey() {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  Must(key != nullptr, "no key");
  return key;
}

X509* NewCertificate(const std::string& name, EVP_PKEY* key, long serial, int days) {
  X509* certificate = X509_new();
  Must(certificate != nullptr, "no certificate");
  X509_set_version(certificate, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial);
  X509_time_adj_ex(X509_getm_notBefore(certificate), -30, 0, nullptr);
  X509_time_adj_ex(X509_getm_notAfter(certificate), days, 0, nullptr);
  X509_set_pubkey(certificate, key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  return certificate;
}

void AddExtension(X509* certificate, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str());
  Must(extension != nullptr, "no extension");
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

void Write(const std::string& path, X509* certificate) {
  FILE* file = std::fopen(path.c_str(), "w");
  Must(file != nullptr && PEM_write_X509(file, certificate) == 1 && std::fclose(file) == 0,
       "cannot write");
}

}  // namespace

TestAuthority::TestAuthority(const std::string& directory, const std::string& name)
    : directory_(directory),
      certificate_file_(absl::StrCat(directory, "/", name, ".pem")),
      key_(NewKey()),
      certificate_(NewCertificate(name, key_, 1, 1)) {
  X509_set_issuer_name(certificate_, X509_get_subject_name(certificate_));
  AddExtension(certificate_, NID_basic_constraints, "critical,CA:TRUE");
  AddExtension(certificate_, NID_key_usage, "critical,keyCertSign");
  Must(X509_sign(certificate_, key_, EVP_sha256()) > 0, "cannot sign");
  Write(certificate_file_, certificate_);
}

TestAuthority::~TestAuthority() {
  X509_free(certificate_);
  EVP_PKEY_free(key_);
}

TestCertificate TestAuthority::Issue(const std::string& name, const std::string& alternative_names,
                                     int days) {
  const std::string path = absl::StrCat(directory_, "/", name);
  const TestCertificate files = {path + ".pem", path + ".key"};
  EVP_PKEY* key = NewKey();
  X509* certificate = NewCertificate(name, key, ++last_serial_, days);
  X509_set_issuer_name(certificate, X509_get_subject_name(certificate_));
  AddExtension(certificate, NID_subject_alt_name, alternative_names);
  Must(X509_sign(certificate, key_, EVP_sha256()) > 0, "cannot sign");
  Write(files.certificate_file, certificate);
  FILE* file = std::fopen(files.key_file.c_str(), "w");
  Must(file != nullptr &&
           PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr) == 1 &&
           std::fclose(file) == 0,
       "cannot write a key");
  X509_free(certificate);
  EVP_PKEY_free(key);
  return files;
}

}  // namespace megascale::base
