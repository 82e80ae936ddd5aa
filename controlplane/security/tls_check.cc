#include "controlplane/security/tls_check.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "controlplane/security/openssl.h"
#include "runtime/base/fd.h"
#include "runtime/base/socket/own_socket.h"
#include "runtime/base/status.h"

namespace megascale::security {
namespace {

constexpr absl::Duration kWarnBefore = absl::Hours(24 * 30);

absl::Status Refuse(absl::string_view option, absl::string_view path, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(option, " ", path, ": ", why));
}

// Whoever can write a file of this kind decides whom this program trusts, or who it is.
absl::Status CheckWriters(absl::string_view option, const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return absl::OkStatus();  // Read says why
  if (info.st_uid != ::geteuid() && info.st_uid != 0) {
    return Refuse(option, path,
                  absl::StrCat("belongs to ", base::DescribeUser(info.st_uid), "; expected ",
                               base::DescribeUser(::geteuid()), ", this process's user, or root"));
  }
  if (!base::OthersMayWrite(info)) return absl::OkStatus();
  return Refuse(option, path,
                absl::StrFormat("others may change this file (mode %04o); chmod go-w %s",
                                info.st_mode & 07777, path));
}

absl::StatusOr<std::string> Read(absl::string_view option, const std::string& path) {
  RETURN_IF_ERROR(CheckWriters(option, path));
  absl::StatusOr<std::string> text = base::ReadFile(path, kPemBytesMax);
  if (text.ok()) return text;
  return absl::InvalidArgumentError(absl::StrCat(option, ": ", text.status().message()));
}

absl::Status CheckKeyMode(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tls-key: ", base::ErrnoStatus(errno, path).message()));
  }
  const mode_t closed_to = info.st_uid == ::geteuid() ? 077 : 007;
  if ((info.st_mode & closed_to) == 0) return absl::OkStatus();
  return Refuse("--tls-key", path,
                absl::StrFormat("others may use this private key (mode %04o); chmod 600 %s",
                                info.st_mode & 07777, path));
}

absl::Status CheckCertificate(const TlsFiles& files, const Certificate& certificate, Role role) {
  if (certificate.role != role) {
    return Refuse(
        "--tls-cert", files.certificate,
        absl::StrCat("is the certificate of ",
                     certificate.role == Role::kNone
                         ? "no megascale role"
                         : absl::StrCat("a megascale ", RoleName(certificate.role)),
                     ", expected one with the organizational unit '", RoleUnit(role),
                     "'; make one with `megascale certs issue DIR ", RoleName(role), " NAME`"));
  }
  const absl::Time now = absl::Now();
  if (now >= certificate.not_before && now <= certificate.not_after) return absl::OkStatus();
  return absl::UnauthenticatedError(
      absl::StrCat("--tls-cert ", files.certificate, ": ", DescribeValidity(certificate, now),
                   now > certificate.not_after
                       ? absl::StrCat("; make a new one with `megascale certs issue DIR ",
                                      RoleName(role), " NAME`")
                       : std::string("; is this machine's clock right?")));
}

}  // namespace

absl::StatusOr<TlsPems> LoadTlsFiles(const TlsFiles& files, Role role) {
  if (!files.complete()) {
    return absl::InvalidArgumentError(
        "mutual TLS needs all three of --tls-ca, --tls-cert and --tls-key");
  }
  TlsPems pems;
  ASSIGN_OR_RETURN(pems.ca, Read("--tls-ca", files.ca));
  ASSIGN_OR_RETURN(pems.certificate, Read("--tls-cert", files.certificate));
  RETURN_IF_ERROR(CheckKeyMode(files.key));
  ASSIGN_OR_RETURN(pems.key, Read("--tls-key", files.key));
  if (const auto parsed = ParseCertificates(pems.ca); !parsed.ok()) {
    return Refuse("--tls-ca", files.ca, parsed.status().message());
  }
  const auto chain = ParseCertificates(pems.certificate);
  if (!chain.ok()) return Refuse("--tls-cert", files.certificate, chain.status().message());
  const auto key = ParseKey(pems.key);
  if (!key.ok()) return Refuse("--tls-key", files.key, key.status().message());
  if (X509_check_private_key(chain->front().get(), key->get()) != 1) {
    OpensslError();
    return Refuse("--tls-key", files.key,
                  absl::StrCat("is not the key of --tls-cert ", files.certificate,
                               "; give the two that were made together"));
  }
  ASSIGN_OR_RETURN(const Certificate certificate, DescribeCertificate(pems.certificate));
  RETURN_IF_ERROR(CheckCertificate(files, certificate, role));
  return pems;
}

std::string ExpiryWarning(const TlsFiles& files, absl::Time now) {
  const auto pem = base::ReadFile(files.certificate, kPemBytesMax);
  if (!pem.ok()) return "";
  const auto certificate = DescribeCertificate(*pem);
  if (!certificate.ok() || certificate->not_after - now > kWarnBefore) return "";
  return absl::StrCat(files.certificate, ": this certificate ", DescribeValidity(*certificate, now),
                      "; make a new one with `megascale certs issue` and start again with it");
}

}  // namespace megascale::security
