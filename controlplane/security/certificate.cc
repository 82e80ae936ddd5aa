#include "controlplane/security/certificate.h"

#include <arpa/inet.h>
#include <openssl/err.h>

#include <array>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "controlplane/security/openssl.h"
#include "runtime/base/status.h"

namespace megascale::security {
namespace {

constexpr std::array<std::pair<Role, absl::string_view>, 3> kRoles = {{
    {Role::kDriver, "driver"},
    {Role::kAgent, "agent"},
    {Role::kUser, "user"},
}};

std::string TextOf(const ASN1_STRING* value) {
  unsigned char* utf8 = nullptr;
  const int size = ASN1_STRING_to_UTF8(&utf8, value);
  if (size < 0) return "";
  std::string text(reinterpret_cast<const char*>(utf8), static_cast<size_t>(size));
  OPENSSL_free(utf8);
  return text;
}

std::vector<std::string> EntriesOf(const X509_NAME* name, int nid) {
  std::vector<std::string> entries;
  for (int at = -1; (at = X509_NAME_get_index_by_NID(name, nid, at)) >= 0;) {
    entries.push_back(TextOf(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(name, at))));
  }
  return entries;
}

std::string CommonName(const X509_NAME* name) {
  const std::vector<std::string> entries = EntriesOf(name, NID_commonName);
  return entries.empty() ? "" : entries.back();
}

Role RoleOf(const X509_NAME* name) {
  Role found = Role::kNone;
  for (const std::string& unit : EntriesOf(name, NID_organizationalUnitName)) {
    for (const auto& [role, unused] : kRoles) {
      if (unit != RoleUnit(role)) continue;
      if (found != Role::kNone && found != role) return Role::kNone;
      found = role;
    }
  }
  return found;
}

std::string HostOf(const GENERAL_NAME* name) {
  if (name->type == GEN_DNS) return TextOf(name->d.dNSName);
  if (name->type != GEN_IPADD) return "";
  const unsigned char* bytes = ASN1_STRING_get0_data(name->d.iPAddress);
  const int family = ASN1_STRING_length(name->d.iPAddress) == 4 ? AF_INET : AF_INET6;
  char text[INET6_ADDRSTRLEN] = {};
  return ::inet_ntop(family, bytes, text, sizeof(text)) == nullptr ? "" : text;
}

std::vector<std::string> HostsOf(const X509* certificate) {
  const UniqueNames names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::vector<std::string> hosts;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    std::string host = HostOf(sk_GENERAL_NAME_value(names.get(), i));
    if (!host.empty()) hosts.push_back(std::move(host));
  }
  return hosts;
}

absl::Time TimeOf(const ASN1_TIME* time) {
  tm broken_down = {};
  if (ASN1_TIME_to_tm(time, &broken_down) != 1) return absl::InfinitePast();
  return absl::FromTM(broken_down, absl::UTCTimeZone());
}

std::string Hex(const unsigned char* bytes, int size) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size)));
}

std::string FingerprintOf(const X509* certificate) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  X509_digest(certificate, EVP_sha256(), digest, &size);
  return Hex(digest, static_cast<int>(size));
}

}  // namespace

absl::string_view RoleName(Role role) {
  for (const auto& [known, name] : kRoles) {
    if (known == role) return name;
  }
  return "none";
}

Role RoleFromName(absl::string_view name) {
  for (const auto& [role, known] : kRoles) {
    if (known == name) return role;
  }
  return Role::kNone;
}

std::string RoleUnit(Role role) {
  return role == Role::kNone ? "" : absl::StrCat("megascale ", RoleName(role));
}

absl::StatusOr<Certificate> DescribeCertificate(absl::string_view pem) {
  ASSIGN_OR_RETURN(const std::vector<UniqueX509> certificates, ParseCertificates(pem));
  X509* certificate = certificates.front().get();
  Certificate described;
  described.name = CommonName(X509_get_subject_name(certificate));
  described.issuer = CommonName(X509_get_issuer_name(certificate));
  described.role = RoleOf(X509_get_subject_name(certificate));
  described.is_authority = X509_check_ca(certificate) == 1;
  described.hosts = HostsOf(certificate);
  described.not_before = TimeOf(X509_get0_notBefore(certificate));
  described.not_after = TimeOf(X509_get0_notAfter(certificate));
  const ASN1_INTEGER* serial = X509_get0_serialNumber(certificate);
  described.serial = Hex(ASN1_STRING_get0_data(serial), ASN1_STRING_length(serial));
  described.fingerprint = FingerprintOf(certificate);
  ERR_clear_error();
  return described;
}

std::string DescribeValidity(const Certificate& certificate, absl::Time now) {
  const auto day = [](absl::Time time) {
    return absl::FormatTime("%Y-%m-%d", time, absl::UTCTimeZone());
  };
  const auto about = [](absl::Duration duration) {
    const int64_t hours = absl::ToInt64Hours(duration);
    if (hours < 48) return absl::StrCat(hours, hours == 1 ? " hour" : " hours");
    return absl::StrCat(hours / 24, " days");
  };
  if (now < certificate.not_before) {
    return absl::StrCat(
        "is valid only from ",
        absl::FormatTime("%Y-%m-%d %H:%M", certificate.not_before, absl::UTCTimeZone()), " UTC on");
  }
  if (now > certificate.not_after) {
    return absl::StrCat("expired ", about(now - certificate.not_after), " ago (",
                        day(certificate.not_after), ")");
  }
  return absl::StrCat("expires in ", about(certificate.not_after - now), " (",
                      day(certificate.not_after), ")");
}

}  // namespace megascale::security
