#include "controlplane/driver/service/page_server.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "controlplane/driver/service/driver_server.h"
#include "controlplane/driver/service/job_service.h"
#include "controlplane/http/http_server.h"
#include "controlplane/page/page.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/socket/own_socket.h"
#include "runtime/base/status.h"

namespace megascale::driver {
namespace {

constexpr char kTokenFile[] = "http-token";
constexpr size_t kTokenBytes = 16;  // random ones; twice as many characters
constexpr size_t kTokenFileBytesMax = 200;

// Returns the token of this state directory; makes it if there is none, so that bookmarks and
// scrapers go on working when the driver starts again.
absl::StatusOr<std::string> TokenIn(const std::string& state_directory) {
  const std::string path = absl::StrCat(state_directory, "/", kTokenFile);
  const absl::Status checked = base::CheckSecretFile(
      path, "remove it if the driver did not write it: the driver makes a new token");
  if (!absl::IsNotFound(checked)) RETURN_IF_ERROR(checked);
  const auto read = base::ReadFile(path, kTokenFileBytesMax);
  if (read.ok()) {
    std::string token(absl::StripAsciiWhitespace(*read));
    const bool is_plain = std::all_of(token.begin(), token.end(), [](char c) {
      return absl::ascii_isalnum(static_cast<unsigned char>(c));
    });
    if (is_plain && token.size() >= 2 * kTokenBytes) return token;
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": expected at least ", 2 * kTokenBytes,
                     " letters and digits; remove the file, and the driver makes a new one"));
  }
  if (!absl::IsNotFound(read.status())) return read.status();
  std::string token = absl::BytesToHexString(RandomSecret().substr(0, kTokenBytes));
  RETURN_IF_ERROR(base::WriteFileDurably(path, absl::StrCat(token, "\n")));
  return token;
}

}  // namespace

// Members are destroyed from the last to the first: the server before what it serves.
struct PageServer::Impl {
  ~Impl() {
    if (page != nullptr) page->Stop();
  }
  std::unique_ptr<page::PageSource> source;
  std::unique_ptr<page::Page> page;
  std::unique_ptr<http::HttpServer> server;
  std::string token;
};

PageServer::PageServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PageServer::~PageServer() = default;

absl::StatusOr<std::unique_ptr<PageServer>> PageServer::Start(
    const PageServerOptions& options, std::unique_ptr<page::PageSource> source) {
  auto impl = std::make_unique<Impl>();
  ASSIGN_OR_RETURN(impl->token, TokenIn(options.state_directory));
  impl->source = std::move(source);
  impl->page = std::make_unique<page::Page>(
      page::PageOptions{.source = impl->source.get(), .clock = &base::RealClock()});
  http::HttpOptions http;
  http.address = options.address;
  http.tls = options.tls;
  http.token = impl->token;
  http.answer = [page = impl->page.get()](const http::Request& request) {
    return page->Answer(request);
  };
  http.events = [page = impl->page.get()](const http::Request& request) {
    return page->Events(request);
  };
  ASSIGN_OR_RETURN(impl->server, http::HttpServer::Start(http));
  impl->page->Start();
  std::unique_ptr<PageServer> server(new PageServer(std::move(impl)));
  RETURN_IF_ERROR(base::WriteFileDurably(absl::StrCat(options.state_directory, "/", kPageUrlFile),
                                         absl::StrCat(server->url(), "\n")));
  return server;
}

std::string PageServer::url() const {
  return absl::StrCat(impl_->server->url(), "?token=", impl_->token);
}

std::string PageServer::address() const { return impl_->server->url(); }

}  // namespace megascale::driver
