// Decides which HTTP requests are served. Pure. Threads: any number may use one guard.
// A page of another site must not be able to read from this server through the user's browser. So
// `Host` must name this server, which stops DNS rebinding; `Origin`, if it is there, must be this
// server's; and each request needs the token, in a cookie that browsers send from this site only,
// or as a bearer token. A link with `?token=` sets the cookie and leads to the same path without
// it, so that the token stays out of the history.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace megascale::http {

// What the guard reads of a request. Empty: the request does not have it.
struct RequestHead {
  std::string method;
  std::string host;
  std::string origin;
  std::string cookie;
  std::string authorization;
  std::string token;  // of the query
};

enum class Verdict {
  kServe,
  kSetCookie,     // the token in the query is right: redirect, with SetCookie()
  kBadMethod,     // 405
  kWrongHost,     // 421
  kWrongOrigin,   // 403
  kMissingToken,  // 401
};

class RequestGuard {
 public:
  // `hosts`: the names under which the server is reached, without a port. Requires: `token` is not
  // empty.
  RequestGuard(const std::vector<std::string>& hosts, int port, bool is_tls, std::string token);

  Verdict Judge(const RequestHead& head) const;
  // Returns the value of the header Set-Cookie.
  std::string SetCookie() const;

 private:
  bool HasToken(const RequestHead& head) const;

  std::vector<std::string> authorities_;  // "127.0.0.1:7078"
  std::string scheme_;                    // "http://"
  std::string cookie_name_;
  std::string token_;
};

// Compares in a time that does not depend on where the texts differ.
bool SameSecret(absl::string_view a, absl::string_view b);

}  // namespace megascale::http
