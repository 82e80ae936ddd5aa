#include "cli/launch/launch_plan.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace megascale::cli {
namespace {

constexpr size_t kPlanBytesMax = 1 << 20;
constexpr int kPlanVersion = 1;

}  // namespace

std::vector<std::string> LaunchPlan::CommonOptions() const {
  std::vector<std::string> all = options;
  // An agent has the whole machine, unless the user says how to share it.
  const bool shares = std::any_of(all.begin(), all.end(), [](const std::string& option) {
    return absl::StartsWith(option, "--exclusive") || absl::StartsWith(option, "--oversubscribe") ||
           absl::StartsWith(option, "-s") || absl::StartsWith(option, "--cpus-per-task") ||
           absl::StartsWith(option, "-c");
  });
  if (!shares) all.push_back("--exclusive");
  if (!time.empty()) all.push_back(absl::StrCat("--time=", time));
  if (!partition.empty()) all.push_back(absl::StrCat("--partition=", partition));
  return all;
}

std::vector<std::string> LaunchPlan::FirstJobOptions() const {
  std::vector<std::string> all = CommonOptions();
  const int64_t count = nodes + spares;
  all.insert(all.end(),
             {absl::StrCat("--nodes=", count), absl::StrCat("--ntasks=", count),
              "--ntasks-per-node=1", "--no-kill", "--no-requeue", absl::StrCat("--job-name=", name),
              absl::StrCat("--output=", Path("logs/launch-%j.log"))});
  return all;
}

security::TlsFiles LaunchPlan::Certificate(const std::string& name) const {
  return {Path("certs/ca.pem"), Path(absl::StrCat("certs/", name, ".pem")),
          Path(absl::StrCat("certs/", name, ".key"))};
}

absl::StatusOr<base::UniqueFd> LaunchPlan::OpenLog(const std::string& name) const {
  const std::string path = Path(absl::StrCat("logs/", name));
  base::UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!fd.valid()) return base::ErrnoStatus(errno, absl::StrCat("open ", path));
  return fd;
}

absl::StatusOr<ConnectionFlags> LaunchPlan::Connection() const {
  if (!driver.address.empty()) return driver;
  ASSIGN_OR_RETURN(const std::string address, base::ReadFile(Path("address"), 4096));
  ConnectionFlags own;
  own.address = std::string(absl::StripAsciiWhitespace(address));
  own.tls = Certificate("user");
  return own;
}

std::vector<std::string> TlsWords(const security::TlsFiles& tls) {
  if (!tls.complete()) return {};
  return {"--tls-ca", tls.ca, "--tls-cert", tls.certificate, "--tls-key", tls.key};
}

absl::Status SavePlan(const LaunchPlan& plan) {
  const nlohmann::ordered_json json = {{"version", kPlanVersion},
                                       {"program", plan.program},
                                       {"name", plan.name},
                                       {"nodes", plan.nodes},
                                       {"spares", plan.spares},
                                       {"max_nodes", plan.max_nodes},
                                       {"slots", plan.slots},
                                       {"time", plan.time},
                                       {"partition", plan.partition},
                                       {"options", plan.options},
                                       {"machine_tests", plan.machine_tests},
                                       {"driver", plan.driver.address},
                                       {"tls_ca", plan.driver.tls.ca},
                                       {"tls_cert", plan.driver.tls.certificate},
                                       {"tls_key", plan.driver.tls.key},
                                       {"insecure", plan.driver.insecure},
                                       {"agent_cert", plan.agent_tls.certificate},
                                       {"agent_key", plan.agent_tls.key},
                                       {"end_before_seconds", plan.end_before_seconds},
                                       {"idle_seconds", plan.idle_seconds},
                                       {"has_job", plan.has_job}};
  return base::WriteFileDurably(plan.Path("launch.json"), json.dump(2) + "\n");
}

absl::StatusOr<LaunchPlan> LoadPlan(const std::string& folder) {
  LaunchPlan plan;
  plan.folder = folder;
  ASSIGN_OR_RETURN(const std::string text, base::ReadFile(plan.Path("launch.json"), kPlanBytesMax));
  const auto damaged = [&](const std::string& why) {
    return absl::DataLossError(absl::StrCat(plan.Path("launch.json"), ": ", why,
                                            "; `megascale launch slurm` writes it anew"));
  };
  try {
    const auto json = nlohmann::json::parse(text);
    if (json.at("version").get<int>() != kPlanVersion) return damaged("has another version");
    json.at("program").get_to(plan.program);
    json.at("name").get_to(plan.name);
    json.at("nodes").get_to(plan.nodes);
    json.at("spares").get_to(plan.spares);
    json.at("max_nodes").get_to(plan.max_nodes);
    json.at("slots").get_to(plan.slots);
    json.at("time").get_to(plan.time);
    json.at("partition").get_to(plan.partition);
    json.at("options").get_to(plan.options);
    json.at("machine_tests").get_to(plan.machine_tests);
    json.at("driver").get_to(plan.driver.address);
    json.at("tls_ca").get_to(plan.driver.tls.ca);
    json.at("tls_cert").get_to(plan.driver.tls.certificate);
    json.at("tls_key").get_to(plan.driver.tls.key);
    json.at("insecure").get_to(plan.driver.insecure);
    json.at("agent_cert").get_to(plan.agent_tls.certificate);
    json.at("agent_key").get_to(plan.agent_tls.key);
    if (!plan.agent_tls.certificate.empty()) plan.agent_tls.ca = plan.driver.tls.ca;
    json.at("end_before_seconds").get_to(plan.end_before_seconds);
    json.at("idle_seconds").get_to(plan.idle_seconds);
    json.at("has_job").get_to(plan.has_job);
  } catch (const nlohmann::json::exception& error) {
    return damaged(error.what());
  }
  return plan;
}

}  // namespace megascale::cli
