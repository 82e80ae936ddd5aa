#include "tests/diagnose/side_by_side.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "runtime/base/fd.h"

namespace megascale::injection {
namespace {

// A run in another process, which writes its report into a pipe and ends.
struct Child {
  size_t index = 0;  // of the injection
  pid_t pid = 0;
  int pipe = -1;
  std::string text = {};
};

class Runner {
 public:
  Runner(const std::vector<Injection>& injections, const SideBySide& options)
      : injections_(injections), options_(options), reports_(injections.size()) {}

  std::vector<RunReport> Run() && {
    std::vector<size_t> together;
    std::vector<size_t> alone;
    for (size_t i = 0; i < injections_.size(); ++i) {
      (LoadsMachine(injections_[i].fault) ? alone : together).push_back(i);
    }
    RunSome(together, static_cast<size_t>(std::max(1, options_.jobs)));
    RunSome(alone, 1);
    return std::move(reports_);
  }

 private:
  void RunSome(const std::vector<size_t>& indices, size_t jobs) {
    for (const size_t index : indices) {
      while (children_.size() >= jobs) AwaitOne();
      Start(index);
    }
    while (!children_.empty()) AwaitOne();
  }

  void Start(size_t index) {
    int ends[2];
    // The processes of the run must not hold the pipe open.
    if (::pipe2(ends, O_CLOEXEC) != 0) return Take(index, "no pipe");
    std::fflush(nullptr);
    const pid_t pid = ::fork();
    if (pid < 0) return Take(index, "no process");
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(ends[0]);
      const std::string text = WriteReport(RunInjection(injections_[index], options_.run));
      base::WriteAll(ends[1], text).IgnoreError();
      std::fflush(nullptr);
      ::_exit(0);
    }
    ::close(ends[1]);
    children_.push_back({.index = index, .pid = pid, .pipe = ends[0]});
  }

  // Reads from the children until one of them has ended.
  void AwaitOne() {
    for (;;) {
      std::vector<pollfd> waited;
      for (const Child& child : children_) waited.push_back({child.pipe, POLLIN, 0});
      if (::poll(waited.data(), waited.size(), -1) <= 0) continue;
      for (size_t i = 0; i < waited.size(); ++i) {
        if (waited[i].revents == 0) continue;
        char buffer[4096];
        const ssize_t count = ::read(children_[i].pipe, buffer, sizeof(buffer));
        if (count > 0) children_[i].text.append(buffer, static_cast<size_t>(count));
        if (count > 0 || (count < 0 && errno == EINTR)) continue;
        const Child ended = children_[i];
        children_.erase(children_.begin() + static_cast<std::ptrdiff_t>(i));
        ::close(ended.pipe);
        ::waitpid(ended.pid, nullptr, 0);
        return Take(ended.index, ended.text);
      }
    }
  }

  void Take(size_t index, const std::string& text) {
    reports_[index] = ReadReport(injections_[index], text);
    if (options_.on_report) options_.on_report(reports_[index]);
  }

  const std::vector<Injection>& injections_;
  const SideBySide& options_;
  std::vector<RunReport> reports_;
  std::vector<Child> children_;
};

}  // namespace

std::vector<RunReport> RunInjections(const std::vector<Injection>& injections,
                                     const SideBySide& options) {
  if (options.jobs > 1) return Runner(injections, options).Run();
  std::vector<RunReport> reports;
  for (const Injection& injection : injections) {
    reports.push_back(RunInjection(injection, options.run));
    if (options.on_report) options.on_report(reports.back());
  }
  return reports;
}

std::string WriteReport(const RunReport& report) {
  nlohmann::json json = {{"node", report.node},
                         {"problem", report.problem},
                         {"is_victim_right", report.is_victim_right},
                         {"is_right", report.is_right},
                         {"said", report.said},
                         {"wrong", report.wrong},
                         {"calm", report.calm},
                         {"step_seconds", report.step_seconds}};
  if (report.right_after < absl::InfiniteDuration()) {
    json["right_after_seconds"] = absl::ToDoubleSeconds(report.right_after);
  }
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

RunReport ReadReport(const Injection& injection, const std::string& text) {
  RunReport report;
  report.injection = injection;
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    report.node = json.at("node");
    report.problem = json.at("problem");
    report.is_victim_right = json.at("is_victim_right");
    report.is_right = json.at("is_right");
    report.said = json.at("said");
    report.wrong = json.at("wrong");
    report.calm = json.at("calm");
    report.step_seconds = json.at("step_seconds");
    if (json.contains("right_after_seconds")) {
      report.right_after = absl::Seconds(json.at("right_after_seconds").get<double>());
    }
  } catch (const nlohmann::json::exception&) {
    report = RunReport();
    report.injection = injection;
    report.problem = absl::StrCat("its process ended without a report: ", text);
  }
  return report;
}

}  // namespace megascale::injection
