// The page and the measurements that the driver serves over HTTP: answers requests with what a
// PageSource returns. It reads the jobs at an interval of its own, and keeps the newest spans of a
// job for some seconds. So many clients make the driver work no more than one reader does. No
// answer is longer than about 1 MB.
//
//   Page page({.source = &source, .clock = &base::RealClock()});
//   page.Start();
//   page.Answer({.path = "/api/jobs"});
//
// Paths: "/" and the files of static/; "/metrics"; "/api/…", see page.cc; "/events" as a stream.
// Threads: any number may call Answer and read events.
#pragma once

#include <memory>

#include "controlplane/http/http_server.h"
#include "controlplane/page/page_source.h"
#include "runtime/base/clock.h"

namespace megascale::page {

struct PageOptions {
  PageSource* source = nullptr;        // outlives the page
  const base::Clock* clock = nullptr;  // outlives the page
};

class Page {
 public:
  explicit Page(const PageOptions& options);
  ~Page();

  // Reads jobs and machines from now on, in a thread of its own.
  void Start();
  // Makes a read that Answer has begun end soon; no call may follow. The destructor does it, too.
  void Stop();
  // Reads jobs and machines once. For tests, instead of Start.
  void Poll();

  http::Response Answer(const http::Request& request);
  // Returns null unless the path is "/events".
  std::unique_ptr<http::EventSource> Events(const http::Request& request);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace megascale::page
