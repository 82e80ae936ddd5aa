// Serves the page of a made-up fleet, for the browser test and for looking at it:
//   page_demo PORT [DATA PIPELINE TENSOR]   prints the URL; ends when its standard input ends
// A number on a line of its standard input becomes the newest step of the running job.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <shared_mutex>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "controlplane/http/http_server.h"
#include "controlplane/page/page.h"
#include "runtime/base/clock.h"
#include "tests/page/test_fleet.h"

int main(int argc, char** argv) {
  using namespace megascale;
  page::TestFleetOptions options;
  const bool is_large = argc == 5;
  if (is_large) {
    options = {
        .data = std::atoi(argv[2]), .pipeline = std::atoi(argv[3]), .tensor = std::atoi(argv[4])};
  }
  page::TestFleet fleet(options);
  // The mean of many steps differs from that of five. A large fleet would compute a second step.
  if (!is_large) fleet.SpeedUpBefore(options.last_step - 4);
  base::FakeClock clock;
  clock.StepWall(absl::Seconds(1'790'000'000));
  page::Page page({.source = &fleet, .clock = &clock});
  // The page sees a failure and a recovery.
  page.Poll();
  clock.Advance(absl::Milliseconds(640));
  fleet.job().mutable_culprit()->set_attempt(1);
  fleet.job().mutable_culprit()->set_rank(21);
  fleet.job().mutable_culprit()->set_node_id("node-002");
  fleet.job().mutable_culprit()->set_failure_class(telemetry::v1::FAILURE_CLASS_EXITED);
  fleet.job().mutable_culprit()->set_evidence(
      "killed by signal 9; xid 79: the GPU has fallen off the bus");
  fleet.job().set_num_consequences(7);
  fleet.job().mutable_last_record()->set_attempt(1);
  page.Poll();
  clock.Advance(absl::Milliseconds(4200));
  fleet.job().mutable_last_record()->set_attempt(2);
  page.Poll();
  http::HttpOptions http;
  http.address = absl::StrCat("127.0.0.1:", argc > 1 ? argv[1] : "0");
  http.token = "demo";
  std::shared_mutex mutex;  // of the fleet
  http.answer = [&](const http::Request& request) {
    const std::shared_lock<std::shared_mutex> lock(mutex);
    return page.Answer(request);
  };
  http.events = [&](const http::Request& request) { return page.Events(request); };
  const auto server = http::HttpServer::Start(http);
  if (!server.ok()) {
    std::fprintf(stderr, "%s\n", server.status().ToString().c_str());
    return 1;
  }
  std::printf("%s?token=demo\n", (*server)->url().c_str());
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    int64_t step = 0;
    if (!absl::SimpleAtoi(line, &step)) continue;
    const std::lock_guard<std::shared_mutex> lock(mutex);
    fleet.job().set_last_step(step);
    page.Poll();
  }
  return 0;
}
