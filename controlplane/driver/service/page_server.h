// The page as part of the driver's process: web server, page and token.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "controlplane/page/page_source.h"
#include "controlplane/security/tls_files.h"

namespace megascale::driver {

struct PageServerOptions {
  std::string address;          // HOST:PORT
  std::string state_directory;  // keeps the token, in the file http-token
  security::TlsFiles tls;       // for addresses that are not loopback
};

class PageServer {
 public:
  // Serves from now on. Errors: those of http::HttpServer::Start; those of the file system.
  static absl::StatusOr<std::unique_ptr<PageServer>> Start(
      const PageServerOptions& options, std::unique_ptr<page::PageSource> source);
  ~PageServer();

  // The address to open, with the token: for its user alone, and for no log.
  std::string url() const;
  // The address without the token.
  std::string address() const;

 private:
  struct Impl;
  explicit PageServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace megascale::driver
