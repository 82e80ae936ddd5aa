#include "controlplane/security/authority.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "controlplane/security/openssl.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace megascale::security {
namespace {

constexpr absl::Duration kClockSkew = absl::Hours(1);
constexpr size_t kNameBytesMax = 64;  // of X.509's common name
constexpr int kSerialBytes = 16;
constexpr char kAuthorityName[] = "ca";

// The contents of a certificate to make.
struct Draft {
  std::string name;
  std::string unit;  // "": none
  absl::Time not_before;
  absl::Time not_after;
  std::vector<std::pair<int, std::string>> extensions;  // NID, value as OpenSSL writes them
};

struct Pair {
  UniqueX509 certificate;
  UniqueKey key;
};

absl::Status Failed(absl::string_view what) {
  return absl::InternalError(absl::StrCat(what, ": OpenSSL failed: ", OpensslError()));
}

std::string PathOf(const std::string& directory, absl::string_view name, absl::string_view ending) {
  return absl::StrCat(directory, "/", name, ".", ending);
}

bool IsWord(absl::string_view text, absl::string_view punctuation) {
  return !text.empty() && text.size() <= 253 && absl::ascii_isalnum(text[0]) &&
         std::all_of(text.begin(), text.end(), [&](unsigned char c) {
           return absl::ascii_isalnum(c) ||
                  punctuation.find(static_cast<char>(c)) != punctuation.npos;
         });
}

// Returns "DNS:host" or "IP:address". Checks the text, because commas would add more names.
absl::StatusOr<std::string> AlternativeName(const std::string& host) {
  in6_addr parsed;
  if (::inet_pton(AF_INET, host.c_str(), &parsed) == 1 ||
      ::inet_pton(AF_INET6, host.c_str(), &parsed) == 1) {
    return absl::StrCat("IP:", host);
  }
  if (IsWord(host, ".-_")) return absl::StrCat("DNS:", host);
  return absl::InvalidArgumentError(
      absl::StrCat("host '", host, "': expected a DNS name or a numeric address"));
}

bool SetName(X509_NAME* name, const Draft& draft) {
  const auto add = [name](const char* field, const std::string& value) {
    return X509_NAME_add_entry_by_txt(name, field, MBSTRING_UTF8,
                                      reinterpret_cast<const unsigned char*>(value.data()),
                                      static_cast<int>(value.size()), -1, 0) == 1;
  };
  return (draft.unit.empty() || add("OU", draft.unit)) && add("CN", draft.name);
}

// 127 random bits, positive.
bool SetRandomSerial(X509* certificate) {
  unsigned char bytes[kSerialBytes];
  if (RAND_bytes(bytes, kSerialBytes) != 1) return false;
  bytes[0] &= 0x7F;
  bytes[0] |= 0x40;
  BIGNUM* number = BN_bin2bn(bytes, kSerialBytes, nullptr);
  const bool good = BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate)) != nullptr;
  BN_free(number);
  return good;
}

bool SetTimes(X509* certificate, const Draft& draft) {
  return ASN1_TIME_set(X509_getm_notBefore(certificate), absl::ToTimeT(draft.not_before)) !=
             nullptr &&
         ASN1_TIME_set(X509_getm_notAfter(certificate), absl::ToTimeT(draft.not_after)) != nullptr;
}

bool AddExtensions(X509* certificate, X509* issuer, const Draft& draft) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  return std::all_of(draft.extensions.begin(), draft.extensions.end(), [&](const auto& wanted) {
    const UniqueExtension extension(
        X509V3_EXT_conf_nid(nullptr, &context, wanted.first, wanted.second.c_str()));
    return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
  });
}

// Makes a fresh key and its certificate, signed by `issuer`; null: self-signed.
absl::StatusOr<Pair> Make(const Draft& draft, const Pair* issuer) {
  Pair made;
  made.key.reset(EVP_EC_gen("P-256"));
  made.certificate.reset(X509_new());
  if (made.key == nullptr || made.certificate == nullptr) return Failed("make a key");
  X509* certificate = made.certificate.get();
  X509* signer = issuer == nullptr ? certificate : issuer->certificate.get();
  EVP_PKEY* signing_key = issuer == nullptr ? made.key.get() : issuer->key.get();
  const bool good = X509_set_version(certificate, X509_VERSION_3) == 1 &&
                    SetRandomSerial(certificate) && SetTimes(certificate, draft) &&
                    SetName(X509_get_subject_name(certificate), draft) &&
                    X509_set_issuer_name(certificate, X509_get_subject_name(signer)) == 1 &&
                    X509_set_pubkey(certificate, made.key.get()) == 1 &&
                    AddExtensions(certificate, signer, draft) &&
                    X509_sign(certificate, signing_key, EVP_sha256()) > 0;
  if (!good) return Failed(absl::StrCat("make the certificate of ", draft.name));
  return made;
}

std::string Text(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(size));
}

// The files that were made so far. Removes them at its end, unless they are to stay: what a full
// disk cut short would be in the way of the next try.
class MadeFiles {
 public:
  ~MadeFiles() {
    for (const std::string& path : paths_) ::unlink(path.c_str());
  }
  void Add(const std::string& path) { paths_.push_back(path); }
  void Keep() { paths_.clear(); }

 private:
  std::vector<std::string> paths_;
};

// Writes a new file with mode `mode`, whatever the umask; never replaces an existing one.
absl::Status WriteNew(const std::string& path, absl::string_view data, mode_t mode,
                      MadeFiles* made) {
  const base::UniqueFd file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.valid()) {
    if (errno != EEXIST) return base::ErrnoStatus(errno, absl::StrCat("make ", path));
    return absl::AlreadyExistsError(absl::StrCat(
        path, ": exists and is not overwritten; remove it, or choose another name or directory"));
  }
  made->Add(path);
  RETURN_IF_ERROR(base::Annotate(base::WriteAll(file.get(), data), path));
  if (::fchmod(file.get(), mode) != 0 || ::fsync(file.get()) != 0) {
    return base::ErrnoStatus(errno, absl::StrCat("write ", path));
  }
  return absl::OkStatus();
}

absl::Status WritePair(const std::string& directory, absl::string_view name, const Pair& pair,
                       MadeFiles* made) {
  const UniqueBio certificate(BIO_new(BIO_s_mem()));
  const UniqueBio key(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_X509(certificate.get(), pair.certificate.get()) != 1 ||
      PEM_write_bio_PKCS8PrivateKey(key.get(), pair.key.get(), nullptr, nullptr, 0, nullptr,
                                    nullptr) != 1) {
    return Failed(absl::StrCat("write ", name));
  }
  RETURN_IF_ERROR(WriteNew(PathOf(directory, name, "key"), Text(key.get()), 0600, made));
  RETURN_IF_ERROR(WriteNew(PathOf(directory, name, "pem"), Text(certificate.get()), 0644, made));
  return base::SyncDirectory(directory);
}

// Checks that neither file exists, before either is made.
absl::Status CheckAbsent(const std::string& directory, absl::string_view name) {
  for (const char* ending : {"key", "pem"}) {
    const std::string path = PathOf(directory, name, ending);
    struct stat info;
    if (::lstat(path.c_str(), &info) == 0) {
      return absl::AlreadyExistsError(absl::StrCat(
          path, ": exists and is not overwritten; remove it, or choose another name or directory"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckFolder(const std::string& directory) {
  RETURN_IF_ERROR(base::MakeDirectories(directory));
  struct stat info;
  if (::stat(directory.c_str(), &info) != 0) return base::ErrnoStatus(errno, directory);
  if (info.st_uid == ::geteuid() && (info.st_mode & 022) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      directory, ": others may write there, so they could change the authority; chmod 700 ",
      directory, ", or choose another directory"));
}

absl::StatusOr<Pair> LoadAuthority(const std::string& directory) {
  const std::string certificate_path = PathOf(directory, kAuthorityName, "pem");
  const std::string key_path = PathOf(directory, kAuthorityName, "key");
  const auto pem = base::ReadFile(certificate_path, kPemBytesMax);
  if (!pem.ok()) {
    return base::Annotate(pem.status(), "no authority (make one with `megascale certs init`)");
  }
  ASSIGN_OR_RETURN(const std::string key_pem, base::ReadFile(key_path, kPemBytesMax));
  auto certificates = ParseCertificates(*pem);
  if (!certificates.ok()) return base::Annotate(certificates.status(), certificate_path);
  auto key = ParseKey(key_pem);
  if (!key.ok()) return base::Annotate(key.status(), key_path);
  Pair pair = {std::move(certificates->front()), *std::move(key)};
  if (X509_check_private_key(pair.certificate.get(), pair.key.get()) != 1) {
    OpensslError();
    return absl::FailedPreconditionError(
        absl::StrCat(key_path, ": is not the key of ", certificate_path));
  }
  return pair;
}

absl::StatusOr<Draft> DraftOf(const CertificateRequest& request) {
  if (request.role == Role::kNone) {
    return absl::InvalidArgumentError("role: expected driver, agent or user");
  }
  if (!IsWord(request.name, ".-_") || request.name.size() > kNameBytesMax ||
      request.name == kAuthorityName) {
    return absl::InvalidArgumentError(absl::StrCat(
        "name '", request.name, "': expected 1 to ", kNameBytesMax,
        " letters, digits, '.', '-' and '_', beginning with a letter or digit, and not 'ca'"));
  }
  const bool is_driver = request.role == Role::kDriver;
  if (is_driver && request.hosts.empty()) {
    return absl::InvalidArgumentError(
        "a driver's certificate needs the names that clients connect to: give --host");
  }
  Draft draft;
  draft.name = request.name;
  draft.unit = RoleUnit(request.role);
  draft.not_before = absl::Now() - kClockSkew;
  draft.not_after = request.not_after;
  draft.extensions = {{NID_basic_constraints, "critical,CA:FALSE"},
                      {NID_key_usage, "critical,digitalSignature"},
                      {NID_ext_key_usage, is_driver ? "serverAuth" : "clientAuth"},
                      {NID_subject_key_identifier, "hash"},
                      {NID_authority_key_identifier, "keyid:always"}};
  std::vector<std::string> names;
  for (const std::string& host : request.hosts) {
    ASSIGN_OR_RETURN(std::string name, AlternativeName(host));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  if (!names.empty()) {
    draft.extensions.emplace_back(NID_subject_alt_name, absl::StrJoin(names, ","));
  }
  return draft;
}

absl::StatusOr<Draft> AuthorityDraft(absl::Duration lifetime) {
  unsigned char digits[4];
  if (RAND_bytes(digits, sizeof(digits)) != 1) return Failed("take random bytes");
  Draft draft;
  // A distinct name, so that messages can tell authorities apart.
  draft.name = absl::StrCat(
      "megascale authority ",
      absl::BytesToHexString(absl::string_view(reinterpret_cast<char*>(digits), sizeof(digits))));
  draft.not_before = absl::Now() - kClockSkew;
  draft.not_after = absl::Now() + lifetime;
  draft.extensions = {{NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
                      {NID_key_usage, "critical,keyCertSign,cRLSign"},
                      {NID_subject_key_identifier, "hash"}};
  return draft;
}

absl::StatusOr<IssuedCertificate> Issue(const std::string& directory,
                                        const CertificateRequest& request, MadeFiles* files) {
  ASSIGN_OR_RETURN(Draft draft, DraftOf(request));
  ASSIGN_OR_RETURN(const Pair authority, LoadAuthority(directory));
  const std::string authority_path = PathOf(directory, kAuthorityName, "pem");
  ASSIGN_OR_RETURN(const std::string authority_pem, base::ReadFile(authority_path, kPemBytesMax));
  ASSIGN_OR_RETURN(const Certificate signer, DescribeCertificate(authority_pem));
  if (signer.not_after < absl::Now()) {
    return absl::FailedPreconditionError(
        absl::StrCat(authority_path, ": ", DescribeValidity(signer, absl::Now()),
                     "; make a new authority in another directory, and new certificates"));
  }
  draft.not_after = std::min(draft.not_after, signer.not_after);
  draft.not_before = std::min(draft.not_before, draft.not_after - kClockSkew);
  RETURN_IF_ERROR(CheckAbsent(directory, request.name));
  ASSIGN_OR_RETURN(const Pair made, Make(draft, &authority));
  RETURN_IF_ERROR(WritePair(directory, request.name, made, files));
  IssuedCertificate issued;
  issued.certificate_path = PathOf(directory, request.name, "pem");
  issued.key_path = PathOf(directory, request.name, "key");
  ASSIGN_OR_RETURN(const std::string pem, base::ReadFile(issued.certificate_path, kPemBytesMax));
  ASSIGN_OR_RETURN(issued.certificate, DescribeCertificate(pem));
  return issued;
}

}  // namespace

absl::StatusOr<IssuedCertificate> IssueCertificate(const std::string& directory,
                                                   const CertificateRequest& request) {
  MadeFiles files;
  ASSIGN_OR_RETURN(IssuedCertificate issued, Issue(directory, request, &files));
  files.Keep();
  return issued;
}

absl::StatusOr<std::vector<IssuedCertificate>> MakeAuthority(
    const std::string& directory, absl::Duration lifetime,
    const std::vector<CertificateRequest>& requests) {
  RETURN_IF_ERROR(CheckFolder(directory));
  RETURN_IF_ERROR(CheckAbsent(directory, kAuthorityName));
  for (const CertificateRequest& request : requests) {
    RETURN_IF_ERROR(DraftOf(request).status());
    RETURN_IF_ERROR(CheckAbsent(directory, request.name));
  }
  ASSIGN_OR_RETURN(const Draft draft, AuthorityDraft(lifetime));
  ASSIGN_OR_RETURN(const Pair made, Make(draft, nullptr));
  MadeFiles files;
  RETURN_IF_ERROR(WritePair(directory, kAuthorityName, made, &files));
  std::vector<IssuedCertificate> issued;
  for (const CertificateRequest& request : requests) {
    ASSIGN_OR_RETURN(IssuedCertificate one, Issue(directory, request, &files));
    issued.push_back(std::move(one));
  }
  files.Keep();
  return issued;
}

}  // namespace megascale::security
