// certs init | issue | show: the certificates of mutual TLS.
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "cli/command_line/report.h"
#include "cli/commands/commands.h"
#include "controlplane/security/authority.h"
#include "controlplane/security/certificate.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace megascale::cli {
namespace {

using security::Certificate;
using security::CertificateRequest;
using security::IssuedCertificate;
using security::Role;

constexpr absl::Duration kDay = absl::Hours(24);
constexpr int64_t kAuthorityDays = 3650;
constexpr int64_t kDaysMax = 3650;
constexpr size_t kPemBytesMax = 1 << 20;

struct CertsFlags {
  std::string directory;
  std::string role;
  std::string name;
  std::vector<std::string> hosts;
  int64_t days = 365;
};

struct ShowFlags {
  std::string file;
  std::string format = "text";
};

absl::Status CheckDays(int64_t days) {
  if (days >= 1 && days <= kDaysMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--days: ", days, " is out of range; expected 1 to ", kDaysMax));
}

// Returns the names by which a driver on this machine can always be reached, and the requested
// ones.
std::vector<std::string> DriverHosts(const std::vector<std::string>& asked) {
  std::vector<std::string> hosts = {"localhost", "127.0.0.1", "::1"};
  char name[HOST_NAME_MAX + 1] = {};
  if (::gethostname(name, HOST_NAME_MAX) == 0 && *name != '\0') hosts.emplace_back(name);
  for (const std::string& host : asked) {
    if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
  }
  return hosts;
}

void PrintMade(const IssuedCertificate& made) {
  const Certificate& certificate = made.certificate;
  std::printf("%s, %s\n  role %s%s; %s\n", made.certificate_path.c_str(), made.key_path.c_str(),
              std::string(security::RoleName(certificate.role)).c_str(),
              certificate.hosts.empty()
                  ? ""
                  : absl::StrCat(", for ", absl::StrJoin(certificate.hosts, ", ")).c_str(),
              security::DescribeValidity(certificate, absl::Now()).c_str());
}

absl::Status Init(const CertsFlags& flags) {
  RETURN_IF_ERROR(CheckDays(flags.days));
  const absl::Time not_after = absl::Now() + flags.days * kDay;
  const std::vector<CertificateRequest> requests = {
      {Role::kDriver, "driver", DriverHosts(flags.hosts), not_after},
      {Role::kAgent, "agent", {}, not_after},
      {Role::kUser, "user", {}, not_after},
  };
  const std::string& dir = flags.directory;
  ASSIGN_OR_RETURN(
      const auto made,
      security::MakeAuthority(dir, std::max(kAuthorityDays, flags.days) * kDay, requests));
  std::printf(
      "%s/ca.pem, %s/ca.key\n  the authority; whoever has ca.key can make certificates for "
      "anybody: keep it here\n",
      dir.c_str(), dir.c_str());
  for (const IssuedCertificate& one : made) PrintMade(one);
  const std::string host = flags.hosts.empty() ? "localhost" : flags.hosts.front();
  std::printf(
      "\nnext, on the driver's machine, with %s/ca.pem, driver.pem and driver.key:\n"
      "  megascale driver --listen %s:7077 --tls-ca %s/ca.pem --tls-cert %s/driver.pem --tls-key "
      "%s/driver.key\n"
      "on every machine that trains, with ca.pem, agent.pem and agent.key:\n"
      "  megascale agent --driver %s:7077 --tls-ca ca.pem --tls-cert agent.pem --tls-key "
      "agent.key\n"
      "where jobs are submitted, with ca.pem, user.pem and user.key:\n"
      "  megascale list --address %s:7077 --tls-ca ca.pem --tls-cert user.pem --tls-key user.key\n",
      dir.c_str(), host.c_str(), dir.c_str(), dir.c_str(), dir.c_str(), host.c_str(), host.c_str());
  return absl::OkStatus();
}

absl::Status Issue(const CertsFlags& flags) {
  RETURN_IF_ERROR(CheckDays(flags.days));
  CertificateRequest request;
  request.role = security::RoleFromName(flags.role);
  if (request.role == Role::kNone) {
    return absl::InvalidArgumentError(
        absl::StrCat("role '", flags.role, "': expected driver, agent or user"));
  }
  request.name = flags.name;
  request.hosts = request.role == Role::kDriver ? DriverHosts(flags.hosts) : flags.hosts;
  request.not_after = absl::Now() + flags.days * kDay;
  ASSIGN_OR_RETURN(const IssuedCertificate made,
                   security::IssueCertificate(flags.directory, request));
  PrintMade(made);
  std::printf(
      "\nnext: copy both and %s/ca.pem to where they are used; give them as --tls-cert, "
      "--tls-key and --tls-ca\n",
      flags.directory.c_str());
  return absl::OkStatus();
}

void PrintCertificate(const Certificate& certificate, absl::Time now) {
  const auto time = [](absl::Time when) {
    return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", when, absl::UTCTimeZone());
  };
  std::printf("%s", FormatTable({{"name", certificate.name},
                                 {"role", certificate.is_authority
                                              ? std::string("authority")
                                              : std::string(security::RoleName(certificate.role))},
                                 {"signed by", certificate.issuer},
                                 {"for", absl::StrJoin(certificate.hosts, ", ")},
                                 {"valid from", time(certificate.not_before)},
                                 {"valid until", time(certificate.not_after)},
                                 {"", security::DescribeValidity(certificate, now)},
                                 {"serial", certificate.serial},
                                 {"SHA-256", certificate.fingerprint}})
                        .c_str());
}

void PrintCertificateJson(const Certificate& certificate, absl::Time now) {
  JsonObject json;
  json.Add("name", certificate.name);
  json.Add("role", certificate.is_authority ? "authority" : security::RoleName(certificate.role));
  json.Add("issuer", certificate.issuer);
  json.Add("hosts", absl::StrJoin(certificate.hosts, ","));
  json.Add("not_before",
           absl::FormatTime(absl::RFC3339_sec, certificate.not_before, absl::UTCTimeZone()));
  json.Add("not_after",
           absl::FormatTime(absl::RFC3339_sec, certificate.not_after, absl::UTCTimeZone()));
  json.Add("seconds_left", absl::ToInt64Seconds(certificate.not_after - now));
  json.Add("serial", certificate.serial);
  json.Add("sha256", certificate.fingerprint);
  std::printf("%s\n", json.Finish().c_str());
}

int Show(const ShowFlags& flags) {
  if (!CheckOutputFormat(flags.format)) return kExitUsage;
  const auto pem = base::ReadFile(flags.file, kPemBytesMax);
  if (!pem.ok()) return ReportError(pem.status());
  const auto certificate = security::DescribeCertificate(*pem);
  if (!certificate.ok()) return ReportError(base::Annotate(certificate.status(), flags.file));
  const absl::Time now = absl::Now();
  if (flags.format == "json") {
    PrintCertificateJson(*certificate, now);
  } else {
    PrintCertificate(*certificate, now);
  }
  const bool is_valid = now >= certificate->not_before && now <= certificate->not_after;
  return is_valid ? kExitGood : kExitFailed;
}

using CertsVerb = absl::Status (*)(const CertsFlags&);

void RunsVerb(Command* command, const std::shared_ptr<CertsFlags>& flags, CertsVerb verb) {
  command->Runs([flags, verb] {
    const absl::Status status = verb(*flags);
    return status.ok() ? static_cast<int>(kExitGood) : ReportError(status);
  });
}

void AddInit(Command* certs) {
  auto flags = std::make_shared<CertsFlags>();
  Command* command = certs->Add(
      "init",
      "makes a certificate authority, and certificates for a driver, agents and a user; overwrites "
      "nothing");
  command->PathPositional("DIR", &flags->directory,
                          "the folder; created owner-only if it is missing");
  command->Repeated("--host", &flags->hosts,
                    "name or address that clients reach the driver by, besides this host's name "
                    "and localhost; may be given again");
  command->Integer("--days", &flags->days, "how long the three certificates are valid");
  command->Examples(
      "megascale certs init certs --host driver.cluster --host 10.0.0.1\n"
      "megascale certs init certs --days 30");
  command->Details(
      "Makes ca.pem and ca.key (the authority, valid ten years), driver, agent and user (.pem and "
      ".key). Copy ca.pem and one pair to where it is used, and keep ca.key here: whoever reads it "
      "can "
      "make a certificate for anybody. Prints what to type next.");
  RunsVerb(command, flags, Init);
}

void AddIssue(Command* certs) {
  auto flags = std::make_shared<CertsFlags>();
  Command* command =
      certs->Add("issue", "makes one more certificate, signed by the authority in a folder");
  command->PathPositional("DIR", &flags->directory, "the folder that `certs init` made");
  command->Positional("ROLE", &flags->role, "driver, agent or user: what its owner may do");
  command->Positional("NAME", &flags->name,
                      "name of the owner; makes DIR/NAME.pem and DIR/NAME.key");
  command->Repeated("--host", &flags->hosts,
                    "name or address that a driver is reached by; may be given again");
  command->Integer("--days", &flags->days, "validity in days");
  command->Examples(
      "megascale certs issue certs agent n17\n"
      "megascale certs issue certs user alice --days 90\n"
      "megascale certs issue certs driver driver-2027 --host driver.cluster");
  RunsVerb(command, flags, Issue);
}

void AddShow(Command* certs) {
  auto flags = std::make_shared<ShowFlags>();
  Command* command =
      certs->Add("show", "shows whose a certificate is and until when; exits 1 if it has expired");
  command->PathPositional("FILE", &flags->file, "a certificate in PEM");
  AddOutputOption(command, &flags->format);
  command->Examples(
      "megascale certs show certs/agent.pem\n"
      "megascale certs show certs/ca.pem -o json");
  command->Runs([flags] { return Show(*flags); });
}

}  // namespace

void AddCertsCommand(CommandLine* line) {
  Command* certs = line->Add("certs", "makes and shows the certificates of mutual TLS");
  certs->Details(
      "A driver that listens on TCP takes only clients whose certificate its authority has signed, "
      "and "
      "each only for what its role allows: agents run workers, users submit jobs. Needs no driver "
      "and "
      "no network.");
  AddInit(certs);
  AddIssue(certs);
  AddShow(certs);
}

}  // namespace megascale::cli
